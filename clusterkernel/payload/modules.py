"""Modules that lie beside the notebook go along, as they are at submission.

*Local* is a module whose file lies under the notebook's folder, or anywhere else
but among what is installed: not in the standard library, not in a
``site-packages``, and not in a folder that the person cannot write to. So a
project installed with ``pip install -e`` is local. A local module is found by
the imports of the cell, of its functions and of other local modules, and by the
classes and functions that the captured values refer to.

A single module goes along alone. A package goes along whole: its ``*.py`` and
compiled modules, and its other files where they take at most 4 MB together; no
hidden folders and no ``__pycache__``. Of a folder without ``__init__.py`` (a
namespace package) only the modules that are imported go along. All together may
take 50 MB.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from clusterkernel.errors import PayloadError
from clusterkernel.files import make_private
from clusterkernel.payload import finding
from clusterkernel.payload.imports import Import, of_source, of_values
from clusterkernel.payload.packing import size_text

__all__ = ["Shipped", "collect"]

LIMIT: Final = 50 << 20
DATA_LIMIT: Final = 4 << 20
#: Source whose imports are followed (reading it takes some 0.3 s a megabyte).
SOURCE_LIMIT: Final = 8 << 20
#: Files that a package may have, before it is taken for a data folder.
FILES_LIMIT: Final = 20_000
# A job has the product, or the small stand-in that our runtime brings.
_NEVER: Final = {"clusterkernel", "ckruntime", "__main__", "__mp_main__"}


class Shipped(msgspec.Struct, frozen=True):
    """Local modules, as they were when they were collected.

    Attributes
    ----------
    files : tuple of (str, bytes)
        Path relative to a folder on ``sys.path``, and content.
    modules : tuple of str
        The top-level modules and packages (of a namespace package, what is in it) that go along.
    notes : tuple of str
        What a person should know, one sentence each.
    """

    files: tuple[tuple[str, bytes], ...] = ()
    modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(len(data) for _, data in self.files)

    def digests(self) -> dict[str, str]:
        """A digest of each module's files, to tell whether a later submission would take the same."""
        made = {}
        for module in self.modules:
            base = module.replace(".", "/")
            total = hashlib.sha256()
            for path, data in self.files:
                if path.startswith((f"{base}/", f"{base}.")):
                    total.update(f"{path}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
            made[module] = total.hexdigest()
        return made

    def write(self, folder: Path) -> None:
        """Lay the files into ``modules/`` of a payload's folder.

        Parameters
        ----------
        folder : Path
            The payload's folder, which exists.
        """
        for name, data in self.files:
            target = folder / "modules" / name
            make_private(target.parent)
            with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)


def collect(root: Path, *, source: str = "", values: Iterable[object] = (), modules: Iterable[str] = ()) -> Shipped:
    """Find the local modules that a payload needs, and read them.

    Parameters
    ----------
    root : Path
        The notebook's folder.
    source : str
        The cell, as Python.
    values : iterable
        What is captured: modules, functions, classes, objects.
    modules : iterable of str
        Modules that are known to be needed, such as those that a pickle names.

    Returns
    -------
    Shipped

    Raises
    ------
    PayloadError
        A local module cannot be read or is not Python, or all are too large.
    """
    importlib.invalidate_caches()  # a file may be seconds old
    search = _Search(Path(os.path.abspath(root)))
    for one in of_source(source.encode(), "") if source.strip() else ():
        search.follow(one, "the cell")
    for name in [*of_values(values), *modules]:
        search.follow(Import(name, certain=True), "a captured value")
    while search.todo:
        search.read_next()
    return search.result()


