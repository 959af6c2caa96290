"""Where ranks meet: the head's address, the port, the rank of a node, and the launchers' command lines."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterkernel.runtime import rendezvous
from clusterkernel.runtime.rendezvous import RendezvousError

SCONTROL = """#!/bin/sh
case "$2" in
  hostnames) echo "$3" | tr , '\\n' ;;
  node) sed -n "s/^$3 //p" {addresses} | sed "s/^/NodeName=$3\\n   NodeAddr=/; s/$/ NodeHostName=$3/" ;;
esac
"""


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scontrol that knows nodes and their addresses."""
    addresses = tmp_path / "addresses"
    program = tmp_path / "scontrol"
    program.write_text(SCONTROL.format(addresses=addresses))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def know(**known: str) -> dict[str, str]:
        addresses.write_text("".join(f"{name} {address}\n" for name, address in known.items()))
        return {"SLURM_JOB_NODELIST": ",".join(known), "SLURM_JOB_ID": "8123"}

    return know


def context(**resources: Any) -> SimpleNamespace:
    return SimpleNamespace(spec={"resources": resources}, job_id="12", attempt=0, job_dir="/jobs/12")


# -- choosing, on the head -------------------------------------------------------------------------


def test_the_address_is_the_heads_own_of_the_cluster(nodes: Any) -> None:
    environ = nodes(node10="10.1.0.10", node9="10.1.0.9")
    address, _, port = rendezvous.choose(environ).rpartition(":")
    assert address == "10.1.0.10"  # the first of the allocation, not of any sorting
    assert 20000 <= int(port) < 32000


