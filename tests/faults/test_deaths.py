"""Every way to die, on Slurm with accounting on, off and purged, and on the local machine.

All deaths of a platform are caused at once, by a kernel of its own (`deaths`), on the platforms side by side; each
test judges one of them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.clusters.cluster import SlurmCluster

from . import deaths
from .conftest import MEASURED
from .wrapper import Wrapper

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("on", "off", "purged", "local")
# From the moment when the controller or the supervisor knew.
SOON = 10.0
# Starting a cluster on a busy machine, then the slowest death.
CEILING = 240.0


class Expected(NamedTuple):
    """What is to be seen of a death.

    Attributes
    ----------
    state : str
    error : str
        The type of the exception.
    reason : str
        A pattern.
    ran : bool
        Whether the job's own words are to be in the log.
    said : str
        What else is to be in the log's tail.
    """

    state: str
    error: str
    reason: str
    ran: bool = True
    said: str = ""


CANCELLED = Expected("CANCELLED", "JobCancelled", r"^It was cancelled")
UNSTARTED = CANCELLED._replace(ran=False)
KILLED = Expected("DIED", "JobDied", r"SIGKILL|signal 9|killed")
EXPECTED: dict[str, Expected | dict[str, Expected]] = {
    "scancel_pending": {
        "": UNSTARTED,
        # Nobody knows any more: this is all that can be said.
        "purged": Expected("LOST", "JobLost", r"no longer knows the job, which never started", ran=False),
    },
    "scancel_running": {
        "": CANCELLED,
        "purged": Expected("CANCELLED", "JobCancelled", r"SIGTERM \(15\)\. The platform no longer tells why"),
    },
    "scancel_array_task_pending": UNSTARTED,
    "scancel_array_task_running": {
        "": CANCELLED,
        "purged": Expected("CANCELLED", "JobCancelled", r"It was ended by SIGTERM \(15\)|It was cancelled"),
    },
    "cancel_pending": UNSTARTED,
    "cancel_running": CANCELLED,
    "exit_code": Expected("DIED", "JobDied", r"exit code 9 before it could say"),
    "payload_killed": KILLED,
    "one_rank_killed": KILLED,
    "payload_crashes": Expected("DIED", "JobDied", r"SIGSEGV \(11\)"),
    "supervisor_killed": KILLED,
    "shell_killed": {"": KILLED, "local": Expected("DIED", "JobDied", r"runner on this machine has ended|was killed")},
    "workers_lose_supervisor": KILLED,
    "workers_lose_shell": {
        "": KILLED,
        "local": Expected("DIED", "JobDied", r"runner on this machine has ended|killed"),
    },
    "no_interpreter": Expected("LAUNCH_FAILED", "LaunchFailed", r"/nowhere/bin/python", ran=False),
    "interpreter_that_is_none": Expected("LAUNCH_FAILED", "LaunchFailed", r"exit code 1", ran=False),
    "missing_module": Expected("LAUNCH_FAILED", "LaunchFailed", r"No module named 'only_on_the_head' on ", ran=False),
    "setup_fails": Expected("LAUNCH_FAILED", "LaunchFailed", r"setup line.*exit code 3", ran=False, said="setting up"),
    "refused": Expected("LAUNCH_FAILED", "LaunchFailed", r"nowhere.*Known: debug, gpu", ran=False),
    "out_of_memory": Expected("OUT_OF_MEMORY", "JobOutOfMemory", r"memory"),
    "time_limit": Expected("TIMED_OUT", "JobTimedOut", r"time (limit|was over)"),
    "held": UNSTARTED,
    "result_does_not_pickle": Expected("RESULT_FAILED", "ResultFailed", r"result\['inner'\]\[0\]: _thread.lock"),
    "result_does_not_fit": Expected("RESULT_FAILED", "ResultFailed", r"No space left on device"),
    "disk_is_full": Expected("DIED", "JobDied", r"The disk of the job's folder is full"),
    "outcome_is_torn": {"": KILLED, "local": Expected("DIED", "JobDied", r"runner.*has ended|ended by signal 9")},
    "launcher_killed": KILLED,
    "node_dies": {
        "": Expected("NODE_LOST", "NodeLost", r"A node of it \(gpu3\) went down"),
        "purged": Expected("DIED", "JobDied", r"Slurm no longer knows the job"),
    },
    "silence": Expected("SUCCEEDED", "", r"^$"),
    "queued_again": Expected("SUCCEEDED", "", r"^$"),
    "node_is_cut_off": Expected("SUCCEEDED", "", r"^$"),
    "controller_restarts": Expected("SUCCEEDED", "", r"^$"),
}
# What takes long is in the short run on one platform only.
LONG = {"time_limit": "on", "silence": "local"}


def _parameters() -> Iterator[Any]:
    for case, kinds in deaths.platforms().items():
        for kind in KINDS:
            if kind in kinds:
                marks = [] if kind == "local" else [pytest.mark.slurm]
                marks += [pytest.mark.full] if LONG.get(case, kind) != kind else []
                yield pytest.param(kind, case, id=f"{kind}-{case}", marks=marks)


class Run:
    """A kernel whose jobs die.

    Parameters
    ----------
    kind : str
        Which platform.
    share : Path
        A folder on it that the nodes have too.
    wanted : list of str
        Which deaths.
    """

    def __init__(self, kind: str, share: Path, wanted: list[str], cluster: SlurmCluster | None) -> None:
        folder = share / "kernel"
        folder.mkdir(mode=0o700)
        self._out = share / "seen.jsonl"
        self._log = share / "kernel.log"
        environ = {
            **os.environ,
            **(cluster.env if cluster else {}),
            "CLUSTERKERNEL_JOB_ROOT": str(folder / "jobs"),
            "CLUSTERKERNEL_LOCAL_DIR": str(share / "local"),
            "CLUSTERKERNEL_LOCAL_SLOTS": "40",
            "FAULTS_CASES": ",".join(wanted),
        }
        if kind == "purged":
            wrapper = Wrapper(share / "wrapper")
            for command in ("squeue", "scontrol", "sacct"):
                wrapper.set(command, "forget")
            environ["PATH"] = wrapper.path
        argv = [sys.executable, str(Path(deaths.__file__)), kind, str(folder), str(self._out)]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                argv + ([str(cluster.folder)] if cluster else []), env=environ, cwd=ROOT, stdout=log, stderr=log
            )

    def seen(self, case: str) -> dict[str, Any]:
        """What became of a job, once it is known."""
        deadline = time.monotonic() + CEILING
        while True:
            over = self._process.poll() is not None
            lines = self._out.read_text().splitlines() if self._out.exists() else []
            for seen in map(json.loads, lines):
                if seen["case"] == case:
                    return dict(seen)
            assert not over, f"the kernel ended: {self._log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"{case} is not over after {CEILING:g} s"
            time.sleep(0.1)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest,
    slurm_module: Callable[..., SlurmCluster],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Run]]:
    """The kernels, one for each platform that a test asks for."""
    wanted: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module and hasattr(item, "callspec"):
            wanted.setdefault(item.callspec.params["kind"], []).append(item.callspec.params["case"])
    found: dict[str, Run] = {}
    mounts: list[Path] = []

    def small_disk(folder: Path) -> None:
        place = folder / "shared" / deaths.SMALL_DISK
        place.mkdir(parents=True)
        if os.geteuid() == 0:
            size = f"size={deaths.SMALL_DISK_MIB}m,mode=700"
            subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(place)], check=True)
            mounts.append(place)

    try:
        for kind in KINDS:
            cases = wanted.get(kind)
            if not cases:
                continue
            if kind == "local":
                folder, cluster = tmp_path_factory.mktemp("deaths"), None
                small_disk(folder)
            else:
                cluster = slurm_module(prepare=small_disk, accounting=kind == "on")
                folder = cluster.folder
            found[kind] = Run(kind, folder / "shared", cases, cluster)
        yield found
    finally:
        for run in found.values():
            run.close()
        for place in mounts:
            subprocess.run(["umount", "-l", str(place)], check=False)


@pytest.mark.xdist_group("deaths")
@pytest.mark.parametrize(("kind", "case"), list(_parameters()))
def test_the_truth_is_known_soon(
    runs: dict[str, Run], kind: str, case: str, record_property: Callable[[str, object], None]
) -> None:
    if case == "result_does_not_fit" and kind == "local" and os.geteuid() != 0:
        pytest.skip("a small disk can be mounted by root only")
    seen = runs[kind].seen(case)
    if seen.get("skipped"):
        pytest.skip(seen["skipped"])
    assert "failure" not in seen, seen["traceback"]
    expected = EXPECTED[case]
    if isinstance(expected, dict):
        expected = expected.get(kind, expected[""])
    assert (seen["state"], seen["error"] or "") == (expected.state, expected.error), seen
    assert re.search(expected.reason, seen["reason"]), seen["reason"]
    assert not seen["left"], "something of it trains on"
    if expected.error:
        assert seen["reason"] in seen["message"]
        assert ("last words" in seen["tail"]) == expected.ran, seen["tail"]
        assert expected.said in seen["tail"]
    _judge_notes(case, seen["notes"])
    if seen["seconds"] is not None:
        record_property(MEASURED, (case, kind, seen["seconds"]))
        # Where much more wants to run than there are cores, some of the seconds are the machine's.
        assert seen["seconds"] <= (SOON if seen["load"] < 3 * (os.cpu_count() or 1) else 2 * SOON)


def _judge_notes(case: str, notes: dict[str, Any]) -> None:
    if case == "held":
        assert notes == {"said": "Held by its owner; scontrol release lets it go."}
    if case == "silence":
        assert notes == {"state": "RUNNING"}, "silence is no end"
    if case == "node_dies":
        assert notes == {"ran on": True}, "the job's processes outlived their node's daemon: the test is a real one"
    if case == "scancel_array_task_running":
        assert notes == {"others": ["RUNNING", "RUNNING"]}
    if case == "queued_again":
        assert notes == {"value": 1, "ends": 1}, "the first attempt's end was not taken for the job's"
    if case == "node_is_cut_off":
        assert notes == {"value": 1}, "the second attempt's value"
    if case == "controller_restarts":
        assert notes["during"] == ["SUCCEEDED", "RUNNING", "HELD"]
        assert notes["values"] == ["ends", "runs", "queued"]
        assert notes["ends"] == 3, "each end is told once"
