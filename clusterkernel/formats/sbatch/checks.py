"""What sbatch itself refuses: values that it cannot read, and options that exclude each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from clusterkernel.errors import FormatError, nearest
from clusterkernel.formats.sbatch import values as reads
from clusterkernel.formats.sbatch.grammar import Given

__all__ = ["check", "where"]

_MAIL: Final = frozenset(
    "NONE BEGIN END FAIL REQUEUE ALL STAGE_OUT INVALID_DEPEND TIME_LIMIT TIME_LIMIT_90 TIME_LIMIT_80 TIME_LIMIT_50 "
    "ARRAY_TASKS".split()
)
_HINTS: Final = frozenset("compute_bound memory_bound multithread nomultithread".split())
_GRES: Final = re.compile(r"(?:gres:)?[A-Za-z][\w.-]*(?::[A-Za-z][\w.-]*)?(?::\d{1,9}[kmgtKMGT]?)?|none", re.ASCII)


def where(option: Given, name: str) -> str:
    """The place of an option, and its name, as an error begins."""
    place = f"{name}, line {option.line}" if option.line else name
    return f"{place}: {option.key}"


def _choice(known: frozenset[str], *, upper: bool = False, several: bool = False) -> Callable[[str], object]:
    def read(text: str) -> None:
        for word in text.split(",") if several else [text]:
            if (word.upper() if upper else word) not in known:
                hint = nearest(word.upper() if upper else word, known)
                raise ValueError(f"is not known: {hint}" if hint else "is not known")

    return read


def _priority(text: str) -> None:
    if re.match(r"\s*-", text):
        raise ValueError("is below 0")


def _nice(text: str) -> None:
    if not re.fullmatch(r"[-+]?\d{1,10}", text, re.ASCII):
        raise ValueError("is no whole number")


def _gres(text: str) -> None:
    for part in text.split(","):
        if not _GRES.fullmatch(part):
            raise ValueError("is no list of resources: write gpu:8 or gpu:h100:8")


_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    **dict.fromkeys(
        (
            "cores-per-socket",
            "cpus-per-gpu",
            "cpus-per-task",
            "mincpus",
            "ntasks",
            "ntasks-per-core",
            "ntasks-per-gpu",
            "ntasks-per-node",
            "ntasks-per-socket",
            "sockets-per-node",
            "threads-per-core",
        ),
        reads.count,
    ),
    **dict.fromkeys(("time", "time-min"), reads.time),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu", "tmp"), reads.memory),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), reads.gpus),
    "nodes": reads.nodes,
    "array": reads.array_indices,
    "signal": reads.signal_text,
    "gres": _gres,
    "priority": _priority,
    "nice": _nice,
    "open-mode": _choice(frozenset({"a", "append", "t", "truncate"})),
    "exclusive": _choice(frozenset({"user", "mcs", "topo", "exclusive"})),
    "mail-type": _choice(_MAIL, upper=True, several=True),
    "hint": _choice(_HINTS),
    "kill-on-invalid-dep": _choice(frozenset({"yes", "no"})),
}
#: Of each group only one may be given.
_ALONE: Final = (
    ("mem", "mem-per-cpu", "mem-per-gpu"),
    ("ntasks-per-node", "ntasks-per-gpu"),
    ("ntasks-per-gpu", "gpus-per-task"),
    ("ntasks-per-gpu", "gpus-per-socket"),
    ("cpus-per-task", "cpus-per-gpu"),
)
_GPUS: Final = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")


def check(given: tuple[Given, ...], last: Mapping[str, Given], name: str) -> None:
    """Refuse what sbatch refuses.

    Raises
    ------
    FormatError
        One line with the file, the line, the option and its value.
    """
    for option in given:
        reader = _READERS.get(option.name)
        if reader is None or option.value is None:
            continue
        try:
            reader(option.value)
        except ValueError as error:
            shown = option.value if len(option.value) <= 60 else option.value[:57] + "..."
            reason, _, hint = str(error).partition(": ")
            hint = hint[:1].upper() + hint[1:] + ("" if hint.endswith((".", "?")) or not hint else ".")
            raise FormatError(f"{where(option, name)} = {shown!r} {reason}.", hint=hint) from None
    for group in _ALONE:
        found = [last[item] for item in group if item in last]
        if len(found) > 1:
            first, second = found[0], found[1]
            raise FormatError(
                f"{where(second, name)} excludes {first.key}" + (f" of line {first.line}." if first.line else "."),
                hint="Keep one of them: sbatch refuses both.",
            )
    gpus = [last[item] for item in _GPUS if item in last]
    by_gres = "gres" in last and "gpu" in (last["gres"].value or "")
    if (per := last.get("mem-per-gpu")) and not gpus and not by_gres and "ntasks-per-gpu" not in last:
        raise FormatError(f"{where(per, name)} needs GPUs.", hint="Ask for some, or write --mem.")
    task = last.get("gpus-per-task")
    if task and not any(item in last for item in ("ntasks", "ntasks-per-node", "gpus")):
        raise FormatError(
            f"{where(task, name)} needs a number of tasks.", hint="Add --ntasks-per-node, or write --gpus-per-node."
        )
    typed = {bool(re.match("[A-Za-z]", option.value or "")) for option in gpus}
    if len(typed) > 1:
        raise FormatError(
            f"{where(gpus[-1], name)} and {gpus[0].key} name GPUs with a type and without.",
            hint="Write the type in both, or in none.",
        )
