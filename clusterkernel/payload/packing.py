"""Values made into one stream, so that the one that cannot travel is named."""

from __future__ import annotations

import importlib.machinery
import io
import linecache
import sys
import tempfile
import types
import weakref
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import msgspec

from clusterkernel.errors import ClusterKernelError, PayloadError
from clusterkernel.payload import Captured
from clusterkernel.runtime import culprit
from clusterkernel.runtime.cloud import Pickler
from clusterkernel.runtime.pickling import Counter, TooLarge

__all__ = ["LIMIT", "Packer", "kind_of", "main_namespace", "python_version", "size_text", "too_large", "with_modules"]

LIMIT: Final = 1 << 30
_IN_MEMORY: Final = 64 << 20
_LARGEST: Final = 5
_MENDS: Final = {
    "generator": "Send the list of its items, or make it inside.",
    "_thread.lock": "Leave it out with __getstate__, or make it inside.",
    "_thread.RLock": "Leave it out with __getstate__, or make it inside.",
    "_io.TextIOWrapper": "Send its path and open it inside.",
    "_io.BufferedReader": "Send its path and open it inside.",
    "_io.BufferedWriter": "Send its path and open it inside.",
    "socket.socket": "Open the connection inside.",
    "sqlite3.Connection": "Open the database inside.",
}


def main_namespace() -> dict[str, Any]:
    """The notebook's names, where nobody gave others."""
    return vars(sys.modules["__main__"])


def python_version() -> str:
    """``3.11``: what is pickled here can be read by the same minor version."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def kind_of(value: object) -> str:
    """``function``, ``class``, ``module``, else the name of the type."""
    kind = type(value)
    if issubclass(kind, type):
        return "class"
    if issubclass(kind, types.ModuleType):
        return "module"
    if issubclass(kind, (types.FunctionType, types.BuiltinFunctionType, types.MethodType)):
        return "function"
    return kind.__name__


def size_text(size: float) -> str:
    """Bytes as a person reads them: ``1.2 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


