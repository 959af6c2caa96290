"""What has the form of a key, or is a secret of this environment, does not travel in the clear."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import fields, secretstore
from clusterkernel.errors import ClusterKernelError, PayloadError, SpecError
from clusterkernel.formats import secrets
from clusterkernel.payload import axolotl, command, function
from clusterkernel.payload.digest import digest
from tests.unit import payloads
from tests.unit.payloads import Notebook

KEY = "hf_" + "abcdefghijklmnopqrstuvwx"
MEND = "Keep it with %cluster_secret set HF_TOKEN"


def refusal(make: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ClusterKernelError) as caught:
        make(*args, **kwargs)
    said = str(caught.value)
    assert KEY not in said
    assert "\n" not in said
    return said


def hold(*args: object, **kwargs: object) -> None:
    """A function to be called."""


@pytest.mark.parametrize(
    ("text", "is_key"),
    [
        (KEY, True), (f"--token={KEY}", True), ("sk-ant-api03-AbC1_dEf-ghijklmnopqrstuv", True),
        ("sk-" + "a1b2c3d4" * 4, True), ("sk-proj-" + "aB3_" * 8, True), ("AKIAABCDEFGHIJKLMNOP", True),
        ("mask-language-model-training-run", False), ("sk-learn-classification-model-v2", False),
        ("risk-a1b2c3d4a1b2c3d4a1b2c3d4", False), ("task-2024-01-01-evaluation-run-B7", False),
    ],
)  # fmt: skip
def test_the_form_of_a_key(text: str, is_key: bool) -> None:
    assert secrets.is_value(text) is is_key


@pytest.mark.parametrize(
    "values",
    [
        {"name": KEY}, {"tags": ["sweep", KEY]}, {"image": f"registry/x:{KEY}"}, {"account": KEY},
        {"sbatch": f"--comment={KEY}"}, {"sbatch": f"--export=ALL,HF_TOKEN={KEY}"},
    ],
)  # fmt: skip
def test_no_field_of_the_spec_holds_a_key(values: dict[str, object]) -> None:
    assert MEND in refusal(ck.Executor, "slurm", **values)
    assert MEND in refusal(secretstore.refuse_in_script, fields.build(values))


def test_sbatch_exports_no_secret() -> None:
    with pytest.raises(SpecError, match="--sbatch would write DB_PASSWORD") as caught:
        secretstore.refuse_in_script(fields.build({"sbatch": "--export=ALL,DB_PASSWORD=hunter2"}))
    assert "hunter2" not in str(caught.value)
    secretstore.refuse_in_script(fields.build({"sbatch": "--export=ALL,PATH --mail-user=a@b.c", "name": "risk-1"}))


def test_no_command_holds_a_key() -> None:
    assert MEND in refusal(command.build, ["hf", "auth", "login", "--token", KEY])
    assert "argument 4" in refusal(command.build, ["hf", "auth", "login", "--token", KEY])
    assert MEND in refusal(command.build, ["bash", "-c", f"export HF_TOKEN={KEY}; python t.py"])


def test_no_configuration_holds_a_key() -> None:
    text = "base_model: a/b\ndatasets: [{path: c/d, type: alpaca}]\n"
    assert MEND in refusal(axolotl.build, f"{text}# {KEY}\n")
    assert MEND in refusal(axolotl.build, text, overrides={"note": KEY})


@pytest.mark.parametrize("value", [KEY, {"hub": {"token": KEY}}, [("x", KEY)], {"a", KEY}])
def test_no_argument_holds_a_key(value: object) -> None:
    assert "argument args[0]" in refusal(function.build, hold, [value])
    assert MEND in refusal(function.build, hold, [], {"token": value})
    assert "item 1" in refusal(function.build_map, hold, [1, value])


def test_no_name_of_the_notebook_and_no_cell_holds_a_key(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(f"token = {KEY!r}\nconfig = {{'hub': [token]}}")
    assert "variable token" in refusal(notebook.ship, "print(token)", tmp_path)
    assert "variable config" in refusal(notebook.ship, "print(config)", tmp_path)
    notebook.run(f"def login(a, b={KEY!r}): pass\nclass Hub:\n    def __init__(self):\n        self.key = {KEY!r}")
    for name in ("login", "Hub"):
        assert f"variable {name}" in refusal(notebook.ship, f"{name}(1)", tmp_path)
        assert f"function {name}" in refusal(function.build, notebook[name], [1])
        assert f"function {name}" in refusal(function.build_map, notebook[name], [1])
    assert "The cell holds a secret" in refusal(notebook.ship, f"print({KEY!r})", tmp_path)


def test_a_secret_of_the_environment_is_known_whatever_its_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "correct horse battery")
    notebook = Notebook()
    notebook.run("import os\nword = os.environ['DB_PASSWORD']\ncopy = dict(os.environ)\nother = 'correct horse'")
    for name in ("word", "copy"):
        with pytest.raises(PayloadError, match=r"in the clear \(DB_PASSWORD\)"):
            notebook.ship(f"print({name})", tmp_path)
    notebook.ship("print(other)", tmp_path)


@pytest.mark.parametrize("line", ["from os import environ", "import os\nenviron = os.environ"])
def test_the_environment_goes_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setenv("ONLY_HERE", "a value of the kernel")
    notebook = Notebook()
    notebook.run(f"{line}\nholder = [environ]\ndef look():\n    return environ.get('ONLY_THERE')")
    artefact = notebook.ship(
        "seen = [environ.get('ONLY_THERE'), look(), holder[0] is environ]\nkept = environ", tmp_path
    )
    ran = payloads.run(artefact, tmp_path, env={"ONLY_THERE": "yes", "ONLY_HERE": "another"})
    assert ran.state == "SUCCEEDED", ran.stderr
    assert notebook.output(ran, "seen") == ["yes", "yes", True]
    assert notebook.output(ran, "kept") is os.environ
    written = [path.read_bytes() for path in ran.job.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not [data for data in written if b"a value of the kernel" in data]
    before = digest(os.environ)
    monkeypatch.setenv("ONLY_HERE", "changed")
    assert before is not None
    assert digest(os.environ) == before


class Client:
    """An object of a package: it travels as it is."""

    def __init__(self, key: object) -> None:
        self.key = key


@pytest.mark.parametrize("value", [KEY, KEY.encode(), "hunter2hunter2"])
def test_nothing_that_travels_holds_a_secret(value: str | bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2hunter2")
    ex = ck.Executor("local")

    def closed_over() -> object:
        return value

    for fn, *args in ((closed_over,), (functools.partial(len, value),), (type, Client(value))):
        said = refusal(ex.submit, fn, *args)
        assert "holds a secret in the clear" in said
        assert "hunter2" not in said
    assert "holds a secret" in refusal(ex.map_jobs, type, [Client(value)])
    assert ex.submit(len, "hunter2").result(60) == 7


def test_no_field_of_the_spec_holds_a_secret_of_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "hunter2hunter2")
    for given in ({"env": "A=hunter2hunter2"}, {"setup": "login hunter2hunter2"}):
        said = refusal(ck.Executor, "local", **given)
        assert "would write DB_PASSWORD into the job's script" in said
        assert "hunter2" not in said
