"""How jobs are, from three of Slurm's commands together.

One ``squeue`` about all jobs of the user; ``scontrol show job`` about those
that it does not list, and about ends, whose exit code it does not tell; and
``sacct`` about what the controller has forgotten. What one of them fails to
answer stays open. Only good answers that do not know a job make it unknown.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.backends.base import Observation
from clusterkernel.backends.slurm import layout
from clusterkernel.backends.slurm.commands import Transport, unreachable
from clusterkernel.backends.slurm.environment import which_cluster
from clusterkernel.backends.slurm.records import (
    SACCT,
    SEPARATOR,
    SQUEUE,
    Row,
    read_comment,
    read_sacct,
    read_scontrol,
    read_squeue,
)
from clusterkernel.backends.slurm.states import Record, Verdict, judge
from clusterkernel.errors import BackendUnavailable
from clusterkernel.formats.sbatch.directives import may_requeue
from clusterkernel.formats.sbatch.writer import clean_name
from clusterkernel.jobfolder import JobFolder
from clusterkernel.records import Submission
from clusterkernel.runtime import setuplines
from clusterkernel.states import JobState

__all__ = ["Poller", "owns"]

SACCT_TIMEOUT: Final = 10.0
# How long "accounting is disabled" is believed.
DISABLED_FOR: Final = 600.0
# The database may lag behind a controller that has forgotten the job.
LAG: Final = 30.0
# An end is not told without its exit code before scontrol has failed this often.
PATIENCE: Final = 3
# Between two questions about a job that nobody knows.
CONFIRM: Final = 0.5
_DISABLED: Final = ("storage is disabled", "accounting is disabled", "not configured", "cannot be run")
_BEFORE: Final = {JobState.RUNNING: 0, JobState.FINISHING: 1, JobState.STARTING: 2}


class _Part:
    """One of Slurm's jobs and the array tasks that it holds."""

    def __init__(self, folder: JobFolder, job: str, first: int, count: int, *, elsewhere: bool = False) -> None:
        self.folder = folder
        self.job = job
        self.first = first
        self.tasks = range(first, first + count)
        self.array = folder.record.array
        self.records: dict[int, Record] = {}
        self.forgotten = True  # no command has said anything of this job
        self.elsewhere = elsewhere  # it was sent to another cluster than the one that is asked
        self.times = 1  # how often it was asked for in vain

    @property
    def key(self) -> str:
        return f"{self.folder.id}/{self.job}"

    def platform_id(self, task: int) -> str:
        return f"{self.job}_{task - self.first}" if self.array else self.job

    def take(self, row: Row) -> None:
        """Keep what a row says, over what was said before."""
        self.forgotten = False
        if row.tasks is None:
            self.records[self.first] = row.record
        elif self.array:
            for index in row.tasks:
                if index < len(self.tasks):
                    self.records[self.first + index] = row.record


def owns(folder: JobFolder, row: Row) -> bool:
    """Whether a row is about this job, and not about another that was given its id later."""
    if (said := read_comment(row.comment)) is not None:
        return said[0] == folder.record.key
    if row.command:
        return row.command.startswith(f"{folder.path}/script.")
    return _letters(row.name) == _letters(clean_name(folder.record.name))


def _letters(name: str) -> str:
    # The database changes what is not ASCII, and quotes.
    return re.sub(r"[^A-Za-z0-9]", "", name)


