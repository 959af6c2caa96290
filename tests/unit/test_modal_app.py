"""Modal apps that we write: imported under the real client, which says what their functions declare."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkernel.errors import SpecError
from clusterkernel.fields import build
from clusterkernel.formats.modal import app as modal_app
from clusterkernel.formats.model import How, Mount, Program, Runs, Step
from clusterkernel.spec import Array, JobSpec, Stage
from tests.unit import modal_judge
from tests.unit.specs import kept, programs, specs

AXOLOTL = Program(
    config="train.yaml",
    steps=(
        Step(name="preprocess", shell="axolotl preprocess train.yaml", runs=Runs.HEAD),
        Step(name="train", shell="axolotl train train.yaml", runs=Runs.NODES, launched=True),
    ),
)
RUN = Program(steps=(Step(name="run", shell="python train.py --lr 1e-4"),))


def spec(**values: Any) -> JobSpec:
    array, stages = values.pop("array", None), values.pop("stages", ())
    made = build({"backend": "modal", **values})
    return msgspec.structs.replace(made, array=Array(size=array) if array else None, stages=stages)


def told(wanted: JobSpec, program: Program = RUN) -> dict[str, Any]:
    return {row.field: row for row in modal_app.write(wanted, program).fields}


Judge = Callable[[Path], dict[str, Any]]


@pytest.fixture
def declared(tmp_path: Path, judged: Judge) -> Any:
    """Writes an app, imports it under the real client in a process of its own, and gives what it declares."""

    def declare(wanted: JobSpec, program: Program = RUN) -> dict[str, Any]:
        path = tmp_path / "app.py"
        path.write_text(modal_app.write(wanted, program).text)
        return judged(path)

    return declare


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """The real client, imported once. The test environment has it: without it this fails, and is not skipped."""
    folder = tmp_path_factory.mktemp("judge")
    errors = folder / "errors"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", modal_judge.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "MODAL_CONFIG_PATH": str(folder / "none.toml")},
        )

    def judge(path: Path) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n")
        process.stdin.flush()
        first = process.stdout.readline()
        assert first.startswith("{"), errors.read_text()
        assert process.stdout.readline() == "0\n", errors.read_text()
        found: dict[str, Any] = json.loads(first)
        return found

    with process:
        yield judge
        assert process.stdin is not None
        process.stdin.close()


# -- what is declared ---------------------------------------------------------------------


def test_a_function_declares_what_was_asked_for(declared: Any) -> None:
    found = declared(
        spec(
            name="llama-sft",
            gpus_per_node="h100:8",
            cpus_per_task=2,
            memory="512G",
            memory_limit="600G",
            time="4h",
            attempts=3,
            backoff="30s",
            region="us-east",
            ephemeral_disk="1T",
            env=["NCCL_DEBUG=INFO", 'TEXT=a "quoted" $one'],
            secrets="HF_TOKEN,WANDB_API_KEY",
            volumes="data:/data,out:/out",
            image="me/train:1",
            launcher="torchrun",
        ),
        Program(steps=(Step(name="train", shell="train.py", runs=Runs.NODES, launched=True),)),
    )
    assert (found["name"], found["entry"], list(found["functions"])) == ("llama-sft", True, ["train"])
    train = found["functions"]["train"]
    assert (train["gpu"], train["cpu"], train["memory"]) == ("H100:8", 16.0, [524_288, 614_400])
    assert (train["timeout"], train["region"], train["ephemeral_disk"]) == (14_400, "us-east", 1_048_576)
    assert train["retries"] == {"max_retries": 2, "initial_delay": 30.0, "backoff": 1.0}
    assert set(train["volumes"]) == {"/data", "/out"}
    assert "modal.Volume.from_name('data'" in train["volumes"]["/data"]
    assert "HF_TOKEN" in str(train["secrets"])
    assert "WANDB_API_KEY" in str(train["secrets"])
    assert len(train["secrets"]) == 3  # and the variables, which the client makes one of
    assert train["cluster_size"] is None


def test_several_nodes_are_a_cluster(declared: Any) -> None:
    found = declared(spec(nodes=2, gpus_per_node="h100:8", network="ib", launcher="torchrun"), AXOLOTL)
    train = found["functions"]["train"]
    assert (train["cluster_size"], train["rdma"], train["gpu"]) == (2, True, "H100:8")
    assert "--node_rank=$CK_RANK" in found["scripts"]["SCRIPT"]
    assert "--master_addr=$CK_HEAD" in found["scripts"]["SCRIPT"]


def test_without_a_time_it_is_not_modals_five_minutes(declared: Any) -> None:
    assert declared(spec())["functions"]["run"]["timeout"] == 86_400
    assert told(spec())["time"].how is How.ASSUMED


def test_a_first_step_with_needs_of_its_own_is_a_function(declared: Any) -> None:
    stage = Stage(name="preprocess", cpus_per_task=8, memory=65_536, time=3600)
    found = declared(spec(gpus_per_node="h100:8", volumes="data:/data", stages=(stage,)), AXOLOTL)
    first, second = found["functions"]["preprocess"], found["functions"]["train"]
    assert (first["cpu"], first["memory"], first["timeout"]) == (8.0, 65_536, 3600)
    assert first.get("gpu") is None
    assert second["gpu"] == "H100:8"
    assert "axolotl preprocess" in found["scripts"]["PREPROCESS"]
    assert "axolotl preprocess" not in found["scripts"]["SCRIPT"]


def test_a_first_step_of_more_than_a_day_is_told_as_changed(declared: Any) -> None:
    stage = Stage(name="preprocess", time=2 * 86_400)
    wanted = spec(gpus_per_node="h100:8", volumes="data:/data", stages=(stage,))
    assert declared(wanted, AXOLOTL)["functions"]["preprocess"]["timeout"] == 86_400
    row = told(wanted, AXOLOTL)["stages.preprocess.time"]
    assert (row.how, row.value, row.reason) == (How.CHANGED, "86400", "Modal's longest run is 24 hours.")
    short = spec(gpus_per_node="h100:8", volumes="data:/data", stages=(Stage(name="preprocess", time=86_400),))
    assert told(short, AXOLOTL)["stages.preprocess.time"].how is How.EXACT


def test_of_several_nodes_one_function_prepares_where_there_is_a_volume(declared: Any) -> None:
    wanted = spec(nodes=2, gpus_per_node="h100:8", volumes="data:/data", launcher="torchrun")
    assert list(declared(wanted, AXOLOTL)["functions"]) == ["preprocess", "train"]
    alone = spec(nodes=2, gpus_per_node="h100:8", launcher="torchrun")
    assert list(declared(alone, AXOLOTL)["functions"]) == ["train"]
    assert "no files in common" in told(alone, AXOLOTL)["program.steps.0"].reason


def test_an_array_is_a_map(declared: Any, tmp_path: Path) -> None:
    shell = "python train.py --task $SLURM_ARRAY_TASK_ID"
    wanted = spec(array=20, parallelism=4)
    found = declared(wanted, Program(steps=(Step(name="run", shell=shell),)))
    assert found["functions"]["run"]["max_containers"] == 4
    assert "export SLURM_ARRAY_TASK_ID=$CK_TASK" in found["scripts"]["SCRIPT"]
    assert ".map(range(20), return_exceptions=True)" in (tmp_path / "app.py").read_text()


def test_the_folder_of_the_app_comes_along(declared: Any, tmp_path: Path) -> None:
    declared(spec(workdir="~/project"))
    text = (tmp_path / "app.py").read_text()
    assert 'image.add_local_dir(".", "/root/work"' in text
    assert told(spec(workdir="~/project"))["workdir"].how is How.CHANGED
    declared(spec(workdir="/data/p", volumes="data:/data"))
    assert "add_local" not in (tmp_path / "app.py").read_text()
    assert told(spec(workdir="/data/p", volumes="data:/data"))["workdir"].how is How.EXACT


def test_named_files_come_along(declared: Any, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "data.csv").write_text("1")
    (tmp_path / "train.yaml").write_text("a: 1")
    assert declared(spec(files="src,data.csv"), AXOLOTL)["scripts"]["FILES"] == ["src", "data.csv", "train.yaml"]


def test_names_of_steps_do_not_hide_those_of_the_file(declared: Any) -> None:
    for name in ("modal", "app", "main", "image", "os", "class", "x y"):
        found = declared(spec(), Program(steps=(Step(name=name, shell="python a.py"),)))
        assert len(found["functions"]) == 1
        assert found["entry"]


@pytest.mark.parametrize("text", ['"""', "'''", "\\", 'a\\"b', "end\\", "tab\there", "ünï", "{}", "%s"])
def test_any_script_survives(declared: Any, text: str) -> None:
    found = declared(spec(), Program(steps=(Step(name="run", shell=f"echo {text}"),)))
    assert f"echo {text}" in found["scripts"]["SCRIPT"]


