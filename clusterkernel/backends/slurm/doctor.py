"""Whether Slurm can be used from here, looked at part by part."""

from __future__ import annotations

import getpass
import os
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from clusterkernel.backends.base import Check
from clusterkernel.backends.slurm.commands import Answer, Transport
from clusterkernel.errors import BackendUnavailable, JobRootError
from clusterkernel.formats.sbatch.directives import placement
from clusterkernel.formats.sbatch.options import quote
from clusterkernel.formats.sbatch.writer import log_pattern
from clusterkernel.jobroot import JobRoot
from clusterkernel.spec import JobSpec

__all__ = ["examine", "prove_node"]

_ON_LOGIN_NODE: Final = "Open the notebook on a login node of the cluster."
_VERSION: Final = 'import sys; print("%d.%d" % sys.version_info[:2])'
_CLIENTS: Final = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")


def examine(transport: Transport, root: JobRoot, *, deep: bool = False, spec: JobSpec) -> Iterator[Check]:
    """The checks, in the order in which one needs the other; later ones are left out where an earlier fails.

    Parameters
    ----------
    deep : bool
        Also run a job of a few seconds, which proves the job folder and the interpreter on a node.
    spec : JobSpec
        Where that job runs, and with which interpreter.
    """
    missing = [name for name in _CLIENTS if transport.which(name) is None]
    yield Check(
        "Slurm commands", not missing, f"{', '.join(missing)} not found" if missing else "found", _ON_LOGIN_NODE
    )
    if missing:
        return
    version = _ask(transport, "sbatch", "--version")
    yield Check("Slurm version", version.ok, version.out.strip() or version.complaint, _ON_LOGIN_NODE)
    ping = _ask(transport, "scontrol", "ping")
    up = ping.ok and " UP" in ping.out
    said = ping.out.strip().splitlines()[0] if ping.out.strip() else ping.complaint
    yield Check("Slurm controller", up, said, "Set SLURM_CONF, or ask the site whether Slurm is down.")
    if not up:
        return
    yield _partition(transport)
    yield from _accounting(transport)
    yield _root(root, proved=deep)
    if deep:
        yield from prove_node(transport, root, spec)


def _ask(transport: Transport, *argv: str, timeout: float = 5.0) -> Answer:
    try:
        return transport.query(*argv, timeout=timeout)
    except BackendUnavailable as error:
        return Answer(argv, 1, "", str(error))


def _partition(transport: Transport) -> Check:
    answer = _ask(transport, "sinfo", "-h", "-o", "%P %a")
    names = [line.split()[0] for line in answer.out.splitlines() if line.split()]
    default = [name.rstrip("*") for name in names if name.endswith("*")]
    text = f"default {default[0]}; " if default else "no default; "
    listed = ", ".join(sorted({name.rstrip("*") for name in names}))
    return Check(
        "Slurm partitions", bool(default), text + (listed or answer.complaint), "Set --partition in a profile."
    )


def _accounting(transport: Transport) -> Iterator[Check]:
    answer = _ask(transport, "sacct", "-X", "-n", "-P", "-o", "JobID", "-S", "now-1minutes", timeout=10.0)
    if not answer.ok:
        if "disabled" in answer.err.lower():
            yield Check("Slurm accounting", True, "off: ends are told by the controller and our own records")
        else:
            yield Check(
                "Slurm accounting", False, answer.complaint, "Ends are found without it, if a little less exactly."
            )
        return
    yield Check("Slurm accounting", True, "on")
    argv = ("sacctmgr", "-n", "-P", "show", "assoc", f"user={getpass.getuser()}", "format=account,partition,qos")
    found = _ask(transport, *argv, timeout=10.0)
    accounts = sorted({line.partition("|")[0] for line in found.out.splitlines() if line.strip()})
    detail = ", ".join(accounts) if accounts else "you have no association"
    yield Check("Slurm account", bool(accounts), detail, "Ask the site for an account, or set --account.")


def _root(root: JobRoot, *, proved: bool) -> Check:
    """The job root as it looks from here; whether the nodes have it too only a job proves."""
    fix = "Set CLUSTERKERNEL_JOB_ROOT to a folder of yours that the nodes share."
    try:
        root.ensure()
        log_pattern(str(root.path), array=False)
    except (JobRootError, ValueError) as error:
        return Check("Job folder", False, str(error), fix)
    private = [folder for folder in ("/tmp", "/var/tmp", "/dev/shm") if root.path.is_relative_to(folder)]
    if private and not proved:
        return Check(
            "Job folder", False, f"{root.path} lies in {private[0]}, which each node mostly has for itself", fix
        )
    free = shutil.disk_usage(root.path).free
    return Check("Job folder", free > 1 << 30, f"{root.path}, {free / (1 << 30):.1f} GiB free", "Run %cluster_clean.")


def prove_node(transport: Transport, root: JobRoot, spec: JobSpec, *, timeout: float = 120.0) -> Iterator[Check]:
    """Run a small job that reads and writes in the job root and starts the interpreter.

    Parameters
    ----------
    spec : JobSpec
        Where it runs, and with which interpreter.
    timeout : float
        Seconds to wait for its answer.
    """
    root.ensure()
    python = os.path.expanduser(spec.environment.interpreter or sys.executable)
    word = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=root.path) as name:
        folder = Path(name)
        (folder / "question").write_text(word)
        reply = folder / "answer"
        reply.touch(0o600)  # it is watched: a look-up that failed would be remembered on NFS
        script = folder / "script.sh"
        script.write_text(
            "\n".join(
                [
                    "#!/bin/bash",
                    f"#SBATCH --output={quote(log_pattern(str(folder), array=False))}",
                    "#SBATCH --time=2 --nodes=1 --ntasks=1 --no-requeue --job-name=clusterkernel-doctor",
                    f"question=$(cat {shlex.quote(str(folder / 'question'))})",
                    f"python=$({shlex.quote(python)} -c {shlex.quote(_VERSION)} 2>&1)",
                    f'echo "$question ${{SLURMD_NODENAME:-$HOSTNAME}} $python" >>{shlex.quote(str(reply))}',
                    "",
                ]
            )
        )
        began = time.monotonic()
        sent = _ask(transport, "sbatch", "--parsable", *placement(spec), str(script), timeout=60.0)
        job = sent.out.strip().partition(";")[0]
        if not sent.ok or not job.isdigit():
            yield Check("Test job", False, sent.complaint, "Set what the site asks for in a profile.")
            return
        try:
            told: list[str] = []
            while len(told) < 2 and time.monotonic() - began < timeout:
                time.sleep(0.2)
                told = reply.read_text().split(maxsplit=2)
        finally:
            _ask(transport, "scancel", job)
        took = time.monotonic() - began
        if len(told) < 2:
            fix = f"Look at scontrol show job {job}; if it ran, the nodes do not share {root.path}."
            yield Check("Test job", False, f"no answer within {timeout:.0f} s", fix)
            return
        yield Check("Test job", told[0] == word, f"job {job} ran on {told[1]} and answered after {took:.1f} s")
        said = told[2].strip() if len(told) > 2 else "nothing"
        same = said == f"{sys.version_info[0]}.{sys.version_info[1]}"
        detail = f"{python} on {told[1]}: " + (f"Python {said}" if same else said.splitlines()[-1][:200])
        yield Check("Interpreter on a node", same, detail, "Set --interpreter to a Python that the nodes have.")
