"""kill -9 of a process that holds jobs: in the next one all are there, whole, and none is sent again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import lookup, submission
from clusterkernel.backends import registry
from clusterkernel.jobroot import JobRoot
from clusterkernel.runtime import events
from clusterkernel.states import JobState
from tests.backends.platforms import Platform
from tests.unit.making import until

from .plain import PlainKernel, held, ran, release

LIMIT = 60.0
# A cell's names, beside the results of functions.
CELL = """
from clusterkernel.payload import cell
cell_job = submission.submit(
    submission.complete(executor().spec),
    cell.build(
        f"import os, time\\nopen(os.path.join({folder!r}, 'ran-cell'), 'a').write('once\\\\n')\\n"
        f"while not os.path.exists({folder!r} + '/gate-cell'): time.sleep(0.02)\\n"
        f"model = [1, 2]\\nhistory = {{'loss': 0.5}}",
        {}, bind=("model",), modules_root=__import__("pathlib").Path(folder),
    ),
)
"""
SUBMIT = f"""
finished = executor().submit(work, folder, "finished", 41)
failed = executor().submit(work, folder, "failed", "raise")
running = executor().submit(work, folder, "running", 42)
array = executor().map_jobs(lambda name: work(folder, name, name.upper(), lines=3), ["a", "b"])
{CELL}
"""
NAMES = ("finished", "failed", "running", "a", "b", "cell")


def expected(name: str) -> list[str]:
    return [f"{name} {part} {number}" for part in ("early", "late") for number in range(50)]


def job_of(job_id: str) -> Any:
    return lookup.job(job_id)


def outcome_of(job_id: str) -> bool:
    """Whether the job's supervisor has written its end, whoever watches."""
    folder = JobRoot().open(job_id)
    return any(record["kind"] == "outcome" for record in events.read(folder.events()))


def platform_jobs(platform: Platform, cluster: Any) -> int:
    """How many jobs the platform got."""
    if platform.backend == "local":
        return len([path for path in JobRoot().path.glob("*/claims/*") if path.name.isdigit()])
    keys = [folder.record.key for folder in JobRoot().folders()]
    said = cluster.run("squeue", "-h", "-t", "all", "-o", "%F %k").splitlines()
    return len({line.split()[0] for line in said if any(key in line for key in keys)})


def test_all_that_a_killed_kernel_held_is_there(
    platform: Platform, plain_kernel: Callable[..., PlainKernel], request: pytest.FixtureRequest
) -> None:
    """Killed while jobs run and wait, one has just ended well and one badly, and somebody waits for one."""
    folder = platform.shared
    pending = {"sbatch": ["--begin=now+1hour"]} if platform.backend == "slurm" else {}
    first = plain_kernel(
        f"{SUBMIT}\nlater = executor(**{pending!r}).submit(work, folder, 'later', 43)\n"
        "say(finished.id, failed.id, running.id, array.id, cell_job.id, later.id)\n"
        "threading.Thread(target=running.result, daemon=True).start()\nfollow = running.follow(); next(follow)",
        **held(folder, platform.backend, platform.fields),
    )
    ids = first.line().split()
    finished, failed, running, array, cell, later = ids
    first.until("ready")
    until(lambda: ran(folder, "finished") and ran(folder, "failed") and ran(folder, "running"), "the first jobs")
    until(lambda: JobRoot().open(later).submission() is not None, "the last job's submission")
    release(folder, "finished", "failed")
    until(lambda: outcome_of(finished) and outcome_of(failed), "two ends")
    first.kill()

    # Here is the next kernel: this process has not looked before.
    views = {view.id: view for view in submission.summaries(settle=10.0)}
    assert list(views) == ids
    assert views[finished].state is JobState.SUCCEEDED
    assert views[failed].state is JobState.FAILED
    assert views[running].state is JobState.RUNNING
    if platform.backend == "slurm":  # on this machine it takes a slot that has become free
        assert views[later].state is JobState.QUEUED
    assert list(ck.jobs()["id"]) == ids
    assert job_of(finished).result(0) == 41
    with pytest.raises(LookupError, match="failed"):
        job_of(failed).result(0)
    assert job_of(running).logs().splitlines()[:50] == expected("running")[:50]
    release(folder, *NAMES, "later")
    if platform.backend == "slurm":
        request.getfixturevalue("slurm_cluster").run(
            "scontrol", "update", f"JobId={job_of(later).platform_id}", "StartTime=now"
        )
    assert job_of(running).result(LIMIT) == 42
    assert job_of(array).results(LIMIT) == ["A", "B"]
    assert job_of(later).result(120) == 43
    assert job_of(cell).wait(LIMIT) is JobState.SUCCEEDED
    assert dict(job_of(cell).outputs) == {"model": [1, 2], "history": {"loss": 0.5}}
    for name, job_id in (("finished", finished), ("running", running), ("later", later), ("failed", failed)):
        lines = job_of(job_id).logs(stream="stdout").splitlines()
        assert lines == expected(name), "the log is whole"
    assert "".join(job_of(running).follow()).splitlines() == expected("running")
    assert [view.id for view in submission.summaries()] == ids
    for name in (*NAMES, "later"):
        assert ran(folder, name) == 1, f"{name} ran once"
    cluster = request.getfixturevalue("slurm_cluster") if platform.backend == "slurm" else None
    assert platform_jobs(platform, cluster) == (6 if cluster else 7), "nothing was sent again"


