"""The directives of an sbatch script, and the words of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from clusterkernel.errors import FormatError

__all__ = ["Placed", "Words", "directives", "short"]

_SPACE: Final = " \t\n\v\f\r"
_MAGIC: Final = ("#SBATCH", "#SLURM")
_VARIABLE: Final = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^{}]*))?\})", re.ASCII)
# sbatch reads a word into a buffer of this size.
_LONGEST: Final = 8191


def directives(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The directives before the first command, each without its mark."""
    for number, line in enumerate(lines, 1):
        for magic in _MAGIC:
            if line.startswith(magic):
                yield number, line[len(magic) :]
                break
        else:
            rest = line.lstrip(_SPACE)
            if rest and not rest.startswith("#"):
                return


class Placed(NamedTuple):
    """A word, where it stands, and the variables that stood in it."""

    text: str
    line: int | None
    filled: tuple[str, ...] = ()


class Words:
    """Splits directives into words, with the variables filled in."""

    def __init__(self, name: str, values: Mapping[str, str]) -> None:
        self._name = name
        self._values = values
        self.used: dict[str, str] = {}
        self._filled: list[str] = []
        self._missing: dict[str, int] = {}

    def complain(self) -> None:
        """Ask for all variables that have no value, in one line."""
        if not self._missing:
            return
        shown = ", ".join(f"${variable} (line {line})" for variable, line in self._missing.items())
        first = next(iter(self._missing))
        raise FormatError(
            f"{self._name}: sbatch fills no variables into directives, and there is no value for {shown}.",
            hint=f'Give values={{"{first}": "..."}}, or --set {first}=... on the command line.',
        )

    def split(self, text: str, line: int) -> Iterator[Placed]:
        """The words of one directive."""
        at = 0
        while at < len(text):
            while at < len(text) and text[at] in _SPACE:
                at += 1
            if at == len(text) or text[at] == "#":
                return
            if text[at] == ":":
                raise FormatError(
                    f"{self._name}, line {line}: a colon stands alone: {short(text)}.",
                    hint="In sbatch it parts the unlike parts of a job, which no other platform has.",
                )
            self._filled = []
            word, at, several = self._word(text, at, line)
            filled = tuple(self._filled)
            if several:
                yield from (Placed(part, line, filled) for part in word.split())
            elif not word:
                return  # an empty word ends the directive
            else:
                yield Placed(word, line, filled)

    def _word(self, text: str, at: int, line: int) -> tuple[str, int, bool]:
        """One word from `at`, where it ends, and whether it is one variable and nothing else."""
        found: list[str] = []
        quote = ""
        alone = False
        start = at
        while at < len(text):
            char = text[at]
            if not quote and (char in _SPACE or char == "#"):
                break
            if char == "\\":
                following = text[at + 1 : at + 2]
                kept = bool(quote) or following not in _SPACE  # a space ends the word all the same
                found.append(following if kept else "")
                at += 1 + kept
            elif char == quote:
                quote = ""
                at += 1
            elif not quote and char in "\"'":
                quote = char
                at += 1
            elif char == "$" and (match := _VARIABLE.match(text, at)):
                alone = at == start and not quote
                at = match.end()
                alone = alone and (at == len(text) or text[at] in _SPACE)
                found.append(self._value(match, line))
            else:
                found.append(char)
                at += 1
        if quote:
            raise FormatError(
                f"{self._name}, line {line}: a quote {quote} is not closed: {short(text)}.", hint="Close it."
            )
        word = "".join(found)
        if len(word) > _LONGEST:
            raise FormatError(f"{self._name}, line {line}: a word of {len(word)} characters is too long for sbatch.")
        return word, at, alone

    def _value(self, match: re.Match[str], line: int) -> str:
        variable = match[1] or match[2]
        default: str | None = match[3]
        value = self._values.get(variable, default)
        self._filled.append(variable)
        if value is None:
            self._missing.setdefault(variable, line)
            return "1"
        self.used[variable] = value
        return value


def short(text: str) -> str:
    """A text for an error: on one line, and not too long."""
    shown = " ".join(text.split())
    return shown if len(shown) <= 60 else shown[:57] + "..."
