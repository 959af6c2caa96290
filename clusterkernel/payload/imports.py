"""Which modules source code and live values import."""

from __future__ import annotations

import ast
import dis
import functools
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from clusterkernel.runtime.pickling import is_proxy

__all__ = ["Import", "of_source", "of_values"]

_VALUES: Final = 10_000
_ITEMS: Final = 1_000
# ``import_module`` and the like, with the name spelled out.
_CALLS: Final = {"import_module", "__import__", "importorskip"}


class Import(msgspec.Struct, frozen=True):
    """One module that is imported.

    Attributes
    ----------
    name : str
        Its whole dotted name. Of ``from a import b`` both ``a`` and ``a.b``, which may be no module.
    certain : bool
        Whether the import always runs, and not only in a function or under a condition.
    """

    name: str
    certain: bool = False


def of_source(source: bytes, package: str) -> Iterator[Import]:
    """The imports of a module's source.

    Parameters
    ----------
    source : bytes
        The module's text.
    package : str
        The package that it belongs to, for relative imports.

    Raises
    ------
    SyntaxError, ValueError
        It is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(source)
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        certain = id(node) in top
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, certain)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", node.level, package)
            if base is not None:
                yield Import(base, certain)
                for alias in node.names:
                    if alias.name != "*" and base:
                        yield Import(f"{base}.{alias.name}", certain)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in _CALLS and isinstance(name, str) and not name.startswith("."):
                yield Import(name)


def _absolute(name: str, level: int, package: str) -> str | None:
    """The dotted name that a relative import means; None where it leads out of the package."""
    if level == 0:
        return name
    parts = package.split(".") if package else []
    if level > len(parts):
        return None
    return ".".join([*parts[: len(parts) - level + 1], *([name] if name else [])])


def of_values(values: Iterable[object]) -> Iterator[str]:
    """The modules that values refer to: what their functions and classes are defined in and use.

    Looks into functions, classes and small containers, and not into the attributes of objects.
    """
    todo = list(values)
    seen: set[int] = set()
    given: set[str] = set()
    while todo and len(seen) < _VALUES:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_proxy(value):
            value = type(value)
        for name in _modules_of(value):
            if name not in given:
                given.add(name)
                yield name
        todo += _parts(value)


def _modules_of(value: object) -> Iterator[str]:
    if isinstance(value, types.ModuleType):
        yield value.__name__
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        if isinstance(value.__module__, str):
            yield value.__module__
        if isinstance(value, types.FunctionType) and _by_value(value):
            yield from _imported(value.__code__)
    elif isinstance(type(value).__module__, str):
        yield type(value).__module__


def _by_value(thing: object) -> bool:
    """Whether a function or class of this module is sent as code, and not by its name."""
    return getattr(thing, "__module__", None) in ("__main__", None)


def _parts(value: object) -> Iterable[object]:
    """What belongs to a value and may come from another module."""
    if isinstance(value, types.FunctionType):
        if not _by_value(value):
            return ()
        used = {name for code in _codes(value.__code__) for name in code.co_names}
        parts: list[object] = [value.__globals__[name] for name in used if name in value.__globals__]
        parts += value.__defaults__ or ()
        parts += (value.__kwdefaults__ or {}).values()
        for cell in value.__closure__ or ():
            try:
                parts.append(cell.cell_contents)
            except ValueError:  # not set yet
                continue
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            parts.append(wrapped)
        return parts
    if isinstance(value, type):
        return [*value.__bases__, *vars(value).values()] if _by_value(value) else value.__bases__
    if isinstance(value, types.MethodType):
        return (value.__func__, value.__self__)
    if isinstance(value, staticmethod | classmethod):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    if type(value) in (list, tuple, set, frozenset) and len(value) <= _ITEMS:  # type: ignore[arg-type]
        return list(value)  # type: ignore[call-overload, no-any-return]
    if type(value) is dict and len(value) <= _ITEMS:
        return [*value.keys(), *value.values()]
    return () if isinstance(value, types.ModuleType) else (type(value),)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _imported(code: types.CodeType) -> Iterator[str]:
    """The modules that a function's own import statements name."""
    for one in _codes(code):
        last = ""
        for instruction in dis.get_instructions(one):
            if instruction.opname == "IMPORT_NAME":
                last = str(instruction.argval)
                yield last
            elif instruction.opname == "IMPORT_FROM" and last:
                yield f"{last}.{instruction.argval}"