class Poller:
    """Asks Slurm; remembers only what cannot change any more.

    Parameters
    ----------
    transport : Transport
        Runs the commands.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._ended: dict[str, dict[int, Observation]] = {}
        self._lagging: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._disabled_until = 0.0

    def poll(self, folders: Sequence[JobFolder]) -> Mapping[str, Sequence[Observation]]:
        """As `Backend.poll`."""
        with self._lock:
            return self._poll(folders)

    def _poll(self, folders: Sequence[JobFolder]) -> dict[str, list[Observation]]:
        names = {folder.id for folder in folders}
        for memory in (self._ended, self._lagging, self._failures):
            for key in [key for key in memory if key.partition("/")[0] not in names]:
                memory.pop(key)
        parts = [
            _Part(folder, job, first, count, elsewhere=_is_elsewhere(submission))
            for folder in folders
            if (submission := folder.submission()) is not None
            for job, first, count in submission.platform_ids
        ]
        open_parts = [part for part in parts if self._open(part)]
        silent: set[str] = set()
        if open_parts:
            listed = self._squeue()
            if listed is None:
                silent = {part.job for part in open_parts}
            else:
                _share(listed, open_parts)
                open_parts = [part for part in open_parts if not part.elsewhere]
                silent |= self._ask_details([part for part in open_parts if self._needs_details(part)])
                silent |= self._ask_accounting([part for part in open_parts if self._missing(part, silent)])
                silent |= self._ask_again([part for part in open_parts if self._missing(part, silent)])
        answers: dict[str, dict[int, Observation]] = {}
        for part in parts:
            told = answers.setdefault(part.folder.id, {})
            for task in part.tasks:
                seen = self._see(part, task, silent)
                if seen is not None and (task not in told or _outdoes(part, seen, told[task])):
                    told[task] = seen
        for folder in folders:
            if some := answers.get(folder.id):
                _add_unsent(folder, some)
        return {job: list(told.values()) for job, told in answers.items() if told}

    # -- questions ----------------------------------------------------------------

    def _open(self, part: _Part) -> bool:
        ended = self._ended.get(part.key, {})
        return any(task not in ended for task in part.tasks)

    def _missing(self, part: _Part, silent: Iterable[str] = ()) -> bool:
        ended = self._ended.get(part.key, {})
        return part.job not in silent and any(task not in part.records and task not in ended for task in part.tasks)

    def _needs_details(self, part: _Part) -> bool:
        if self._missing(part) or may_requeue(part.folder.record.spec):
            return True
        ended = self._ended.get(part.key, {})
        return any(_lacks_code(record) for task, record in part.records.items() if task not in ended)

    def _squeue(self) -> list[Row] | None:
        """The user's jobs; empty where squeue itself is of no use here; None where Slurm does not answer."""
        try:
            answer = self._transport.query("squeue", "-h", "-t", "all", "-u", str(os.geteuid()), "-o", SQUEUE)
        except BackendUnavailable:
            return None
        if answer.ok:
            return list(read_squeue(answer.out))
        return None if unreachable(answer.err) else []

    def _ask_details(self, parts: Sequence[_Part]) -> set[str]:
        """``scontrol show job`` for all of them in one process. Returns those that were not answered for."""
        jobs = {part.job: part for part in parts}
        if not jobs:
            return set()
        lines = "".join(f"show job {job}\n" for job in jobs)
        try:
            answer = self._transport.query("scontrol", "-d", "-o", text=lines)
        except BackendUnavailable:
            return set(jobs)
        rows = list(read_scontrol(answer.out, lambda job: _name(jobs.get(job))))
        _share(rows, parts)
        untold = set(jobs) - {row.job for row in rows}
        # It names no ids in its complaints: all that are missing must be complained of.
        unknown = sum("invalid job id" in line.lower() or "not found" in line for line in answer.err.splitlines())
        return untold if unreachable(answer.err) or unknown < len(untold) else set()

    def _ask_again(self, parts: Sequence[_Part]) -> set[str]:
        """A second question about what is not known to anybody, so that nothing is gone by a slip."""
        if not parts:
            return set()
        time.sleep(CONFIRM)
        silent = self._ask_details(parts)
        for part in parts:
            part.times = 2
        return silent

    def _ask_accounting(self, parts: Sequence[_Part]) -> set[str]:
        """``sacct`` for what the controller has forgotten. Returns those that were not answered for."""
        now = time.monotonic()
        if not parts or now < self._disabled_until:
            return set()
        jobs = {part.job for part in parts}
        argv = ["sacct", "-X", "-n", "-P", f"--delimiter={SEPARATOR}", "-o", SACCT, "-j", ",".join(sorted(jobs))]
        try:
            answer = self._transport.query(*argv, timeout=SACCT_TIMEOUT)
        except BackendUnavailable as error:
            if "cannot be run" not in str(error):
                return jobs
            self._disabled_until = now + DISABLED_FOR
            return set()
        if not answer.ok:
            if not any(phrase in answer.err.lower() for phrase in _DISABLED):
                return jobs
            self._disabled_until = now + DISABLED_FOR
            return set()
        asked = {part.job: part for part in parts}
        late: set[str] = set()
        for row in read_sacct(answer.out):
            part = asked.get(row.job)
            if part is None or not owns(part.folder, row):
                continue
            verdict = judge(row.record)
            if verdict is not None and verdict.state.terminal:
                part.forgotten = False
                fresh = _Part(part.folder, part.job, part.first, len(part.tasks))
                fresh.take(row)
                for task, record in fresh.records.items():
                    part.records.setdefault(task, record)
            elif part.forgotten and now - self._lagging.setdefault(part.key, now) < LAG:
                late.add(row.job)  # it lives, says the database: that may be old
        return late

    # -- answers --------------------------------------------------------------------

    def _see(self, part: _Part, task: int, silent: Iterable[str]) -> Observation | None:
        ended = self._ended.setdefault(part.key, {})
        if task in ended:
            return ended[task]
        record = part.records.get(task)
        if record is None:
            nothing = part.job in silent or part.elsewhere or part.folder.adopt(task)
            return None if nothing else self._unknown(part, task)
        if part.job in silent and _lacks_code(record):
            key = f"{part.key}/{task}"
            self._failures[key] = self._failures.get(key, 0) + 1
            if self._failures[key] < PATIENCE:
                return None
        verdict = judge(record)
        if verdict is None:
            return None
        restarts = record.restarts or 0
        if verdict.state is JobState.FINISHING and restarts and not layout.started(part.folder, restarts, task):
            # Slurm counts the restart while it still cleans up after the run before.
            verdict = Verdict(state=JobState.REQUEUED, reason="It is queued again.")
        if verdict.state in (JobState.FAILED, JobState.DIED):
            verdict = _with_shell(verdict, part, task, restarts)
        seen = Observation(
            task=task,
            state=verdict.state,
            reason=verdict.reason,
            restarts=restarts,
            node=record.node,
            exit_code=verdict.exit_code,
            signum=verdict.signum,
        )
        if verdict.state.terminal:
            if part.folder.adopt(task):
                return None  # a copy that was turned away: the one that runs is asked for from now on
            ended[task] = seen
        return seen

    def _unknown(self, part: _Part, task: int) -> Observation:
        """A task of which no good answer knows anything.

        Slurm drops an array task that is cancelled while it waits from all
        its answers, sacct's too, and keeps the array.
        """
        if part.array and not part.forgotten and not layout.ran(part.folder, task, part.platform_id(task)):
            return Observation(task=task, state=JobState.CANCELLED, reason="It was cancelled while it waited.")
        return Observation(task=task, state=None, reason="Slurm no longer knows the job.", times=part.times)


