"""A function and its arguments, made into files."""

from __future__ import annotations

import functools
import inspect
import io
import reprlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from clusterkernel.errors import ClusterKernelError, PayloadError, shown
from clusterkernel.paths import working_folder
from clusterkernel.payload import Artefact, Captured, clear, mainfile, modules
from clusterkernel.payload.digest import digests
from clusterkernel.payload.packing import LIMIT, Packer, main_namespace, python_version, too_large, with_modules
from clusterkernel.runtime import culprit
from clusterkernel.runtime.cloud import Pickler
from clusterkernel.runtime.pickling import Counter, TooLarge, peek

__all__ = ["build", "build_map"]

_FORMAT: Final = 1
# Submitting takes milliseconds; arguments that take longer to compare are not.
_DIGEST_SECONDS: Final = 0.02
_LABEL: Final = 60
# Items among which secrets are looked for: all are alike.
_LOOKED_AT: Final = 100
_SHOWN: Final = (str, int, float, tuple, dict, list, type(None))
_MEND: Final = "Load the data inside the function, or give a path."


def build(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    modules_root: Path | None = None,
    limit: int = LIMIT,
) -> Artefact:
    """A call of a function.

    Parameters
    ----------
    fn : callable
    args, kwargs
        What it is called with.
    modules_root : Path, optional
        By itself the working folder: its modules are taken along where the
        function needs them.
    limit : int
        Bytes that all may take.

    Raises
    ------
    PayloadError
        Something cannot be sent; the argument and the attribute path to it are named.
    """
    kwargs = dict(kwargs or {})
    for name in kwargs:
        if name != name.encode("utf-8", "replace").decode():
            raise PayloadError(f"The argument {shown(name)} has half a character in its name.", hint="Rename it.")
    title = title_of(fn)
    named = [*zip(_positional(fn, len(args)), args, strict=True), *kwargs.items()]
    clear.refuse_values([(f"function {title}", fn), *((f"argument {name}", value) for name, value in named)])
    packer = Packer(_namespace(fn), limit=limit)
    try:
        packer.add(title, fn, "function")
        for name, value in named:
            packer.add(name, value, "argument")
    except TooLarge:
        raise too_large(packer.measure([(title, fn), *named]), limit, _MEND) from None
    local = _modules(packer, fn, modules_root)
    body = {
        **_body(fn),
        "positional": [name for name, _ in named[: len(args)]],
        "keywords": list(kwargs),
    }
    return Artefact(
        kind="function",
        title=title,
        captured=with_modules(packer.captured, local.modules, local.files),
        inputs_digest={**digests(named, seconds=_DIGEST_SECONDS), **local.digests()},
        body=body,
        files=_files({"call.pkl": packer.file}, packer),
        taken=(local,),
        notes=local.notes,
    )


