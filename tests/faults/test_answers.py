"""Slurm's commands fail, hang, answer in part or not at all; its controller is away; many kernels ask at once.

The scenes run side by side, each in a folder of its own; each test judges one of them.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from tests.clusters.cluster import SlurmCluster

from .kernels import Place, until
from .scenes import Scenes

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("answers")]
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
LOST_ANSWER = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
# Seconds between two questions, over all kernels of a user on a host; and what a busy machine adds or takes.
EVERY, SLACK = 5.0, 0.2
MINUTE = 60.0

SCENES = Scenes("answers")


# -- once ----------------------------------------------------------------------------


def _once(place: Place, **faults: tuple[str, str]) -> None:
    """A running and a waiting job live through faults that come once, and then end well."""
    kernel = place.kernel()
    kernel.do("ex = ck.Executor('slurm', time='5m'); runs_on = ex.submit(wait, 'go', 5)")
    kernel.do("waits = ck.Executor('slurm', time='5m', sbatch='--hold').submit(wait, 'go', 6)")
    kernel.until("runs(runs_on) and waits.state.value == 'HELD'")
    kernel.do(
        "seen = []; [job.add_state_callback(lambda job: seen.append(str(job.state))) for job in (runs_on, waits)]"
    )
    for command, (mode, text) in faults.items():
        place.wrapper.set(command, mode, text, times=1)
    place.polls(3)
    assert kernel.do("[str(job.state) for job in (runs_on, waits)]") == ["RUNNING", "HELD"]
    assert not set(kernel.do("seen")) - {"RUNNING", "HELD", "QUEUED"}, "nothing was taken for ended in between"
    left = [name for name in faults if (place.wrapper.folder / "faults" / f"{name}.left").is_dir()]
    assert not [name for name in left if os.listdir(place.wrapper.folder / "faults" / f"{name}.left")], "all came"
    place.slurm("scontrol", "release", kernel.do("waits.platform_id"))
    (place.folder / "go").touch()
    assert kernel.do("[runs_on.result(60), waits.result(60)]") == [5, 6]
    assert kernel.do("[job.reason for job in (runs_on, waits)]") == ["", ""]


@SCENES.scene()
def squeue_says_nothing_once(place: Place) -> None:
    _once(place, squeue=("empty", ""))


@SCENES.scene()
def squeue_and_scontrol_say_nothing_once(place: Place) -> None:
    _once(place, squeue=("empty", ""), scontrol=("empty", ""))


@SCENES.scene()
def squeue_fails_once(place: Place) -> None:
    _once(place, squeue=("fail", AWAY))


@SCENES.scene()
def squeue_is_refused_once(place: Place) -> None:
    _once(place, squeue=("fail", "squeue: error: something that no manual knows"), scontrol=("fail", AWAY))


@SCENES.scene()
def squeue_hangs_once(place: Place) -> None:
    _once(place, squeue=("hang", ""))


@SCENES.scene()
def squeue_says_less_once(place: Place) -> None:
    _once(place, squeue=("fewer", "1"))


@SCENES.scene()
def squeue_lacks_a_flag(place: Place) -> None:
    """An older one: what it would say is asked of scontrol."""
    place.wrapper.set("squeue", "lacks", "-o")
    kernel = place.kernel()
    kernel.do("ex = ck.Executor('slurm', time='5m'); job = ex.submit(wait, 'go', 5)")
    kernel.until("runs(job)")
    place.polls(2)
    assert kernel.do("str(job.state)") == "RUNNING"
    place.slurm("scancel", kernel.do("job.platform_id"))
    assert kernel.do("str(job.wait(60))") == "CANCELLED"


# -- for a minute --------------------------------------------------------------------


def _minute(place: Place, mode: str, text: str) -> None:
    """Nothing is made of silence but a mark; and afterwards the truth is known."""
    kernel = place.kernel()
    kernel.do(
        "ex = ck.Executor('slurm', time='5m'); runs_on = ex.submit(wait, 'go', 5); dies = ex.submit(wait, 'never')"
    )
    kernel.do("held = ck.Executor('slurm', time='5m', sbatch='--hold')")
    kernel.do("waits, goes = held.submit(wait, 'go', 6), held.submit(wait, 'never')")
    kernel.until("runs(runs_on) and runs(dies) and waits.state.value == goes.state.value == 'HELD'")
    began = time.monotonic()
    for command in ("squeue", "scontrol", "sacct"):
        place.wrapper.set(command, mode, text)
    place.slurm("scancel", *kernel.do("[dies.platform_id, goes.platform_id]"))
    while time.monotonic() - began < MINUTE:
        states = kernel.do("[str(job.state) for job in (runs_on, dies, waits, goes)]")
        assert states == ["RUNNING", states[1], "HELD", "HELD"]
        # The supervisor's own word is that a signal came; whose it was, it cannot know.
        assert states[1] in ("RUNNING", "FINISHING")
        time.sleep(0.5)
    stale = kernel.do("[job.stale_since is not None for job in (runs_on, waits)]")
    assert stale == [False, True], "the running one is heard of by its own records"
    assert kernel.do("time.time() - waits.stale_since") > 30
    place.wrapper.clear()
    back = time.monotonic()
    kernel.until("waits.stale_since is None")
    assert kernel.do("[str(dies.wait(60)), str(goes.wait(60))]") == ["CANCELLED", "CANCELLED"]
    assert time.monotonic() - back < 15
    place.slurm("scontrol", "release", kernel.do("waits.platform_id"))
    (place.folder / "go").touch()
    assert kernel.do("[runs_on.result(60), waits.result(60)]") == [5, 6]


@SCENES.scene()
def slurm_fails_for_a_minute(place: Place) -> None:
    _minute(place, "fail", AWAY)


@SCENES.scene(full=True)  # the other one of its kind is in the short run
def slurm_hangs_for_a_minute(place: Place) -> None:
    _minute(place, "hang", "")


# -- submissions ---------------------------------------------------------------------


@SCENES.scene()
def the_answer_of_sbatch_is_lost(place: Place) -> None:
    """The job is found by its key and not sent again."""
    place.wrapper.set("sbatch", "deaf", LOST_ANSWER, times=1)
    place.wrapper.set("squeue", "fail", AWAY, times=1)  # nor does the first look tell anything
    kernel = place.kernel()
    kernel.do("job = ck.Executor('slurm', time='5m', name='deaf').submit(wait, 'go', 5)")
    kernel.until("job.platform_id")
    assert place.listed("deaf") == [kernel.do("job.platform_id")]
    (place.folder / "go").touch()
    assert kernel.do("job.result(60)") == 5
    assert (len(place.wrapper.calls("sbatch")), place.ran("go")) == (1, 1)


@SCENES.scene()
def a_job_whose_answer_is_lost_is_cancelled(place: Place) -> None:
    """It is not forgotten in the queue because nobody was told of it."""
    place.wrapper.set("sbatch", "deaf", LOST_ANSWER, times=1)
    place.wrapper.set("squeue", "fail", AWAY)
    kernel = place.kernel()
    kernel.do("job = ck.Executor('slurm', time='5m', name='lost').submit(wait, 'go', 5)")
    until(lambda: place.ran("go"), "the job that nobody was told of")
    kernel.until("job.state.value == 'RUNNING'")
    (identity,) = place.listed("lost")
    assert kernel.do("job.platform_id") == identity, "the job's own records tell it"
    assert kernel.do("job.cancel()") is True
    assert kernel.do("str(job.wait(60))") == "CANCELLED"
    until(lambda: place.slurm("squeue", "-h", "-j", identity, "-t", "all", "-o", "%T") == "CANCELLED", "its end")


@SCENES.scene()
def a_cancel_overtakes_its_submission(place: Place) -> None:
    place.wrapper.set("sbatch", "slow", "3", times=1)
    kernel = place.kernel()
    kernel.do("job = ck.Executor('slurm', time='5m', name='late').submit(wait, 'go', 5)")
    until(lambda: place.wrapper.calls("sbatch"), "sbatch")
    assert kernel.do("job.cancel()") is True
    assert kernel.do("str(job.wait(60))") == "CANCELLED"
    until(lambda: place.listed("late"), "the job")
    (identity,) = place.listed("late")
    ended = ("CANCELLED", "FAILED", "COMPLETED")
    until(lambda: place.slurm("squeue", "-h", "-j", identity, "-t", "all", "-o", "%T") in ended, "its end")
    assert place.ran("go") == 0


@SCENES.scene()
def a_kernel_dies_while_sbatch_is_on_its_way(place: Place) -> None:
    """What it had begun is given up; the copy that Slurm accepts later does not run."""
    place.wrapper.set("sbatch", "slow", "20", times=1)
    first = place.kernel()
    first.do("job = ck.Executor('slurm', time='5m', name='orphan').submit(wait, 'go', 5)")
    until(lambda: place.wrapper.calls("sbatch"), "sbatch")
    first.kill()
    second = place.kernel()
    second.do("job = lookup.job(1)")
    assert second.do("str(job.wait(60))") == "LAUNCH_FAILED"
    assert "The kernel ended before it was sent" in second.do("job.reason")
    until(lambda: place.listed("orphan"), "the late submission")
    (identity,) = place.listed("orphan")
    until(lambda: place.slurm("squeue", "-h", "-j", identity, "-t", "all", "-o", "%T") == "COMPLETED", "its end")
    assert place.ran("go") == 0


@SCENES.scene()
def a_kernel_dies_before_the_answer(place: Place) -> None:
    """The next kernel finds the job by its key."""
    place.wrapper.set("sbatch", "deaf", LOST_ANSWER, times=1)
    place.wrapper.set("squeue", "fail", AWAY)
    first = place.kernel()
    first.do("job = ck.Executor('slurm', time='5m', name='found').submit(wait, 'go', 5)")
    until(lambda: place.ran("go"), "the job")
    first.kill()
    place.wrapper.clear()
    second = place.kernel()
    second.do("job = lookup.job(1)")
    second.until("job.platform_id and job.state.value == 'RUNNING'")
    (place.folder / "go").touch()
    assert second.do("job.result(60)") == 5
    assert place.ran("go") == 1
    assert len(place.listed("found")) == 1


@SCENES.scene()
def a_script_that_ends_at_once_has_sent_its_job(place: Place) -> None:
    code = "import clusterkernel as ck; ck.Executor('slurm', time='5m', name='script').run(['touch', 'it-ran'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=place.folder, env={**os.environ, **place.env}, check=False)
    assert done.returncode == 0
    kernel = place.kernel()
    assert kernel.do("str(lookup.job(1).wait(60))") == "SUCCEEDED"
    assert (place.folder / "it-ran").exists()


@SCENES.scene()
def a_script_that_ends_while_slurm_is_away_does_not_hang(place: Place) -> None:
    place.wrapper.set("sbatch", "fail", AWAY)
    place.wrapper.set("squeue", "fail", AWAY)
    code = "import clusterkernel as ck; ex = ck.Executor('slurm', time='5m'); [ex.run(['true']) for _ in range(3)]"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place.folder, env={**os.environ, **place.env}, timeout=60, check=False
    )
    assert done.returncode == 0
    kernel = place.kernel()
    kernel.do("jobs = [lookup.job(i) for i in (1, 2, 3)]")
    kernel.until("all('did not answer' in job.reason for job in jobs)")
    assert set(kernel.do("[str(job.state) for job in jobs]")) == {"SUBMITTING"}, "nothing is known yet"
    place.wrapper.clear()
    assert set(kernel.do("[str(job.wait(60)) for job in jobs]")) == {"LAUNCH_FAILED"}
    assert kernel.do("'%cluster_rerun' in jobs[0].reason") is True
    assert kernel.do("str(jobs[0].rerun().wait(60))") == "SUCCEEDED"


# -- one poller ----------------------------------------------------------------------


@SCENES.scene()
def many_kernels_ask_as_one(place: Place) -> None:
    """3 kernels with 5 jobs each cost one squeue in 5 s, also when one that asks is killed; none when all is over."""
    kernels = [place.kernel() for _ in range(3)]
    for number, kernel in enumerate(kernels):
        kernel.do(f"ex = ck.Executor('slurm', time='5m'); jobs = [ex.submit(wait, 'go-{number}', i) for i in range(5)]")
    for kernel in kernels:
        kernel.until("all(map(runs, jobs))", 120)
    began = time.time()
    place.polls(5)
    calls = [call for call in place.wrapper.calls("squeue") if call.at >= began]
    gaps = [later.at - call.at for call, later in itertools.pairwise(calls)]
    assert min(gaps) >= EVERY - SLACK
    assert max(gaps) <= 2 * EVERY
    assert {call.parent for call in calls} <= {kernel.pid for kernel in kernels}

    # One of them hangs in its question and is killed: another asks when it is time.
    place.wrapper.set("squeue", "hang")
    place.polls(1)
    asking = place.wrapper.calls("squeue")[-1]
    holder = next(kernel for kernel in kernels if kernel.pid == asking.parent)
    holder.kill()
    place.wrapper.clear()
    place.polls(1)
    later = place.wrapper.calls("squeue")[-1]
    assert later.parent != asking.parent
    assert later.at - asking.at <= EVERY + 2.0

    # A kernel that only looks sees the truth as soon as the one that asks.
    others = [kernel for kernel in kernels if kernel is not holder]
    for number in range(3):
        (place.folder / f"go-{number}").touch()
    for kernel in others:
        assert kernel.do("[job.result(60) for job in jobs]") == list(range(5))
    looker = place.kernel()
    looker.do("views = submission.summaries()")
    assert set(looker.do("[str(view.state) for view in submission.summaries()]")) == {"SUCCEEDED"}
    quiet = len(place.wrapper.calls("squeue"))
    end = time.monotonic() + 2.5 * EVERY  # nothing tells of a call that does not come
    until(lambda: time.monotonic() > end, "the end of the watch")
    assert len(place.wrapper.calls("squeue")) <= quiet + 1


# -- the controller is away ----------------------------------------------------------


@SCENES.scene(own={"accounting": False})
def a_controller_is_away_at_submission(place: Place) -> None:
    kernel = place.kernel()
    kernel.do("ex, here = ck.Executor('slurm', time='5m', name='away'), ck.Executor('local', time='5m')")
    place.cluster.stop_controller()
    began = time.monotonic()
    kernel.do("jobs = [ex.submit(wait, 'go', i) for i in range(3)]; gone = ex.submit(wait, 'never')")
    kernel.do("array = ex.map_jobs(abs, [-1, -2])")
    assert time.monotonic() - began < 15, "no client of Slurm's is waited for"
    assert kernel.do("here.submit(abs, -7).result(30)") == 7, "other platforms go on"
    assert kernel.do("gone.cancel()") is True
    assert kernel.do("str(gone.wait(30))") == "CANCELLED", "what was never sent needs no controller to end"
    kernel.until("'It is sent again by itself' in jobs[0].reason")
    assert set(kernel.do("[str(job.state) for job in jobs]")) == {"SUBMITTING"}
    place.cluster.start_controller()
    (place.folder / "go").touch()
    assert kernel.do("[job.result(120) for job in jobs]") == [0, 1, 2]
    assert kernel.do("array.results(60)") == [1, 2]
    assert place.ran("go") == 3
    assert len(place.listed("away")) == 4, "each was sent once"


# -- two clusters --------------------------------------------------------------------


@SCENES.scene(own={"accounting": False})
def a_kernel_of_another_cluster_takes_no_job_for_lost(place: Place) -> None:
    """Both see the same job root; the other's controller knows nothing of the jobs."""
    one, other = place.kernel(), place.kernel(**place.neighbour.env)
    one.do("jobs = [ck.Executor('slurm', time='5m').submit(wait, name) for name in ('go', 'never')]")
    one.until("all(map(runs, jobs))")
    other.do("jobs = [lookup.job(1), lookup.job(2)]")
    place.polls(6)
    assert {call.parent for call in place.wrapper.calls("squeue")} == {one.pid, other.pid}
    assert other.do("[str(job.state) for job in jobs]") == ["RUNNING", "RUNNING"]
    os.kill(one.do("supervisor(jobs[1])"), signal.SIGKILL)
    assert one.do("str(jobs[1].wait(30))") == "DIED", "its own kernel is not kept from asking"
    assert other.do("str(jobs[1].state)") in ("RUNNING", "DIED")
    (place.folder / "go").touch()
    assert other.do("jobs[0].result(60)") is None


# -- judging -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scenes(
    request: pytest.FixtureRequest, slurm_bare: SlurmCluster, slurm_module: Callable[..., SlurmCluster]
) -> Iterator[dict[str, Future[None]]]:
    with SCENES.begun(request, slurm_bare, slurm_module) as begun:
        yield begun


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SCENES.parameters)
def test_answers_that_fail(scenes: dict[str, Future[None]], name: str) -> None:
    scenes[name].result(300)
