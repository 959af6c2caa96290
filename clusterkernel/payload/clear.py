"""Secrets that would travel in the clear: a payload lies in the job's folder, and a command on a command line."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from clusterkernel.errors import PayloadError
from clusterkernel.formats import secrets
from clusterkernel.runtime.pickling import peek

__all__ = ["refuse_files", "refuse_text", "refuse_values"]

# A key stands in a text, in a setting, in a list of some; not among the rows of a data set.
_LONGEST: Final = 4096
_ITEMS: Final = 1000
_DEPTH: Final = 3
_CONTAINERS: Final[tuple[Any, ...]] = (dict, list, tuple, set, frozenset)
# Signs of a template: what stands in such an address is no password.
_TEMPLATE: Final = frozenset("{}$<>*%")
_LARGEST: Final = 64 << 20
_SMALL: Final = 64 << 10


def refuse_text(text: str, where: str) -> None:
    """Refuse a text that holds what has the form of a key.

    Parameters
    ----------
    text : str
        A cell, a word of a command, a configuration.
    where : str
        What errors call it.

    Raises
    ------
    PayloadError
        It does; the error does not repeat the key.
    """
    for key in secrets.found(text):
        if not _TEMPLATE.intersection(key):
            raise _refusal(where, secrets.name_for(key))


def refuse_values(values: Iterable[tuple[str, object]]) -> None:
    """Refuse texts, also within small containers, that are keys by their form, or secrets of this environment.

    Parameters
    ----------
    values : iterable of (str, object)
        What errors call each value, and the value.

    Raises
    ------
    PayloadError
        One is.
    """
    for where, value in values:
        for text in _texts(value, _DEPTH):
            if name := secrets.of_environment(text):
                raise _refusal(where, name)
            refuse_text(text, where)


def refuse_files(files: Mapping[str, object]) -> None:
    """Refuse a payload that holds such a text anywhere: in a closure, an object, what a function reaches.

    Parameters
    ----------
    files : mapping
        Of an `Artefact`. What is large is data, and is only looked into for secrets of this environment.

    Raises
    ------
    PayloadError
        It does.
    """
    for file, content in files.items():
        where, text = f"What the job would get ({file})", _text_of(content)
        if name := secrets.of_environment(text):
            raise _refusal(where, name)
        if len(text) <= _SMALL:
            refuse_text(text, where)


def _text_of(content: Any) -> str:
    """What a pickle or a text holds, each byte a character; empty for a path, which was named as a file."""
    if isinstance(content, str):
        return content
    if not isinstance(content, bytes) and hasattr(content, "seek"):
        content.seek(0)
        data = content.read(_LARGEST + 1)
        content.seek(0)
    else:
        data = content if isinstance(content, bytes) else b""
    return data.decode("latin-1") if len(data) <= _LARGEST else ""


def _texts(value: Any, depth: int) -> Iterator[str]:
    kind = type(value)
    if kind is str:
        if len(value) <= _LONGEST:
            yield value
        return
    if kind is types.FunctionType or issubclass(kind, type):
        if depth and peek(value, "__module__") == "__main__":
            yield from _texts_of_code(value, depth)
        return
    base = next((one for one in _CONTAINERS if issubclass(kind, one)), None)
    # By the containers' own methods: those of a subclass may do anything.
    if depth and base is not None and base.__len__(value) <= _ITEMS:
        for item in dict.values(value) if base is dict else base.__iter__(value):
            yield from _texts(item, depth - 1)


def _texts_of_code(value: Any, depth: int) -> Iterator[str]:
    """What stands in a function or class of the notebook, which travels by its code."""
    if isinstance(value, type):
        for member in list(vars(value).values()):
            yield from _texts(member, depth - 1)
        return
    yield from _texts(value.__defaults__ or (), depth - 1)
    codes = [value.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        yield from _texts([constant for constant in code.co_consts if isinstance(constant, str)], 1)


def _refusal(where: str, name: str) -> PayloadError:
    return PayloadError(
        f"{where} holds a secret in the clear ({name}), which would lie in the job's folder.",
        hint=f"Keep it with %cluster_secret set {name}, ask for it with --secrets {name}, and read it in the job as "
        f'os.environ["{name}"].',
    )
