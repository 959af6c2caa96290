"""Waiting for a job and giving it up: the wait ends, the job goes on, and a person learns how to end it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import submission
from clusterkernel.states import JobState
from tests.backends.platforms import Platform
from tests.kernel.conftest import Kernel, gate
from tests.unit.making import until

from .plain import MARK, PlainKernel, held, ran, release

LIMIT = 60.0
WAITS = {
    "result": "job.result()",
    "result with a limit": "job.result(100)",
    "exception": "job.exception()",
    "wait": "job.wait()",
    "results": "job.results()",
    "follow": "list(job.follow())",
    "array.wait": "array.wait()",
    "array.results": "array.results()",
    "map": "list(ex.map(work, *zip(*[(folder, 'mapped', 1)])))",
    "leaving": "with executor() as leaving:\n        leaving.submit(work, folder, 'left', 5)",
}
# A thread that sees the main one within a wait of ours, or its loop at rest, and then sends the signal.
INTERRUPT_WHEN_IT_WAITS = """
import os, signal, sys, threading, time

def _stack():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame:
        yield frame.f_code.co_filename, frame.f_code.co_name
        frame = frame.f_back

def _interrupt(over):
    while not over.is_set():
        stack = list(_stack())
        # A thread that is being started is waited for too, for a moment: that is no wait of ours.
        waits = [name for name, what in stack if what in ("_await_end", "wait")]
        ours = any("clusterkernel/" in name and name.endswith(("jobs.py", "arrays.py")) for name in waits)
        if stack[0][1] in ("wait", "select") and (ours or stack[0][1] == "select"):
            # Ctrl-C at a terminal goes to the whole process group: to us and to all that we started.
            os.killpg(0, signal.SIGINT)
            # Python drops one that comes within a destructor or a weak reference's callback: a person tries again.
            over.wait(10)
        time.sleep(0.01)

def interrupt_soon():
    global _over, _sender
    _over = threading.Event()
    _sender = threading.Thread(target=_interrupt, args=(_over,), daemon=True)
    _sender.start()

def interrupted():
    # One that is left over would interrupt what comes behind the wait.
    _over.set()
    _sender.join()
"""
_INTERRUPTED = f"""
{INTERRUPT_WHEN_IT_WAITS}
WAITS = {WAITS!r}
job = executor().submit(work, folder, "job", 5)
ex = executor()
array = ex.map_jobs(lambda n: work(folder, f"task{{n}}", n), range(2))
for name, code in WAITS.items():
    interrupt_soon()
    try:
        exec(f"if True:\\n    {{code}}")
    except KeyboardInterrupt as stopped:
        interrupted()
        say(name, "stopped:", stopped)
    else:
        say(name, "ended")
