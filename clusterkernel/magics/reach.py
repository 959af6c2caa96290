"""Which names a cell reads, also through the notebook's own functions and classes."""

from __future__ import annotations

import ast
import copy
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
    """The same for a cell that IPython has parsed, with its magics as calls, and for what it does with the names now.

    Functions and methods that the cell only defines read nothing yet, and ``del`` reads nothing.
    """
    if isinstance(tree, ast.Module):
        tree = ast.Module(body=_busy(tree.body) or [ast.Pass()], type_ignores=[])
    return reach(ast.unparse(_Kept().visit(copy.deepcopy(tree))), namespace, doubtful=doubtful)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _busy(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements without the functions and classes that no other one names."""
    idle = {
        id(node): node
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.decorator_list
    }
    todo: list[ast.AST] = [node for node in body if id(node) not in idle]
    while todo:
        named = {node.id for top in todo for node in ast.walk(top) if isinstance(node, ast.Name)}
        todo = [node for node in idle.values() if node.name in named]
        for node in todo:
            del idle[id(node)]
    return [_without_methods(idle[id(node)]) if id(node) in idle else node for node in body]


def _without_methods(node: ast.stmt) -> ast.stmt:
    if not isinstance(node, ast.ClassDef):
        return ast.Pass()
    rest = [inner for inner in node.body if not isinstance(inner, _FUNCTIONS) or inner.decorator_list]
    made = copy.copy(node)
    made.body = rest or [ast.Pass()]
    return made


class _Kept(ast.NodeTransformer):
    """``del name`` as if the name were set: nobody looks at the value."""

    def visit_Delete(self, node: ast.Delete) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for target in node.targets:
            if isinstance(target, ast.Name):
                made.append(ast.Assign([ast.Name(target.id, ast.Store())], ast.Constant(None), lineno=0))
            else:
                made.append(ast.Delete([target]))
        return made
