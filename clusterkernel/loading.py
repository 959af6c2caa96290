"""Bringing back what a job made: results, outputs, and the user's own exception."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterkernel.errors import (
    ClusterKernelError,
    JobCancelled,
    JobDied,
    JobError,
    JobFailed,
    JobLost,
    JobOutOfMemory,
    JobTimedOut,
    LaunchFailed,
    NodeLost,
    ResultFailed,
    UnknownOutputError,
    nearest,
)
from clusterkernel.spec import Launcher
from clusterkernel.states import JobState
from clusterkernel.views import OutputView

if TYPE_CHECKING:
    from clusterkernel.jobs import Job

__all__ = ["Outputs", "error_of", "output_views", "results_of", "value_of"]

_ERRORS: Final[Mapping[JobState, type[JobError]]] = {
    JobState.FAILED: JobFailed,
    JobState.DIED: JobDied,
    JobState.OUT_OF_MEMORY: JobOutOfMemory,
    JobState.TIMED_OUT: JobTimedOut,
    JobState.CANCELLED: JobCancelled,
    JobState.NODE_LOST: NodeLost,
    JobState.LAUNCH_FAILED: LaunchFailed,
    JobState.RESULT_FAILED: ResultFailed,
    JobState.LOST: JobLost,
}
_TAIL_LINES: Final = 20
#: Seconds from a job's end on in which a file of it may not be visible yet: NFS clients keep what a folder held for up
#: to a minute (acdirmax, nfs(5)), also where they have seen the outcome already.
_LATE: Final = 60.0
_LOOK: Final = 0.2
#: For a name that could not be saved.
MEND: Final = "Let the cell set it to what can be (a state, a path), and send it again."


def namespace() -> dict[str, Any]:
    """The notebook's names, among which the classes of loaded values are looked up."""
    return vars(sys.modules["__main__"])


def result_dirs(job: Job, rank: int) -> list[Path]:
    """Where a process's results lie: its own folder, or one for each rank under its launcher."""
    out = job.out(rank)
    if job.spec.launcher is Launcher.NONE or job.record.payload.kind == "command":
        return [out]
    numbers = [path.name.removeprefix("rank-") for path in out.glob("rank-*")]
    return [out / f"rank-{number}" for number in sorted(filter(str.isdecimal, numbers), key=int)]


def _first(job: Job) -> Path:
    """The folder of the job's first rank."""
    dirs = result_dirs(job, 0)
    return dirs[0] if dirs else job.out(0) / "rank-0"


def _await_file(job: Job, *paths: Path) -> None:
    """Wait until one of the files that an ended job has left is visible, as far as it may only be late."""
    now = time.time()
    until = time.monotonic() + min(_LATE, (job.truth.ended or now) + _LATE - now)
    while not any(path.is_file() for path in paths) and time.monotonic() < until:
        with contextlib.suppress(OSError):
            os.listdir(paths[0].parent)  # so that the client asks its server
        time.sleep(_LOOK)


def _verify(job: Job, out: Path) -> None:
    """Refuse what another user could have written to, before anything that a process left is unpickled."""
    outputs = out / "outputs"
    job.folder.verify(out, outputs, *out.glob("*.pkl"), *outputs.glob("*.pkl"))


def value_of(job: Job) -> Any:
    """What the job returned (rank 0's).

    Raises
    ------
    BaseException
        The job ended otherwise than well: what `error_of` gives.
    """
    if job.state is not JobState.SUCCEEDED:
        raise error_of(job)
    if job.outcome is None or job.outcome.result == "none":
        return None
    from clusterkernel.payload import results

    out = _first(job)
    _await_file(job, out / "result.pkl")
    _verify(job, out)
    return results.load_result(out, namespace(), job.folder.payload)


def results_of(job: Job) -> list[Any]:
    """The return values of all ranks, by rank."""
    from clusterkernel.payload import results

    dirs = [out for rank in range(job.spec.processes) for out in result_dirs(job, rank)]
    for out in dirs:
        _await_file(job, out / "report.json")
        if results.is_promised(out):
            _await_file(job, out / "result.pkl")
        _verify(job, out)
    return [
        results.load_result(out, namespace(), job.folder.payload) if (out / "result.pkl").is_file() else None
        for out in dirs
    ]


def error_of(job: Job) -> BaseException:
    """Why the job did not end well: the user's own exception where there is one, else a `JobError`."""
    # What a signal raised in the code is no error of the code's.
    stopped = job.state in (JobState.CANCELLED, JobState.TIMED_OUT)
    told = (job.outcome.error if job.outcome and not stopped else None) or {}
    rank = job.truth.rank
    which = f" --rank {rank}" if rank else ""
    tail = job.logs(_TAIL_LINES, rank=rank)
    shows = tail and job.state is not JobState.CANCELLED
    error = _ERRORS[job.state](
        f"Job {job.id} ({job.name}): {job.reason or job.state.value}",
        job_id=job.id,
        log_tail=tail,
        remote_traceback=str(told.get("traceback") or ""),
        hint=f"%cluster_logs {job.id}{which} shows its output." if shows else "",
    )
    if job.state is JobState.FAILED and told:
        from clusterkernel.payload import results

        for rank in range(job.spec.processes):
            for out in result_dirs(job, rank):
                _verify(job, out)
                own = results.load_error(out, namespace(), job.folder.payload)
                if isinstance(own, BaseException):
                    return _as_raised_there(own, error)
    return error


def _as_raised_there(own: BaseException, told: JobError) -> BaseException:
    """The user's exception, shown by IPython with the lines of the job in place of ours."""
    own.__cause__ = told
    lines = [*told.remote_traceback.rstrip().splitlines(), "", f"In job {told.job_id}. {told.hint}".rstrip()]
    with contextlib.suppress(AttributeError):  # one with slots
        own._render_traceback_ = lambda *_, **__: lines  # type: ignore[attr-defined]
    return own


def output_views(job: Job) -> dict[str, OutputView]:
    """What the job says of the names that it saved."""
    return {
        name: OutputView(
            size=size if isinstance(size := about.get("size"), int) else 0,
            type=str(about.get("type") or ""),
            error=str(about.get("error") or ""),
        )
        for name, about in (job.outcome.outputs if job.outcome else {}).items()
    }


class Outputs(Mapping[str, Any]):
    """The names that a job saved; a value is loaded each time it is asked for."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[str]:
        return (name for name, about in output_views(self._job).items() if not about.error)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"<outputs of job {self._job.id}: {', '.join(self) or 'none'}>"

    def __getitem__(self, name: str) -> Any:
        job = self._job
        saved = output_views(job)
        if not job.state.terminal:
            raise ClusterKernelError(f"Job {job.id} is {job.state}.", hint=f"%cluster_wait {job.id} waits for it.")
        if name not in saved:
            raise UnknownOutputError(f"Job {job.id} saved no {name!r}.", hint=nearest(str(name), saved))
        if error := saved[name].error:
            raise ResultFailed(f"{name!r} of job {job.id} could not be saved: {error}.", job_id=job.id, hint=MEND)
        from clusterkernel.payload import results

        _await_file(job, self.path(name))
        _verify(job, _first(job))
        return results.load_output(self.path(name), namespace(), job.folder.payload)

    def path(self, name: str) -> Path:
        """The file that holds the value."""
        return _first(self._job) / "outputs" / f"{name}.pkl"
