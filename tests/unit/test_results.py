"""What comes back is made of the notebook's own classes, also in a kernel that was started anew."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from clusterkernel.errors import ResultFailed
from clusterkernel.payload import function, results
from tests.unit import payloads
from tests.unit.payloads import Notebook, Ran

CLASSES = """
import enum, dataclasses, typing
class Net:
    made = 0
    def __init__(self, w):
        self.w = w
        Net.made += 1
    def double(self):
        return self.w * 2
    class Inner:
        pass
class Color(enum.Enum):
    RED = 1
    BLUE = "b"
@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
class Pair(typing.NamedTuple):
    a: int
    b: list
class Deep(Net):
    def __init__(self, w):
        super().__init__(w)
        self.inner = Net.Inner()
"""
CELL = """
net = Net(3)
color = Color("b")
point = Point(1)
pair = Pair(1, [Color.RED])
deep = Deep(5)
kinds = [Net, Color, Point, Pair, Deep, Net.Inner]
"""
NAMES = {"net": "Net", "color": "Color", "point": "Point", "pair": "Pair", "deep": "Deep"}


def check_identity(notebook: Notebook, ran: Ran) -> None:
    for name, kind in NAMES.items():
        assert type(notebook.output(ran, name)) is notebook[kind], name
    assert notebook.output(ran, "color") is notebook["Color"].BLUE
    assert notebook.output(ran, "pair").b[0] is notebook["Color"].RED
    assert notebook.output(ran, "point") == notebook["Point"](1, 2)
    assert notebook.output(ran, "deep").inner.__class__ is notebook["Net"].Inner
    assert isinstance(notebook.output(ran, "deep"), notebook["Net"])
    classes = ["Net", "Color", "Point", "Pair", "Deep"]
    assert notebook.output(ran, "kinds") == [*(notebook[name] for name in classes), notebook["Net"].Inner]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Notebook, Ran]:
    notebook = Notebook()
    notebook.run(CLASSES)
    ran = notebook.train(CELL, tmp_path_factory.mktemp("job"))
    assert ran.state == "SUCCEEDED", ran.stderr
    return notebook, ran


def again(notebook: Notebook) -> Notebook:
    """The same notebook, so that a test may change it."""
    other = Notebook()
    other.names = dict(notebook.names)
    other.number = notebook.number
    return other


def test_same_kernel(trained: tuple[Notebook, Ran]) -> None:
    check_identity(*trained)


def test_class_in_use_counts_and_stays_the_same(trained: tuple[Notebook, Ran]) -> None:
    notebook, ran = trained
    before = notebook["Net"].made
    notebook["Net"](1)
    assert type(notebook.output(ran, "net")) is notebook["Net"]
    assert notebook["Net"].made == before + 1


def test_class_cell_run_again_unchanged(trained: tuple[Notebook, Ran]) -> None:
    notebook, ran = again(trained[0]), trained[1]
    old = notebook["Net"]
    notebook.run("# once more\n" + CLASSES)
    assert notebook["Net"] is not old
    check_identity(notebook, ran)


def test_new_kernel_that_ran_the_class_cell(trained: tuple[Notebook, Ran]) -> None:
    notebook = Notebook()
    notebook.run(CLASSES)
    check_identity(notebook, trained[1])


def test_changed_class_gets_what_was_sent(trained: tuple[Notebook, Ran]) -> None:
    notebook = Notebook()
    notebook.run(CLASSES.replace("self.w * 2", "self.w * 200").replace("RED = 1", "RED = 11"))
    net = notebook.output(trained[1], "net")
    assert type(net) is not notebook["Net"]
    assert net.double() == 6
    assert notebook["Net"](3).double() == 600
    assert notebook.output(trained[1], "pair").b[0].value == 1


def test_new_kernel_without_the_class_cell_gets_what_was_sent(trained: tuple[Notebook, Ran]) -> None:
    notebook, ran = Notebook(), trained[1]
    net, deep = notebook.output(ran, "net"), notebook.output(ran, "deep")
    assert net.double() == 6
    assert isinstance(deep, type(net))
    assert notebook.output(ran, "color").value == "b"
    assert set(notebook.names) == {"__name__"}


def test_loading_changes_no_class_of_the_notebook(trained: tuple[Notebook, Ran]) -> None:
    notebook, ran = trained
    before = {name: dict(vars(notebook[name])) for name in ("Net", "Point", "Deep")}
    notebook.output(ran, "kinds")
    Notebook().run(CLASSES)
    assert {name: dict(vars(notebook[name])) for name in before} == before


def test_classes_of_the_cell_are_one_class_over_several_files(tmp_path: Path) -> None:
    notebook = Notebook()
    ran = notebook.train(
        """
        import enum
        class Mine:
            def hello(self): return "hello"
        class Mode(enum.Enum):
            A = 1
        one, two = Mine(), [Mine()]
        mode = Mode.A
        modes = {"m": Mode.A}
        Mine
        """,
        tmp_path,
    )
    one, two = notebook.output(ran, "one"), notebook.output(ran, "two")
    assert type(one) is type(two[0]) is notebook.output(ran, "Mine") is notebook.result(ran)
    assert notebook.output(ran, "mode") is notebook.output(ran, "modes")["m"]
    assert one.hello() == "hello"
    # What was bound is the notebook's from then on.
    fresh = Notebook()
    fresh.names["Mine"] = notebook.output(ran, "Mine")
    assert type(fresh.output(ran, "one")) is fresh["Mine"]


ODD = """
import abc, dataclasses, typing, enum, functools
T = typing.TypeVar("T")
class Base(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
class Impl(Base):
    def f(self): return 1
@dataclasses.dataclass(slots=True, frozen=True)
class Slot:
    x: int
    y: list = dataclasses.field(default_factory=list)
class Gen(typing.Generic[T]):
    def __init__(self, v): self.v=v
class Proto(typing.Protocol):
    def go(self) -> int: ...
class Meta(type):
    def __new__(m, n, b, d): return super().__new__(m, n, b, d)
class WithMeta(metaclass=Meta):
    pass
class Flag(enum.Flag):
    A = enum.auto(); B = enum.auto()
class Str(str, enum.Enum):
    P = "p"
class Err(Exception):
    def __init__(self, code): super().__init__("code %d" % code); self.code = code
class TD(typing.TypedDict):
    a: int
class Desc:
    @property
    def p(self): return 3
    @staticmethod
    def s(): return 4
    @classmethod
    def c(cls): return cls
    @functools.lru_cache
    def cached(self): return 5
    @functools.cached_property
    def kept(self): return 6
class SelfRef:
    inst = None
SelfRef.inst = SelfRef()
"""


def test_odd_classes_keep_their_identity(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(ODD)
    names = "Base Impl Slot Gen Proto Meta WithMeta Flag Str Err TD Desc SelfRef".split()
    ran = notebook.train(
        f"""
        made = [Impl(), Slot(1), Gen(2), WithMeta(), Flag.A | Flag.B, Str.P, Err(5), Desc(), SelfRef()]
        kinds = [{", ".join(names)}]
        works = [Impl().f(), Desc().p, Desc.s(), Desc.c() is Desc, Desc().cached(), Desc().kept, Err(5).code]
        """,
        tmp_path,
    )
    assert notebook.output(ran, "works") == [1, 3, 4, True, 5, 6, 5]
    anew = Notebook()
    anew.run("# once more\n" + ODD)
    for kernel in (notebook, anew):
        assert kernel.output(ran, "kinds") == [kernel[name] for name in names]
        made = kernel.output(ran, "made")
        assert [type(one).__name__ for one in made] == [
            name for name in names if name not in ("Base", "Proto", "Meta", "TD")
        ]
        assert all(type(one) is kernel[type(one).__name__] for one in made)
        assert (str(made[6]), made[6].code) == ("code 5", 5)
    assert len(Notebook().output(ran, "made")) == len(made)


def test_cached_functions_travel(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run("import functools\n@functools.cache\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)")
    ran = notebook.train("back = fib\nfib(50)", tmp_path)
    assert notebook.result(ran) == 12586269025
    assert notebook.output(ran, "back")(30) == 832040


def test_class_from_a_job_goes_into_the_next_and_comes_back(tmp_path: Path) -> None:
    notebook = Notebook()
    first = notebook.train("class Mine:\n    def go(self): return 1\nm = Mine()", tmp_path / "1")
    notebook.names["m"] = notebook.output(first, "m")
    notebook.names["Mine"] = notebook.output(first, "Mine")
    second = notebook.train("n = Mine()\nok = isinstance(m, Mine)", tmp_path / "2")
    assert notebook.output(second, "ok") is True
    assert type(notebook.output(second, "n")) is notebook["Mine"]


def test_array_items_have_the_notebooks_classes(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(CLASSES)
    notebook.run("def f(net): return (type(net) is Net, Net(net.w + 1))")
    artefact = function.build_map(notebook["f"], [notebook["Net"](i) for i in range(5)], modules_root=tmp_path)
    assert len(artefact.files["items.pkl"].getvalue()) < 1000  # type: ignore[union-attr]
    ran = payloads.run(artefact, tmp_path, task=3)
    same, net = notebook.result(ran)
    assert same is True
    assert type(net) is notebook["Net"]
    assert net.w == 4


def test_functions_do_not_take_data_along(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run("data = list(range(100_000))\nimport threading")
    ran = notebook.train(
        """
        lock = threading.Lock()
        made = [len(data)]
        limit = 5
        def use(): return made[0] + len(data) + limit
        class Net:
            def go(self):
                with lock: return use()
            def size(self): return made
        net = Net()
        """,
        tmp_path,
    )
    outputs = ran.report["outputs"]
    assert outputs["net"]["error"] is None
    assert max(outputs[name]["size"] for name in ("use", "Net", "net")) < 10_000
    # Where the notebook has it, it is the notebook's; else what was sent; what the cell made comes from the job.
    assert notebook.output(ran, "use")() == 200_005
    assert Notebook().output(ran, "use")() == 200_005
    assert Notebook().output(ran, "net").size() == [100_000]
    with pytest.raises(NameError, match="lock"):
        notebook.output(ran, "net").go()


def test_a_name_that_reaches_itself(tmp_path: Path) -> None:
    notebook = Notebook()
    ran = notebook.train("class Node:\n    def root(self): return node\nnode = Node()\nother = Node()", tmp_path)
    node = notebook.output(ran, "node")
    assert type(node.root()) is type(node)
    assert type(notebook.output(ran, "other").root()) is type(node)


def test_missing_module_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook()
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "ck_only_there.py").write_text("class Thing:\n    pass\n")
    source = f"""
        import sys
        sys.path.insert(0, {str(tmp_path / "extra")!r})
        import importlib
        Thing = importlib.import_module("ck_" + "only_there").Thing
        thing = Thing()
        thing
        """
    ran = notebook.train(source, tmp_path)
    assert ran.state == "SUCCEEDED", ran.stderr
    for load in (lambda: notebook.result(ran), lambda: notebook.output(ran, "thing")):
        with pytest.raises(ResultFailed) as caught:
            load()
        assert "the module ck_only_there is not here" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_files_that_are_gone_or_broken(tmp_path: Path) -> None:
    notebook = Notebook()
    ran = notebook.train("x = [1]\nx", tmp_path)
    (ran.out / "result.pkl").write_bytes(b"\x80\x05nonsense")
    with pytest.raises(ResultFailed, match=r"result cannot be loaded: \w+Error"):
        notebook.result(ran)
    (ran.out / "result.pkl").unlink()
    with pytest.raises(ResultFailed, match="There is no result"):
        notebook.result(ran)
    with pytest.raises(ResultFailed, match="is gone"):
        results.load_output(ran.out / "outputs" / "y.pkl", notebook.names, ran.payload)
    assert notebook.error(ran) is None


def test_values_are_new_each_time(trained: tuple[Notebook, Ran]) -> None:
    notebook, ran = trained
    one, two = notebook.output(ran, "point"), notebook.output(ran, "point")
    assert one == two == copy.copy(one)
    assert one is not two


SLOTTED = """
import dataclasses
@dataclasses.dataclass(slots=True)
class Point:
    x: int
    y: int = 2
    def total(self):
        return self.x + self.y
@dataclasses.dataclass(slots=True, frozen=True)
class Frozen:
    x: int
class Hidden:
    __slots__ = ("__inner", "open")
    def __init__(self):
        self.__inner, self.open = 1, 2
    def sum(self):
        return self.__inner + self.open
class Below(Hidden):
    __slots__ = {"more": "what it adds"}
class Both:
    __slots__ = ("fixed", "__dict__", "__weakref__")
class Lone:
    __slots__ = "only"
point, frozen, hidden, below, both, lone = Point(1), Frozen(5), Hidden(), Below(), Both(), Lone()
below.more, both.fixed, both.free, lone.only = 3, 4, 5, 6
"""


def test_instances_of_classes_with_slots_go_in_and_come_back(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(SLOTTED)
    ran = notebook.train(
        """
        point.y, both.free, lone.only = 10, 50, 60
        seen = [point.total(), frozen.x, hidden.sum(), below.sum(), below.more, both.fixed, hasattr(hidden, "__dict__")]
        point, frozen, hidden, below, both, lone = point, Frozen(6), Hidden(), below, both, lone
        """,
        tmp_path,
    )
    assert ran.state == "SUCCEEDED", ran.stderr
    assert notebook.output(ran, "seen") == [11, 5, 3, 3, 3, 4, False]
    back = {name: notebook.output(ran, name) for name in ran.report["outputs"]}
    assert back["point"] == notebook["Point"](1, 10)
    assert back["frozen"] == notebook["Frozen"](6)
    assert (back["hidden"].sum(), back["below"].sum(), back["below"].more) == (3, 3, 3)
    assert (back["both"].fixed, back["both"].free, back["lone"].only) == (4, 50, 60)
    kinds = {"hidden": "Hidden", "below": "Below", "both": "Both", "lone": "Lone"}
    assert {name for name, kind in kinds.items() if type(back[name]) is not notebook[kind]} == set()


def test_classes_with_slots_come_back_to_a_new_kernel(tmp_path: Path) -> None:
    first = Notebook()
    first.run(SLOTTED)
    ran = first.train("a, b = Point(3), Below()\nb.more = 8", tmp_path)
    fresh = Notebook()
    point, below = fresh.output(ran, "a"), fresh.output(ran, "b")
    assert (point.x, point.total(), below.sum(), below.more) == (3, 5, 3, 8)
    with pytest.raises(AttributeError):
        point.z = 1
    second = Notebook()
    second.run(SLOTTED)
    assert type(second.output(ran, "b")) is second["Below"]
