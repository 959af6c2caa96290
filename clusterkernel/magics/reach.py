"""Which names a cell reads, also through the notebook's own functions and classes."""

from __future__ import annotations

import ast
import dis
import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from clusterkernel.errors import PayloadError
from clusterkernel.payload import names as cell_names

__all__ = ["assigned", "reach", "read"]


def read(source: str) -> list[str]:
    """Names whose value from outside the cell may see; none where it is no program."""
    try:
        return list(cell_names.analyse(source).read_lines)
    except PayloadError:
        return []


def assigned(source: str) -> list[str]:
    """Names that the cell binds at its top level; none where it is no program."""
    try:
        return [one.name for one in cell_names.analyse(source).assigns]
    except PayloadError:
        return []


def reach(tree: ast.AST, namespace: Mapping[str, Any], *, doubtful: bool) -> Iterator[str]:
    """The names that a cell reads, then those that the functions and classes among them read.

    Parameters
    ----------
    tree : ast.AST
        The parsed cell.
    namespace : mapping
        The notebook's names.
    doubtful : bool
        Whether to count names that the cell may well bind itself before it reads them.
    """
    try:
        found = cell_names.analyse(ast.unparse(tree))
    except PayloadError:
        return  # Python says what is wrong with it
    todo = [name for name in found.read_lines if doubtful or name not in found.doubtful]
    seen = set(todo)
    while todo:
        name = todo.pop(0)
        yield name
        if name in namespace:
            for other in _globals_of(namespace[name], namespace):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)


def _globals_of(value: object, namespace: Mapping[str, Any]) -> Iterator[str]:
    """Global names that the notebook's own code behind `value` reads when it is used."""
    for function in _functions(value):
        if function.__globals__ is namespace:
            yield from _loaded(function.__code__)
        for cell in function.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:
                continue  # not set yet
            if isinstance(inner, FunctionType) and inner is not function:
                yield from _globals_of(inner, namespace)


def _functions(value: object) -> Iterator[FunctionType]:
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        yield value
        inner = getattr(value, "__wrapped__", None)
        if isinstance(inner, FunctionType):
            yield inner
        return
    cls = value if isinstance(value, type) else type(value)
    for base in cls.__mro__:
        if base.__module__ != "__main__":
            continue
        for member in vars(base).values():
            parts = (member.fget, member.fset) if isinstance(member, property) else (member,)
            for part in parts:
                function = part.__func__ if isinstance(part, staticmethod | classmethod) else part
                if isinstance(function, FunctionType):
                    yield function


def _loaded(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)
