"""axolotl's cloud YAML and our own profiles: every key, what is not one, and what is written."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
import yaml

from clusterkernel.errors import ClusterKernelError, FormatError
from clusterkernel.fields import build
from clusterkernel.formats import profile_toml
from clusterkernel.formats.cloud import keys as cloud_keys
from clusterkernel.formats.cloud import reader as cloud_yaml
from clusterkernel.formats.cloud import writer as cloud_writer
from clusterkernel.formats.convert import convert
from clusterkernel.formats.model import Format, How, Parsed, Program, Runs, SourceField, Step
from clusterkernel.spec import JobSpec, Launcher, Stage, Volume
from clusterkernel.units import GpuRequest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEY = "hf_" + "abcdefghijklmnopqrstuvwx"
EVERY_MODAL = """\
# axolotl preprocess c.yml --cloud modal.yaml
# axolotl train c.yml --launcher accelerate --cloud modal.yaml
provider: modal
project_name: tune
volumes:
  - name: data
    mount: /workspace/data
secrets:
  - HF_TOKEN
  - WANDB_API_KEY: something
env:
  - NCCL_DEBUG: INFO
  - FROM_SHELL
branch: main
docker_tag: main-py3.11-cu128-2.9.1
dockerfile_commands:
  - RUN pip install x
  - COPY a b