def test_killed_while_it_sends_many(
    platform: Platform, plain_kernel: Callable[..., PlainKernel], request: pytest.FixtureRequest
) -> None:
    """kill -9 at any moment of sending 12 jobs: each is there, and ran once or says that it was not sent."""
    folder = platform.shared
    release(folder, *(f"job{n}" for n in range(12)))
    first = plain_kernel(
        "jobs = [executor().submit(work, folder, f'job{n}', n, 1) for n in range(12)]\n"
        "say('made', *[j.id for j in jobs])",
        **held(folder, platform.backend, platform.fields),
    )
    ids = first.line().split()[1:]
    until(lambda: sum(JobRoot().open(job).submission() is not None for job in ids) >= 3, "some to be sent")
    first.kill()
    assert [view.id for view in submission.summaries()] == ids
    unsent = []
    for number, job_id in enumerate(ids):
        job = job_of(job_id)
        state = job.wait(LIMIT)
        if state is JobState.LAUNCH_FAILED:
            assert "The kernel ended before it was sent. Send it with %cluster_rerun." in job.reason
            assert ran(folder, f"job{number}") == 0
            unsent.append(number)
        else:
            assert job.result(0) == number
            assert ran(folder, f"job{number}") == 1
    assert len(unsent) < 10
    for number in unsent[:1]:
        assert job_of(ids[number]).rerun().result(LIMIT) == number
        assert ran(folder, f"job{number}") == 1


_KILLED = """
from clusterkernel.backends import registry
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
registry.get(backend).submit = die
executor().submit(work, folder, "lost", 5)
"""


def test_killed_between_the_folder_and_the_platform(
    platform: Platform, plain_kernel: Callable[..., PlainKernel]
) -> None:
    folder = platform.shared
    release(folder, "lost")
    first = plain_kernel(_KILLED, **held(folder, platform.backend, platform.fields))
    first.process.wait(LIMIT)
    job = job_of("1")
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert job.reason == "The kernel ended before it was sent. Send it with %cluster_rerun."
    assert registry.get(platform.backend).find(job.folder) is None
    again = job.rerun()
    assert again.result(LIMIT) == 5
    assert ran(folder, "lost") == 1
    assert [view.state for view in submission.summaries()] == [JobState.LAUNCH_FAILED, JobState.SUCCEEDED]


# -- while sbatch is on its way ------------------------------------------------------------------------

_SBATCH = """#!/bin/sh
if [ {when} = after ]; then
    answer=$(/usr/bin/sbatch "$@" 2>&1)
fi
touch {folder}/called
while [ ! -e {folder}/go ]; do sleep 0.02; done
if [ {when} = before ]; then answer=$(/usr/bin/sbatch "$@" 2>&1); fi
touch {folder}/answered
echo "$answer"
"""


