"""The threads that send jobs, so that the kernel's never waits for a controller."""

from __future__ import annotations

import contextlib
import heapq
import logging
import threading
import time
from pathlib import Path
from typing import Final

from clusterkernel import rescue, watcher
from clusterkernel.backends import registry
from clusterkernel.errors import BackendUnavailable, ClusterKernelError, LimitReached
from clusterkernel.files import make_private, write_atomic
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import Submission, identity

__all__ = ["Submitter"]

# After an attempt that got no answer, doubled each time.
_PAUSE: Final = 1.0
_LONGEST: Final = 30.0
# After one that met a limit of submitted jobs: others have to end first.
_LIMIT_PAUSE: Final = 20.0
_LOOK: Final = 0.5
# Between two beats; see `rescue.Senders`.
_BEAT: Final = 20.0
_LOG = logging.getLogger(__name__)
# Without one, logging prints to stderr where nobody set it up: from this thread, that is into any cell.
_LOG.addHandler(logging.NullHandler())


class _Item:
    """A job that is to be sent."""

    def __init__(self, folder: JobFolder, number: int) -> None:
        self.folder = folder
        self.number = number
        self.due = 0.0
        self.tried = False  # without an answer: it may have been taken

    def __lt__(self, other: _Item) -> bool:
        return (self.due, self.number) < (other.due, other.number)


class Submitter:
    """Sends jobs, those of one backend one after another from a thread of its own.

    A controller that does not answer is asked again, but only after a look for
    the job by its key: a submission whose answer got lost is not sent twice.
    What meets a limit of submitted jobs is tried again while the others go on.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._lock = threading.Lock()

    def submit(self, folder: JobFolder) -> None:
        """Send the job soon; the folder says how it went."""
        with self._lock:
            lane = self._lanes.setdefault(name := folder.record.spec.backend, _Lane(name))
        lane.add(folder)

    def stop(self) -> None:
        """Give up on what is not sent yet."""
        for lane in self._lanes.values():
            lane.stop()


class _Lane:
    """The jobs of one backend, in their order.

    Its thread is there while something is to be sent. A process that ends
    waits for it, but not for a controller that is away: another kernel finds
    out what became of such a job (see `rescue`).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiting: list[_Item] = []
        self._count = 0
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._not_before = 0.0
        self._pause = _PAUSE
        self._roots: set[Path] = set()

    def add(self, folder: JobFolder) -> None:
        with self._changed:
            self._count += 1
            heapq.heappush(self._waiting, _Item(folder, self._count))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"clusterkernel-submit-{self._name}")
                self._thread.daemon = False
                self._thread.start()
                beat = threading.Thread(target=self._beat, args=(self._thread,), daemon=True)
                beat.name = f"clusterkernel-beat-{self._name}"
                beat.start()
            self._roots.add(folder.path.parent)
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            folder = item.folder
            try:
                again, refused = self._send(item), ""
            except ClusterKernelError as error:
                again, refused = False, str(error)
            except Exception as error:  # noqa: BLE001 - one job must not keep the others from being sent
                _LOG.exception("Job %s could not be sent.", folder.id)
                again, refused = False, f"The job could not be sent: {type(error).__name__}: {error}"
            if refused and not _refuse(folder, refused):
                again, item.tried, item.due = True, True, time.monotonic() + _LIMIT_PAUSE
            if again:
                with self._changed:
                    heapq.heappush(self._waiting, item)
            watcher.watcher(JobRoot(folder.path.parent)).wake()

    def _beat(self, sending: threading.Thread) -> None:
        """While something waits to be sent for long, say so to other hosts: they cannot see this process."""
        me, files = identity()["submitter"], set()
        while True:
            sending.join(_BEAT)
            if not sending.is_alive():
                break
            for file in {rescue.beat_file(root, me) for root in set(self._roots)}:
                files.add(file)
                with contextlib.suppress(OSError):  # the job root is away
                    make_private(file.parent)
                    write_atomic(file, str(time.time_ns()).encode())
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink()

    def _next(self) -> _Item | None:
        """The next job whose time has come; None where none is left to be sent by this process."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if not self._waiting or self._stopped:
                    break
                pause = max(self._waiting[0].due, self._not_before) - time.monotonic()
                if pause <= 0:
                    return heapq.heappop(self._waiting)
                if not threading.main_thread().is_alive():
                    break
                self._changed.wait(min(pause, _LOOK))
            self._thread = None
            return None

    def _drop_cancelled(self) -> None:
        """What was surely not taken and is cancelled need not wait for its turn."""
        for item in [item for item in self._waiting if not item.tried and _is_cancelled(item.folder)]:
            self._waiting.remove(item)
            _refuse(item.folder, rescue.CANCELLED)
            watcher.watcher(JobRoot(item.folder.path.parent)).wake()
        heapq.heapify(self._waiting)

    def _send(self, item: _Item) -> bool:
        """Try to send a job. Whether it, or a part of it, is to be tried again."""
        backend, folder = registry.get(self._name), item.folder
        try:
            if item.tried:
                # It may have been taken, or may yet be: then it is found, and cannot run where it is given up.
                found = backend.find(folder)
                if found is not None:
                    folder.add_submission(found)
                if folder.cancel_request() == () and not rescue.withdraw(folder, backend):
                    folder.write_refused(rescue.CANCELLED)
                    return False
            submission = folder.submission()
            if submission is None or rescue.unsent(folder.record, submission):
                if folder.refused():
                    return False  # this process was stopped for so long that another gave the job up
                folder.prepare()
                folder.verify()
                submission = _keep(folder, backend.submit(folder))
        except LimitReached as error:
            watcher.note(folder, f"{error} It is sent by itself then.")
            item.due = time.monotonic() + _LIMIT_PAUSE
            return True
        except BackendUnavailable as error:
            item.tried = True
            watcher.note(folder, f"{error} It is sent again by itself.")
            self._not_before = time.monotonic() + self._pause
            self._pause = min(self._pause * 2, _LONGEST)
            return True
        self._pause = _PAUSE
        try:
            rescue.cancel(folder, backend)  # one that was asked for while the job was on its way
        except ClusterKernelError as error:
            watcher.note(folder, f"{error} It is told again by itself.")
        if rescue.unsent(folder.record, submission):
            item.due = time.monotonic() + _LIMIT_PAUSE
            return True
        return False


def _keep(folder: JobFolder, answer: Submission) -> Submission:
    """Write down that the platform took the job. Where that cannot be done the job is looked for again, by its key."""
    try:
        return folder.add_submission(answer)
    except OSError as error:
        raise BackendUnavailable(f"The platform's answer cannot be written: {error.strerror or error}.") from error


def _refuse(folder: JobFolder, why: str) -> bool:
    """Write down why a job is not sent. Whether that is done, or nobody can be told any more."""
    try:
        folder.write_refused(why)
    except OSError as error:
        watcher.note(folder, f"{why} That cannot be written down: {error.strerror or error}.")
        return not folder.path.is_dir()
    return True


def _is_cancelled(folder: JobFolder) -> bool:
    try:
        return folder.cancel_request() == ()
    except OSError:
        return False  # the file system is away: the sending says so