def _is_elsewhere(submission: Submission) -> bool:
    """Whether this kernel's commands may ask another cluster, which knows nothing of the job."""
    return submission.cluster.startswith("conf:") and submission.cluster != which_cluster(os.environ)


def _name(part: _Part | None) -> str:
    return clean_name(part.folder.record.name) if part else ""


def _share(rows: Iterable[Row], parts: Sequence[_Part]) -> None:
    by_job: dict[str, list[_Part]] = {}
    for part in parts:
        by_job.setdefault(part.job, []).append(part)
    for row in rows:
        for part in by_job.get(row.job, ()):
            if owns(part.folder, row):
                part.take(row)


def _lacks_code(record: Record) -> bool:
    """Whether it is an end of which squeue alone tells too little."""
    verdict = judge(record)
    return (
        verdict is not None
        and verdict.state.terminal
        and verdict.state is not JobState.SUCCEEDED
        and not record.exit_code
    )


def _with_shell(verdict: Verdict, part: _Part, task: int, attempt: int) -> Verdict:
    """A failure with what the batch shell knows of it."""
    platform_id = part.platform_id(task)
    record = layout.shell_record(part.folder, attempt, task, platform_id)
    if record is not None and (record.reason or record.phase == "setup"):
        reason = record.reason
        if record.phase == "setup":
            told = reason or f"A setup line ended the script with exit code {record.exit_code}."
            reason = setuplines.reason(told, layout.last_line(layout.batch_log(part.folder, platform_id)))
        return Verdict(state=JobState.LAUNCH_FAILED, reason=reason, exit_code=record.exit_code)
    if verdict.state is not JobState.FAILED or layout.started(part.folder, attempt, task):
        return verdict
    # Still FAILED: what the supervisor wrote may not be visible here yet.
    said = layout.last_line(layout.batch_log(part.folder, platform_id))
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason.rstrip('.')}: {said}") if said else verdict


def _add_unsent(folder: JobFolder, told: dict[int, Observation]) -> None:
    """Tasks of an array that was sent in part only."""
    submission = folder.submission()
    held = (
        {task for _, first, count in submission.platform_ids for task in range(first, first + count)}
        if submission
        else ()
    )
    for task in range(folder.record.tasks):
        if task not in held:
            why = "Not sent yet: a limit of submitted jobs was reached."
            told[task] = Observation(task=task, state=JobState.QUEUED, reason=why)


def _outdoes(part: _Part, seen: Observation, other: Observation) -> bool:
    """Of two copies of a task, whether this one counts: the one that won the claim, before that the liveliest."""
    if holder := part.folder.holder(seen.task):
        return holder == part.platform_id(seen.task)
    return _rank(seen) < _rank(other)


def _rank(seen: Observation) -> int:
    if seen.state is None:
        return 9
    return 5 if seen.state.terminal else _BEFORE.get(seen.state, 3)
