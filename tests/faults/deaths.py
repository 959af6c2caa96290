"""A kernel whose jobs all die, at once and each in its own way; it writes down what it saw of each.

    python tests/faults/deaths.py KIND FOLDER OUT [CLUSTER]

`test_deaths` starts one for each platform, side by side, and judges what they wrote.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import clusterkernel as ck
from clusterkernel import submission
from clusterkernel.errors import ClusterKernelError, JobError
from clusterkernel.jobroot import JobRoot
from clusterkernel.payload import function
from clusterkernel.runtime import events, processes
from clusterkernel.states import JobState
from tests.clusters.cluster import SlurmCluster

CEILING = 60.0
# Slurm looks for jobs that are over their time only now and then.
TIME_LIMIT_CEILING = 120.0
SLURM = ("on", "off", "purged")
# Where, in the folder of a Slurm cluster, a file system lies that is soon full.
SMALL_DISK = "small"
SMALL_DISK_MIB = 8


class Death(NamedTuple):
    """A job whose end has been caused.

    Attributes
    ----------
    job : Job
    at : float or None
        When the controller or the supervisor knew (Unix time); None where the
        job's own records, or the controller's, tell it.
    ceiling : float
        Seconds to wait for its end.
    notes : dict
        What else is to be judged.
    """

    job: Any
    at: float | None = None
    ceiling: float = CEILING
    notes: dict[str, Any] = {}


class Pids(NamedTuple):
    """The processes of a running job, which all have numbers of the head's too."""

    shell: int
    supervisor: int
    payload: int


