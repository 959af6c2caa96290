"""The thread that sends jobs, so that the kernel's never waits for a controller."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

from clusterkernel import watcher
from clusterkernel.backends import registry
from clusterkernel.backends.base import Backend
from clusterkernel.errors import BackendError, BackendUnavailable, ClusterKernelError
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import Submission

__all__ = ["Submitter"]


class Submitter:
    """Sends jobs, one after another, from a thread of its own.

    A controller that does not answer is asked again, but only after a look for
    the job by its key: a submission whose answer got lost is not sent twice.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="clusterkernel-submit")
        self._stopped = threading.Event()

    def submit(self, folder: JobFolder) -> Future[None]:
        """Send the job soon; the folder says how it went."""
        return self._pool.submit(self._send, folder)

    def stop(self) -> None:
        """Give up on what is not sent yet."""
        self._stopped.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, folder: JobFolder) -> None:
        pause = 1.0
        try:
            backend = registry.get(folder.record.spec.backend)
            while True:
                if folder.cancel_request() is not None:
                    folder.write_refused("It was cancelled before it was sent.")
                    return
                try:
                    folder.write_submission(backend.submit(folder))
                    return
                except BackendUnavailable as error:
                    watcher.note(folder, f"{error} It is sent again by itself.")
                    if self._stopped.wait(pause):
                        raise
                    pause = min(pause * 2, 30.0)
                    if (found := self._find(backend, folder)) is not None:
                        folder.write_submission(found)
                        return
        except ClusterKernelError as error:
            folder.write_refused(str(error))
        except Exception as error:
            folder.write_refused(f"The job could not be sent: {type(error).__name__}: {error}")
            raise
        finally:
            watcher.watcher(JobRoot(folder.path.parent)).wake()

    @staticmethod
    def _find(backend: Backend, folder: JobFolder) -> Submission | None:
        try:
            return backend.find(folder)
        except BackendError:
            return None