# -- what it runs -------------------------------------------------------------------------


def load(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The app as a module of this process, with a work folder that is there."""
    work = tmp_path / "work"
    work.mkdir()
    path = tmp_path / "local_app.py"
    path.write_text(text.replace('WORK = "/root/work"', f"WORK = {str(work)!r}").replace("/root/work", str(work)))
    found = importlib.util.spec_from_file_location("local_app", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "local_app", module)
    found.loader.exec_module(module)
    return module


def test_the_script_runs_and_its_failure_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(steps=(Step(name="run", shell='echo "$TASK $CK_TASK" >out; exit "$CODE"'),))
    module = load(modal_app.write(spec(), program).text, tmp_path, monkeypatch)
    module.VOLUMES["/data"] = kept_volume = _Volume()
    module._run(module.SCRIPT, TASK="1", CODE="0", CK_TASK="7")
    assert (tmp_path / "work" / "out").read_text() == "1 7\n"
    assert kept_volume.commits == 1
    with pytest.raises(RuntimeError, match="exit code 3"):
        module._run(module.SCRIPT, CODE="3")
    assert kept_volume.commits == 2  # also what a failed run left


class _Volume:
    def __init__(self) -> None:
        self.commits = 0

    def commit(self) -> None:
        self.commits += 1


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpus_per_node": "h100:9"}, "at most 8 H100"),
        ({"gpus_per_node": "a10:8"}, "at most 4 A10"),
        ({"gpus_per_node": "16"}, "at most 8 GPUs"),
        ({"gpus_per_node": "h10"}, "no GPU h10. Did you mean h100?"),
        ({"nodes": 2}, "none are asked for"),
        ({"nodes": 2, "gpus_per_node": "h100:4"}, "all GPUs of their host, 8"),
        ({"nodes": 33, "gpus_per_node": "h100:8"}, "at most 32 nodes"),
        ({"ephemeral_disk": "4T"}, "more than Modal gives"),
        ({"volumes": "x:/root"}, "mounts nothing at /root"),
        ({"volumes": "x:/tmp/"}, "mounts nothing at /tmp/"),
    ],
)
def test_limits_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        modal_app.write(spec(**values), RUN)
    assert message in str(error.value)
    assert error.value.hint


def test_a_program_that_says_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="does not say what is run"):
        modal_app.write(spec(), Program())


@pytest.mark.parametrize(
    ("values", "field", "how", "value"),
    [
        ({"time": "3d"}, "time", How.CHANGED, "86400"),
        ({"attempts": 30}, "attempts", How.CHANGED, "10"),
        ({"attempts": 2, "backoff": "10m"}, "backoff", How.CHANGED, "60 s"),
        ({"backoff": "10s"}, "backoff", How.DROPPED, ""),
        ({"gpus_per_node": "4"}, "gpus_per_node", How.CHANGED, "H100:4"),
        ({"gpus_per_node": "a10g:2"}, "gpus_per_node", How.CHANGED, "A10:2"),
        ({"gpus_per_node": "a100-80gb:2"}, "gpus_per_node", How.EXACT, "A100-80GB:2"),
        ({"ephemeral_disk": "100G"}, "ephemeral_disk", How.CHANGED, "512G"),
        ({"requeue": False}, "requeue", How.DROPPED, ""),
        ({"requeue": True}, "requeue", How.EXACT, "Modal starts again what it pre-empted"),
        ({"partition": "gpu"}, "partition", How.DROPPED, ""),
        ({"zone": "a"}, "zone", How.DROPPED, ""),
        ({"name": "my job!"}, "name", How.CHANGED, "my-job"),
        ({"memory_limit": "8G"}, "memory", How.ASSUMED, "8192"),
        ({"tags": "a,b c"}, "tags.b c", How.DROPPED, ""),
        ({"volumes": "my data:/d"}, "volumes.my data", How.CHANGED, "my-data"),
    ],
)
def test_changes_are_told(values: dict[str, Any], field: str, how: How, value: str) -> None:
    row = told(spec(**values))[field]
    assert (row.how, row.value) == (how, value)
    assert row.how is How.EXACT or row.reason.endswith(".")


def test_mounts_of_the_cluster_are_dropped() -> None:
    program = msgspec.structs.replace(RUN, mounts=(Mount("/scratch", "/scratch"),))
    assert told(spec(), program)["program.mounts.0"].how is How.DROPPED


# -- all of it ----------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs(), programs())
def test_every_app_compiles_and_every_field_is_told_of(wanted: JobSpec, program: Program) -> None:
    try:
        written = modal_app.write(wanted, program)
    except SpecError as error:
        assert error.hint  # noqa: PT017 -- one of the limits above
        return
    ast.parse(written.text)
    fields = {row.field for row in written.fields}
    for field in kept(wanted, program):
        parts = field.split(".")
        assert any(".".join(parts[:end]) in fields for end in range(1, len(parts) + 1)), field
    for row in written.fields:
        assert row.how is How.EXACT or row.reason.endswith("."), row


@pytest.mark.full
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(wanted=specs(nodes=st.sampled_from([1, 1, 2])), program=programs())
def test_every_app_imports(
    wanted: JobSpec, program: Program, judged: Judge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        written = modal_app.write(wanted, program)
    except SpecError:
        return
    path = tmp_path_factory.mktemp("app") / "app.py"
    for name in wanted.environment.files:
        (path.parent / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name.lstrip("/")).write_text("")
    path.write_text(written.text)
    assert judged(path)["entry"]
