"""What the advice knows of a Slurm cluster."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from clusterkernel.advice import Facts
from clusterkernel.backends.slurm import facts, refusals
from clusterkernel.backends.slurm.commands import Answer, LocalTransport
from clusterkernel.backends.slurm.records import SEPARATOR
from clusterkernel.errors import BackendUnavailable
from clusterkernel.fields import build

CONFIG = """\
MaxArraySize            = 1001
SLURM_VERSION           = 25.11.2
SwitchType              = switch/hpe_slingshot
ConstrainRAMSpace       = yes
"""
NODES = [
    [
        "gpu1",
        "gpu",
        "idle",
        "128",
        "0/128/0/128",
        "1031000",
        "9000",
        "0.1",
        "gpu:h100:8",
        "h100,ib",
        "1-00:00:00",
        "none",
    ],
    ["gpu2", "gpu", "idle", "64", "0/64/0/64", "515000", "9000", "0.1", "gpu:a100:4", "a100", "1-00:00:00", "none"],
    ["cpu1", "cpu", "idle", "256", "0/1/0/1", "2000000", "9000", "0.1", "(null)", "(null)", "infinite", "none"],
]


class Scripted:
    """A transport whose answers are given."""

    def __init__(self, answers: Mapping[str, str]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def which(self, name: str) -> str | None:
        return name

    def query(self, *argv: str, timeout: float = 5.0, text: str = "") -> Answer:
        line = " ".join(argv)
        self.asked.append(line)
        for start, out in self._answers.items():
            if line.startswith(start):
                return Answer(argv, 0, out, "")
        raise BackendUnavailable(f"{argv[0]} cannot be run.")

    def submission(self, argv: Sequence[str]) -> list[str]:
        raise AssertionError("nothing is sent")


def cluster(**answers: str) -> Scripted:
    return Scripted(
        {
            "scontrol show config": CONFIG,
            "sinfo -h -o %P|%L|%l": "gpu|1:00:00|1-00:00:00\ncpu*|n/a|infinite\n",
            "sinfo -h -N": "\n".join(SEPARATOR.join(row) for row in NODES),
            "id": "me\n",
            "sacctmgr -n -P show user": "None\n",
            "sacctmgr -n -P show assoc": "500\n\n",
            "squeue": "1\n2\n3\n",
            **answers,
        }
    )


def test_it_is_about_the_nodes_that_the_job_may_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    spec = build({"backend": "slurm", "partition": "gpu", "gpus_per_node": "h100:8"})
    assert facts.gather(cluster(), spec) == Facts(
        version=(25, 11),
        node_cpus=128,
        node_memory=1_031_000,
        node_gpus=8,
        features=("a100", "h100", "ib"),
        default_time=3600,
        longest_time=86_400,
        hard_memory=True,
        operator=False,
        array_size=1001,
        submitted=497,
        network_option=True,
    )
    other = facts.gather(cluster(), build({"backend": "slurm", "partition": "gpu", "gpus_per_node": "a100:4"}))
    assert (other.node_cpus, other.node_gpus) == (64, 4)


def test_without_a_partition_it_is_the_default_one() -> None:
    found = facts.gather(cluster(), build({"backend": "slurm"}))
    assert (found.node_cpus, found.node_gpus, found.longest_time, found.default_time) == (256, 0, None, None)


def test_what_is_not_told_stays_unknown() -> None:
    quiet = Scripted({"scontrol show config": "SLURM_VERSION = 22.05.8\n"})
    found = facts.gather(quiet, build({"backend": "slurm"}))
    assert found.version == (22, 5)
    assert (found.node_cpus, found.submitted, found.hard_memory, found.features) == (None, None, None, ())


def test_a_controller_that_is_down_is_asked_once() -> None:
    down = Scripted({})
    assert facts.gather(down, build({"backend": "slurm"})) == Facts()
    assert len(down.asked) == 1


@pytest.mark.slurm
def test_a_real_cluster_tells(slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in slurm_cluster.env.items():
        monkeypatch.setenv(key, value)
    assert shutil.which("scontrol")
    found = facts.gather(LocalTransport(), build({"backend": "slurm", "partition": "gpu", "gpus_per_node": "h100:8"}))
    assert found.version is not None
    assert found.version >= (22, 5)
    assert found.node_gpus == 8
    assert found.array_size is not None
    assert found.operator is True
    assert found.node_cpus
    assert found.node_memory


@pytest.mark.parametrize(
    ("fields", "mend"),
    [
        ({"gpus_per_node": "h100:8"}, "Partition gpu has h100:8: set --partition gpu."),
        ({"gpus_per_node": "2"}, "Partition gpu has 2 GPUs: set --partition gpu."),
        ({"gpus_per_node": "h100:99"}, "At most h100:8 on one node, in partition gpu."),
        ({"gpus_per_node": "h100:8", "nodes": "2"}, "At most 1 node of a partition has h100:8: gpu."),
        ({"gpus_per_node": "b200:8"}, "No node has b200. There is a100:4 in partition gpu, h100:8 in partition gpu."),
        ({"gpus_per_node": "h100:8", "partition": "gpu"}, "%cluster_nodes shows what there is."),
        ({"cpus_per_task": "512"}, "%cluster_nodes shows what there is."),
    ],
)
def test_a_refusal_says_where_the_gpus_are(fields: dict[str, str], mend: str) -> None:
    said = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    error = refusals.refusal(said, build(fields), cluster())
    assert str(error).startswith("Slurm refused the job: Requested node configuration is not available.")
    assert error.hint.endswith(mend)
