"""Splits a bash script into words, operators and redirections: quotes, expansions and here-documents in one piece."""

from __future__ import annotations

import bisect
import enum
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from clusterkernel.errors import FormatError

__all__ = ["GOES_ON", "Lexer", "Sort", "Token", "is_document"]

_PLAIN: Final = re.compile(r"[^ \t\r\v\f\n\\'\"$`;&|()<>#]+")
# What may end a quote or a bracket, or has to be looked into.
_IN_DOUBLE: Final = re.compile(r'[\\"$`]')
_IN_PARENTHESES: Final = re.compile(r"[\\'\"$`#()]")
_IN_BRACES: Final = re.compile(r"[\\'\"$`}]")
_BRACKETS: Final = re.compile(r"\(*")
#: A word without quotes and expansions, with the blanks before it: most of all that a script is made of.
_SIMPLE: Final = re.compile(r"[ \t]*([^ \t\r\v\f\n\\'\"$`;&|()<>#{}0-9][^ \t\r\v\f\n\\'\"$`;&|()<>#]*)(?=[ \t\n])")
_GAP: Final = re.compile(r"(?:[ \t\r\v\f]|\\\n)+")
_OPERATOR: Final = re.compile(r"&&|\|\||\|&|;;&|;;|;&|[;&|()\n]")
_REDIRECT: Final = re.compile(r"&>>|&>|<<<|<<-|<<|<>|<&|>>|>&|>\||<|>")
_DESCRIPTOR: Final = re.compile(r"(?:\d+|\{\w+\})(?=[<>])", re.ASCII)
#: Characters that may begin something else than a word.
_SPECIAL: Final = frozenset("&|;()\n<>{0123456789")
_ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*(?:\[[^\]\s]*\])?\+?=", re.ASCII)
#: Words behind which a command begins.
GOES_ON: Final = frozenset({"then", "do", "else", "elif", "!", "time", "in"})
_DEPTH: Final = 40


class Sort(enum.Enum):
    """What a token is."""

    WORD = "word"
    OPERATOR = "operator"
    REDIRECT = "redirect"


class Token(msgspec.Struct, frozen=True, gc=False):
    """One token, and where it stands in the text."""

    sort: Sort
    text: str
    start: int
    end: int


