"""Random small programs, and a run of them that notes which names they read from outside."""

import asyncio
import builtins
import random
from collections.abc import Iterator
from typing import Any

NAMES = "a b c d e".split()
FUNCTIONS = "f g h".split()
CLASSES = "K L".split()
OUTSIDE = [*NAMES, *FUNCTIONS, *CLASSES, "Base", "deco", "swallow"]


class Stop(BaseException):
    """The run took too long, or did what only a stand-in can refuse."""


class Writer:
    """Writes one program; every choice is drawn from `pick`."""

    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.lines: list[str] = []
        self.loops = 0
        self.room = pick.randint(1, 12)

    def program(self) -> str:
        while self.room > 0:
            self.statement("", where="module")
        return "\n".join(self.lines) + "\n"

    def name(self) -> str:
        return self.pick.choice(NAMES)

    def any(self) -> str:
        return self.pick.choice([*NAMES, *FUNCTIONS, *CLASSES])

    def expression(self, depth: int = 0, walrus: bool = True) -> str:
        kinds = ["1", "0", "name", "name", "name", "any", "call", "call0"]
        if depth < 2:
            kinds += ["binary", "and", "or", "if", "compare", "list", "set", "dict", "generator", "lambda", "format"]
            kinds += ["walrus", "walrus", "subscript", "attribute", "star", "two"] if walrus else []
        e = lambda w=walrus: self.expression(depth + 1, w)  # noqa: E731
        match self.pick.choice(kinds):
            case "name":
                return self.name()
            case "any":
                return self.any()
            case "call":
                return f"{self.any()}({e()})"
            case "call0":
                return f"{self.any()}()"
            case "binary":
                return f"({e()} + {e()})"
            case "and":
                return f"({e()} and {e()} and {e()})"
            case "or":
                return f"({e()} or {e()})"
            case "if":
                return f"({e()} if {e()} else {e()})"
            case "compare":
                return f"({e()} < {e()} < {e()})"
            case "walrus":
                return f"({self.name()} := {e()})"
            case "list":
                return f"[{e()} for {self.name()} in {e(False)} if {e()}]" if not walrus else self.comprehension("[]")
            case "set":
                return self.comprehension("{}")
            case "generator":
                return f"list{self.comprehension('()')}"
            case "dict":
                return f"{{{e()}: {e()}, {e()}: {e()}}}"
            case "lambda":
                return f"(lambda {self.name()}={e()}: {self.expression(2, False)})"
            case "format":
                return f"f'{{{self.name()}}}{{{self.name()}!r:>{{{self.name()}}}}}'"
            case "subscript":
                return f"{self.name()}[{e()}]"
            case "attribute":
                return f"{self.name()}.x"
            case "star":
                return f"{self.any()}(*[{e()}], z={e()})"
            case "two":
                return f"({e()}, {e()})"
            case other:
                return other

    def comprehension(self, brackets: str) -> str:
        target = self.pick.choice(["i", "j", "a", "b"])
        inner = [n for n in NAMES if n != target]
        walrus = f"({self.pick.choice(inner)} := {self.pick.choice([*inner, target])})"
        parts = [self.expression(2, False), walrus, target]
        condition = self.pick.choice(["", f" if {walrus}", f" if {self.expression(2, False)}"])
        second = self.pick.choice(["", "", f" for i in {self.expression(2, False)}"])
        text = f"{self.pick.choice(parts)} for {target} in {self.expression(2, False)}{condition}{second}"
        return brackets[0] + text + brackets[1]

    def target(self) -> str:
        n = self.name
        forms = [n(), n(), f"{n()}, {n()}", f"{n()}, *{n()}", f"{n()}[{n()}]", f"{n()}.y", f"({n()}, [{n()}, {n()}])"]
        return self.pick.choice(forms)

    def statement(self, indent: str, *, where: str) -> None:
        self.room -= 1
        put = lambda text: self.lines.append(indent + text)  # noqa: E731
        kinds = "assign assign expression augment annotate import delete def def lambda if for while try with".split()
        kinds += "match class assert pass raise async chain".split()
        if self.loops:
            kinds += ["break", "continue"]
        if len(indent) > 8:
            kinds = ["assign", "expression", "delete", "raise", "pass"] + kinds[-2:] * bool(self.loops)
        e = self.expression
        match self.pick.choice(kinds):
            case "assign":
                put(f"{self.target()} = {e()}")
            case "chain":
                put(f"{self.target()} = {self.target()} = {e()}")
            case "expression":
                put(e())
            case "augment":
                put(f"{self.pick.choice([self.name(), self.name() + '.x', self.name() + '[0]'])} += {e()}")
            case "annotate":
                put(f"{self.name()}: {self.name()}" + self.pick.choice(["", f" = {e()}"]))
            case "import":
                put(self.pick.choice([f"import os.path as {self.name()}", f"from os import sep as {self.name()}"]))
            case "delete":
                put(f"del {self.name()}")
            case "lambda":
                put(f"{self.pick.choice(FUNCTIONS)} = lambda z=None: {e(2, False)}")
            case "pass":
                put("pass")
            case "raise":
                put(f"raise ValueError({e(2)})")
            case "assert":
                put(f"assert {e()}, {e()}")
            case "break":
                put("break")
            case "continue":
                put("continue")
            case "if":
                put(f"if {e()}:")
                self.block(indent, where)
                for _ in range(self.pick.randint(0, 1)):
                    put(f"elif {e()}:")
                    self.block(indent, where)
                if self.pick.random() < 0.5:
                    put("else:")
                    self.block(indent, where)
            case "for":
                put(f"for {self.target()} in {e()}:")
                self.loop(indent, where)
            case "async" if where == "module":
                put(self.pick.choice([f"async for {self.name()} in {self.name()}:", f"async with {self.name()} as d:"]))
                loops, self.loops = self.loops, self.loops + 1 if "for" in self.lines[-1] else self.loops
                self.block(indent, where)
                self.loops = loops
            case "while":
                put(f"while tick() and {e()}:" if self.pick.random() < 0.7 else "while True:")
                self.lines.append(indent + "  tick()")
                self.loop(indent, where)
            case "try":
                put("try:")
                self.block(indent, where)
                shape = self.pick.choice(["except", "except", "finally", "both", "else"])
                if shape != "finally":
                    put(f"except {self.pick.choice(['Exception', 'ValueError', f'({self.name()}, ValueError)'])}"
                        + self.pick.choice(["", f" as {self.name()}"]) + ":")  # fmt: skip
                    self.block(indent, where)
                if shape == "else":
                    put("else:")
                    self.block(indent, where)
                if shape in ("finally", "both"):
                    put("finally:")
                    self.block(indent, where)
            case "with":
                first = self.pick.choice(["swallow()", "swallow()", self.name()])
                second = self.pick.choice(["", f", {self.name()} as {self.name()}"])
                put(f"with {first} as {self.target()}{second}:")
                self.block(indent, where)
            case "match":
                put(f"match {e()}:")
                for _ in range(self.pick.randint(1, 2)):
                    n = self.name
                    pattern = self.pick.choice(
                        ["1", "[{0}, *{1}]", "{{'k': {0}, **{1}}}", "int() as {0}", "0 | None", "K({0})", "{2}.x"]
                    )
                    names = self.pick.sample(NAMES, 3)
                    guard = self.pick.choice(["", "", f" if {e(1)}"])
                    put(f"  case {pattern.format(*names)}{guard}:")
                    self.block(indent + "  ", where)
                if self.pick.random() < 0.3:
                    put(f"  case {n()}:")
                    self.block(indent + "  ", where)
            case "def":
                self.function(indent, where)
            case "class":
                bases = self.pick.choice(["", "", "(Base)"])
                if self.pick.random() < 0.3:
                    put("@deco")
                put(f"class {self.pick.choice(CLASSES)}{bases}:")
                self.room += 1
                loops, self.loops = self.loops, 0
                for _ in range(self.pick.randint(1, 3)):
                    if self.pick.random() < 0.5:
                        self.function(indent + "  ", "class")
                    else:
                        self.statement(indent + "  ", where="class")
                self.loops = loops
            case _:
                put("pass")

    def function(self, indent: str, where: str) -> None:
        put = lambda text: self.lines.append(indent + text)  # noqa: E731
        for _ in range(self.pick.choice([0, 0, 0, 1])):
            put(self.pick.choice(["@deco", "@deco", "@staticmethod"]))
        default = f"{self.name()}={self.expression(2, False)}"
        parameter = self.pick.choice(["z=None", default, f"z: {self.name()} = None"])
        put(f"def {self.pick.choice(FUNCTIONS)}({parameter}, *_, **__):")
        inner = indent + "  "
        self.lines.append(inner + "tick()")
        declared = self.pick.choice(["", "", self.name()])
        if declared and declared not in parameter.split("=")[0].split(":")[0]:
            self.lines.append(f"{inner}global {declared}")
            if self.pick.random() < 0.7:
                self.lines.append(inner + self.pick.choice([f"{declared} = 1", f"{declared} += 1", f"del {declared}"]))
        loops, self.loops = self.loops, 0
        for _ in range(self.pick.randint(1, 2)):
            self.statement(inner, where="function")
        self.loops = loops
        self.lines.append(f"{inner}return {self.expression(1, False)}")

    def loop(self, indent: str, where: str) -> None:
        self.loops += 1
        self.block(indent, where)
        self.loops -= 1
        if self.pick.random() < 0.3:
            self.lines.append(f"{indent}else:")
            self.block(indent, where)

    def block(self, indent: str, where: str) -> None:
        for _ in range(self.pick.randint(1, 2)):
            self.statement(indent + "  ", where=where)


