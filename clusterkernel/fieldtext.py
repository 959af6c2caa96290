"""One field of the spec: its text, read as people write it and written as they read it."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from clusterkernel import units
from clusterkernel.errors import SpecError, nearest, shown
from clusterkernel.spec import Launcher, Volume

__all__ = ["Field", "as_text", "items", "options", "parse", "plain", "write"]

_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# No environment, and no JSON, can hold these.
_UNSENDABLE: Final = re.compile("[\0\ud800-\udfff]")
# No line of a script should: control characters but the tab, and all that ends a line.
_UNWRITABLE: Final = re.compile("[\0-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of the spec.

    Attributes
    ----------
    name : str
        Profile key and attribute.
    group : str
        Attribute of `JobSpec` that holds it; empty for its own.
    unit : str
        How its text is read: ``text``, ``count``, ``number``, ``memory``,
        ``time``, ``gpus``, ``switch``, ``pairs``, ``names``, ``lines``,
        ``volumes`` or ``choice``.
    """

    name: str
    group: str
    help: str
    example: str
    unit: str
    default: Any
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The flag of the magic."""
        return "--" + self.name.replace("_", "-")

    @property
    def repeats(self) -> bool:
        """Whether the flag may be given several times."""
        return self.unit in {"pairs", "names", "lines", "volumes"}


def parse(field: Field, value: object, label: str) -> Any:
    """`value` as the field holds it.

    Parameters
    ----------
    field : Field
        Where it goes.
    value : object
        Text as people write it, or a value that already is what it should be.
    label : str
        The name that the person used, for errors.

    Raises
    ------
    SpecError
        It cannot be read or is out of range.
    """
    match field.unit:
        case "memory":
            return units.parse_memory(_text(value, label, bare="its unit"), field=label)
        case "time":
            return units.parse_duration(_text(value, label, bare="its unit"), field=label)
        case "gpus":
            return value if isinstance(value, units.GpuRequest) else units.parse_gpus(as_text(value), field=label)
        case "count":
            return _number(field, value, label, int)
        case "number":
            return _number(field, value, label, float)
        case "switch":
            return _switch(value, label)
        case "choice":
            text = value.value if isinstance(value, Launcher) else _text(value, label)
            if text not in field.choices:
                raise SpecError(
                    f"{label} = {shown(text)} is not known.", field=label, hint=nearest(text, field.choices)
                )
            return Launcher(text)
        case "pairs":
            return _pairs(value, label)
        case "names":
            names = tuple(_text(item, label) for item in items(value, label, split=","))
            if field.name == "secrets":
                _without_values(names, label)
            return names
        case "lines":
            return tuple(_text(item, label) for item in items(value, label))
        case "volumes":
            return tuple(_volume(item, label) for item in items(value, label, split=","))
    return _text(value, label)


def _without_values(names: tuple[str, ...], label: str) -> None:
    """Refuse ``NAME=VALUE`` among secrets, and do not repeat the value."""
    for name, equals, _ in (item.partition("=") for item in names):
        if equals:
            raise SpecError(
                f"{label} takes names only; a value does not belong into a cell, whose text is kept.",
                field=label,
                hint=f"Keep it with %cluster_secret set {name}, and write {label} {name}.",
            )


def _text(value: object, label: str, *, bare: str = "") -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and bare:
        return as_text(value)  # the unit's parser refuses it with the mend
    if isinstance(value, os.PathLike):
        value = os.fsdecode(value)
    if not isinstance(value, str):
        raise SpecError(f"{label} = {shown(value)} is not text.", field=label, hint="Write it in quotes.")
    if not value.strip():
        raise SpecError(f"{label} is empty.", field=label, hint="Leave it out, or give it a value.")
    if _UNWRITABLE.search(value):
        raise SpecError(
            f"{label} = {shown(value)} holds a line break or another control character.",
            field=label,
            hint="Write it on one line.",
        )
    return value


def as_text(value: object) -> str:
    """``str(value)``, and something else where it has none."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a number of thousands of digits, or a value's own code
        return shown(value)


def _number(field: Field, value: object, label: str, kind: type) -> Any:
    try:
        if isinstance(value, str) and not value.isascii():
            raise ValueError  # Python reads the digits of all scripts
        if isinstance(value, bool) or (kind is int and isinstance(value, float) and not value.is_integer()):
            raise ValueError
        number = kind(value)
        if not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        wanted = "a whole number" if kind is int else "a number"
        raise SpecError(
            f"{label} = {shown(as_text(value))} is not {wanted}.",
            field=label,
            hint=f"Write it as {field.example or 1}.",
        ) from None
    low, high = field.low, field.high
    if (low is not None and (number < low or (kind is float and number <= low))) or (
        high is not None and number > high
    ):
        span = f"above {low:g}" if kind is float else f"at least {low:g}" + (f", at most {high:g}" if high else "")
        raise SpecError(f"{label} = {shown(value)} is out of range.", field=label, hint=f"Write a number {span}.")
    return number


