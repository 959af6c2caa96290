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
import getpass
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

import clusterkernel.runtime
from clusterkernel.errors import JobRootError, UnknownJobError
from clusterkernel.runtime.processes import start_time
from clusterkernel.spec import JobSpec
from clusterkernel.states import JobState

__all__ = ["End", "JobFolder", "JobRecord", "JobRoot", "PayloadSummary", "Submission", "default_root", "write_atomic"]

SCHEMA: Final = 1


class PayloadSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job runs, for people and for comparing; the payload itself lies beside it.

    Attributes
    ----------
    kind : str
        ``cell``, ``function`` or ``command``.
    title : str
        One line that a person knows it by.
    source : str
        The cell or command as text.
    outputs : tuple of str
        Names that are saved.
    bind : tuple of str
        Names that are bound in the notebook by themselves.
    inputs : dict
        Captured name -> digest of its value, None where values cannot be compared.
    sizes : dict
        Captured name -> bytes.
    """

    kind: str
    title: str = ""
    source: str = ""
    outputs: tuple[str, ...] = ()
    bind: tuple[str, ...] = ()
    inputs: dict[str, str | None] = {}
    sizes: dict[str, int] = {}


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a job when it is made; never changes.

    Attributes
    ----------
    id : str
        Our id, ``"12"``.
    key : str
        A random word that stands in the platform's name or comment of the job,
        by which a submission whose answer got lost is found again.
    created : float
        Unix time, seconds, of the submitting host.
    tasks : int
        Array tasks; 1 where there is no array.
    array : bool
        Whether it is an array.
    attach_key : str
        Equal for the same cell, source and spec.
    notebook : str
        Path of the notebook, where it is known.
    parent : str
        The job that this one is a rerun of.
    submitter : str
        ``host:pid:start`` of the process that sends it.
    """

    id: str
    key: str
    name: str
    created: float
    host: str
    user: str
    spec: JobSpec
    payload: PayloadSummary
    tasks: int = 1
    array: bool = False
    attach_key: str = ""
    notebook: str = ""
    parent: str = ""
    submitter: str = ""
    schema: int = SCHEMA


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's answer to a submission.

    Attributes
    ----------
    platform_ids : tuple of (str, int, int)
        The platform's id with the first array task it holds and how many: one
        entry, several where an array had to be split.
    """

    platform_ids: tuple[tuple[str, int, int], ...]
    cluster: str = ""

    @property
    def platform_id(self) -> str:
        """The first of the platform's ids."""
        return self.platform_ids[0][0]


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an array task ended, where the platform had to tell."""

    state: JobState
    reason: str = ""
    exit_code: int | None = None
    signum: int | None = None
    time: float = 0.0


def default_root() -> Path:
    """``$CLUSTERKERNEL_JOB_ROOT``, else ``~/.clusterkernel/jobs``."""
    if root := os.environ.get("CLUSTERKERNEL_JOB_ROOT"):
        return Path(root).expanduser().absolute()
    return Path.home() / ".clusterkernel" / "jobs"


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _read(path: Path) -> bytes:
    """The file's bytes; nothing where it is not there yet."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


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

    def out(self, attempt: int = 0, task: int = 0, rank: int = 0) -> Path:
        """What one process left: its output, metrics and results."""
        return self.path / "out" / str(attempt) / f"{task}.{rank}"

    def submission(self) -> Submission | None:
        """The platform's answer, once there is one."""
        data = _read(self.path / "submission.json")
        return msgspec.json.decode(data, type=Submission) if data else None

    def write_submission(self, submission: Submission) -> None:
        """Keep the platform's answer."""
        write_atomic(self.path / "submission.json", msgspec.json.encode(submission))

    def refused(self) -> str:
        """Why the platform would not take the job; empty where it did."""
        return _read(self.path / "refused.txt").decode("utf-8", "replace")

    def write_refused(self, why: str) -> None:
        """Keep why the platform would not take the job."""
        write_atomic(self.path / "refused.txt", why.encode())

    def cancel_request(self) -> tuple[int, ...] | None:
        """The array tasks that were asked to be cancelled, empty for all; None if nobody asked."""
        data = _read(self.path / "cancel.json")
        return tuple(json.loads(data)["tasks"]) if data else None

    def request_cancel(self, tasks: tuple[int, ...] = ()) -> None:
        """Write down that a cancel was asked for, before the platform is told."""
        if tasks and (earlier := self.cancel_request()) is not None:
            tasks = tuple(sorted({*tasks, *earlier})) if earlier else ()
        body = {"tasks": list(tasks), "time": time.time(), "by": getpass.getuser()}
        write_atomic(self.path / "cancel.json", json.dumps(body).encode())

    def end(self, task: int = 0) -> End | None:
        """How the task ended, where the platform had to tell."""
        data = _read(self.path / "ends" / f"{task}.json")
        return msgspec.json.decode(data, type=End) if data else None

    def write_end(self, task: int, end: End) -> None:
        """Keep how the task ended: the platform forgets."""
        write_atomic(self.path / "ends" / f"{task}.json", msgspec.json.encode(end))

    def delivered(self) -> bool:
        """Whether a notebook got what the job made."""
        return bool(_read(self.path / "delivered.json"))

    def write_delivered(self, names: tuple[str, ...] = ()) -> None:
        """Note that a notebook got what the job made."""
        write_atomic(self.path / "delivered.json", json.dumps({"names": names, "time": time.time()}).encode())

    def verify(self) -> None:
        """Refuse a folder that another user could have written to, before anything in it is unpickled.

        Raises
        ------
        JobRootError
            The folder or its root belongs to, or can be written by, another.
        """
        for path in (self.path.parent, self.path, self.payload):
            check_private(path)

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
    about = os.stat(path)
    if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise JobRootError(
            f"{path} can be written by another user, so nothing in it is loaded.", hint=f"chmod go-w {path}"
        )


