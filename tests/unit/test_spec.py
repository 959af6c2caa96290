"""The schema of a run: its products, its JSON, what it refuses to read."""

from __future__ import annotations

import msgspec
import pytest

from clusterkernel import spec
from clusterkernel.fields import FIELDS, build
from clusterkernel.spec import Array, JobSpec, Launcher, Resources, Stage
from clusterkernel.units import GpuRequest


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "1 node"),
        ({"nodes": 2, "gpus_per_node": "h100:8"}, "2 nodes x 8 H100 = 16 GPUs, 16 ranks"),
        ({"nodes": 2, "gpus": "16xh100"}, "2 nodes x 8 H100 = 16 GPUs, 16 ranks"),
        ({"gpus_per_node": 1}, "1 node x 1 GPU = 1 GPU"),
        ({"memory": "64G"}, "1 node, 64G"),
        ({"nodes": 2, "memory": "1500M"}, "2 nodes, 2 x 1 = 2 ranks, 1500M on each"),
        ({"gpus_per_node": 4}, "1 node x 4 GPUs = 4 GPUs, 4 ranks"),
        ({"nodes": 3}, "3 nodes, 3 x 1 = 3 ranks"),
        ({"nodes": 2, "tasks_per_node": 4}, "2 nodes, 2 x 4 = 8 ranks"),
        ({"gpus_per_node": 2, "tasks_per_node": 1}, "1 node x 2 GPUs = 2 GPUs, 1 x 1 = 1 rank"),
        ({"cpus_per_task": 4}, "1 node, 4 CPUs"),
        ({"nodes": 2, "time": "90m"}, "2 nodes, 2 x 1 = 2 ranks, at most 1h 30m"),
        ({"cpus_per_task": 1}, "1 node, 1 CPU"),
        (
            {"nodes": 2, "gpus_per_node": "a100:4", "cpus_per_task": 8},
            "2 nodes x 4 A100 = 8 GPUs, 8 ranks, 8 x 8 = 64 CPUs",
        ),
    ],
)
def test_the_counts_are_told_with_their_product(values: dict[str, object], text: str) -> None:
    assert spec.describe(build(values)) == text


def test_an_array_is_told() -> None:
    assert spec.describe(JobSpec(array=Array(size=4))) == "1 node, 4 array tasks"
    assert spec.describe(JobSpec(array=Array(size=1))) == "1 node, 1 array task"


@pytest.mark.parametrize(
    ("resources", "launcher", "ranks", "processes"),
    [
        (Resources(), Launcher.NONE, 1, 1),
        (Resources(nodes=2), Launcher.NONE, 1, 2),
        (Resources(nodes=2, gpus_per_node=GpuRequest(8)), Launcher.NONE, 8, 16),
        (Resources(nodes=2, gpus_per_node=GpuRequest(8)), Launcher.TORCHRUN, 8, 2),
        (Resources(nodes=2, gpus_per_node=GpuRequest(8), tasks_per_node=4), Launcher.TORCHRUN, 4, 2),
        (Resources(tasks_per_node=3), Launcher.NONE, 3, 3),
        (Resources(tasks_per_node=3), Launcher.ACCELERATE, 3, 1),
    ],
)
def test_a_launcher_takes_one_process_a_node(
    resources: Resources, launcher: Launcher, ranks: int, processes: int
) -> None:
    made = JobSpec(resources=resources, launcher=launcher)
    assert (made.ranks_per_node, made.processes) == (ranks, processes)
    assert made.tasks_per_node * resources.nodes == processes


def test_gpus_are_those_of_the_whole_job() -> None:
    assert JobSpec(resources=Resources(nodes=2, gpus_per_node=GpuRequest(8))).gpus == 16
    assert JobSpec(resources=Resources(nodes=2)).gpus == 0


def test_equal_specs_have_the_same_bytes() -> None:
    # The attach key is made of them.
    one = build({"env": {"A": "1", "B": "2"}, "nodes": 2})
    other = build({"nodes": "2", "env": ["B=2", "A=1"]})
    assert spec.to_json(one) == spec.to_json(other)
    assert spec.to_json(one) != spec.to_json(build({"nodes": 2}))
    assert spec.to_json(JobSpec()) == b'{"environment":{}}', "a default that changes later is not frozen into old jobs"


def test_json_holds_every_part() -> None:
    made = JobSpec(
        stages=(Stage(name="preprocess", memory=64, time=60, cpus_per_task=4),),
        array=Array(size=3),
        extra={"slurm": ("--opt=x",)},
        launcher=Launcher.TORCHRUN,
    )
    assert spec.from_json(spec.to_json(made)) == made


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"resources": {"nodes": 0}}',
        b'{"resources": {"memory": "64G"}}',
        b'{"launcher": "slrum"}',
        b'{"array": {"size": 0}}',
    ],
)
def test_json_that_is_no_spec_is_refused(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        spec.from_json(text)


def test_what_a_newer_version_wrote_is_read() -> None:
    text = b'{"name": "a", "moons": 2, "resources": {"nodes": 2, "moons": 2}, "environment": {"moons": 2}}'
    assert spec.from_json(text) == build({"name": "a", "nodes": 2})


def test_specs_share_no_dict() -> None:
    one = JobSpec()
    one.environment.env["A"] = "1"
    one.extra["slurm"] = ("--x",)
    assert JobSpec().environment.env == {}
    assert JobSpec().extra == {}
    assert FIELDS["env"].default == {}


def test_a_spec_cannot_be_changed() -> None:
    made = JobSpec()
    with pytest.raises(AttributeError):
        made.backend = "slurm"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        made.resources.nodes = 2  # type: ignore[misc]


def test_the_schema_names_each_field_with_its_help() -> None:
    definitions = spec.json_schema()["$defs"]
    for name, field in FIELDS.items():
        about = definitions[field.group.capitalize() or "JobSpec"]["properties"][name]
        assert about["description"] == field.help
        assert about.get("examples", [""]) == [field.example]
