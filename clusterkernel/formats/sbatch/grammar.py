"""Reads the options of an sbatch script as sbatch does, with where each of them stands.

Every rule was seen on sbatch 22.05.8; the tests hold this file against the real
one. The words of all directives are one command line, in which a value may even
stand on the next directive. ``#PBS`` and ``#BSUB`` lines count as well, also
behind the first command, and over ``#SBATCH``; the environment counts over them,
and sbatch's own command line over all.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from clusterkernel.errors import FormatError, nearest
from clusterkernel.formats.sbatch import foreign as sbatch_foreign
from clusterkernel.formats.sbatch.options import SHORT
from clusterkernel.formats.sbatch.table import ENVIRONMENT, LONG, NEWER, PLUGIN, SHORT_FLAGS, Takes, canonical
from clusterkernel.formats.sbatch.words import Placed, Words, directives, short

__all__ = ["Given", "Header", "Origin", "read", "words_of"]


class Origin(enum.Enum):
    """Who gave an option; the later win."""

    SCRIPT = "script"
    FOREIGN = "foreign"
    ENVIRONMENT = "environment"
    COMMAND = "command"


class Given(msgspec.Struct, frozen=True, gc=False):
    """One option.

    Attributes
    ----------
    name : str
        Its long name, aliases resolved.
    value : str or None
        None for a switch.
    key : str
        As it was written: ``-N``, ``--nodes``, ``#PBS -l nodes``, ``SBATCH_PARTITION``.
    line : int or None
        Of the script.
    origin : Origin
        Who gave it.
    filled : tuple of str
        Variables that stand in it.
    """

    name: str
    value: str | None
    key: str
    line: int | None
    origin: Origin
    filled: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As one word of a command line."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


class Header(msgspec.Struct, frozen=True):
    """All options of a script.

    Attributes
    ----------
    given : tuple of Given
        In the order in which they count: the last of a name wins.
    variables : dict
        Variables of the directives, and their values.
    """

    given: tuple[Given, ...]
    variables: dict[str, str]

    @property
    def last(self) -> dict[str, Given]:
        """Of each name the one that counts."""
        return {option.name: option for option in self.given}


def read(
    lines: Sequence[str], *, name: str, values: Mapping[str, str] | None = None, options: Sequence[str] = ()
) -> Header:
    """The options of a script.

    Parameters
    ----------
    lines : sequence of str
        The script's lines without their ends.
    name : str
        What errors call it.
    values : mapping, optional
        Variables of directives, and ``SBATCH_...`` variables of the environment.
    options : sequence of str
        Words of sbatch's command line, before the script.

    Raises
    ------
    FormatError
        What sbatch refuses, by its line; and variables without a value, by their names.
    """
    values = dict(values or {})
    asked = list(_getopt([Placed(word, None) for word in options], name, Origin.COMMAND))
    for option in asked:
        if option.name == "export" and option.value:
            values = {**_exported(option.value), **values}
    reader = Words(name, values)
    words = [pair for number, line in directives(lines) for pair in reader.split(line, number)]
    foreign = [] if any(option.name == "ignore-pbs" for option in asked) else list(_foreign(lines, reader, name))
    reader.complain()
    given = list(_getopt(words, name, Origin.SCRIPT)) + foreign
    given += [
        Given(ENVIRONMENT[variable], _switch(ENVIRONMENT[variable], text), variable, None, Origin.ENVIRONMENT)
        for variable, text in values.items()
        if variable in ENVIRONMENT
    ]
    return Header(tuple(given + asked), reader.used)


def _switch(name: str, text: str) -> str | None:
    takes = LONG.get(name)
    return None if takes is Takes.NOTHING or (takes is Takes.MAYBE and not text) else text


def _exported(value: str) -> dict[str, str]:
    """The variables that ``--export=ALL,NAME=VALUE`` sets."""
    pairs = (part.partition("=") for part in value.split(","))
    return {variable.strip(): text for variable, equals, text in pairs if equals}


# -- options --------------------------------------------------------------------------


def _getopt(words: Iterable[Placed], name: str, origin: Origin) -> Iterator[Given]:
    """Options and their values, as getopt_long takes them out of a command line."""
    todo = list(words)
    at = 0

    def stop(message: str, line: int | None, hint: str = "") -> FormatError:
        where = f"{name}, line {line}" if line else f"The command line of {name}" if origin is Origin.COMMAND else name
        return FormatError(f"{where}: {message}", hint=hint)

    def value_behind(shown: str, line: int | None) -> Placed:
        nonlocal at
        if at == len(todo):
            raise stop(f"{shown} has no value.", line, "Write it behind the option.")
        at += 1
        return todo[at - 1]

    while at < len(todo):
        word, line, filled = todo[at]
        at += 1
        if word in ("hetjob", "packjob") and origin is Origin.SCRIPT:
            raise stop(f"the job has several unlike parts ({word}).", line, "No other platform has such jobs.")
        if word.startswith("--") and len(word) > 2:
            text, equals, value = word[2:].partition("=")
            found, takes = _long(text, lambda why, hint="", line=line: stop(why, line, hint))
            if equals and takes is Takes.NOTHING:
                raise stop(f"--{found} takes no value.", line, f"Leave {short('=' + value)} out.")
            if takes is Takes.VALUE and not equals:
                behind = value_behind(f"--{found}", line)
                value, equals, filled = behind.text, "=", filled + behind.filled
            yield Given(canonical(found), value if equals else None, f"--{text}", line, origin, filled)
        elif word.startswith("-") and word not in ("-", "--"):
            place = 1
            while place < len(word):
                letter, rest = word[place], word[place + 1 :]
                place += 1
                if letter in SHORT_FLAGS:
                    attached = rest if letter == "k" and rest else None
                    yield Given(canonical(letter), attached, f"-{letter}", line, origin, filled)
                    if attached:
                        break
                elif letter in SHORT:
                    behind = Placed(rest, line) if rest else value_behind(f"-{letter}", line)
                    yield Given(canonical(letter), behind.text, f"-{letter}", line, origin, filled + behind.filled)
                    break
                else:
                    raise stop(f"-{letter} is no option of sbatch.", line, "sbatch refuses the script.")
        elif word == "--" and at == len(todo):
            return
        else:
            stray = todo[at] if word == "--" else todo[at - 1]
            raise stop(
                f"{short(stray.text)!r} is no option.",
                stray.line,
                "Write --option=value; a placeholder needs its value.",
            )


def _long(text: str, stop: Callable[..., FormatError]) -> tuple[str, Takes]:
    """A long option by its name or an unambiguous beginning of it."""
    for table in (LONG, NEWER, PLUGIN):
        if text in table:
            return text, table[text]
    for table in (LONG, NEWER):
        begun = [option for option in table if option.startswith(text)]
        if len({canonical(option) for option in begun}) == 1:
            return begun[0], table[begun[0]]
        if begun:
            some = ", ".join(f"--{option}" for option in begun[:6]) + (", ..." if len(begun) > 6 else "")
            raise stop(f"--{text} can be {some}.", "Write the whole name.")
    hint = nearest(text, LONG) if len(text) <= 60 else ""
    raise stop(f"--{short(text)} is no option of sbatch.", hint if hint.startswith("Did") else "")


# -- PBS and LSF ----------------------------------------------------------------------


def _foreign(lines: Sequence[str], reader: Words, name: str) -> Iterator[Given]:
    """What ``#PBS`` and ``#BSUB`` lines say; sbatch looks for them in the first hundred lines that are no comment."""
    if not any(line.startswith(("#BSUB", "#PBS")) for line in lines):
        return
    for magic, translate in (("#BSUB", sbatch_foreign.bsub), ("#PBS", sbatch_foreign.pbs)):
        plain = 0
        words: list[tuple[str, int]] = []
        for number, line in enumerate(lines, 1):
            if line.startswith(magic):
                words += [(word.text, number) for word in reader.split(line[len(magic) :], number)]
            elif not line.startswith("#"):
                plain += 1
                if plain > 100:
                    break
        for option, value, key, line_number in translate(words, name):
            yield Given(option, value, f"{magic} {key}", line_number, Origin.FOREIGN)
        if words:
            return  # where there are both, LSF's count


def words_of(options: str | Sequence[str]) -> list[str]:
    """The words of a command line that is given as a text or as a list.

    Raises
    ------
    FormatError
        A quote is not closed.
    """
    if not isinstance(options, str):
        return [str(option) for option in options]
    try:
        return shlex.split(options)
    except ValueError as error:
        raise FormatError(f"The options {short(options)!r} cannot be split: {error}.", hint="Close it.") from None
