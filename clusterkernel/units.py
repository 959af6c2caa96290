"""Sizes, durations and GPU requests: read as people write them, written as platforms want them.

Inside, memory is whole MiB and time is whole seconds. A bare number is refused
where people write, since Slurm means minutes and MiB, Modal seconds and MiB,
axolotl's cloud files GiB: whoever reads a platform's own file says which.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Final

import msgspec

from clusterkernel.errors import UnitError, shown

__all__ = [
    "GpuRequest",
    "format_duration",
    "format_memory",
    "parse_count",
    "parse_duration",
    "parse_gpus",
    "parse_memory",
    "slurm_memory",
    "slurm_time",
]

_MIB: Final = {
    "k": 1 / 1024,
    "m": 1.0,
    "g": 1024.0,
    "t": 1024.0 * 1024,
}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
# Digits are bounded, since Python refuses to read a whole number of thousands of them.
_MEMORY: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?) ?([kmgt])(?:i?b)?", re.IGNORECASE | re.ASCII)
# Whole words, so that 500ms and 3 months are not taken for minutes.
_PART: Final = re.compile(
    r"(\d{1,20}(?:\.\d{1,20})?) ?"
    r"(?:(?P<s>seconds?|secs?|s)|(?P<m>minutes?|mins?|m)|(?P<h>hours?|hrs?|h)|(?P<d>days?|d)|(?P<w>weeks?|w)) ?",
    re.IGNORECASE | re.ASCII,
)
_CLOCK: Final = re.compile(r"(?:(\d{1,9})-)?(\d{1,9}):(\d{1,2})(?::(\d{1,2}))?", re.ASCII)
_BARE: Final = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
# ASCII digits: a superscript is a digit to `str.isdigit`, and no number to `int`.
_WHOLE: Final = re.compile(r"[-+]?\d{1,18}", re.ASCII)
_MOST: Final = 10**18
_LONGEST: Final = 366 * 86400
_LARGEST: Final = 1 << 40


def _short(raw: str) -> str:
    """The text in quotes, cut where it is too long for a line."""
    return repr(raw) if len(raw) <= 60 else repr(raw[:60]) + "..."


def _positive(raw: str) -> bool:
    return len(raw) <= 20 and raw[0] not in "+-" and "e" not in raw.lower() and float(raw) > 0


def parse_count(value: object, *, field: str, least: int = 0) -> int:
    """A whole number, as it is or as a person writes it.

    Raises
    ------
    UnitError
        It is none, or below `least`.
    """
    if isinstance(value, str):
        number = int(value) if _WHOLE.fullmatch(value.strip()) else None
    else:
        try:
            number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            number = None
    if number is None:
        raise UnitError(f"{field} = {shown(value)} is not a whole number.", field=field, hint=f"Write {least} or more.")
    if not least <= number <= _MOST:
        raise UnitError(f"{field} = {shown(value)} is out of range.", field=field, hint=f"Write {least} or more.")
    return number


def parse_memory(text: str, *, field: str = "memory") -> int:
    """Memory in MiB.

    ``512G``, ``512GB`` and ``512GiB`` are the same size: Slurm, Kubernetes and
    people disagree on the letter, all clusters count in powers of 1024.

    Parameters
    ----------
    text : str
        ``64G``, ``1.5T``, ``800MiB``.
    field : str
        The name to put into an error.

    Returns
    -------
    int
        MiB, rounded up.

    Raises
    ------
    UnitError
        A bare number, another unit, zero or less.
    """
    raw = text.strip()
    mend = "Write it as 64G, 1.5T or 800M."
    if _BARE.fullmatch(raw):
        hint = f"Write {raw}G or {raw}M." if _positive(raw) else mend
        raise UnitError(f"{field} = {_short(raw)} has no unit.", field=field, hint=hint)
    match = _MEMORY.fullmatch(raw)
    if match is None:
        raise UnitError(f"{field} = {_short(raw)} is not a size.", field=field, hint=mend)
    size = float(match[1]) * _MIB[match[2].lower()]
    if not 0 < size <= _LARGEST:
        raise UnitError(
            f"{field} = {_short(raw)} is out of range.", field=field, hint="Write a size above zero, such as 64G."
        )
    return math.ceil(size)


def format_memory(mib: int) -> str:
    """MiB as a person reads it: ``64G``, ``1.5T``, ``800M``."""
    for unit, factor in (("T", 1024 * 1024), ("G", 1024)):
        halves, rest = divmod(mib * 2, factor)
        if mib >= factor and not rest:
            return f"{halves // 2}{'.5' if halves % 2 else ''}{unit}"
    return f"{mib}M"


def parse_duration(text: str, *, field: str = "time") -> int:
    """A duration in seconds.

    Parameters
    ----------
    text : str
        ``4h``, ``90m``, ``1h30m``, ``2d``, ``1-00:00:00`` or ``04:00:00``.
        ``1:30`` is refused: Slurm reads it as minutes and seconds, people as
        hours and minutes.
    field : str
        The name to put into an error.

    Returns
    -------
    int
        Seconds, rounded up.

    Raises
    ------
    UnitError
        A bare number, another form, zero, or more than a year.
    """
    raw = text.strip()
    mend = "Write it as 4h, 90m or 1-00:00:00."
    if _BARE.fullmatch(raw):
        hint = f"Write {raw}s, {raw}m, {raw}h or {raw}d." if _positive(raw) else mend
        raise UnitError(f"{field} = {_short(raw)} has no unit.", field=field, hint=hint)
    seconds = 0.0
    if clock := _CLOCK.fullmatch(raw):
        days, first, second, third = clock.groups()
        if third is None and days is None:
            raise UnitError(
                f"{field} = {_short(raw)} can be read two ways.",
                field=field,
                hint=f"Write {raw}:00, or 90m and the like.",
            )
        if int(second) > 59 or int(third or 0) > 59:
            raise UnitError(f"{field} = {_short(raw)} is not a duration.", field=field, hint=mend)
        seconds = int(days or 0) * 86400 + int(first) * 3600 + int(second) * 60 + int(third or 0)
    else:
        position = 0
        while match := _PART.match(raw, position):
            seconds += float(match[1]) * _SECONDS[match.lastgroup or "s"]
            position = match.end()
        if position == 0 or position != len(raw):
            raise UnitError(f"{field} = {_short(raw)} is not a duration.", field=field, hint=mend)
    if not 0 < seconds <= _LONGEST:
        raise UnitError(
            f"{field} = {_short(raw)} is out of range.", field=field, hint="Write more than 0s, at most 366d."
        )
    return math.ceil(round(seconds, 6))  # 1.1h is 3960.0000000000005 s in floats


def format_duration(seconds: int) -> str:
    """Seconds as a person reads them: ``4h``, ``1d 2h``, ``1m``, ``90s``."""
    if seconds < 120 and seconds != 60:
        return f"{seconds}s"
    parts = []
    rest = seconds
    for unit in "dhms":
        count, rest = divmod(rest, _SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


class GpuRequest(msgspec.Struct, frozen=True):
    """GPUs of one node.

    Attributes
    ----------
    count : int
        How many.
    type : str or None
        The platform's name of the model in lower case (``h100``), or any.
    """

    count: int
    type: str | None = None

    def __str__(self) -> str:
        return f"{self.type}:{self.count}" if self.type else str(self.count)


_GPU: Final = re.compile(
    r"(?:(?P<type>[a-z][\w.-]*):)?(?P<count>\d{1,9})|(?P<n>\d{1,9}) ?x ?(?P<t>[a-z][\w.-]*)|(?P<only>[a-z][\w.-]*)",
    re.IGNORECASE | re.ASCII,
)
# What a person writes who means something else than a GPU of that name.
_NO_GPU: Final = frozenset({"any", "false", "gpu", "gpus", "no", "none", "null", "off", "on", "true", "yes"})


def parse_gpus(text: str, *, field: str = "gpus_per_node", most: int = 1024) -> GpuRequest | None:
    """GPUs: ``8``, ``h100:8``, ``8xh100``, ``h100`` (one); ``0`` is none.

    Parameters
    ----------
    text : str
        As above.
    field : str
        The name to put into an error.
    most : int
        The largest count that is believed.

    Raises
    ------
    UnitError
        Anything else.
    """
    raw = text.strip()
    match = _GPU.fullmatch(raw)
    if match is None or raw.lower() in _NO_GPU:
        raise UnitError(
            f"{field} = {_short(raw)} is not a GPU request.", field=field, hint="Write 8, h100:8 or 8xh100."
        )
    kind = match["type"] or match["t"] or match["only"]
    count = int(match["count"] or match["n"] or 1)
    if count == 0 and kind is None:
        return None
    if not 0 < count <= most:
        raise UnitError(
            f"{field} = {_short(raw)} is out of range.", field=field, hint=f"Write a count from 1 to {most}."
        )
    return GpuRequest(count, kind.lower() if kind else None)


def slurm_time(seconds: int) -> str:
    """Seconds as ``--time`` takes them: ``D-HH:MM:SS`` (sbatch's man page)."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}-{hour:02}:{minute:02}:{second:02}"


def slurm_memory(mib: int) -> str:
    """MiB as ``--mem`` takes them: a whole number and a letter (22.05 refuses ``1.5T``)."""
    for unit, factor in (("T", 1024 * 1024), ("G", 1024)):
        if mib % factor == 0:
            return f"{mib // factor}{unit}"
    return f"{mib}M"
