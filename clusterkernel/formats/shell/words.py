"""The statements of a bash script, as far as one has to know them to find what it runs.

Simple commands come as words; what is compound (loops, conditions, functions,
subshells) comes as one block of text, read for its end only. One pass, no
execution, bounded nesting.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Final

import msgspec

from clusterkernel.formats.shell.lexer import GOES_ON, Lexer, Sort, Token, is_document

__all__ = ["Kind", "Statement", "statements"]

_CLOSES: Final = {
    "if": "fi",
    "while": "done",
    "until": "done",
    "for": "done",
    "select": "done",
    "case": "esac",
    "{": "}",
}


class Kind(enum.Enum):
    """What a statement is."""

    SIMPLE = "simple"
    BLOCK = "block"


class Statement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One command, or one compound of commands.

    Attributes
    ----------
    kind : Kind
        Whether it has words.
    words : tuple of str
        Raw words, with their quotes; none for a block.
    redirects : tuple of str
        ``> log``, ``2>&1``, with here-documents in full.
    text : str
        All of it. More than one line only for a block, a here-document, or a quote over several lines.
    line : int
        Where it begins, from 1.
    before : str
        The operator that joins it to the one before: ``&&``, ``||``, ``|``, or nothing.
    background : bool
        Whether ``&`` ends it.
    """

    kind: Kind
    words: tuple[str, ...] = ()
    redirects: tuple[str, ...] = ()
    text: str
    line: int
    before: str = ""
    background: bool = False


def statements(text: str, *, name: str, first_line: int = 1) -> list[Statement]:
    """The statements of a script or a command line, in order.

    Parameters
    ----------
    text : str
        With line ends as Unix has them.
    name : str
        What errors call it.
    first_line : int
        The number of its first line.

    Raises
    ------
    FormatError
        A quote, a bracket or a block is not closed, or it is nested beyond reason.
    """
    return list(_Parser(Lexer(text, name, first_line)).statements())


class _Parser:
    """Puts tokens together."""

    def __init__(self, lexer: Lexer) -> None:
        self._lexer = lexer
        self._tokens = list(lexer.tokens())
        self._at = 0

    def statements(self) -> Iterator[Statement]:
        """All of them."""
        before = ""
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.sort is Sort.OPERATOR and token.text != "(":
                if token.text not in ("\n", ";"):
                    raise self._lexer.error(token.start, f"{token.text!r} has no place there.", "Mend that line.")
                self._at += 1
                continue
            first = self._at
            kind = self._one()
            parts = self._tokens[first : self._at]
            operator = self._tokens[self._at].text if self._at < len(self._tokens) else "\n"
            self._at += 1
            yield self._statement(kind, parts, before, operator)
            before = operator if operator in ("&&", "||", "|", "|&") else ""
            if before:
                while self._at < len(self._tokens) and self._tokens[self._at].text == "\n":
                    self._at += 1

    def _statement(self, kind: Kind, parts: list[Token], before: str, operator: str) -> Statement:
        lexer = self._lexer
        redirects = tuple([part.text for part in parts if part.sort is Sort.REDIRECT])
        simple = kind is Kind.SIMPLE
        words = tuple([part.text for part in parts if part.sort is Sort.WORD]) if simple else ()
        if not redirects:
            text = " ".join(words) if simple else lexer.text[parts[0].start : parts[-1].end]
        else:
            # A here-document follows the line that it begins on, whatever else stands there.
            split = [part.text.partition("\n") if is_document(part) else (part.text, "", "") for part in parts]
            bodies = [body for _, line, body in split if line]
            if simple:
                text = "\n".join([" ".join([head for head, _, _ in split]), *bodies])
            else:
                text = lexer.text[parts[0].start : parts[-1].end]
                text += "".join(["\n" + body for body in bodies if body not in text])
        return Statement(
            kind=kind,
            words=words,
            redirects=redirects,
            text=text,
            line=lexer.line(parts[0].start),
            before="|" if before == "|&" else before,
            background=operator == "&",
        )

    def _one(self) -> Kind:
        """Go behind one command; says what it was."""
        tokens = self._tokens
        token = tokens[self._at]
        if token.sort is Sort.OPERATOR or token.text in _CLOSES or self._defines(self._at):
            self._compound()
            while self._at < len(tokens) and tokens[self._at].sort is Sort.REDIRECT:
                self._at += 1
            return Kind.BLOCK
        if token.text == "[[":
            self._test()
        at, size = self._at, len(tokens)
        while at < size and tokens[at].sort is not Sort.OPERATOR:
            at += 1
        self._at = at
        if at < size and tokens[at].text in ("(", ")"):
            place = tokens[at]
            raise self._lexer.error(place.start, f"{place.text!r} has no place there.", "Mend that line.")
        return Kind.SIMPLE

    def _defines(self, at: int) -> bool:
        """Whether a function is defined here."""
        tokens = self._tokens
        if tokens[at].text == "function":
            return True
        return at + 2 < len(tokens) and tokens[at + 1].text == "(" and tokens[at + 2].text == ")"

    def _test(self) -> None:
        opened = self._tokens[self._at]
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            if token.text == "]]":
                return
        raise self._lexer.error(opened.start, "[[ is not closed.")

    def _compound(self) -> None:
        """Go behind a block."""
        opened = self._tokens[self._at]
        open_: list[str] = []
        starts = True
        bodies = False  # a function's name is behind us, its body is not
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            self._at += 1
            inner = open_[-1] if open_ else ""
            if token.sort is Sort.REDIRECT:
                continue
            if token.sort is Sort.OPERATOR:
                if token.text == "(":
                    if self._at < len(self._tokens) and self._tokens[self._at].text == ")" and not starts:
                        self._at += 1  # of a function's name
                        starts = bodies = True
                        continue
                    if inner != "case" or not starts:
                        open_.append("(")
                elif token.text == ")":
                    if inner == "(":
                        open_.pop()
                        if not open_:
                            return
                    elif inner != "case":
                        raise self._lexer.error(token.start, "')' has no place there.", "Mend that line.")
                starts = token.text != ")" or inner == "case"
                if not open_ and not bodies:
                    return
            elif starts and token.text == "[[":
                self._at -= 1
                self._test()
                starts = False
            elif starts and token.text in _CLOSES:
                open_.append(token.text)
                bodies = False
                starts = token.text not in ("for", "case", "select")
            elif starts and inner and token.text == _CLOSES.get(inner):
                open_.pop()
                starts = False
                if not open_:
                    return
            elif token.text == "in" and inner == "case":
                starts = True
            elif token.text == "function" and starts:
                bodies = True
                starts = False
            else:
                starts = token.text in GOES_ON and starts
                if bodies and not open_:
                    starts = True  # behind `function name`
            if len(open_) > 200:
                raise self._lexer.error(token.start, "blocks are nested too deeply.", "Is it the right file?")
        raise self._lexer.error(opened.start, f"{opened.text[:20]!r} has no end.")
