"""More than Slurm takes at once: arrays past MaxArraySize, and more jobs than may be submitted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from tests.clusters.cluster import SlurmCluster

from .kernels import Place, until
from .scenes import Scenes

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("deaths")]
MOST = 6
SCENES = Scenes("limits")


@SCENES.scene(own={"accounting": False, "overrides": ("MaxArraySize=10",)})
def an_array_past_the_limit_stays_one(place: Place) -> None:
    kernel = place.kernel()
    kernel.do(
        """
def square(x):
    if x == 23:
        raise ValueError(x)
    return x * x, os.environ["CLUSTERKERNEL_JOB"]
ex = ck.Executor("slurm", time="5m", name="squares")
jobs = ex.map_jobs(square, range(25))
"""
    )
    assert kernel.do("str(jobs.wait(120))") == "FAILED"
    assert kernel.do("[job.id for job in jobs]") == [f"1_{i}" for i in range(25)]
    assert kernel.do("[job.result(0) for job in jobs if job.id != '1_23']") == [
        [i * i, f"1_{i}"] for i in range(25) if i != 23
    ]
    assert kernel.do("type(jobs[23].exception(0)).__name__") == "ValueError"
    assert kernel.do("[(first, count) for _, first, count in jobs.folder.submission().platform_ids]") == [
        [0, 10],
        [10, 10],
        [20, 5],
    ]
    assert kernel.do("len(jobs.frame())") == 25
    third = kernel.do("jobs.folder.submission().platform_ids[2][0]")
    assert kernel.do("jobs[22].platform_id") == f"{third}_2"
    assert kernel.do("lookup.job(f'slurm:{jobs[22].platform_id}').id") == "1_22"

    # One task of a later part is cancelled, the rest goes on.
    kernel.do("parts = ex.map_jobs(lambda i: wait('go', i), range(12))")
    kernel.until("all(map(runs, parts))", 120)
    assert kernel.do("parts[11].cancel()") is True
    assert kernel.do("str(parts[11].wait(60))") == "CANCELLED"
    (place.folder / "go").touch()
    assert kernel.do("[job.result(60) for job in parts[:11]]") == list(range(11))

    # Of a throttled one, the second part follows the first.
    kernel.do("slow = ck.Executor('slurm', time='5m', parallelism=4).map_jobs(abs, range(12))")
    assert kernel.do("slow.results(120)") == list(range(12))


@SCENES.scene(own={})
def what_may_not_be_submitted_yet_follows_by_itself(place: Place) -> None:
    place.slurm("sacctmgr", "-i", "modify", "user", "root", "set", f"MaxSubmitJobs={MOST}")
    kernel = place.kernel()
    kernel.do("ex = ck.Executor('slurm', time='5m'); jobs = ex.map_jobs(lambda i: wait('go', i), range(10))")
    kernel.until("sum(map(runs, jobs)) == 6")
    assert kernel.do("str(jobs.state)") == "RUNNING"
    kernel.until("'limit of submitted jobs' in jobs[9].reason")
    kernel.do("single = ex.submit(wait, 'go', 10)")
    kernel.until("'MaxSubmitJob' in single.reason")
    assert kernel.do("str(single.state)") == "SUBMITTING"
    assert kernel.do("ck.Executor('local', time='1m').submit(abs, -7).result(30)") == 7
    kernel.do("unwanted = ex.submit(wait, 'never')")
    assert kernel.do("unwanted.cancel()") is True
    assert kernel.do("str(unwanted.wait(60))") == "CANCELLED"
    (place.folder / "go").touch()
    assert kernel.do("jobs.results(120)") == list(range(10))
    assert kernel.do("single.result(120)") == 10
    assert place.ran("go") == 11
    assert place.ran("never") == 0

    # A kernel dies while a part is sent: the next one that looks sends the rest.
    kernel.do("more = ex.map_jobs(lambda i: wait('on', i), range(8))")
    kernel.until("sum(map(runs, more)) == 6")
    number = kernel.do("more.id")
    kernel.kill()
    (place.folder / "on").touch()
    other = place.kernel()
    other.do(f"more = lookup.job({number})")
    assert other.do("more.results(120)") == list(range(8))
    assert place.ran("on") == 8
    until(lambda: not place.slurm("squeue", "-h", "-o", "%A"), "an empty queue")


@pytest.fixture(scope="module")
def scenes(
    request: pytest.FixtureRequest, slurm_bare: SlurmCluster, slurm_module: Callable[..., SlurmCluster]
) -> Iterator[dict[str, Future[None]]]:
    with SCENES.begun(request, slurm_bare, slurm_module) as begun:
        yield begun


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SCENES.parameters)
def test_more_than_slurm_takes_at_once(scenes: dict[str, Future[None]], name: str) -> None:
    scenes[name].result(300)