gpu: a100-80gb
gpu_count: 2
node_count: 2
memory: 256
memory_preprocess: 32
timeout: 43200
timeout_preprocess: 14400
spawn: true
"""


def test_a_value_in_a_list_of_names_is_told_how_to_write_it() -> None:
    with pytest.raises(FormatError, match=r"line 2: env\[0\] = .*Write - WANDB_PROJECT: VALUE\.") as caught:
        read("provider: modal\nenv:\n  - WANDB_PROJECT=hidden\n")
    assert "hidden" not in str(caught.value)


def read(text: str, **values: str) -> Parsed:
    return cloud_yaml.read(text, name="modal.yaml", values=values)


def row(found: Parsed, key: str) -> SourceField:
    return next(field for field in found.fields if field.key == key)


# -- reading ------------------------------------------------------------------------------------


def test_every_key_of_the_modal_file() -> None:
    found = read(EVERY_MODAL)
    spec, environment = found.spec, found.spec.environment
    assert (found.format, spec.backend, spec.name, spec.launcher) == (
        Format.MODAL_YAML,
        "modal",
        "tune",
        Launcher.ACCELERATE,
    )
    assert spec.resources.gpus_per_node == GpuRequest(2, "a100-80gb")
    assert (spec.resources.nodes, spec.resources.memory, spec.resources.cpus_per_task) == (1, 256 * 1024, 8)
    assert spec.schedule.time == 43200
    assert spec.stages == (Stage(name="preprocess", memory=32 * 1024, time=14400),)
    assert spec.storage.volumes == (Volume(name="data", mount="/workspace/data"),)
    assert environment.secrets == ("HF_TOKEN", "WANDB_API_KEY")
    assert environment.env == {"NCCL_DEBUG": "INFO"}
    assert environment.image == "axolotlai/axolotl:main-py3.11-cu128-2.9.1"
    assert environment.setup == ("pip install x",)
    assert found.program.config == "c.yml"
    assert [step.name for step in found.program.steps] == ["preprocess", "train"]
    assert found.program.options == {"axolotl": ("branch=main",)}
    told = {field.key: field for field in found.fields}
    assert set(cloud_keys.KNOWN) <= {key.partition("[")[0] for key in told}
    lines = EVERY_MODAL.splitlines()
    for field in found.fields:
        if field.line is not None and not field.key.startswith(("axolotl", "--launcher")):
            assert lines[field.line - 1].startswith(field.key.partition("[")[0] + ":")
    dropped = {key for key, field in told.items() if field.how is How.DROPPED}
    assert dropped == {"env[1]", "dockerfile_commands[1]", "node_count", "spawn"}
    assert "something" not in repr(found)


def test_defaults_of_axolotl_are_named() -> None:
    found = read("gpu: h100\n")
    assumed = {field.key: field.value for field in found.fields if field.how is How.ASSUMED}
    assert assumed == {
        "provider": "modal",
        "gpu_count": "1",
        "memory": "128 GiB",
        "timeout": "86400 s",
        "cpu": "16",
        "axolotl train": "train.yaml",
        "--launcher": "torchrun",
    } | {"axolotl train": "axolotl train train.yaml"}
    assert found.spec.resources.memory == 128 * 1024
    assert read("secrets: [A]\n").spec.resources.gpus_per_node == GpuRequest(1, "l40s")


def test_the_configuration_and_variables_may_be_given() -> None:
    found = read("gpu: h100\nenv: [A]\n", CONFIG="x/y.yml", A="1")
    assert found.program.config == "x/y.yml"
    assert found.program.steps == (Step(name="train", shell="axolotl train x/y.yml", runs=Runs.NODES, launched=True),)
    assert found.spec.environment.env == {"A": "1"}


def test_baseten_takes_what_axolotl_passes_on() -> None:
    found = cloud_yaml.read(
        "provider: baseten\nproject_name: p\ngpu: a100\ngpu_count: 8\nnode_count: 2\nmemory: 512\nvolumes: []\n",
        name="baseten.yaml",
    )
    spec = found.spec
    assert (found.format, spec.backend, spec.name) == (Format.BASETEN_YAML, "baseten", "p")
    assert (spec.resources.nodes, spec.resources.gpus_per_node) == (2, GpuRequest(8, "h100"))
    assert (spec.resources.memory, spec.schedule.time) == (None, None)
    assert row(found, "gpu").how is How.CHANGED
    assert row(found, "memory").reason == cloud_keys.IGNORED["memory"]
    assert row(found, "volumes").how is How.DROPPED


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("gpu_cout", "Did you mean gpu_count?"),
        ("restart_policy", "--attempts"),
        ("cpu_count", "--cpus-per-task"),
        ("num_nodes", "node_count"),
        ("zzz", "ignores it."),
        ("3", "ignores it."),
    ],
)
def test_unknown_keys_are_dropped_with_the_nearest_known_name(key: str, hint: str) -> None:
    found = row(read(f"gpu: h100\n{key}: {{type: x, password: y}}\n"), key)
    assert (found.how, found.field, found.line) == (How.DROPPED, None, 2)
    assert hint in found.reason


def test_a_secret_in_the_clear_becomes_a_name() -> None:
    found = read(f"gpu: h100\nsecrets:\n  - HF_TOKEN: {KEY}\nenv:\n  - API_KEY: abcdef\n  - X: {KEY}\nmy_token: ghi\n")
    assert found.spec.environment.secrets == ("HF_TOKEN", "API_KEY", "X")
    assert found.spec.environment.env == {}
    for secret in (KEY, "abcdef", "ghi"):
        assert secret not in repr(found)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("gpu: h100\ngpu_count: many\n", 2, "gpu_count = 'many' is no whole number"),
        ("gpu: h100\ngpu_count: 0\n", 2, "gpu_count"),
        ("gpu: h100\ngpu_count: 1.5\n", 2, "gpu_count"),
        ("gpu: h100\ngpu_count: true\n", 2, "gpu_count"),
        ("gpu: [h100]\n", 1, "gpu"),
        ("gpu: 'h 100'\n", 1, "no GPU"),
        ("gpu: h100\n\nmemory: 64G\n", 3, "memory = '64G'"),
        ("gpu: h100\ntimeout: -1\n", 2, "timeout"),
        ("gpu: h100\nvolumes: data\n", 2, "no list"),
        ("gpu: h100\nvolumes: [{name: a}]\n", 2, "no volume"),
        ("gpu: h100\nvolumes: [{name: a, mount: b}]\n", 2, "no volume"),
        ("gpu: h100\nsecrets: HF_TOKEN\n", 2, "no list"),
        ("gpu: h100\nsecrets: [a b]\n", 2, "no variable"),
        ("gpu: h100\nenv: [[1]]\n", 2, "no variable"),
        ("gpu: h100\nprovider: aws\n", 2, "no provider"),
        ("gpu: h100\ndocker_tag: a/b\n", 2, "no tag"),
        ("gpu: h100\ndockerfile_commands: [1]\n", 2, "Dockerfile"),
        ("gpu: h100\nbranch: ''\n", 2, "no line of text"),
    ],
)
def test_wrong_types_name_the_file_and_the_line(text: str, line: int, why: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(text)
    assert str(caught.value).startswith(f"modal.yaml, line {line}: ")
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- a\n",
        "h100\n",
        "gpu: [h100\n",
        "gpu: h100\n\tmemory: 1\n",
        "gpu: !!python/object/apply:os.system [exit]\n",
        "a: &a [*a]\n",
        "gpu: " + "[" * 100,
        "gpu: " + "9" * 5000,
        "gpu: 2024-13-45\n",
        "\x00",
    ],
)
def test_what_is_no_cloud_file_is_one_line(text: str) -> None:
    with pytest.raises(ClusterKernelError) as caught:
        read(text)
    assert str(caught.value).startswith("modal.yaml")
    assert "\n" not in str(caught.value)


def test_keys_that_are_set_twice_are_told() -> None:
    found = read("gpu: h100\ngpu: a100\n")
    assert found.spec.resources.gpus_per_node == GpuRequest(1, "a100")
    assert any("set on line 1 and again on line 2" in field.reason for field in found.fields)


# -- writing ------------------------------------------------------------------------------------


def written(to: str, values: dict[str, Any], program: Program | None = None) -> tuple[dict[str, Any], Any]:
    spec = build(values)
    done = (cloud_writer.write_modal if to == "modal" else cloud_writer.write_baseten)(spec, program or Program())
    return yaml.safe_load(done.text), {field.field: field for field in done.fields}


def test_a_modal_file_holds_only_keys_that_axolotl_reads() -> None:
    document, fields = written(
        "modal",
        {
            "name": "tune",
            "nodes": 2,
            "gpus_per_node": "h200:8",
            "memory": "1500M",
            "time": "2h",
            "cpus_per_task": 4,
            "env": {"A": "1", "HF_TOKEN": KEY},
            "secrets": "WANDB_API_KEY",
            "image": "axolotlai/axolotl:main-latest",
            "setup": ["pip install x", "module load y"],
            "volumes": "data:/data",
            "partition": "gpu",
        },
    )
    assert set(document) <= cloud_keys.KNOWN
    assert KEY not in str(document)
    assert document["secrets"] == ["WANDB_API_KEY", "HF_TOKEN"]
    assert (document["gpu"], document["gpu_count"], document["memory"]) == ("h100", 8, 2)
    assert document["dockerfile_commands"] == ["RUN pip install x"]
    assert document["docker_tag"] == "main-latest"
    ways = {name: field.how for name, field in fields.items()}
    assert ways["nodes"] is How.DROPPED
    assert ways["partition"] is How.DROPPED
    assert ways["setup.1"] is How.DROPPED
    assert ways["gpus_per_node"] is How.CHANGED
    assert ways["memory"] is How.CHANGED
    assert ways["cpus_per_task"] is How.DROPPED
    assert ways["time"] is How.EXACT


def test_what_a_modal_file_cannot_hold_is_told_as_changed() -> None:
    stage = Stage(name="preprocess", memory=1500, time=2 * 86_400)
    spec = msgspec.structs.replace(build({"gpus_per_node": "h100:8", "time": "3d"}), stages=(stage,))
    done = cloud_writer.write_modal(spec, Program())
    document, fields = yaml.safe_load(done.text), {field.field: field for field in done.fields}
    assert (document["timeout"], document["timeout_preprocess"], document["memory_preprocess"]) == (86_400, 86_400, 2)
    for name in ("time", "stages.preprocess.time", "stages.preprocess.memory"):
        assert fields[name].how is How.CHANGED
        assert fields[name].reason.endswith(".")


def test_a_baseten_file_holds_only_keys_that_axolotl_reads() -> None:
    document, fields = written("baseten", {"nodes": 2, "gpus_per_node": "h100:8", "memory": "512G", "secrets": "A_B"})
    assert document == {"provider": "baseten", "secrets": ["A_B"], "gpu": "h100", "gpu_count": 8, "node_count": 2}
    assert fields["memory"].how is How.DROPPED
    assert fields["nodes"].how is How.CHANGED
    assert "do not meet" in fields["nodes"].reason


def test_overrides_behind_the_configuration_are_said_to_be_lost() -> None:
    done = convert("#!/bin/bash\naxolotl train c.yml --learning-rate 1e-4\n", "modal-yaml")
    assert done.text.startswith("# axolotl train c.yml --launcher accelerate --cloud modal.yaml\n")
    rows = {row.source: row for row in done.rows}
    assert rows["command"].how is How.CHANGED
    assert "write it into the configuration" in rows["command"].reason


def test_a_modal_file_comes_back_as_it_was() -> None:
    first = read(EVERY_MODAL)
    text = cloud_writer.write_modal(first.spec, first.program).text
    again = read(text)
    assert (again.spec, again.program) == (first.spec, first.program)


# -- profiles -----------------------------------------------------------------------------------

PROFILES = f"""\
[profiles.default]
time = "1h"
account = "lab"

