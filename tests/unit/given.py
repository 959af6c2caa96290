"""A platform in this process that does what a test wrote down for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

from clusterkernel.backends.base import Availability, Capabilities, Observation
from clusterkernel.errors import BackendUnavailable
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import Submission
from clusterkernel.states import JobState
from tests.unit import making

__all__ = ["AWAY", "Platform", "make"]

AWAY = BackendUnavailable("It does not answer.")


class Platform:
    """Does at each call what the test wrote down for it; jobs that it took wait."""

    name: ClassVar[str] = "given"
    capabilities: ClassVar[Capabilities] = Capabilities(poll_every=0.05)

    def __init__(self) -> None:
        self.answers: deque[Exception | tuple[tuple[str, int, int], ...]] = deque()
        self.found: deque[Exception | Submission | None] = deque()
        self.refusals: deque[Exception] = deque()  # of cancels
        self.calls: list[str] = []
        self.polled: list[list[str]] = []
        self.cancelled: list[str] = []

    def available(self) -> Availability:
        return Availability(True, "here")

    def submit(self, folder: JobFolder) -> Submission:
        self.calls.append(f"submit {folder.id}")
        answer = self.answers.popleft() if self.answers else ((f"p{folder.id}", 0, folder.record.tasks),)
        if isinstance(answer, Exception):
            raise answer
        return Submission(platform_ids=answer)

    def find(self, folder: JobFolder) -> Submission | None:
        self.calls.append(f"find {folder.id}")
        answer = self.found.popleft() if self.found else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def poll(self, folders: Sequence[JobFolder]) -> dict[str, list[Observation]]:
        self.polled.append([folder.id for folder in folders])
        told = Observation(task=0, state=JobState.QUEUED)
        return {folder.id: [told] for folder in folders}

    def cancel(self, folder: JobFolder, tasks: Sequence[int] | None = None) -> None:
        if self.refusals:
            raise self.refusals.popleft()
        self.cancelled.append(folder.id)


def make(tasks: int | None = None) -> JobFolder:
    """A job's folder without a payload; nobody sends it."""

    def record(job_id: str, key: str) -> Any:
        return making.record(job_id, key, tasks=tasks)

    return JobRoot().create(record, lambda path: None)
