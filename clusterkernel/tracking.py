"""One job under watch: what its folder and its platform say, read as it comes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from clusterkernel import rescue
from clusterkernel.backends.base import Backend, Observation
from clusterkernel.jobfolder import JobFolder
from clusterkernel.records import End
from clusterkernel.runtime import events
from clusterkernel.states import JobState
from clusterkernel.truth import TaskTruth

__all__ = ["Tracking"]

_ANSWERS = msgspec.json.Decoder(list[Observation])


class Tracking:
    """One job under watch.

    Attributes
    ----------
    tasks : list of TaskTruth
        By array task.
    """

    def __init__(self, folder: JobFolder, backend: Backend) -> None:
        record = folder.record
        self.folder = folder
        self.backend = backend
        self.name = record.spec.backend
        verdict = backend.capabilities.verdict
        self.tasks = [
            TaskTruth(record.spec.processes, judge=verdict, **({} if verdict else {"unknown_grace": 1.0}))
            for _ in range(record.tasks)
        ]
        self.listeners: dict[int, list[Callable[[], None]]] = {}
        self.cancelled: tuple[int, ...] | None = None
        self.pending_since: float | None = None  # a cancel that the platform has not taken yet
        self.submitted = False
        self.in_part = False
        self._prepared = False
        self._ids: set[str] = set()
        self._offsets: dict[tuple[int, int, int], int] = {}
        self._live = set(range(record.tasks))
        self._answered = 0.0
        self._told: dict[int, tuple[object, ...]] = {}
        self.news = time.monotonic()

    @property
    def answered(self) -> bool:
        """Whether the platform has said something of it to this process."""
        return self._answered > 0

    @property
    def live(self) -> bool:
        """Whether some task has yet to end."""
        return bool(self._live)

    def scan(self, now: float) -> list[int]:
        """Read what is new in the folder and decide.

        Returns
        -------
        list of int
            Tasks whose state or reason changed.

        Raises
        ------
        OSError
            The folder cannot be read.
        """
        if not self.submitted or self.in_part:
            self._look_for_submission()
        if self.cancelled is None or self.cancelled:
            self.cancelled = self.folder.cancel_request()
        if self.cancelled is not None:
            pending = self.folder.cancel_pending() is not None
            self.pending_since = (self.pending_since or now) if pending else None
        # Looked for too early, these files stay unseen for a minute on NFS.
        self._prepared = self._prepared or self.submitted or self.folder.prepared()
        if not self.folder.is_there():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.folder.path))
        changed = []
        for task in sorted(self._live):
            truth = self.tasks[task]
            for rank in range(truth.world if self._prepared else 0):
                if records := self._read(truth.attempt, task, rank):
                    truth.records(rank, truth.attempt, records, now)
                    self.news = now
                    if any(self._is_foreign(record) for record in records) and self.folder.adopt(task):
                        self._look_for_submission()
            if truth.told_end and (said := self._shell(truth.attempt, task)):
                truth.shell(said, now)
            asked_for = self.cancelled is not None and (not self.cancelled or task in self.cancelled)
            truth.decide(now, cancelled=asked_for)
            if truth.state.terminal:
                self._settle(task, truth)
            seen = (truth.state, truth.reason, truth.attempt, truth.stale_since)
            if seen != self._told.get(task):
                self._told[task] = seen
                changed.append(task)
                self.news = now
        return changed

    def _look_for_submission(self) -> None:
        submission, record = self.folder.submission(), self.folder.record
        self.submitted = submission is not None
        self._ids = {job for job, _, _ in submission.platform_ids} if submission else set()
        unsent = rescue.unsent(record, submission)
        self.in_part = self.submitted and bool(unsent)
        for task in set(range(record.tasks)) - set(unsent):
            self.tasks[task].submitted()
        if unsent and (why := self.folder.refused()):
            asked, at = self.folder.cancel_request(), self.folder.refused_at()
            for task in unsent:
                cancelled = asked is not None and (not asked or task in asked)
                state = JobState.CANCELLED if cancelled else JobState.LAUNCH_FAILED
                self.tasks[task].restore(End(state=state, reason=why, time=at))

    def removed(self) -> None:
        """Its folder is gone, and with it all that could be known."""
        for task in sorted(self._live):
            why = f"Its folder {self.folder.path} was removed."
            self.tasks[task].restore(End(state=JobState.LOST, reason=why, time=time.time()))
        self._live.clear()

    def _read(self, attempt: int, task: int, rank: int) -> list[dict[str, Any]]:
        key = (attempt, task, rank)
        offset = self._offsets.get(key, 0)
        try:
            file = os.open(self.folder.events(attempt, task, rank), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if not self.folder.path.is_dir():
                raise
            return []
        try:
            data = os.pread(file, 1 << 20, offset)
            while data and b"\n" not in data and (more := os.pread(file, 1 << 20, offset + len(data))):
                data += more  # one record, such as an exception with a long text, may be larger than that
        finally:
            os.close(file)
        if not data:
            return []
        records: list[dict[str, Any]]
        records, used = events.parse(data)
        self._offsets[key] = offset + used
        return records

    def _is_foreign(self, record: Mapping[str, Any]) -> bool:
        """Whether a copy has started that no answer told us of: the answer was lost, and its own records name it."""
        own = str(record.get("platform_id", ""))
        return record["kind"] == "started" and own not in self._ids and own.rpartition("_")[0] not in self._ids

    def _shell(self, attempt: int, task: int) -> dict[str, Any] | None:
        # Looked up only now: a file that was sought too early may stay unseen for a minute on NFS.
        records: list[dict[str, Any]] = events.read(self.folder.shell_events(attempt, task))
        if records and (holder := self.folder.holder(task)):
            # A copy that was turned away wrote one too.
            records = [record for record in records if record.get("platform_id") == holder]
        return records[-1] if records else None

    def _settle(self, task: int, truth: TaskTruth) -> None:
        """Keep an end that only the platform told: it forgets."""
        self._live.discard(task)
        if truth.from_platform and self.folder.end(task) is None:
            truth.ended = truth.ended or time.time()
            end = End(
                state=truth.state,
                reason=truth.reason,
                exit_code=truth.exit_code,
                signum=truth.signum,
                time=truth.ended,
            )
            if (kept := self.folder.write_end(task, end)) != end:
                # Another kernel has told its person already.
                truth.state, truth.reason, truth.ended = kept.state, kept.reason, kept.time or truth.ended
                truth.exit_code, truth.signum = kept.exit_code, kept.signum

    def restore(self, now: float) -> None:
        """Take what was decided earlier, by whomever."""
        self.scan(now)
        for task in list(self._live):
            if (end := self.folder.end(task)) is not None:
                self.tasks[task].restore(end)
                self._live.discard(task)

    def hear(self, at: float, body: bytes, now: float) -> None:
        """The platform's answer, given at `at` (this host's clock). One that was heard already says nothing."""
        if at == self._answered:
            return
        try:
            answers = _ANSWERS.decode(body)
        except msgspec.DecodeError:
            return  # damaged, or of another version: the next one replaces it
        self._answered = at
        for seen in answers:
            if seen.task in self._live:
                self.tasks[seen.task].observe(seen, now)
