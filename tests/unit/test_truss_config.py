"""Configurations that we write for Baseten: built by the real truss, and told of field by field."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from clusterkernel.errors import SpecError
from clusterkernel.fields import build
from clusterkernel.formats import truss_config
from clusterkernel.formats.model import How, Mount, Program, Runs, Step
from clusterkernel.spec import Array, JobSpec, Stage
from tests.unit import truss_judge
from tests.unit.specs import kept, programs, specs

AXOLOTL = Program(
    config="train.yaml",
    steps=(
        Step(name="preprocess", shell="axolotl preprocess train.yaml", runs=Runs.HEAD),
        Step(name="train", shell="axolotl train train.yaml", runs=Runs.NODES, launched=True),
    ),
)
RUN = Program(steps=(Step(name="run", shell="python train.py --lr 1e-4"),))
WHOLE: dict[str, Any] = {
    "name": "llama-sft",
    "nodes": 2,
    "gpus_per_node": "h100:8",
    "cpus_per_task": 2,
    "memory": "512G",
    "time": "4h",
    "launcher": "torchrun",
    "env": ["NCCL_DEBUG=INFO", 'TEXT=a "b" $c'],
    "secrets": "HF_TOKEN",
    "image": "me/train:1",
    "priority": "10",
    "volumes": "data:/data",
}


def spec(**values: Any) -> JobSpec:
    array, stages = values.pop("array", None), values.pop("stages", ())
    made = build({"backend": "baseten", **values})
    return msgspec.structs.replace(made, array=Array(size=array) if array else None, stages=stages)


def told(wanted: JobSpec, program: Program = RUN) -> dict[str, Any]:
    return {row.field: row for row in truss_config.write(wanted, program).fields}


class _Definitions:
    """Stands for ``truss_train.definitions``: keeps what each object is given."""

    def __getattr__(self, name: str) -> Any:
        return lambda **given: {"": name, **given}


def values(wanted: JobSpec, program: Program = RUN) -> dict[str, Any]:
    """What the file builds, without truss."""
    text = truss_config.write(wanted, program).text
    assert "from truss_train import definitions\n" in text
    names: dict[str, Any] = {"definitions": _Definitions()}
    exec(compile(text.replace("from truss_train import definitions", ""), "config.py", "exec"), names)
    return names


def script(wanted: JobSpec, program: Program = RUN) -> str:
    return str(values(wanted, program)["SCRIPT"])


# -- what it holds ------------------------------------------------------------------------


def test_it_holds_what_was_asked_for() -> None:
    found = values(spec(**WHOLE), AXOLOTL)
    job = found["project"]["job"]
    assert found["project"]["name"] == "llama-sft"
    assert job["compute"] == {
        "": "Compute",
        "node_count": 2,
        "cpu_count": 16,
        "memory": "512Gi",
        "accelerator": "H100:8",
    }
    assert (job["priority"], job["image"]["base_image"]) == (10, "me/train:1")
    variables = job["runtime"]["environment_variables"]
    assert variables == {
        "NCCL_DEBUG": "INFO",
        "TEXT": 'a "b" $c',
        "HF_TOKEN": {"": "SecretReference", "name": "HF_TOKEN"},
    }
    assert job["runtime"]["cache_config"]["enabled"] is True
    [command] = job["runtime"]["start_commands"]
    words = shlex.split(command)
    assert words[:6] == ["timeout", "--kill-after=60", "14400", "/bin/bash", "-c", found["SCRIPT"]]


def test_nodes_meet_at_the_leader() -> None:
    text = script(spec(**WHOLE), AXOLOTL)
    for part in (
        "--nnodes=$BT_GROUP_SIZE",
        "--node_rank=$BT_NODE_RANK",
        "--rdzv_id=$BT_TRAINING_JOB_ID",
        "--master_addr=$BT_LEADER_ADDR",
        "--master_port=29400",
        'if [ "$BT_NODE_RANK" = 0 ]; then',
    ):
        assert part in text


def test_results_are_written_where_they_are_kept() -> None:
    assert '--output-dir="$BT_CHECKPOINT_DIR"' in script(spec(), AXOLOTL)
    row = told(spec(), AXOLOTL)["program.steps.1"]
    assert (row.how, "lost" in row.reason) == (How.CHANGED, True)
    own = Program(steps=(Step(name="train", shell="axolotl train t.yaml --output_dir /data/o", launched=True),))
    assert "BT_CHECKPOINT_DIR" not in script(spec(), own)
    assert "BT_CHECKPOINT_DIR" not in script(spec())


def test_a_volume_is_a_folder_of_the_cache(tmp_path: Path) -> None:
    mount = tmp_path / "data"
    wanted = spec(volumes=f"data:{mount}")
    program = Program(steps=(Step(name="run", shell=f"echo 1 >{mount}/x"),))
    environ = {**os.environ, "BT_PROJECT_CACHE_DIR": str(tmp_path / "the cache")}
    for _ in range(2):
        subprocess.run(["bash", "-c", script(wanted, program)], check=True, env=environ, timeout=60)
    assert (tmp_path / "the cache" / "data" / "x").read_text() == "1\n"


def test_the_time_limit_ends_the_script(tmp_path: Path) -> None:
    program = Program(steps=(Step(name="run", shell="sleep 60 & wait"),))
    [command] = values(spec(time="1s"), program)["runtime"]["start_commands"]
    done = subprocess.run(shlex.split(command), check=False, timeout=50)
    assert done.returncode == 124


# -- what is refused, and what is told -------------------------------------------------------


@pytest.mark.parametrize(
    ("given_values", "message"),
    [
        ({"gpus_per_node": "mi300x:8"}, "no GPU mi300x"),
        ({"gpus_per_node": "h100:16"}, "at most 8 GPUs"),
        ({"array": 4}, "no arrays"),
    ],
)
def test_limits_are_refused(given_values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        truss_config.write(spec(**given_values), RUN)


def test_a_program_that_says_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="does not say what is run"):
        truss_config.write(spec(), Program())


@pytest.mark.parametrize(
    ("given_values", "field", "how", "value"),
    [
        ({"time": "1h"}, "time", How.CHANGED, "timeout 3600"),
        ({"attempts": 3}, "attempts", How.DROPPED, ""),
        ({"gpus_per_node": "8"}, "gpus_per_node", How.CHANGED, "H100:8"),
        ({"gpus_per_node": "a100-40gb:8"}, "gpus_per_node", How.EXACT, "A100_40GB:8"),
        ({"gpus_per_node": "a100-80gb:8"}, "gpus_per_node", How.CHANGED, "A100:8"),
        ({"priority": "TOP"}, "priority", How.DROPPED, ""),
        ({"memory_limit": "8G"}, "memory_limit", How.DROPPED, ""),
        ({"name": "my job"}, "name", How.CHANGED, "my-job"),
        ({"workdir": "~/x"}, "workdir", How.CHANGED, "."),
        ({"workdir": "/d/x", "volumes": "d:/d"}, "workdir", How.EXACT, "/d/x"),
        ({"files": "/etc/hosts"}, "files./etc/hosts", How.DROPPED, ""),
        ({}, "memory", How.ASSUMED, "2Gi"),
        ({}, "cpus_per_task", How.ASSUMED, "1"),
    ],
)
def test_changes_are_told(given_values: dict[str, Any], field: str, how: How, value: str) -> None:
    row = told(spec(**given_values))[field]
    assert (row.how, row.value) == (how, value)
    assert row.how is How.EXACT or row.reason.endswith(".")


def test_stages_and_mounts_are_dropped() -> None:
    wanted = spec(stages=(Stage(name="preprocess", memory=1024),))
    program = msgspec.structs.replace(AXOLOTL, mounts=(Mount("/scratch", "/scratch"),))
    rows = told(wanted, program)
    assert rows["stages.preprocess.memory"].how is How.DROPPED
    assert rows["program.mounts.0"].how is How.DROPPED


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs(), programs())
def test_every_file_compiles_and_every_field_is_told_of(wanted: JobSpec, program: Program) -> None:
    try:
        written = truss_config.write(wanted, program)
    except SpecError as error:
        assert error.hint  # noqa: PT017 -- one of the limits above
        return
    ast.parse(written.text)
    fields = {row.field for row in written.fields}
    for field in kept(wanted, program):
        parts = field.split(".")
        assert any(".".join(parts[:end]) in fields for end in range(1, len(parts) + 1)), field


# -- the real truss ------------------------------------------------------------------------


@pytest.fixture(scope="session")
def truss_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with truss, whose pins do not go with those of the test environment.

    ``CLUSTERKERNEL_TRUSS_PYTHON`` names one that is there already.
    """
    if given_python := os.environ.get("CLUSTERKERNEL_TRUSS_PYTHON"):
        return given_python
    folder = tmp_path_factory.mktemp("truss")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    python = str(folder / "bin" / "python")
    project = Path(__file__).resolve().parents[2]
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "pip>=25.1"], check=True, timeout=300)
    subprocess.run([*pip, "--group", f"{project / 'pyproject.toml'}:truss"], check=True, timeout=900)
    return python


