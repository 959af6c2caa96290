"""Names that come back: bound on the main thread, between cells, where their placeholder still stands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from clusterkernel.errors import ClusterKernelError
from clusterkernel.language import plural
from clusterkernel.magics.cards import Cards
from clusterkernel.magics.notebook import interactive, kernel_of
from clusterkernel.magics.pending import WHOLE, Pending, job_of, pending_names, still_pending

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from clusterkernel.jobs import Job

__all__ = ["Deliveries"]


class _Delivery:
    def __init__(self, job: Job, placeholders: dict[str, Pending]) -> None:
        self.job = job
        self.placeholders = placeholders


class Deliveries:
    """The names that jobs have yet to deliver into a shell's namespace.

    Parameters
    ----------
    shell : InteractiveShell
        Whose namespace.
    limit : callable
        Gives the bytes above which a job's names are not bound by themselves.
    """

    def __init__(self, shell: InteractiveShell, limit: Callable[[], int]) -> None:
        self._shell = shell
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: dict[str, list[_Delivery]] = {}
        self._ended: list[_Delivery] = []
        #: Names that were bound and that no cell has read since: what was bound, and whose job made it.
        self.unused: dict[str, tuple[object, Job]] = {}
        self._in_cell = True  # whoever makes this is in one
        self._closed = False
        self.cards = Cards(shell, self.expects)

    def expects(self, job_id: str) -> bool:
        """Whether names of this job are still to be bound here."""
        with self._lock:
            return job_id in self._waiting

    def expect(self, job: Job, names: Sequence[str]) -> None:
        """Put placeholders for what `job` will deliver, and bind the values when it has ended."""
        delivery = _Delivery(job, {name: Pending(name, job) for name in names})
        self._shell.user_ns.update(delivery.placeholders)
        self._await(delivery)

    def adopt(self) -> None:
        """Take over the placeholders that stand there, from an extension that was loaded before."""
        by_job: dict[str, dict[str, Pending]] = {}
        for name, value in pending_names(self._shell.user_ns).items():
            by_job.setdefault(job_of(value).id, {})[name] = value
        for placeholders in by_job.values():
            job = job_of(next(iter(placeholders.values())))
            job.wait(0)  # it is watched again
            self._await(_Delivery(job, placeholders))

    def close(self) -> None:
        """Bind nothing more."""
        self._closed = True

    def _await(self, delivery: _Delivery) -> None:
        job = delivery.job
        with self._lock:
            self._waiting.setdefault(job.id, []).append(delivery)
        job.add_done_callback(lambda _: self._on_end(delivery))

    def _on_end(self, delivery: _Delivery) -> None:
        """On the watcher's thread, or on ours where the job had ended already."""
        with self._lock:
            self._ended.append(delivery)
        self._schedule()

    def _schedule(self) -> None:
        if (loop := getattr(kernel_of(self._shell), "io_loop", None)) is not None:
            loop.add_callback(self._between_cells)

    def _between_cells(self) -> None:
        # Inside an async cell the loop runs at each of its awaits.
        if not self._in_cell:
            self.collect()

    def before_cell(self, *_: Any) -> None:
        """For IPython's ``pre_execute``."""
        if threading.current_thread() is threading.main_thread():
            self.collect()
            self._in_cell = self.cards.in_cell = True

    def after_cell(self, *_: Any) -> None:
        """For IPython's ``post_execute``."""
        if threading.current_thread() is threading.main_thread():
            self.cards.flush()
            self._in_cell = self.cards.in_cell = False
            if self._ended:
                self._schedule()

    def collect(self) -> None:
        """Bind what has come; on the main thread."""
        if self._closed or threading.current_thread() is not threading.main_thread():
            return
        while True:
            with self._lock:
                if not self._ended:
                    return
                delivery = self._ended.pop(0)
            bound, note = self._bind(delivery)
            # Told first: a card that expects nothing more is left as it is.
            self.cards.delivered(delivery.job, bound=bound, note=note)
            with self._lock:
                others = self._waiting.get(delivery.job.id, [])
                if delivery in others:
                    others.remove(delivery)
                if not others:
                    self._waiting.pop(delivery.job.id, None)
            self.cards.settle()

    def _bind(self, delivery: _Delivery) -> tuple[tuple[str, ...], str]:
        """What was bound, and what a person should know."""
        from clusterkernel.render import format_size

        job, namespace = delivery.job, self._shell.user_ns
        if job.state not in WHOLE:
            return (), ""
        standing = [name for name, mark in delivery.placeholders.items() if namespace.get(name) is mark]
        saved = {name: output for name, output in job.summary().outputs.items() if not output.error}
        wanted = [name for name in standing if name in saved]
        size = sum(saved[name].size for name in wanted)
        if size > (limit := self._limit()):
            return (), (
                f"{', '.join(wanted)} take{'s' * (len(wanted) == 1)} {format_size(size)}, more than "
                f"{format_size(limit)}, and {'is' if len(wanted) == 1 else 'are'} not bound by "
                f"{'itself' if len(wanted) == 1 else 'themselves'}."
            )
        try:
            values = {name: job.outputs[name] for name in wanted}
        except ClusterKernelError as error:
            return (), str(error)
        namespace.update(values)
        if values and interactive(self._shell):
            # A kernel may die before anybody saw them: run again, the cell is to find what the job made.
            self.unused.update({name: (value, job) for name, value in values.items()})
        else:
            job.folder.write_delivered(tuple(wanted))
        taken = [
            name
            for name in delivery.placeholders
            if name in saved and name not in wanted and name in namespace and type(namespace[name]) is not Pending
        ]
        note = plural(
            "{names} was not bound: it was assigned here meanwhile. %cluster_bind {id} {all} takes the job's.",
            "{names} were not bound: they were assigned here meanwhile. %cluster_bind {id} {all} takes the job's.",
            len(taken),
            names=", ".join(taken),
            all=" ".join(taken),
            id=job.id,
        )
        return tuple(wanted), note if taken else ""

    def use(self, names: Iterable[str]) -> None:
        """A cell reads these names: what was bound to them has been taken, and the job's cell may run anew."""
        namespace = self._shell.user_ns
        self.unused = {name: held for name, held in self.unused.items() if namespace.get(name) is held[0]}
        for name in names:
            if name in self.unused:
                self.unused.pop(name)[1].folder.write_delivered((name,))

    def bind_now(self, name: str, value: Pending) -> BaseException | None:
        """Bind what an ended job saved, whatever its size, since somebody waited for it.

        Returns
        -------
        BaseException or None
            Why it is not there.
        """
        job = job_of(value)
        if job.state not in WHOLE:
            return job.exception()
        if name not in job.outputs:
            return still_pending(value)
        try:
            self._shell.user_ns[name] = job.outputs[name]
        except ClusterKernelError as error:
            return error
        job.folder.write_delivered((name,))
        self.cards.delivered(job, bound=(name,), note="")
        return None
