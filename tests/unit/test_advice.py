"""The advice: every rule speaks where it should and is silent where it should not, and its mends mend."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterkernel import advice
from clusterkernel.advice import Case, Level, axolotl_schema
from clusterkernel.formats.model import Runs
from tests.unit import axolotl_judge
from tests.unit.advice_cases import CASES, CLEAN, case

SPEAKING = [
    pytest.param(rule, item, id=f"{rule}-{n}") for rule, (yes, _) in CASES.items() for n, item in enumerate(yes)
]
SILENT = [pytest.param(rule, item, id=f"{rule}-{n}") for rule, (_, no) in CASES.items() for n, item in enumerate(no)]


def said(given: Case) -> list[str]:
    return [item.rule for item in advice.check_case(given)]


@pytest.mark.parametrize(("rule", "given"), SPEAKING)
def test_it_speaks(rule: str, given: Case) -> None:
    found = [item for item in advice.check_case(given) if item.rule == rule]
    assert found
    for item in found:
        assert item.message.endswith(".")
        assert item.field
        assert item.fix.endswith((".", "?", ")")) or item.fix.startswith(("Known", "Set", "Try", "Add")), item.fix
        assert "\n" not in item.message


@pytest.mark.parametrize(("rule", "given"), SILENT)
def test_it_is_silent(rule: str, given: Case) -> None:
    assert rule not in said(given)


@pytest.mark.parametrize("given", [pytest.param(item, id=str(n)) for n, item in enumerate(CLEAN)])
def test_a_clean_job_gets_no_advice(given: Case) -> None:
    assert [(item.rule, item.message) for item in advice.check_case(given)] == []


def test_every_rule_has_cases_and_keeps_its_ids() -> None:
    ids = [name for item in advice.rules() for name in item.ids]
    assert sorted(ids) == sorted(CASES)
    for item in advice.rules():
        assert item.about.endswith(".")
    assert len(CLEAN) == 20


def test_the_readme_lists_every_rule() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    for name in CASES:
        platform = name.partition("-")[0]
        assert f"`{name}`" in text or (platform in ("modal", "baseten", "kubernetes") and f"`{platform}-*`" in text)


@pytest.mark.parametrize(("rule", "given"), SPEAKING)
def test_its_mend_mends(rule: str, given: Case) -> None:
    for item in advice.check_case(given):
        if item.rule == rule and item.change is not None:
            after = item.applied(given)
            assert after != given
            assert (item.rule, item.field) not in {(left.rule, left.field) for left in advice.check_case(after)}


def test_the_worst_comes_first() -> None:
    levels = [item.level for item in advice.check_case(case("modal", gpus_per_node="h100:9", partition="x"))]
    assert levels[0] is Level.ERROR
    assert levels == sorted(levels, key=list(Level).index)
    assert Level.INFO in levels


def test_no_secret_is_said_aloud() -> None:
    for rule, given in ((rule, item) for rule, (yes, _) in CASES.items() for item in yes):
        for item in advice.check_case(given):
            assert "hf_abc" not in f"{item.message}{item.fix}{item.field}", rule
            assert "abcdef" not in f"{item.message}{item.fix}", rule


def test_the_ratio_is_clamped_to_the_node() -> None:
    facts = advice.Facts(node_cpus=96, node_memory=480_000, node_gpus=8)
    given = case("slurm", gpus_per_node="4", time="1h", facts=facts)
    item = next(item for item in advice.check_case(given) if item.rule == "gpu-ratio")
    after = item.applied(given).spec
    assert after.resources.cpus_per_task == 12  # half of the 96 cores, for 4 ranks
    assert after.resources.memory == 240_000 // 1024 * 1024
    whole = item.applied(case("slurm", gpus_per_node="8", time="1h"))
    assert whole.spec.resources.gpus_per_node == case("slurm", gpus_per_node="8").spec.resources.gpus_per_node


def test_the_ratio_without_facts_is_one_to_sixteen_to_sixty_four() -> None:
    given = case("slurm", gpus_per_node="h100:8", time="1h")
    after = advice.mended(given, [item for item in advice.check_case(given) if item.rule == "gpu-ratio"]).spec
    assert after.resources.cpus_per_task == 16
    assert after.resources.memory == 512 * 1024
    assert after.ranks_per_node == 8


def test_preprocess_is_put_before_and_runs_once() -> None:
    given = CASES["preprocess-missing"][0][0]
    item = next(item for item in advice.check_case(given) if item.rule == "preprocess-missing")
    first = item.applied(given).program.steps[0]
    assert (first.shell, first.runs) == ("axolotl preprocess train.yaml", Runs.HEAD)


def test_notes_of_the_backend_are_not_repeated() -> None:
    given = case("slurm", priority="TOP", network="ib")
    assert {"priority-ignored", "network-option", "time-missing"} <= set(said(given))
    assert not advice.check_case(given, beyond_notes=True)


def test_nearest_key_is_named() -> None:
    item = next(item for item in advice.check_case(CASES["axolotl-key"][0][0]) if item.rule == "axolotl-key")
    assert item.fix == "Did you mean learning_rate?"


# -- axolotl's schema --------------------------------------------------------------------


@pytest.fixture
def fake_axolotl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python with a package that has axolotl's name, and prints a banner."""
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "axolotl-0.99.dist-info").mkdir(parents=True)
    for folder in ("axolotl", "axolotl/utils", "axolotl/utils/schemas"):
        (packages / folder).mkdir()
        (packages / folder / "__init__.py").write_text("print('a banner { with braces }')\n")
    (packages / "pydantic.py").write_text("class BaseModel: pass\n")
    (packages / "axolotl/utils/schemas/config.py").write_text(
        "import pydantic\n"
        "class Field:\n"
        "    def __init__(self, annotation, alias=None):\n"
        "        self.annotation, self.alias, self.validation_alias = annotation, alias, alias\n"
        "class Data(pydantic.BaseModel):\n"
        "    model_config = {}\n"
        "    model_fields = {'path': Field(str)}\n"
        "class AxolotlInputConfig(pydantic.BaseModel):\n"
        "    model_config = {'extra': 'ignore'}\n"
        "    model_fields = {'type_of_model': Field(str, 'model_type'), 'datasets': Field(list[Data])}\n"
    )
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho run >>"{tmp_path}/runs"\nPYTHONPATH="{packages}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return python


