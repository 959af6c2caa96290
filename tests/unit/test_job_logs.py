"""The output of the attempt and of the rank that a person looks for."""

from __future__ import annotations

import os

import pytest

import clusterkernel as ck
from clusterkernel import jobview, render
from clusterkernel.errors import JobFailed
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
