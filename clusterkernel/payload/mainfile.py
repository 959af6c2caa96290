"""The file that stands for a job's main module where worker processes import it.

`multiprocessing` with ``spawn`` or ``forkserver`` imports ``__main__.__file__``
again in each worker: the file holds what workers need to find by name, and
nothing that trains again.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from typing import Final

from clusterkernel.runtime.payloadfile import lines as source_lines

__all__ = ["of_cell", "of_function"]

_HEAD: Final = '''\
"""What worker processes of this job import as their main module: imports and definitions only."""


def _take_captured():
    import os
    import sys

    sys.path.append(os.environ["CLUSTERKERNEL_RUNTIME"])
    try:
        from ckruntime.workers import define
    finally:
        sys.path.remove(os.environ["CLUSTERKERNEL_RUNTIME"])
    define(globals(), os.path.dirname(os.path.abspath(__file__)))


_take_captured()
del _take_captured
'''
# Calls that define a type.
_FACTORIES: Final = frozenset(
    {"namedtuple", "NamedTuple", "TypedDict", "NewType", "TypeVar", "ParamSpec", "make_dataclass"}
    | {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
)


def of_function() -> str:
    """The file for a function's job: what the notebook gave."""
    return _HEAD


def of_cell(tree: ast.Module, source: str, first_line: int, captured: set[str]) -> str:
    """The file for a cell's job: what the notebook gave, and the cell's own imports and definitions.

    Parameters
    ----------
    tree : ast.Module
        The cell's, with the notebook's line numbers.
    source : str
        Its text.
    first_line : int
        The number of the first line of `source`.
    captured : set of str
        Names that the head defines.

    Notes
    -----
    A definition that needs a name which only running the cell gives is left out.
    """
    known = captured | set(dir(builtins)) | {"__name__", "__file__"}
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    kept = [node for node in tree.body if node not in future and _keep(node, known, bool(future))]
    lines = [line.rstrip("\n") for line in source_lines(source)]
    text = [ast.unparse(node) for node in future]
    head = _HEAD
    if future:
        # They come before everything but the docstring.
        doc, _, rest = _HEAD.partition("\n")
        head = "\n".join([doc, *text, rest])
    parts = []
    for node in kept:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
        part = lines[first - first_line : (node.end_lineno or node.lineno) - first_line + 1]
        if node.col_offset or _shared(node, tree):
            parts.append(ast.unparse(node))  # it has only a part of its lines
        else:
            parts.append("\n".join(part))
    return head + "".join(f"\n\n{part}\n" for part in parts)


def _shared(node: ast.stmt, tree: ast.Module) -> bool:
    """Whether another statement stands on one of its lines."""
    return any(
        other is not node and other.lineno <= (node.end_lineno or 0) and (other.end_lineno or 0) >= node.lineno
        for other in tree.body
    )


def _keep(node: ast.stmt, known: set[str], lazy: bool) -> bool:
    """Whether a statement is an import or a definition that can be made from `known`; adds what it binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        known.update((alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        return True
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if _needed(node, lazy) <= known | {node.name}:
            known.add(node.name)
            return True
        return False
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
        if _is_definition(node.value) and set(_loaded(node.value)) <= known:
            known.update(target.id for target in node.targets if isinstance(target, ast.Name))
            return True
        return False
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        needed = set(_loaded(node.value)) | (set() if lazy else set(_loaded(node.annotation)))
        if _is_definition(node.value) and needed <= known:
            known.add(node.target.id)
            return True
        return False
    if isinstance(node, ast.Try):
        # try: import x / except ImportError: x = None
        inner = [*node.body, *node.orelse, *node.finalbody, *(one for h in node.handlers for one in h.body)]
        kinds = [handler.type for handler in node.handlers if handler.type is not None]
        return all(set(_loaded(kind)) <= known for kind in kinds) and all(_keep(one, known, lazy) for one in inner)
    if isinstance(node, ast.If):
        plain = not any(isinstance(one, ast.Call | ast.NamedExpr | ast.Await) for one in ast.walk(node.test))
        if not plain or not set(_loaded(node.test)) <= known or _is_main_guard(node.test):
            return False
        return all(_keep(one, known, lazy) for one in [*node.body, *node.orelse])
    return isinstance(node, ast.Pass)


def _is_main_guard(test: ast.expr) -> bool:
    return "__name__" in _loaded(test)


def _is_definition(value: ast.expr) -> bool:
    """Whether an assigned value costs nothing: a literal, a lambda, a type made by a call."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        function = value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in _FACTORIES
    try:
        ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return isinstance(value, ast.BinOp | ast.UnaryOp) and _is_arithmetic(value)
    return True


def _is_arithmetic(value: ast.expr) -> bool:
    """``64 * 1024``, without names and without a power that takes hours."""
    allowed = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    parts = list(ast.walk(value))
    return (
        all(isinstance(part, allowed) for part in parts)
        and not any(isinstance(part, ast.Pow | ast.LShift) for part in parts)
        and all(isinstance(part.value, int | float) for part in parts if isinstance(part, ast.Constant))
    )


def _loaded(node: ast.AST | None) -> Iterator[str]:
    """Names that evaluating an expression reads; the bodies of lambdas run later."""
    if node is None:
        return
    stack: list[ast.AST] = [node]
    bound: set[str] = set()
    read: list[str] = []
    while stack:
        here = stack.pop()
        if isinstance(here, ast.Name):
            if isinstance(here.ctx, ast.Load):
                read.append(here.id)
            else:
                bound.add(here.id)
        elif isinstance(here, ast.Lambda):
            stack += [*here.args.defaults, *(one for one in here.args.kw_defaults if one is not None)]
        elif isinstance(here, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(here.name)
            read += _needed(here, False)
        elif isinstance(here, ast.Import | ast.ImportFrom):
            bound.update((alias.asname or alias.name.partition(".")[0]) for alias in here.names)
        else:
            stack += ast.iter_child_nodes(here)
    yield from (name for name in read if name not in bound)


def _needed(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, lazy: bool) -> set[str]:
    """Names that making a function or class reads."""
    found: set[str] = set()
    for decorator in node.decorator_list:
        found.update(_loaded(decorator))
    if isinstance(node, ast.ClassDef):
        for expression in [*node.bases, *(keyword.value for keyword in node.keywords)]:
            found.update(_loaded(expression))
        body = ast.Module(body=node.body, type_ignores=[])
        found.update(_loaded(body))
        return found - {"__qualname__", "__module__"}
    arguments = node.args
    for default in [*arguments.defaults, *arguments.kw_defaults]:
        found.update(_loaded(default))
    if not lazy:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        for argument in every:
            found.update(_loaded(argument.annotation) if argument is not None else ())
        found.update(_loaded(node.returns))
    return found
