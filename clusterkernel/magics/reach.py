"""Which names a cell reads, also through the notebook's own functions and classes."""

from __future__ import annotations

import ast
import dis
import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from clusterkernel.payload import names as cell_names

__all__ = ["assigned", "reach", "read"]


def read(source: str) -> list[str]:
    """Names that the cell reads before it sets them."""
    return sorted(cell_names.analyse(source).reads)


def assigned(source: str) -> list[str]:
    """Names that the cell sets at its top level."""
    return sorted(cell_names.analyse(source).assigned)


def reach(tree: ast.AST, namespace: Mapping[str, Any]) -> Iterator[str]:
    """The names that a cell reads, then those that the functions and classes among them read.

    Parameters
    ----------
    tree : ast.AST
        The parsed cell. A function that it only defines reads nothing yet.
    namespace : mapping
        The notebook's names.
    """
    todo = read(ast.unparse(_without_idle_functions(tree)))
    seen = set(todo)
    while todo:
        name = todo.pop()
        yield name
        if name in namespace:
            for other in _globals_of(namespace[name], namespace):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)


def _without_idle_functions(tree: ast.AST) -> ast.AST:
    """The cell without the functions that it defines and does not name again."""
    if not isinstance(tree, ast.Module):
        return tree
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    body = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.decorator_list or node.name in named
    ]
    return ast.Module(body=body or [ast.Pass()], type_ignores=[])


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
            if isinstance(member, staticmethod | classmethod):
                member = member.__func__
            if isinstance(member, property):
                yield from (part for part in (member.fget, member.fset) if isinstance(part, FunctionType))
            elif isinstance(member, FunctionType):
                yield member


def _loaded(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)
