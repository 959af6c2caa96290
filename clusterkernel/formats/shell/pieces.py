"""Words of a bash script, and the pieces that they are made of."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = ["Piece", "Word", "ansi", "closing", "joined", "merged"]

_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}


class Word(msgspec.Struct, frozen=True, gc=False):
    """One word after expansion.

    Attributes
    ----------
    shell : str
        As bash reads it.
    value : str or None
        What it is; None where that is known inside the job only.
    inner : str
        What another shell would be given to read: the value, with what is not known left as it was written.
    """

    shell: str
    value: str | None
    inner: str = ""

    @property
    def text(self) -> str:
        """Its value, or what stands for it."""
        return self.shell if self.value is None else self.value


class Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a word: a literal text, or something that bash expands."""

    text: str
    literal: bool
    quoted: bool


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """The same pieces, with neighbours of one kind put together."""
    found: list[Piece] = []
    for piece in pieces:
        if found and piece.literal and found[-1].literal and found[-1].quoted == piece.quoted:
            found[-1] = Piece(found[-1].text + piece.text, True, piece.quoted)
        else:
            found.append(piece)
    return found


def joined(pieces: Sequence[Piece], raw: str | None) -> Word:
    """The word of some pieces, which is written as `raw` where that still says the same."""
    text = "".join([piece.text for piece in pieces])
    if not [piece for piece in pieces if not piece.literal]:
        return Word(shlex.quote(text) if raw is None else raw, text, text)
    # Whoever uses a home folder knows it.
    known = pieces[0].text == "~" and all(piece.literal for piece in pieces[1:])
    return Word(_render(pieces) if raw is None else raw, text if known else None, text)


def _render(pieces: Sequence[Piece]) -> str:
    """A word for bash that is not known in full, quoted where it has to be."""
    found: list[str] = []
    inside = False
    for piece in pieces:
        text = piece.text
        if piece.literal:
            text = re.sub(r'([\\"$`])', r"\\\1", text)
        wants = piece.quoted or (piece.literal and shlex.quote(piece.text) != piece.text)
        if wants != inside:
            found.append('"')
            inside = wants
        found.append(text)
    return "".join(found) + ('"' if inside else "")


def ansi(raw: str, at: int) -> tuple[int, str]:
    """What stands in ``$'...'`` from `at` on, and where that ends."""
    found = []
    while at < len(raw) and raw[at] != "'":
        if raw[at] == "\\":
            following = raw[at + 1 : at + 2]
            found.append(_ESCAPES.get(following, "\\" + following))
            at += 2
        else:
            found.append(raw[at])
            at += 1
    return at + 1, "".join(found)


def closing(raw: str, at: int, opens: str, closes: str) -> int:
    """Where a bracket ends whose inside begins at `at`."""
    level = 1
    quote = ""
    while at < len(raw):
        char = raw[at]
        if char == "\\":
            at += 2
            continue
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and opens == "(":
            quote = char
        elif char == opens:
            level += 1
        elif char == closes:
            level -= 1
            if not level:
                return at + 1
        at += 1
    return len(raw)
