"""What a process printed: both streams in the order in which they were written, the tail without reading the rest."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

from clusterkernel.runtime.supervisor import ORDER

__all__ = ["TAIL_BYTES", "Reader", "size", "tail"]

STREAMS: Final = {b"o": "stdout", b"e": "stderr"}
# What a tail may cost: a line may have 50 MB.
TAIL_BYTES: Final = 1 << 18
# The end of a character whose beginning was cut off.
_CUT: Final = re.compile(rb"\A[\x80-\xbf]{1,3}")
# No piece of output is larger, and none of another century.
_PIECE: Final = 1 << 20
_DISTANT: Final = 1e10
# How often the sizes of files that grow are looked at until they hold still.
_LOOKS: Final = 20


def _piece(data: bytes, at: int) -> tuple[str, int] | None:
    """One record of the order: stream and bytes; None where it is not one (records after half a one read so)."""
    code, size, when = ORDER.unpack_from(data, at)
    if code not in STREAMS or not 0 < size <= _PIECE or not 0 <= when < _DISTANT:
        return None
    return STREAMS[code], size


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def size(out: Path, stream: str = "both") -> int:
    """How many bytes a process printed so far; parameters as for `tail`."""
    return sum(_size(out / name) for name in STREAMS.values() if stream in ("both", name))


class Reader:
    """Reads one process's output from where it last stopped.

    Parameters
    ----------
    out : Path
        The process's folder.
    stream : str
        ``both``, ``stdout`` or ``stderr``.
    """

    def __init__(self, out: Path, stream: str = "both") -> None:
        self.out = out
        self.stream = stream
        self._order = 0
        self._offsets = {"stdout": 0, "stderr": 0}
        # Whether the record of the order is broken (a full disk): then the streams are read one after another.
        self._disordered = False
        self._awaited: list[tuple[str, int]] = []

    def read(self, limit: int = 1 << 22) -> bytes:
        """New bytes, at most about `limit`; empty where there are none yet."""
        if self.stream != "both":
            return self._take(self.stream, limit)
        parts: list[bytes] = []
        total = 0
        runs = self._awaited or self._runs(limit)
        self._awaited = []
        for at, (stream, size) in enumerate(runs):
            data = self._take(stream, size)
            parts.append(data)
            total += len(data)
            if len(data) < size:
                # On NFS the order may be seen before the bytes.
                self._awaited = [(stream, size - len(data)), *runs[at + 1 :]]
                return b"".join(parts)
        if self._disordered and total < limit:
            parts.append(self.rest(limit - total))
        return b"".join(parts)

    def all(self) -> bytes:
        """What there is by now; what is written meanwhile may be missing."""
        size = sum(self._ends().values())
        parts: list[bytes] = []
        while size > 0 and (data := self.read() or self.rest()):
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def rest(self, limit: int = 1 << 22) -> bytes:
        """What no record of the order tells of yet, one stream after the other."""
        self._awaited = []
        wanted = ("stdout", "stderr") if self.stream == "both" else (self.stream,)
        return b"".join([self._take(stream, limit) for stream in wanted])

    def _runs(self, limit: int) -> list[tuple[str, int]]:
        """The next pieces of output: stream and bytes, at most about `limit` in all."""
        runs: list[tuple[str, int]] = []
        total = 0
        try:
            with open(self.out / "order", "rb") as file:
                file.seek(self._order)
                while total < limit and not self._disordered and (data := file.read(ORDER.size << 12)):
                    for start in range(0, len(data) - ORDER.size + 1, ORDER.size):
                        piece = _piece(data, start)
                        if piece is None:
                            self._disordered = True
                            break
                        stream, size = piece
                        self._order += ORDER.size
                        total += size
                        if runs and runs[-1][0] == stream:
                            runs[-1] = (stream, runs[-1][1] + size)
                        else:
                            runs.append((stream, size))
                        if total >= limit:
                            break
                    if len(data) % ORDER.size:
                        break  # it is being written
        except FileNotFoundError:
            return []
        return runs

    def _take(self, stream: str, size: int) -> bytes:
        try:
            with open(self.out / stream, "rb") as file:
                file.seek(self._offsets[stream])
                data = file.read(size)
        except FileNotFoundError:
            return b""
        self._offsets[stream] += len(data)
        return data

    def seek_tail(self, size: int) -> None:
        """Go on about `size` bytes before the end."""
        if self.stream != "both":
            self._offsets[self.stream] = max(0, _size(self.out / self.stream) - size)
            return
        for _ in range(_LOOKS):
            ends = self._ends()
            if ends == self._ends():
                break  # nothing was written between two looks: the sizes belong together
        order = ends["order"] // ORDER.size * ORDER.size
        taken = 0
        with contextlib.suppress(FileNotFoundError), open(self.out / "order", "rb") as file:
            while order and taken < size:
                start = max(0, order - (ORDER.size << 10))
                file.seek(start)
                block = file.read(order - start)
                for at in range(len(block) - ORDER.size, -1, -ORDER.size):
                    piece = _piece(block, at)
                    if piece is None:
                        self._disordered = True
                        self._offsets = {name: max(0, _size(self.out / name) - size // 2) for name in self._offsets}
                        return
                    stream, length = piece
                    ends[stream] -= length
                    order -= ORDER.size
                    taken += length
                    if taken >= size:
                        break
        self._order = order
        if order:
            self._offsets = {name: max(0, ends[name]) for name in self._offsets}

    def skip(self, size: int) -> None:
        """Pass over all but the last `size` bytes of what `rest` would give."""
        for name, offset in self._offsets.items():
            self._offsets[name] = max(offset, _size(self.out / name) - size)

    def _ends(self) -> dict[str, int]:
        return {name: _size(self.out / name) for name in ("stdout", "stderr", "order")}


def tail(out: Path, lines: int | None, stream: str = "both", *, limit: int = TAIL_BYTES) -> str:
    """The last lines that a process printed.

    Parameters
    ----------
    out : Path
        The process's folder.
    lines : int or None
        How many; None for all (then without a limit).
    stream : str
        ``both``, ``stdout`` or ``stderr``.
    limit : int
        Bytes that are looked at from the end.

    Returns
    -------
    str
        Carriage returns have been applied as a terminal would: of a progress
        bar the last form stays.
    """
    reader = Reader(out, stream)
    if lines is None:
        text = reader.all()
    else:
        reader.seek_tail(limit)
        text = reader.read(limit)
        reader.skip(limit)
        text += reader.rest(limit)
        if len(text) >= limit:
            text = _CUT.sub(b"", text[-limit:], count=1)
    shown = [_overwritten(line) for line in text.decode("utf-8", "replace").split("\n")]
    if shown and not shown[-1]:
        shown.pop()
    return "\n".join(shown if lines is None else shown[-lines:] if lines else [])


def launch_tail(path: Path, lines: int | None) -> str:
    """The last lines of what was printed before a supervisor could keep it; empty where there is nothing."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            said = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(said if lines is None else said[-lines:] if lines else [])


def rest_of(path: Path, start: int) -> bytes:
    """What a file has from a place on; nothing where it is not there."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read()
    except FileNotFoundError:
        return b""


def _overwritten(line: str) -> str:
    """A line as a terminal shows it after its carriage returns."""
    if "\r" not in line:
        return line
    shown = ""
    for part in line.rstrip("\r").split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()
