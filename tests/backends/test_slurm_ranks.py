"""Where the ranks of a job meet, on nodes that are hosts of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from clusterkernel.states import JobState

from .slurm_jobs import Jobs
from .test_slurm_backend import make_jobs

pytestmark = pytest.mark.slurm

ALL_REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
line = f"{dist.get_rank()} {dist.get_world_size()} {os.environ['SLURMD_NODENAME']} {total.item()}\\n"
os.write(1, line.encode())  # in one piece: the ranks share a pipe
dist.destroy_process_group()
"""


@pytest.fixture
def jobs(slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    made = make_jobs(slurm_cluster, monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("partition", ["debug", "gpu"])
def test_all_nodes_inherit_the_heads_address_and_one_port(jobs: Jobs, partition: str) -> None:
    show = ["sh", "-c", "echo $SLURM_NODEID $SLURMD_NODENAME $CLUSTERKERNEL_RENDEZVOUS"]
    folder = jobs.start(show, nodes=2, tasks_per_node=2, launcher="torchrun", partition=partition)
    assert jobs.end(folder)[0].state is JobState.SUCCEEDED
    said = [folder.out(rank=rank).joinpath("stdout").read_text().split() for rank in range(2)]
    assert [index for index, _, _ in said] == ["0", "1"]
    (meeting,) = {where for _, _, where in said}
    assert meeting.rpartition(":")[0] == jobs.cluster.address(said[0][1])


@pytest.mark.torch
@pytest.mark.parametrize("nodes", [1, 2])
def test_real_ranks_meet_under_the_real_torchrun(jobs: Jobs, nodes: int) -> None:
    program = jobs.folder / "reduce.py"
    program.write_text(ALL_REDUCE)
    folder = jobs.make([], nodes=nodes, tasks_per_node=2, launcher="torchrun", memory="2G")
    argv = [sys.executable, "-m", "torch.distributed.run", "{torchrun}", str(program)]
    (folder.payload / "payload.json").write_text(
        json.dumps({"kind": "command", "steps": [{"name": "train", "argv": argv}]})
    )
    assert jobs.end(jobs.send(folder), ceiling=180)[0].state is JobState.SUCCEEDED
    lines = [line for rank in range(nodes) for line in (folder.out(rank=rank) / "stdout").read_text().splitlines()]
    world = 2 * nodes
    rows = sorted(line.split() for line in lines)
    assert [row[0] for row in rows] == [str(rank) for rank in range(world)]
    assert {(row[1], row[3]) for row in rows} == {(str(world), str(float(sum(range(world + 1)))))}
    assert len({row[2] for row in rows}) == nodes
