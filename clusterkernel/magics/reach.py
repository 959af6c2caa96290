"""Which names a cell reads, also through the notebook's own functions and classes."""

from __future__ import annotations

import ast
from typing import Any

from clusterkernel.errors import PayloadError
from clusterkernel.payload import names, shell, uses

__all__ = ["assigned", "reach", "reach_of_tree", "read"]


def read(source: str) -> list[str]:
    """Names whose value from outside the cell may see; none where it is no program."""
    try:
        return list(names.analyse(shell.translate(source)).read_lines)
    except PayloadError:
        return []


def assigned(source: str) -> list[str]:
    """Names that the cell binds at its top level; none where it is no program."""
    try:
        return [one.name for one in names.analyse(shell.translate(source)).assigns]
    except PayloadError:
        return []


def reach(source: str, namespace: dict[str, Any], *, doubtful: bool = True) -> list[str]:
    """The names that a cell reads, then those that the functions and classes among them use.

    Parameters
    ----------
    source : str
        The cell; where it is no program it reads nothing, and whoever runs it says what is wrong.
    namespace : dict
        The notebook's names.
    doubtful : bool
        Whether to count names that the cell may well bind itself before it reads them.
    """
    try:
        found = names.analyse(shell.translate(source))
    except PayloadError:
        return []
    first = [name for name in found.read_lines if doubtful or name not in found.doubtful]
    known = {name: namespace[name] for name in first if name in namespace}
    return [*first, *uses.follow(known, namespace)]


def reach_of_tree(tree: ast.AST, namespace: dict[str, Any], *, doubtful: bool) -> list[str]:
    """The same for a cell that IPython has parsed, with its magics as calls."""
    return reach(ast.unparse(tree), namespace, doubtful=doubtful)
