"""Two kernels and a third process look at the same jobs at once, and say the same of each."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterkernel import submission
from tests.backends.platforms import Platform
from tests.kernel.conftest import REPOSITORY, Kernel
from tests.unit.making import CEILING

from .plain import MARK, PlainKernel, held, ran, release

# What a process says of each job: its state, why, what the platform calls it, and what it saved.
WORDS = "{v.id: (str(v.state), v.reason, v.platform_id, sorted(v.outputs)) for v in submission.summaries(settle=5.0)}"
Said = dict[str, tuple[str, str, str, list[str]]]
PYTHONPATH = {"PYTHONPATH": str(REPOSITORY)}
JOBS = f"""
{MARK}
import os
import clusterkernel as ck
ex = ck.Executor(backend, **fields)
ex.submit(work, folder, "good", 1)
ex.submit(work, folder, "bad", "raise")
ex.submit(lambda: (work(folder, "dies"), os._exit(9)))
ex.submit(work, folder, "cancelled")
ex.submit(work, folder, "goes on", 5)
array = ex.map_jobs(lambda n: work(folder, f"task{{n}}", n), range(2))
"""


def third(**env: str) -> Said:
    """What a process says that starts now."""
    code = f"from clusterkernel import submission\nprint({WORDS})"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, **PYTHONPATH, **env},
    )  # fmt: skip
    said: Said = ast.literal_eval(done.stdout)
    return said


def agree(kernels: list[Kernel], wanted: Callable[[Said], bool]) -> Said:
    """Wait until all say the same, and it is as wanted; the process of this test is one of them."""
    deadline = time.monotonic() + CEILING
    while True:
        said: list[Any] = [kernel.value(WORDS) for kernel in kernels]
        said += [third(), eval(WORDS, {"submission": submission})]
        if all(one == said[0] for one in said) and wanted(said[0]):
            agreed: Said = said[0]
            return agreed
        assert time.monotonic() < deadline, said


def states_are(**ends: str) -> Callable[[Said], bool]:
    return lambda said: {job: said[job[1:]][0] for job in ends} == ends


def test_all_say_the_same(platform: Platform, plain_kernel: Callable[..., PlainKernel], tmp_path: Path) -> None:
    folder = platform.shared
    kernels = [Kernel({**os.environ, **PYTHONPATH}, folder) for _ in range(2)]
    try:
        one, two = kernels
        for kernel in kernels:
            kernel.good("%load_ext clusterkernel")
            kernel.good("from clusterkernel import submission")
        one.good(f"folder, backend, fields = {str(folder)!r}, {platform.backend!r}, {platform.fields!r}\n{JOBS}")
        agree(kernels, lambda said: [*said] == [*"123456"])

        release(folder, "good", "bad", "dies", "task0")
        two.good("%cluster_cancel 4")
        ends = {"_1": "SUCCEEDED", "_2": "FAILED", "_3": "DIED", "_4": "CANCELLED", "_5": "RUNNING", "_6": "RUNNING"}
        agree(kernels, states_are(**ends))

        # A kernel that goes, and one that comes, change nothing.
        one.kill()
        kernels.remove(one)
        late = plain_kernel(
            f"said = {WORDS}\nsay([said[job][0] for job in said])", **held(folder, platform.backend, platform.fields)
        )
        assert ast.literal_eval(late.line()) == list(ends.values())
        release(folder, "goes on", "task1")
        agree(kernels, states_are(**{**ends, "_5": "SUCCEEDED", "_6": "SUCCEEDED"}))
        assert all(ran(folder, name) == 1 for name in ("good", "bad", "dies", "goes on", "task0", "task1"))
        assert ran(folder, "cancelled") <= 1
        assert third(CLUSTERKERNEL_LOCAL_DIR=str(tmp_path / "another host's")) == third(), "from the folders alone"
    finally:
        for kernel in kernels:
            kernel.close()
