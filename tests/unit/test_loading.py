"""Results whose files a shared file system shows later than the outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import clusterkernel as ck
from clusterkernel import loading
from clusterkernel.errors import ResultFailed
from clusterkernel.jobs import Job


def two() -> int:
    return 2


def clock(now: Callable[[], float], sleep: Callable[[float], None]) -> SimpleNamespace:
    """What `loading` has for the module `time`."""
    return SimpleNamespace(time=now, monotonic=time.monotonic, sleep=sleep)


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Hides a file until it has been looked for."""

    def hidden(path: Path) -> None:
        away = path.with_name("away")
        os.rename(path, away)
        monkeypatch.setattr(loading, "time", clock(time.time, lambda _: os.rename(away, path)))

    return hidden


@pytest.fixture
def job(own_folders: Path) -> Job:
    job = ck.Executor("local").submit(two)
    job.wait(60)
    return job


def test_a_result_that_is_late_is_waited_for(job: Job, hide: Callable[[Path], None]) -> None:
    hide(job.out(0) / "result.pkl")
    assert job.result() == 2


def test_the_results_of_ranks_that_are_late_are_waited_for(job: Job, hide: Callable[[Path], None]) -> None:
    hide(job.out(0) / "result.pkl")
    assert job.results() == [2]


def test_a_result_that_is_gone_is_not_waited_for_long_after_the_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    (job.out(0) / "result.pkl").unlink()
    ended = job.truth.ended
    assert ended is not None
    now = ended + loading._LATE + 1
    monkeypatch.setattr(loading, "time", clock(lambda: now, lambda _: pytest.fail("it waits")))
    with pytest.raises(ResultFailed, match="There is no result"):
        job.result()
