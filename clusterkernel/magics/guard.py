"""Keeps a cell from running on a name that a job has yet to deliver."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from IPython.core.error import InputRejected

from clusterkernel.language import say
from clusterkernel.magics.binding import Deliveries
from clusterkernel.magics.pending import Pending, job_of, pending_names, still_pending
from clusterkernel.magics.waiting import WaitStopped, wait_for

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["Guard"]

# IPython's spelling of `!command`, in which {name} and $name are values.
_SHELL_CALLS: Final = frozenset({"system", "getoutput", "getoutput_as_list"})
# Magics whose line or cell is Python that runs here and now.
_RUNNING: Final = frozenset({"capture", "lprun", "memit", "mprun", "prun", "time", "timeit"})
_FLAGS: Final = re.compile(r"^(\s*-\w+(\s*\d+)?)+\s+")
_IN_SHELL: Final = re.compile(r"[{$]\s*([A-Za-z_]\w*)")


class Guard(ast.NodeTransformer):
    """An AST transformer that changes nothing, and refuses or waits.

    Parameters
    ----------
    shell : InteractiveShell
        Whose cells.
    deliveries : Deliveries
        Binds what has come.
    waits : callable
        Whether to wait for a name, or to refuse the cell.
    """

    def __init__(self, shell: InteractiveShell, deliveries: Deliveries, waits: Callable[[], bool]) -> None:
        self._shell = shell
        self._deliveries = deliveries
        self._waits = waits

    def visit(self, node: ast.AST) -> ast.AST:
        """Called by IPython with each cell before it runs.

        Raises
        ------
        InputRejected
            The cell reads a name that is not there; with that error's name and lines.
        """
        if self._deliveries.unused or pending_names(self._shell.user_ns):
            self._deliveries.collect()
            error = self.missing(self._read_by(node))
            if error is not None:
                reject(error)
        return node

    def missing(self, names: Sequence[str]) -> BaseException | None:
        """Wait for `names`, which a cell is about to use, where that is wanted.

        Returns
        -------
        BaseException or None
            Why one of them is not there: it has yet to come, its job ended
            badly (then that job's own error), the wait was interrupted.
        """
        waiting = pending_names(self._shell.user_ns)
        needed = {name: waiting[name] for name in names if name in waiting}
        if needed and (error := self._wait_for(needed)) is not None:
            return error
        self._deliveries.use(names)
        return None

    def _wait_for(self, needed: Mapping[str, Pending]) -> BaseException | None:
        if not self._waits():
            return still_pending(next(iter(needed.values())))
        jobs = {job_of(value).id: job_of(value) for value in needed.values()}
        try:
            for job in jobs.values():
                if not job.done():
                    names = ", ".join(needed)
                    print(say("Waiting for {names} of job {id} ({state}).", names=names, id=job.id, state=job.state))
            wait_for(list(jobs.values()))
        except WaitStopped as stopped:
            return stopped
        self._deliveries.collect()
        self._deliveries.cards.flush()
        for name, value in needed.items():
            if self._shell.user_ns.get(name) is value and (error := self._deliveries.bind_now(name, value)) is not None:
                return error
        return None

    def _read_by(self, tree: ast.AST) -> list[str]:
        """Names that the cell reads, also through the notebook's functions and classes."""
        from clusterkernel.magics.reach import (  # only where something is pending: loading must be quick
            reach,
            reach_of_tree,
        )

        # A cell that may bind the name itself is let run, and raises where it does not; waiting spares it that.
        found = dict.fromkeys(reach_of_tree(tree, self._shell.user_ns, doubtful=self._waits()))
        for name, text in _shell_calls(tree):
            if name in _SHELL_CALLS:
                found.update(dict.fromkeys(_IN_SHELL.findall(text)))
            elif name in _RUNNING:
                found.update(dict.fromkeys(reach(_FLAGS.sub("", text), self._shell.user_ns)))
        return list(found)


def _shell_calls(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What IPython makes of ``!command`` and of magics: their names with their lines and cells."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if node.func.attr in _SHELL_CALLS:
                yield from ((node.func.attr, text) for text in texts)
            elif node.func.attr in ("run_line_magic", "run_cell_magic") and texts:
                yield from ((texts[0], text) for text in texts[1:])


def reject(error: BaseException) -> NoReturn:
    """Have IPython refuse the cell with `error`'s own name and lines."""
    render = getattr(error, "_render_traceback_", None)
    lines: list[str] = list(render()) if render else [f"{type(error).__name__}: {error}"]

    def shown(self: BaseException, *_: Any, **__: Any) -> list[str]:
        return lines

    kind = type(type(error).__name__, (InputRejected,), {"_render_traceback_": shown})
    raise kind(str(error)) from None
