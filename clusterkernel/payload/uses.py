"""What the notebook's functions and classes use of the notebook's names."""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from clusterkernel.runtime.cloud import is_of_ipython
from clusterkernel.runtime.pickling import is_proxy, peek

__all__ = ["follow", "given", "globals_of"]


def follow(wanted: Mapping[str, Any], namespace: dict[str, Any]) -> dict[str, str]:
    """Names that are needed because functions and classes among `wanted` use them: name -> who does."""
    found: dict[str, str] = {}
    queue = list(wanted.items())
    for name, value in queue:
        for used in sorted(globals_of(value, namespace)):
            if used not in wanted and used not in found:
                found[used] = f"used by {name}"
                queue.append((used, namespace[used]))
    return found


def globals_of(value: object, namespace: dict[str, Any]) -> set[str]:
    """The notebook's names that a function or class of the notebook, or an object of such a class, uses."""
    used: set[str] = set()
    for function in _functions(value, namespace, set()):
        used |= {name for name in _names(function.__code__) if name in namespace and not given(name, namespace[name])}
    return used


def given(name: str, value: object) -> bool:
    """Whether a job has this builtin itself: the notebook holds the same, or IPython's stand-in for it."""
    known = hasattr(builtins, name) or name in ("exit", "quit")
    return known and (value is getattr(builtins, name, None) or is_of_ipython(value))


def _functions(value: object, namespace: dict[str, Any], seen: set[int]) -> Iterator[types.FunctionType]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if is_proxy(value):
        value = type(value)
    if isinstance(value, types.FunctionType):
        if value.__globals__ is namespace:
            yield value
        for cell in value.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:
                continue
            if isinstance(inner, types.FunctionType | types.MethodType | type | functools.partial):
                yield from _functions(inner, namespace, seen)
    elif isinstance(value, type):
        if value.__module__ == "__main__":
            for base in value.__mro__[:-1]:
                if base.__module__ == "__main__":
                    for member in vars(base).values():
                        yield from _functions(member, namespace, seen)
    elif isinstance(value, staticmethod | classmethod | types.MethodType):
        yield from _functions(value.__func__, namespace, seen)
        if isinstance(value, types.MethodType):
            yield from _functions(value.__self__, namespace, seen)
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset, value.fdel):
            yield from _functions(accessor, namespace, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _functions(part, namespace, seen)
    elif isinstance(value, functools.cached_property):
        yield from _functions(value.func, namespace, seen)
    elif isinstance(wrapped := peek(value, "__wrapped__"), types.FunctionType):
        yield from _functions(wrapped, namespace, seen)
    elif type(value).__module__ == "__main__":
        yield from _functions(type(value), namespace, seen)


def _names(code: types.CodeType) -> Iterator[str]:
    # Not co_names: that holds attributes and modules too.
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_FROM_DICT_OR_GLOBALS", "LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
