"""Arrays: one logical job of many tasks."""

from __future__ import annotations

import concurrent.futures
import functools
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import msgspec

from clusterkernel import spec
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobs import Job, load_job, of_folder
from clusterkernel.states import JobState
from clusterkernel.views import JobView

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["JobArray"]

# How a whole is named whose parts differ: what still goes on first, then what went wrong.
_ORDER = (
    JobState.RUNNING,
    JobState.FINISHING,
    JobState.STARTING,
    JobState.REQUEUED,
    JobState.QUEUED,
    JobState.HELD,
    JobState.SUBMITTING,
    JobState.FAILED,
    JobState.DIED,
    JobState.OUT_OF_MEMORY,
    JobState.TIMED_OUT,
    JobState.NODE_LOST,
    JobState.LAUNCH_FAILED,
    JobState.RESULT_FAILED,
    JobState.LOST,
    JobState.CANCELLED,
    JobState.SUCCEEDED,
)

_ENDED = {
    JobState.FAILED: "failed",
    JobState.DIED: "died",
    JobState.OUT_OF_MEMORY: "ran out of memory",
    JobState.TIMED_OUT: "timed out",
    JobState.CANCELLED: "were cancelled",
}


class JobArray(Sequence[Job]):
    """The tasks of an array, each a `Job`.

    Attributes
    ----------
    id : str
        The array's id; its tasks are ``id_0``, ``id_1``, and so on.
    """

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.record = folder.record
        self.id = folder.id
        self._jobs = [of_folder(folder, task) for task in range(self.record.tasks)]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.counts().items())
        return f"<JobArray {self.id} {self.record.name!r}: {counts}>"

    def __reduce__(self) -> tuple[object, ...]:
        return load_job, (self.id, str(self.folder.path.parent))

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...
    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        return self._jobs[index]

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    @property
    def name(self) -> str:
        """The platform's name of the array."""
        return self.record.name

    @property
    def state(self) -> JobState:
        """The state of the whole: a live one while a task lives, else the worst."""
        present = {job.state for job in self._jobs}
        return next(state for state in _ORDER if state in present)

    @property
    def platform_id(self) -> str | None:
        """The platform's id, once it has one."""
        submission = self.folder.submission()
        return submission.platform_id if submission else None

    @property
    def script(self) -> str:
        """The text that was sent."""
        return self._jobs[0].script

    def counts(self) -> dict[JobState, int]:
        """How many tasks are in each state."""
        found = Counter(job.state for job in self._jobs)
        return {state: found[state] for state in _ORDER if found[state]}

    def done(self) -> bool:
        """Whether every task has ended."""
        return all(job.done() for job in self._jobs)

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait for the end of all tasks, at most `timeout` seconds."""
        try:
            with self._jobs[0]._watcher.hurry():
                concurrent.futures.wait(self._jobs, timeout=timeout)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Job {self.id} goes on. %cluster_cancel {self.id} ends it.") from None
        return self.state

    def results(self, timeout: float | None = None) -> list[Any]:
        """The results of all items, in their order.

        Raises
        ------
        TimeoutError
            Not all have ended in time.
        JobError
            The first task that ended otherwise than well.
        """
        self.wait(timeout)
        values: list[Any] = []
        for job in self._jobs:
            value = job.result(0 if timeout is not None else None)
            values += value if self.chunksize > 1 else [value]
        return values

    def __await__(self) -> Generator[Any, None, list[Any]]:
        for job in self._jobs:
            yield from job.__await__()
        return self.results()

    @functools.cached_property
    def _payload(self) -> dict[str, Any]:
        try:
            payload: dict[str, Any] = msgspec.json.decode((self.folder.payload / "payload.json").read_bytes())
        except FileNotFoundError:  # its folder was removed: how its tasks ended is known all the same
            return {}
        return payload

    @property
    def chunksize(self) -> int:
        """Items of each task."""
        return int(self._payload.get("chunk", 1))

    @property
    def labels(self) -> list[str]:
        """The items of each task in short, its id where they say nothing."""
        given = self._payload.get("labels") or [""] * len(self)
        return [label or job.id for label, job in zip(given, self._jobs, strict=True)]

    def cancel(self) -> bool:
        """End all tasks that have not ended. False where all have."""
        if self.done():
            return False
        self._jobs[0]._ask_for_end(())
        return True

    def frame(self) -> pd.DataFrame:
        """One row a task: its state and the last value of each metric."""
        from clusterkernel import frames

        views = [job.summary(tail=0) for job in self._jobs]
        table = frames.jobs_frame([msgspec.to_builtins(view) for view in views])
        table.insert(1, "item", self.labels)
        for name in dict.fromkeys(name for view in views for name in view.latest):
            table[name] = [view.latest.get(name) for view in views]
            table[name] = table[name].astype("Int64" if name == "step" else "float64")
        return table

    def metrics(self) -> pd.DataFrame:
        """The metrics of all tasks, with a column ``task`` first."""
        return self._joined(Job.metrics)

    def usage(self) -> pd.DataFrame:
        """What all tasks used over time, with a column ``task`` first."""
        return self._joined(Job.usage)

    def _joined(self, of: Callable[[Job], pd.DataFrame]) -> pd.DataFrame:
        import pandas as pd

        tables = []
        for task, job in enumerate(self._jobs):
            table = of(job)
            table.insert(0, "task", task)
            tables.append(table)
        filled = [table for table in tables if len(table)] or tables[:1]
        return pd.concat(filled, ignore_index=True)

    def plot(self, metric: str = "loss", *, x: str = "step", ax: Any = None) -> Any:
        """Draw a metric of each task over steps.

        Parameters
        ----------
        metric, x : str
            Columns of `metrics`.
        ax : matplotlib.axes.Axes, optional
            Where to draw.

        Returns
        -------
        matplotlib.axes.Axes
        """
        table = self.metrics()
        if metric not in table:
            from clusterkernel.errors import ClusterKernelError, nearest

            raise ClusterKernelError(f"No task logged {metric!r}.", hint=nearest(metric, table.columns))
        if ax is None:
            from matplotlib import pyplot

            ax = pyplot.figure().gca()
        labels = self.labels
        for task, part in table.dropna(subset=[metric]).groupby("task"):
            across = part[x] if part[x].notna().all() else range(len(part))
            ax.plot(across, part[metric], label=labels[int(task)])
        ax.set_xlabel(x)
        ax.set_ylabel(metric)
        if ax.lines:  # none before the first value was logged
            ax.legend()
        return ax

    def _reason(self) -> str:
        """Why it waits; of those that did not end well how many there are, and the first one's reason."""
        bad = [job for job in self._jobs if job.state.terminal and job.state is not JobState.SUCCEEDED]
        bad = [job for job in bad if job.state is not JobState.CANCELLED] or bad
        if not bad:
            return next((job.reason for job in self._jobs if job.reason), "") if not self.done() else ""
        states = {job.state for job in bad}
        what = _ENDED.get(bad[0].state, "did not succeed") if len(states) == 1 else "did not succeed"
        return f"{len(bad)} of {len(self)} {what}: {bad[0].id}: {bad[0].reason or bad[0].state.value}"

    def summary(self) -> JobView:
        """All that a card shows of it."""
        counts = self.counts()
        ended = sum(count for state, count in counts.items() if state.terminal)
        first = self._jobs[0].summary(tail=0)
        starts = [job._truth.started for job in self._jobs if job._truth.started]
        ends = [job._truth.ended for job in self._jobs if job._truth.ended]
        return msgspec.structs.replace(
            first,
            id=self.id,
            state=self.state,
            platform_id=self.platform_id or "",
            counts=spec.describe(self.record.spec),
            reason=self._reason(),
            node="",
            started=min(starts, default=None),
            ended=max(ends, default=None) if self.done() else None,
            progress=(float(ended), float(len(self))),
            latest={},
            outputs={},
            tasks={state.value: count for state, count in counts.items()},
        )