def test_the_schema_is_asked_once_of_each_version(fake_axolotl: Path) -> None:
    assert axolotl_schema.find(str(fake_axolotl)) == fake_axolotl
    assert axolotl_schema.load(fake_axolotl, cached_only=True) is None
    schema = axolotl_schema.load(fake_axolotl)
    assert schema is not None
    assert axolotl_schema.load(fake_axolotl, cached_only=True) == schema
    assert axolotl_schema.load(fake_axolotl) == schema
    assert (fake_axolotl.parent.parent / "runs").read_text().count("run") == 1
    given = case("slurm", config={"model_type": "x", "datasets": [{"path": "d", "typ": "x"}]}, schema=schema)
    assert [item.field for item in advice.check_case(given) if item.rule == "axolotl-key"] == ["datasets.0.typ"]


def test_an_axolotl_that_does_not_answer_is_no_error(fake_axolotl: Path) -> None:
    (fake_axolotl.parent.parent / "lib/python3.11/site-packages/pydantic.py").write_text("raise ImportError\n")
    assert axolotl_schema.load(fake_axolotl) is None


def test_without_axolotl_there_is_no_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert axolotl_schema.find(None) is None


# -- the real axolotl ---------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_axolotl_drops_is_what_the_advice_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = axolotl_judge.python()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    schema = axolotl_schema.load(python)
    assert schema is not None
    config = {
        "base_model": "m",
        "model_type": "LlamaForCausalLM",
        "datasets": [{"path": "d", "type": "alpaca"}],
        "learning_rate": 1e-4,
        "learning_rat": 1e-4,
        "micro_batch_size": 1,
        "batch_sise": 2,
        "num_epochs": 1,
        "sequence_len": 128,
        "output_dir": "out",
    }
    dropped = sorted(config.keys() - axolotl_judge.kept(config).keys())
    given = case("slurm", config=config, schema=schema)
    named_keys = sorted(item.field for item in advice.check_case(given) if item.rule == "axolotl-key")
    assert named_keys == dropped == ["batch_sise", "learning_rat"]
