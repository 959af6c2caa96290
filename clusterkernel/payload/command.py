"""A command: a list of words that is executed as it is, with no shell in between."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Final

from clusterkernel.errors import PayloadError, shown
from clusterkernel.fieldtext import as_text
from clusterkernel.payload import Artefact, clear

__all__ = ["build"]

_TITLE: Final = 80
# MAX_ARG_STRLEN of Linux, which the final NUL is part of.
_WORD_LIMIT: Final = 128 << 10
# What Linux takes for all words and the environment together, where the stack may be 8 MiB.
_LIMIT: Final = 2 << 20
_HINT: Final = 'Pass a list of words, such as ["python", "train.py", "--epochs", "3"].'


def build(argv: Sequence[str], *, title: str | None = None) -> Artefact:
    """A command as a payload.

    Parameters
    ----------
    argv : sequence of str
        The program and its arguments.
    title : str, optional
        One line that a person knows it by; by itself the command.

    Raises
    ------
    PayloadError
        It is one string, empty, or holds what no program can be given.

    Examples
    --------
    >>> build(["python", "train.py", "--note", "two words"]).title
    "python train.py --note 'two words'"
    """
    if isinstance(argv, str | bytes):
        raise PayloadError(
            f"The command is one string, {_short(repr(argv))}, and no shell reads it.", hint=_split(argv)
        )
    if not isinstance(argv, Sequence):
        raise PayloadError(f"The command is of type {type(argv).__name__}.", hint=_HINT)
    words = list(argv)
    if not words:
        raise PayloadError("The command is empty.", hint=_HINT)
    for number, word in enumerate(words):
        which = "program" if number == 0 else f"argument {number}"
        _check(word, which)
        clear.refuse_text(word, f"The {which} of the command")
    if not words[0]:
        raise PayloadError("The program is an empty text.", hint=_HINT)
    if (total := sum(len(os.fsencode(word)) + 1 for word in words)) > _LIMIT:
        raise PayloadError(
            f"The command takes {total >> 10} KiB, more than the {_LIMIT >> 10} KiB that a program can be given.",
            hint="Write its arguments into a file.",
        )
    text = shlex.join(words)
    return Artefact(kind="command", title=_short(title or text), source=text, body={"argv": words})


def _check(word: object, which: str) -> None:
    if not isinstance(word, str):
        raise PayloadError(
            f"The {which} of the command is {shown(word)}, of type {type(word).__name__}.",
            hint=f"Write it as text: {shown(as_text(word))}.",
        )
    if "\0" in word:
        raise PayloadError(
            f"The {which} of the command, {shown(word)}, holds a NUL character, which ends an argument.",
            hint="Leave it out.",
        )
    try:
        size = len(word.encode()) + 1
    except UnicodeEncodeError:
        raise PayloadError(
            f"The {which} of the command, {shown(word)}, is no valid text.", hint="Rename what it names."
        ) from None
    if size > _WORD_LIMIT:
        raise PayloadError(
            f"The {which} of the command takes {size >> 10} KiB, more than the {_WORD_LIMIT >> 10} KiB "
            "that one argument may take.",
            hint="Write it into a file.",
        )


def _split(text: str | bytes) -> str:
    """The mend for a string: the list that it probably means."""
    if isinstance(text, bytes) or any(sign in text for sign in "|&;<>$`*?~\n"):
        return 'Pass a list of words; where a shell is meant, ["bash", "-c", "..."].'
    try:
        return f"Pass a list: {_short(repr(shlex.split(text)))}."
    except ValueError:  # a quotation mark without its partner
        return _HINT


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 3] + "..."
