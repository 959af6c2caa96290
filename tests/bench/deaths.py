"""How soon the end of a job is known, ours beside submitit's, with accounting and without.

    python -m tests.bench.deaths FOLDER OUT

is the kernel in which submitit's jobs die; ours is that of `tests.faults.deaths`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.clusters.cluster import Options, SlurmCluster
from tests.faults.test_deaths import Run

# Seconds after the event; who has not noticed by then is given up.
CEILING = 120.0
SOON = 10.0
EVENTS = {
    "scancel_pending": "scancel while it waits",
    "scancel_running": "scancel while it runs",
    "payload_killed": "kill -9 of the payload",
    "exit_code": "os._exit(9)",
}
_ACCOUNTING = {"on": "with accounting", "off": "without accounting"}
Seconds = dict[tuple[str, str], float]


class Table:
    """A row for each event and accounting: seconds until a wait for the result returned."""

    def __init__(self, ours: Seconds, theirs: Seconds) -> None:
        self._ours = ours
        self._theirs = theirs

    def text(self) -> str:
        """The rows as lines."""
        late = any(seconds > SOON for seconds in self._ours.values())
        lines = [f"from the event to the end of the wait   {'OVER' if late else 'within'} {SOON:g} s"]
        lines.append(f"    {'':26}{'':22}{'ours':>10}{'submitit':>12}")
        for event, words in EVENTS.items():
            for kind, accounting in _ACCOUNTING.items():
                ours, theirs = (_show(told.get((event, kind))) for told in (self._ours, self._theirs))
                lines.append(f"    {words:26}{accounting:22}{ours:>10}{theirs:>12}")
        return "\n".join(lines)


def _show(seconds: float | None) -> str:
    return f"over {CEILING:g} s" if seconds is None else f"{seconds:.1f} s"


def deaths(_: Path) -> Table:
    """All deaths at once, on two clusters side by side."""
    with tempfile.TemporaryDirectory(prefix="ck-deaths-") as name:
        return _deaths(
            {kind: SlurmCluster(Path(name) / kind, Options(accounting=kind == "on")) for kind in _ACCOUNTING}
        )


def _deaths(clusters: dict[str, SlurmCluster]) -> Table:
    try:
        for cluster in clusters.values():
            cluster.up()
        peers = {kind: _peer(cluster) for kind, cluster in clusters.items()}
        ours = _ours(clusters)
        theirs: Seconds = {}
        for kind, (process, out) in peers.items():
            process.wait()
            for line in out.read_text().splitlines() if out.exists() else ():
                event, seconds = json.loads(line)
                theirs[event, kind] = seconds
        return Table(ours, theirs)
    finally:
        for cluster in clusters.values():
            cluster.down()


def _ours(clusters: dict[str, SlurmCluster]) -> Seconds:
    runs = {kind: Run(kind, cluster.folder / "shared", list(EVENTS), cluster) for kind, cluster in clusters.items()}
    try:
        return {(event, kind): run.seen(event)["seconds"] for kind, run in runs.items() for event in EVENTS}
    finally:
        for run in runs.values():
            run.close()


def _peer(cluster: SlurmCluster) -> tuple[subprocess.Popen[bytes], Path]:
    folder = cluster.folder / "shared" / "peer"
    folder.mkdir()
    out = folder / "seen.jsonl"
    argv = [sys.executable, "-m", __name__, str(folder), str(out)]
    root = Path(__file__).resolve().parents[2]
    with open(folder / "log", "wb") as log:
        environ = {**os.environ, **cluster.env}
        return subprocess.Popen(argv, env=environ, cwd=root, stdout=log, stderr=log), out


# -- the kernel of submitit's jobs ---------------------------------------------------


def _sleep(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(600)


def _leave(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    os._exit(9)


def _pid(mark: Path) -> int:
    """Wait for the job's code, and give its pid."""
    deadline = time.monotonic() + CEILING
    while not (mark.exists() and (text := mark.read_text())):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{mark} did not come within {CEILING:g} s")
        time.sleep(0.05)
    return int(text)


def _cause(event: str, folder: Path) -> tuple[Any, float]:
    """The job of a death, and when that was."""
    import submitit

    executor = submitit.AutoExecutor(folder=folder / "jobs" / event, cluster="slurm")
    more = {"slurm_additional_parameters": {"begin": "now+1hour"}} if event == "scancel_pending" else {}
    executor.update_parameters(timeout_min=5, **more)
    mark = folder / event
    job = executor.submit(_leave if event == "exit_code" else _sleep, str(mark))
    if event != "scancel_pending":
        pid = _pid(mark)
    at = time.time()
    if event.startswith("scancel"):
        subprocess.run(["scancel", job.job_id], check=True)
    elif event == "payload_killed":
        os.kill(pid, signal.SIGKILL)
    return job, at


def _see(event: str, folder: Path, tell: Callable[[str, float], None]) -> None:
    job, at = _cause(event, folder)
    with suppress(Exception):  # the death
        job.result()
    tell(event, time.time() - at)


def main(folder: Path, out: Path) -> None:
    """Have all die, and write down how long each wait took; those that go on are left behind."""
    lock = threading.Lock()

    def tell(event: str, seconds: float) -> None:
        with lock, open(out, "a") as file:
            file.write(json.dumps([event, seconds]) + "\n")

    threads = [threading.Thread(target=_see, args=(event, folder, tell), daemon=True) for event in EVENTS]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + CEILING
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