class Spool:
    """Bytes in memory, beyond 64 MiB on disk in a file without a name; gone with this object."""

    def __init__(self) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._in_memory = True

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes."""
        count = self._file.write(data)
        if self._in_memory and self._file.tell() > _IN_MEMORY:
            rolled = tempfile.TemporaryFile()  # noqa: SIM115 - closed when this object goes
            weakref.finalize(self, rolled.close)
            rolled.write(self._file.getbuffer())  # type: ignore[attr-defined]
            self._file, self._in_memory = rolled, False
        return count

    def seek(self, position: int) -> int:
        """Go to a position."""
        return self._file.seek(position)

    def read(self, size: int = -1) -> bytes:
        """Read bytes."""
        return self._file.read(size)


class Packer:
    """Pickles values one after the other into one stream, in which they share what they share here.

    Parameters
    ----------
    namespace : dict
        The notebook's names.
    limit : int
        Bytes that all may take.
    by_reference : bool
        Whether classes of the notebook are only named.
    """

    def __init__(self, namespace: dict[str, Any], *, limit: int = LIMIT, by_reference: bool = False) -> None:
        self._namespace = namespace
        self.file = Spool()
        self._counter = Counter(self.file, limit)
        self.pickler = self.new_pickler(self._counter, by_reference)
        self.captured: list[Captured] = []
        self._checked: set[str] = set()

    def new_pickler(self, file: object, by_reference: bool = False) -> Pickler:
        """A pickler of its own memory that writes to `file`."""
        shared = [self._namespace, main_namespace()]
        return Pickler(file, self._namespace, shared, by_reference=(lambda _: True) if by_reference else None)

    def add(self, name: str, value: object, what: str = "", *, why: str = "") -> int:
        """Append one value.

        Parameters
        ----------
        name : str
            What the person calls it.
        value : object
        what : str
            ``argument``, ``variable``, for the error.
        why : str
            Goes into the list of what was captured.

        Returns
        -------
        int
            Bytes that it took.

        Raises
        ------
        PayloadError
            It cannot be sent, or all are too large together.
        """
        before = self._counter.size
        try:
            self.pickler.dump(value)
        except TooLarge:
            raise
        except ClusterKernelError:
            raise
        except Exception as error:  # a value's own code may raise anything
            raise self._cannot(name, value, what, error) from error
        size = self._counter.size - before
        self.captured.append(Captured(name, kind_of(value), size, why))
        self._check_modules(name, what)
        return size

    def _cannot(self, name: str, value: object, what: str, error: BaseException) -> PayloadError:
        clause = culprit.describe(error, self.pickler, value, name)
        mend = next((text for kind, text in _MENDS.items() if clause.endswith(f": {kind}")), "")
        return PayloadError(
            f"{f'{what} ' if what else ''}{name} cannot be sent: {clause} does not pickle.",
            hint=mend or "Make it inside, or leave it out with __getstate__.",
        )

    def _check_modules(self, name: str, what: str) -> None:
        """Refuse what would pickle here and not unpickle there."""
        for module in self.pickler.modules - self._checked:
            self._checked.add(module)
            if not _importable(module):
                raise PayloadError(
                    f"{f'{what} ' if what else ''}{name} cannot be sent: it needs the module {module}, "
                    "which was made in this process and cannot be imported there.",
                    hint="Put its code into a file beside the notebook.",
                )

    def measure(self, items: Iterable[tuple[str, object]]) -> list[Captured]:
        """How large values are, each for itself; those that cannot be pickled are left out."""
        found = []
        for name, value in items:
            counter = Counter()
            try:
                self.new_pickler(counter).dump(value)
            except Exception:  # noqa: BLE001 - it only serves to list sizes
                continue
            found.append(Captured(name, kind_of(value), counter.size))
        return found

    def sources(self) -> bytes | None:
        """The cells that the functions in the stream came from, for tracebacks and `inspect`."""
        texts = {}
        for filename in sorted(self.pickler.sources):
            if lines := linecache.getlines(filename):
                texts[filename] = (_cell_name(filename), "".join(lines))
        return msgspec.json.encode(texts) if texts else None


def _cell_name(filename: str) -> str:
    """How IPython calls the cell of a code's file, ``Cell In[3]``; the file itself where it knows of none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    found = shell.compile.format_code_name(filename) if shell else None
    return " ".join(found) if found else filename


def too_large(sizes: Sequence[Captured], limit: int, mend: str) -> PayloadError:
    """The error that lists the largest."""
    total = sum(captured.size for captured in sizes)
    largest = sorted(sizes, key=lambda captured: -captured.size)[:_LARGEST]
    listed = ", ".join(f"{captured.name} ({captured.kind}) {size_text(captured.size)}" for captured in largest)
    return PayloadError(
        f"{size_text(total)} would be sent, more than the limit of {size_text(limit)}. The largest: {listed}.",
        hint=mend,
    )


def with_modules(
    captured: Iterable[Captured], names: Iterable[str], files: Sequence[tuple[str, bytes]]
) -> tuple[Captured, ...]:
    """What was captured and the local modules that go along, one entry a name."""
    found = {one.name: one for one in captured}
    for name in names:
        base = name.replace(".", "/")
        size = sum(len(data) for path, data in files if path.startswith((f"{base}/", f"{base}.")))
        why = found[name].why if name in found else "imported"
        found[name] = Captured(name, "local module", size, why)
    return tuple(found.values())


def _importable(name: str) -> bool:
    """Whether another process of this interpreter could import the module, as far as can be seen from here."""
    if name in sys.builtin_module_names or name == "__main__":
        return True
    module = sys.modules.get(name)
    if module is None:
        return False
    spec = getattr(module, "__spec__", None)
    if spec is not None and (spec.loader is not None or spec.submodule_search_locations is not None):
        return True
    # `python -m` and frozen programs have modules without a spec, but with a file.
    return isinstance(getattr(module, "__loader__", None), importlib.machinery.SourceFileLoader)