class _Search:
    """Follows imports from one local module to the next."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, bytes] = {}
        self.modules: list[str] = []
        self.notes: dict[str, None] = {}
        # Modules whose own imports are still to be followed: (dotted name, file, is it surely imported).
        self.todo: list[tuple[str, Path, bool]] = []
        self._local: dict[str, bool] = {}
        self._tops: dict[str, finding.Found | None] = {}
        self._read: set[tuple[str, bool]] = set()
        self._total = 0
        self._source = 0

    def result(self) -> Shipped:
        return Shipped(tuple(sorted(self.files.items())), tuple(sorted(self.modules)), tuple(self.notes))

    def _note(self, text: str) -> None:
        self.notes[text] = None

    # -- finding ------------------------------------------------------------------

    def follow(self, wanted: Import, by: str) -> None:
        """Take a module along where it is local; the packages around it are imported with it."""
        parts = wanted.name.split(".")
        if not wanted.name or parts[0] in _NEVER:
            return
        found: finding.Found | None = None
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            found = self._top(name) if found is None else finding.inside(parts[depth - 1], found.folders)
            if found is None and depth == 1 and wanted.certain and by == "the cell":
                self._note(f"{name} is not found here: the job's Python has to have it.")
            if found is None:
                return
            if found.file is not None:
                self._take(name, found.file, parts[depth:], wanted)
                return

    def _top(self, name: str) -> finding.Found | None:
        if name not in self._tops:
            self._tops[name] = finding.top(name, self.root)
        return self._tops[name]

    def _take(self, name: str, file: Path, rest: list[str], wanted: Import) -> None:
        """Take the module or regular package that `name` is, and look at the modules in it that are imported."""
        package = file.name == finding.PACKAGE
        if name not in self._local:
            self._local[name] = finding.is_local(file, self.root)
            if self._local[name]:
                self.modules.append(name)
                base = name.replace(".", "/")
                if package:
                    self._add_package(name, base, file.parent)
                else:
                    self._add(f"{base}{finding.suffix(file.name)}", file)
        if not self._local[name]:
            return
        self.todo.append((name, file, wanted.certain))
        folders = [file.parent] if package else []
        for part in rest:
            name = f"{name}.{part}"
            found = finding.inside(part, folders)
            if found is None:
                return
            folders = found.folders
            if found.file is not None:
                self.todo.append((name, found.file, wanted.certain))

    def read_next(self) -> None:
        """Follow the imports of one local module."""
        name, file, certain = self.todo.pop()
        if (name, certain) in self._read or file.suffix != ".py":
            return
        self._read.add((name, certain))
        package = name if file.name == finding.PACKAGE else name.rpartition(".")[0]
        try:
            status = file.stat()
            self._source += status.st_size
            if self._source > SOURCE_LIMIT:
                self._note(f"Imports were followed up to {name}: beyond it there is too much source.")
                self.todo.clear()
                return
            found = _imports(file, package, status.st_mtime_ns, status.st_size)
        except OSError as error:
            raise _unreadable(file, error) from None
        except (SyntaxError, ValueError) as error:  # ValueError: a NUL byte
            where = f" on line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            text = error.msg if isinstance(error, SyntaxError) else str(error)
            if not certain:
                self._note(f"{file} is no valid Python{where} ({text}), and may not be needed.")
                return
            raise PayloadError(
                f"The local module {name} cannot be taken along: {file} has a syntax error{where}: {text}.",
                hint="Mend the file, or leave out its import.",
            ) from None
        for one in found:
            self.follow(Import(one.name, certain=one.certain and certain), name)

    # -- reading ------------------------------------------------------------------

    def _add_package(self, name: str, base: str, folder: Path) -> None:
        code: list[tuple[str, Path]] = []
        data: list[tuple[str, Path]] = []
        for count, (relative, path) in enumerate(finding.walk(folder)):
            if count >= FILES_LIMIT:
                raise PayloadError(
                    f"The local package {name} in {folder} has more than {FILES_LIMIT} files.",
                    hint="Keep data in a folder outside the package.",
                )
            (code if path.name.endswith(finding.CODE) else data).append((f"{base}/{relative}", path))
        for target, path in code:
            self._add(target, path)
        sizes = {target: _size(path) for target, path in data}
        if (total := sum(sizes.values())) <= DATA_LIMIT:
            for target, path in data:
                if os.access(path, os.R_OK):
                    self._add(target, path)
                else:
                    self._note(f"{path} cannot be read and stays behind.")
        else:
            largest = max(sizes, key=sizes.__getitem__)
            self._note(
                f"Of the local package {name} only the code goes along: its other files take "
                f"{size_text(total)} (the largest is {largest}, {size_text(sizes[largest])})."
            )

    def _add(self, target: str, path: Path) -> None:
        if target in self.files:
            return
        try:
            self._total += _size(path)
            if self._total > LIMIT:
                self._refuse_size(target, path)
            self.files[target] = path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from None

    def _refuse_size(self, target: str, path: Path) -> None:
        sizes = {name: len(data) for name, data in self.files.items()} | {target: path.stat().st_size}
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        listed = ", ".join(f"{name} ({size_text(size)})" for name, size in largest)
        raise PayloadError(
            f"The local modules {', '.join(sorted(self.modules))} take more than {size_text(LIMIT)}. "
            f"The largest files: {listed}.",
            hint="Install what does not change, or keep data outside the packages.",
        )


@functools.lru_cache(maxsize=4096)
def _imports(file: Path, package: str, changed: int, size: int) -> tuple[Import, ...]:
    """The imports of a file that was last changed at that time."""
    return tuple(of_source(file.read_bytes(), package))


def _size(path: Path) -> int:
    return path.stat().st_size


def _unreadable(file: Path, error: OSError) -> PayloadError:
    return PayloadError(
        f"The local module {file} cannot be read: {error.strerror}.", hint="Mend its permissions, or leave it out."
    )
