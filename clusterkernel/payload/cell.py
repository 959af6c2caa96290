"""A notebook cell and the names that it reads, made into files."""

from __future__ import annotations

import ast
import difflib
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from clusterkernel.errors import PayloadError, nearest
from clusterkernel.paths import working_folder
from clusterkernel.payload import Artefact, clear, mainfile, modules, names, shell
from clusterkernel.payload.digest import digests
from clusterkernel.payload.names import CellNames, Kind
from clusterkernel.payload.packing import LIMIT, Packer, python_version, too_large, with_modules
from clusterkernel.payload.uses import follow, given, globals_of
from clusterkernel.runtime.pickling import TooLarge, peek

__all__ = ["build"]

_FORMAT: Final = 1
_TITLE: Final = 60
# Names that the job gives itself, or that mean nothing outside a kernel.
_GIVEN: Final = frozenset({"display"})
# They are sent also where -i does not list them.
_FOLLOWING: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# A worker process that a cell starts gets values up to this size, whatever reads them.
_SMALL: Final = 1 << 20
_SCALARS: Final = (str, bytes, bool, int, float, complex, type(None))


def build(
    source: str,
    namespace: dict[str, Any],
    *,
    inputs: Sequence[str] | None = None,
    bind: Sequence[str] = (),
    filename: str = "<cell>",
    first_line: int = 1,
    limit: int = LIMIT,
    modules_root: Path | None = None,
) -> Artefact:
    """A cell, with the values that it needs from the notebook.

    Parameters
    ----------
    source : str
        The cell's body.
    namespace : dict
        The notebook's names.
    inputs : sequence of str, optional
        Only these values are sent; functions, classes and modules follow all
        the same. By itself every name that the cell reads.
    bind : sequence of str
        Names to be bound in the notebook at the end.
    filename : str
        What tracebacks call the cell.
    first_line : int
        The number of the body's first line in the notebook's cell.
    limit : int
        Bytes that all values may take.
    modules_root : Path, optional
        The notebook's folder, by itself the working folder: its modules are taken
        along where the cell needs them.

    Raises
    ------
    PayloadError
        The cell is not Python, reads a name that is nowhere, or a value cannot
        be sent; nothing has been sent.
    """
    body = shell.translate(source, first_line=first_line)
    tree = names.parse(body, first_line=first_line)
    found = names.analyse(body, first_line=first_line)
    assigned = [one.name for one in found.assigns if one.kind is not Kind.IMPORT and one.name != "_"]
    _check_bind(bind, assigned, found)
    wanted = _wanted(found, namespace, inputs)
    why = {name: f"line {found.read_lines[name]}" if name in found.read_lines else "-i" for name in wanted}
    why.update(follow({name: namespace[name] for name in wanted}, namespace))
    for name in why:
        _check_pending(name, namespace[name], why[name])
    clear.refuse_text(source, "The cell")
    clear.refuse_values((f"variable {name}", namespace[name]) for name in why)
    order, definitions = _order(why, namespace, tree)
    packer = Packer(namespace, limit=limit)
    try:
        for name in order:
            packer.add(name, namespace[name], "variable", why=why[name])
    except TooLarge:
        sized = packer.measure((name, namespace[name]) for name in order)
        raise too_large(sized, limit, "Load the data inside the cell, or choose with -i what is sent.") from None
    local = modules.collect(
        modules_root or working_folder(),
        source=body,
        values=[namespace[name] for name in order],
        modules=packer.pickler.modules,
    )
    files: dict[str, Any] = {
        "cell.py": body,
        "names.pkl": packer.file,
        "main.py": mainfile.of_cell(tree, body, first_line, set(order[:definitions])),
    }
    if (sources := packer.sources()) is not None:
        files["sources.json"] = sources
    return Artefact(
        kind="cell",
        title=_title(source, tree, bind),
        source=source,
        captured=with_modules(packer.captured, local.modules, local.files),
        outputs=tuple(assigned),
        bind=tuple(bind),
        inputs_digest={**digests((name, namespace[name]) for name in order), **local.digests()},
        body={
            "format": _FORMAT,
            "python": python_version(),
            "filename": filename,
            "first_line": first_line,
            "captured": order,
            "definitions": definitions,
            "outputs": assigned,
            "bind": list(bind),
            "imports": sorted(_submodules(tree, namespace, order)),
        },
        files=files,
        taken=(local,),
        notes=local.notes,
    )


def _title(source: str, tree: ast.Module, bind: Sequence[str]) -> str:
    """What a person knows the cell by: what it makes, else what it calls, else what its first comment says."""
    text = ", ".join(bind) or _made(tree) or _called(tree) or _said(source) or "cell"
    return text if len(text) <= _TITLE else text[: _TITLE - 3] + "..."


