"""What a dead or silent sender left: jobs found again, sent on, or ended so that no late copy of them can run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from clusterkernel.backends.base import Backend
from clusterkernel.jobfolder import WITHDRAWN, JobFolder
from clusterkernel.records import JobRecord, Submission
from clusterkernel.runtime import events
from clusterkernel.runtime.processes import start_time

__all__ = ["CANCELLED", "Senders", "beat_file", "cancel", "rescue", "unsent", "withdraw"]

CANCELLED: Final = "It was cancelled before it was sent."
_ENDED: Final = "The kernel ended before it was sent. Send it with %cluster_rerun."
# How long the heartbeat of a sender on another host may seem to stand still; it beats every 20 s, and NFS is late.
_SILENT: Final = 300.0
# How often such a heartbeat is looked at.
_LOOK: Final = 5.0


def beat_file(root: Path, submitter: str) -> Path:
    """Where a process that sends jobs says, again and again, that it is alive."""
    return root / ".senders" / submitter


class Senders:
    """Tells which processes that send jobs have ended.

    One of this host is looked up. Of one on another host only its heartbeat can
    be seen: it has ended when that stood still for minutes by our own clock.

    Parameters
    ----------
    root : Path
        The job root.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._heard: dict[str, tuple[bytes, float, float]] = {}  # the last beat, since when, when looked at

    def gone(self, record: JobRecord, now: float) -> bool:
        """Whether the process that sends the job has ended; `now` is the caller's monotonic clock."""
        host, _, rest = record.submitter.partition(":")
        pid, _, started = rest.partition(":")
        if not (pid.isdigit() and started.isdigit()):
            return False
        if host == os.uname().nodename:
            return bool(start_time(int(pid)) != int(started))
        beat, since, looked = self._heard.get(record.submitter, (b"", now, now - _LOOK))
        if now - looked >= _LOOK or now - since >= _SILENT:
            try:
                seen = beat_file(self._root, record.submitter).read_bytes()
            except OSError:
                seen = b""
            beat, since = (beat, since) if seen == beat else (seen, now)
            self._heard[record.submitter] = beat, since, now
        return now - since >= _SILENT


def cancel(folder: JobFolder, backend: Backend) -> None:
    """Tell the platform of the cancels that were asked for and that it has not taken yet.

    Raises
    ------
    BackendError
        It refused, or does not answer: the request stands, and watchers repeat it.
    """
    tasks = folder.cancel_pending()
    if tasks is not None:
        backend.cancel(folder, tasks or None)
        folder.write_cancel_taken(tasks)


def unsent(record: JobRecord, submission: Submission | None) -> list[int]:
    """The array tasks that the platform does not have."""
    held: set[int] = set()
    for _, first, count in submission.platform_ids if submission else ():
        held.update(range(first, first + count))
    return [task for task in range(record.tasks) if task not in held]


def withdraw(folder: JobFolder, backend: Backend | None = None) -> str:
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
    # Where the job does not see our folder, the claims that count are the platform's.
    theirs = getattr(backend, "withdraw", None)
    for task in tasks:
        if theirs is not None and (holder := str(theirs(folder, task))) != WITHDRAWN:
            return holder
        holder = events.claim(str(folder.path / "claims" / str(task)), WITHDRAWN)
        if holder != WITHDRAWN:
            return str(holder)
    return ""


def rescue(folder: JobFolder, backend: Backend) -> None:
    """Find out what became of a job that was being sent.

    What the platform has of it is kept; the rest of an array that is there in
    part is sent; what is not there at all is ended, and its reason says how to
    send it again.

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
            elif not withdraw(folder, backend):
                folder.write_refused(CANCELLED)
    elif not withdraw(folder, backend):
        folder.write_refused(_ENDED)
    else:
        any(folder.adopt(task) for task in range(folder.record.tasks))