def _switch(value: object, label: str) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if (word := as_text(value).lower()) in words:
        return words[word]
    raise SpecError(f"{label} = {shown(value)} is neither yes nor no.", field=label, hint="Write true or false.")


def items(value: object, label: str, *, split: str | None = None) -> list[object]:
    """The parts of a value that may be given several times.

    Raises
    ------
    SpecError
        It is neither text nor a list.
    """
    if not isinstance(value, str | Volume | Mapping | list | tuple | os.PathLike):
        raise SpecError(f"{label} = {shown(value)} is not text.", field=label, hint="Write it in quotes, or as a list.")
    given: list[object] = [value] if isinstance(value, str | Volume | Mapping | os.PathLike) else list(value)
    if split is None:
        return given
    parts: list[object] = []
    for item in given:
        parts += _cut(item, split) if isinstance(item, str) else [item]
    if given and not parts:
        raise SpecError(f"{label} is empty.", field=label, hint="Leave it out, or give it a value.")
    return parts


def _cut(text: str, separator: str) -> list[str]:
    r"""The parts of a text, in which ``\,`` is a comma that separates nothing."""
    parts = re.split(rf"(?<!\\){re.escape(separator)}", text)
    return [part.strip().replace(f"\\{separator}", separator) for part in parts if part.strip()]


def _whole(text: str) -> str:
    return text.replace(",", "\\,")


def _pairs(value: object, label: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    given = value.items() if isinstance(value, Mapping) else [_pair(item, label) for item in items(value, label)]
    for name, text in given:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise SpecError(f"{label}: {shown(name)} is not a variable's name.", field=label, hint="Write NAME=VALUE.")
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise SpecError(f"{label}: {name} = {shown(text)} is not text.", field=label, hint="Write it in quotes.")
        if _UNSENDABLE.search(as_text(text)):
            raise SpecError(f"{label}: {name} holds a NUL or half a character.", field=label, hint="Take it out.")
        pairs[name] = as_text(text)
    return pairs


def _pair(item: object, label: str) -> tuple[str, str]:
    name, equals, text = item.partition("=") if isinstance(item, str) else ("", "", "")
    if not equals:
        raise SpecError(f"{label} = {shown(item)} has no value.", field=label, hint="Write NAME=VALUE.")
    return name, text


def _volume(item: object, label: str) -> Volume:
    if isinstance(item, Volume):
        return item
    if isinstance(item, Mapping) and set(item) == {"name", "mount"}:
        name, mount = as_text(item["name"]), as_text(item["mount"])
    else:
        name, _, mount = as_text(item).partition(":")
    if not name or not mount.startswith("/"):
        raise SpecError(f"{label} = {shown(item)} is not a volume.", field=label, hint="Write NAME:/MOUNT/POINT.")
    return Volume(name=name, mount=mount)


def options(item: object, label: str) -> list[str]:
    """The options in one line of text, each with its value.

    Raises
    ------
    SpecError
        A quote is not closed, or a word is no option.
    """
    text = _text(item, label)
    try:
        options = shlex.split(text)
    except ValueError as error:
        raise SpecError(
            f"{label} = {shown(item)} cannot be split: {error}.", field=label, hint="Close the quote."
        ) from None
    joined: list[str] = []
    for option in options:
        if option.startswith("-"):
            joined.append(option)
        elif joined and "=" not in joined[-1]:
            joined[-1] += f"={option}" if joined[-1].startswith("--") else option
        else:
            raise SpecError(f"{label}: {shown(option)} is not an option.", field=label, hint='Write "--option=value".')
    return joined


def write(field: Field, value: Any) -> str:
    """A field's value as a person writes it."""
    match field.unit:
        case "memory":
            return units.format_memory(value)
        case "time":
            return units.format_duration(value).replace(" ", "")
        case "switch":
            return "true" if value else "false"
        case "choice":
            return str(value.value)
        case "pairs":
            return " ".join(f"{name}={shlex.quote(text)}" for name, text in sorted(value.items()))
        case "names":
            return ",".join(map(_whole, value))
        case "lines":
            return "; ".join(value)
        case "volumes":
            return ",".join(f"{volume.name}:{volume.mount}" for volume in value)
        case "number":
            return f"{value:.17g}" if value != int(value) else str(int(value))
    return str(value)


def plain(field: Field, value: Any) -> object:
    """A field's value as a profile's file holds it: what may be given several times is a list or a table."""
    if field.unit == "pairs":
        return dict(value)
    if field.unit == "names":
        return [_whole(item) for item in value]
    if field.unit == "lines":
        return list(value)
    if field.unit == "volumes":
        return [f"{volume.name}:{volume.mount}" for volume in value]
    return write(field, value)
