"""Jobs: futures whose computation lives on a platform and outlives this process."""

from __future__ import annotations

import asyncio
import codecs
import concurrent.futures
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkernel import jobview, loading, logs, patience, spec, units, watcher
from clusterkernel.errors import (
    BackendUnavailable,
    ClusterKernelError,
    JobRootError,
    shown,
)
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord
from clusterkernel.states import JobState
from clusterkernel.truth import Outcome, TaskTruth
from clusterkernel.views import JobView

if TYPE_CHECKING:
    import pandas as pd

    from clusterkernel.arrays import JobArray

__all__ = ["Job", "of_folder"]

# Seconds until an interrupt is noticed by who awaits a job.
_NOTICE = 0.3
# Seconds to wait for a platform to take a cancel; watchers repeat what it did not take.
_CANCEL_PATIENCE = 10.0


class Job(concurrent.futures.Future[Any]):
    """One run: a cell, a call, a command, or a task of an array.

    It is a `concurrent.futures.Future` and can be awaited. Its end is what the
    platform and the job's own records say; leaving it, waiting for it in vain
    or a time-out never cancels it.

    Get one from `Executor.submit`, ``%%cluster_train`` or `job`; there is one
    object per id in a process, and it pickles as its id.

    Attributes
    ----------
    id : str
        ``12``, ``12_3`` for task 3 of an array.
    folder : JobFolder
        Where it keeps all that is known of it.
    """

    def __init__(self, folder: JobFolder, task: int | None = None) -> None:
        super().__init__()
        self.folder = folder
        self.record: JobRecord = folder.record
        self._task = task or 0
        self.id = folder.id if task is None else f"{folder.id}_{task}"
        self._watcher = watcher.watcher(JobRoot(folder.path.parent))
        self._callbacks: list[Callable[[Job], object]] = []
        self._loaded: tuple[Any, BaseException | None] | None = None
        self._load_lock = threading.Lock()
        self._tracking = self._watcher.track(folder, task, self._on_news)
        self._truth = self._tracking.tasks[self._task]
        if self._truth.state.terminal:
            self._end()

    def __repr__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"<Job {self.id} {self.name!r} {self.state}{why}>"

    def __reduce__(self) -> tuple[object, ...]:
        return load_job, (self.id, str(self.folder.path.parent))

    # -- what it is and how it stands ----------------------------------------------

    @property
    def name(self) -> str:
        """The platform's name of the job."""
        return self.record.name

    @property
    def task(self) -> int:
        """Which task of its array it is; 0 where there is no array."""
        return self._task

    @property
    def backend(self) -> str:
        """Where it runs."""
        return self.record.spec.backend

    @property
    def spec(self) -> spec.JobSpec:
        """What it asked for."""
        return self.record.spec

    @property
    def state(self) -> JobState:
        """Where it is."""
        return self._truth.state

    @property
    def reason(self) -> str:
        """Why it is there, in a sentence; may be empty."""
        return self._truth.reason

    @property
    def stale_since(self) -> float | None:
        """Since when (Unix time) nothing was heard of it, while it runs."""
        since = self._truth.stale_since
        return None if since is None else time.time() - (time.monotonic() - since)

    @property
    def platform_id(self) -> str | None:
        """The platform's id, once it has one."""
        submission = self.folder.submission()
        if submission is None:
            return None
        for base, first, count in submission.platform_ids:
            if first <= self._task < first + count:
                return f"{base}_{self._task - first}" if self.record.array and self.backend == "slurm" else base
        return submission.platform_id

    @property
    def script(self) -> str:
        """The text that was sent; empty until it was."""
        try:
            return self.folder.script.read_text()
        except FileNotFoundError:
            return ""

    @property
    def array(self) -> JobArray | None:
        """The array that it is a task of."""
        if not self.record.array:
            return None
        from clusterkernel.arrays import JobArray

        return JobArray(self.folder)

    def running(self) -> bool:
        """Whether its code is being executed."""
        return self.state in (JobState.RUNNING, JobState.FINISHING)

    def cancelled(self) -> bool:
        """Always False, as for any future that ended by an exception; `state` tells a cancelled job."""
        return False

    # -- the future's contract -------------------------------------------------------

    def _on_news(self) -> None:
        if self._truth.state.terminal:
            self._end()
        for callback in list(self._callbacks):
            callback(self)

    def _end(self) -> None:
        with self._load_lock:
            if not self.done():
                # The value is loaded when somebody asks for it, not on the watcher's thread.
                super().set_result(None)

    def add_state_callback(self, callback: Callable[[Job], object]) -> None:
        """Call `callback` with the job after each change of its state, on the watcher's thread."""
        self._callbacks.append(callback)

    def remove_state_callback(self, callback: Callable[[Job], object]) -> None:
        """Undo `add_state_callback`."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def wait(self, timeout: float | None = None) -> JobState:
        """Wait for the end, at most `timeout` seconds; no error if it does not come or is bad.

        Returns
        -------
        JobState
            The state then.
        """
        if self._await_end(timeout) and not self.record.array:
            self.folder.write_seen()
        return self.state

    def _await_end(self, timeout: float | None) -> bool:
        if self.done():
            return True
        try:
            with self._watcher.hurry():
                finished = concurrent.futures.wait([self], timeout=timeout)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Job {self.id} goes on. %cluster_cancel {self.id} ends it.") from None
        return bool(finished.done)

    def result(self, timeout: float | None = None) -> Any:
        """What the cell's last expression or the function returned (rank 0's).

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait.

        Raises
        ------
        TimeoutError
            It is not there yet. The job goes on.
        JobError
            The job ended otherwise than well; where the user's code raised, its
            own exception, with a `JobFailed` as its cause.
        """
        if not self._await_end(timeout):
            raise concurrent.futures.TimeoutError(f"Job {self.id} is {self.state} after {timeout:g} s; it goes on.")
        value, error = self._load()
        if error is not None:
            raise error
        return value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The exception that `result` would raise, None where the job did well."""
        if not self._await_end(timeout):
            raise concurrent.futures.TimeoutError(f"Job {self.id} is {self.state} after {timeout:g} s; it goes on.")
        return self._load()[1]

    def __await__(self) -> Generator[Any, None, Any]:
        # A waiter of its own: asyncio.wrap_future would cancel the job when the wait is abandoned.
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake(_: object) -> None:
            # The loop may be gone when the wait was abandoned; the job goes on.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish)

        self.add_done_callback(wake)
        try:
            with self._watcher.hurry():
                while not waiter.done():
                    # A kernel's loop takes note of an interrupt only when something else wakes it.
                    yield from asyncio.wait([waiter], timeout=_NOTICE).__await__()
        except asyncio.CancelledError:
            raise asyncio.CancelledError(f"Job {self.id} goes on. %cluster_cancel {self.id} ends it.") from None
        return self.result()

    def cancel(self) -> bool:
        """End the job.

        Returns
        -------
        bool
            True once the platform took the request; the future ends when the
            end is confirmed. False where it has ended already.

        Raises
        ------
        BackendError
            The platform refused, or does not answer.
        """
        # `asyncio.wrap_future`, and so `run_in_executor`, cancels what it wraps when the wait is abandoned.
        if self.state.terminal or sys._getframe(1).f_globals.get("__name__") == "asyncio.futures":
            return False
        self._ask_for_end((self._task,) if self.record.array else ())
        return True

    def _ask_for_end(self, tasks: tuple[int, ...]) -> None:
        folder, backend = self.folder, self._tracking.backend
        folder.request_cancel(tasks)

        def tell() -> None:
            backend.cancel(folder, tasks or None)
            folder.write_cancel_taken(tasks)

        try:
            if folder.submission() is not None:  # else whoever sends it tells the platform
                patience.within(_CANCEL_PATIENCE, tell)
        except TimeoutError:
            raise BackendUnavailable(
                f"{self.backend} does not answer yet.", hint=f"The request to end job {self.id} stands and is repeated."
            ) from None
        finally:
            self._watcher.wake()

    # -- what it made ------------------------------------------------------------------

    @property
    def outputs(self) -> loading.Outputs:
        """The names that the cell assigned, loaded when asked for."""
        return loading.Outputs(self)

    def results(self) -> list[Any]:
        """The return values of all ranks, by rank. Waits for the end."""
        self.result()
        return loading.results_of(self)

    @property
    def truth(self) -> TaskTruth:
        """All that is known of it at this moment."""
        return self._truth

    @property
    def outcome(self) -> Outcome | None:
        """The record with which the job's own supervisor ended it, where it could."""
        return self._truth.outcome

    def out(self, rank: int = 0, attempt: int | None = None) -> Path:
        """Where a process of an attempt, by itself of the last, left what it printed and made.

        Raises
        ------
        ClusterKernelError
            It has no such process, or did not start so often.
        """
        rank = self._one_of("process", rank, self.spec.processes - 1)
        last = self._truth.attempt
        return self.folder.out(last if attempt is None else self._one_of("attempt", attempt, last), self._task, rank)

    def _one_of(self, what: str, number: int, last: int) -> int:
        number = units.parse_count(number, field=what)
        if number > last:
            raise ClusterKernelError(
                f"Job {self.id} has no {what} {number}.", hint=f"It has 0 to {last}." if last else "It has only 0."
            )
        return number

    def _load(self) -> tuple[Any, BaseException | None]:
        with self._load_lock:
            value, error = self._loaded or self._load_once()
            # What could not be loaded may be once the person has mended what the error names.
            if error is None or not (self.state is JobState.SUCCEEDED or isinstance(error, JobRootError)):
                self._loaded = value, error
        if error is not None:
            # Each raise adds frames to it; nobody wants those of an earlier one.
            error.__traceback__ = None
        return value, error

    def _load_once(self) -> tuple[Any, BaseException | None]:
        if not self.record.array:
            self.folder.write_seen()
        try:
            return loading.value_of(self), None
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the user's own exception may be of any kind
            return None, error

    # -- what it says ------------------------------------------------------------------

    def logs(self, lines: int | None = None, stream: str = "both", rank: int = 0, *, attempt: int | None = None) -> str:
        """What it printed.

        Parameters
        ----------
        lines : int, optional
            Only so many from the end.
        stream : str
            ``both``, in the order in which they were written, ``stdout`` or ``stderr``.
        rank : int
            Of which process.
        attempt : int, optional
            Of which start, from 0; by itself the last.
        """
        if stream not in ("both", "stdout", "stderr"):
            raise ClusterKernelError(f"stream = {shown(stream)} is not known.", hint="Write both, stdout or stderr.")
        lines = None if lines is None else units.parse_count(lines, field="lines")
        said = logs.tail(self.out(rank, attempt), lines, stream)
        early = self.state in (JobState.SUBMITTING, JobState.LAUNCH_FAILED)
        if rank or stream != "both" or not (early or self.spec.environment.setup):
            return said
        # What setup lines print comes before all that a process does.
        room = None if lines is None else max(0, lines - len(said.splitlines()))
        paths = dict.fromkeys((self.folder.launch_log(), self.folder.launch_log(self.platform_id or "")))
        return "\n".join(filter(None, [*(logs.launch_tail(path, room) for path in paths), said]))

    def follow(
        self, stream: str = "both", rank: int = 0, *, tail: int | None = None, pauses: bool = False
    ) -> Iterator[str]:
        """What it prints, as it comes, until its end.

        Parameters
        ----------
        stream, rank
            As for `logs`.
        tail : int, optional
            Begin about so many bytes before the end of what is there.
        pauses : bool
            Give an empty text several times a second while nothing comes.
        """
        reader, attempt = logs.Reader(self.out(rank), stream), self._truth.attempt
        if tail is not None and reader.out.is_dir():
            reader.seek_tail(tail)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a chunk may end in the middle of a character
        sent = 0
        while True:
            over = self.state.terminal
            if (
                self.state is JobState.SUBMITTING
                and stream == "both"
                and (said := logs.rest_of(self.folder.launch_log(), sent))
            ):
                sent += len(said)
                yield said.decode("utf-8", "replace")
            if attempt != self._truth.attempt:
                reader, attempt = logs.Reader(self.out(rank), stream), self._truth.attempt
            if data := reader.read(1 << 16):
                yield decoder.decode(data)
            elif over:
                return
            else:
                if pauses:
                    yield ""
                self._await_end(0.2)

    def metrics(self) -> pd.DataFrame:
        """The run's metrics; columns and dtypes as in `frames.metrics_frame`. Works while it runs."""
        from clusterkernel import frames

        return frames.metrics_frame(self._records("metrics.jsonl"))

    def usage(self) -> pd.DataFrame:
        """CPU, memory and GPU use over time; columns and dtypes as in `frames.usage_frame`."""
        from clusterkernel import frames

        return frames.usage_frame(self._records("usage.jsonl"))

    def _records(self, name: str) -> list[dict[str, Any]]:
        from clusterkernel import frames

        records: list[dict[str, Any]] = []
        for attempt in range(self._truth.attempt + 1):
            for rank in range(self.spec.processes):
                path = self.folder.out(attempt, self._task, rank) / name
                records += frames.read_records(path)[0]
        return records

    def progress(self) -> tuple[float, float] | None:
        """Done and total, where it says so."""
        return jobview.latest(self)[0]

    def latest(self) -> dict[str, float]:
        """The last value of each metric."""
        return jobview.latest(self)[1]

    def summary(self, *, tail: int = jobview.TAIL_LINES) -> JobView:
        """All that a card shows of it, with the last `tail` lines that it printed."""
        return jobview.summary(self, tail)

    def rerun(self, changes: Mapping[str, Any] | None = None, **fields: object) -> Job:
        """Run the same again, or the same with changes.

        Parameters
        ----------
        changes : mapping, optional
            Payload parameters: captured names, keyword arguments, axolotl keys.
        **fields
            Fields of the spec, as `Executor` takes them.
        """
        from clusterkernel import submission

        again = submission.rerun(self, changes or {}, fields)
        return again if isinstance(again, Job) else again[0]


_JOBS: weakref.WeakValueDictionary[tuple[str, str], Job] = weakref.WeakValueDictionary()
_JOBS_LOCK = threading.RLock()


def of_folder(folder: JobFolder, task: int | None = None) -> Job:
    """The process's object for a job or a task of an array."""
    key = (str(folder.path), "" if task is None else str(task))
    with _JOBS_LOCK:
        found = _JOBS.get(key)
        if found is None:
            found = _JOBS[key] = Job(folder, task)
        return found


def load_job(job_id: str, root: str) -> Job | JobArray:
    from clusterkernel import lookup

    return lookup.job(job_id, root=JobRoot(Path(root)))
