"""What a process printed: both streams in the order in which they were written, the tail without reading the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from clusterkernel.runtime.supervisor import ORDER

__all__ = ["Reader", "tail"]

STREAMS: Final = {b"o": "stdout", b"e": "stderr"}
# What a tail may cost: a line may have 50 MB.
TAIL_BYTES: Final = 1 << 18


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


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

    def read(self, limit: int = 1 << 22) -> bytes:
        """New bytes, at most about `limit`; empty where there are none yet."""
        parts: list[bytes] = []
        total = 0
        for stream, size in self._chunks():
            if self.stream in ("both", stream):
                data = self._pread(stream, self._offsets[stream], size)
                parts.append(data)
                total += len(data)
            self._offsets[stream] += size
            self._order += ORDER.size
            if total >= limit:
                break
        return b"".join(parts)

    def _chunks(self) -> Iterator[tuple[str, int]]:
        try:
            with open(self.out / "order", "rb") as file:
                file.seek(self._order)
                data = file.read(ORDER.size << 16)
        except FileNotFoundError:
            return
        for start in range(0, len(data) - ORDER.size + 1, ORDER.size):
            code, size, _ = ORDER.unpack_from(data, start)
            yield STREAMS[code], size

    def _pread(self, stream: str, offset: int, size: int) -> bytes:
        try:
            with open(self.out / stream, "rb") as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return b""

    def seek_tail(self, size: int) -> None:
        """Go on about `size` bytes before the end."""
        order = _size(self.out / "order") // ORDER.size * ORDER.size
        ends = {name: _size(self.out / name) for name in ("stdout", "stderr")}
        taken = 0
        with open(self.out / "order", "rb") as file:
            while order and taken < size:
                start = max(0, order - (ORDER.size << 10))
                file.seek(start)
                block = file.read(order - start)
                for at in range(len(block) - ORDER.size, -1, -ORDER.size):
                    code, length, _ = ORDER.unpack_from(block, at)
                    ends[STREAMS[code]] -= length
                    order -= ORDER.size
                    taken += length if self.stream in ("both", STREAMS[code]) else 0
                    if taken >= size:
                        break
        self._order = order
        self._offsets = {name: max(0, end) for name, end in ends.items()}


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
    if lines is not None:
        try:
            reader.seek_tail(limit)
        except FileNotFoundError:
            return ""
    parts = []
    while data := reader.read():
        parts.append(data)
    text = b"".join(parts)[-limit:] if lines is not None else b"".join(parts)
    shown = [_overwritten(line) for line in text.decode("utf-8", "replace").split("\n")]
    if shown and not shown[-1]:
        shown.pop()
    return "\n".join(shown if lines is None else shown[-lines:] if lines else [])


def _overwritten(line: str) -> str:
    """A line as a terminal shows it after its carriage returns."""
    if "\r" not in line:
        return line
    shown = ""
    for part in line.rstrip("\r").split("\r"):
        shown = part + shown[len(part) :]
    return shown.rstrip()
