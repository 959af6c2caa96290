"""YAML of a person, read with care: bounded, no tags, errors with their line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import yaml

from clusterkernel.errors import ClusterKernelError, PayloadError

__all__ = ["SIZE_LIMIT", "BoundedLoader", "dump", "load", "opened"]

SIZE_LIMIT: Final = 1 << 20
#: Values that a document may have once its aliases are written out.
_NODES: Final = 20_000
_DEPTH: Final = 60


def load(text: str, where: str) -> tuple[Any, list[str]]:
    """The one document that a text holds.

    Parameters
    ----------
    text : str
        YAML 1.1, as PyYAML and so axolotl reads it (``1e-4`` is a text in it, ``1.0e-4`` a number).
    where : str
        What errors call it.

    Returns
    -------
    document : object
    twice : list of str
        Keys that are set more than once, a sentence each.

    Raises
    ------
    PayloadError
        It is no YAML, too large, or has a tag that would make an object.
    """
    if (size := len(text.encode("utf-8", "surrogatepass"))) > SIZE_LIMIT:
        raise PayloadError(
            f"{where} takes {size >> 10} KiB, more than the {SIZE_LIMIT >> 10} KiB that a configuration may take.",
            hint="Is it the right file?",
        )
    with opened(text, where, BoundedLoader, PayloadError) as loader:
        node = loader.get_single_node()
        twice = list(_check(node, where))
        return (None if node is None else loader.construct_document(node)), twice


class _TooMuch(Exception):
    """It grows beyond bounds."""


class BoundedLoader(yaml.SafeLoader):
    """Stops early: PyYAML takes seconds for what no person wrote any more."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """As PyYAML's, which calls it for every value within values."""
        self._count += 1
        self._depth += 1
        if self._count > _NODES:
            raise _TooMuch(f"has more than {_NODES} values")
        if self._depth > _DEPTH:
            raise _TooMuch("is nested too deeply")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


_Loader = TypeVar("_Loader", bound=BoundedLoader)


@contextlib.contextmanager
def opened(text: str, where: str, loader: type[_Loader], error: type[ClusterKernelError]) -> Iterator[_Loader]:
    """A loader for a text, and one clear line for whatever is wrong with that.

    Parameters
    ----------
    text, where : str
        As for `load`.
    loader, error : type
        What is made, and what is raised.
    """
    made: _Loader | None = None
    try:
        made = loader(text)  # it looks at all characters at once
        yield made
    except yaml.MarkedYAMLError as found:
        mark = found.problem_mark or found.context_mark
        line = f" on line {mark.line + 1}" if mark else ""
        reason = " ".join(" ".join(part for part in (found.context, found.problem) if part).split())
        raise error(f"{where} is no valid YAML{line}: {reason}{_quoted(text, mark)}.", hint="Mend that line.") from None
    except yaml.reader.ReaderError as found:
        line = f"line {text.count(chr(10), 0, found.position) + 1}"
        code = ord(text[found.position])
        raise error(
            f"{where} is no valid YAML on {line}: the character U+{code:04X} has no place in it.",
            hint="Mend that line.",
        ) from None
    except _TooMuch as reason:
        raise error(f"{where} {reason}.", hint="Is it the right file?") from None
    except ClusterKernelError:
        raise
    except ValueError as found:  # 2024-13-45 looks like a date
        raise error(f"{where} holds a value that YAML cannot read: {found}.", hint="Quote it.") from None
    finally:
        if made is not None:
            made.dispose()


def dump(document: Any) -> str:
    """A document as text, its keys in their order and nothing abbreviated."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _quoted(text: str, mark: Any) -> str:
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines) or not (line := lines[mark.line].strip()):
        return ""
    return f": {line if len(line) <= 80 else line[:77] + '...'}"


def _check(root: yaml.Node | None, where: str) -> Iterator[str]:
    """Refuse what grows beyond bounds once written out; tell keys that are set twice."""
    sizes: dict[int, int] = {}  # of a node with all that is below it
    open_: set[int] = set()
    todo: list[tuple[yaml.Node, bool]] = [(root, False)] if root is not None else []
    while todo:
        node, done = todo.pop()
        below = _below(node)
        if done:
            open_.discard(id(node))
            sizes[id(node)] = total = 1 + sum(sizes[id(child)] for child in below)
            if total > _NODES:
                raise PayloadError(
                    f"{where} has more than {_NODES} values once its aliases are written out.",
                    hint="Write it without nested aliases.",
                )
            if isinstance(node, yaml.MappingNode):
                yield from _twice(node)
        elif id(node) not in sizes:
            open_.add(id(node))
            todo.append((node, True))
            for child in below:
                if id(child) in open_:
                    raise PayloadError(
                        f"{where} has an alias on line {node.start_mark.line + 1} that contains itself.",
                        hint="Write the value out.",
                    )
                todo.append((child, False))


def _below(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _twice(node: yaml.MappingNode) -> Iterator[str]:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
            continue
        line = key.start_mark.line + 1
        if key.value in lines:
            yield f"{key.value} is set on line {lines[key.value]} and again on line {line}; the last one counts."
        lines[key.value] = line