def test_a_name_that_resolves_elsewhere_is_taken_as_that_address(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_resolve", {"head.cluster": ["127.0.1.1", "10.2.0.1"], "n2": []}.__getitem__)
    assert rendezvous.choose(nodes(n1="head.cluster", n2="n2")).startswith("10.2.0.1:")


@pytest.mark.parametrize("own", ["head", "127.0.1.1"], ids=["does not resolve", "loopback"])
def test_a_head_without_an_address_is_asked_for_its_way_to_a_neighbour(
    nodes: Any, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    monkeypatch.setattr(rendezvous, "_resolve", lambda name: [name] if name[0].isdigit() else [])
    monkeypatch.setattr(rendezvous, "_source_towards", {"10.3.0.2": "10.3.0.1"}.__getitem__)
    assert rendezvous.choose(nodes(n1=own, n2="10.3.0.2")).startswith("10.3.0.1:")


def test_the_loopback_is_never_taken(nodes: Any) -> None:
    with pytest.raises(RendezvousError, match="head node n1 has no address that other nodes reach"):
        rendezvous.choose(nodes(n1="localhost", n2="127.0.0.2"))


def test_what_is_missing_is_named(nodes: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    environ = nodes(n1="10.0.0.1")
    with pytest.raises(RendezvousError, match="SLURM_JOB_NODELIST"):
        rendezvous.choose({})
    with pytest.raises(RendezvousError, match="scontrol show node nobody failed"):
        rendezvous.head_address(["nobody"])
    monkeypatch.setenv("PATH", "/nowhere")
    rendezvous.main(environ)
    text = capsys.readouterr().out.strip()
    assert text.startswith("error: scontrol show hostnames n1 cannot be run")
    # The nodes' launchers inherit that text and say it.
    with pytest.raises(RendezvousError, match="scontrol show hostnames n1 cannot be run"):
        rendezvous.torchrun_args(context(nodes=2), {rendezvous.VARIABLE: text, "SLURM_NODEID": "0"})


def test_the_port_follows_job_and_restart() -> None:
    first = rendezvous.first_port("8123", "0")
    assert first == rendezvous.first_port("8123", "0")
    assert len({first, rendezvous.first_port("8123", "1"), rendezvous.first_port("8124", "0")}) == 3
    assert all(20000 <= rendezvous.first_port(str(job), "3") < 32000 for job in range(0, 10**9, 10**6 + 7))


def test_a_port_that_is_taken_is_passed_over() -> None:
    first = rendezvous.free_port(rendezvous.first_port(str(os.getpid()), "0"))
    with socket.socket() as holder:
        holder.bind(("", first))
        holder.listen()
        assert rendezvous.free_port(first) != first
    assert rendezvous.free_port() > 0


# -- on each node ----------------------------------------------------------------------------------


def test_one_node_meets_itself_on_a_free_port() -> None:
    args = rendezvous.torchrun_args(context(gpus_per_node={"count": 4, "type": "h100"}), {})
    assert args[:4] == ["--nnodes=1", "--nproc_per_node=4", "--node_rank=0", "--rdzv_backend=static"]
    assert args[5] == "--master_addr=127.0.0.1"
    assert args[6].startswith("--master_port=")


def test_several_nodes_take_what_the_head_chose() -> None:
    environ = {rendezvous.VARIABLE: "10.1.0.10:23456", "SLURM_NODEID": "1"}
    assert rendezvous.torchrun_args(context(nodes=2, tasks_per_node=3), environ) == [
        "--nnodes=2",
        "--nproc_per_node=3",
        "--node_rank=1",
        "--rdzv_backend=static",
        "--rdzv_id=12-0",
        "--master_addr=10.1.0.10",
        "--master_port=23456",
    ]


def test_a_platform_may_tell_where_to_meet() -> None:
    environ = {"MASTER_ADDR": "job-0.svc", "MASTER_PORT": "29500", "JOB_COMPLETION_INDEX": "2"}
    args = rendezvous.torchrun_args(context(nodes=3), environ)
    assert {"--node_rank=2", "--master_addr=job-0.svc", "--master_port=29500"} <= set(args)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLURM_NODEID": "0"}, "does not say where the 2 nodes meet"),
        ({rendezvous.VARIABLE: "nonsense", "SLURM_NODEID": "0"}, "nonsense"),
        ({rendezvous.VARIABLE: "10.0.0.1:23000"}, "which of the 2 nodes this is"),
    ],
)
def test_several_nodes_never_fall_back_to_the_loopback(environ: dict[str, str], words: str) -> None:
    with pytest.raises(RendezvousError, match=words):
        rendezvous.torchrun_args(context(nodes=2), environ)


# -- command lines ---------------------------------------------------------------------------------


def test_launchers() -> None:
    environ = {rendezvous.VARIABLE: "10.1.0.10:23456", "SLURM_NODEID": "1"}
    gpus = context(nodes=2, gpus_per_node={"count": 4})
    torchrun = rendezvous.launch("torchrun", ["/runtime", "rank"], gpus, environ)
    assert torchrun[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert torchrun[-2:] == ["/runtime", "rank"]
    assert rendezvous.launch("deepspeed", ["/runtime", "rank"], gpus, environ) == torchrun
    accelerate = rendezvous.launch("accelerate", ["/runtime", "rank"], gpus, environ)
    assert {"--num_processes=8", "--num_machines=2", "--machine_rank=1", "--multi_gpu"} <= set(accelerate)
    assert "--cpu" in rendezvous.launch("accelerate", [], context(), {})
    with pytest.raises(RendezvousError, match="mpirun"):
        rendezvous.launch("mpirun", [], gpus, environ)


def test_the_item_in_a_command_line_becomes_the_options() -> None:
    environ = {rendezvous.VARIABLE: "10.1.0.10:23456", "SLURM_NODEID": "0"}
    argv = rendezvous.expand(["axolotl", "{payload}/config.yml", "--", "{torchrun}"], context(nodes=2), environ)
    assert argv[:4] == ["axolotl", "/jobs/12/payload/config.yml", "--", "--nnodes=2"]
    assert "{torchrun}" not in argv


def test_it_runs_as_a_part_of_the_runtime_without_the_package(nodes: Any, tmp_path: Path) -> None:
    from clusterkernel.jobroot import JobRoot

    environ = nodes(n1="10.1.0.1", n2="10.1.0.2")
    runtime = JobRoot(tmp_path / "jobs").runtime()
    command = [sys.executable, "-S", "-E", str(runtime), "rendezvous"]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("10.1.0.1:")


def test_old_pythons_can_read_it() -> None:
    ast.parse(Path(rendezvous.__file__).read_text(), feature_version=(3, 6))
