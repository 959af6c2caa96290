"""The flow of a cell's top level: what is surely bound where, and what is read before it is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from clusterkernel.payload.bound import Bound, Read, Scope, Sure
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


class _Loop(msgspec.Struct):
    breaks: list[Sure] = msgspec.field(default_factory=list)
    continues: list[Sure] = msgspec.field(default_factory=list)


class Flow(Bound):
    """Follows the statements of a module in the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self._loops: list[_Loop] = []
        self._classes = 0
        self._reflects = False

    def run(self, tree: ast.Module) -> None:
        """Follow a whole module."""
        self._reflects = any(
            (isinstance(node, ast.Name) and node.id in _REFLECTION)
            or (isinstance(node, ast.Import) and any(alias.name == "__main__" for alias in node.names))
            for node in ast.walk(tree)
        )
        self._block(tree.body)
        if self.sure is None:  # it ends with an exception; what it had bound by then is there
            self.sure = frozenset(self.assigns)
        for key in list(self.waiting):
            self.awake(key)

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
        before = self.sure
        yield
        self.sure = before

    def _test(self, node: ast.expr) -> tuple[Sure, Sure]:
        """Evaluate a condition: what is sure where it holds, and where it does not."""
        if isinstance(node, ast.Constant):
            return (self.sure, None) if node.value else (None, self.sure)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yes, no = self._test(node.operand)
            return no, yes
        if isinstance(node, ast.BoolOp):
            both = isinstance(node.op, ast.And)
            left: Sure = None  # the ways out before the last operand
            on = self.sure
            for value in node.values:
                self.sure = on
                yes, no = self._test(value)
                on, out = (yes, no) if both else (no, yes)
                left = _join(left, out)
            return (on, left) if both else (left, on)
        self._visit(node)
        return self.sure, self.sure

    def _BoolOp(self, node: ast.BoolOp) -> None:
        self.sure = _join(*self._test(node))

    def _IfExp(self, node: ast.IfExp) -> None:
        yes, no = self._test(node.test)
        self.sure = yes
        self._visit(node.body)
        yes, self.sure = self.sure, no
        self._visit(node.orelse)
        self.sure = _join(yes, self.sure)

    def _Compare(self, node: ast.Compare) -> None:
        self._visit(node.left)
        self._visit(node.comparators[0])
        with self._perhaps():  # a < b < c stops at the first that does not hold
            self._all(node.comparators[1:])

    def _If(self, node: ast.If) -> None:
        yes, no = self._test(node.test)
        self.sure = yes
        self._block(node.body)
        yes, self.sure = self.sure, no
        self._block(node.orelse)
        self.sure = _join(yes, self.sure)

    def _While(self, node: ast.While) -> None:
        def begin() -> tuple[Sure, Sure]:
            return self._test(node.test)

        self._loop(node, begin)

    def _For(self, node: ast.For | ast.AsyncFor) -> None:
        def begin() -> tuple[Sure, Sure]:
            before = self.sure
            self._visit(node.target)
            return self.sure, before

        self._visit(node.iter)
        self._loop(node, begin)

    _AsyncFor = _For

    def _loop(self, node: Any, begin: Callable[[], tuple[Sure, Sure]]) -> None:
        """A loop; `begin` says what is sure at the start of a round, and where there is none any more."""
        loop = _Loop()
        self._loops.append(loop)
        waiting = self.waited
        self.sure, end = begin()
        self._block(node.body)
        if self.waited != waiting:
            # A function that was made in one round may run early in the next.
            for state in loop.continues:
                self.sure = _join(self.sure, state)
            self.sure, _ = begin()
            self._block(node.body)
        self._loops.pop()
        self.sure = end
        self._block(node.orelse)
        for state in loop.breaks:
            self.sure = _join(self.sure, state)

    def _Break(self, node: ast.Break) -> None:
        self._loops[-1].breaks.append(self.sure)
        self.sure = None

    def _Continue(self, node: ast.Continue) -> None:
        self._loops[-1].continues.append(self.sure)
        self.sure = None

    def _Raise(self, node: ast.Raise) -> None:
        self._all([node.exc, node.cause])
        self.sure = None

    def _Assert(self, node: ast.Assert) -> None:
        yes, self.sure = self._test(node.test)
        self._all([node.msg])
        self.sure = yes

    def _Try(self, node: Any) -> None:
        before = self.sure
        self._block(node.body)
        self._block(node.orelse)
        after = self.sure
        for handler in node.handlers:
            self.sure = before
            self._all([handler.type])
            if handler.name:
                self.bind(handler.name, Kind.VALUE, handler.lineno)
            self._block(handler.body)
            after = _join(after, self.sure)
        if node.finalbody:
            self.sure = before
            self._block(node.finalbody)
            after = None if after is None or self.sure is None else after | self.sure
        self.sure = after

    _TryStar = _Try

    def _With(self, node: ast.With | ast.AsyncWith) -> None:
        swallowed: Sure = None
        for item in node.items:
            self._visit(item.context_expr)
            if not _transparent(item.context_expr):
                swallowed = _join(swallowed, self.sure)
            self._all([item.optional_vars])
        self._block(node.body)
        self.sure = _join(self.sure, swallowed)

    _AsyncWith = _With

    def _Match(self, node: ast.Match) -> None:
        self._visit(node.subject)
        before, after = self.sure, None
        for case in node.cases:
            self.sure = before
            self._visit(case.pattern)
            if case.guard is not None:
                self.sure, _ = self._test(case.guard)
            self._block(case.body)
            after = _join(after, self.sure)
            if case.guard is None and _irrefutable(case.pattern):
                before = None
        self.sure = _join(after, before)

    def _capture(self, node: Any) -> None:
        self._all(ast.iter_child_nodes(node))
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.bind(name, Kind.VALUE, node.lineno)

    _MatchAs = _MatchStar = _MatchMapping = _capture

    def _MatchOr(self, node: ast.MatchOr) -> None:
        before, after = self.sure, None
        for pattern in node.patterns:
            self.sure = before
            self._visit(pattern)
            after = _join(after, self.sure)
        self.sure = after

    # -- statements that bind -----------------------------------------------------

    def _Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Lambda) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._all(_defaults(node.value.args))
            key = self.bind(node.targets[0].id, Kind.VALUE, node.lineno)
            self._function(node.value, key)
            return
        self._visit(node.value)
        self._all(node.targets)

    def _AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.load(node.target.id, node.lineno)
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
            if not self.is_local(node.id):
                self.bind(node.id, Kind.VALUE, node.lineno)
        else:
            self.load(node.id, node.lineno)  # what is deleted has to be there
            if isinstance(node.ctx, ast.Del):
                self.delete(node.id)

    def _Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name == "*":
                module = "." * getattr(node, "level", 0) + (getattr(node, "module", "") or "")
                if module not in self.stars:
                    self.stars.append(module)
            else:
                self.bind(bound_by_import(alias), Kind.IMPORT, node.lineno)

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
        key = self.bind(node.name, Kind.FUNCTION, node.lineno)
        if quiet:
            self._function(node, key)

    _AsyncFunctionDef = _FunctionDef

    def _Lambda(self, node: ast.Lambda) -> None:
        self._all(_defaults(node.args))
        self._function(node, None)

    def _function(self, node: FunctionNode, key: str | None) -> None:
        """A function is made. With a key it may run once that name is used, else from here on."""
        outer = frozenset[str]().union(*(scope.bound for scope in self.scopes if scope.kind != "class"))
        use = module_use(node, outer=outer, private=self.private)
        for name, kind, line in use.stores:
            self.note(name, kind, line)
        self.deletes += [name for name in use.deletes if name not in self.deletes]
        reads = [Read(name, line, bool(optional or self.optional)) for name, (line, optional) in use.reads.items()]
        if key is not None and not self._reflects:
            self.wait(key, reads)
        else:
            for read in reads:
                self.read(read, later=True)

    def _ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.decorator_list)
        with self._types(node):
            self._all([*node.bases, *node.keywords])
            self._classes += 1
            prefix = f"{self._classes}:"
            private, self.private = self.private, node.name
            bound, declared = bindings(node.body, node.name)
            bound |= {"__module__", "__qualname__"}
            deleted = frozenset(mangle(name, node.name) for name in _unbound(node.body))
            self.scopes.append(Scope("class", prefix, frozenset(bound), frozenset(declared), deleted))
            self.settle(prefix + "__module__")
            self.settle(prefix + "__qualname__")
            self._block(node.body)
            self.scopes.pop()
            self.private = private
        methods = [key for key in self.waiting if key.startswith(prefix)]
        hooks = node.bases or node.keywords or node.decorator_list or _calls(node.body)
        if hooks or self._reflects:
            for method in methods:
                self.awake(method)
        key = self.bind(node.name, Kind.CLASS, node.lineno)
        for method in methods:
            self.wait(key, self.waiting.pop(method))

    def _comprehension(self, node: Any) -> None:
        first = node.generators[0]
        self._visit(first.iter)
        bound, _ = bindings([generator.target for generator in node.generators], self.private)
        with self._perhaps():
            self.scopes.append(Scope("comprehension", "", frozenset(bound)))
            for generator in node.generators:
                if generator is not first:
                    self._visit(generator.iter)
                self._visit(generator.target)
                for condition in generator.ifs:
                    self.sure, _ = self._test(condition)
            self._all([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
            self.scopes.pop()

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension

    @contextmanager
    def _types(self, node: ast.AST) -> Iterator[None]:
        params = type_parameters(node)
        self.scopes.append(Scope("types", "", frozenset(param.name for param in params)))
        for param in params:
            self._all(ast.iter_child_nodes(param))
        yield
        self.scopes.pop()

    # -- order of evaluation ----------------------------------------------------

    def _Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self._all([key, value])

    def _Call(self, node: ast.Call) -> None:
        shell = isinstance(node.func, ast.Name) and node.func.id == SHELL
        self.optional += shell
        self._all(ast.iter_child_nodes(node))
        self.optional -= shell


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
