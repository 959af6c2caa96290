"""Waiting that an interrupt ends, and only the waiting."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from clusterkernel.language import plural, say

if TYPE_CHECKING:
    from clusterkernel.jobs import Job

__all__ = ["WaitStopped", "interruptible", "wait_for"]

_STEP: Final = 0.5


class WaitStopped(KeyboardInterrupt):
    """The person stopped waiting; the job goes on."""

    def _render_traceback_(self, *_: object, **__: object) -> list[str]:
        return [str(self)]


def stopped(jobs: Sequence[Job]) -> WaitStopped:
    """What to raise where a wait for `jobs` was interrupted."""
    live = [job.id for job in jobs if not job.done()]
    if not live:
        return WaitStopped(say("Stopped."))
    ids = " ".join(live[:8])
    named = say("{ids} and {count} more", ids=ids, count=len(live) - 8) if len(live) > 8 else ids
    return WaitStopped(
        plural(
            "Stopped waiting. Job {named} goes on; %cluster_cancel {ids} ends it.",
            "Stopped waiting. Jobs {named} go on; %cluster_cancel {ids} ends them.",
            len(live),
            named=named,
            ids=ids,
        )
    )


@contextlib.contextmanager
def interruptible(jobs: Sequence[Job]) -> Iterator[None]:
    """An interrupt ends what is done in here at once, and says that the jobs go on.

    Under a top-level ``await`` ipykernel only notes it for the event loop, which does not run while we wait.

    Raises
    ------
    WaitStopped
        Interrupted.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler) if main else None
    try:
        yield
    except WaitStopped:
        raise
    except KeyboardInterrupt:
        raise stopped(jobs) from None
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


def wait_for(jobs: Sequence[Job], *, timeout: float | None = None) -> bool:
    """Wait until all `jobs` have ended.

    Parameters
    ----------
    jobs : sequence of Job
        What to wait for.
    timeout : float, optional
        Seconds; None waits on.

    Returns
    -------
    bool
        Whether all have ended.

    Raises
    ------
    WaitStopped
        Interrupted.
    """
    end = None if timeout is None else time.monotonic() + timeout
    with interruptible(jobs):
        for job in jobs:
            while not job.done():
                left = _STEP if end is None else min(_STEP, end - time.monotonic())
                if left <= 0:
                    return False
                job.wait(left)
    return True
