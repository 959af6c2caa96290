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
import shlex
import time
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from clusterkernel.errors import JobRootError, UnknownJobError
from clusterkernel.records import End, JobRecord, Submission, user
from clusterkernel.runtime import private

__all__ = ["WITHDRAWN", "JobFolder", "check_private", "make_private", "write_atomic"]

# Who holds the claims of a job that is not to run any more.
WITHDRAWN: Final = "withdrawn"
_Kind = TypeVar("_Kind")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, so that no reader sees half of it. Mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def make_private(path: Path) -> None:
    """Make a folder and those above it that are not there yet, all for their owner alone."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:  # `parents=True` would leave those above to the umask
        make_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


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
            There is no such job, or its description cannot be read.
        """
        try:
            return msgspec.json.decode((self.path / "job.json").read_bytes(), type=JobRecord)
        except FileNotFoundError:
            raise UnknownJobError(
                f"There is no job {self.id} in {self.path.parent}.", hint="%cluster_jobs lists all."
            ) from None
        except (msgspec.DecodeError, OSError) as error:
            raise UnknownJobError(f"Job {self.id} cannot be read: {self.path / 'job.json'}: {error}.") from error

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

    def shell_events(self, attempt: int = 0, task: int = 0) -> Path:
        """The batch shell's last record."""
        return self.path / "events" / str(attempt) / f"{task}.shell.jsonl"

    def out(self, attempt: int = 0, task: int = 0, rank: int = 0) -> Path:
        """What one process left: its output, metrics and results."""
        return self.path / "out" / str(attempt) / f"{task}.{rank}"

    def launch_log(self, platform_id: str) -> Path:
        """What was printed on the platform before the supervisor started."""
        return self.path / "batch" / f"{platform_id}.log"

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
        if tasks and (earlier := self.cancel_request()) is not None:
            tasks = tuple(sorted({*tasks, *earlier})) if earlier else ()
        request = _CancelRequest(tasks=tasks, time=time.time(), by=user())
        write_atomic(self.path / "cancel.json", msgspec.json.encode(request))

    def end(self, task: int = 0) -> End | None:
        """How the task ended, where the platform had to tell."""
        return _decoded(self.path / "ends" / f"{task}.json", End)

    def write_end(self, task: int, end: End) -> None:
        """Keep how the task ended: the platform forgets."""
        write_atomic(self.path / "ends" / f"{task}.json", msgspec.json.encode(end))

    def holder(self, task: int = 0) -> str:
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
        """Note that a notebook got what the job made."""
        write_atomic(self.path / "delivered.json", json.dumps({"names": names, "time": time.time()}).encode())

    def verify(self, *files: Path) -> None:
        """Refuse what another user could have written to, before anything of it is unpickled.

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
        paths = [*self.payload.glob("*.pkl")]
        for file in files:
            paths += [folder for folder in reversed(file.parents) if self.path in folder.parents]
            paths.append(file)
        for path in dict.fromkeys(paths):
            with contextlib.suppress(FileNotFoundError):
                _refuse(path, private.trouble(path))

    def size(self) -> int:
        """Bytes on disk."""
        total = 0
        for folder, _, files in os.walk(self.path):
            for name in files:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        return total


def check_private(path: Path) -> None:
    """Raise `JobRootError` where somebody else could write to `path`."""
    try:
        _refuse(path, private.trouble(path))
    except FileNotFoundError:
        raise JobRootError(f"{path} is not there any more.", hint="%cluster_jobs lists what is.") from None


def _refuse(path: Path, trouble: str) -> None:
    if trouble:
        mend = f"Check what is in it, then: chmod go-w {shlex.quote(str(path))}"
        if "belongs" in trouble:
            mend = "Set CLUSTERKERNEL_JOB_ROOT to a folder of yours."
        raise JobRootError(f"{path} {trouble}, so nothing in it is loaded.", hint=mend)
