"""The folder that holds the job folders: it gives the numbers."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

import clusterkernel.runtime
from clusterkernel.errors import ClusterKernelError, JobRootError, UnknownJobError
from clusterkernel.files import check_private, make_private, refuse, touch, write_atomic
from clusterkernel.jobfolder import WATCHED, JobFolder
from clusterkernel.records import JobRecord
from clusterkernel.runtime import private

__all__ = ["JobRoot", "default_root", "identity"]

IDENTITY: Final = ".identity"
# Names the largest number, where its folder was removed.
_LAST: Final = ".last-"
# What a removed folder is called until it is gone.
_REMOVED: Final = ".removed-"
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")


def default_root() -> Path:
    """``$CLUSTERKERNEL_JOB_ROOT``, else ``~/.clusterkernel/jobs``."""
    if root := os.environ.get("CLUSTERKERNEL_JOB_ROOT"):
        from clusterkernel.paths import expand  # few need it, and loading must be quick

        return expand(root, "CLUSTERKERNEL_JOB_ROOT").absolute()
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
            make_private(self.path)
            check_private(self.path)
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._mark_identity()
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
        try:
            folder = JobFolder(self._claim())
            try:
                self._fill(folder, make, write_payload)
            except BaseException:
                with contextlib.suppress(OSError):
                    self.remove(folder)
                raise
        except ClusterKernelError:
            raise
        except OSError as error:
            where = f": {error.filename}" if error.filename else ""
            raise JobRootError(
                f"A job folder cannot be made in {self.path}: {error.strerror or error}{where}.",
                hint="Make room there, or set CLUSTERKERNEL_JOB_ROOT to another folder that the nodes share.",
            ) from error
        return folder

    @staticmethod
    def _fill(folder: JobFolder, make: Callable[[str, str], JobRecord], write_payload: Callable[[Path], None]) -> None:
        record = make(folder.id, os.urandom(8).hex())
        for name in ("payload", "claims", "ends", "out", "events"):
            os.mkdir(folder.path / name, 0o700)
        write_payload(folder.payload)
        for name in WATCHED:
            touch(folder.path / name)
        write_atomic(folder.path / "job.json", msgspec.json.encode(record))
        folder.__dict__["record"] = record

    def _mark_identity(self) -> None:
        """Give the root a random word of its own, by which a root that was deleted and made again is another."""
        if identity(self.path):
            return
        with contextlib.suppress(FileExistsError):  # another process was first
            file = os.open(self.path / IDENTITY, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            with open(file, "w") as words:
                words.write(os.urandom(8).hex())

    def _claim(self) -> Path:
        """The next free number: ``mkdir`` is atomic, also on NFS."""
        if self._next == 1:
            self._next = self._highest() + 1
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
                    self._next = self._highest() + 1

    def ids(self) -> list[str]:
        """The numbers that were given, by size; a folder that is still being made is among them."""
        return [str(number) for number in sorted(self._numbers())]

    def _numbers(self) -> Iterator[int]:
        return (int(name) for name in self._names() if _NUMBER.fullmatch(name))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise JobRootError(
                f"The job root {self.path} cannot be used: {error.strerror}.",
                hint="Set CLUSTERKERNEL_JOB_ROOT to a folder of yours that the nodes share.",
            ) from error

    def _highest(self) -> int:
        """The largest number that was ever given."""
        given = (name.removeprefix(_LAST) for name in self._names())
        return max((int(number) for number in given if _NUMBER.fullmatch(number)), default=0)

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
        if not _NUMBER.fullmatch(job_id):
            raise UnknownJobError(f"{job_id!r} is not a job's number.", hint="%cluster_jobs lists all.")
        folder = JobFolder(self.path / job_id)
        folder.record  # noqa: B018 - raises where there is none
        return folder

    def remove(self, folder: JobFolder) -> None:
        """Delete a job's folder. Its number is never given again: ledgers and people remember it.

        From the first moment it is no job any more, however far the deletion comes.
        """
        number, highest = int(folder.id), self._highest()
        if number >= highest:  # the mark stands before the folder goes
            os.close(os.open(self.path / f"{_LAST}{number}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        os.rename(folder.path, self.path / f"{_REMOVED}{number}.{os.urandom(4).hex()}")
        for name in self._names():
            path = self.path / name
            if name.startswith(_REMOVED):
                # What a killed process left too. What cannot go yet (NFS keeps open files) goes next time.
                shutil.rmtree(path, ignore_errors=True)
            elif name.startswith(_LAST) and name != f"{_LAST}{max(number, highest)}":
                with contextlib.suppress(OSError):
                    path.unlink()

    def runtime(self) -> Path:
        """Lay out what runs inside a job, once for each version of it.

        Returns
        -------
        Path
            A folder that Python can run: ``python PATH supervise JOB_FOLDER``.
        """
        import compileall

        digest, files = _runtime_files()
        target = self.path / ".runtime" / digest
        if not _lacks(target, files):
            return target
        self.ensure()
        temporary = target.with_name(f".{digest}.{os.urandom(4).hex()}")
        try:
            make_private(target.parent)
            for name, data in files.items():
                path = temporary / name
                make_private(path.parent)
                write_atomic(path, data)
            # Many Pythons write no bytecode (PYTHONDONTWRITEBYTECODE), and then every task would compile all of it.
            compileall.compile_dir(temporary / "ckruntime", quiet=2)
            with contextlib.suppress(OSError):  # another process was first, or the copy lost a file
                os.rename(temporary, target)
            for name in _lacks(target, files):
                path = target / name
                make_private(path.parent)
                write_atomic(path, files[name])
        except JobRootError:
            raise
        except OSError as error:
            raise JobRootError(
                f"What runs inside a job cannot be laid into {target.parent}: {error.strerror}.",
                hint="Make room there, or set CLUSTERKERNEL_JOB_ROOT to another folder that the nodes share.",
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target


def identity(root: Path) -> str:
    """The random word of a job root; empty where it has none yet."""
    try:
        return (root / IDENTITY).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""  # whoever writes there says what is wrong with it


def _lacks(target: Path, files: Mapping[str, bytes]) -> list[str]:
    """Which files of the runtime are not there, or not as they were: scratch file systems are swept by age.

    Raises
    ------
    JobRootError
        Another user could write there, and so have a job run what they like.
    """
    paths = [os.path.join(target, name) for name in files]
    paths += {os.path.dirname(path) for path in paths} | {str(target.parent), str(target.parent.parent)}
    if (seen := _signature(paths)) is not None and _WHOLE.get(target) == seen:
        return []
    inner = {(target / name).parent for name in files}
    for folder in (target.parent.parent, target.parent, target, *sorted(inner - {target})):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            refuse(folder, private.trouble(folder))
    lacking = []
    for name, data in files.items():
        try:
            if (target / name).read_bytes() != data or private.trouble(target / name):
                lacking.append(name)
        except OSError:
            lacking.append(name)
    if not lacking and seen is not None:
        _WHOLE[target] = seen
    return lacking


# What was found whole, and how it looked: who writes to a file, or changes its rights, changes its ctime.
_WHOLE: Final[dict[Path, tuple[tuple[int, ...], ...]]] = {}


def _signature(paths: Iterable[str]) -> tuple[tuple[int, ...], ...] | None:
    try:
        found = [os.lstat(path) for path in paths]
    except OSError:
        return None
    # A folder changes with what is made in it: its rights count.
    return tuple(
        (one.st_ino, one.st_mode, one.st_uid, *(() if stat.S_ISDIR(one.st_mode) else (one.st_ctime_ns, one.st_size)))
        for one in found
    )


# By itself Python leaves a script's folder out of the path where PYTHONSAFEPATH is set.
_MAIN: Final = b"""\
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ckruntime.cli import main

main()
"""
# For `import clusterkernel as ck; ck.log(...)` where a node's Python lacks the product.
_SHIM: Final = b"from ckruntime.metrics import log, progress\n\n__all__ = ['log', 'progress']\n"


@functools.cache
def _runtime_files() -> tuple[str, dict[str, bytes]]:
    """The runtime's files by relative path, and a digest of them all."""
    source = Path(clusterkernel.runtime.__path__[0])
    files = {f"ckruntime/{path.name}": path.read_bytes() for path in sorted(source.glob("*.py"))}
    files["__main__.py"] = _MAIN
    files["shim/clusterkernel/__init__.py"] = _SHIM
    import hashlib

    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:12], files
