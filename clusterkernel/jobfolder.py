"""The job folder: one folder a job, the only truth about it.

Job N lies in ``job_root/N``, on a file system that the nodes share. Homes are
on NFS, so three rules hold here: a file that will be watched exists from the
start or is looked up only once another says that it exists (a failed look-up
is cached for up to 60 s); existence is found by opening; and whatever is
replaced is replaced by a rename within one folder.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from clusterkernel.errors import UnknownJobError, UnreadableJobError
from clusterkernel.files import check_private, locked, make_private, refuse, touch, write_atomic, write_once
from clusterkernel.records import SCHEMA, End, JobRecord, Submission, user
from clusterkernel.runtime import private

__all__ = ["WATCHED", "WITHDRAWN", "JobFolder"]

# Who holds the claims of a job that is not to run any more.
WITHDRAWN: Final = "withdrawn"
_PREPARED: Final = "prepared"
_SEEN: Final = "seen"
_TAKEN: Final = "cancel-taken.json"
# Read again and again from other hosts, so that they are there from the start.
WATCHED: Final = ("submission.json", "cancel.json", _TAKEN, "refused.txt", "delivered.json", _PREPARED)
_Kind = TypeVar("_Kind")


def _read(path: Path) -> bytes:
    """The file's bytes; nothing where it is not there yet."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _decoded(path: Path, kind: type[_Kind]) -> _Kind | None:
    """The file's value; None where it is not there yet, or cannot be read."""
    try:
        return msgspec.json.decode(_read(path), type=kind)
    except msgspec.DecodeError:
        return None


class _Version(msgspec.Struct, frozen=True):
    """Which version of the schema a description has."""

    schema: int = 1