def build_map(
    fn: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    chunksize: int = 1,
    modules_root: Path | None = None,
    limit: int = LIMIT,
) -> Artefact:
    """A function over items, one array task for each `chunksize` of them.

    Raises
    ------
    PayloadError
        The function or an item cannot be sent.
    """
    namespace = _namespace(fn)
    title = title_of(fn)
    todo = list(items)
    looked_at = ((f"item {number}", item) for number, item in enumerate(todo[:_LOOKED_AT]))
    clear.refuse_values([(f"function {title}", fn), *looked_at])
    stream, ends = io.BytesIO(), [0]
    classes: dict[object, type] = {}
    keys: dict[type, object] = {}
    counter = Counter(stream, limit)
    referred: set[str] = set()
    for start in range(0, len(todo), chunksize):
        chunk = todo[start : start + chunksize]
        # Each task reads its own part alone, so each has a pickler of its own; classes are in call.pkl, once.
        pickler = Pickler(counter, namespace, [namespace], by_reference=lambda _: True, keys=keys)
        try:
            pickler.dump(chunk)
        except TooLarge:
            sized = Packer(namespace).measure((f"item {i}", item) for i, item in enumerate(todo[: start + 1]))
            raise too_large(sized, limit, _MEND) from None
        except ClusterKernelError:
            raise
        except Exception as error:  # a value's own code may raise anything
            clause = culprit.describe(error, pickler, chunk, "items")
            clause = clause.replace(f"items[{_index(clause)}]", f"items[{start + _index(clause)}]", 1)
            raise PayloadError(f"An item cannot be sent: {clause} does not pickle.", hint=_MEND) from error
        ends.append(counter.size)
        classes.update(pickler.classes)
        referred |= pickler.modules
    packer = Packer(namespace, limit=limit)
    try:
        packer.add(title, fn, "function")
        packer.add("classes", list(classes.values()))
    except TooLarge:
        raise too_large(packer.measure([(title, fn)]), limit, _MEND) from None
    packer.pickler.modules |= referred
    local = _modules(packer, fn, modules_root)
    index = struct.pack(f"<{len(ends)}Q", *ends)
    return Artefact(
        kind="function",
        title=title,
        captured=with_modules(
            [packer.captured[0], Captured("items", f"{len(todo)} items", counter.size)], local.modules, local.files
        ),
        body={
            **_body(fn),
            "array": True,
            "chunk": chunksize,
            "labels": [_label(todo[start : start + chunksize]) for start in range(0, len(todo), chunksize)],
            "positional": ["item"],
            "keywords": [],
        },
        files=_files({"call.pkl": packer.file, "items.pkl": stream, "items.idx": index}, packer),
        taken=(local,),
        notes=local.notes,
    )


def title_of(fn: Callable[..., Any]) -> str:
    """The function's name as a person knows it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = str(peek(fn, "__name__") or type(fn).__name__)
    return name.encode("utf-8", "backslashreplace").decode()  # half a character fits into no record


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """What it takes; None where it does not tell, as some built-in functions and proxies."""
    try:
        return inspect.signature(fn)
    except Exception:  # noqa: BLE001 - a callable's own attributes may raise anything
        return None


def _namespace(fn: Callable[..., Any]) -> dict[str, Any]:
    """The notebook's names: those around a function of the notebook."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if peek(fn, "__module__") == "__main__" and isinstance(found := peek(fn, "__globals__"), dict):
        return found
    return main_namespace()


def _index(clause: str) -> int:
    number = clause.partition("items[")[2].partition("]")[0]
    return int(number) if number.isdigit() else 0


def _body(fn: Callable[..., Any]) -> dict[str, Any]:
    signature = signature_of(fn)
    accepted, any_keyword = [], signature is None
    for parameter in signature.parameters.values() if signature else ():
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            accepted.append(parameter.name)
        any_keyword |= parameter.kind is parameter.VAR_KEYWORD
    return {"format": _FORMAT, "python": python_version(), "accepted": accepted, "any_keyword": any_keyword}


def _positional(fn: Callable[..., Any], count: int) -> list[str]:
    """The names of the first `count` parameters."""
    signature = signature_of(fn)
    parameters = signature.parameters.values() if signature else ()
    names = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    return [names[i] if i < len(names) else f"args[{i}]" for i in range(count)]


def _files(files: dict[str, Any], packer: Packer) -> dict[str, Any]:
    files["main.py"] = mainfile.of_function()
    if (sources := packer.sources()) is not None:
        files["sources.json"] = sources
    return files


def _modules(packer: Packer, fn: Callable[..., Any], root: Path | None) -> modules.Shipped:
    return modules.collect(root or working_folder(), values=[fn], modules=packer.pickler.modules)


def _label(items: list[Any]) -> str:
    """The items of a task as a person knows them; empty where only an address would tell them apart."""
    if not all(issubclass(type(item), _SHOWN) for item in items):
        return ""
    try:
        text = " to ".join(dict.fromkeys(reprlib.repr(item) for item in (items[0], items[-1])))
    except ValueError:  # a number of thousands of digits
        return ""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LABEL else text[: _LABEL - 3] + "..."
