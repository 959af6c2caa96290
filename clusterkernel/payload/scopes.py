"""What a function does with the names of the module around it, by Python's rules of scope.

The source is read, never run. `names` follows the flow of a cell's top level
and asks here about what lies inside functions and lambdas, where the order of
statements does not matter: a function may run at any time.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec

__all__ = ["SHELL", "FunctionNode", "Kind", "ModuleUse", "bindings", "bound_by_import", "mangle", "module_use"]

#: The helper that runs the lines that began with ``!``.
SHELL: Final = "__clusterkernel_shell__"

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_BINDS_AT_ONCE: Final = (
    ast.Assign,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
)


class Kind(enum.Enum):
    """What binds a name."""

    VALUE = "value"
    IMPORT = "import"
    FUNCTION = "function"
    CLASS = "class"


class ModuleUse(msgspec.Struct):
    """What a function may do with the module's names.

    Attributes
    ----------
    reads : dict of str to (int, bool)
        Name to its first line, and whether the function can do without it.
    stores : list of (str, Kind, int)
        Names that it binds through ``global``.
    deletes : list of str
        Names that it deletes through ``global``.
    """

    reads: dict[str, tuple[int, bool]]
    stores: list[tuple[str, Kind, int]]
    deletes: list[str]


class _Scope(msgspec.Struct):
    kind: str  # "function", "class", "comprehension" (hides a class around it) or "types" (does not)
    bound: set[str]
    declared: set[str] = msgspec.field(default_factory=set)  # ``global``
    sure: set[str] = msgspec.field(default_factory=set)  # of a class: bound by now


def mangle(name: str, private: str) -> str:
    """The name as it is kept where a class named `private` is around it (``__x`` -> ``_Class__x``)."""
    if private and name.startswith("__") and not name.endswith("__") and "." not in name:
        stripped = private.lstrip("_")
        return f"_{stripped}{name}" if stripped else name
    return name


def bound_by_import(alias: ast.alias) -> str:
    """The name that one item of an import statement binds."""
    return alias.asname or alias.name.split(".")[0]


def bindings(body: Iterable[ast.AST], private: str = "") -> tuple[set[str], set[str]]:
    """The names that statements bind in their own scope, and those that they declare ``global``."""
    bound: set[str] = set()
    declared: set[str] = set()
    elsewhere: set[str] = set()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            bound.add(node.name)
            todo += node.decorator_list + _defaults(node.args)
        elif isinstance(node, ast.ClassDef):
            bound.add(node.name)
            todo += [*node.decorator_list, *node.bases, *node.keywords]
        elif isinstance(node, ast.Lambda):
            todo += _defaults(node.args)
        elif isinstance(node, ast.comprehension):
            todo += [node.iter, *node.ifs]  # its targets are its own; a walrus in it is not
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound.update(bound_by_import(alias) for alias in node.names)
        elif isinstance(node, ast.Global):
            declared.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            elsewhere.update(node.names)
        else:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.add(node.id)
            elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
                bound.add(node.name)
            elif isinstance(node, ast.MatchMapping) and node.rest:
                bound.add(node.rest)
            todo += ast.iter_child_nodes(node)
    declared = {mangle(name, private) for name in declared}
    elsewhere = {mangle(name, private) for name in elsewhere}
    return {mangle(name, private) for name in bound} - declared - elsewhere, declared


def module_use(node: FunctionNode, *, outer: frozenset[str] = frozenset(), private: str = "") -> ModuleUse:
    """What the body of a function may do with the module's names.

    Its decorators, default values and annotations belong to the scope around it and are not looked at.

    Parameters
    ----------
    node : FunctionNode
        The function.
    outer : frozenset of str
        Names that a scope between the function and the module binds.
    private : str
        The class around it, whose private names are spelled in another way.
    """
    scan = _Scan(private)
    scan.stack.append(_Scope("comprehension", set(outer)))
    scan.function(node)
    return scan.use


def _defaults(args: ast.arguments) -> list[ast.expr]:
    return args.defaults + [default for default in args.kw_defaults if default is not None]


def parameters(args: ast.arguments) -> Iterator[ast.arg]:
    """All parameters of a function."""
    yield from (*args.posonlyargs, *args.args, *args.kwonlyargs)
    for extra in (args.vararg, args.kwarg):
        if extra is not None:
            yield extra


def type_parameters(node: ast.AST) -> Sequence[Any]:
    """The type parameters of a function, class or alias (Python 3.12)."""
    return getattr(node, "type_params", None) or ()


class _Scan(ast.NodeVisitor):
    """Walks one function and all that is inside it."""

    def __init__(self, private: str) -> None:
        self.private = private
        self.stack: list[_Scope] = []
        self.use = ModuleUse({}, [], [])
        self._optional = 0

    # -- names ----------------------------------------------------------------

    def load(self, name: str, line: int) -> None:
        name = mangle(name, self.private)
        innermost = True
        for scope in reversed(self.stack):
            if scope.kind == "class":
                if innermost and (name in scope.sure or name in scope.declared or name in scope.bound):
                    if name in scope.sure:
                        return
                    break  # not bound yet, or not on every way: the module is asked next
            elif name in scope.declared:
                break
            elif name in scope.bound:
                return
            innermost = innermost and scope.kind == "types"
        if name == "__class__":
            return  # what super() works with
        known = self.use.reads.get(name)
        if known is None:
            self.use.reads[name] = (line, bool(self._optional))
        elif known[1] and not self._optional:
            self.use.reads[name] = (known[0], False)

    def store(self, name: str, kind: Kind, line: int) -> None:
        name = mangle(name, self.private)
        for scope in reversed(self.stack):
            if scope.kind in ("function", "class"):
                if name in scope.declared:
                    self.use.stores.append((name, kind, line))
                return

    # -- scopes ---------------------------------------------------------------

    @contextmanager
    def _inside(self, scope: _Scope) -> Iterator[_Scope]:
        self.stack.append(scope)
        yield scope
        self.stack.pop()

    def function(self, node: FunctionNode) -> None:
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
        bound, declared = bindings(body, self.private)
        bound |= {mangle(arg.arg, self.private) for arg in parameters(node.args)}
        bound |= {param.name for param in type_parameters(node)}
        with self._inside(_Scope("function", bound, declared)):
            for statement in body:
                self.visit(statement)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all(node.decorator_list)
        self._all(_defaults(node.args))
        with self._types(node):
            self._all(arg.annotation for arg in parameters(node.args))
            self._all([node.returns])
        self.store(node.name, Kind.FUNCTION, node.lineno)
        self.function(node)

    visit_FunctionDef = visit_AsyncFunctionDef = _definition

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._all(_defaults(node.args))
        self.function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.decorator_list)
        with self._types(node):
            self._all([*node.bases, *node.keywords])
            private, self.private = self.private, node.name
            bound, declared = bindings(node.body, self.private)
            with self._inside(_Scope("class", bound, declared, {"__module__", "__qualname__"})) as scope:
                for statement in node.body:
                    self.visit(statement)
                    if isinstance(statement, _BINDS_AT_ONCE):
                        scope.sure |= bindings([statement], self.private)[0] - declared
            self.private = private
        self.store(node.name, Kind.CLASS, node.lineno)

    def _comprehension(self, node: Any) -> None:
        self.visit(node.generators[0].iter)
        bound, _ = bindings((generator.target for generator in node.generators), self.private)
        with self._inside(_Scope("comprehension", bound)):
            for index, generator in enumerate(node.generators):
                self._all([generator.target, *([generator.iter] if index else []), *generator.ifs])
            self._all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def visit_TypeAlias(self, node: Any) -> None:
        with self._types(node):
            self.visit(node.value)
        self.store(node.name.id, Kind.VALUE, node.lineno)

    @contextmanager
    def _types(self, node: ast.AST) -> Iterator[None]:
        params = type_parameters(node)
        with self._inside(_Scope("types", {param.name for param in params})):
            for param in params:
                self.generic_visit(param)
            yield

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    # -- what touches a name ----------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.load(node.id, node.lineno)
        elif isinstance(node.ctx, ast.Store):
            self.store(node.id, Kind.VALUE, node.lineno)
        else:
            self._delete(node)

    def _delete(self, node: ast.Name) -> None:
        name = mangle(node.id, self.private)
        if name in self.stack[-1].declared:
            self.load(node.id, node.lineno)  # it has to be there
            self.use.deletes.append(name)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.load(node.target.id, node.lineno)
        self.visit(node.value)
        self.visit(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self.stack[-1].kind == "class":
            self.visit(node.annotation)  # a function's own are never evaluated
        if node.value is not None:
            self.visit(node.value)
        if node.value is not None or not isinstance(node.target, ast.Name):
            self.visit(node.target)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.store(bound_by_import(alias), Kind.IMPORT, node.lineno)

    visit_Import = visit_ImportFrom = _import

    def _capture(self, node: Any) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.store(name, Kind.VALUE, node.lineno)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = visit_ExceptHandler = _capture

    def visit_Call(self, node: ast.Call) -> None:
        shell = isinstance(node.func, ast.Name) and node.func.id == SHELL
        self._optional += shell
        self.generic_visit(node)
        self._optional -= shell
