"""Jobs whose sender is no more: found again, sent on, or ended so that no late copy of them can run."""

from __future__ import annotations

import os

from clusterkernel.backends.base import Backend
from clusterkernel.jobfolder import JobFolder
from clusterkernel.records import JobRecord, Submission
from clusterkernel.runtime import events
from clusterkernel.runtime.processes import start_time

__all__ = ["CANCELLED", "WITHDRAWN", "in_part", "merged", "of_holder", "orphaned", "rescue", "unsent", "withdraw"]

# Who holds the claims of a job that is not to run any more.
WITHDRAWN = "withdrawn"
CANCELLED = "It was cancelled before it was sent."


def orphaned(record: JobRecord) -> bool:
    """Whether the process that sends the job has ended. One on another host cannot be seen from here."""
    host, _, rest = record.submitter.partition(":")
    pid, _, started = rest.partition(":")
    return bool(pid) and host == os.uname().nodename and start_time(int(pid)) != int(started)


def unsent(record: JobRecord, submission: Submission | None) -> list[int]:
    """The array tasks that the platform does not have."""
    held: set[int] = set()
    for _, first, count in submission.platform_ids if submission else ():
        held.update(range(first, first + count))
    return [task for task in range(record.tasks) if task not in held]


def in_part(folder: JobFolder) -> bool:
    """Whether the platform has some of the job's tasks, and not all."""
    submission = folder.submission()
    return submission is not None and bool(unsent(folder.record, submission))


def merged(one: Submission | None, other: Submission) -> Submission:
    """What both know."""
    if one is None:
        return other
    ids = dict.fromkeys((*one.platform_ids, *other.platform_ids))
    return Submission(platform_ids=tuple(sorted(ids, key=lambda item: item[1])), cluster=one.cluster or other.cluster)


def withdraw(folder: JobFolder) -> str:
    """Take the claims of what is not sent, so that no copy of it can run from now on.

    A submission that is still on its way, or whose answer got lost, may yet be
    accepted: its copy then ends as a duplicate does.

    Returns
    -------
    str
        Empty where it is done; the platform's id of a copy that runs.
    """
    tasks = unsent(folder.record, folder.submission())
    for task in tasks:
        if (holder := folder.holder(task)) not in ("", WITHDRAWN):
            return holder
    for task in tasks:
        holder = events.claim(str(folder.path / "claims" / str(task)), WITHDRAWN)
        if holder != WITHDRAWN:
            return str(holder)
    return ""


def rescue(folder: JobFolder, backend: Backend, why: str) -> None:
    """Find out what became of a job that was being sent.

    What the platform has of it is kept; the rest of an array that is there in
    part is sent; what is not there at all is ended, for the reason `why`.

    Raises
    ------
    BackendError
        The platform did not answer: nothing follows.
    """
    known = folder.submission()
    found = backend.find(folder)
    if found is not None:
        known = merged(known, found)
        folder.write_submission(known)
    if known is not None:
        if unsent(folder.record, known) and not folder.refused():
            if folder.cancel_request() != ():
                folder.write_submission(merged(known, backend.submit(folder)))
            elif not withdraw(folder):
                folder.write_refused(CANCELLED)
        return
    if not (holder := withdraw(folder)):
        folder.write_refused(why)
    else:
        folder.write_submission(of_holder(folder.record, holder))


def of_holder(record: JobRecord, holder: str, task: int = 0) -> Submission:
    """The submission of a copy of which only the claim on a task is known."""
    base, _, index = holder.rpartition("_")
    if not (record.array and base and index.isdigit()):
        return Submission(platform_ids=((holder, 0, record.tasks),))
    first = max(0, task - int(index))
    return Submission(platform_ids=((base, first, record.tasks - first),))
