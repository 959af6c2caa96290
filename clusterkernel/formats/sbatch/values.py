"""Values as sbatch spells them: times in minutes, memory in MiB, nodes as a range, GPUs with or without a type.

Each function takes what sbatch 22.05 takes and raises ValueError, with what is
wrong as its text, where sbatch refuses it.
"""

from __future__ import annotations

import re
import signal
from typing import Final

from clusterkernel.units import GpuRequest

__all__ = ["array_indices", "count", "gpus", "hosts", "memory", "nodes", "signal_text", "time"]

_DAYS: Final = re.compile(r"(\d{1,9})-(?:(\d{1,9})(?::(\d{1,9})(?::(\d{1,9}))?)?)?", re.ASCII)
_CLOCK: Final = re.compile(r"(\d{1,9})(?::(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)
_MEMORY: Final = re.compile(r"(\d{1,15})([kmgt]b?)?", re.IGNORECASE | re.ASCII)
_NODES: Final = re.compile(r"(\d{1,9})([km]?)(?:-(\d{1,9})([km]?))?", re.IGNORECASE | re.ASCII)
_GPU: Final = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*)(?::(?P<n>\d{1,6})k?)?|(?P<count>\d{1,6}))", re.ASCII)
_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", re.ASCII)
_SIGNAL: Final = re.compile(r"(?:([BR]{1,2}):)?(?:SIG)?([A-Z0-9]+)(?:@(\d{1,5}))?", re.ASCII)
# Tasks that an array is believed to have: Slurm's own limit is four million.
_MOST_TASKS: Final = 4_000_001


def time(text: str) -> int | None:
    """Seconds of ``--time``; None for no limit.

    ``90`` is minutes, ``1:00`` minutes and seconds, ``2-12`` days and hours.
    """
    raw = text.strip()
    if raw in ("-1", "0") or raw.upper() in ("UNLIMITED", "INFINITE"):
        return None
    if match := _DAYS.fullmatch(raw):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or None
    if match := _CLOCK.fullmatch(raw):
        first, second, third = match.groups()
        if second is None:
            return int(first) * 60
        if third is None:
            return int(first) * 60 + int(second) or None
        return (int(first) * 60 + int(second)) * 60 + int(third) or None
    raise ValueError("is no time: write 90 (minutes), 4:00:00 or 1-12:00:00")


def memory(text: str) -> int:
    """MiB of ``--mem``; 0 for all there is. A bare number is MiB, ``1.5T`` and ``512GiB`` are refused."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise ValueError("is no size: write a whole number and K, M, G or T")
    size = int(match[1])
    unit = (match[2] or "m")[0].lower()
    if unit == "k":
        return -(-size // 1024)
    return int(size * {"m": 1, "g": 1024, "t": 1024 * 1024}[unit])


def count(text: str, *, least: int = 1) -> int:
    """A whole number."""
    if not re.fullmatch(r"\+?\d{1,9}", text, re.ASCII) or int(text) < least:
        raise ValueError(f"is no whole number of at least {least}")
    return int(text)


def nodes(text: str) -> tuple[int, int]:
    """The least and the most nodes of ``--nodes``: ``2``, ``2-4``, ``1k``."""
    match = _NODES.fullmatch(text)
    if match is None:
        raise ValueError("is not a valid node count: write 2 or 2-4")
    low = int(match[1]) * _factor(match[2])
    high = int(match[3]) * _factor(match[4]) if match[3] else low
    if high < low:
        raise ValueError(f"has a greatest count, {high}, that is below the least, {low}")
    return low, high


def _factor(unit: str) -> int:
    return {"": 1, "k": 1024, "m": 1024 * 1024}[unit.lower()]


def gpus(text: str) -> GpuRequest | None:
    """GPUs of ``--gpus`` and its like: ``8``, ``h100:8``, ``h100``; None for none.

    ``h100:2,a100:1`` is 3 of any type, since a node of another platform has one.
    """
    found: list[tuple[str | None, int]] = []
    for part in text.split(","):
        match = _GPU.fullmatch(part)
        if match is None:
            raise ValueError("is no GPU request: write 8 or h100:8")
        kind = match["type"]
        if kind == "gpu":
            kind = None
        found.append((kind, int(match["count"] if match["count"] is not None else match["n"] or 1)))
    total = sum(number for _, number in found)
    kinds = {kind for kind, _ in found}
    if not total:
        return None
    kind = kinds.pop() if len(kinds) == 1 else None
    return GpuRequest(total, kind.lower() if kind else None)


def signal_text(text: str) -> tuple[str, str]:
    """Of ``--signal``: who gets it (``B``, ``R``, ``RB`` or nothing), and the rest as ``USR1@60``."""
    match = _SIGNAL.fullmatch(text.upper())
    if match is None or int(match[3] or 0) > 65535:
        raise ValueError("is no signal: write USR1@60 or B:USR1@60")
    name = match[2]
    if name.isdigit():
        known = int(name) in {item.value for item in signal.Signals}
    else:
        known = f"SIG{name}" in signal.Signals.__members__
    if not known:
        raise ValueError("is no signal: write USR1@60 or B:USR1@60")
    return match[1] or "", f"{name}@{int(match[3] or 60)}"


def array_indices(text: str) -> tuple[list[range], int | None]:
    """The indices of ``--array``, and how many tasks run at once: ``0-9%2``, ``1,3,5``, ``0-8:2``."""
    indices, _, throttle = text.partition("%")
    found = []
    for part in indices.removeprefix("[").removesuffix("]").split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError("is no list of indices: write 0-9, 1,3,5 or 0-9%2")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or not step:
            raise ValueError("is no list of indices: write 0-9, 1,3,5 or 0-9%2")
        found.append(range(first, last + 1, step))
    if sum(map(len, found)) > _MOST_TASKS:
        raise ValueError("has more tasks than Slurm takes")
    return found, (count(throttle) if throttle else None)


def hosts(text: str) -> int | None:
    """How many nodes ``--nodelist`` names; None where that cannot be told."""
    if "/" in text:
        return None  # a file
    total = 0
    for name, numbers in re.findall(r"([^,\[\]]*)(?:\[([^\]]*)\])?,?", text):
        if not name and not numbers:
            continue
        inside = 0
        for part in numbers.split(",") if numbers else []:
            first, dash, last = part.partition("-")
            if not first.isdecimal() or (dash and not last.isdecimal()):
                return None
            inside += int(last[:9]) - int(first[:9]) + 1 if dash else 1
        total += inside or 1
    return total if 0 < total <= 100_000 else None