class Kernel:
    """Submits jobs and has them die.

    Parameters
    ----------
    kind : str
        ``local``, or how the accounting is: ``on``, ``off``, ``purged``.
    folder : Path
        The working folder, on the cluster's share.
    cluster : SlurmCluster, optional
        For a Slurm kind.
    """

    def __init__(self, kind: str, folder: Path, cluster: SlurmCluster | None) -> None:
        self.kind = kind
        self.folder = folder
        self._cluster = cluster

    @property
    def cluster(self) -> SlurmCluster:
        assert self._cluster is not None
        return self._cluster

    def slurm(self, *argv: str, check: bool = True) -> str:
        """One of Slurm's commands, past what stands in front of it for the product."""
        return self.cluster.run(f"/usr/bin/{argv[0]}", *argv[1:], check=check)

    def submit(self, fn: Callable[..., Any], *args: Any, **fields: Any) -> Any:
        """A call as a job."""
        executor = ck.Executor("local" if self.kind == "local" else "slurm", **{"time": "5m", **fields})
        return executor.submit(fn, *args)

    def array(self, size: int, **fields: Any) -> Any:
        """Calls as an array."""
        return ck.Executor("slurm", **{"time": "5m", **fields}).map_jobs(lambda _: sleep_on(), range(size))

    def until(self, true: Callable[[], Any], what: str, ceiling: float = CEILING) -> Any:
        """Wait for an event that nothing tells us of."""
        deadline = time.monotonic() + ceiling
        while not (found := true()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not come within {ceiling:g} s")
            time.sleep(0.05)
        return found

    def running(self, job: Any) -> Any:
        """Wait until the job's code says that it is here."""
        self.until(
            lambda: (job.running() and "last words" in job.logs()) or job.state.terminal,
            f"the first line of job {job.id}",
        )
        assert not job.state.terminal, f"job {job.id} is {job.state}: {job.reason}"
        return job

    def pids(self, job: Any, rank: int = 0) -> Pids:
        """Its processes."""
        records = events.read(job.folder.events(rank=rank))
        supervisor = next(record["pid"] for record in records if record["kind"] == "started")
        payload = self.until(lambda: processes.children(supervisor), f"the payload of job {job.id}")[0]
        about = Path(f"/proc/{supervisor}/status").read_text()
        shell = next(int(line.split()[1]) for line in about.splitlines() if line.startswith("PPid:"))
        return Pids(shell, supervisor, payload)

    def known_at(self, job: Any) -> float | None:
        """When the job's supervisor, or the controller, first knew of the end."""
        told = [record["t"] for record in events.read(job.folder.events()) if record["kind"] in ("outcome", "signal")]
        if told or self.kind == "local":
            return min(told, default=None)
        said = self.slurm("scontrol", "-o", "show", "job", str(job.platform_id), check=False)
        end = next((word for word in said.split() if word.startswith("EndTime=20")), None)
        return time.mktime(time.strptime(end.partition("=")[2], "%Y-%m-%dT%H:%M:%S")) if end else None


# -- what the jobs do ----------------------------------------------------------------


def sleep_on() -> None:
    import time

    print("last words", flush=True)
    time.sleep(600)


# -- the deaths ----------------------------------------------------------------------

_CASES: dict[str, tuple[Callable[[Kernel], Death], tuple[str, ...], int]] = {}


def death(*kinds: str, phase: int = 1) -> Callable[[Callable[[Kernel], Death]], Callable[[Kernel], Death]]:
    """Register a death for these platforms; those of a later phase come when the earlier are over."""

    def keep(cause: Callable[[Kernel], Death]) -> Callable[[Kernel], Death]:
        _CASES[cause.__name__] = (cause, kinds or ("local", *SLURM), phase)
        return cause

    return keep


@death(*SLURM)
def scancel_pending(kernel: Kernel) -> Death:
    job = kernel.submit(sleep_on, sbatch="--begin=now+1hour")
    kernel.until(lambda: job.platform_id and job.state is JobState.QUEUED, "the queue")
    at = time.time()
    kernel.slurm("scancel", job.platform_id)
    return Death(job, at)


@death(*SLURM)
def scancel_running(kernel: Kernel) -> Death:
    job = kernel.running(kernel.submit(sleep_on))
    at = time.time()
    kernel.slurm("scancel", job.platform_id)
    return Death(job, at)


@death(*SLURM)
def scancel_array_task_pending(kernel: Kernel) -> Death:
    job = kernel.array(3, sbatch="--begin=now+1hour")[1]
    kernel.until(lambda: job.platform_id and job.state is JobState.QUEUED, "the queue")
    at = time.time()
    kernel.slurm("scancel", job.platform_id)
    return Death(job, at)


@death(*SLURM)
def scancel_array_task_running(kernel: Kernel) -> Death:
    jobs = kernel.array(3)
    for job in jobs:
        kernel.running(job)
    at = time.time()
    kernel.slurm("scancel", jobs[1].platform_id)
    jobs[1].wait(CEILING)
    return Death(jobs[1], at, notes={"others": [str(jobs[0].state), str(jobs[2].state)]})


@death(*SLURM)
def cancel_pending(kernel: Kernel) -> Death:
    job = kernel.submit(sleep_on, sbatch="--begin=now+1hour")
    kernel.until(lambda: job.platform_id and job.state is JobState.QUEUED, "the queue")
    at = time.time()
    assert job.cancel()
    return Death(job, at)


@death()
def cancel_running(kernel: Kernel) -> Death:
    job = kernel.running(kernel.submit(sleep_on))
    at = time.time()
    assert job.cancel()
    return Death(job, at)


@death()
def exit_code(kernel: Kernel) -> Death:
    def leave() -> None:
        import os

        print("last words", flush=True)
        os._exit(9)

    return Death(kernel.submit(leave))


@death()
def payload_killed(kernel: Kernel) -> Death:
    job = kernel.running(kernel.submit(sleep_on))
    pids, at = kernel.pids(job), time.time()
    os.kill(pids.payload, 9)
    return Death(job, at)


@death(*SLURM)
def one_rank_killed(kernel: Kernel) -> Death:
    """Of two, on two nodes: the other ends with it."""
    job = kernel.running(kernel.submit(sleep_on, nodes=2))
    kernel.until(lambda: "last words" in job.logs(rank=1), "the second rank")
    left, at = [kernel.pids(job, rank).payload for rank in (0, 1)], time.time()
    os.kill(left[1], 9)
    return Death(job, at, notes={"left": lambda: any(processes.start_time(pid) for pid in left)})


@death()
def payload_crashes(kernel: Kernel) -> Death:
    def crash() -> None:
        import os
        import signal

        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    return Death(kernel.submit(crash))


@death()
def supervisor_killed(kernel: Kernel) -> Death:
    job = kernel.running(kernel.submit(sleep_on))
    pids, at = kernel.pids(job), time.time()
    os.kill(pids.supervisor, 9)
    return Death(job, at, notes={"left": lambda: processes.start_time(pids.payload)})


@death()
def shell_killed(kernel: Kernel) -> Death:
    """The batch shell; on the local machine the runner, which has its place."""
    job = kernel.running(kernel.submit(sleep_on))
    pids, at = kernel.pids(job), time.time()
    os.kill(pids.shell, 9)
    return Death(job, at, notes={"left": lambda: processes.start_time(pids.payload)})


@death()
def no_interpreter(kernel: Kernel) -> Death:
    return Death(kernel.submit(sleep_on, interpreter="/nowhere/bin/python"))


@death(*SLURM)
def interpreter_that_is_none(kernel: Kernel) -> Death:
    return Death(kernel.submit(sleep_on, interpreter="/bin/false"))


@death()
def missing_module(kernel: Kernel) -> Death:
    # Not beside the notebook, from where it would be taken along.
    place = kernel.folder / "lib" / "site-packages"
    place.mkdir(parents=True)
    (place / "only_on_the_head.py").write_text("def call():\n    pass\n")
    sys.path.append(str(place))
    import only_on_the_head  # type: ignore[import-not-found]

    job = kernel.submit(only_on_the_head.call)
    (place / "only_on_the_head.py").unlink()
    return Death(job)


@death(*SLURM)
def setup_fails(kernel: Kernel) -> Death:
    return Death(kernel.submit(sleep_on, setup=["echo setting up", "exit 3"]))


@death(*SLURM)
def refused(kernel: Kernel) -> Death:
    return Death(kernel.submit(sleep_on, partition="nowhere"))


class Skipped(Exception):
    """This machine cannot do it."""


@death(*SLURM)
def out_of_memory(kernel: Kernel) -> Death:
    if not kernel.cluster.cgroups:
        raise Skipped("Slurm cannot limit memory here: no cgroup v1 that it may write")

    def grow() -> None:
        print("last words", flush=True)
        blocks = []
        while True:
            blocks.append(bytes(1 << 20) + b"x")

    return Death(kernel.submit(grow, memory="200M"))


@death()
def time_limit(kernel: Kernel) -> Death:
    job = kernel.submit(sleep_on, time="2s" if kernel.kind == "local" else "1m")
    return Death(job, ceiling=TIME_LIMIT_CEILING)


@death(*SLURM)
def held(kernel: Kernel) -> Death:
    job = kernel.submit(sleep_on, sbatch="--hold")
    kernel.until(lambda: job.state is JobState.HELD, "the hold")
    said, at = job.reason, time.time()
    assert job.cancel()
    return Death(job, at, notes={"said": said})


@death()
def result_does_not_pickle(kernel: Kernel) -> Death:
    def lock() -> dict[str, Any]:
        import threading

        print("last words")
        return {"inner": [threading.Lock()]}

    return Death(kernel.submit(lock))


@death("on", "off", "local")
def result_does_not_fit(kernel: Kernel) -> Death:
    """The disk of the job's folder has no room for the result."""

    def large() -> bytes:
        print("last words", flush=True)
        return bytes(64 << 20)

    return Death(_on_small_disk(kernel, large))


@death("purged")
def disk_is_full(kernel: Kernel) -> Death:
    """The disk of the job's folder has no room for anything."""

    def fill() -> int:
        import os

        print("last words", flush=True)
        place = os.path.dirname(os.environ["CLUSTERKERNEL_JOB_DIR"])
        for size in (1 << 20, 1 << 12, 1):
            try:
                with open(os.path.join(place, f"fill-{size}"), "wb", 0) as file:
                    while file.write(bytes(size)):
                        pass
            except OSError:
                pass
        return 5

    return Death(_on_small_disk(kernel, fill))


def _on_small_disk(kernel: Kernel, fn: Callable[[], Any]) -> Any:
    spec = ck.Executor("local" if kernel.kind == "local" else "slurm", time="5m").spec
    root = JobRoot(kernel.folder.parent / SMALL_DISK / "jobs")
    return submission.submit(spec, function.build(fn, modules_root=kernel.folder), root=root)


@death()
def outcome_is_torn(kernel: Kernel) -> Death:
    job = kernel.running(kernel.submit(sleep_on))
    pids = kernel.pids(job)
    with open(job.folder.events(), "ab", 0) as file:
        file.write(b'\xff\xfe not a record\n{"t": 1, "kind": "outcome", "state": "BEST"}\n')
        file.write(b'{"t": 2, "kind": "outcome", "state": "SUCCEE')
    at = time.time()
    os.kill(pids.supervisor, 9)
    return Death(job, at)


@death()
def launcher_killed(kernel: Kernel) -> Death:
    """As torchrun: its workers have sessions of their own and would train on."""
    return _workers_lose(kernel, "payload")


@death()
def workers_lose_supervisor(kernel: Kernel) -> Death:
    return _workers_lose(kernel, "supervisor")


@death()
def workers_lose_shell(kernel: Kernel) -> Death:
    return _workers_lose(kernel, "shell")


def _workers_lose(kernel: Kernel, whom: str) -> Death:
    job, workers = _launched(kernel)
    pids, at = kernel.pids(job), time.time()
    os.kill(getattr(pids, whom), 9)
    return Death(job, at, notes={"left": lambda: any(processes.start_time(pid) for pid in workers)})


def _launched(kernel: Kernel) -> tuple[Any, list[int]]:
    """A job with workers in sessions of their own, and these."""

    def launch() -> None:
        import subprocess
        import sys
        import time

        code = "import time; time.sleep(600)"
        workers = [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(2)]
        print("workers", *[worker.pid for worker in workers], "last words", flush=True)
        time.sleep(600)

    job = kernel.running(kernel.submit(launch))
    workers = [int(word) for word in job.logs().split() if word.isdigit()]
    assert len(workers) == 2
    assert all(processes.start_time(pid) for pid in workers)
    return job, workers


@death()
def silence(kernel: Kernel) -> Death:
    """Nothing is heard of it for a while: it is shown stale, and lives."""
    go = kernel.folder / "go"

    def wait() -> int:
        import time

        print("last words", flush=True)
        while not go.exists():
            time.sleep(0.05)
        return 5

    job = kernel.running(kernel.submit(wait))
    supervisor = kernel.pids(job).supervisor
    os.kill(supervisor, 19)
    try:
        kernel.until(lambda: job.stale_since is not None, "the mark of silence")
        state = job.state
    finally:
        os.kill(supervisor, 18)
    kernel.until(lambda: job.stale_since is None, "the end of the silence")
    go.touch()
    return Death(job, notes={"state": str(state)})


# -- nodes and controllers -----------------------------------------------------------


@death(*SLURM)
def node_dies(kernel: Kernel) -> Death:
    """Its daemon is killed and the controller told so, as a monitoring would."""
    job = kernel.running(kernel.submit(sleep_on, partition="gpu", sbatch="--nodelist=gpu3"))
    payload = kernel.pids(job).payload
    kernel.cluster.kill_slurmd("gpu3")
    at = time.time()
    kernel.slurm("scontrol", "update", "nodename=gpu3", "state=down", "reason=test")
    return Death(job, at, notes={"ran on": bool(processes.start_time(payload))})


@death(*SLURM)
def queued_again(kernel: Kernel) -> Death:
    """Its end is none: an administrator has it queued again, as a pre-emption does."""
    job = kernel.running(kernel.submit(_attempts(kernel, "again"), requeue=True))
    ends: list[str] = []
    job.add_state_callback(lambda job: ends.append(str(job.state)) if job.state.terminal else None)
    kernel.slurm("scontrol", "requeue", job.platform_id)
    job.wait(CEILING)
    return Death(job, notes={"value": job.result(0) if job.state is JobState.SUCCEEDED else None, "ends": len(ends)})


@death(*SLURM)
def node_is_cut_off(kernel: Kernel) -> Death:
    """Its network goes, and the controller is told so: it starts the job again elsewhere. The orphan must stop."""
    marks = kernel.folder / "cut"
    job = kernel.running(
        kernel.submit(_attempts(kernel, "cut"), partition="gpu", requeue=True, sbatch="--exclude=gpu3")
    )
    node = job.summary().node
    kernel.cluster.cut(node)
    kernel.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    job.wait(CEILING)
    orphan = int((marks / "0").read_text())
    kernel.until(lambda: not processes.start_time(orphan), "the end of the older attempt")
    kernel.cluster.heal(node)
    return Death(job, notes={"value": job.result(0) if job.state is JobState.SUCCEEDED else None})


def _attempts(kernel: Kernel, name: str) -> Callable[[], int]:
    """What hangs in its first attempt and does well in the second; each leaves its pid in a folder of this name."""
    marks = kernel.folder / name
    marks.mkdir()

    def once_more() -> int:
        import os
        import time

        attempt = int(os.environ["CLUSTERKERNEL_ATTEMPT"])
        print("last words", flush=True)
        (marks / f"{attempt}").write_text(str(os.getpid()))
        if attempt == 0:
            time.sleep(600)
        return attempt

    return once_more


@death(*SLURM, phase=2)
def controller_restarts(kernel: Kernel) -> Death:
    """Jobs that run, end and wait meanwhile are not mistaken for dead."""
    go = kernel.folder / "go-on"

    def wait(name: str) -> str:
        import time

        print("last words", flush=True)
        while name != "queued" and not (go / name).exists():
            time.sleep(0.05)
        return name

    go.mkdir()
    names = ("ends", "runs")
    running = [kernel.running(kernel.submit(wait, name)) for name in names]
    queued = kernel.submit(wait, "queued", sbatch="--hold")
    kernel.until(lambda: queued.state is JobState.HELD, "the hold")
    jobs = [*running, queued]
    seen: list[str] = []
    for job in jobs:
        job.add_state_callback(lambda job: seen.append(f"{job.name} {job.state}") if job.state.terminal else None)
    kernel.cluster.stop_controller()
    (go / "ends").touch()
    assert running[0].result(CEILING) == "ends"
    during = [str(job.state) for job in jobs]
    kernel.cluster.start_controller()
    kernel.until(lambda: kernel.slurm("squeue", "-h", "-j", queued.platform_id, check=False), "the queue")
    kernel.slurm("scontrol", "release", queued.platform_id)
    (go / "runs").touch()
    values = [job.result(CEILING) for job in jobs]
    return Death(running[1], notes={"during": during, "values": values, "ends": len(seen)})


# -- writing it down -----------------------------------------------------------------


def look(name: str, found: Death, seconds: float | None) -> dict[str, Any]:
    """What a person would see of the job."""
    job = found.job
    error = job.exception(0) if job.done() else None
    left = found.notes.get("left")
    deadline = time.monotonic() + 10
    while callable(left) and left() and time.monotonic() < deadline:
        time.sleep(0.02)
    return {
        "case": name,
        "state": str(job.state),
        "reason": job.reason,
        "error": type(error).__name__ if error else None,
        "message": str(error) if error else "",
        "tail": error.log_tail if isinstance(error, JobError) else "",
        "log": job.logs(),
        "seconds": seconds,
        "platform_id": job.platform_id,
        "job": job.id,
        "left": bool(left()) if callable(left) else False,
        "load": os.getloadavg()[0],
        "notes": {key: value for key, value in found.notes.items() if not callable(value)},
    }


def die(kernel: Kernel, name: str, cause: Callable[[Kernel], Death]) -> dict[str, Any]:
    """Cause one death and see it through."""
    try:
        found = cause(kernel)
        ended: list[float] = []
        found.job.add_done_callback(lambda _: ended.append(time.time()))
        found.job.wait(found.ceiling)
        at = found.at if found.at is not None else kernel.known_at(found.job)
        return look(name, found, ended[0] - at if ended and at is not None else None)
    except Skipped as skipped:
        return {"case": name, "skipped": str(skipped)}
    except (ClusterKernelError, AssertionError, OSError, RuntimeError) as error:
        return {"case": name, "failure": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def platforms() -> dict[str, tuple[str, ...]]:
    """On which platforms there is each death."""
    return {name: kinds for name, (_, kinds, _) in _CASES.items()}


def cases(kind: str, phase: int) -> Iterator[tuple[str, Callable[[Kernel], Death]]]:
    """The deaths of a platform."""
    wanted = os.environ.get("FAULTS_CASES", "")
    for name, (cause, kinds, when) in _CASES.items():
        if kind in kinds and when == phase and (not wanted or name in wanted.split(",")):
            yield name, cause


def main(kind: str, folder: Path, out: Path, cluster: SlurmCluster | None) -> None:
    os.chdir(folder)
    kernel = Kernel(kind, folder, cluster)
    lock = threading.Lock()

    def one(name: str, cause: Callable[[Kernel], Death]) -> None:
        seen = die(kernel, name, cause)
        with lock, open(out, "a") as file:
            file.write(json.dumps(seen) + "\n")

    for phase in (1, 2):
        threads = [threading.Thread(target=one, args=case) for case in cases(kind, phase)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    words = sys.argv[1:]
    main(words[0], Path(words[1]), Path(words[2]), SlurmCluster(words[3]) if len(words) > 3 else None)
