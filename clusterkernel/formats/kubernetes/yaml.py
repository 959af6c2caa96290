"""Manifests as YAML: written so that every reader takes text for text, read with the line of each value."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

try:  # three times as fast
    from yaml import CSafeDumper as _SafeDumper
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeDumper as _SafeDumper  # type: ignore[assignment]

from clusterkernel.errors import SpecError
from clusterkernel.payload import yamltext

__all__ = ["Tree", "dump", "load"]

_SIZE: Final = 4 << 20
_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
# Kubernetes reads YAML with another library than ours, to which 1e3 is a number and y is true.
_PLAIN: Final = re.compile(r"[A-Za-z/](?:[\w./-]*[\w/])?|[A-Za-z][\w./-]*/[\w./:-]*\w", re.ASCII)
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


# -- writing ----------------------------------------------------------------------


class _Dumper(_SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    if "\n" in text.rstrip("\n"):
        style: str | None = "|"
    elif _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        style = None
    else:
        style = '"'
    return dumper.represent_scalar(_TEXT, text, style=style)


_Dumper.add_representer(str, _text)


def dump(documents: Sequence[Mapping[str, Any]]) -> str:
    """Documents as one text."""
    parts = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000) for document in documents
    ]
    return "---\n".join(parts)


# -- reading ----------------------------------------------------------------------


class _Loader(yamltext.BoundedLoader):
    """Takes no alias: an item that stands in two places would have two lines."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """As PyYAML's."""
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise SpecError(f"The manifest has an alias on line {line}.", hint="Write its value out.")
        return super().compose_node(parent, index)


class Tree:
    """A part of a manifest: its plain value, its lines, and which of its values were taken.

    Parameters
    ----------
    value : object
        What YAML makes of it.
    path : str
        ``spec.template.spec``.
    lines : dict
        Path of each value -> its line.
    taken : set
        Paths that were taken, shared by the whole document.
    asked : set
        Keys that were looked for, shared as well: all that a reader knows.
    """

    def __init__(self, value: Any, path: str, lines: dict[str, int], taken: set[str], asked: set[str]) -> None:
        self.value = value
        self.path = path
        self._lines = lines
        self._taken = taken
        self._asked = asked

    def at(self, *keys: str | int) -> Tree:
        """A part below; its value is None where there is none."""
        value, path = self.value, self.path
        for key in keys:
            if isinstance(key, int):
                value = value[key] if isinstance(value, list) and key < len(value) else None
                path = f"{path}[{key}]"
            else:
                value = value.get(key) if isinstance(value, dict) else None
                path = join(path, key)
                self._asked.add(key)
        return Tree(value, path, self._lines, self._taken, self._asked)

    def items(self) -> list[Tree]:
        """The items of a list; none where it is no list."""
        return [self.at(number) for number in range(len(self.value))] if isinstance(self.value, list) else []

    def pairs(self) -> list[tuple[str, Tree]]:
        """The keys of a mapping and what they hold; none where it is no mapping."""
        if not isinstance(self.value, dict):
            return []
        return [
            (str(key), Tree(value, join(self.path, str(key)), self._lines, self._taken, self._asked))
            for key, value in self.value.items()
        ]

    def take(self) -> Any:
        """The value, which counts as taken with all that is below it."""
        self._taken.add(self.path)
        return self.value

    @property
    def line(self) -> int | None:
        """The line of the key or item."""
        return self._lines.get(self.path)

    def meant(self) -> str:
        """The key that was meant where one on the way here is nearly one that is known; else empty."""
        for name, bracketed in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", self.path):
            key = name or bracketed
            if key not in self._asked and (close := difflib.get_close_matches(key, self._asked, 1, 0.85)):
                return f"{close[0]}, for {key}"
        return ""

    def left(self) -> Iterator[Tree]:
        """The leaves that nobody took."""
        if self.path in self._taken:
            return
        below = [part for _, part in self.pairs()] or self.items()
        if not below:
            yield self
        for part in below:
            yield from part.left()


def join(path: str, key: str) -> str:
    """The path of a key below a path; a key that has dots itself stands in brackets."""
    if "." in key or "/" in key:
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def load(text: str, where: str) -> list[Tree]:
    """The documents of a manifest.

    Raises
    ------
    SpecError
        It is no YAML, too large, has aliases, or sets a key twice.
    """
    if len(text) > _SIZE:
        raise SpecError(f"{where} is too large for a manifest.", hint="Is it the right file?")
    trees = []
    with yamltext.opened(text, where, _Loader, SpecError) as loader:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            lines: dict[str, int] = {}
            _note(node, "", lines, where)
            value = loader.construct_document(node)
            if value is not None:
                trees.append(Tree(value, "", lines, set(), set()))
    return trees


def _note(node: yaml.Node, path: str, lines: dict[str, int], where: str) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                key.tag = _TEXT  # as in JSON, which the server is sent, every key is text
            name = str(key.value)
            below = join(path, name)
            if below in lines:
                raise SpecError(
                    f"{where} sets {below} on line {lines[below]} and again on line {key.start_mark.line + 1}.",
                    hint="Keep one of them: Kubernetes refuses both.",
                )
            lines[below] = key.start_mark.line + 1
            _note(value, below, lines, where)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[f"{path}[{number}]"] = item.start_mark.line + 1
            _note(item, f"{path}[{number}]", lines, where)