def judged(python: str, *paths: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [python, truss_judge.__file__, *map(str, paths)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.xdist_group("truss")
def test_truss_builds_what_was_asked_for(truss_python: str, tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_text(truss_config.write(spec(**WHOLE), AXOLOTL).text)
    [found] = judged(truss_python, path)
    job = found["job"]
    assert found["name"] == "llama-sft"
    assert job["compute"]["accelerator"] == {"accelerator": "H100", "count": 8}
    assert (job["compute"]["node_count"], job["compute"]["cpu_count"], job["compute"]["memory"]) == (2, 16, "512Gi")
    assert job["runtime"]["environment_variables"]["HF_TOKEN"] == {"name": "HF_TOKEN"}
    assert job["runtime"]["checkpointing_config"]["enabled"] is True
    assert job["runtime"]["cache_config"]["enabled"] is True
    assert job["image"]["base_image"] == "me/train:1"
    assert job["priority"] == 10


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.xdist_group("truss")
def test_truss_builds_every_file(truss_python: str, tmp_path: Path) -> None:
    paths: list[Path] = []

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(specs(), programs())
    def write(wanted: JobSpec, program: Program) -> None:
        try:
            written = truss_config.write(wanted, program)
        except SpecError:
            return
        paths.append(tmp_path / f"config{len(paths)}.py")
        paths[-1].write_text(written.text)

    write()
    assert len(judged(truss_python, *paths)) == len(paths) > 10


@pytest.mark.full
@pytest.mark.timeout(1500)
@pytest.mark.xdist_group("truss")
def test_truss_refuses_what_it_does_not_know(truss_python: str, tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_text(truss_config.write(spec(**WHOLE), RUN).text.replace("cpu_count=", "cpus="))
    with pytest.raises(AssertionError, match="cpus"):
        judged(truss_python, path)
