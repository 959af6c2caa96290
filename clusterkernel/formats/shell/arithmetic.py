"""Bash's arithmetic, as far as whole numbers are known."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

__all__ = ["arithmetic"]

_TOKEN: Final = re.compile(r"\s*(\d{1,15}|\$?\{?[A-Za-z_]\w*\}?|[-+*/%()])", re.ASCII)


def arithmetic(text: str, lookup: Callable[[str], str | None]) -> int | None:
    """``2 * GPUS + 1`` with whole numbers; None for what is not known or not understood."""
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or len(tokens) > 100:
            return None
        tokens.append(match[1])
        at = match.end()
    try:
        value, rest = _sum(tokens, 0, lookup)
    except (ValueError, IndexError, ZeroDivisionError, RecursionError):
        return None
    return value if rest == len(tokens) and abs(value) < 1 << 60 else None


def _sum(tokens: list[str], at: int, lookup: Callable[[str], str | None]) -> tuple[int, int]:
    value, at = _product(tokens, at, lookup)
    while at < len(tokens) and tokens[at] in "+-":
        other, end = _product(tokens, at + 1, lookup)
        value = value + other if tokens[at] == "+" else value - other
        at = end
    return value, at


def _product(tokens: list[str], at: int, lookup: Callable[[str], str | None]) -> tuple[int, int]:
    value, at = _atom(tokens, at, lookup)
    while at < len(tokens) and tokens[at] in "*/%":
        other, end = _atom(tokens, at + 1, lookup)
        operator = tokens[at]
        sign = -1 if (value < 0) != (other < 0) else 1
        value = (
            value * other
            if operator == "*"
            else sign * (abs(value) // abs(other))  # toward 0
            if operator == "/"
            else abs(value) % abs(other) * (-1 if value < 0 else 1)
        )
        if abs(value) > 1 << 60:
            raise ValueError
        at = end
    return value, at


def _atom(tokens: list[str], at: int, lookup: Callable[[str], str | None]) -> tuple[int, int]:
    token = tokens[at]
    if token == "(":
        value, at = _sum(tokens, at + 1, lookup)
        if tokens[at] != ")":
            raise ValueError
        return value, at + 1
    if token == "-":
        value, at = _atom(tokens, at + 1, lookup)
        return -value, at
    if token.isdecimal():
        return int(token), at + 1
    found = lookup(token.strip("${}"))
    if found is None or not re.fullmatch(r"-?\d{1,15}", found):
        raise ValueError
    return int(found), at + 1
