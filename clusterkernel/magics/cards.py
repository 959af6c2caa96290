"""The cards of live jobs: one display each, kept up to date from one thread.

Only an update by display id finds its own cell from a thread; a print or a new
display would land in whichever cell runs now.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from clusterkernel.errors import ClusterKernelError
from clusterkernel.magics.notebook import in_kernel

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from clusterkernel.arrays import JobArray
    from clusterkernel.jobs import Job

__all__ = ["Cards", "publish"]

# At most two updates a second; fewer for a job that runs long: a server keeps
# what it sends for a browser that is away.
_SHORTEST: Final = 0.5
_LONGEST: Final = 15.0


class _Card:
    """One display of one job."""

    def __init__(self, job: Job | JobArray) -> None:
        self.job = job
        self.display_id = os.urandom(16).hex()
        self.bound: tuple[str, ...] = ()
        self.note = ""
        self.dirty = False
        self.final = False
        self.missed = False  # sent while no cell ran
        self.shown = 0
        self.born = self.painted = time.monotonic()

    def bundle(self) -> dict[str, Any]:
        """The card now. Finds out whether the job has ended."""
        from clusterkernel import render

        now = time.time()
        if isinstance(self.job, Sequence):
            return self._array_bundle(self.job, now)
        view = self.job.summary()
        self.final = view.state.terminal
        return render.bundle(view, render.Around(now=now, bound=self.bound, note=self.note))

    def _array_bundle(self, jobs: JobArray, now: float) -> dict[str, Any]:
        from clusterkernel import render

        ended = jobs.done()  # first: one that ends meanwhile is to be painted once more
        # Only the tasks that are shown are read in full: an array may have thousands.
        order = sorted(jobs, key=lambda job: render.attention(job.state))
        views = [job.summary(tail=0) for job in order[: render.ARRAY_ROWS]]
        self.final = ended
        return render.array_bundle(jobs.id, jobs.counts(), views, name=jobs.name, now=now)

    def due(self) -> float:
        """When it is to be painted again, on the monotonic clock."""
        if self.dirty:
            return self.painted + _SHORTEST
        if self.final:
            return math.inf  # waits for its names
        return self.painted + min(max(1.0, (self.painted - self.born) / 60), _LONGEST)


def publish(bundle: dict[str, Any], *, display_id: str = "", update: bool = False) -> None:
    """Display a bundle, or replace the display that has this id."""
    from IPython.display import publish_display_data

    transient = {"display_id": display_id} if display_id else None
    publish_display_data(bundle, transient=transient, **({"update": True} if update else {}))  # type: ignore[no-untyped-call]


class Cards:
    """All cards of a kernel.

    Parameters
    ----------
    shell : InteractiveShell
        Where they are displayed.
    expects : callable
        Whether names of the job with this id are still to be bound here.
    """

    def __init__(self, shell: InteractiveShell, expects: Callable[[str], bool]) -> None:
        self._shell = shell
        self._expects = expects
        self._condition = threading.Condition()
        self._painting = threading.Lock()
        self._live: list[_Card] = []
        self._thread: threading.Thread | None = None
        self._stopped = False
        # What became of a job's names in this kernel, for cards that are shown later.
        self._told: dict[str, tuple[tuple[str, ...], str]] = {}
        self._just_shown: tuple[int, set[str]] = (0, set())
        #: Whether a cell runs: who executes a notebook without a browser hears nothing between cells.
        self.in_cell = False

    def show(self, job: Job | JobArray) -> None:
        """Display a job's card and keep it up to date; on the main thread.

        IPython shows the value of a cell's last line by itself: that value is
        left alone there once.
        """
        self._display(job)
        count = self._shell.execution_count
        if self._just_shown[0] != count:
            self._just_shown = (count, set())
        self._just_shown[1].add(job.id)

    def formatter(self, job: Job | JobArray) -> None:
        """For IPython's ``ipython_display_formatter``."""
        count, ids = self._just_shown
        if count == self._shell.execution_count and job.id in ids:
            ids.discard(job.id)
        else:
            self._display(job)

    def _display(self, job: Job | JobArray) -> None:
        card = _Card(job)
        card.bound, card.note = self._told.get(job.id, ((), ""))
        bundle = card.bundle()
        if card.final:
            job.folder.write_seen()
        if not in_kernel(self._shell):
            publish(bundle)
            return
        card.shown = hash(bundle["text/html"])
        publish(bundle, display_id=card.display_id)
        if card.final and not self._expects(job.id):
            return
        with self._condition:
            self._live.append(card)
            if not self._stopped and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="clusterkernel-cards", daemon=True)
                self._thread.start()
        for one in job if isinstance(job, Sequence) else [job]:
            one.add_state_callback(self._changed)

    def _changed(self, job: Job) -> None:
        # On the watcher's thread: only take note.
        with self._condition:
            for card in self._live:
                if card.job.id in (job.id, job.folder.id):  # its own, or its array's
                    card.dirty = True
            self._condition.notify()
        if job.state.terminal:
            job.remove_state_callback(self._changed)

    def delivered(self, job: Job, *, bound: tuple[str, ...], note: str) -> None:
        """Say on the job's cards what became of its names; from any thread."""
        with self._condition:
            before, _ = self._told.get(job.id, ((), ""))
            told = self._told[job.id] = (tuple(dict.fromkeys((*before, *bound))), note)
            for card in self._live:
                if card.job is job:
                    card.bound, card.note = told
                    card.dirty = True
            self._condition.notify()

    def flush(self) -> None:
        """Show the ends that are not shown yet, now: the cell may be the notebook's last."""
        with self._condition:
            due = [card for card in self._live if (card.dirty or card.missed or not card.final) and card.job.done()]
            for card in due:
                card.dirty = False
        for card in due:
            self._paint(card)

    def stop(self) -> None:
        """Leave all cards as they are."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._stopped or not self._live:
                    self._thread = None
                    return
                now = time.monotonic()
                due = [card for card in self._live if card.due() <= now]
                if not due:
                    wait = min(card.due() for card in self._live) - now
                    self._condition.wait(None if wait == math.inf else max(0.01, wait))
                    continue
                for card in due:
                    card.dirty = False
            for card in due:
                self._paint(card)

    def _paint(self, card: _Card) -> None:
        with self._painting:
            card.painted = time.monotonic()
            try:
                bundle = card.bundle()
            except (ClusterKernelError, OSError):
                # Its folder was removed, or the file system hangs up: the card stays, and is looked at again later.
                card.born = card.painted - 60 * _LONGEST
                return
            shown = hash(bundle["text/html"])
            if card.shown != shown or (card.missed and self.in_cell):
                card.shown, card.missed = shown, not self.in_cell
                publish(bundle, display_id=card.display_id, update=True)
                if card.final and not card.missed:
                    card.job.folder.write_seen()
        self.settle()

    def settle(self) -> None:
        """Let go of the cards that show all that will ever be on them."""
        with self._condition:
            self._live = [
                card for card in self._live if not card.final or card.dirty or card.missed or self._expects(card.job.id)
            ]
            self._condition.notify()
