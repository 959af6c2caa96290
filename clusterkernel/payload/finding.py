"""Where modules come from, found out without importing any."""

from __future__ import annotations

import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["CODE", "PACKAGE", "Found", "inside", "is_local", "suffix", "top", "walk"]

PACKAGE: Final = "__init__.py"
CODE: Final = (*importlib.machinery.SOURCE_SUFFIXES, *importlib.machinery.EXTENSION_SUFFIXES)
_INSTALLED: Final = {"site-packages", "dist-packages"}


class Found(msgspec.Struct, frozen=True):
    """A module's file, and the folders that hold what is in it. A namespace package has no file."""

    file: Path | None = None
    folders: list[Path] = []


def top(name: str, root: Path) -> Found | None:
    """Where a top-level module comes from: as loaded here, else as an import here would find it.

    Parameters
    ----------
    name : str
        The module.
    root : Path
        The notebook's folder. Jupyter puts it on the path, other programs may not.
    """
    spec = _spec(name) or importlib.machinery.PathFinder.find_spec(name, [str(root)])
    if spec is None:
        return None
    if spec.origin and spec.has_location:
        file = Path(os.path.abspath(spec.origin))
        return Found(file, [file.parent] if file.name == PACKAGE else [])
    return Found(None, [Path(folder) for folder in spec.submodule_search_locations or ()])


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None)
    if isinstance(spec, importlib.machinery.ModuleSpec):
        return spec
    for finder in sys.meta_path if loaded is None else ():
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, None, None) if find is not None else None
        except ImportError:  # some finders forbid a module so
            continue
        if isinstance(spec, importlib.machinery.ModuleSpec):
            return spec
    return None


def inside(name: str, folders: Iterable[Path]) -> Found | None:
    """What a package's folders hold under a name, in the order in which Python looks."""
    spaces = []
    for folder in folders:
        if (file := folder / name / PACKAGE).is_file():
            return Found(file, [file.parent])
        for end in CODE:
            if (file := folder / f"{name}{end}").is_file():
                return Found(file)
        if (folder / name).is_dir():
            spaces.append(folder / name)
    return Found(None, spaces) if spaces else None


def is_local(file: Path, root: Path) -> bool:
    """Whether a module's file is the person's own, and not installed."""
    if _INSTALLED & set(file.parts) or file.suffix == ".pyc":
        return False
    standard = (os.path.abspath(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib"))
    if any(file.is_relative_to(folder) for folder in standard):
        return False
    if any(parent.is_file() for parent in file.parents):
        return False  # in an archive
    return file.is_relative_to(root) or os.access(file.parent, os.W_OK)


def suffix(filename: str) -> str:
    """``.py``, or a compiled module's whole ending, which names the interpreter."""
    return next((end for end in CODE if filename.endswith(end)), os.path.splitext(filename)[1])


def walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """All files of a package, links followed, hidden ones and caches left out."""
    seen: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:  # a link back up
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            path = Path(place, name)
            if not name.startswith(".") and not name.endswith((".pyc", ".pyo")) and path.is_file():
                yield str(path.relative_to(folder)), path
