"""Two kernels and a third process look at the same jobs at once, and say the same of each."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkernel import submission
from tests.backends.platforms import Platform
from tests.kernel.conftest import REPOSITORY, Kernel
from tests.unit.making import CEILING

from .plain import MARK, PlainKernel, held, ran, release

STATES = "{view.id: str(view.state) for view in __import__('clusterkernel').submission.summaries(settle=5.0)}"
# What each process says; the reason too, since it is what people read.
THIRD = """
import json
from clusterkernel import submission
print({v.id: (str(v.state), v.reason, v.platform_id, sorted(v.outputs)) for v in submission.summaries(settle=5.0)})
"""
WORDS = "{v.id: (str(v.state), v.reason, v.platform_id, sorted(v.outputs)) for v in submission.summaries(settle=5.0)}"


def third() -> dict[str, object]:
    """What a process that starts now says."""
    done = subprocess.run(
        [sys.executable, "-c", THIRD], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )  # fmt: skip
    said: dict[str, object] = ast.literal_eval(done.stdout)
    return said


@pytest.mark.timeout(300)
def test_all_say_the_same(
    platform: Platform, plain_kernel: Callable[..., PlainKernel], tmp_path: Path, own_folders: Path
) -> None:
    folder, env = platform.shared, held(platform.shared, platform.backend, platform.fields)
    path = {"PYTHONPATH": str(REPOSITORY)}
    kernels = [Kernel({**os.environ, **path}, folder) for _ in range(2)]
    try:
        for kernel in kernels:
            kernel.good("%load_ext clusterkernel\nfrom clusterkernel import submission")
        one, two = kernels
        one.good(MARK + f"folder = {str(folder)!r}\nimport clusterkernel as ck")
        one.good(f"ex = ck.Executor({platform.backend!r}, **{platform.fields!r})")
        names = ["good", "bad", "dies", "cancelled", "goes on"]
        for name in names:
            value = {"bad": "'raise'", "dies": "'raise'"}.get(name, "1")
            one.good(f"ex.submit(work, folder, {name!r}, {value})" if name != "dies" else
                     "ex.submit(lambda: (work(folder, 'dies', 1), __import__('os')._exit(9)))")  # fmt: skip
        one.good("array = ex.map_jobs(lambda n: work(folder, f'task{n}', n), range(2))")
        third_kernel = plain_kernel("ids = [v.id for v in submission.summaries()]\nsay(*ids)", **env)
        assert third_kernel.line().split() == ["1", "2", "3", "4", "5", "6"]
        _agree(kernels, lambda said: all(state in ("QUEUED", "RUNNING", "STARTING") for state, *_ in said.values()))

        release(folder, "good", "bad", "dies", "task0")
        two.good("%cluster_cancel 4")
        ends = {"1": "SUCCEEDED", "2": "FAILED", "3": "DIED", "4": "CANCELLED", "5": "RUNNING"}
        said = _agree(kernels, lambda said: {job: said[job][0] for job in ends} == ends)
        assert said["6"][0] in ("RUNNING", "STARTING", "QUEUED"), "one of its tasks"

        one.kill()
        kernels.remove(one)
        release(folder, "goes on", "task1")
        ends |= {"5": "SUCCEEDED", "6": "SUCCEEDED"}
        _agree(kernels, lambda said: {job: said[job][0] for job in ends} == ends)
        assert all(ran(folder, name) == 1 for name in ("good", "bad", "dies", "goes on", "task0", "task1"))
        assert ran(folder, "cancelled") <= 1
        # From the folders alone, with a ledger of its own.
        fresh = subprocess.run(
            [sys.executable, "-c", THIRD], capture_output=True, text=True, check=True,
            env={**os.environ, **path, "CLUSTERKERNEL_LOCAL_DIR": str(tmp_path / "other host's")},
        )  # fmt: skip
        assert ast.literal_eval(fresh.stdout) == third()
    finally:
        for kernel in kernels:
            kernel.close()


def _agree(kernels: list[Kernel], wanted: Callable[[dict[str, tuple[str, str, str, list[str]]]], bool]) -> dict[str, tuple[str, str, str, list[str]]]:  # fmt: skip
    """Wait until all say the same, and that it is as wanted; a test process is the fourth."""
    deadline = time.monotonic() + CEILING
    while True:
        said = [kernel.value(WORDS) for kernel in kernels]
        said.append(third())
        said.append(eval(WORDS, {"submission": submission}))
        if all(one == said[0] for one in said) and wanted(said[0]):
            return said[0]
        assert time.monotonic() < deadline, said
