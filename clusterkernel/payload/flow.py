"""The flow of a cell's top level: what is surely bound where, and what is read before it is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec

from clusterkernel.payload.scopes import (
    SHELL,
    FunctionNode,
    Kind,
    bindings,
    bound_by_import,
    mangle,
    module_use,
    parameters,
    type_parameters,
)

__all__ = ["Flow"]

# The names surely bound (or deleted) at a place; None where nothing comes by.
# It only grows along a way, so that what holds at the start of a block holds
# wherever an exception leaves it.
Sure: TypeAlias = frozenset[str] | None

# With one of these in a cell any function of it may be called without its name.
_REFLECTION: Final = frozenset({"globals", "locals", "vars", "eval", "exec", "compile", "__import__", "__builtins__"})
# They keep the function as it is, or wrap it without calling it.
_QUIET_DECORATORS: Final = frozenset({"property", "staticmethod", "classmethod", "setter", "getter", "deleter"})
# The last part of the name of context managers that never swallow an exception.
_TRANSPARENT: Final = frozenset(
    {
        "open",
        "no_grad",
        "inference_mode",
        "enable_grad",
        "set_grad_enabled",
        "autocast",
        "catch_warnings",
        "TemporaryDirectory",
        "NamedTemporaryFile",
        "ThreadPoolExecutor",
        "ProcessPoolExecutor",
        "Pool",
        "ZipFile",
        "closing",
        "redirect_stdout",
        "redirect_stderr",
        "option_context",
        "errstate",
        "tqdm",
    }
)


class _Read(msgspec.Struct, frozen=True):
    name: str
    line: int
    optional: bool


class _Scope(msgspec.Struct):
    kind: str  # "class", "comprehension" or "types"
    prefix: str  # of a class: before the names that it binds, in the state
    bound: frozenset[str]
    declared: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()


class _Loop(msgspec.Struct):
    breaks: list[Sure] = msgspec.field(default_factory=list)


class Flow:
    """Follows the statements of a module in the order in which they run.

    Attributes
    ----------
    reads : dict of str to int
        Names whose outside value may be seen, with the first line.
    assigns : dict of str to (Kind, int)
        Names that may be bound, with the first line.
    deletes, stars : list of str
        Names deleted; modules imported with ``*``.
    """

    def __init__(self) -> None:
        self.reads: dict[str, int] = {}
        self.assigns: dict[str, tuple[Kind, int]] = {}
        self.deletes: list[str] = []
        self.stars: list[str] = []
        self._certain: set[str] = set()
        self._later: set[str] = set()  # read by a function that may run after the cell bound them
        self._sure: Sure = frozenset()
        self._scopes: list[_Scope] = []
        self._loops: list[_Loop] = []
        self._private = ""
        self._classes = 0
        self._optional = 0
        self._reflects = False
        # Functions that run only once their name is used: key in the state -> what they read.
        self._waiting: dict[str, list[_Read]] = {}
        self._seen: dict[str, list[frozenset[str]]] = {}

    def run(self, tree: ast.Module) -> None:
        """Follow a whole module."""
        self._reflects = any(
            (isinstance(node, ast.Name) and node.id in _REFLECTION)
            or (isinstance(node, ast.Import) and any(alias.name == "__main__" for alias in node.names))
            for node in ast.walk(tree)
        )
        self._block(tree.body)
        if self._sure is None:  # it ends with an exception; what it had bound by then is there
            self._sure = frozenset(self.assigns)
        for key in list(self._waiting):
            self._awake(key)

    def certain(self) -> frozenset[str]:
        """Those reads that nothing in the cell can serve."""
        later = frozenset[str]() if self.stars else self._later - self.assigns.keys()
        return frozenset(self._certain | later)

    # -- names ----------------------------------------------------------------

    def _load(self, name: str, line: int) -> None:
        name = mangle(name, self._private)
        hidden = False
        for scope in reversed(self._scopes):
            if scope.kind != "class":
                if name in scope.bound:
                    return
                hidden = hidden or scope.kind == "comprehension"
            elif not hidden:
                if name in scope.bound:
                    key = scope.prefix + name
                    self._awake(key)
                    if self._sure is None or key in self._sure:
                        return
                hidden = True  # a class sees no other class around it
        self._read(_Read(name, line, bool(self._optional)), later=False)

    def _read(self, read: _Read, *, later: bool) -> None:
        name = read.name
        self._awake(name)
        if self._sure is None or name in self._sure:
            return
        self.reads[name] = min(read.line, self.reads.get(name, read.line))
        if read.optional or self.stars:
            return
        if later:
            self._later.add(name)
        elif name not in self.assigns:
            self._certain.add(name)

    def _awake(self, key: str) -> None:
        """The name is used: the functions behind it may run from here on."""
        if key not in self._waiting or self._sure is None:
            return
        seen = self._seen.setdefault(key, [])
        if any(before <= self._sure for before in seen):
            return  # it could run with less: nothing new to learn
        seen.append(self._sure)
        for read in self._waiting[key]:
            self._read(read, later=True)

    def _bind(self, name: str, kind: Kind, line: int) -> str:
        """Bind a name here; its key in the state."""
        name = mangle(name, self._private)
        for scope in reversed(self._scopes):
            if scope.kind == "class":
                if name in scope.declared:
                    break
                if name not in scope.deleted:
                    self._settle(scope.prefix + name)
                return scope.prefix + name
        self._note(name, kind, line)
        self._settle(name)
        return name

    def _note(self, name: str, kind: Kind, line: int) -> None:
        before = self.assigns.get(name)
        if before is None:
            self.assigns[name] = (kind, line)
        elif before[0] is not kind:
            self.assigns[name] = (Kind.VALUE, before[1])

    def _settle(self, key: str) -> None:
        if self._sure is not None:
            self._sure |= {key}

    # -- ways -------------------------------------------------------------------

    def _block(self, body: Iterable[ast.AST]) -> None:
        for statement in body:
            self._visit(statement)

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self._visit(node)

    def _visit(self, node: ast.AST) -> None:
        method: Callable[[Any], None] | None = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            method(node)
        else:
            self._all(ast.iter_child_nodes(node))

    @contextmanager
    def _perhaps(self) -> Iterator[None]:
        """What is bound in here is not sure after it."""
        before = self._sure
        yield
        self._sure = before

    def _test(self, node: ast.expr) -> tuple[Sure, Sure]:
        """Evaluate a condition: what is sure where it holds, and where it does not."""
        if isinstance(node, ast.Constant):
            return (self._sure, None) if node.value else (None, self._sure)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yes, no = self._test(node.operand)
            return no, yes
        if isinstance(node, ast.BoolOp):
            both = isinstance(node.op, ast.And)
            left: Sure = None  # the ways out before the last operand
            on = self._sure
            for value in node.values:
                self._sure = on
                yes, no = self._test(value)
                on, out = (yes, no) if both else (no, yes)
                left = _join(left, out)
            return (on, left) if both else (left, on)
        self._visit(node)
        return self._sure, self._sure

    def _BoolOp(self, node: ast.BoolOp) -> None:
        self._sure = _join(*self._test(node))

    def _IfExp(self, node: ast.IfExp) -> None:
        yes, no = self._test(node.test)
        self._sure = yes
        self._visit(node.body)
        yes, self._sure = self._sure, no
        self._visit(node.orelse)
        self._sure = _join(yes, self._sure)

    def _Compare(self, node: ast.Compare) -> None:
        self._visit(node.left)
        self._visit(node.comparators[0])
        with self._perhaps():  # a < b < c stops at the first that does not hold
            self._all(node.comparators[1:])

    def _If(self, node: ast.If) -> None:
        yes, no = self._test(node.test)
        self._sure = yes
        self._block(node.body)
        yes, self._sure = self._sure, no
        self._block(node.orelse)
        self._sure = _join(yes, self._sure)

    def _While(self, node: ast.While) -> None:
        yes, no = self._test(node.test)
        self._loop(node, yes, no)

    def _For(self, node: ast.For | ast.AsyncFor) -> None:
        self._visit(node.iter)
        before = self._sure
        self._visit(node.target)
        self._loop(node, self._sure, before)

    _AsyncFor = _For

    def _loop(self, node: Any, inside: Sure, end: Sure) -> None:
        self._loops.append(_Loop())
        self._sure = inside
        self._block(node.body)
        loop = self._loops.pop()
        self._sure = end
        self._block(node.orelse)
        for state in loop.breaks:
            self._sure = _join(self._sure, state)

    def _Break(self, node: ast.Break) -> None:
        self._loops[-1].breaks.append(self._sure)
        self._sure = None

    def _Continue(self, node: ast.Continue) -> None:
        self._sure = None

    def _Raise(self, node: ast.Raise) -> None:
        self._all([node.exc, node.cause])
        self._sure = None

    def _Assert(self, node: ast.Assert) -> None:
        yes, self._sure = self._test(node.test)
        self._all([node.msg])
        self._sure = yes

    def _Try(self, node: Any) -> None:
        before = self._sure
        self._block(node.body)
        self._block(node.orelse)
        after = self._sure
        for handler in node.handlers:
            self._sure = before
            self._all([handler.type])
            if handler.name:
                self._bind(handler.name, Kind.VALUE, handler.lineno)
            self._block(handler.body)
            after = _join(after, self._sure)
        if node.finalbody:
            self._sure = before
            self._block(node.finalbody)
            after = None if after is None or self._sure is None else after | self._sure
        self._sure = after

    _TryStar = _Try

    def _With(self, node: ast.With | ast.AsyncWith) -> None:
        swallowed: Sure = None
        for item in node.items:
            self._visit(item.context_expr)
            if not _transparent(item.context_expr):
                swallowed = _join(swallowed, self._sure)
            self._all([item.optional_vars])
        self._block(node.body)
        self._sure = _join(self._sure, swallowed)

    _AsyncWith = _With

    def _Match(self, node: ast.Match) -> None:
        self._visit(node.subject)
        before, after = self._sure, None
        for case in node.cases:
            self._sure = before
            self._visit(case.pattern)
            if case.guard is not None:
                self._sure, _ = self._test(case.guard)
            self._block(case.body)
            after = _join(after, self._sure)
            if case.guard is None and _irrefutable(case.pattern):
                before = None
        self._sure = _join(after, before)

    def _capture(self, node: Any) -> None:
        self._all(ast.iter_child_nodes(node))
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self._bind(name, Kind.VALUE, node.lineno)

    _MatchAs = _MatchStar = _MatchMapping = _capture

    def _MatchOr(self, node: ast.MatchOr) -> None:
        before, after = self._sure, None
        for pattern in node.patterns:
            self._sure = before
            self._visit(pattern)
            after = _join(after, self._sure)
        self._sure = after

    # -- statements that bind -----------------------------------------------------

    def _Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Lambda) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._all(_defaults(node.value.args))
            key = self._bind(node.targets[0].id, Kind.VALUE, node.lineno)
            self._function(node.value, key)
            return
        self._visit(node.value)
        self._all(node.targets)

    def _AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self._load(node.target.id, node.lineno)
            self._visit(node.value)
            self._visit(node.target)
        else:
            self._all([node.target, node.value])

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit(node.annotation)
        self._all([node.value])
        if node.value is not None or not isinstance(node.target, ast.Name):
            self._visit(node.target)

    def _NamedExpr(self, node: ast.NamedExpr) -> None:
        self._visit(node.value)
        self._visit(node.target)

    def _Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            if not self._local(node.id):
                self._bind(node.id, Kind.VALUE, node.lineno)
        else:
            self._load(node.id, node.lineno)  # what is deleted has to be there
            if isinstance(node.ctx, ast.Del):
                self._delete(node.id)

    def _local(self, name: str) -> bool:
        """Whether a comprehension around the place has it as its own."""
        return any(scope.kind == "comprehension" and name in scope.bound for scope in self._scopes)

    def _delete(self, name: str) -> None:
        name = mangle(name, self._private)
        for scope in reversed(self._scopes):
            if scope.kind == "class" and name not in scope.declared:
                return  # the module's name shows again: see `_unbound`
        if name not in self.deletes:
            self.deletes.append(name)
        self._settle(name)  # gone is gone: its outside value cannot be seen any more

    def _Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                module = "." * getattr(node, "level", 0) + (getattr(node, "module", "") or "")
                if module not in self.stars:
                    self.stars.append(module)
            else:
                self._bind(bound_by_import(alias), Kind.IMPORT, node.lineno)

    _ImportFrom = _Import

    def _TypeAlias(self, node: Any) -> None:
        with self._types(node):
            self._visit(node.value)
        self._visit(node.name)

    # -- scopes inside ------------------------------------------------------------

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._all(node.decorator_list)
        self._all(_defaults(node.args))
        with self._types(node):
            self._all(arg.annotation for arg in parameters(node.args))
            self._all([node.returns])
        quiet = all(_last_name(decorator) in _QUIET_DECORATORS for decorator in node.decorator_list)
        if not quiet:
            self._function(node, None)
        key = self._bind(node.name, Kind.FUNCTION, node.lineno)
        if quiet:
            self._function(node, key)

    _AsyncFunctionDef = _FunctionDef

    def _Lambda(self, node: ast.Lambda) -> None:
        self._all(_defaults(node.args))
        self._function(node, None)

    def _function(self, node: FunctionNode, key: str | None) -> None:
        """A function is made. With a key it may run once that name is used, else from here on."""
        outer = frozenset[str]().union(*(scope.bound for scope in self._scopes if scope.kind != "class"))
        use = module_use(node, outer=outer, private=self._private)
        for name, kind, line in use.stores:
            self._note(name, kind, line)
        self.deletes += [name for name in use.deletes if name not in self.deletes]
        reads = [_Read(name, line, bool(optional or self._optional)) for name, (line, optional) in use.reads.items()]
        if key is not None and not self._reflects:
            self._wait(key, reads)
        else:
            for read in reads:
                self._read(read, later=True)

    def _wait(self, key: str, reads: Iterable[_Read]) -> None:
        self._waiting.setdefault(key, []).extend(reads)
        self._seen.pop(key, None)

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.decorator_list)
        with self._types(node):
            self._all([*node.bases, *node.keywords])
            self._classes += 1
            prefix = f"{self._classes}:"
            private, self._private = self._private, node.name
            bound, declared = bindings(node.body, node.name)
            bound |= {"__module__", "__qualname__"}
            deleted = frozenset(mangle(name, node.name) for name in _unbound(node.body))
            self._scopes.append(_Scope("class", prefix, frozenset(bound), frozenset(declared), deleted))
            self._settle(prefix + "__module__")
            self._settle(prefix + "__qualname__")
            self._block(node.body)
            self._scopes.pop()
            self._private = private
        methods = [key for key in self._waiting if key.startswith(prefix)]
        hooks = node.bases or node.keywords or node.decorator_list or _calls(node.body)
        if hooks or self._reflects:
            for method in methods:
                self._awake(method)
        key = self._bind(node.name, Kind.CLASS, node.lineno)
        for method in methods:
            self._wait(key, self._waiting.pop(method))

    def _comprehension(self, node: Any) -> None:
        first = node.generators[0]
        self._visit(first.iter)
        bound, _ = bindings([generator.target for generator in node.generators], self._private)
        with self._perhaps():
            self._scopes.append(_Scope("comprehension", "", frozenset(bound)))
            for generator in node.generators:
                if generator is not first:
                    self._visit(generator.iter)
                self._visit(generator.target)
                for condition in generator.ifs:
                    self._sure, _ = self._test(condition)
            self._all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
            self._scopes.pop()

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension

    @contextmanager
    def _types(self, node: ast.AST) -> Iterator[None]:
        params = type_parameters(node)
        self._scopes.append(_Scope("types", "", frozenset(param.name for param in params)))
        for param in params:
            self._all(ast.iter_child_nodes(param))
        yield
        self._scopes.pop()

    # -- order of evaluation ----------------------------------------------------

    def _Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self._all([key, value])

    def _Call(self, node: ast.Call) -> None:
        shell = isinstance(node.func, ast.Name) and node.func.id == SHELL
        self._optional += shell
        self._all(ast.iter_child_nodes(node))
        self._optional -= shell


def _join(one: Sure, other: Sure) -> Sure:
    if one is None:
        return other
    return one if other is None else one & other


def _defaults(args: ast.arguments) -> list[ast.expr | None]:
    return [*args.defaults, *args.kw_defaults]


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _transparent(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) in _TRANSPARENT


def _irrefutable(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchAs):
        return pattern.pattern is None or _irrefutable(pattern.pattern)
    return isinstance(pattern, ast.MatchOr) and any(_irrefutable(one) for one in pattern.patterns)


def _unbound(body: Iterable[ast.AST]) -> Iterator[str]:
    """Names that the statements of a class delete: the module's names of that spelling show again."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.ExceptHandler) and node.name:
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
                yield node.id


def _calls(body: Iterable[ast.AST]) -> bool:
    """Whether the statements of a class call anything, outside its methods."""
    todo = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return False
