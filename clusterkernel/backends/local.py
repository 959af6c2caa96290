"""This machine as a platform: real processes that outlive the kernel."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from clusterkernel import ledger
from clusterkernel.backends.base import Availability, Capabilities, Check, Observation, Plan
from clusterkernel.backends.slurm.environment import for_local
from clusterkernel.errors import BackendError, SpecError, SubmissionError
from clusterkernel.files import make_private, write_atomic
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import Submission
from clusterkernel.runtime import processes, setuplines
from clusterkernel.runtime import slots as held
from clusterkernel.spec import JobSpec
from clusterkernel.states import JobState

__all__ = ["LocalBackend"]

_UNUSABLE: Final = {
    "partition": "partitions",
    "reservation": "reservations",
    "dependency": "dependencies",
    "region": "regions",
    "zone": "zones",
}

# Host, pid and start of a runner: its id on this platform.
_RUNNER: Final = re.compile(r"(.+):([0-9]{1,10}):([0-9]{1,20})", re.ASCII)
# Seconds until setup lines must have come to their end.
_PATIENCE: Final = 60.0


def slots() -> int:
    """Tasks that run at once on this machine: ``$CLUSTERKERNEL_LOCAL_SLOTS``, else half its cores, at least two."""
    if given := os.environ.get("CLUSTERKERNEL_LOCAL_SLOTS"):
        try:
            count = int(given)
        except ValueError:
            count = 0
        if count < 1:
            raise SpecError(
                f"CLUSTERKERNEL_LOCAL_SLOTS = {given!r} is not a count.", hint="Write a whole number from 1 up."
            )
        return count
    return max(2, (os.cpu_count() or 2) // 2)


def _gpus() -> int:
    return sum(name.removeprefix("nvidia").isdigit() for name in os.listdir("/dev") if name.startswith("nvidia"))


class LocalBackend:
    """Runs jobs on this machine, several at once, within their time limits."""

    name: ClassVar[str] = "local"
    capabilities: ClassVar[Capabilities] = Capabilities(requeue=True, verdict=False, poll_every=0.5)

    def available(self) -> Availability:
        """Always."""
        return Availability(True, f"this machine, {slots()} tasks at once")

    def check(self, spec: JobSpec) -> None:
        """Refuse what one machine cannot be: several nodes, GPUs that it lacks, a queue."""
        if spec.resources.nodes > 1:
            raise SpecError(
                f"--nodes = {spec.resources.nodes}, but the local machine is one node.",
                field="--nodes",
                hint="Use --tasks-per-node for ranks, or --backend slurm.",
            )
        wanted, here = spec.gpus, _gpus()
        if wanted > here:
            raise SpecError(
                f"--gpus-per-node = {spec.resources.gpus_per_node}, but "
                + (
                    f"this machine has {here} of NVIDIA's."
                    if here
                    else "no NVIDIA GPU can be seen here: /dev has none."
                ),
                field="--gpus-per-node",
                hint=f"Use --backend slurm, or {'ask for less' if here else 'leave it out'}.",
            )
        for field, what in _UNUSABLE.items():
            if value := getattr(spec.schedule, field):
                raise SpecError(
                    f"--{field} = {value}, but the local machine knows no {what}.",
                    field=f"--{field}",
                    hint="Leave it out, or use --backend slurm.",
                )
        if spec.environment.image:
            raise SpecError(
                f"--image = {spec.environment.image}, but the local machine runs no containers.",
                field="--image",
                hint="Leave it out.",
            )

    def plan(self, spec: JobSpec, folder: JobFolder | None = None, *, launch: str = "") -> Plan:
        """The shell script that `submit` runs."""
        self.check(spec)
        environment = spec.environment
        lines = ["#!/bin/bash"]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.env.items())]
        lines += setuplines.telling(environment.setup)
        if environment.workdir:
            lines.append(f"cd {shlex.quote(environment.workdir)} || exit 1")
        lines.append(launch or "exec python RUNTIME local JOB_FOLDER")
        return Plan(text="\n".join(lines) + "\n", notes=_notes(spec))

    def submit(self, folder: JobFolder) -> Submission:
        """Start the job's runner, detached from this process."""
        spec = folder.record.spec
        python = spec.environment.interpreter or sys.executable
        runtime = JobRoot(folder.path.parent).runtime()
        slots_dir = _slots_dir()
        make_private(slots_dir)
        words = [python, "-u", str(runtime), "local", str(folder.path), str(slots_dir), str(slots())]
        plan = self.plan(spec, folder, launch=f"exec {shlex.join(words)} >/dev/null")
        write_atomic(folder.script, plan.text.encode("utf-8", "surrogateescape"))
        log = folder.launch_log()
        make_private(log.parent)
        code = _run_script(folder, log)
        if code == -signal.SIGINT:
            # A Ctrl-C in the kernel's terminal, before the script had a session of its own; the claim holds
            # back a second run of what had started after all.
            code = _run_script(folder, log)
        # Whatever was printed, and wherever to: the claim says whether it runs.
        found = self.find(folder)
        printed = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        if not printed:
            log.unlink()
        if found is not None:
            return found
        if code is None:
            raise SubmissionError(f"{folder.script} did not start its job within {_PATIENCE:g} s.")
        if told := setuplines.told(printed):
            raise SubmissionError(told)
        said = printed[-1] if printed else "it printed nothing"
        raise SubmissionError(f"The job could not be started on this machine: {said}")

    def find(self, folder: JobFolder) -> Submission | None:
        """The runner that a killed kernel had started: it has claimed the job before it says who it is."""
        holder = folder.holder("runner")
        runner = _RUNNER.fullmatch(holder)
        return Submission(platform_ids=((holder, 0, folder.record.tasks),), cluster=runner[1]) if runner else None

    def poll(self, folders: Sequence[JobFolder]) -> Mapping[str, Sequence[Observation]]:
        """Whether each job's runner lives. Jobs of another machine are not answered for."""
        answers: dict[str, list[Observation]] = {}
        for folder in folders:
            submission = folder.submission()
            if submission is None:
                continue
            runner = _RUNNER.fullmatch(submission.platform_id)
            if runner is None or runner[1] != (host := os.uname().nodename):
                continue
            alive = processes.start_time(int(runner[2])) == int(runner[3])
            state = JobState.QUEUED if alive else None
            reason = _why_it_waits(folder) if alive else "Its runner on this machine has ended."
            answers[folder.id] = [
                Observation(task=task, state=state, reason=reason, node=host) for task in range(folder.record.tasks)
            ]
        return answers

    def cancel(self, folder: JobFolder, tasks: Sequence[int] | None = None) -> None:
        """Tell the runner; which tasks is in ``cancel.json``."""
        submission = folder.submission() or self.find(folder)
        if submission is None:
            return
        runner = _RUNNER.fullmatch(submission.platform_id)
        if runner is None:
            raise BackendError(f"Job {folder.id} has a damaged submission.json.", hint="Look into its folder.")
        host, pid, started = runner[1], int(runner[2]), int(runner[3])
        if host != os.uname().nodename:
            raise BackendError(f"Job {folder.id} runs on {host}.", hint=f"Cancel it in a notebook on {host}.")
        if processes.start_time(pid) == started:
            os.kill(pid, signal.SIGTERM)

    def doctor(self) -> Sequence[Check]:
        """The machine's slots and the folder they are kept in."""
        checks = [Check("local slots", True, f"{slots()} tasks at once")]
        folder = ledger.local_dir()
        checks.append(Check("local folder", os.access(folder, os.W_OK), str(folder), f"Make {folder} writable."))
        return checks