class Lexer:
    """Splits a script into words, operators and redirections."""

    def __init__(self, text: str, name: str, first_line: int) -> None:
        self.text = text
        self._name = name
        self._first = first_line
        self._breaks = [match.start() for match in re.finditer("\n", text)]

    def line(self, at: int) -> int:
        """The number of the line that a place is on."""
        return self._first + bisect.bisect_left(self._breaks, at)

    def error(self, at: int, message: str, hint: str = "Is the file complete?") -> FormatError:
        """An error that names the place."""
        return FormatError(f"{self._name}, line {self.line(at)}: {message}", hint=hint)

    def tokens(self) -> Iterator[Token]:
        """All of them; a here-document belongs to its redirection."""
        text, at, size = self.text, 0, len(self.text)
        waiting: list[tuple[int, str, bool]] = []  # here-documents whose text begins on the next line
        held: list[Token] = []
        opens = True  # a command begins here
        tried = 0  # up to here, brackets are known to be no arithmetic
        while at < size:
            if simple := _SIMPLE.match(text, at):
                at = simple.end()
                token = Token(Sort.WORD, simple[1], simple.start(1), at)
                opens = token.text in GOES_ON
                if waiting:
                    held.append(token)
                else:
                    yield token
                continue
            char = text[at]
            if char == "\n" and not waiting:
                at, opens = at + 1, True
                yield Token(Sort.OPERATOR, "\n", at - 1, at)
                continue
            if char in " \t\r\v\f\\" and (gap := _GAP.match(text, at)):
                at = gap.end()
                continue
            if char == "#":
                end = text.find("\n", at)
                at = size if end < 0 else end
                continue
            special = char in _SPECIAL
            if special and opens and at >= tried and text.startswith("((", at):
                if end := self._arithmetic(at + 2):
                    yield Token(Sort.WORD, text[at:end], at, end)
                    at, opens = end, False
                    continue
                tried = _BRACKETS.match(text, at).end()  # type: ignore[union-attr]
            start = at
            descriptor = _DESCRIPTOR.match(text, at) if special else None
            redirect = _REDIRECT.match(text, descriptor.end() if descriptor else at) if special else None
            if redirect and not text.startswith(("<(", ">("), at):
                at = redirect.end()
                while gap := _GAP.match(text, at):
                    at = gap.end()
                target = at
                at = self.word(at)
                token = Token(Sort.REDIRECT, _joined(text[start:at]), start, at)
                if redirect[0] in ("<<", "<<-"):
                    waiting.append((len(held), _unquoted(text[target:at]), redirect[0] == "<<-"))
                    held.append(token)
                    continue
            elif special and (operator := _OPERATOR.match(text, at)):
                at = operator.end()
                token = Token(Sort.OPERATOR, operator[0], start, at)
                opens = token.text != ")"
                if token.text == "\n" and waiting:
                    at = self._documents(at, waiting, held)
                    yield from held
                    waiting, held = [], []
                    token = Token(Sort.OPERATOR, "\n", at, at)
            else:
                at = self.word(at)
                if at == start:
                    raise self.error(at, f"{char!r} has no place there.", "Mend that line.")
                token = Token(Sort.WORD, _joined(text[start:at]), start, at)
                opens = token.text in GOES_ON
            if waiting:
                held.append(token)
            else:
                yield token
        if waiting:
            self._documents(size, waiting, held)
            yield from held

    def _documents(self, at: int, waiting: list[tuple[int, str, bool]], held: list[Token]) -> int:
        """Take the here-documents that begin at `at`; gives where they end."""
        for index, mark, tabs in waiting:
            start = at
            while at < len(self.text):
                end = self.text.find("\n", at)
                end = len(self.text) if end < 0 else end
                line = self.text[at:end]
                at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == mark:
                    break
            else:
                if start < len(self.text) or mark:
                    raise self.error(held[index].start, f"the here-document {' '.join(mark[:40].split())} has no end.")
            body = self.text[start:at].rstrip("\n")
            held[index] = Token(Sort.REDIRECT, held[index].text + "\n" + body, held[index].start, held[index].end)
        return at

    # -- words ------------------------------------------------------------------------

    def word(self, at: int, depth: int = 0) -> int:
        """Where the word that begins at `at` ends."""
        text, size, start = self.text, len(self.text), at
        while at < size:
            if plain := _PLAIN.match(text, at):
                at = plain.end()
            elif text[at] == "#" and at > start:
                at += 1
            elif text[at] == "(" and at > start and _ASSIGNED.fullmatch(text, start, at):
                at = self._until_parenthesis(at + 1, depth + 1)
            elif text[at] in "<>" and text.startswith("(", at + 1) and at == start:
                at = self._until_parenthesis(at + 2, depth + 1)
            elif text[at] in "\\'\"$`":
                at = self._special(at, depth)
            else:
                break
        return at

    def _special(self, at: int, depth: int, *, quoted: bool = False) -> int:
        """Where a quote, an escape or an expansion that begins at `at` ends."""
        text = self.text
        if depth > _DEPTH:
            raise self.error(at, "quotes and brackets are nested too deeply.", "Is it the right file?")
        char = text[at]
        if char == "\\":
            return min(at + 2, len(text))
        if char == "'" and not quoted:
            return self._find("'", at, at + 1)
        if char == '"':
            return self._double(at, depth)
        if char == "`":
            end = at + 1
            while end < len(text) and text[end] != "`":
                end += 2 if text[end] == "\\" else 1
            if end >= len(text):
                raise self.error(at, "a backquote is not closed.")
            return end + 1
        if char == "$":
            following = text[at + 1 : at + 2]
            if following == "(":
                if text.startswith("((", at + 1) and (end := self._arithmetic(at + 3)):
                    return end
                return self._until_parenthesis(at + 2, depth + 1)
            if following == "{":
                return self._until_brace(at + 2, depth + 1)
            if following == "'" and not quoted:
                end = at + 2
                while end < len(text) and text[end] != "'":
                    end += 2 if text[end] == "\\" else 1
                if end >= len(text):
                    raise self.error(at, "a quote ' is not closed.")
                return end + 1
        return at + 1

    def _find(self, mark: str, opened: int, at: int) -> int:
        end = self.text.find(mark, at)
        if end < 0:
            raise self.error(opened, f"a quote {mark} is not closed.")
        return end + 1

    def _double(self, opened: int, depth: int) -> int:
        at, text = opened + 1, self.text
        while place := _IN_DOUBLE.search(text, at):
            at = place.start()
            if text[at] == '"':
                return at + 1
            at = self._special(at, depth + 1, quoted=True)
        raise self.error(opened, 'a quote " is not closed.')

    def _until_parenthesis(self, at: int, depth: int) -> int:
        opened, text, level = at, self.text, 1
        while place := _IN_PARENTHESES.search(text, at):
            at = place.start()
            char = text[at]
            if char in "\\'\"$`":
                at = self._special(at, depth)
                continue
            if char == "#" and text[at - 1] in " \t\n;(":
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
                continue
            level += (char == "(") - (char == ")")
            at += 1
            if not level:
                return at
        raise self.error(opened, "a bracket ( is not closed.")

    def _until_brace(self, at: int, depth: int) -> int:
        opened, text = at, self.text
        while place := _IN_BRACES.search(text, at):
            at = place.start()
            if text[at] == "}":
                return at + 1
            at = self._special(at, depth)
        raise self.error(opened, "a bracket { is not closed.")

    def _arithmetic(self, at: int) -> int:
        """Where ``))`` ends; 0 where it is no arithmetic but a command in a command."""
        level = 0
        for match in re.compile(r"[()\n]").finditer(self.text, at, at + 2000):
            if match[0] == "(":
                level += 1
            elif level:
                level -= 1
            else:
                return match.end() + 1 if self.text.startswith("))", match.start()) else 0
        return 0


def _joined(text: str) -> str:
    """A word without the line breaks that a backslash hides; within single quotes none is hidden."""
    if "\\\n" not in text:
        return text
    parts = re.split(r"(\"(?:[^\"\\]|\\.)*\"|'[^']*')", text, flags=re.DOTALL)
    return "".join(part if part.startswith("'") else part.replace("\\\n", "") for part in parts)


def _unquoted(mark: str) -> str:
    return re.sub(r"\\(.)|['\"]", lambda match: match[1] or "", mark)


def is_document(token: Token) -> bool:
    """Whether a redirection has a here-document, which its text ends with."""
    return token.sort is Sort.REDIRECT and "\n" in token.text and "<<" in token.text[:8]
