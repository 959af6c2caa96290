"""Functions and arrays become files; a payload is sent again with changes."""

from __future__ import annotations

import functools
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from clusterkernel import payload
from clusterkernel.errors import PayloadError
from clusterkernel.payload import Artefact, function
from clusterkernel.records import PayloadSummary
from tests.unit import payloads
from tests.unit.payloads import Notebook, Ran


@pytest.fixture
def notebook() -> Notebook:
    made = Notebook()
    made.run(
        """
        import threading
        rate = 3
        class Box:
            def __init__(self, v): self.v = v
        def scaled(x, by=1, *, plus=0):
            return x * rate * by + plus
        def boxed(box): return Box(box.v + 1)
        """
    )
    return made


def run(artefact: Artefact, folder: Path, **options: Any) -> Ran:
    ran = payloads.run(artefact, folder, **options)
    assert ran.state == "SUCCEEDED", ran.stderr
    return ran


def summary(artefact: Artefact) -> PayloadSummary:
    return PayloadSummary(
        kind=artefact.kind,
        title=artefact.title,
        source=artefact.source,
        outputs=artefact.outputs,
        bind=artefact.bind,
        inputs=dict(artefact.inputs_digest),
        sizes={one.name: one.size for one in artefact.captured},
    )


# -- calls ----------------------------------------------------------------------------


def test_function_with_arguments(notebook: Notebook, tmp_path: Path) -> None:
    artefact = function.build(notebook["scaled"], (2,), {"plus": 1}, modules_root=tmp_path)
    assert (artefact.kind, artefact.title) == ("function", "scaled")
    assert [(one.name, one.kind) for one in artefact.captured] == [
        ("scaled", "function"),
        ("x", "int"),
        ("plus", "int"),
    ]
    assert notebook.result(run(artefact, tmp_path)) == 7


