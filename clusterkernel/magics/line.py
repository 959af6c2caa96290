"""A magic's line, cut into words, with ``{expressions}`` put in one at a time.

IPython's own expansion works on the whole line and turns itself off, without a
word, at the first name that it does not know. Here each ``{...}`` stands for
itself: an unknown name is an error, ``{{`` is a brace, ``$NAME`` and ``${NAME}``
stay as they are.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from types import CodeType
from typing import Any, Final

from IPython.core.error import UsageError

from clusterkernel.errors import ClusterKernelError

__all__ = ["split"]

_SPACE: Final = " \t\r\n"


def split(line: str, namespace: Mapping[str, Any] | None) -> list[str]:
    """The words of `line`.

    Parameters
    ----------
    line : str
        Quotes group words and are taken off, a backslash keeps the next
        character, as in a shell.
    namespace : mapping or None
        Where ``{expressions}`` are looked up; None leaves them as they are.

    Raises
    ------
    UsageError
        A quote or brace is not closed, or an expression fails.

    Examples
    --------
    >>> split("--name 'my run' --nodes {n} --env A=$HOME", {"n": 2})
    ['--name', 'my run', '--nodes', '2', '--env', 'A=$HOME']
    """
    words: list[str] = []
    word: str | None = None
    quote = ""
    at = 0
    while at < len(line):
        char = line[at]
        if char == "{" and namespace is not None and line[at - 1 : at] != "$":
            if line.startswith("{{", at):
                text, at = "{", at + 2
            else:
                text, at = _expression(line, at, namespace)
            word = (word or "") + text
            continue
        if char == "}" and namespace is not None and line.startswith("}}", at):
            at += 1
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"' and line[at + 1 : at + 2] in ('"', "\\"):
                at += 1
                word = (word or "") + line[at]
            else:
                word = (word or "") + char
        elif char in "'\"":
            quote = char
            word = word or ""
        elif char == "\\" and at + 1 < len(line):
            at += 1
            word = (word or "") + line[at]
        elif char in _SPACE:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + char
        at += 1
    if quote:
        raise UsageError(f"A quote ({quote}) is opened and not closed in: {line.strip()}")
    if word is not None:
        words.append(word)
    return words


def _expression(line: str, start: int, namespace: Mapping[str, Any]) -> tuple[str, int]:
    """The value of the expression that starts at the brace, as text, and where the line goes on."""
    end = line.find("}", start)
    while end != -1:
        found = _compile(line[start + 1 : end])
        if found is not None:
            return _value(line[start : end + 1], found, namespace), end + 1
        end = line.find("}", end + 1)
    rest = line[start : start + 40]
    raise UsageError(f"{rest} holds no Python expression. Write {{{{ and }}}} for braces that are meant as such.")


def _compile(text: str) -> tuple[CodeType, str] | None:
    """The expression, and the format behind its colon as in an f-string."""
    cuts = [len(text), *(at for at, char in enumerate(text) if char == ":")]
    for cut in cuts:
        try:
            tree = ast.parse(text[:cut].strip(), "<magic line>", "eval")
        except (SyntaxError, ValueError):
            continue
        if cut < len(text) and isinstance(tree.body, ast.Constant):
            return None  # JSON: {"a": 1}
        return compile(tree, "<magic line>", "eval"), text[cut + 1 :]
    return None


def _value(text: str, found: tuple[CodeType, str], namespace: Mapping[str, Any]) -> str:
    code, form = found
    try:
        value = eval(code, dict(namespace))
        if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value) and not form:
            return ",".join(value)
        if not _plain(value):
            raise UsageError(
                f"{text} is a {type(value).__name__}, which makes no sense on a magic's line. "
                "Write {{ and }} for braces that are meant as such."
            )
        return format(value, form)
    except (UsageError, ClusterKernelError):
        raise
    except NameError as error:
        name = getattr(error, "name", None) or str(error)
        raise UsageError(
            f"{text}: the name {name!r} is not known. Write {{{{ and }}}} for braces that are meant as such."
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever the user's expression raises is told in one line
        raise UsageError(f"{text} failed: {type(error).__name__}: {error}") from None


def _plain(value: object) -> bool:
    """Whether the value has one obvious spelling: text, a number (NumPy's too), a path."""
    if isinstance(value, str | int | float | os.PathLike):
        return True
    return hasattr(value, "__index__") or (hasattr(value, "__float__") and getattr(value, "shape", ()) == ())
