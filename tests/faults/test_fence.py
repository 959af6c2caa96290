"""However often a job is sent, started again or asked for: its code runs once."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.clusters.cluster import SlurmCluster
from tests.clusters.procs import alive

from .kernels import Place, until
from .scenes import Scenes

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("answers")]
LOST_ANSWER = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
NODES = ("cpu1", "cpu2")


SCENES = Scenes("fence")


def _copies(place: Place, script: str, name: str, nodes: list[str]) -> list[str]:
    """Send a job's script by hand, held, once for each node."""
    return [
        place.slurm("sbatch", "--parsable", "--hold", f"--job-name={name}", f"--nodelist={node}", script)
        for node in nodes
    ]


# -- races -----------------------------------------------------------------------------


def _race(place: Place, seeds: range) -> None:
    """Of copies that start on several nodes at the same moment one runs, and its value is the job's."""
    kernel = place.kernel()
    kernel.do(
        """
def once(name):
    import os, time
    with open(name, "a") as file:
        file.write(os.environ["CLUSTERKERNEL_PLATFORM_ID"] + "\\n")
    time.sleep(0.3)
    return os.environ["CLUSTERKERNEL_PLATFORM_ID"]
ex = ck.Executor('slurm', time='5m', sbatch='--hold', name='race')
"""
    )
    kernel.do(f"jobs = [ex.submit(once, f'race-{{seed}}') for seed in range({seeds.start}, {seeds.stop})]")
    kernel.until("all(job.platform_id for job in jobs)")
    told: list[tuple[str, str]] = kernel.do("[(job.platform_id, str(job.folder.script)) for job in jobs]")

    def start(seed: int, identity: str, script: str) -> list[str]:
        chance = random.Random(seed)
        copies = [identity, *_copies(place, script, "race", chance.choices(NODES, k=chance.randint(1, 3)))]
        chance.shuffle(copies)
        for number, copy in enumerate(copies):
            if number and chance.random() < 0.5:
                time.sleep(chance.choice([0.0, 0.01, 0.1]))
            place.slurm("scontrol", "release", copy)
        return copies

    with ThreadPoolExecutor(2) as pool:
        copies = list(pool.map(start, seeds, *zip(*told, strict=True)))
    values = kernel.do("[job.result(120) for job in jobs]")
    for seed, sent, value in zip(seeds, copies, values, strict=True):
        ran = (place.folder / f"race-{seed}").read_text().split()
        assert len(ran) == 1, f"seed {seed}: the code ran as {ran}"
        assert value == ran[0]
        assert value in sent
    everyone = [copy for sent in copies for copy in sent]
    until(
        lambda: (
            set(place.slurm("squeue", "-h", "-t", "all", "-j", ",".join(everyone), "-o", "%T").split()) == {"COMPLETED"}
        ),
        "the end of all copies",
    )
    for seed, value in zip(seeds, values, strict=True):
        assert (place.folder / f"race-{seed}").read_text().split() == [value]


@SCENES.scene()
def of_copies_that_start_at_once_one_runs(place: Place) -> None:
    _race(place, range(10))


@SCENES.scene(full=True)
def of_many_copies_that_start_at_once_one_runs(place: Place) -> None:
    for first in range(100, 200, 20):
        _race(place, range(first, first + 20))


@SCENES.scene()
def two_kernels_that_rerun_a_job_in_the_same_second_make_two(place: Place) -> None:
    kernels = [place.kernel(), place.kernel()]
    (place.folder / "go").touch()
    kernels[0].do("job = ck.Executor('slurm', time='5m').submit(wait, 'go', 5)")
    assert kernels[0].do("job.result(60)") == 5
    moment = time.time() + 1.0
    code = f"time.sleep(max(0, {moment} - time.time())); again = lookup.job(1).rerun(); again.id"
    with ThreadPoolExecutor(2) as pool:
        ids = list(pool.map(lambda kernel: kernel.do(code), kernels))
    assert sorted(ids) == ["2", "3"]
    assert [kernel.do("again.result(60)") for kernel in kernels] == [5, 5]
    assert len({kernel.do("again.platform_id") for kernel in kernels}) == 2
    assert place.ran("go") == 3
    assert [kernel.do("[view.id for view in submission.summaries()]") for kernel in kernels] == [["1", "2", "3"]] * 2


# -- sent twice --------------------------------------------------------------------------


@SCENES.scene()
def a_job_that_is_sent_twice_runs_once(place: Place) -> None:
    """Its answer was lost, and so was the look for it."""
    place.wrapper.set("sbatch", "deaf", LOST_ANSWER, times=1)
    place.wrapper.set("squeue", "empty", times=2)
    kernel = place.kernel()
    kernel.do("job = ck.Executor('slurm', time='5m', sbatch='--hold', name='twice').submit(wait, 'go', 5)")
    kernel.until("job.platform_id")
    copies = place.listed("twice")
    assert len(copies) == 2
    assert kernel.do("job.platform_id") == copies[1]
    place.slurm("scontrol", "release", copies[0])
    until(lambda: place.ran("go"), "the first copy")
    place.slurm("scontrol", "release", copies[1])
    until(lambda: place.slurm("squeue", "-h", "-t", "all", "-j", copies[1], "-o", "%T") == "COMPLETED", "the second")
    place.polls(3)
    assert kernel.do("str(job.state)") == "RUNNING", "the end of a copy that was turned away is not the job's"
    assert kernel.do("job.platform_id") == copies[0], "the copy that runs is the one that is asked for"
    (place.folder / "go").touch()
    assert kernel.do("job.result(60)") == 5
    assert place.ran("go") == 1