def test_arguments_keep_what_they_share(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("def same(a, b, box): return a is b['a'] and type(box) is Box")
    a = [1]
    artefact = function.build(notebook["same"], (a, {"a": a}, notebook["Box"](1)), modules_root=tmp_path)
    assert notebook.result(run(artefact, tmp_path)) is True


def test_importable_functions_go_by_name(tmp_path: Path) -> None:
    artefact = function.build(pow, (2, 10), modules_root=tmp_path)
    assert artefact.size < 100
    assert Notebook().result(run(artefact, tmp_path)) == 1024


@pytest.mark.parametrize("wrap", ["functools.partial(scaled, 2)", "Box(3).go", "(lambda: scaled(2))", "Call()"])
def test_callables_of_all_kinds(notebook: Notebook, tmp_path: Path, wrap: str) -> None:
    notebook.run("import functools\nBox.go = lambda self: self.v * 2\nclass Call:\n    def __call__(self): return 6")
    notebook.run(f"call = {wrap}")
    ran = run(function.build(notebook["call"], modules_root=tmp_path), tmp_path)
    assert notebook.result(ran) == 6


def test_titles() -> None:
    assert function.title_of(functools.partial(functools.partial(pow, 2), 3)) == "pow"
    assert function.title_of(types.SimpleNamespace) == "SimpleNamespace"


def test_argument_that_does_not_pickle_is_named(notebook: Notebook) -> None:
    box = notebook["Box"]({"a": [threading.Lock()]})
    with pytest.raises(PayloadError) as caught:
        function.build(notebook["scaled"], (1,), {"by": box})
    assert str(caught.value) == (
        "argument by cannot be sent: by.v['a'][0]: _thread.lock does not pickle. "
        "Leave it out with __getstate__, or make it inside."
    )


def test_function_whose_globals_do_not_pickle(notebook: Notebook) -> None:
    notebook.run("lock = threading.Lock()\ndef locked():\n    with lock: return 1")
    with pytest.raises(PayloadError, match=r"function locked cannot be sent: locked -> lock: _thread.lock"):
        function.build(notebook["locked"])


def test_error_of_a_values_own_code_is_told(notebook: Notebook) -> None:
    notebook.run("class Proud:\n    def __reduce__(self): raise RuntimeError('ask me first')")
    with pytest.raises(PayloadError, match=r"argument x cannot be sent: x: __main__.Proud \(ask me first\)"):
        function.build(notebook["scaled"], (notebook["Proud"](),))


def test_too_deep(notebook: Notebook) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(PayloadError, match="nested too deeply"):
        function.build(notebook["scaled"], (deep,))
    while deep:  # so that it is not taken apart by recursion
        deep = deep.pop()


def test_size_limit_lists_the_largest(notebook: Notebook) -> None:
    with pytest.raises(PayloadError) as caught:
        function.build(notebook["scaled"], (b"x" * 5000,), {"by": b"y" * 9000}, limit=10_000)
    text = str(caught.value)
    assert text.index("by (bytes) 8.8 KiB") < text.index("x (bytes) 4.9 KiB")
    assert "limit of 9.8 KiB" in text


# -- arrays ---------------------------------------------------------------------------


def test_array_of_items(notebook: Notebook, tmp_path: Path) -> None:
    artefact = function.build_map(notebook["scaled"], [10, 20, 30], modules_root=tmp_path)
    assert [one.name for one in artefact.captured] == ["scaled", "items"]
    assert notebook.result(run(artefact, tmp_path, task=1)) == 60


def test_chunks_give_lists(notebook: Notebook, tmp_path: Path) -> None:
    artefact = function.build_map(notebook["scaled"], range(5), chunksize=2, modules_root=tmp_path)
    assert notebook.result(run(artefact, tmp_path, task=0)) == [0, 3]
    (tmp_path / "job" / "events" / "0").mkdir(exist_ok=True)
    assert notebook.result(run(artefact, tmp_path, task=2)) == [12]


def test_item_that_does_not_pickle_has_its_number(notebook: Notebook) -> None:
    items = [1, 2, notebook["Box"](threading.Lock()), 4]
    with pytest.raises(PayloadError, match=r"An item cannot be sent: items\[2\].v: _thread.lock does not pickle."):
        function.build_map(notebook["scaled"], items, chunksize=2)


def test_a_thousand_items_are_cheap(notebook: Notebook, tmp_path: Path) -> None:
    # A guard against work that grows with the items (each with a class of the notebook), not a measure.
    items = [notebook["Box"](i) for i in range(1000)]
    started = time.process_time()
    artefact = function.build_map(notebook["boxed"], items, modules_root=tmp_path)
    artefact.write(tmp_path)
    assert time.process_time() - started < 1.0
    assert (tmp_path / "items.idx").stat().st_size == 8 * 1001
    assert (tmp_path / "items.pkl").stat().st_size < 200_000


# -- the same again ---------------------------------------------------------------------


def test_reload_without_changes_is_the_same(notebook: Notebook, tmp_path: Path) -> None:
    first = notebook.ship("y = rate + 1\ny", tmp_path / "n")
    payloads.lay_out(tmp_path / "1", first)
    second = payload.reload(tmp_path / "1" / "job" / "payload", summary(first), {})
    assert (second.title, second.outputs, second.inputs_digest) == (first.title, first.outputs, first.inputs_digest)
    ran = run(second, tmp_path / "2")
    assert notebook.result(ran) == 4
    names = [sorted(path.name for path in (tmp_path / n / "job" / "payload").iterdir()) for n in "12"]
    assert names[0] == names[1]


def test_reload_replaces_what_a_cell_captured(notebook: Notebook, tmp_path: Path) -> None:
    first = notebook.ship("(scaled(2), rate)", tmp_path / "n")
    payloads.lay_out(tmp_path / "1", first)
    second = payload.reload(tmp_path / "1" / "job" / "payload", summary(first), {"rate": 10})
    assert second.inputs_digest["rate"] != first.inputs_digest["rate"]
    ran = run(second, tmp_path / "2")
    assert notebook.result(ran) == (20, 10)
    third = payload.reload(ran.payload, summary(second), {"rate": 100})
    assert notebook.result(run(third, tmp_path / "3")) == (200, 100)


def test_reload_replaces_arguments_however_they_were_given(notebook: Notebook, tmp_path: Path) -> None:
    first = function.build(notebook["scaled"], (2, 5), modules_root=tmp_path)
    payloads.lay_out(tmp_path / "1", first)
    folder = tmp_path / "1" / "job" / "payload"
    second = payload.reload(folder, summary(first), {"by": 1, "plus": 100})
    assert notebook.result(run(second, tmp_path / "2")) == 106


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ratee": 1}, "The cell took no ratee from the notebook. Did you mean rate?"),
        ({"out": 1}, "out cannot be changed: the cell itself assigns it."),
        ({"rate": threading.Lock()}, "parameter rate cannot be sent: rate: _thread.lock does not pickle."),
    ],
)
def test_wrong_changes_of_a_cell(notebook: Notebook, tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    first = notebook.ship("out = rate", tmp_path)
    first.write(tmp_path)
    with pytest.raises(PayloadError) as caught:
        payload.reload(tmp_path, summary(first), changes)
    assert str(caught.value).startswith(text)


def test_wrong_changes_of_a_function_and_an_array(notebook: Notebook, tmp_path: Path) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    for folder in (one, many):
        folder.mkdir()
    call = function.build(notebook["scaled"], (1,), modules_root=tmp_path)
    call.write(one)
    with pytest.raises(PayloadError, match=r"scaled has no parameter pluss. Did you mean plus\?"):
        payload.reload(one, summary(call), {"pluss": 1})
    array = function.build_map(notebook["scaled"], [1, 2], modules_root=tmp_path)
    array.write(many)
    with pytest.raises(PayloadError, match="each task has an item of its own"):
        payload.reload(many, summary(array), {"x": 1})
    again = payload.reload(many, summary(array), {"by": 7})
    assert notebook.result(run(again, tmp_path / "ran", task=1)) == 42


def test_a_command_has_no_parameters(tmp_path: Path) -> None:
    made = Artefact(kind="command", title="ls", body={"argv": ["ls"]})
    made.write(tmp_path)
    with pytest.raises(PayloadError, match="A command has no parameters; lr cannot be set"):
        payload.reload(tmp_path, summary(made), {"lr": 1})
    assert payload.reload(tmp_path, summary(made), {}).body == {"argv": ["ls"]}