def _run_script(folder: JobFolder, log: Path) -> int | None:
    """Run the job's script, which starts its runner in the background; its exit code, None where it took too long."""
    # A file, and no pipe: what a setup line leaves in the background may keep it for as long as it likes.
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
        script = subprocess.Popen(
            ["/bin/bash", str(folder.script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=for_local(os.environ),
        )
    try:
        return script.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(script.pid, signal.SIGKILL)  # or it would start the job after all
        script.wait()
        return None


def _why_it_waits(folder: JobFolder) -> str:
    """Who holds the slots of this machine: jobs by their ids, those of another job root by their folders."""
    found = held.holders(str(_slots_dir()))
    own = f"{folder.path.parent}{os.sep}"
    names = [holder.removeprefix(own) for holder in found]
    if not names:
        return "It waits for a free slot on this machine."
    who = f"job {names[0]} runs" if len(names) == 1 else f"jobs {', '.join(names)} run"
    return f"It waits for a free slot on this machine: {who}."


def _slots_dir() -> Path:
    return ledger.local_dir() / "slots"


def _notes(spec: JobSpec) -> tuple[str, ...]:
    notes = []
    if spec.resources.memory:
        notes.append("The local machine does not enforce --memory.")
    if spec.schedule.account or spec.schedule.qos or spec.schedule.priority:
        notes.append("The local machine has no accounts, QOS or priorities: these are left out.")
    return tuple(notes)
