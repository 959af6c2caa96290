"""A value that must be nowhere, and where to look for it."""

from __future__ import annotations

import base64
import json
import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["command_lines", "commands_that_show", "files_with", "new"]


def new(kind: str = "") -> str:
    """A value that is met nowhere else."""
    return f"planted{kind}{uuid.uuid4().hex}"


def _forms(values: Iterable[str]) -> list[bytes]:
    """The values, each in the forms in which it could be written down."""
    found: list[bytes] = []
    for value in values:
        data = value.encode()
        found += [data, json.dumps(value)[1:-1].encode(), base64.b64encode(data)[:-4], data.hex().encode()]
    return found


def files_with(values: Iterable[str], *folders: Path) -> list[str]:
    """The files below `folders` that hold one of the values in any form."""
    found = []
    wanted = _forms(values)
    longest = max(map(len, wanted))
    for folder in folders:
        assert folder.is_dir(), folder
        for around, _, names in os.walk(folder):
            for name in names:
                path = Path(around) / name
                if path.is_file() and not path.is_symlink() and _holds(path, wanted, longest):
                    found.append(str(path))
    return found


def _holds(path: Path, wanted: list[bytes], longest: int) -> bool:
    rest = b""
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                data = rest + block
                if any(form in data for form in wanted):
                    return True
                rest = data[-longest:]
    except OSError:  # it went away meanwhile, or is no file to read
        pass
    return False


def command_lines() -> Iterator[tuple[int, bytes]]:
    """Every process of this machine, whatever its namespace: its number and its command line."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield int(name), Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue


@contextmanager
def commands_that_show(*values: str) -> Iterator[set[bytes]]:
    """The command lines of all processes that come by, by which one of the values can be seen."""
    wanted = _forms(values)
    found: set[bytes] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            found.update(line for _, line in command_lines() if any(form in line for form in wanted))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(30)