class World(dict[str, Any]):
    """The globals of a run: notes a name whose outside value is looked up."""

    def __init__(self, pick: random.Random) -> None:
        super().__init__()
        self.pick = pick
        self.read: set[str] = set()
        self.budget = 300
        for name in OUTSIDE:
            dict.__setitem__(self, name, self.base() if name == "Base" else Thing(self, name))
        self.given = dict(self)
        dict.__setitem__(self, "__builtins__", {**vars(builtins), "tick": self.tick})
        dict.__setitem__(self, "__name__", "__main__")

    def base(self) -> type:
        def hook(cls: type) -> None:
            # A base class may call what its subclasses define while they are being made.
            for member in list(vars(cls).values()):
                if getattr(member, "__name__", "") in FUNCTIONS and self.pick.random() < 0.7:
                    member(cls)

        return type("Base", (), {"__init_subclass__": classmethod(hook)})

    def tick(self) -> bool:
        self.budget -= 1
        if self.budget < 0:
            raise Stop
        return True

    def touch(self, name: str) -> None:
        self.tick()
        if name:
            self.read.add(name)

    def __getitem__(self, name: str) -> Any:
        value = dict.__getitem__(self, name)
        if name in self.given and value is self.given[name]:
            self.read.add(name)
        return value


class Thing:
    """A value that can do everything, well or badly as it falls."""

    def __init__(self, world: World, name: str = "") -> None:
        object.__setattr__(self, "_world", world)
        object.__setattr__(self, "_name", name)

    def _act(self) -> random.Random:
        self._world.touch(self._name)
        if self._world.pick.random() < 0.15:
            raise ValueError
        return self._world.pick

    def _other(self, *args: Any) -> Any:
        pick = self._act()
        return pick.choice([Thing(self._world), 1, 0, [1, 2], *args])

    def __call__(self, *args: Any, **more: Any) -> Any:
        pick = self._act()
        if self._name == "swallow":
            return self
        for arg in (*args, *more.values()):
            if callable(arg) and pick.random() < 0.7:
                arg()
        if self._name == "deco" and pick.random() < 0.7:
            return args[0]
        return self._other(*args)

    __add__ = __radd__ = __lt__ = __gt__ = __getitem__ = __iadd__ = _other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._other()

    def __setattr__(self, *_: Any) -> None:
        self._act()

    def __setitem__(self, *_: Any) -> None:
        self._act()

    def __bool__(self) -> bool:
        return self._act().random() < 0.5

    def __iter__(self) -> Iterator[Any]:
        pick = self._act()
        return iter([Thing(self._world), 1, [1, 2]][: pick.randint(0, 3)])

    async def __aiter__(self) -> Any:
        for one in self:
            yield one

    def __format__(self, _: str) -> str:
        self._act()
        return ""

    __repr__ = __str__ = lambda self: ""

    def __hash__(self) -> int:
        return 1

    def __enter__(self) -> Any:
        return self._other()

    def __exit__(self, kind: Any, *_: Any) -> bool:
        return kind is not None and issubclass(kind, Exception) and self._world.pick.random() < 0.7

    async def __aenter__(self) -> Any:
        return self.__enter__()

    async def __aexit__(self, *args: Any) -> bool:
        return self.__exit__(*args)


def run(code: Any, pick: random.Random) -> set[str]:
    """Run a compiled program once; the names whose outside value it saw."""
    world = World(pick)
    try:
        made = eval(code, world)
        if made is not None:
            asyncio.run(_wait(made))
    except (Exception, Stop):
        return world.read
    world.budget = 100
    for name in [*FUNCTIONS, *CLASSES]:  # as a notebook would use what the cell left
        made = dict.get(world, name)
        if not isinstance(made, Thing) and callable(made):
            try:
                made()
            except (Exception, Stop):
                pass
    return world.read


async def _wait(made: Any) -> None:
    await made