@pytest.fixture
def slow_sbatch(slurm: Platform) -> Callable[[str], str]:
    """PATH with an sbatch first that is slow: before it asks the controller, or after it was answered."""

    def make(when: str) -> str:
        folder = slurm.shared / "bin"
        folder.mkdir()
        (folder / "sbatch").write_text(_SBATCH.format(when=when, folder=slurm.shared))
        (folder / "sbatch").chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return make


@pytest.mark.slurm
@pytest.mark.parametrize("array", [False, True])
def test_killed_after_slurm_took_the_job(
    slurm: Platform, slurm_cluster: Any, plain_kernel: Callable[..., PlainKernel], slow_sbatch: Any, array: bool
) -> None:
    """The controller has the job, and its answer never came."""
    folder = slurm.shared
    release(folder, "one", "two")
    call = (
        "map_jobs(lambda name: work(folder, name, name), ['one', 'two'])" if array else "submit(work, folder, 'one', 1)"
    )
    first = plain_kernel(f"executor().{call}", PATH=slow_sbatch("after"), **held(folder, "slurm", slurm.fields))
    until((folder / "called").exists, "the call of sbatch")
    first.kill()
    job = job_of("1")
    assert (job.results(LIMIT) if array else job.result(LIMIT)) == (["one", "two"] if array else 1)
    (folder / "go").touch()
    until((folder / "answered").exists, "the end of that sbatch")
    assert ran(folder, "one") == 1
    assert platform_jobs(slurm, slurm_cluster) == 1
    assert [view.id for view in submission.summaries()] == ["1"]
    assert job.platform_id is not None


@pytest.mark.slurm
def test_killed_before_slurm_took_the_job_which_comes_late(
    slurm: Platform, slurm_cluster: Any, plain_kernel: Callable[..., PlainKernel], slow_sbatch: Any
) -> None:
    """The next kernel gave it up; an sbatch that outlived the first kernel sends it all the same."""
    folder = slurm.shared
    release(folder, "one")
    first = plain_kernel(
        "executor().submit(work, folder, 'one', 1)", PATH=slow_sbatch("before"), **held(folder, "slurm", slurm.fields)
    )
    until((folder / "called").exists, "the call of sbatch")
    first.kill()
    job = job_of("1")
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert "%cluster_rerun" in job.reason
    again = job.rerun()
    assert again.result(LIMIT) == 1
    (folder / "go").touch()
    until((folder / "answered").exists, "the end of that sbatch")
    until(lambda: late_copy(job.folder.path), "the late copy to be turned away")
    assert ran(folder, "one") == 1, "the late copy never came to the user's code"
    assert job.state is JobState.LAUNCH_FAILED
    until(lambda: not slurm_cluster.run("squeue", "-h", "-o", "%F %k").count(job.record.key), "the queue to be empty")


def late_copy(folder: Path) -> bool:
    return any("duplicate" in path.read_text() for path in folder.glob("events/0/*.duplicate.*.jsonl"))


# -- while the local script is on its way ----------------------------------------------------------------


@pytest.mark.parametrize("first_to_go_on", ["script", "kernel"])
@pytest.mark.parametrize("platform", ["local"], indirect=True)
def test_killed_while_the_local_script_sets_up(
    platform: Platform, plain_kernel: Callable[..., PlainKernel], first_to_go_on: str
) -> None:
    folder = platform.shared
    release(folder, "one")
    lines = [f"touch {folder}/called", f"while [ ! -e {folder}/go ]; do sleep 0.02; done", f"touch {folder}/went"]
    first = plain_kernel(
        f"executor(setup={lines!r}).submit(work, folder, 'one', 1)", **held(folder, "local", platform.fields)
    )
    until((folder / "called").exists, "the script")
    first.kill()
    if first_to_go_on == "script":
        (folder / "go").touch()
        until(lambda: ran(folder, "one"), "the job")
        assert job_of("1").result(LIMIT) == 1
        assert [view.state for view in submission.summaries()] == [JobState.SUCCEEDED]
    else:
        job = job_of("1")
        assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
        (folder / "go").touch()
        until((folder / "went").exists, "the script to go on")
        until(lambda: late_copy(job.folder.path), "the late copy to be turned away")
        assert ran(folder, "one") == 0
        assert job.state is JobState.LAUNCH_FAILED