"""


@pytest.mark.timeout(300)
def test_an_interrupt_stops_the_wait_and_nothing_else(
    platform: Platform, plain_kernel: Callable[..., PlainKernel]
) -> None:
    """While jobs wait, are on their way and run: only the first of the submissions is sure to have got through."""
    folder = platform.shared
    kernel = plain_kernel(_INTERRUPTED, **held(folder, platform.backend, platform.fields))
    for name in WAITS:
        number = "2" if "array" in name else {"map": "3_0", "leaving": "4"}.get(name, "1")
        assert kernel.line() == f"{name} stopped: Job {number} goes on. %cluster_cancel {number} ends it."
    kernel.until("ready")
    release(folder, "job", "task0", "task1", "mapped", "left")
    assert ck.job("1").result(LIMIT) == 5
    assert ck.job("2").results(LIMIT) == [0, 1]
    assert ck.job("3").results(LIMIT) == [1]
    assert ck.job("4").result(LIMIT) == 5
    assert [ran(folder, name) for name in ("job", "task0", "task1", "mapped", "left")] == [1] * 5


@pytest.mark.parametrize("code", ["job.result()", "job.wait()", "array.results()", "await job", "await array"])
def test_an_interrupted_cell_stops_the_wait(kernel: Kernel, tmp_path: Path, code: str) -> None:
    wait, let_go = gate(tmp_path)
    inside = "".join(f"    {line}\n" for line in wait.splitlines())
    kernel.good(f"from clusterkernel import Executor\ndef work(n=1):\n{inside}    return n\nex = Executor('local')")
    kernel.good("job = ex.submit(work, 5)\narray = ex.map_jobs(work, range(2))")
    kernel.good(INTERRUPT_WHEN_IT_WAITS)
    ran = kernel.run(f"interrupt_soon()\n{code}")
    kernel.good("interrupted()")
    assert not ran.ok
    number = "2_0" if code == "await array" else "2" if "array" in code else "1"
    assert f"Job {number} goes on. %cluster_cancel {number} ends it." in ran.error
    let_go()
    assert kernel.value("(job.result(), array.results())") == (5, [0, 1])


# -- waits that are given up ------------------------------------------------------------------------------

Wait = Callable[[Any, ck.Executor], Coroutine[Any, Any, Any]]


async def by_wait_for(job: Any, _: ck.Executor) -> None:
    await asyncio.wait_for(job, 0.1)


async def by_wrapping(job: Any, _: ck.Executor) -> None:
    await asyncio.wait_for(asyncio.wrap_future(job), 0.1)


async def by_task(job: Any, _: ck.Executor) -> None:
    async def wait() -> Any:
        return await job

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.1)
    task.cancel()
    await task


async def by_gather(job: Any, _: ck.Executor) -> None:
    async def wait() -> Any:
        return await job

    async def fail() -> None:
        await asyncio.sleep(0.1)
        raise TimeoutError

    await asyncio.gather(wait(), wait(), fail())


async def by_run_in_executor(job: Any, executor: ck.Executor) -> None:
    folder = job.spec.environment.workdir
    namespace: dict[str, Any] = {}
    exec(MARK, namespace)
    await asyncio.wait_for(
        asyncio.get_running_loop().run_in_executor(executor, namespace["work"], folder, "in-executor", 6), 5.0
    )


ASYNC: list[Wait] = [by_wait_for, by_wrapping, by_task, by_gather, by_run_in_executor]


@pytest.fixture
def work() -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(MARK, namespace)
    function: Callable[..., Any] = namespace["work"]
    return function


def test_no_wait_that_is_given_up_cancels_anything(platform: Platform, work: Callable[..., Any]) -> None:
    folder = str(platform.shared)
    executor = platform.executor()
    job = executor.submit(work, folder, "job", 5)
    array = executor.map_jobs(lambda n: work(folder, f"task{n}", "raise" if n == 0 else n), range(3))
    until(lambda: ran(platform.shared, "job") and ran(platform.shared, "task2"), "the jobs to run")
    for wait in ASYNC:
        with pytest.raises((asyncio.TimeoutError, asyncio.CancelledError, TimeoutError)):
            asyncio.run(wait(job, executor))
    for one in (job, array[1]):
        with pytest.raises(concurrent.futures.TimeoutError):
            one.result(0.05)
        with pytest.raises((concurrent.futures.TimeoutError, TimeoutError)):
            list(concurrent.futures.as_completed([one, array[2]], timeout=0.05))
        assert concurrent.futures.wait([one], timeout=0.05).not_done == {one}
    with pytest.raises(concurrent.futures.TimeoutError):
        array.results(0.05)
    # One of a map fails: its siblings go on, as does what is left of an iterator that nobody has.
    release(platform.shared, "task0")
    mapped = executor.map(work, [folder] * 2, ["first", "second"], ["raise", 8])
    release(platform.shared, "first")
    with pytest.raises(LookupError):
        next(mapped)
    del mapped
    with contextlib.suppress(ZeroDivisionError), platform.executor() as inner:
        left = inner.submit(work, folder, "left", 9)
        inner.shutdown(wait=False)
        raise ZeroDivisionError
    ids = [job.id, array.id, left.id]
    del left, inner
    gc.collect()
    assert isinstance(array[0].exception(LIMIT), LookupError)
    assert job.state is JobState.RUNNING
    assert [one.state for one in array][1:] == [JobState.RUNNING] * 2
    assert not any(ck.job(number).folder.cancel_request() for number in [*ids, "3", "4"])
    release(platform.shared, "job", "task1", "task2", "second", "left", "in-executor")
    assert job.result(LIMIT) == 5
    assert [one.result(LIMIT) for one in array[1:]] == [1, 2]
    for number, value in (("3", 6), (ids[2], 9)):
        assert ck.job(number).result(LIMIT) == value
    assert ck.job("4")[1].result(LIMIT) == 8
    assert len(submission.summaries()) == 5
    assert all(ran(platform.shared, name) == 1 for name in ("job", "task1", "task2", "second", "left", "in-executor"))


def test_a_process_that_ends_leaves_its_jobs(platform: Platform, plain_kernel: Callable[..., PlainKernel]) -> None:
    """The ordinary end of an interpreter, with a pool of waiters and an open executor."""
    folder = platform.shared
    kernel = plain_kernel(
        "ex = executor()\njob = ex.submit(work, folder, 'job', 5)\n"
        "threading.Thread(target=job.result, daemon=True).start()\nsay('sent')\nsys.exit(0)",
        **held(folder, platform.backend, platform.fields),
    )
    kernel.until("sent")
    assert kernel.process.wait(LIMIT) == 0, "".join(kernel.errors)
    release(folder, "job")
    assert ck.job("1").result(LIMIT) == 5
    assert ran(folder, "job") == 1
    assert os.environ["CLUSTERKERNEL_JOB_ROOT"] in str(ck.job("1").folder.path)
