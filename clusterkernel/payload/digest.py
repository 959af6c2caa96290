"""Digests of values: equal for equal values, in any process.

Hashes of pickled bytes are no key (a set gave four hashes in four processes), so
values are taken apart. What cannot be seen through whole has no digest, rather
than one that may agree by chance.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import os
import pathlib
import sys
import time
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any, Final

from clusterkernel.runtime import fingerprint

__all__ = ["digest", "digests"]

_BYTES: Final = 256 << 20
_SECONDS: Final = 1.5
_DEPTH: Final = 60
# Their text says all of them.
_BY_TEXT: Final[tuple[type, ...]] = (
    type(None),
    bool,
    int,
    float,
    complex,
    range,
    type(...),
    type(NotImplemented),
    slice,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    pathlib.PurePosixPath,
    pathlib.PosixPath,
)
_SEQUENCES: Final[tuple[type, ...]] = (list, tuple, collections.deque, collections.OrderedDict)
_MAPPINGS: Final[tuple[type, ...]] = (dict, collections.Counter, collections.defaultdict, types.MappingProxyType)


class _Plain:
    pass


class _Opaque(Exception):
    """Something that cannot be seen through, or not in time."""


def digest(value: object, *, seconds: float = _SECONDS) -> str | None:
    """A digest of the value's content, None where it cannot be compared.

    Equal for equal values in different processes of one Python. Dictionaries
    and sets count without their order.

    Parameters
    ----------
    value : object
    seconds : float
        What takes longer, or has more than 256 MiB, has no digest.
    """
    try:
        return _Reader(time.monotonic() + seconds).read(value).hex()[:32]
    except Exception:  # noqa: BLE001 - a value's own code may raise anything: it cannot be compared
        return None


def digests(values: Iterable[tuple[str, object]], *, seconds: float = 2 * _SECONDS) -> dict[str, str | None]:
    """The digests of several named values, which share the time."""
    deadline = time.monotonic() + seconds
    return {name: digest(value, seconds=min(_SECONDS, deadline - time.monotonic())) for name, value in values}


class _Reader:
    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._left = _BYTES
        self._depth = 0
        self._open: dict[int, int] = {}  # id -> depth, of what is being read: a cycle is a way back up

    def read(self, value: Any) -> bytes:
        if time.monotonic() > self._deadline or self._depth > _DEPTH:
            raise _Opaque
        kind = type(value)
        if kind in _BY_TEXT:
            return self._hash(kind.__qualname__, self._spend(repr(value).encode()))
        if kind in (str, bytes, bytearray):
            data = value.encode("utf-8", "surrogatepass") if kind is str else value
            return self._hash(kind.__qualname__, self._spend(data))
        if id(value) in self._open:
            return self._hash("above", str(self._depth - self._open[id(value)]).encode())
        self._open[id(value)] = self._depth
        self._depth += 1
        try:
            return self._read_whole(kind, value)
        finally:
            self._depth -= 1
            del self._open[id(value)]

    def _spend(self, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        self._left -= data.nbytes if isinstance(data, memoryview) else len(data)
        if self._left < 0:
            raise _Opaque
        return data

    @staticmethod
    def _hash(kind: str, *parts: bytes | bytearray | memoryview) -> bytes:
        made = hashlib.blake2b(kind.encode(), digest_size=20)
        for part in parts:
            size = part.nbytes if isinstance(part, memoryview) else len(part)
            made.update(b"%d:" % size)
            made.update(part)
        return made.digest()

    def _read_whole(self, kind: type, value: Any) -> bytes:
        if value is os.environ:
            return self._hash("environ")  # goes by reference
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind in _SEQUENCES:
            items = value.items() if kind is collections.OrderedDict else value
            return self._hash(name, *[self.read(item) for item in items])
        if kind in (set, frozenset):
            return self._hash(name, *sorted(self.read(item) for item in value))
        if kind in _MAPPINGS:
            pairs = sorted(self.read(key) + self.read(item) for key, item in value.items())
            return self._hash(name, *pairs)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, enum.Enum):
            return self._hash(name, self.read(kind), str(value.name).encode())
        if isinstance(value, types.ModuleType):
            return self._hash("module", value.__name__.encode())
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, types.ModuleType | None):
            return self._hash("function", f"{value.__module__}.{value.__qualname__}".encode())
        if isinstance(value, types.MethodType):
            return self._hash("method", self.read(value.__self__), value.__name__.encode())
        if kind.__name__ == "_lru_cache_wrapper" and isinstance(value.__wrapped__, types.FunctionType):
            return self._hash("cached", self._function(value.__wrapped__))
        if kind is functools.partial:
            return self._hash(name, self.read(value.func), self.read(value.args), self.read(value.keywords))
        return self._known_elsewhere(name, kind, value)

    def _class(self, cls: type) -> bytes:
        name = f"{cls.__module__}.{cls.__qualname__}".encode()
        if cls.__module__ != "__main__":
            return self._hash("class", name)
        return self._hash("class", name, fingerprint.of_class(cls).encode())

    def _function(self, function: types.FunctionType) -> bytes:
        module = sys.modules.get(function.__module__)
        if function.__module__ != "__main__" and getattr(module, function.__qualname__, None) is function:
            return self._hash("function", f"{function.__module__}.{function.__qualname__}".encode())
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(self.read(cell.cell_contents))
            except ValueError:
                cells.append(b"empty")
        defaults = [self.read(function.__defaults__), self.read(function.__kwdefaults__)]
        return self._hash("function", fingerprint.of_function(function).encode(), *cells, *defaults)

    def _known_elsewhere(self, name: str, kind: type, value: Any) -> bytes:
        """Values of libraries, where these are loaded; else objects that are no more than their attributes."""
        package = kind.__module__.partition(".")[0]
        reader: Callable[[str, Any], bytes] | None = {
            "numpy": self._numpy,
            "pandas": self._pandas,
            "torch": self._torch,
        }.get(package)
        if reader is not None and (made := reader(name, value)):
            return made
        return self._plain_object(kind, value)

    def _numpy(self, name: str, value: Any) -> bytes:
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.ndarray) and type(value) is numpy.ndarray:
            if value.dtype.hasobject:
                return self._hash(name, str(value.shape).encode(), self.read(value.tolist()))
            head = f"{value.dtype.descr if value.dtype.names else value.dtype.str} {value.shape}".encode()
            if value.nbytes > self._left:
                raise _Opaque
            data = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8) if value.size else b""
            return self._hash(name, head, self._spend(memoryview(data)))
        if isinstance(value, numpy.generic):
            return self._hash(name, str(value.dtype).encode(), self._spend(value.tobytes()))
        if isinstance(value, numpy.dtype):
            return self._hash("dtype", str(value).encode())
        return b""

    def _pandas(self, name: str, value: Any) -> bytes:
        pandas = sys.modules["pandas"]
        if type(value) is pandas.DataFrame:
            columns = [self._column(value.iloc[:, number]) for number in range(value.shape[1])]
            return self._hash(name, self.read(value.index), self.read(value.columns), *columns)
        if type(value) is pandas.Series:
            return self._hash(name, self.read(value.index), self.read(value.name), self._column(value))
        if isinstance(value, pandas.MultiIndex):
            levels = [self.read(value.get_level_values(number)) for number in range(value.nlevels)]
            return self._hash(name, self.read(list(value.names)), *levels)
        if isinstance(value, pandas.Index):
            return self._hash(name, self.read(value.name), self._column(value.to_series()))
        if isinstance(value, pandas.Timestamp | pandas.Timedelta):
            return self._hash(name, repr(value).encode())
        return b""

    def _column(self, column: Any) -> bytes:
        pandas = sys.modules["pandas"]
        if column.memory_usage(index=False) > self._left:
            raise _Opaque
        try:
            hashes = pandas.util.hash_pandas_object(column, index=False).to_numpy()
        except TypeError:
            return self._hash("objects", self.read(column.tolist()))
        return self._hash(str(column.dtype), self._spend(memoryview(hashes).cast("B")))

    def _torch(self, name: str, value: Any) -> bytes:
        torch = sys.modules["torch"]
        if not isinstance(value, torch.Tensor):
            return b""
        if value.layout is not torch.strided or value.numel() * value.element_size() > self._left:
            raise _Opaque
        head = f"{value.dtype} {tuple(value.shape)} {value.requires_grad} {value.device}".encode()
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy() if flat.numel() else b""
        return self._hash(name, head, self._spend(memoryview(data)))

    def _plain_object(self, kind: type, value: Any) -> bytes:
        if getattr(kind, "__new__", None) is not object.__new__ or kind.__basicsize__ != _Plain.__basicsize__:
            raise _Opaque  # it may hold more than its attributes
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is not dict:
            raise _Opaque
        return self._hash("object", self._class(kind), self.read(attributes))
