"""The document of a cloud YAML: its values with their types checked, and a row for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.model import How, SourceField

__all__ = ["Document", "short"]

_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Document:
    """What a file says, and what was told of it so far."""

    def __init__(self, text: str, name: str, document: dict[Any, Any], values: Mapping[str, str]) -> None:
        self._source = text
        self._name = name
        self._document = document
        self._values = values
        self._lines = _lines(text)
        self._rows: list[SourceField] = []
        self._found: dict[str, object] = {}
        self._secrets: list[str] = []
        self._options: list[str] = []
        self._provider = "modal"

    def _row(self, key: str, value: object, field: str | None, how: How = How.EXACT, why: str = "") -> None:
        line = self._lines.get(key.partition(".")[0].partition("[")[0])
        self._rows.append(SourceField(key, secrets.shown(short(value)), line, field, how, why))

    def _assume(self, key: str, value: object, field: str, why: str) -> None:
        self._rows.append(SourceField(key, str(value), None, field, How.ASSUMED, why))

    def _wrong(self, key: str, what: str, hint: str) -> FormatError:
        line = self._lines.get(key.partition("[")[0])
        value = self._document.get(key.partition("[")[0])
        shown = secrets.HIDDEN if key.startswith(("secrets", "env")) else repr(short(value))
        return FormatError(f"{self._name}, line {line or 1}: {key} = {shown} is {what}.", hint=hint)

    def _number(self, key: str, most: int = 1 << 30) -> int:
        value = self._document[key]
        if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 12:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise self._wrong(key, f"no whole number from 1 to {most}", f"Write it as {key}: 8.")
        return value

    def _text(self, key: str) -> str:
        value = self._document[key]
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise self._wrong(key, "no line of text", f"Write it as {key}: NAME.")
        return value.strip()

    def _list(self, key: str) -> list[Any]:
        value = self._document[key]
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "no list", "Start each item with a dash.")
        return value

    def _names(self, key: str) -> Iterator[tuple[int, str, Any]]:
        """Names, each with a value or None."""
        for number, item in enumerate(self._list(key)):
            pairs: list[tuple[Any, Any]] = list(item.items()) if isinstance(item, dict) else [(item, None)]
            for place, (name, value) in enumerate(pairs):
                if not isinstance(name, str) or not _NAME.fullmatch(name) or isinstance(value, dict | list):
                    begin = name.partition("=")[0].strip() if isinstance(name, str) and "=" in name else ""
                    mend = f"Write - {begin}: VALUE." if _NAME.fullmatch(begin) else "Write - NAME."
                    raise self._wrong(f"{key}[{number}]", "no variable's name", mend)
                if place:
                    why = "axolotl reads the first name of an item only."
                    self._row(f"{key}[{number}].{name}", secrets.HIDDEN, None, How.DROPPED, why)
                    continue
                yield number, name, value


def _lines(text: str) -> dict[str, int]:
    """The line of each key."""
    found: dict[str, int] = {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for key, _ in root.value if isinstance(root, yaml.MappingNode) else []:
        if isinstance(key, yaml.ScalarNode):
            found[key.value] = key.start_mark.line + 1
    return found


def short(value: object) -> str:
    """A value on one line, and not too long."""
    text = value if isinstance(value, str) else str(value)
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:117] + "..."
