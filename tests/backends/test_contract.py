"""What every backend must do, run over each of them.

On the strict cluster the suite runs once more, as the ordinary user that it
belongs to: see `test_contract_strict`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import pickle
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import errors, lookup, submission
from clusterkernel.states import JobState
from tests.unit.making import until

from . import platforms

LIMIT = 60.0

PLATFORMS = ["local", "modal", pytest.param("slurm", marks=pytest.mark.slurm)]
if os.environ.get("CLUSTERKERNEL_TEST_PLATFORM"):  # inside test_contract_strict
    PLATFORMS = ["given"]


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> platforms.Platform:
    name = f"{re.sub(r'[^a-z0-9]+', '-', request.node.name)}-{os.getpid()}"
    if request.param == "local":
        return platforms.local(monkeypatch, tmp_path)
    if request.param == "modal":
        request.getfixturevalue("modal_server")
        return platforms.modal(monkeypatch, tmp_path)
    if request.param == "given":
        # The environment of the strict cluster's user: SLURM_CONF and a folder on the late share.
        env = {"SLURM_CONF": os.environ["CLUSTERKERNEL_TEST_SLURM_CONF"]}
        shared = Path(os.environ["CLUSTERKERNEL_TEST_PLATFORM"])
        return platforms.slurm(env, shared / name, monkeypatch, account="research")
    cluster = request.getfixturevalue("slurm_cluster")
    return platforms.slurm(cluster.env, Path(cluster.shared) / name, monkeypatch)


# -- results --------------------------------------------------------------------


def test_a_call_returns_its_value(platform: platforms.Platform) -> None:
    job = platform.executor().submit(pow, 2, 10)
    assert job.result(LIMIT) == 1024
    assert job.state is JobState.SUCCEEDED
    assert job.exception() is None
    assert job.done()
    assert not job.running()
    assert job.platform_id
    assert job.script.startswith(platform.script)


def test_keywords_closures_and_large_values_arrive(platform: platforms.Platform) -> None:
    base = {"a": bytes(3_000_000)}

    def call(*, offset: int) -> dict[str, Any]:
        return {"size": len(base["a"]) + offset, "back": base["a"][:2_000_000]}

    value = platform.executor().submit(call, offset=1).result(LIMIT)
    assert value["size"] == 3_000_001
    assert len(value["back"]) == 2_000_000


class Mistake(ValueError):
    def __init__(self, code: int) -> None:
        super().__init__(f"mistake {code}")
        self.code = code


def test_the_users_exception_comes_back_as_itself(platform: platforms.Platform) -> None:
    def fail() -> None:
        print("before the end")
        raise Mistake(7)

    job = platform.executor().submit(fail)
    with pytest.raises(Mistake, match="mistake 7") as caught:
        job.result(LIMIT)
    assert caught.value.code == 7
    assert job.state is JobState.FAILED
    cause = caught.value.__cause__
    assert isinstance(cause, errors.JobFailed)
    assert "raise Mistake(7)" in cause.remote_traceback
    assert "clusterkernel" not in cause.remote_traceback.replace(__file__, "")
    assert "before the end" in job.logs()


def test_an_exit_code_is_a_failure(platform: platforms.Platform) -> None:
    job = platform.executor().submit(sys.exit, 3)
    with pytest.raises(BaseException, match="3"):
        job.result(LIMIT)
    assert job.state is JobState.FAILED


def test_a_result_that_will_not_pickle_is_named(platform: platforms.Platform) -> None:
    def lock() -> dict[str, Any]:
        import threading

        return {"inner": [threading.Lock()]}

    job = platform.executor().submit(lock)
    with pytest.raises(errors.ResultFailed, match="lock"):
        job.result(LIMIT)
    assert job.state is JobState.RESULT_FAILED


def test_both_streams_and_the_job_s_environment(platform: platforms.Platform) -> None:
    def speak() -> tuple[str, str]:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        return os.getcwd(), os.environ["GREETING"]

    executor = platform.executor(env={"GREETING": 'it\'s $HOME; `x` "q"'})
    job = executor.submit(speak)
    folder, greeting = job.result(LIMIT)
    assert Path(folder).resolve() == Path.cwd().resolve()
    assert greeting == 'it\'s $HOME; `x` "q"'
    assert job.logs(stream="stdout") == "to stdout"
    assert job.logs(stream="stderr") == "to stderr"
    assert set(job.logs().splitlines()) == {"to stdout", "to stderr"}


# -- arrays ---------------------------------------------------------------------


def test_an_array_keeps_the_order_and_each_its_error(platform: platforms.Platform) -> None:
    def inverse(x: int) -> float:
        return 1 / x

    jobs = platform.executor().map_jobs(inverse, [1, 2, 0, 4])
    assert jobs.wait(LIMIT) is JobState.FAILED
    assert [job.id for job in jobs] == [f"{jobs.id}_{task}" for task in range(4)]
    assert [job.result(0) for job in jobs if job is not jobs[2]] == [1, 0.5, 0.25]
    with pytest.raises(ZeroDivisionError):
        jobs[2].result(0)
    with pytest.raises(ZeroDivisionError):
        jobs.results()
    assert list(jobs.frame()["state"]) == ["SUCCEEDED", "SUCCEEDED", "FAILED", "SUCCEEDED"]


def test_map_is_that_of_the_standard_library(platform: platforms.Platform) -> None:
    executor = platform.executor()
    assert list(executor.map(pow, [2, 3, 4], [3, 2, 1], chunksize=2)) == [8, 9, 4]
    assert list(executor.map(pow, [], [])) == []


def test_an_array_is_throttled(platform: platforms.Platform) -> None:
    marks = platform.shared / "marks"
    marks.mkdir()

    def count(task: int) -> int:
        import time

        (marks / str(task)).touch()
        time.sleep(0.3)
        running = len(list(marks.iterdir()))
        (marks / str(task)).unlink()
        return running

    assert max(platform.executor(parallelism=1).map_jobs(count, range(3)).results(LIMIT)) == 1


# -- the end by force -----------------------------------------------------------


def _started(job: ck.Job) -> None:
    """Wait until its code runs, which it says by a first line."""
    for _ in job.follow():
        return


def test_cancel_ends_it_and_says_so(platform: platforms.Platform) -> None:
    def wait() -> None:
        import time

        print("here", flush=True)
        time.sleep(600)

    job = platform.executor().submit(wait)
    _started(job)
    assert job.cancel() is True
    with pytest.raises(errors.JobCancelled):
        job.result(LIMIT)
    with pytest.raises(concurrent.futures.CancelledError):
        job.result(0)
    assert job.state is JobState.CANCELLED
    assert job.cancel() is False


def test_one_task_of_an_array_is_cancelled(platform: platforms.Platform) -> None:
    stop = platform.shared / "stop"

    def wait(task: int) -> int:
        import time

        print("here", flush=True)
        while not stop.exists():
            time.sleep(0.05)
        return task

    jobs = platform.executor().map_jobs(wait, range(2))
    for job in jobs:
        _started(job)
    assert jobs[1].cancel()
    assert isinstance(jobs[1].exception(LIMIT), errors.JobCancelled)
    assert jobs[0].state is JobState.RUNNING
    stop.touch()
    assert jobs[0].result(LIMIT) == 0


def test_a_killed_process_is_seen(platform: platforms.Platform) -> None:
    def die() -> None:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    job = platform.executor().submit(die)
    error = job.exception(LIMIT)
    assert isinstance(error, errors.JobDied)
    assert "SIGKILL" in str(error)
    assert "last words" in error.log_tail


def test_an_exit_behind_python_s_back_is_seen(platform: platforms.Platform) -> None:
    job = platform.executor().submit(os._exit, 9)
    error = job.exception(LIMIT)
    assert isinstance(error, errors.JobDied)
    assert "9" in str(error)


# -- commands -------------------------------------------------------------------


def test_a_command_runs_without_a_shell(platform: platforms.Platform) -> None:
    job = platform.executor().run(["printf", "%s\\n", "$HOME; rm -rf /", "it's"])
    assert job.result(LIMIT) is None
    assert job.logs() == "$HOME; rm -rf /\nit's"


@pytest.mark.parametrize(
    ("argv", "state"),
    [
        (["sh", "-c", "exit 5"], JobState.FAILED),
        (["no-such-command-here"], JobState.LAUNCH_FAILED),
        (["sh", "-c", "kill -9 $$"], JobState.DIED),
    ],
)
def test_how_a_command_ended(platform: platforms.Platform, argv: list[str], state: JobState) -> None:
    job = platform.executor().run(argv)
    assert job.wait(LIMIT) is state


def test_ranks_have_their_own_results(platform: platforms.Platform) -> None:
    def rank() -> tuple[int, int]:
        return int(os.environ["CLUSTERKERNEL_RANK"]), int(os.environ["CLUSTERKERNEL_WORLD"])

    job = platform.executor(tasks_per_node=3).submit(rank)
    assert job.result(LIMIT) == (0, 3)
    assert job.results() == [(0, 3), (1, 3), (2, 3)]


def test_one_rank_that_fails_ends_the_others(platform: platforms.Platform) -> None:
    def fail() -> None:
        import time

        if os.environ["CLUSTERKERNEL_RANK"] == "1":
            raise Mistake(1)
        time.sleep(600)

    job = platform.executor(tasks_per_node=2).submit(fail)
    assert isinstance(job.exception(LIMIT), Mistake)


# -- metrics --------------------------------------------------------------------


def test_metrics_come_while_it_runs(platform: platforms.Platform) -> None:
    go = platform.shared / "go"

    def train() -> str:
        import time

        import clusterkernel as ck

        for step in range(3):
            ck.log(step=step, loss=1.0 / (step + 1))
        ck.progress(3, 10)
        print("logged", flush=True)
        while not go.exists():
            time.sleep(0.05)
        return "done"

    job = platform.executor().submit(train)
    _started(job)
    until(lambda: job.state is JobState.RUNNING and len(job.metrics()) == 3)  # a cloud brings each by itself
    frame = job.metrics()
    assert list(frame["step"]) == [0, 1, 2]
    assert list(frame["loss"]) == [1.0, 0.5, pytest.approx(1 / 3)]
    assert str(frame["time"].dtype) == "datetime64[ns, UTC]"
    assert job.progress() == (3.0, 10.0)
    go.touch()
    assert job.result(LIMIT) == "done"


def test_usage_is_sampled(platform: platforms.Platform) -> None:
    def burn() -> int:
        # Until a sample has seen it.
        import json
        import os
        from pathlib import Path

        block = bytearray(80_000_000)
        samples = Path(os.environ["CLUSTERKERNEL_OUT"]) / "usage.jsonl"
        while not any(json.loads(line)["rss_mib"] > 80 for line in samples.read_text().splitlines()):
            for place in range(0, len(block), 4096):
                block[place] = 1
        return len(block)

    job = platform.executor().submit(burn)
    job.result(LIMIT)
    usage = job.usage()
    assert usage["memory_mib"].max() > 80
    assert usage["cpu_percent"].max() > 0  # however little of the machine other tests leave it


# -- the future's contract ------------------------------------------------------


def test_an_abandoned_wait_cancels_nothing(platform: platforms.Platform) -> None:
    go = platform.shared / "go"

    def wait() -> int:
        import time

        print("here", flush=True)
        while not go.exists():
            time.sleep(0.05)
        return 5

    job = platform.executor().submit(wait)
    _started(job)
    with pytest.raises(concurrent.futures.TimeoutError):
        job.result(0.1)

    async def impatient() -> None:
        async def wait_for_it() -> Any:
            return await job

        await asyncio.wait_for(wait_for_it(), 0.1)

    with pytest.raises((asyncio.TimeoutError, concurrent.futures.TimeoutError)):
        asyncio.run(impatient())
    with pytest.raises((asyncio.TimeoutError, concurrent.futures.TimeoutError)):
        next(concurrent.futures.as_completed([job], timeout=0.1))
    assert job.state is JobState.RUNNING
    go.touch()

    async def patient() -> Any:
        return await job

    assert asyncio.run(patient()) == 5
    assert next(concurrent.futures.as_completed([job], timeout=1)) is job


def test_a_job_pickles_as_its_id_and_is_one_object(platform: platforms.Platform) -> None:
    job = platform.executor().submit(int)
    assert pickle.loads(pickle.dumps(job)) is job
    assert lookup.job(job.id) is job
    assert job.result(LIMIT) == 0
    assert lookup.job(f"{platform.backend}:{job.platform_id}") is job
    assert [view.id for view in submission.summaries()] == [job.id]


def test_leaving_the_executor_waits(platform: platforms.Platform) -> None:
    with platform.executor() as executor:
        job = executor.submit(str, 5)
    assert job.done()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(str, 5)


def test_a_rerun_changes_what_is_named(platform: platforms.Platform) -> None:
    def call(*, lr: float, steps: int = 1) -> tuple[float, int, str | None]:
        return lr, steps, os.environ.get("NEW")

    job = platform.executor().submit(call, lr=0.1)
    assert job.result(LIMIT) == (0.1, 1, None)
    again = job.rerun({"lr": 0.5}, env={"NEW": "yes"})
    assert again.result(LIMIT) == (0.5, 1, "yes")
    assert again.id != job.id
    with pytest.raises(errors.PayloadError, match="lr"):
        job.rerun({"lrr": 1})


def test_a_rerun_of_one_task_runs_that_task_alone(platform: platforms.Platform) -> None:
    def square(x: int) -> int:
        return x * x

    jobs = platform.executor().map_jobs(square, [2, 3, 4])
    assert jobs.results(LIMIT) == [4, 9, 16]
    assert jobs.labels == ["2", "3", "4"]
    again = jobs[1].rerun()
    assert again.result(LIMIT) == 9
    assert again.array is not None
    assert len(again.array) == 1


def test_a_call_that_cannot_work_is_refused_before_it_is_sent(platform: platforms.Platform) -> None:
    def call(x: int) -> int:
        return x

    with pytest.raises(errors.PayloadError, match="missing a required argument: 'x'"):
        platform.executor().submit(call)
    assert submission.summaries() == []


def test_an_array_can_be_awaited(platform: platforms.Platform) -> None:
    async def wait() -> Any:
        return await platform.executor().map_jobs(abs, [-1, -2])

    assert asyncio.run(wait()) == [1, 2]


def test_files_are_taken_along_as_they_were(platform: platforms.Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = platform.shared / "notebook"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a, b.csv").write_text("before")
    monkeypatch.chdir(folder)
    ex = platform.executor(files=["data"], workdir=str(folder))
    job = ex.run(["sh", "-c", 'cat "$CLUSTERKERNEL_FILES/data/a, b.csv"'])
    (folder / "data" / "a, b.csv").write_text("after")
    job.result(LIMIT)
    assert job.logs() == "before"
    where = Path(ex.submit(os.getenv, "CLUSTERKERNEL_FILES").result(LIMIT))
    assert where == job.folder.path.parent / "2/payload/files" if platform.own_folder else where.name == "files"
    assert not platform.executor().submit(os.getenv, "CLUSTERKERNEL_FILES").result(LIMIT)
