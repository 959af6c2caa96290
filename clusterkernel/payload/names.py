"""Which names a cell reads from outside and which it binds, from its source alone.

The cell's top level is followed in the order in which it runs. A name counts as
*read* where, on some way through the cell, its outside value may be seen: it has
not surely been bound (or deleted) by then. Where the source cannot tell, the
safe side is to count it as read, since a captured name that is not needed costs
a little and a missing one costs the job:

* A ``with`` may swallow an exception, so what its body binds is not sure after
  it; a short list of everyday context managers (``open``, ``no_grad``, ...) is
  known not to.
* A loop's body may run zero times, a ``try`` may stop at its first line, the
  right side of ``and`` may be left out.
* The body of a function is read when the function may first run: when its name
  is first used, or at its definition where a decorator (or a base class, for
  methods) gets hold of it, or where the cell uses ``eval``, ``globals`` and the
  like. What is bound by then does not count; what is bound later does.
* After ``from x import *`` any name may have come from it.

`CellNames.doubtful` says which of the read names may well come from the cell
itself. Beyond a reader of source: names inside strings given to ``eval`` or
``exec``, and code from outside the cell that looks up a function of the cell in
``__main__``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import warnings
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from clusterkernel.errors import PayloadError
from clusterkernel.payload.flow import Flow
from clusterkernel.payload.scopes import SHELL, Kind
from clusterkernel.runtime.payloadfile import lines as source_lines

__all__ = ["BUILTINS", "Assigned", "CellNames", "Kind", "analyse", "not_builtin", "parse"]

#: What every fresh ``__main__`` has without being given it.
BUILTINS: Final = (frozenset(dir(builtins)) - {"display", "get_ipython", "__IPYTHON__", "_"}) | {
    "__annotations__",
    "__builtins__",
    "__cached__",
    "__doc__",
    "__file__",
    "__loader__",
    "__name__",
    "__package__",
    "__spec__",
    SHELL,
}


class Assigned(msgspec.Struct, frozen=True):
    """A name that the cell may bind at its top level.

    Attributes
    ----------
    name : str
        The name.
    kind : Kind
        What binds it; ``VALUE`` where several things do.
    line : int
        Where it is first bound.
    """

    name: str
    kind: Kind
    line: int


class CellNames(msgspec.Struct, frozen=True):
    """What a cell does with names.

    Attributes
    ----------
    reads : frozenset of str
        Names whose outside value the cell may see. Builtins are among them (see `not_builtin`).
    read_lines : dict of str to int
        The same names, with the first line that reads each, in that order.
    doubtful : frozenset of str
        Those of `reads` that the cell may well bind itself before it reads them, or can do without.
    assigns : tuple of Assigned
        Every top-level name that the cell may bind, in order; loop variables and ``global`` in functions too.
    deletes : tuple of str
        Top-level names in a ``del``.
    stars : tuple of str
        Modules that it imports ``*`` from.
    awaits : bool
        Whether the top level awaits.
    """

    reads: frozenset[str]
    read_lines: dict[str, int]
    doubtful: frozenset[str]
    assigns: tuple[Assigned, ...]
    deletes: tuple[str, ...]
    stars: tuple[str, ...]
    awaits: bool


def parse(source: str, *, first_line: int = 1) -> ast.Module:
    """The cell's syntax tree, with the notebook's line numbers; all that the compiler refuses is refused.

    Raises
    ------
    PayloadError
        The source is not Python: the line and its text, in one line.
    """
    return _compile(source, first_line)[0]


def analyse(source: str, *, first_line: int = 1) -> CellNames:
    """Which names a cell reads and binds.

    Parameters
    ----------
    source : str
        The cell's body as Python (``!`` lines translated by `shell.translate`).
    first_line : int
        The number of its first line in the notebook's cell.

    Raises
    ------
    PayloadError
        The source is not Python: the line and its text, in one line.

    Examples
    --------
    >>> names = analyse("import math; y = math.sin(x)")
    >>> sorted(names.reads), [one.name for one in names.assigns]
    (['x'], ['math', 'y'])
    """
    tree, awaits = _compile(source, first_line)
    flow = Flow()
    try:
        flow.run(tree)
    except RecursionError:
        raise PayloadError(
            "The cell is nested too deeply to be read.", hint="Split its longest expression or elif chain."
        ) from None
    lines = dict(sorted(flow.reads.items(), key=lambda item: item[1]))
    return CellNames(
        reads=frozenset(lines),
        read_lines=lines,
        doubtful=frozenset(lines) - flow.certain(),
        assigns=tuple(Assigned(name, kind, line) for name, (kind, line) in flow.assigns.items()),
        deletes=tuple(flow.deletes),
        stars=tuple(flow.stars),
        awaits=awaits,
    )


def not_builtin(names: Iterable[str]) -> list[str]:
    """Those names that a fresh ``__main__`` lacks, in the order given."""
    return [name for name in names if name not in BUILTINS]


def _compile(source: str, first_line: int) -> tuple[ast.Module, bool]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # how older versions warn of "\d"
        try:
            tree = ast.parse(source)
            code: Any = compile(tree, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except SyntaxError as error:
            raise _refusal(error, source, first_line) from None
        except (ValueError, RecursionError, MemoryError) as error:  # a NUL byte; nested beyond the parser's depth
            raise PayloadError(f"The cell is not valid Python: {error}.") from None
    if first_line != 1:
        ast.increment_lineno(tree, first_line - 1)
    return tree, bool(code.co_flags & inspect.CO_COROUTINE)


def _refusal(error: SyntaxError, source: str, first_line: int) -> PayloadError:
    line = error.lineno or 1
    lines = source_lines(source)
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    where = f"line {line + first_line - 1}"
    if len(text) > 80:
        text = text[:77] + "..."
    message = f"The cell has a syntax error on {where}: {error.msg}" + (f": {text!r}." if text else ".")
    return PayloadError(message, hint="Mend the line and run the cell again.")
