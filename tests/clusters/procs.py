"""Processes and waiting, shared by the parts of the test cluster.

Every daemon of a cluster is started with :data:`MARK` in its environment, set to the cluster's folder.
A process is ended only when it carries that mark or lives in one of the cluster's own network namespaces,
so a number that the kernel gave to somebody else in the meantime is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

MARK = "CLUSTERKERNEL_TEST_CLUSTER"


class ClusterError(RuntimeError):
    """The test cluster could not be started, stopped or asked; the message is one clear line."""


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    timeout: float = 60,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and keep its text.

    Raises
    ------
    ClusterError
        When it does not exist, takes longer than `timeout` seconds or, with `check`, ends with a status other than 0.
    """
    try:
        done = subprocess.run(
            list(argv),
            env=None if env is None else dict(env),
            input="" if stdin is None else stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise ClusterError(f"{argv[0]}: not installed; run `python tests/clusters/slurm.py install`") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{' '.join(argv)}: no answer within {timeout:g} s") from error
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or "no message"
        raise ClusterError(f"{' '.join(argv)}: status {done.returncode}: {said}")
    return done


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie counts as ended, because some init processes reap orphans late."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][:1] not in ("Z", "X", "")


def marked(pid: int, folder: Path) -> bool:
    """Whether a process was started for the cluster in `folder`."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK}={folder}".encode() in environ.split(b"\0")


def namespace(pid: int | str, kind: str = "net") -> str:
    """The identity of a process's namespace, such as ``net:[4026532201]``; empty when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def mounted(folder: Path) -> bool:
    """Whether something is mounted at a folder; also right where its server died."""
    places = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return str(folder) in places


def all_pids() -> list[int]:
    """The process ids that exist now."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read_pid(path: Path) -> int | None:
    """The number in a pid file, or None."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def wait_for(ready: Callable[[], bool], what: str, timeout: float = 30, every: float = 0.03) -> None:
    """Poll until `ready()`; raise ClusterError naming `what` after `timeout` seconds."""
    end = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {timeout:g} s")
        time.sleep(every)


def stop(pids: Iterable[int], patience: float = 10) -> None:
    """Ask processes to end, and kill those that still run after `patience` seconds; kill at once when it is 0."""
    left = [pid for pid in pids if alive(pid)]
    for number, wait in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
        if wait <= 0:
            continue
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + wait
        while (left := [pid for pid in left if alive(pid)]) and time.monotonic() < end:
            time.sleep(0.02)
        if not left:
            return
    raise ClusterError(f"processes {left} do not end")
