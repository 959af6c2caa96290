"""What the parts of a manifest's reader put together: values by field, and a row for each leaf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.model import How, Mount, SourceField, Step

__all__ = ["Found", "hidden_values", "is_secret", "shown"]


class Found(msgspec.Struct):
    """Values of the spec and parts of the program, with the rows of the report.

    Attributes
    ----------
    name : str
        What errors call the manifest.
    hidden : frozenset of str
        Values that are secret: none of them is shown.
    values : dict
        Field -> value, as `fields.build` takes it.
    extra : list of str
        Options of ``extra["kubernetes"]``.
    elsewhere : list of str
        Variables of the container whose values are not known here.
    index : str
        Our name for what Kubernetes calls ``JOB_COMPLETION_INDEX``; empty where it sets none.
    stages : list
        Name, cores, memory and time of steps with needs of their own.
    """

    name: str
    hidden: frozenset[str] = frozenset()
    values: dict[str, Any] = {}
    env: dict[str, str] = {}
    secrets: list[str] = []
    setup: list[str] = []
    volumes: list[tuple[str, str]] = []
    tags: list[str] = []
    extra: list[str] = []
    steps: list[Step] = []
    mounts: list[Mount] = []
    stages: list[tuple[str, int | None, int | None, int | None]] = []
    rows: list[SourceField] = []
    config: str = ""
    elsewhere: list[str] = []
    index: str = ""

    def row(self, tree: Tree, field: str | None, how: How = How.EXACT, reason: str = "", value: str = "") -> None:
        """Take a part of the manifest, with all that is below it, and say what became of it."""
        told = tree.take()
        self.rows.append(SourceField(tree.path, self.shown(value or told), tree.line, field, how, reason))

    def shown(self, value: Any) -> str:
        """A value as a person may read it."""
        text = shown(value)
        for secret in self.hidden:
            if text == secret or (len(secret) >= 6 and secret in text):
                text = text.replace(secret, secrets.HIDDEN)
        return secrets.shown(text)

    def exact(self, tree: Tree, field: str, value: Any) -> None:
        """It is a field of the spec."""
        self.values[field] = value
        self.row(tree, field)

    def changed(self, tree: Tree, field: str | None, reason: str, value: Any = None) -> None:
        """It is a field of the spec, but not quite."""
        if field is not None and value is not None:
            self.values[field] = value
        self.row(tree, field, How.CHANGED, reason)

    def dropped(self, tree: Tree, reason: str) -> None:
        """It has no place in a spec; each leaf has its row."""
        for leaf in list(tree.left()):
            meant = leaf.meant()
            self.row(leaf, None, How.DROPPED, f"Did you mean {meant}? {reason}" if meant else reason)

    def assumed(self, key: str, value: str, field: str | None, reason: str) -> None:
        """Nobody said it."""
        self.rows.append(SourceField(key, value, None, field, How.ASSUMED, reason))

    def option(self, tree: Tree, option: str) -> None:
        """It goes to Kubernetes as it is."""
        self.extra.append(option)
        self.row(tree, f"extra.kubernetes.{option.partition('=')[0]}")

    def error(self, tree: Tree, message: str, hint: str = "Mend that line.") -> FormatError:
        """An error that names the place."""
        line = f", line {tree.line}" if tree.line else ""
        return FormatError(f"{self.name}{line}: {tree.path} {message}", hint=hint)

    def count(self, tree: Tree, *, least: int = 0) -> int | None:
        """A whole number.

        Raises
        ------
        FormatError
            It is something else.
        """
        value = tree.value
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(tree, f"is {shown(value)!r}, and not a whole number from {least} on.")
        return value

    def text(self, tree: Tree) -> str | None:
        """A text.

        Raises
        ------
        FormatError
            It is something else.
        """
        value = tree.value
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(tree, f"is {shown(value)!r}, and not a text.", "Write it in quotes.")
        return value


def hidden_values(documents: Sequence[Tree]) -> frozenset[str]:
    """Values of variables that are secret by their name or form, anywhere in a manifest."""
    found = set()
    todo: list[Any] = [document.value for document in documents]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            name, given = value.get("name"), value.get("value")
            if isinstance(name, str) and isinstance(given, str) and is_secret(name, given):
                found.add(given)
            todo += value.values()
        elif isinstance(value, list):
            todo += value
    return frozenset(found)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable's value must not be shown."""
    return bool(value) and (secrets.is_value(value) or secrets.is_name(name))


def shown(value: Any) -> str:
    """A value as a person reads it, on one line and not too long."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else "" if value is None else str(value)
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:117] + "..."
