"""Jobs whose sender is no more: found again, sent on, or ended so that no late copy of them can run."""

from __future__ import annotations

import os

from clusterkernel.backends.base import Backend
from clusterkernel.jobfolder import WITHDRAWN, JobFolder
from clusterkernel.records import JobRecord, Submission
from clusterkernel.runtime import events
from clusterkernel.runtime.processes import start_time

__all__ = ["CANCELLED", "orphaned", "rescue", "unsent", "withdraw"]

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
    found = backend.find(folder)
    known = folder.submission() if found is None else folder.add_submission(found)
    if known is not None:
        if unsent(folder.record, known) and not folder.refused():
            if folder.cancel_request() != ():
                folder.add_submission(backend.submit(folder))
            elif not withdraw(folder):
                folder.write_refused(CANCELLED)
    elif not withdraw(folder):
        folder.write_refused(why)
    else:
        any(folder.adopt(task) for task in range(folder.record.tasks))
