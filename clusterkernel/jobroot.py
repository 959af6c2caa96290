"""The folder that holds the job folders: it gives the numbers."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

import clusterkernel.runtime
from clusterkernel.errors import JobRootError, UnknownJobError
from clusterkernel.jobfolder import JobFolder, check_private, write_atomic
from clusterkernel.records import JobRecord

__all__ = ["JobRoot", "default_root"]


def default_root() -> Path:
    """``$CLUSTERKERNEL_JOB_ROOT``, else ``~/.clusterkernel/jobs``."""
    if root := os.environ.get("CLUSTERKERNEL_JOB_ROOT"):
        return Path(root).expanduser().absolute()
    return Path.home() / ".clusterkernel" / "jobs"


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

    def ids(self) -> list[str]:
        """The numbers that were given, by size; a folder that is still being made is among them."""
        return [str(number) for number in sorted(self._numbers())]

    def _numbers(self) -> Iterator[int]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.isdigit():
                    yield int(entry.name)

    def folders(self) -> list[JobFolder]:
        """The folders of all jobs, by number. Those that have no ``job.json`` are left out."""
        found = []
        for number in sorted(self._numbers()):
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
