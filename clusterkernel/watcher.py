"""One thread a process that knows how every job is.

It reads the supervisors' records of the jobs that somebody in this process
holds, and what the platform says. The platform is asked at most once in some
seconds by all kernels of a user on a host together (see `ledger`), from
threads of their own: a controller that hangs delays no record.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from clusterkernel import index, rescue
from clusterkernel.backends import registry
from clusterkernel.backends.base import Backend
from clusterkernel.errors import ClusterKernelError
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.ledger import Ledger
from clusterkernel.tracking import Tracking

__all__ = ["Watcher", "note", "stop_all", "watcher"]

_FAST: Final = 0.04
_SLOW: Final = 1.0
# How often the ledger is looked at for what another kernel asked the platform.
_LOOK: Final = 0.5
# How often what is left of an array that was sent in part is tried again.
_RESCUE: Final = 20.0
# How often a platform is told again of a cancel that it did not take.
_REPEAT: Final = 10.0
# How soon a job is tried again whose turn it was not.
_TURN: Final = 0.2
# How long after news of a job its records are read quickly.
_LIVELY: Final = 30.0
# Reading records may take this share of one core.
_SHARE: Final = 0.1
_LOG = logging.getLogger(__name__)
# Without one, logging prints to stderr where nobody set it up: from this thread, that is into any cell.
_LOG.addHandler(logging.NullHandler())


class Watcher:
    """Watches jobs of one job root.

    Parameters
    ----------
    root : JobRoot
        Where they lie.
    """

    def __init__(self, root: JobRoot) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._scanning = threading.Lock()
        self._wake = threading.Event()
        self._tracked: dict[str, Tracking] = {}
        self._thread: threading.Thread | None = None
        self._ledger: Ledger | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._polls: dict[str, Future[dict[str, tuple[float, bytes]]]] = {}
        self._polled: dict[str, float] = {}
        self._errands: dict[tuple[str, str], tuple[float, Future[bool]]] = {}
        self._senders = rescue.Senders(root.path)
        self._stopped = False
        self._waiters = 0

    # -- for other threads --------------------------------------------------------

    def track(self, folder: JobFolder, task: int | None = None, listener: Callable[[], None] | None = None) -> Tracking:
        """Watch a job; what is known of it already is known when this returns.

        `listener` is called on the watcher's thread after each change of the
        task, or of any task where none is named.

        Raises
        ------
        BackendError
            The job's backend is not installed here.
        """
        with self._lock:
            tracking = self._tracked.get(folder.id)
        if tracking is None:
            tracking = Tracking(folder, registry.get(folder.record.spec.backend))
            tracking.restore(time.monotonic())
        with self._lock:
            tracking = self._tracked.setdefault(folder.id, tracking) if tracking.live else tracking
            if listener is not None:
                tracking.listeners.setdefault(-1 if task is None else task, []).append(listener)
            self._start()
        self._wake.set()
        return tracking

    def _start(self) -> None:
        """Start the thread, under the lock, where something lives and none runs."""
        if self._tracked and (self._thread is None or not self._thread.is_alive()):
            self._stopped = False
            self._thread = threading.Thread(target=self._run, name="clusterkernel-watcher", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Something happened (a submission, a cancel): look now."""
        self._wake.set()

    def settle(self, jobs: Iterable[str], timeout: float) -> set[str]:
        """Wait until the platforms' words on these jobs have come in, at most `timeout` seconds.

        Returns
        -------
        set of str
            The backends that were asked and have not answered by then.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            open_ = [self._tracked[job] for job in jobs if job in self._tracked]
        with self.hurry():
            while open_ and time.monotonic() < deadline:
                open_ = [one for one in open_ if one.live and one.submitted and not one.answered]
                time.sleep(0.01)
        asked = {name for name, poll in list(self._polls.items()) if not poll.done()}
        return asked & {one.name for one in open_}

    def hurry(self) -> _Hurry:
        """A context in which records are read quickly, since somebody waits."""
        return _Hurry(self)

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread. Jobs go on; `track`, and whoever waits for a job, starts it again."""
        self._stopped = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    # -- the thread -----------------------------------------------------------------

    def _run(self) -> None:
        interval = _FAST
        while not self._stopped:
            self._wake.wait(interval)
            self._wake.clear()
            began = time.monotonic()
            with self._lock:
                tracked = list(self._tracked.values())
            if not tracked:
                with self._lock:
                    if not self._tracked:
                        self._thread = None
                        return
                continue
            try:
                self._listen_to_platforms(tracked, began)
            except (ClusterKernelError, OSError) as error:  # the ledger's disk, say
                _LOG.warning("Platforms are not asked: %s", error)
            except RuntimeError as error:
                if "shutdown" not in str(error):
                    raise
                return  # the interpreter ends, and starts no more threads
            for tracking in tracked:
                self._tell(tracking, self._scan(tracking, began))
                if not tracking.live:
                    self._forget(tracking.folder.id)
            spent = time.monotonic() - began
            lively = self._waiters or any(began - tracking.news < _LIVELY for tracking in tracked)
            interval = max(_FAST if lively else _SLOW, spent / _SHARE)

    def _scan(self, tracking: Tracking, now: float) -> list[int]:
        try:
            return tracking.scan(now)
        except OSError as error:
            # A folder that was removed under us, or a file system that hangs up.
            if not tracking.folder.is_there():
                tracking.removed()
                return list(range(len(tracking.tasks)))
            for truth in tracking.tasks:
                truth.note(f"Its folder cannot be read: {error.strerror or error}.")
            return []
        except Exception as error:  # noqa: BLE001 - whatever one job's records hold, the others are watched on
            _LOG.exception("The records of job %s cannot be read.", tracking.folder.id)
            for truth in tracking.tasks:
                truth.note(f"Its records cannot be read: {type(error).__name__}: {error}.")
            return []

    def _forget(self, job: str) -> None:
        with self._lock:
            self._tracked.pop(job, None)
        for errand in [errand for errand in self._errands if errand[1] == job]:
            del self._errands[errand]
        try:
            self._own_ledger().end(job)
        except (ClusterKernelError, OSError) as error:
            _LOG.warning("The ledger does not take the end of job %s: %s", job, error)

    @staticmethod
    def _tell(tracking: Tracking, changed: list[int]) -> None:
        for task in [*changed, -1] if changed else ():
            for listener in list(tracking.listeners.get(task, ())):
                try:
                    listener()
                except Exception:  # noqa: BLE001 - a callback of the user's must not end the watch
                    _LOG.exception("A callback of job %s failed.", tracking.folder.id)

    def _listen_to_platforms(self, tracked: list[Tracking], now: float) -> None:
        by_backend: dict[str, list[Tracking]] = {}
        for tracking in tracked:
            if tracking.submitted:
                by_backend.setdefault(tracking.name, []).append(tracking)
            if not tracking.submitted or tracking.in_part:
                self._rescue(tracking, now)
            if tracking.submitted and tracking.pending_since is not None and now - tracking.pending_since >= _REPEAT:
                self._go("cancel", tracking, now, _REPEAT, rescue.cancel)
        for name, group in by_backend.items():
            poll = self._polls.get(name)
            if poll is not None and poll.done():
                del self._polls[name]
                if poll.exception() is None:
                    for tracking in group:
                        if (answer := poll.result().get(tracking.folder.id)) is not None:
                            tracking.hear(*answer, now)
            every = min(_LOOK, group[0].backend.capabilities.poll_every)
            if name not in self._polls and now - self._polled.get(name, -every) >= every:
                self._polled[name] = now
                self._polls[name] = self._ask(name, [tracking.folder.id for tracking in group])

    def _own_pool(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(4, thread_name_prefix="clusterkernel-poll")
        return self._pool

    def _ask(self, name: str, jobs: list[str]) -> Future[dict[str, tuple[float, bytes]]]:
        """Look at what the platform said last, and ask it where that is too old."""
        ledger, backend = self._own_ledger(), registry.get(name)
        # Behind one backend there may be several clusters; one that says so is asked apart from the others.
        lane = str(getattr(backend, "lane", name))
        asked = False

        def ask() -> dict[str, bytes]:
            nonlocal asked
            asked = True
            # About all live jobs of the user: other kernels take this answer too.
            folders = [folder for folder in index.live(self.root, ledger) if _is_sent(folder, name)]
            return {job: msgspec.json.encode(list(seen)) for job, seen in backend.poll(folders).items()}

        poll = self._own_pool().submit(ledger.answers, lane, jobs, ask, max_age=backend.capabilities.poll_every)
        poll.add_done_callback(lambda _: self._wake.set() if asked else None)
        return poll

    def _own_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger(self.root.path)
        return self._ledger

    def _rescue(self, tracking: Tracking, now: float) -> None:
        """A job whose sender has ended before all of it was sent: see `rescue`."""
        if self._senders.gone(tracking.folder.record, now):
            pause = _RESCUE if tracking.in_part else tracking.backend.capabilities.poll_every
            self._go("rescue", tracking, now, pause, rescue.rescue)

    def _go(
        self, what: str, tracking: Tracking, now: float, pause: float, do: Callable[[JobFolder, Backend], None]
    ) -> None:
        """Do something about a job in a thread, and again after a pause; one kernel of a user on a host at a time."""
        folder, backend, ledger = tracking.folder, tracking.backend, self._own_ledger()
        began, earlier = self._errands.get((what, folder.id), (now, None))
        if earlier is not None:
            if not earlier.done():
                return
            error = earlier.exception()
            tried = error is not None or earlier.result()
            # Where it was the turn of another job, this one's comes soon: a killed kernel may leave many.
            if now < began + (pause if tried else _TURN):
                return
            if isinstance(error, ClusterKernelError):
                for truth in tracking.tasks:
                    truth.note(str(error))

        def run() -> bool:
            with ledger.turn(what) as mine:
                if mine:
                    do(folder, backend)
            return mine

        self._errands[what, folder.id] = now, self._own_pool().submit(run)


def _is_sent(folder: JobFolder, backend: str) -> bool:
    try:
        return folder.record.spec.backend == backend and folder.submission() is not None
    except OSError as error:  # one folder that cannot be read must not keep the others from being asked about
        _LOG.warning("Job %s is not asked about: %s", folder.id, error)
        return False


class _Hurry:
    """Counts those who wait."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def __enter__(self) -> None:
        with self._watcher._lock:
            self._watcher._waiters += 1
            self._watcher._start()
        self._watcher.wake()

    def __exit__(self, *_: object) -> None:
        with self._watcher._lock:
            self._watcher._waiters -= 1


class _Watchers:
    """The watchers of this process, by job root."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew: threads do not survive a fork, and a lock may have been held by one."""
        self.lock = threading.Lock()
        self.by_root: dict[str, Watcher] = {}


_ALL: Final = _Watchers()
os.register_at_fork(after_in_child=_ALL.forget)


def watcher(root: JobRoot) -> Watcher:
    """The process's watcher of a job root."""
    with _ALL.lock:
        return _ALL.by_root.setdefault(str(root.path), Watcher(root))


def note(folder: JobFolder, why: str) -> None:
    """A word about a job that is not sent yet, for whoever watches it."""
    with _ALL.lock:
        one = _ALL.by_root.get(str(folder.path.parent))
    tracking = one._tracked.get(folder.id) if one else None
    for truth in tracking.tasks if tracking else ():
        truth.note(why)


def stop_all() -> None:
    """End the threads of all watchers."""
    with _ALL.lock:
        watchers = list(_ALL.by_root.values())
        _ALL.by_root.clear()
    for one in watchers:
        one.stop()
