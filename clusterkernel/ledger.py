"""A per-host cache over the job folders, in SQLite on local disk.

It holds two things, both of which can be lost without harm: what the platform
last said of each job (so that many kernels of a user on a host ask once), and
an index of the jobs with the summaries of those that have ended (so that a long
list need not open every folder). The folders are the truth.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from clusterkernel.errors import JobRootError
from clusterkernel.files import make_private
from clusterkernel.jobroot import identity

__all__ = ["Ledger", "local_dir"]

SCHEMA: Final = 1
_MEMORY: Final = ":memory:"
# Seconds to wait for another process's write.
_PATIENCE: Final = 10.0
_Result = TypeVar("_Result")
_TABLES: Final = (
    "answers (backend TEXT, job TEXT, at REAL, body BLOB, PRIMARY KEY (backend, job))",
    "asked (backend TEXT PRIMARY KEY, at REAL)",
    "jobs (job TEXT PRIMARY KEY, attach_key TEXT, ended BLOB)",
)


def local_dir() -> Path:
    """A folder of ours on this host's local disk, mode 0700.

    ``$CLUSTERKERNEL_LOCAL_DIR``, else ``/var/tmp/clusterkernel-UID``: homes are
    on NFS, where locks and SQLite cannot be trusted.

    Raises
    ------
    JobRootError
        It belongs to another user or others may enter it.
    """
    path = Path(os.environ.get("CLUSTERKERNEL_LOCAL_DIR") or f"/var/tmp/clusterkernel-{os.geteuid()}")
    try:
        make_private(path)
        about = os.lstat(path)
    except OSError as error:
        raise JobRootError(
            f"{path} cannot be made: {error.strerror}.", hint="Set CLUSTERKERNEL_LOCAL_DIR to a folder of yours."
        ) from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
        raise JobRootError(
            f"{path} is not a folder of yours.", hint="Set CLUSTERKERNEL_LOCAL_DIR to one on a local disk."
        )
    if about.st_mode & 0o077:
        raise JobRootError(
            f"{path} is open to other users.",
            hint=f"chmod 700 {shlex.quote(str(path))}, or set CLUSTERKERNEL_LOCAL_DIR to another folder.",
        )
    return path


class Ledger:
    """The cache for one job root.

    Parameters
    ----------
    root : Path
        The job root; each has a file of its own.

    Notes
    -----
    A connection belongs to the process that opened it: a forked child leaves
    it alone and opens its own. A damaged file is made anew; a file of another
    schema has another name. Where the disk takes no file, the cache is in memory.
    """

    def __init__(self, root: Path) -> None:
        # A root that was deleted and made again gives the same numbers to other jobs.
        words = os.fsencode(root.absolute()) + b"\0" + identity(root).encode()
        digest = hashlib.sha256(words).hexdigest()[:12]
        self._base = local_dir() / f"{digest}.v{SCHEMA}"
        self._path = self._base.with_suffix(f".v{SCHEMA}.sqlite")
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._inherited: list[sqlite3.Connection] = []
        self._lock = threading.RLock()

    def _connect(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        if self._connection is not None:
            # Closing it would meddle with the parent's locks; so would its end as garbage.
            self._inherited.append(self._connection)
        self._connection, self._pid = self._open(str(self._path)), os.getpid()
        return self._connection

    def _open(self, path: str) -> sqlite3.Connection:
        if path != _MEMORY:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            deadline = time.monotonic() + _PATIENCE
            while True:
                try:
                    connection.execute("PRAGMA journal_mode=WAL")
                    break
                except sqlite3.OperationalError as error:
                    # SQLite does not wait by itself here, where several open a new file at once.
                    if not _busy(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            connection.execute("PRAGMA synchronous=OFF")
            for table in _TABLES:
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _run(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._do(lambda connection: connection.execute(sql, values).fetchall())

    def _do(self, action: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Do something with the file, which may be damaged, replaced by another process, or impossible."""
        with self._lock:
            for mend in (self.close, self._discard, self._use_memory):
                try:
                    return action(self._connect())
                except (sqlite3.DatabaseError, OSError) as error:
                    if isinstance(error, sqlite3.ProgrammingError):
                        raise
                    if _busy(error):
                        raise JobRootError(
                            f"{self._path} is kept locked by another process.", hint="End that process, or try again."
                        ) from error
                    mend()
            return action(self._connect())

    def _use_memory(self) -> None:
        self.close()
        self._connection, self._pid = self._open(_MEMORY), os.getpid()

    def _discard(self) -> None:
        """Remove a damaged file: it is only a cache."""
        self.close()
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        for path in self._path.parent.glob(self._path.name + "*"):
            with contextlib.suppress(OSError):
                path.unlink()

    # -- the platform's answers -----------------------------------------------

    @contextlib.contextmanager
    def turn(self, what: str, *, patience: float = 0.0) -> Iterator[bool]:
        """Whether it is this process's turn to do it; waits at most `patience` seconds for its holder.

        It is free again when the holder dies.
        """
        deadline = time.monotonic() + patience
        self._base.parent.mkdir(mode=0o700, exist_ok=True)  # folders of temporary files are swept
        file = os.open(f"{self._base}.{what}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        yield False
                        return
                    time.sleep(0.01)
            try:
                yield True
            finally:
                # Closing is not enough where the process forked meanwhile: the child has the lock too.
                fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def answers(
        self,
        backend: str,
        jobs: Sequence[str],
        ask: Callable[[], Mapping[str, bytes]],
        *,
        max_age: float,
    ) -> dict[str, tuple[float, bytes]]:
        """What the platform says of `jobs`, asking at most once in `max_age` seconds per host and user.

        Parameters
        ----------
        backend : str
            Whose platform.
        jobs : sequence of str
            Our ids.
        ask : callable
            Asks the platform, about every live job of the user: our id -> answer.
        max_age : float
            Seconds for which an earlier answer is good enough.

        Returns
        -------
        dict
            Our id -> (unix time of this host, answer); without those that were not answered for.
        """
        now = time.time()
        asked = self._run("SELECT at FROM asked WHERE backend = ?", (backend,))
        due = not asked or not 0 <= now - asked[0][0] < max_age
        if due:
            with self.turn(backend) as mine:
                asked = self._run("SELECT at FROM asked WHERE backend = ?", (backend,)) if mine else asked
                if mine and not (asked and 0 <= time.time() - asked[0][0] < max_age):
                    self._run("INSERT OR REPLACE INTO asked VALUES (?, ?)", (backend, time.time()))
                    fresh = ask()
                    self._keep([(backend, job, time.time(), body) for job, body in fresh.items()])
        wanted = set(jobs)
        held = self._run("SELECT job, at, body FROM answers WHERE backend = ?", (backend,))
        return {job: (at, bytes(body)) for job, at, body in held if job in wanted}

    def _keep(self, rows: list[tuple[str, str, float, bytes]]) -> None:
        def insert(connection: sqlite3.Connection) -> None:
            with connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", rows)

        self._do(insert)

    # -- the jobs ---------------------------------------------------------------

    def known(self) -> dict[str, bytes | None]:
        """Every job that the cache has, by id: None while it lives, then its summary (empty where nobody made one)."""
        return {
            job: bytes(body) if body is not None else None for job, body in self._run("SELECT job, ended FROM jobs")
        }

    def add(self, job: str, attach_key: str) -> None:
        """Take a job in."""
        self._run("INSERT OR IGNORE INTO jobs VALUES (?, ?, NULL)", (job, attach_key))

    def same(self, attach_key: str) -> list[str]:
        """The jobs of one attach key, the newest first."""
        found = self._run("SELECT job FROM jobs WHERE attach_key = ?", (attach_key,))
        return sorted((job for (job,) in found), key=int, reverse=True)

    def end(self, job: str, summary: bytes = b"") -> None:
        """Note that a job has ended; what the platform said of it is dropped."""
        self._run("UPDATE jobs SET ended = ? WHERE job = ?", (summary, job))
        self._run("DELETE FROM answers WHERE job = ?", (job,))

    def forget(self, job: str) -> None:
        """Drop a job whose folder was removed."""
        self._run("DELETE FROM jobs WHERE job = ?", (job,))

    def close(self) -> None:
        """Close the connection, where this process opened it."""
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
            self._connection = None


def _busy(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
