"""sbatch's own options, as people pass them through: ``--sbatch "--opt=value"``.

Grammar and aliases are those of sbatch 22.05 (its man page, section OPTIONS),
which later versions only extend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from clusterkernel.errors import SpecError
from clusterkernel.units import GpuRequest

__all__ = ["Option", "gres_gpus", "parse", "quote"]

SHORT: Final = {
    "A": "account",
    "B": "extra-node-info",
    "C": "constraint",
    "D": "chdir",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "I": "immediate",
    "J": "job-name",
    "L": "licenses",
    "M": "clusters",
    "N": "nodes",
    "O": "overcommit",
    "Q": "quiet",
    "S": "core-spec",
    "V": "version",
    "W": "wait",
    "a": "array",
    "b": "begin",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "h": "help",
    "i": "input",
    "k": "no-kill",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "w": "nodelist",
    "x": "exclude",
}
ALIASES: Final = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir", "share": "oversubscribe"}


class Option(msgspec.Struct, frozen=True, gc=False):
    """One option.

    Attributes
    ----------
    name : str
        Its long name without dashes.
    value : str or None
        None for a switch.
    given : str
        As it was written.
    """

    name: str
    value: str | None
    given: str

    @property
    def text(self) -> str:
        """As a directive takes it."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={quote(self.value)}"


def parse(options: Iterable[str]) -> list[Option]:
    """Read options, one in each string.

    Raises
    ------
    SpecError
        Something that is no option of sbatch's.
    """
    found = []
    for given in options:
        text = given.strip()
        if "\n" in text or "\r" in text or "\0" in text:
            raise SpecError(
                f"--sbatch {given!r} holds a line break.", field="--sbatch", hint="Write one option a line."
            )
        if text.startswith("--") and len(text) > 2:
            name, equals, value = text[2:].partition("=")
            name = ALIASES.get(name, name)
            found.append(Option(name, value if equals else None, given))
        elif text.startswith("-") and len(text) > 1 and text[1] in SHORT:
            rest = text[2:].strip()
            found.append(Option(SHORT[text[1]], rest or None, given))
        else:
            raise SpecError(
                f"--sbatch {given!r} is not an option of sbatch.", field="--sbatch", hint='Write "--option=value".'
            )
    return found


def quote(value: str) -> str:
    """A value for a directive, which sbatch reads as one word.

    Its reader knows both quotes, joins adjacent pieces, and takes a backslash
    as an escape also within single quotes (seen on 22.05.8).
    """
    if value and all(char.isalnum() or char in "-_./:,@%+=[]*" for char in value) and value.isascii():
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "'\"'\"'") + "'"


def gres_gpus(value: str) -> tuple[GpuRequest | None, list[str]]:
    """What a ``--gres`` value says of GPUs, and its other parts.

    ``gpu:h100:8,nvme:1`` gives 8 H100 and ``["nvme:1"]``; a GPU's type keeps its spelling.
    """
    gpus: GpuRequest | None = None
    others: list[str] = []
    for part in value.split(","):
        words: Sequence[str] = part.removeprefix("gres/").split(":")
        if words[0] != "gpu":
            others.append(part)
        elif words[-1].isdigit() and len(words) in (2, 3):
            gpus = GpuRequest(int(words[-1]), words[1] if len(words) == 3 else None)
        elif len(words) <= 2:
            gpus = GpuRequest(1, words[1] if len(words) == 2 else None)
        else:
            others.append(part)
    return gpus, others
