"""Files of one user that several processes, on several hosts, read and write."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from clusterkernel.errors import JobRootError
from clusterkernel.runtime import private

__all__ = ["check_private", "locked", "make_private", "refuse", "touch", "write_atomic", "write_once"]


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step, so that no reader sees half of it. Mode 0600."""
    with _written(path, data) as temporary:
        os.replace(temporary, path)


def write_once(path: Path, data: bytes) -> bool:
    """Make `path` with `data` in it, as `write_atomic`. False where it is there already: the first writer wins."""
    with _written(path, data) as temporary:
        try:
            os.link(temporary, path)
            return True
        except FileExistsError:
            return False
        finally:
            temporary.unlink()


@contextlib.contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """A new file beside `path` with `data` in it; it goes where the block fails."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        yield temporary
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def touch(path: Path) -> None:
    """Let the file be there, mode 0600."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


@contextlib.contextmanager
def locked(path: Path, patience: float = 5.0) -> Iterator[None]:
    """Keep other processes out while a file is read, changed and written back.

    Parameters
    ----------
    path : Path
        The lock's own file.
    patience : float
        Seconds. A holder that was stopped, or a file system that knows no locks,
        must not keep a person from acting: then it goes on without the lock.
    """
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(0.005)
                    continue
            except OSError:
                pass
            break
        yield
    finally:
        # Closing is not enough where the process forked meanwhile: the child has the lock too.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def make_private(path: Path) -> None:
    """Make a folder and those above it that are not there yet, all for their owner alone."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:  # `parents=True` would leave those above to the umask
        make_private(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def check_private(path: Path) -> None:
    """Raise `JobRootError` where somebody else could write to `path`."""
    try:
        refuse(path, private.trouble(path))
    except FileNotFoundError:
        raise JobRootError(f"{path} is not there any more.", hint="%cluster_jobs lists what is.") from None


def refuse(path: Path, trouble: str) -> None:
    """Raise `JobRootError` for what `private.trouble` says of `path`, where it says something."""
    if trouble:
        mend = f"Check what is in it, then: chmod go-w {shlex.quote(str(path))}"
        if "belongs" in trouble:
            mend = "Set CLUSTERKERNEL_JOB_ROOT to a folder of yours."
        raise JobRootError(f"{path} {trouble}, so nothing in it is loaded.", hint=mend)