class _CancelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which tasks were asked to be cancelled; none for all of them."""

    tasks: tuple[int, ...]
    time: float
    by: str


class JobFolder:
    """One job's folder.

    Parameters
    ----------
    path : Path
        ``job_root/N``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"JobFolder({str(self.path)!r})"

    @property
    def id(self) -> str:
        """Our id of the job."""
        return self.path.name

    @functools.cached_property
    def record(self) -> JobRecord:
        """The job's description.

        Raises
        ------
        UnknownJobError
            There is no such job.
        UnreadableJobError
            Its description is damaged, or was written by a newer version.
        """
        path = self.path / "job.json"
        try:
            data = path.read_bytes()
            if (written := msgspec.json.decode(data, type=_Version).schema) > SCHEMA:
                raise UnreadableJobError(
                    f"Job {self.id} was made by a newer clusterkernel (format {written}; this one knows {SCHEMA}).",
                    hint="Update clusterkernel here.",
                )
            return msgspec.json.decode(data, type=JobRecord)
        except FileNotFoundError:
            raise UnknownJobError(
                f"There is no job {self.id} in {self.path.parent}.", hint="%cluster_jobs lists all."
            ) from None
        except (msgspec.DecodeError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else f"it is damaged ({error})"
            raise UnreadableJobError(
                f"Job {self.id} cannot be read: {path}: {why}.", hint="Delete its folder if nobody needs it."
            ) from error

    def is_there(self) -> bool:
        """Whether it holds a job: a process that still writes makes the folder of a removed one again."""
        try:
            os.stat(self.path / "job.json")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a file system that hangs up has not removed it
            return True
        return True

    @property
    def payload(self) -> Path:
        """Where the payload lies."""
        return self.path / "payload"

    @property
    def script(self) -> Path:
        """The text that was sent."""
        return self.path / "script.sh"

    def events(self, attempt: int = 0, task: int = 0, rank: int = 0) -> Path:
        """The records of one process's supervisor."""
        return self.path / "events" / str(attempt) / f"{task}.{rank}.jsonl"

    def prepare(self) -> None:
        """Make the files that the processes of the job write to, for whoever watches them.

        An array on many nodes has thousands, so that the sender makes them, not the person's thread.
        """
        if self.prepared():
            return
        make_private(self.events().parent)
        for task in range(self.record.tasks):
            for rank in range(self.record.spec.processes):
                touch(self.events(0, task, rank))
        write_atomic(self.path / _PREPARED, b"1")

    def prepared(self) -> bool:
        """Whether the files of `prepare` are there; who looks for one too early may not see it for a minute (NFS)."""
        return bool(_read(self.path / _PREPARED))

    def shell_events(self, attempt: int = 0, task: int = 0) -> Path:
        """The batch shell's last record."""
        return self.path / "events" / str(attempt) / f"{task}.shell.jsonl"

    def out(self, attempt: int = 0, task: int = 0, rank: int = 0) -> Path:
        """What one process left: its output, metrics and results."""
        return self.path / "out" / str(attempt) / f"{task}.{rank}"

    def launch_log(self, platform_id: str = "") -> Path:
        """What was printed on the platform before the supervisor started; without an id, where the job was sent."""
        return self.path / "batch" / f"{platform_id or 'launch'}.log"

    def submission(self) -> Submission | None:
        """The platform's answer, once there is one."""
        # A damaged answer counts as a lost one: the job is found again by its key.
        return _decoded(self.path / "submission.json", Submission)

    def write_submission(self, submission: Submission) -> None:
        """Keep the platform's answer."""
        write_atomic(self.path / "submission.json", msgspec.json.encode(submission))

    def add_submission(self, more: Submission, *, first: bool = False) -> Submission:
        """Keep what a further answer of the platform tells; `first`: before what is known.

        Returns
        -------
        Submission
            All that is known now.
        """
        with self._lock():
            known = self.submission()
            before = known.platform_ids if known else ()
            ids = dict.fromkeys((*more.platform_ids, *before) if first else (*before, *more.platform_ids))
            platform_ids = tuple(sorted(ids, key=lambda item: item[1]))
            whole = Submission(platform_ids=platform_ids, cluster=(known.cluster if known else "") or more.cluster)
            if whole != known:
                self.write_submission(whole)
        return whole

    def adopt(self, task: int = 0) -> bool:
        """Take the copy that runs into the submission, where that does not name it.

        A submission whose answer got lost may have been sent twice, and of the
        two copies the one runs that nobody told us of.

        Returns
        -------
        bool
            Whether there was such a copy.
        """
        holder, known = self.holder(task), self.submission()
        sent = known.platform_ids if known else ()
        base, _, index = holder.rpartition("_")
        first, count = 0, self.record.tasks
        if self.record.array and base and index.isdigit():
            holder, first = base, task - int(index)
            # How many tasks a part holds is known from its twin alone.
            count = next((size for _, start, size in sent if start == first), 0)
        if holder in ("", WITHDRAWN) or not count or any(holder == job for job, _, _ in sent):
            return False
        self.add_submission(Submission(platform_ids=((holder, first, count),)), first=True)
        return True

    def refused(self) -> str:
        """Why the platform would not take the job; empty where it did."""
        return _read(self.path / "refused.txt").decode("utf-8", "replace")

    def refused_at(self) -> float:
        """When (Unix time) that was written; 0 where it was not."""
        try:
            return os.stat(self.path / "refused.txt").st_mtime
        except OSError:
            return 0.0

    def write_refused(self, why: str) -> None:
        """Keep why the platform would not take the job."""
        write_atomic(self.path / "refused.txt", why.encode())

    def cancel_request(self) -> tuple[int, ...] | None:
        """The array tasks that were asked to be cancelled, empty for all; None if nobody asked."""
        path = self.path / "cancel.json"
        request = _decoded(path, _CancelRequest)
        if request is not None:
            return request.tasks
        return () if _read(path) else None  # damaged, but somebody asked

    def request_cancel(self, tasks: tuple[int, ...] = ()) -> None:
        """Write down that a cancel was asked for, before the platform is told."""
        with self._lock():
            if tasks and (earlier := self.cancel_request()) is not None:
                tasks = tuple(sorted({*tasks, *earlier})) if earlier else ()
            self._write_cancel("cancel.json", tasks)

    def cancel_pending(self) -> tuple[int, ...] | None:
        """What of `cancel_request` the platform has not taken yet; None where nothing is left."""
        asked = self.cancel_request()
        if asked is None:
            return None
        taken = _decoded(self.path / _TAKEN, _CancelRequest)
        if taken is None or (taken.tasks and not asked):
            return asked
        return tuple(sorted({*asked} - {*taken.tasks})) or None if taken.tasks else None

    def write_cancel_taken(self, tasks: tuple[int, ...] = ()) -> None:
        """Note that the platform took a request to end these tasks, or all."""
        with self._lock():
            earlier = _decoded(self.path / _TAKEN, _CancelRequest)
            if tasks and earlier is not None:
                tasks = tuple(sorted({*tasks, *earlier.tasks})) if earlier.tasks else ()
            self._write_cancel(_TAKEN, tasks)

    def _write_cancel(self, name: str, tasks: tuple[int, ...]) -> None:
        request = _CancelRequest(tasks=tasks, time=time.time(), by=user())
        write_atomic(self.path / name, msgspec.json.encode(request))

    def _lock(self) -> contextlib.AbstractContextManager[None]:
        """For what several kernels read, change and write back."""
        return locked(self.path / ".lock")

    def end(self, task: int = 0) -> End | None:
        """How the task ended, where the platform had to tell."""
        return _decoded(self.path / "ends" / f"{task}.json", End)

    def write_end(self, task: int, end: End) -> End:
        """Keep how the task ended: the platform forgets.

        Returns
        -------
        End
            What holds: another kernel may have drawn its conclusion first.
        """
        path, data = self.path / "ends" / f"{task}.json", msgspec.json.encode(end)
        if not write_once(path, data):
            if (kept := self.end(task)) is not None:
                return kept
            write_atomic(path, data)  # it is damaged
        return end

    def holder(self, task: int | str = 0) -> str:
        """The platform's id of the copy that won the right to run; empty before one did.

        To be looked up only once something says that a copy has run: a look
        that comes too early may make the claim invisible for a minute (NFS).
        """
        try:
            return str(json.loads(_read(self.path / "claims" / str(task)) or b"{}").get("platform_id", ""))
        except (OSError, ValueError, AttributeError):
            return ""

    def delivered(self) -> bool:
        """Whether a notebook got what the job made."""
        return bool(_read(self.path / "delivered.json"))

    def write_delivered(self, names: tuple[str, ...] = ()) -> None:
        """Note that a notebook took what the job made; where that fails, it may be taken once more."""
        with contextlib.suppress(OSError):
            write_atomic(self.path / "delivered.json", json.dumps({"names": names, "time": time.time()}).encode())

    def seen(self) -> bool:
        """Whether a notebook showed how the job ended."""
        return (self.path / _SEEN).exists() or self.delivered()

    def write_seen(self) -> None:
        """Note that a notebook showed how the job ended; where that fails it is told once more."""
        with contextlib.suppress(OSError):
            (self.path / _SEEN).touch(mode=0o600)

    def verify(self, *files: Path) -> None:
        """Refuse what another user could have written to, before anything of it is run or unpickled.

        Parameters
        ----------
        *files : Path
            What is read beside the payload's own files; the folders above it are looked at, too.

        Raises
        ------
        JobRootError
            A file, a folder or the root belongs to, or can be written by, another; or the folder is gone.
        """
        for path in (self.path.parent, self.path, self.payload):
            check_private(path)
        paths = [*self.payload.iterdir()]
        for file in files:
            paths += [folder for folder in reversed(file.parents) if self.path in folder.parents]
            paths.append(file)
        for path in dict.fromkeys(paths):
            with contextlib.suppress(FileNotFoundError):
                refuse(path, private.trouble(path))

    def size(self) -> int:
        """Bytes on disk."""
        total = 0
        for folder, _, files in os.walk(self.path):
            for name in files:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total
