"""A cell becomes files: what is captured, what is refused, and in which words."""

from __future__ import annotations

import socket
import sys
import threading
import types
from pathlib import Path

import pytest

from clusterkernel.errors import PayloadError
from clusterkernel.payload import function
from tests.unit import payloads
from tests.unit.payloads import Notebook


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


def captured(artefact: object) -> dict[str, tuple[str, str]]:
    return {one.name: (one.kind, one.why) for one in artefact.captured}  # type: ignore[attr-defined]


def refusal(notebook: Notebook, source: str, folder: Path, **options: object) -> str:
    with pytest.raises(PayloadError) as caught:
        notebook.ship(source, folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- what is captured -------------------------------------------------------------


def test_names_that_are_read_are_captured_with_kind_size_and_reason(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        """
        import math
        table = list(range(1000))
        unused = "x"
        scale = 3
        def area(r):
            return math.pi * r * scale
        """
    )
    artefact = notebook.ship("total = sum(table)\nprint(area(total))", tmp_path, first_line=2)
    assert captured(artefact) == {
        "table": ("list", "line 2"),
        "area": ("function", "line 3"),
        "math": ("module", "used by area"),
        "scale": ("int", "used by area"),
    }
    sizes = {one.name: one.size for one in artefact.captured}
    assert sizes["table"] > 2000 > sizes["scale"] > 0
    assert artefact.size == sum(sizes.values())


def test_builtins_and_own_names_are_not_captured(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("x = 1\ny = 2")
    artefact = notebook.ship("x = 5\nprint(len([x for y in range(x)]))\ndisplay(x)", tmp_path)
    assert captured(artefact) == {}
    assert artefact.outputs == ("x",)


def test_builtins_that_the_notebook_shadows_are_captured(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("input = [1]\nlen = len\ndef f(): return input")
    assert set(captured(notebook.ship("f(), input, len, sum", tmp_path))) == {"f", "input"}


def test_ipythons_stand_ins_for_builtins_stay_behind(notebook: Notebook, tmp_path: Path) -> None:
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    notebook.names["open"] = interactiveshell._modified_open
    notebook.run("def f(): return open")
    artefact = notebook.ship("f() is open is __builtins__.open", tmp_path)
    assert set(captured(artefact)) == {"f"}
    assert notebook.result(payloads.run(artefact, tmp_path)) is True


def test_outputs_are_what_the_cell_assigns_without_imports(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import os
        from math import pi
        a, *rest = [1, 2, 3]
        def f(): ...
        class C: ...
        for i in rest: b = i
        _ = 0
        """
    artefact = notebook.ship(source, tmp_path)
    assert artefact.outputs == ("a", "rest", "f", "C", "i", "b")


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("\n# fit\n\nmodel = 1\n", "model"),
        ("_, (a, b) = 1, (2, 3)", "a"),
        ("d = {}\nd[0] = 1", "d"),
        ("def main(): pass\nfor i in range(3):\n    print(i)\n    main()", "main"),
        ("import math\nprint(math.sqrt(4))", "math.sqrt"),
        ("print(1)", "print"),
        ("# only said\n1 + 1", "only said"),
        ("1 + 1", "1 + 1"),
    ],
)
def test_title_is_what_the_cell_makes_calls_or_says(
    notebook: Notebook, tmp_path: Path, source: str, title: str
) -> None:
    assert notebook.ship(source, tmp_path).title == title


def test_class_of_a_captured_object_brings_what_its_methods_use(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        """
        rate = 0.5
        class Net:
            def step(self): return rate
        net = Net()
        """
    )
    assert captured(notebook.ship("net.step()", tmp_path)) == {
        "net": ("Net", "line 1"),
        "rate": ("float", "used by net"),
    }


def test_submodules_reached_through_a_package_are_imported(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("import concurrent.futures\nimport xml.etree.ElementTree")
    artefact = notebook.ship("concurrent.futures.Future\nxml.etree.ElementTree.parse", tmp_path)
    assert artefact.body["imports"] == ["concurrent.futures", "xml.etree", "xml.etree.ElementTree"]


def test_a_digest_stands_for_each_input_and_none_where_it_cannot(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("import random\ndata = {'a', 'b'}\ndice = random.Random(1)")
    digests = notebook.ship("data, dice", tmp_path).inputs_digest
    assert digests["data"] is not None
    assert digests["dice"] is None
    notebook.run("data = {'b', 'a'}")
    assert notebook.ship("data, dice", tmp_path).inputs_digest["data"] == digests["data"]
    notebook.run("data = {'b', 'c'}")
    assert notebook.ship("data, dice", tmp_path).inputs_digest["data"] != digests["data"]


def test_an_edited_local_module_is_another_input(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ck_local_helper.py").write_text("A = 1\n")
    source = "import ck_local_helper"
    before = notebook.ship(source, tmp_path).inputs_digest
    (tmp_path / "ck_local_helper.py").write_text("A = 2\n")
    after = notebook.ship(source, tmp_path).inputs_digest
    assert before.keys() == after.keys() == {"ck_local_helper"}
    assert before != after
    taken = notebook.ship(source, tmp_path).captured
    assert [(one.name, one.kind, one.size) for one in taken] == [("ck_local_helper", "local module", 6)]


# -- -i -----------------------------------------------------------------------------


def test_inputs_limit_the_values_and_functions_still_follow(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("import math\nx = 1\nk = 2\ndef f(v): return v * k\nclass C: ...")
    artefact = notebook.ship("y = f(x) + math.pi\nC()", tmp_path, inputs=("x",))
    assert set(captured(artefact)) == {"x", "f", "math", "C", "k"}


def test_another_name_read_is_refused_with_inputs(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("x = 1\nz = 2")
    text = refusal(notebook, "y = x\ny += z", tmp_path, inputs=("x",), first_line=2)
    assert text == "Line 3 reads z, which is not in -i. Write -i x,z."


def test_an_input_that_the_notebook_lacks(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("data = 1")
    assert (
        refusal(notebook, "y = data", tmp_path, inputs=("dta",))
        == "-i dta: the notebook has no dta. Did you mean data?"
    )


# -- bad input ------------------------------------------------------------------------


def test_an_unknown_name_is_an_error_before_anything_is_sent(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("training = 1")
    text = refusal(notebook, "x = 1\nprint(trainng)", tmp_path, first_line=2)
    assert text == "Line 3 reads trainng, which is not defined. Did you mean training?"


def test_syntax_error_has_its_line_in_the_notebook(notebook: Notebook, tmp_path: Path) -> None:
    text = refusal(notebook, "x = 1\ny = = 2", tmp_path, first_line=2)
    assert "line 3" in text
    assert "y = = 2" in text


@pytest.mark.parametrize(
    ("source", "name", "mend"),
    [
        ("model = 1", "modle", "Did you mean model?"),
        ("print(data)", "data", "It reads it: write data = ..."),
        ("import math\nx = 1", "math", "Known: x."),
    ],
)
def test_a_bound_name_that_the_cell_never_assigns(
    notebook: Notebook, tmp_path: Path, source: str, name: str, mend: str
) -> None:
    notebook.run("data = 1")
    text = refusal(notebook, source, tmp_path, bind=(name,))
    assert f"-o {name}: the cell never assigns {name}." in text
    assert mend in text


def test_ipython_is_not_in_a_job(notebook: Notebook, tmp_path: Path) -> None:
    notebook.names["get_ipython"] = lambda: None
    assert "Line 1 uses get_ipython" in refusal(notebook, "get_ipython().system('ls')", tmp_path)


def test_magics_are_refused_by_name_and_line(notebook: Notebook, tmp_path: Path) -> None:
    text = refusal(notebook, "x = 1\n%matplotlib inline", tmp_path, first_line=2)
    assert "Line 3" in text
    assert "%matplotlib" in text


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("types.SimpleNamespace(lock=threading.Lock())", "model.lock: _thread.lock"),
        ("{'a': [1, (i for i in [])]}", "model['a'][1]: generator"),
        ("[open(__import__('os').devnull)]", "model[0]: _io.TextIOWrapper"),
        ("Net()", "model.parts['x'].deep[2]: _thread.RLock"),
        ("(lambda lock: lambda: lock)(threading.Lock())", "model -> lock: _thread.lock"),
    ],
)
def test_what_will_not_pickle_is_named_with_its_path(notebook: Notebook, tmp_path: Path, value: str, path: str) -> None:
    notebook.run(
        """
        import threading, types
        class Part:
            def __init__(self): self.deep = [1, 2, threading.RLock()]
        class Net:
            def __init__(self): self.parts = {'x': Part()}
        """
    )
    notebook.run(f"model = {value}")
    text = refusal(notebook, "model", tmp_path)
    assert f"variable model cannot be sent: {path} does not pickle." in text
    if isinstance(notebook["model"], list):
        notebook["model"][0].close()


def test_a_socket_is_named(notebook: Notebook, tmp_path: Path) -> None:
    with socket.socket() as connection:
        notebook.names["connection"] = connection
        assert "connection: socket.socket does not pickle. Open the connection inside." in refusal(
            notebook, "connection", tmp_path
        )


def test_a_global_of_a_function_that_will_not_pickle_names_its_user(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("import threading\nlock = threading.Lock()\ndef f():\n    with lock: return 1")
    assert "variable lock cannot be sent" in refusal(notebook, "f()", tmp_path)


def test_a_class_of_a_module_that_cannot_be_imported_there(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.ModuleType("ck_made_here")
    exec("class Thing: ...", made.__dict__)
    monkeypatch.setitem(sys.modules, "ck_made_here", made)
    notebook.names["thing"] = made.Thing()  # type: ignore[attr-defined]
    text = refusal(notebook, "thing", tmp_path)
    assert "variable thing cannot be sent: it needs the module ck_made_here" in text


def test_values_over_the_limit_list_the_largest(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("a, b, c, d, e, f = [bytes(n * 1000) for n in range(1, 7)]")
    text = refusal(notebook, "a, b, c, d, e, f", tmp_path, limit=10_000)
    assert "more than the limit of 9.8 KiB" in text
    order = [text.index(f"{name} (bytes)") for name in "fedcb"]
    assert order == sorted(order)
    assert "a (bytes)" not in text


def test_a_pending_name_is_refused(notebook: Notebook, tmp_path: Path) -> None:
    class Pending:
        __clusterkernel_pending__ = True

        def __repr__(self) -> str:
            return "<model: job 12 (RUNNING) has yet to deliver it>"

    notebook.names["model"] = Pending()
    text = refusal(notebook, "model.predict()", tmp_path)
    assert "job 12 (RUNNING)" in text
    assert "%cluster_wait" in text


def test_threads_and_the_like_do_not_break_the_search(notebook: Notebook, tmp_path: Path) -> None:
    holder = [threading.current_thread()]
    holder.append(holder)  # type: ignore[arg-type]
    notebook.names["holder"] = holder
    assert "holder cannot be sent" in refusal(notebook, "holder", tmp_path)


# -- the file for worker processes ----------------------------------------------------


def test_main_file_holds_imports_and_definitions_only(notebook: Notebook, tmp_path: Path) -> None:
    source = '''
        from __future__ import annotations
        import os, math
        from collections import namedtuple
        try:
            import numpy_that_is_not_here as xp
        except ImportError:
            xp = None
        BATCH = 4 * 8
        data = list(range(BATCH))
        Point = namedtuple("Point", "x y")
        def work(x: data, n=BATCH):
            """With
            lines."""
            return x * n
        def later(x, n=len(data)): return x
        class Base:
            size = BATCH
        class Net(Base):
            def go(self): return data
        class Made(type(data)): ...
        if __name__ == "__main__":
            print("training")
        work(3)
        '''
    artefact = notebook.ship(source, tmp_path)
    text = str(artefact.files["main.py"])
    for kept in ("import os, math", "xp = None", "BATCH = 4 * 8", "Point = ", "def work", "class Base", "class Net"):
        assert kept in text, kept
    for left in ("data = list", "def later", "class Made", "training", "work(3)"):
        assert left not in text, left
    code = compile(text, "main.py", "exec")
    assert "BATCH" in code.co_names


# -- values whose own code raises when it is looked at -----------------------------

ODD = """
import functools
class AttrDict(dict):
    __getattr__ = dict.__getitem__
class Everything:
    def __getattr__(self, name):
        return self
class Nothing:
    def __getattribute__(self, name):
        if name in ("__class__", "__dict__", "__reduce__", "__reduce_ex__", "__getstate__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(name)
class Wrong:
    nbytes = __wrapped__ = __globals__ = property(lambda self: 1 / 0)
    def __module__(self):
        raise ValueError
class Silent:
    def __eq__(self, other):
        raise ValueError
    __hash__ = __repr__ = __bool__ = __len__ = __eq__
class Holder:
    kept, every = AttrDict(a=1), Everything()
    def get(self):
        return self.kept.a
attributes, nothing, wrong, silent, holder = AttrDict(lr=2), Nothing(), Wrong(), Silent(), Holder()
def use():
    return attributes.lr
partial = functools.partial(use)
"""


def test_values_that_raise_when_they_are_looked_at_travel(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(ODD)
    ran = notebook.train(
        "seen = [attributes.lr, use(), partial(), holder.get(), type(nothing).__name__, type(silent).__name__]\n"
        "types = [type(wrong)]\nback = attributes",
        tmp_path,
    )
    assert ran.state == "SUCCEEDED", ran.stderr
    assert notebook.output(ran, "seen") == [2, 2, 2, 1, "Nothing", "Silent"]
    assert type(notebook.output(ran, "back")) is notebook["AttrDict"]


@pytest.mark.parametrize("name", ["attributes", "nothing", "wrong", "silent", "holder"])
def test_they_travel_as_arguments(notebook: Notebook, tmp_path: Path, name: str) -> None:
    notebook.run(f"{ODD}\ndef kind(value):\n    return type(value).__name__")
    ran = payloads.run(function.build(notebook["kind"], [notebook[name]], modules_root=tmp_path), tmp_path)
    assert ran.state == "SUCCEEDED", ran.stderr
    assert notebook.result(ran) == type(notebook[name]).__name__


def test_a_proxy_of_nothing_is_refused_in_one_line(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        "class Proxy:\n    @property\n    def __class__(self):\n        raise RuntimeError('unbound')\np = Proxy()"
    )
    assert "variable p cannot be sent: p: " in refusal(notebook, "print(p)", tmp_path)


def test_a_class_that_cannot_be_made_anew_is_refused_before_it_is_sent(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("import msgspec\nclass Row(msgspec.Struct):\n    a: int\nrow = Row(1)")
    said = refusal(notebook, "print(row)", tmp_path)
    assert "StructMeta makes its slots in a way of its own: put the class into a file beside the notebook" in said