def _made(tree: ast.Module) -> str:
    """The first name that is assigned at the top."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for one in (inner for target in targets for inner in ast.walk(target)):
                if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store) and not one.id.startswith("_"):
                    return one.id
    return ""


def _called(tree: ast.Module) -> str:
    """The first function that is called, one of the person's before one of Python's."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls.sort(key=lambda node: (node.lineno, node.col_offset))
    texts = [ast.unparse(node.func) for node in calls if isinstance(node.func, ast.Name | ast.Attribute)]
    plain = [text for text in texts if all(part.isidentifier() for part in text.split("."))]
    return next((text for text in plain if text not in names.BUILTINS), next(iter(plain), ""))


def _said(source: str) -> str:
    """The first comment, else the first line."""
    lines = [line.strip() for line in source.splitlines() if line.strip()]
    comments = [line.lstrip("#% ") for line in lines if line.startswith("#")]
    return next(filter(None, comments), next(iter(lines), ""))


def _check_bind(bind: Sequence[str], assigned: Sequence[str], found: CellNames) -> None:
    for name in bind:
        if name in assigned:
            continue
        if name in found.reads:
            hint = f"It reads it: write {name} = ... where it is to come back changed."
        else:
            hint = nearest(name, assigned)
        raise PayloadError(f"-o {name}: the cell never assigns {name}.", hint=hint)


def _wanted(found: CellNames, namespace: Mapping[str, Any], inputs: Sequence[str] | None) -> list[str]:
    """The names that are sent because the cell reads them."""
    for name in inputs or ():
        if name not in namespace:
            raise PayloadError(f"-i {name}: the notebook has no {name}.", hint=_close(name, namespace))
    wanted = []
    for name, line in found.read_lines.items():
        if name in namespace:
            if given(name, namespace[name]) or (name in names.BUILTINS and name.startswith("__")):
                continue
        elif name in _GIVEN or name in names.BUILTINS:
            continue
        if name == "get_ipython" and name not in found.doubtful:
            raise PayloadError(
                f"Line {line} uses get_ipython, and a job has no IPython.", hint="Do it in a cell of the notebook."
            )
        if name not in namespace:
            if name in found.doubtful:
                continue
            raise PayloadError(f"Line {line} reads {name}, which is not defined.", hint=_close(name, namespace))
        if inputs is not None and name not in inputs and not _follows(namespace[name]):
            if name in found.doubtful:
                continue
            listed = ",".join([*inputs, name])
            raise PayloadError(f"Line {line} reads {name}, which is not in -i.", hint=f"Write -i {listed}.")
        wanted.append(name)
    return wanted + [name for name in inputs or () if name not in wanted]


def _follows(value: object) -> bool:
    """Whether it is sent also where -i does not list it."""
    return issubclass(type(value), _FOLLOWING)


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, [word for word in known if not word.startswith("_")], n=1)
    return f"Did you mean {close[0]}?" if close else "Run the cell that defines it first."


def _check_pending(name: str, value: object, why: str) -> None:
    if peek(type(value), "__clusterkernel_pending__", False):
        raise PayloadError(
            f"{name} ({why}) is not there yet: {value!r}.",
            hint="Wait for that job with %cluster_wait, then send this cell.",
        )


def _order(why: Mapping[str, str], namespace: dict[str, Any], tree: ast.Module) -> tuple[list[str], int]:
    """The names as they are pickled, and how many of them a worker process needs.

    What functions use comes first, so that its size is its own; then functions,
    classes, modules and small values. The rest is what only the top level reads:
    worker processes do without.
    """
    used = _read_in_definitions(tree)
    for name in why:
        used |= globals_of(namespace[name], namespace)
    first = [name for name in why if name in used and not _follows(namespace[name])]
    second = [name for name in why if _follows(namespace[name])]
    rest = [name for name in why if name not in first and name not in second]
    small = [name for name in rest if _is_small(namespace[name])]
    large = [name for name in rest if name not in small]
    return first + second + small + large, len(first) + len(second) + len(small)


def _read_in_definitions(tree: ast.Module) -> set[str]:
    """Names that are read inside the cell's functions and classes."""
    return {
        node.id
        for top in ast.walk(tree)
        if isinstance(top, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        for node in ast.walk(top)
        if isinstance(node, ast.Name)
    }


def _is_small(value: object) -> bool:
    size = peek(value, "nbytes")
    if type(size) is int:
        return size <= _SMALL
    return issubclass(type(value), _SCALARS) and sys.getsizeof(value) <= _SMALL


def _submodules(tree: ast.Module, namespace: Mapping[str, Any], order: Iterable[str]) -> Iterator[str]:
    """Submodules that the cell reaches through a package, which an import of the package alone does not load."""
    packages = {
        name: namespace[name].__name__
        for name in order
        if isinstance(namespace[name], types.ModuleType) and hasattr(namespace[name], "__path__")
    }
    seen: set[str] = set()
    for node in ast.walk(tree):
        chain: list[str] = []
        inner: ast.expr | ast.AST = node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if not chain or not isinstance(inner, ast.Name) or inner.id not in packages:
            continue
        dotted = packages[inner.id]
        for part in reversed(chain):
            dotted += f".{part}"
            if dotted not in sys.modules:
                break
            if dotted not in seen:
                seen.add(dotted)
                yield dotted