class JobRoot:
    """The folder that holds the job folders.

    Parameters
    ----------
    path : Path, optional
        Default: `default_root()`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_root()
        self._next = 1

    def ensure(self) -> None:
        """Make the folder, private to its owner.

        Raises
        ------
        JobRootError
            It cannot be made or written, or another user could write to it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(self.path)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except JobRootError:
            raise
        except OSError as error:
            raise JobRootError(
                f"The job root {self.path} cannot be used: {error.strerror}.",
                hint="Set CLUSTERKERNEL_JOB_ROOT to a folder of yours that the nodes share.",
            ) from error

    def create(self, make: Callable[[str, str], JobRecord], write_payload: Callable[[Path], None]) -> JobFolder:
        """Make a job's folder with all that it needs to run.

        Parameters
        ----------
        make : callable
            Gives the record for an id and a key.
        write_payload : callable
            Fills the payload's folder.

        Returns
        -------
        JobFolder
            Its ``job.json`` is written last: a folder without one is the rest
            of a creation that was interrupted, and no job.
        """
        self.ensure()
        folder = JobFolder(self._claim())
        record = make(folder.id, secrets.token_hex(8))
        for name in ("payload", "claims", "ends", "out", "events"):
            os.mkdir(folder.path / name, 0o700)
        write_payload(folder.payload)
        os.mkdir(folder.path / "events" / "0", 0o700)
        for task in range(record.tasks):
            for rank in range(record.spec.processes):
                _touch(folder.events(0, task, rank))
        for name in ("submission.json", "cancel.json", "refused.txt", "delivered.json"):
            _touch(folder.path / name)
        write_atomic(folder.path / "job.json", msgspec.json.encode(record))
        folder.__dict__["record"] = record
        return folder

    def _claim(self) -> Path:
        """The next free number: ``mkdir`` is atomic, also on NFS."""
        if self._next == 1:
            self._next = max(self._numbers(), default=0) + 1
        conflicts = 0
        while True:
            path = self.path / str(self._next)
            self._next += 1
            try:
                os.mkdir(path, 0o700)
                return path
            except FileExistsError:
                conflicts += 1
                if conflicts % 8 == 0:
                    self._next = max(self._numbers(), default=0) + 1

    def _numbers(self) -> Iterator[int]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.isdigit():
                    yield int(entry.name)

    def folders(self, without: Container[str] = ()) -> list[JobFolder]:
        """The folders of all jobs but `without`, by number. Those that have no ``job.json`` are left out."""
        found = []
        for number in sorted(self._numbers()):
            if str(number) in without:
                continue
            folder = JobFolder(self.path / str(number))
            try:
                folder.record  # noqa: B018 - reading it is the check
            except UnknownJobError:
                continue
            found.append(folder)
        return found

    def open(self, job_id: str) -> JobFolder:
        """The folder of job `job_id`.

        Raises
        ------
        UnknownJobError
            There is none.
        """
        if not job_id.isdigit():
            raise UnknownJobError(f"{job_id!r} is not a job's number.", hint="%cluster_jobs lists all.")
        folder = JobFolder(self.path / job_id)
        folder.record  # noqa: B018 - raises where there is none
        return folder

    def remove(self, folder: JobFolder) -> None:
        """Delete a job's folder. The number is not given again while a later one exists."""
        shutil.rmtree(folder.path)

    def runtime(self) -> Path:
        """Lay out what runs inside a job, once for each version of it.

        Returns
        -------
        Path
            A folder that Python can run: ``python PATH supervise JOB_FOLDER``.
        """
        digest, files = _runtime_files()
        target = self.path / ".runtime" / digest
        if (target / "__main__.py").is_file():
            return target
        self.ensure()
        target.parent.mkdir(mode=0o700, exist_ok=True)
        temporary = target.with_name(f".{digest}.{secrets.token_hex(4)}")
        for name, data in files.items():
            path = temporary / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            os.rename(temporary, target)
        except OSError:
            shutil.rmtree(temporary)  # another process was first
            if not (target / "__main__.py").is_file():
                raise
        return target


_MAIN: Final = b"from ckruntime.cli import main\n\nmain()\n"
# For `import clusterkernel as ck; ck.log(...)` where a node's Python lacks the product.
_SHIM: Final = b"from ckruntime.metrics import log, progress\n\n__all__ = ['log', 'progress']\n"


@functools.cache
def _runtime_files() -> tuple[str, dict[str, bytes]]:
    """The runtime's files by relative path, and a digest of them all."""
    source = Path(clusterkernel.runtime.__path__[0])
    files = {f"ckruntime/{path.name}": path.read_bytes() for path in sorted(source.glob("*.py"))}
    files["__main__.py"] = _MAIN
    files["shim/clusterkernel/__init__.py"] = _SHIM
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12], files


def _touch(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))


def identity() -> dict[str, Any]:
    """Who submits, and from where."""
    host = os.uname().nodename
    return {
        "host": host,
        "user": getpass.getuser(),
        "created": time.time(),
        "submitter": f"{host}:{os.getpid()}:{start_time(os.getpid())}",
    }
