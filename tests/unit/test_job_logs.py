"""The output of the attempt and of the rank that a person looks for."""

from __future__ import annotations

import ast
import os
import time

import pytest

import clusterkernel as ck
from clusterkernel import jobview, render
from clusterkernel.errors import JobCancelled, JobFailed
from clusterkernel.truth import TaskTruth

CEILING = 60.0


def test_the_output_of_an_earlier_attempt() -> None:
    ex = ck.Executor("local", attempts=2)
    job = ex.run(["sh", "-c", 'echo try "$CLUSTERKERNEL_ATTEMPT"; [ "$CLUSTERKERNEL_ATTEMPT" = 1 ]'])
    job.result(CEILING)
    assert job.logs() == job.logs(attempt=1) == "try 1"
    assert job.logs(attempt=0) == "try 0"
    with pytest.raises(ck.ClusterKernelError, match=r"has no attempt 2\. It has 0 to 1\."):
        job.logs(attempt=2)


def test_no_output_is_promised_where_nothing_was_printed() -> None:
    silent = ck.Executor("local").run(["sh", "-c", "exit 3"]).exception(CEILING)
    assert isinstance(silent, JobFailed)
    assert silent.hint == ""
    loud = ck.Executor("local").run(["sh", "-c", "echo why; exit 3"])
    error = loud.exception(CEILING)
    assert isinstance(error, JobFailed)
    assert error.hint == f"%cluster_logs {loud.id} shows its output."


def test_metrics_are_told_by_their_weight() -> None:
    last = {"eval_runtime": 1.2, "eval_samples_per_second": 9, "step": 3, "learning_rate": 1e-4, "grad_norm": 2}
    line = repr({**last, "eval_accuracy": 0.9, "eval_loss": 0.5, "loss": 0.4})
    job = ck.Executor("local").submit(log_all, line)
    job.result(CEILING)
    names = ["loss", "eval_loss", "eval_accuracy", "learning_rate", "step", "grad_norm"]
    assert list(job.latest())[:6] == names
    assert set(list(job.latest())[6:]) == {"eval_runtime", "eval_samples_per_second"}


def log_all(line: str) -> None:
    ck.log(**ast.literal_eval(line))


def test_an_array_says_how_many_failed_and_why() -> None:
    array = ck.Executor("local").map_jobs(invert, [1, 0, 2, 0])
    assert array.wait(CEILING)
    assert array.summary().reason == f"2 of 4 failed: {array.id}_1: ZeroDivisionError: division by zero"
    table = ck.jobs()
    assert list(table.loc[table.id == array.id, "reason"]) == [array.summary().reason]


def invert(value: int) -> float:
    return 1 / value


def test_what_a_signal_raised_is_no_error_of_the_code() -> None:
    job = ck.Executor("local").submit(sleep_on)
    for text in job.follow():
        if "here" in text:
            job.cancel()
    error = job.exception(CEILING)
    assert isinstance(error, JobCancelled)
    assert error.remote_traceback == ""
    assert "Terminated" not in str(error)


def sleep_on() -> None:
    print("here", flush=True)
    time.sleep(1000)


def test_a_name_that_was_not_saved_is_one_line() -> None:
    job = ck.Executor("local").submit(invert, 1)
    job.result(CEILING)
    with pytest.raises(KeyError) as caught:
        job.outputs["nope"]
    assert isinstance(caught.value, ck.ClusterKernelError)
    assert caught.value._render_traceback_() == [f"UnknownOutputError: Job {job.id} saved no 'nope'."]


def fail(which: int) -> None:
    print("rank", os.environ["CLUSTERKERNEL_RANK"])
    if os.environ["CLUSTERKERNEL_RANK"] == str(which):
        raise ValueError("here")


@pytest.mark.parametrize(("which", "words"), [(2, "%cluster_logs {} --rank 2"), (0, "%cluster_logs {} shows")])
def test_the_rank_that_failed_is_named(which: int, words: str) -> None:
    job = ck.Executor("local", tasks_per_node=3).submit(fail, which)
    error = job.exception(CEILING)
    assert isinstance(error, ValueError)
    told = error.__cause__
    assert isinstance(told, JobFailed)
    assert words.format(job.id) in told.hint
    assert f"rank {which}" in told.log_tail
    view = job.summary()
    assert f"rank {which}" in view.tail
    assert words.format(job.id).removesuffix(" shows") in render.job_text(view)


def test_a_card_names_several_nodes() -> None:
    truth = TaskTruth(6)

    def start(rank: int, host: str) -> None:
        truth.records(rank, 0, [{"kind": "started", "host": host, "t": 1.0}], now=1.0)

    start(0, "c1")
    assert jobview._nodes(truth) == "c1"
    for rank, host in enumerate(("c1", "c2", "c3", "c4", "c5"), 1):
        start(rank, host)
    assert jobview._nodes(truth) == "c1, c2, c3, c4 and 1 more"