@SCENES.scene()
def a_cancel_reaches_the_copy_that_runs(place: Place) -> None:
    kernel = place.kernel()
    kernel.do("job = ck.Executor('slurm', time='5m', sbatch='--hold', name='other').submit(wait, 'go', 5)")
    kernel.until("job.platform_id")
    (copy,) = _copies(place, kernel.do("str(job.folder.script)"), "other", ["cpu1"])
    place.slurm("scontrol", "release", copy)
    until(lambda: place.ran("go"), "the copy")
    kernel.until("job.state.value == 'RUNNING'")
    assert kernel.do("job.cancel()") is True
    assert kernel.do("str(job.wait(60))") == "CANCELLED"
    until(lambda: place.slurm("squeue", "-h", "-t", "all", "-j", copy, "-o", "%T") == "CANCELLED", "the copy's end")


# -- an orphan ---------------------------------------------------------------------------


def _orphan(place: Place, lose: Callable[[str], None]) -> None:
    """Its node was lost to the controller and lives on; and when it is back, it does not disturb."""
    kernel = place.kernel()
    kernel.do(
        """
def train(marks):
    import os, time
    attempt = os.environ["CLUSTERKERNEL_ATTEMPT"]
    with open(f"{marks}/{attempt}", "a") as file:
        file.write(f"{os.getpid()}\\n")
    print("here", flush=True)
    while not os.path.exists(f"{marks}/go"):
        time.sleep(0.05)
    return int(attempt)
os.mkdir("marks")
job = ck.Executor("slurm", time="5m", partition="gpu", requeue=True).submit(train, "marks")
"""
    )
    kernel.until("runs(job)")
    node, marks = kernel.do("job.summary().node"), place.folder / "marks"
    lose(node)
    place.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    until((marks / "1").exists, "the second attempt")
    orphan = int((marks / "0").read_text())
    until(lambda: not alive(orphan), "the orphan's end")
    kernel.until("job.state.value == 'RUNNING'")
    place.cluster.heal(node)
    place.cluster.start_slurmd(node)
    until(lambda: "idle" in place.slurm("sinfo", "-h", "-N", "-n", node, "-o", "%T"), "the node")
    assert alive(int((marks / "1").read_text()))
    (marks / "go").touch()
    assert kernel.do("job.result(60)") == 1
    assert kernel.do("job.summary().attempt") == 1
    assert sorted(path.name for path in marks.iterdir()) == ["0", "1", "go"], "no attempt came twice"
    assert len((marks / "1").read_text().split()) == 1


@SCENES.scene(own={"accounting": False})
def the_orphan_of_a_node_that_is_cut_off_stops(place: Place) -> None:
    _orphan(place, place.cluster.cut)


@SCENES.scene(own={"accounting": False}, full=True)
def the_orphan_of_a_node_without_its_daemon_stops(place: Place) -> None:
    _orphan(place, place.cluster.kill_slurmd)


# -- a copied ledger ---------------------------------------------------------------------


@SCENES.scene()
def a_copied_ledger_does_no_harm(place: Place) -> None:
    """One from a backup, or from another host, that knows less than there is."""
    kernel = place.kernel()
    kernel.do("ex = ck.Executor('slurm', time='5m'); jobs = [ex.submit(wait, 'go', i) for i in range(2)]")
    kernel.until("all(map(runs, jobs))")
    place.polls(1)
    shutil.copytree(place.folder / "local", place.folder / "copy")
    (place.folder / "go").touch()
    assert kernel.do("[job.result(60) for job in jobs]") == [0, 1]
    kernel.do("late = ex.submit(wait, 'go', 2)")
    assert kernel.do("late.result(60)") == 2
    kernel.kill()

    other = place.kernel(CLUSTERKERNEL_LOCAL_DIR=str(place.folder / "copy"))
    views = "[(view.id, str(view.state)) for view in submission.summaries()]"
    assert other.do(views) == [["1", "SUCCEEDED"], ["2", "SUCCEEDED"], ["3", "SUCCEEDED"]]
    assert other.do("[lookup.job(i).result(30) for i in (1, 2, 3)]") == [0, 1, 2]
    other.do("more = ck.Executor('slurm', time='5m').submit(wait, 'go', 3)")
    assert other.do("(more.id, more.result(60))") == ["4", 3]
    assert place.ran("go") == 4
    assert len(place.wrapper.calls("sbatch")) == 4


# -- judging ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scenes(
    request: pytest.FixtureRequest, slurm_bare: SlurmCluster, slurm_module: Callable[..., SlurmCluster]
) -> Iterator[dict[str, Future[None]]]:
    with SCENES.begun(request, slurm_bare, slurm_module) as begun:
        yield begun


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SCENES.parameters)
def test_code_runs_once(scenes: dict[str, Future[None]], name: str) -> None:
    scenes[name].result(1100)
