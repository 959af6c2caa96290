"""Values as Python source, for the files that we write in that language."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Collection

__all__ = ["block", "call", "identifier", "literal"]


def literal(value: object, indent: int = 0) -> str:
    """A value as Python writes it, in double quotes; long lists and mappings take a line an item."""
    pad = " " * (indent + 4)
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
    if isinstance(value, dict):
        items = [f"{literal(key, indent + 4)}: {literal(item, indent + 4)}" for key, item in value.items()]
        return _bracketed("{", items, "}", pad, indent)
    if isinstance(value, list):
        return _bracketed("[", [literal(item, indent + 4) for item in value], "]", pad, indent)
    if isinstance(value, tuple):
        return f"({', '.join(literal(item) for item in value)}{',' if len(value) == 1 else ''})"
    return repr(value)


class Source(str):
    """Text that is source already."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def isprintable(self) -> bool:
        """Never a text to be quoted."""
        return False


def _bracketed(opening: str, items: list[str], closing: str, pad: str, indent: int) -> str:
    line = opening + ", ".join(items) + closing
    if len(line) + indent <= 88 and "\n" not in line:
        return line
    return opening + "\n" + "".join(f"{pad}{item},\n" for item in items) + " " * indent + closing


def call(name: str, arguments: dict[str, object], indent: int = 0) -> str:
    """A call with keywords, one a line."""
    pad = " " * (indent + 4)
    lines = [f"{pad}{key}={literal(value, indent + 4)},\n" for key, value in arguments.items()]
    return f"{name}(\n" + "".join(lines) + " " * indent + ")"


def block(text: str) -> str:
    """Lines of text as a literal that shows them as they are, where Python has one for them."""
    plain = all(char.isprintable() or char in "\n\t" for char in text)
    if plain and '"""' not in text and text.endswith("\n"):
        return f'r"""\n{text}"""'
    return repr(text)


def identifier(name: str, empty: str, taken: Collection[str] = ()) -> str:
    """The nearest name that Python takes, and that is not taken."""
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
    if not text.isidentifier() or keyword.iskeyword(text) or text in taken:
        text = empty
    while text in taken:
        text += "_"
    return text