[profiles.h100]
backend = "slurm"
nodes = 2
gpus = 16
time = "4h"
setup = ["module load cuda", "ulimit -n 65535"]
sbatch = ["--mail-type=END", "--exclude=n1"]
volumes = ["data:/data"]
max_nodes = 5

[profiles.h100.env]
A = "1"
HF_TOKEN = "{KEY}"
"""


def profile(text: str, **values: str) -> Parsed:
    return profile_toml.read(text, name="profiles.toml", values=values)


def test_a_profile_is_read_on_top_of_the_default_one() -> None:
    found = profile(PROFILES)
    spec = found.spec
    assert (spec.resources.nodes, spec.resources.gpus_per_node) == (2, GpuRequest(8))
    assert (spec.schedule.time, spec.schedule.account) == (4 * 3600, "lab")
    assert spec.extra == {"slurm": ("--mail-type=END", "--exclude=n1")}
    assert (spec.environment.env, spec.environment.secrets) == ({"A": "1"}, ("HF_TOKEN",))
    assert KEY not in repr(found)
    assert found.program == Program()
    dropped = row(found, "max_nodes")
    assert (dropped.how, dropped.line) == (How.DROPPED, 13)
    assert "Did you mean" in dropped.reason
    assert [(field.line, field.field) for field in found.fields if field.key == "time"] == [(2, None), (9, "time")]
    assert row(found, "env.HF_TOKEN").value == "***"
    assert {field.line for field in found.fields} == {2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 15}


def test_one_of_several_profiles_has_to_be_named() -> None:
    text = PROFILES + "\n[profiles.cpu]\nnodes = 1\n"
    with pytest.raises(FormatError, match=r"several profiles: h100, cpu\..*PROFILE"):
        profile(text)
    assert profile(text, PROFILE="cpu").spec.resources.nodes == 1
    with pytest.raises(FormatError, match=r"no profile 'cpus'\. Did you mean cpu\?"):
        profile(text, PROFILE="cpus")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no profiles"),
        ("[profiles]\na = 1\n", "has no profiles"),
        ("[profiles.a\n", "line 1: it is no valid TOML"),
        ("[profiles.a]\n\nnodes = \n", "line 3: it is no valid TOML"),
        ("[profiles.a]\nnodes = " + "9" * 5000, "line 2: it is no valid TOML"),
        ("[profiles.a]\na = " + "[" * 5000, "nested too deeply"),
        ("[profiles.a]\n" + "a." * 5000 + "b = 1", "nested too deeply"),
        ("[profiles.a]\nx = {a={a={a={a={a={a={a=1}}}}}}}\n", "nested too deeply"),
        ("[profiles.a]\nnodes = -1\n", "profiles.toml, line 2: nodes = -1 is out of range"),
        ("[profiles.a]\ntime = 90\n", "line 2: time = '90' has no unit"),
        ("#" * (1 << 20), "too large"),
    ],
)
def test_what_is_no_profile_is_one_line(text: str, why: str) -> None:
    with pytest.raises(ClusterKernelError, match=why) as caught:
        profile(text)
    assert "\n" not in str(caught.value)


def test_a_profile_is_written_as_profiles_are_read() -> None:
    spec = build(
        {
            "name": "a b",
            "nodes": 2,
            "gpus_per_node": "h100:8",
            "memory": "512G",
            "env": {"A": 'two "words"', "HF_TOKEN": KEY},
            "setup": ["module load x"],
            "sbatch": ["--mail-type=END"],
            "exclusive": True,
        }
    )
    done = profile_toml.write(spec, Program(steps=(Step(name="run", shell="a"),)))
    assert KEY not in done.text
    assert list(tomllib.loads(done.text)["profiles"]) == ["a-b"]
    again = profile(done.text).spec
    assert again.environment.secrets == ("HF_TOKEN",)
    assert again.environment.env == {"A": 'two "words"'}
    assert again.resources == spec.resources
    assert again.extra == spec.extra
    ways = {field.field: field.how for field in done.fields}
    assert ways["program.steps"] is How.DROPPED
    assert ways["env.HF_TOKEN"] is How.CHANGED
    assert profile_toml.write(JobSpec(), Program()).text == "[profiles.converted]\n"
