"""What the words of a bash script come to, as far as that is known without running it.

Known are the variables that the script sets to literals, and those that a
person gave. What is not known (a command's output, a variable of the job) stays
in the word as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from clusterkernel.errors import FormatError
from clusterkernel.formats.shell.arithmetic import arithmetic
from clusterkernel.formats.shell.pieces import Piece, Word, ansi, closing, joined, merged

__all__ = ["Variables", "assignment", "names_in"]

_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\+?)=", re.ASCII)
_SPECIAL: Final = re.compile(r"[\\'\"$`*?\[\]{}~]")
_PLAIN: Final = re.compile(r"[^\\'\"$`*?\[\]{}~]+")
_IN_DOUBLE: Final = re.compile(r'[^\\"$`]+')
_BRACED: Final = re.compile(r"([A-Za-z_]\w*)(?:\[([@*]|\d+)\])?(?:(:?[-=])(.*))?", re.ASCII | re.DOTALL)
_NAMED: Final = re.compile(r"\$\{?([A-Za-z_]\w*)", re.ASCII)
_REFERENCE: Final = re.compile(r"\$[A-Za-z_]\w*|\$\{[A-Za-z_]\w*\}|\$\(\([^()]*\)\)", re.ASCII)
_CALCULATED: Final = re.compile(r"\$?\b([A-Za-z_]\w*)\b|\$\{([A-Za-z_]\w*)\}", re.ASCII)
_SIMPLE: Final = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])", re.ASCII)
#: What a shell itself changes from line to line.
_CHANGING: Final = ("PWD", "OLDPWD", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "LINENO", "REPLY")
#: Files whose names bash puts in where a value is not quoted.
_PATTERN: Final = re.compile(r"(?=.*[*?\[])[\w./*?\[\]:=,@%+-]+", re.ASCII)
_LONGEST: Final = 30_000


class Variables:
    """The variables of a script, as they change from line to line.

    Parameters
    ----------
    values : mapping
        Known from the start.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self._known: dict[str, str | list[Word]] = dict(values)
        self._set: set[str] = set()
        self._partly: dict[str, list[Piece]] = {}
        self._readers: dict[str, set[str]] = {}  # variable -> those that hold a reference to it
        self._room = _LONGEST
        self.place = "The script"
        self.assumed: dict[str, str] = {}
        self.used: set[str] = set()
        self.asked: dict[str, None] = {}

    def set(self, name: str, value: str | list[Word] | None) -> None:
        """Remember a value; None for one that is not known."""
        self._partly.pop(name, None)
        for reader in self._readers.pop(name, ()):
            self._partly.pop(reader, None)
        if value is None:
            self._known.pop(name, None)
        else:
            self._known[name] = value
            self._set.add(name)

    def set_partly(self, name: str, raw: str) -> bool:
        """Remember a value in which only other variables are not known; False where there is more than that."""
        self.set(name, None)
        fields: list[list[Piece]] = [[]]
        self._room = _LONGEST
        self._scan(raw, fields, False)
        open_ = [piece.text for piece in fields[0] if not piece.literal]
        if len(fields) > 1 or not open_ or not all(_REFERENCE.fullmatch(text) for text in open_):
            return False
        if not {name, *_CHANGING}.isdisjoint(names_in(" ".join(open_))):
            return False
        self._partly[name] = merged(fields[0])
        for text in open_:
            for part in _NAMED.findall(text):
                self._readers.setdefault(part, set()).add(name)
        return True

    def get(self, name: str) -> str | None:
        """A variable's value, where it is known and a text."""
        value = self._known.get(name)
        return value if isinstance(value, str) else None

    @property
    def own(self) -> list[str]:
        """The variables that the script has set, as far as they are known."""
        return [*self._set, *self._partly]

    def copy_of(self, name: str) -> list[Word] | None:
        """The words of an array."""
        value = self._known.get(name)
        return list(value) if isinstance(value, list) else None

    # -- expansion --------------------------------------------------------------------

    def words(self, raw: Iterable[str]) -> list[Word]:
        """Raw words after expansion: one may become several, or none."""
        found: list[Word] = []
        for word in raw:
            found += self.expand(word)
        return found

    def expand(self, raw: str, *, split: bool = True) -> list[Word]:
        """One raw word after expansion; without `split` it stays one, as in an assignment."""
        if not _SPECIAL.search(raw):
            return [Word(raw, raw)]
        fields: list[list[Piece]] = [[]]
        self._room = _LONGEST
        changed = self._scan(raw, fields, split)
        fields = [field for field in fields if field] or ([[]] if not changed else [])
        keep = raw if not changed and len(fields) == 1 else None
        return [joined(field, keep) for field in fields]

    def value(self, raw: str) -> str | None:
        """The value of a word, where it is known."""
        found = self.expand(raw, split=False)
        return found[0].value if len(found) == 1 else "" if not found else None

    def _scan(self, raw: str, fields: list[list[Piece]], split: bool) -> bool:
        """Take a word apart; says whether a variable was replaced."""
        at, changed = 0, False
        while at < len(raw):
            char = raw[at]
            if plain := _PLAIN.match(raw, at):
                fields[-1].append(Piece(plain[0], True, False))
                at = plain.end()
            elif char == "\\":
                if raw[at + 1 : at + 2] != "\n":
                    fields[-1].append(Piece(raw[at + 1 : at + 2], True, True))
                at += 2
            elif char == "'":
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                fields[-1].append(Piece(raw[at + 1 : end], True, True))
                at = end + 1
            elif char == '"':
                at, replaced = self._double(raw, at + 1, fields)
                changed = changed or replaced
            elif char == "$" and raw.startswith("$'", at):
                at, text = ansi(raw, at + 2)
                fields[-1].append(Piece(text, True, True))
            elif char == "$":
                at, replaced = self._dollar(raw, at, fields, False, split)
                changed = changed or replaced
            elif char == "`":
                end = raw.find("`", at + 1)
                end = len(raw) if end < 0 else end + 1
                fields[-1].append(Piece(raw[at:end], False, False))
                at = end
            else:  # a pattern, a home folder or braces
                plain_brace = char in "{}" and not re.search(r"\{[^{}]*(,|\.\.)[^{}]*\}", raw)
                fields[-1].append(Piece(char, plain_brace or (char == "~" and at > 0), False))
                at += 1
        return changed

    def _double(self, raw: str, at: int, fields: list[list[Piece]]) -> tuple[int, bool]:
        changed = False
        fields[-1].append(Piece("", True, True))
        while at < len(raw) and raw[at] != '"':
            if plain := _IN_DOUBLE.match(raw, at):
                fields[-1].append(Piece(plain[0], True, True))
                at = plain.end()
            elif raw[at] == "\\":
                following = raw[at + 1 : at + 2]
                if following != "\n":
                    text = following if following in '$`"\\' else "\\" + following
                    fields[-1].append(Piece(text, True, True))
                at += 2
            elif raw[at] == "`":
                end = raw.find("`", at + 1)
                end = len(raw) if end < 0 else end + 1
                fields[-1].append(Piece(raw[at:end], False, True))
                at = end
            else:
                at, replaced = self._dollar(raw, at, fields, True, False)
                changed = changed or replaced
        return at + 1, changed

    def _dollar(self, raw: str, at: int, fields: list[list[Piece]], quoted: bool, split: bool) -> tuple[int, bool]:
        """What a dollar sign stands for; gives where it ends and whether it was replaced."""
        if raw.startswith("$((", at) and (end := raw.find("))", at)) > 0:
            source, end = raw[at : end + 2], end + 2
            number = arithmetic(source[3:-2], self._number)
            if number is None:
                changes = re.search(r"\+\+|--|(?<![=!<>])=(?!=)", source)
                text = source if changes else _CALCULATED.sub(self._calculated, source)
                fields[-1].append(Piece(text, False, quoted))
                return end, text != source
            self._put(fields, str(number), True, quoted, False)
            return end, True
        if raw.startswith("$(", at):
            end = closing(raw, at + 2, "(", ")")
            fields[-1].append(Piece(raw[at:end], False, quoted))
            return end, False
        if raw.startswith("${", at):
            end = closing(raw, at + 2, "{", "}")
            match = _BRACED.fullmatch(raw[at + 2 : end - 1])
        elif named := _NAME.match(raw, at + 1):
            end = named.end()
            match = _BRACED.fullmatch(named[0])
        else:
            simple = _SIMPLE.match(raw, at)
            end = simple.end() if simple else at + 1
            literal = simple is None
            if simple and simple[0][1:].isdigit() and (given := self._known.get(simple[0][1:])) is not None:
                self._put(fields, str(given), True, quoted, split)
                return end, True
            if simple:
                self.asked[simple[0][1:]] = None
            fields[-1].append(Piece(raw[at:end], literal, quoted))
            return end, False
        source = raw[at:end]
        if match is None:
            self.asked.update(dict.fromkeys(_NAMED.findall(source)))
            fields[-1].append(Piece(source, False, quoted))
            return end, False
        name, index, operator, default = match.groups()
        known = self._known.get(name)
        if isinstance(known, list):
            return end, self._array(known, index, fields, source, quoted)
        if known is not None and (known or operator != ":-"):
            self.used.add(name)
            self._spend(len(known))
            self._put(fields, known, True, quoted, split)
            return end, True
        if name in self._partly and index is None:
            self._put_partly(fields, self._partly[name], quoted, split)
            return end, True
        if operator and default is not None and not name.startswith("SLURM_"):
            otherwise = self.value(f'"{default}"' if not default.startswith(("'", '"')) else default)
            if otherwise is not None:
                self.assumed[name] = otherwise
                self._put(fields, otherwise, True, quoted, split)
                return end, True
        self.asked[name] = None
        fields[-1].append(Piece(source, False, quoted))
        return end, False

    def _calculated(self, match: re.Match[str]) -> str:
        """A variable within a calculation, by what it stands for."""
        name = match[1] or match[2]
        if (value := self._number(name)) is not None and re.fullmatch(r"-?\d+", value, re.ASCII):
            return value
        pieces = self._partly.get(name, [])
        if len(pieces) == 1:
            return pieces[0].text
        self.asked[name] = None
        return match[0]

    def _spend(self, size: int) -> None:
        """Variables that hold each other twice over grow beyond all bounds."""
        self._room -= size
        if self._room < 0:
            raise FormatError(
                f"{self.place}: its variables grow beyond {_LONGEST} characters in one word.", hint="Write it shorter."
            )

    def _number(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None:
            self.used.add(name)
        return value

    @staticmethod
    def _put(fields: list[list[Piece]], text: str, literal: bool, quoted: bool, split: bool) -> None:
        if quoted or not split or not literal:
            fields[-1].append(Piece(text, literal, quoted))
            return
        parts = text.split()
        if text[:1].isspace() and fields[-1]:
            fields.append([])
        for number, part in enumerate(parts):
            if number:
                fields.append([])
            fields[-1].append(Piece(part, _PATTERN.fullmatch(part) is None, False))
        if parts and text[-1:].isspace():
            fields.append([])

    def _put_partly(self, fields: list[list[Piece]], pieces: Sequence[Piece], quoted: bool, split: bool) -> None:
        for piece in pieces:
            self._spend(len(piece.text) + 10)
            if piece.literal:
                self._put(fields, piece.text, True, quoted, split)
            else:
                self.asked.update(dict.fromkeys(_NAMED.findall(piece.text)))
                fields[-1].append(Piece(piece.text, False, quoted))

    def _array(
        self, known: Sequence[Word], index: str | None, fields: list[list[Piece]], source: str, quoted: bool
    ) -> bool:
        chosen: Sequence[Word] = known
        if index not in ("@", "*"):
            chosen = known[int(index or 0) :][:1] if int(index or 0) < len(known) else []
        if index == "*" and quoted:
            fields[-1].append(Piece(source, False, quoted))
            return False
        for number, word in enumerate(chosen):
            self._spend(len(word.shell) + 10)
            if number:
                fields.append([])
            if word.value is None:
                fields[-1].append(Piece(word.shell, False, False))
            else:
                fields[-1].append(Piece(word.value, True, True))
        return True


def assignment(raw: str) -> tuple[str, str, bool] | None:
    """The name and the raw value of ``NAME=value``, and whether it is added (``+=``); None for another word."""
    match = _ASSIGNED.match(raw)
    return (match[1], raw[match.end() :], bool(match[2])) if match else None


def names_in(text: str) -> list[str]:
    """The variables that a text reads, each once."""
    return list(dict.fromkeys(_NAMED.findall(text)))
