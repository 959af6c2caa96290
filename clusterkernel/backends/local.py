"""This machine as a platform: real processes that outlive the kernel."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from clusterkernel import ledger
from clusterkernel.backends.base import Availability, Capabilities, Check, Observation, Plan
from clusterkernel.backends.slurm.environment import for_local
from clusterkernel.errors import BackendError, SpecError, SubmissionError
from clusterkernel.files import make_private, write_atomic
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import Submission
from clusterkernel.runtime import processes
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
        lines += environment.setup
        if environment.workdir:
            lines.append(f"cd {shlex.quote(environment.workdir)} || exit 1")
        lines.append(launch or "exec python RUNTIME local JOB_FOLDER")
        return Plan(text="\n".join(lines) + "\n", notes=_notes(spec))

    def submit(self, folder: JobFolder) -> Submission:
        """Start the job's runner, detached from this process."""
        spec = folder.record.spec
        python = spec.environment.interpreter or sys.executable
        runtime = JobRoot(folder.path.parent).runtime()
        slots_dir = ledger.local_dir() / "slots"
        make_private(slots_dir)
        words = [python, "-u", str(runtime), "local", str(folder.path), str(slots_dir), str(slots())]
        plan = self.plan(spec, folder, launch="exec " + " ".join(shlex.quote(word) for word in words))
        write_atomic(folder.script, plan.text.encode("utf-8", "surrogateescape"))
        try:
            done = subprocess.run(
                ["/bin/bash", str(folder.script)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                start_new_session=True,
                env=for_local(os.environ),
            )
        except subprocess.TimeoutExpired:
            raise SubmissionError(f"{folder.script} did not start its job within 60 s.") from None
        identity = done.stdout.strip().splitlines()[-1:]
        if done.returncode or not identity:
            said = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
            raise SubmissionError(f"The job could not be started on this machine: {said}")
        return Submission(platform_ids=((identity[0], 0, folder.record.tasks),), cluster=socket.gethostname())

    def find(self, folder: JobFolder) -> Submission | None:
        """The runner that a killed kernel had started: it has claimed the job before it says who it is."""
        holder = folder.holder("runner")
        if holder.count(":") < 2:
            return None
        return Submission(platform_ids=((holder, 0, folder.record.tasks),), cluster=holder.rsplit(":", 2)[0])

    def poll(self, folders: Sequence[JobFolder]) -> Mapping[str, Sequence[Observation]]:
        """Whether each job's runner lives. Jobs of another machine are not answered for."""
        answers: dict[str, list[Observation]] = {}
        for folder in folders:
            submission = folder.submission()
            if submission is None:
                continue
            host, pid, started = submission.platform_id.rsplit(":", 2)
            if host != os.uname().nodename:
                continue
            alive = processes.start_time(int(pid)) == int(started)
            state = JobState.QUEUED if alive else None
            reason = "It waits for a free slot on this machine." if alive else "Its runner on this machine has ended."
            answers[folder.id] = [
                Observation(task=task, state=state, reason=reason, node=host) for task in range(folder.record.tasks)
            ]
        return answers

    def cancel(self, folder: JobFolder, tasks: Sequence[int] | None = None) -> None:
        """Tell the runner; which tasks is in ``cancel.json``."""
        submission = folder.submission() or self.find(folder)
        if submission is None:
            return
        host, pid, started = submission.platform_id.rsplit(":", 2)
        if host != os.uname().nodename:
            raise BackendError(f"Job {folder.id} runs on {host}.", hint=f"Cancel it in a notebook on {host}.")
        if processes.start_time(int(pid)) == int(started):
            os.kill(int(pid), signal.SIGTERM)

    def doctor(self) -> Sequence[Check]:
        """The machine's slots and the folder they are kept in."""
        checks = [Check("local slots", True, f"{slots()} tasks at once")]
        folder = ledger.local_dir()
        checks.append(Check("local folder", os.access(folder, os.W_OK), str(folder), f"Make {folder} writable."))
        return checks


def _notes(spec: JobSpec) -> tuple[str, ...]:
    notes = []
    if spec.resources.memory:
        notes.append("The local machine does not enforce --memory.")
    if spec.schedule.account or spec.schedule.qos or spec.schedule.priority:
        notes.append("The local machine has no accounts, QOS or priorities: these are left out.")
    return tuple(notes)
