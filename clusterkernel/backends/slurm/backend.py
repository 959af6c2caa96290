"""The Slurm backend: what the rest of the package sees of this folder."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from clusterkernel.backends.base import Availability, Capabilities, Check, Observation, Plan
from clusterkernel.backends.slurm import doctor, tables
from clusterkernel.backends.slurm.commands import LocalTransport, Transport, unreachable
from clusterkernel.backends.slurm.environment import which_cluster
from clusterkernel.backends.slurm.poll import Poller
from clusterkernel.backends.slurm.submit import Submitter, launch_line, script_text
from clusterkernel.errors import BackendError, BackendUnavailable
from clusterkernel.formats.sbatch import writer as sbatch
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot, default_root
from clusterkernel.records import JobRecord, PayloadSummary, Submission
from clusterkernel.spec import JobSpec

if TYPE_CHECKING:
    from clusterkernel.advice import Facts

__all__ = ["SlurmBackend"]

_LOGIN_NODE: Final = "Open the notebook on a login node of the cluster, or use --backend local."
_CONFIGS: Final = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")


class SlurmBackend:
    """A Slurm cluster whose commands are on this machine.

    Parameters
    ----------
    transport : Transport, optional
        Runs the commands; by default on this machine.
    """

    name: ClassVar[str] = "slurm"
    capabilities: ClassVar[Capabilities] = Capabilities(requeue=True, accounting=True)

    def __init__(self, transport: Transport | None = None) -> None:
        self._transport = transport or LocalTransport()
        self._submitter = Submitter(self._transport)
        self._poller = Poller(self._transport)

    @property
    def lane(self) -> str:
        """Names the cluster that is asked: kernels that ask the same one share its answers."""
        return f"slurm-{hashlib.sha256(which_cluster(os.environ).encode()).hexdigest()[:8]}"

    def available(self) -> Availability:
        """Whether Slurm's commands and a configuration are here; asks no controller where it need not."""
        missing = [name for name in ("sbatch", "squeue", "scontrol") if self._transport.which(name) is None]
        if missing:
            return Availability(False, f"{missing[0]} not found", _LOGIN_NODE)
        config = os.environ.get("SLURM_CONF")
        if config and not os.path.exists(config):
            return Availability(False, f"SLURM_CONF = {config} is not there", "Set SLURM_CONF to the cluster's file.")
        known = config or next(filter(os.path.exists, _CONFIGS), None)
        if known is None:  # a configuration may also come over the network
            try:
                ping = self._transport.query("scontrol", "ping", timeout=3.0)
            except BackendUnavailable as error:
                return Availability(False, str(error), "Set SLURM_CONF to the cluster's file.")
            if not ping.ok:
                return Availability(False, ping.complaint, "Set SLURM_CONF to the cluster's file.")
        return Availability(True, f"Slurm ({known})" if known else "Slurm")

    def check(self, spec: JobSpec) -> None:
        """Refuse what sbatch surely refuses, silently ignores, or cannot mean.

        Raises
        ------
        SpecError
            A field.
        BackendUnavailable
            There is no Slurm here.
        """
        sbatch.check(spec)
        sbatch.log_pattern(str(default_root()), array=False)  # or the job would be refused after its folder was made
        here = self.available()
        if not here.ok:
            raise BackendUnavailable(f"Slurm cannot be used here: {here.detail}.", hint=here.fix)

    def plan(self, spec: JobSpec, folder: JobFolder | None = None, *, launch: str = "") -> Plan:
        """The script that `submit` sends, with stand-ins where there is no folder yet."""
        sbatch.check(spec)
        if folder is not None:
            record, path = folder.record, str(folder.path)
            runtime = str(JobRoot(folder.path.parent).runtime())
        else:
            record, path, runtime = _stand_in(spec), "JOB_FOLDER", "RUNTIME"
        part = sbatch.ArrayPart(0, record.tasks, spec.parallelism) if record.array else None
        words = shlex.split(launch) if launch else launch_line(spec.environment.interpreter, runtime, path)
        return Plan(text=script_text(record, path, words, runtime, part), notes=sbatch.notes(spec))

    def submit(self, folder: JobFolder) -> Submission:
        """Send the job, or what of it is not sent yet (see `submit.Submitter.submit`)."""
        sbatch.check(folder.record.spec)
        return self._submitter.submit(folder)

    def find(self, folder: JobFolder) -> Submission | None:
        """The job's submission whose answer was lost, by the key in its comment."""
        return self._submitter.find(folder)

    def poll(self, folders: Sequence[JobFolder]) -> Mapping[str, Sequence[Observation]]:
        """How jobs are. What Slurm did not answer for is left out."""
        return self._poller.poll(folders)

    def cancel(self, folder: JobFolder, tasks: Sequence[int] | None = None) -> None:
        """Ask Slurm to end the job, or these array tasks of it. One that has ended already is no error.

        Raises
        ------
        BackendError
            Slurm refused, or did not answer.
        """
        submission = folder.submission() or self.find(folder)
        if submission is None:
            return
        targets = list(_targets(submission, folder.record.array, tasks))
        if not targets:
            return
        answer = self._transport.query("scancel", *targets, timeout=20.0)
        said = answer.err.lower()
        if answer.ok or "already completing or completed" in said or "invalid job id" in said:
            return
        if unreachable(said):
            raise BackendUnavailable(f"Slurm did not answer: {answer.complaint}.", hint="Cancel it again.")
        raise BackendError(f"scancel refused job {folder.id}: {answer.complaint}.")

    def facts(self, spec: JobSpec) -> Facts:
        """What the advice wants to know of the cluster; what it does not tell stays unknown."""
        from clusterkernel.backends.slurm import facts  # it brings all the formats along

        return facts.gather(self._transport, spec)

    def doctor(self, *, deep: bool = False, spec: JobSpec | None = None) -> Sequence[Check]:
        """What must hold, looked at one by one.

        Parameters
        ----------
        deep : bool
            Also run a small job that proves the job folder and the interpreter from a node.
        spec : JobSpec, optional
            Says where that job runs, on whose account, and with which interpreter.
        """
        return list(doctor.examine(self._transport, JobRoot(), deep=deep, spec=spec or JobSpec()))

    def queue(self, *, everybody: bool = True) -> list[dict[str, Any]]:
        """The jobs in the queue."""
        return tables.queue(self._transport, everybody=everybody)

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes and what is free on them."""
        return tables.nodes(self._transport)

    def accounting(self, *, days: float = 7.0) -> list[dict[str, Any]]:
        """The user's jobs of the last days."""
        return tables.accounting(self._transport, days=days)


def _targets(submission: Submission, array: bool, tasks: Sequence[int] | None) -> Iterable[str]:
    """What to tell scancel: whole jobs, or ``8123_[0-3,7]``."""
    for job, first, count in submission.platform_ids:
        if tasks is None or not array:
            yield job
            continue
        held = sorted({task - first for task in tasks if first <= task < first + count})
        if len(held) == count:
            yield job
        elif held:
            yield f"{job}_[{_ranges(held)}]"


def _ranges(numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _stand_in(spec: JobSpec) -> JobRecord:
    """A record for a job that is only shown."""
    return JobRecord(
        id="N",
        key="KEY",
        name=spec.name or "job",
        created=0.0,
        host="",
        user="",
        spec=spec,
        payload=PayloadSummary(kind="cell"),
        tasks=spec.array.size if spec.array else 1,
        array=spec.array is not None,
    )
