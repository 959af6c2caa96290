"""Command lines that start a step's ranks: the same for every platform that has a shell.

Ranks are static, as `clusterkernel.runtime.rendezvous` has them: the first node
has rank 0, and the port and the id belong to the job.
"""

from __future__ import annotations

from typing import Final

import msgspec

from clusterkernel.formats.model import Step
from clusterkernel.spec import JobSpec, Launcher

__all__ = ["Meeting", "command_line"]

_OR_TRUE: Final = " || true"  # behind a step that may fail


class Meeting(msgspec.Struct, frozen=True):
    """Where the launchers of several nodes meet: words as bash reads them.

    Attributes
    ----------
    rank : str
        This node's rank: ``$SLURM_NODEID``, ``$JOB_COMPLETION_INDEX``, ``$BT_NODE_RANK``.
    address, port : str
        Of the first node.
    job : str
        An id that no other job has at the same time.
    nodes : str
        How many nodes; empty for the spec's literal count.
    """

    rank: str
    address: str
    port: str
    job: str
    nodes: str = ""


def command_line(spec: JobSpec, step: Step, meeting: Meeting) -> str:
    """The line that bash runs: on each node for what is launched, else wherever the step runs.

    Parameters
    ----------
    spec : JobSpec
        Its launcher, nodes and ranks.
    step : Step
        What is started.
    meeting : Meeting
        Not used on one node.

    Notes
    -----
    DeepSpeed's own launcher reaches other nodes by ssh; on several nodes torchrun
    starts its programs, which read the same variables.
    """
    if not step.launched or spec.launcher is Launcher.NONE:
        return step.shell
    if spec.launcher is Launcher.ACCELERATE:
        words = [*_accelerate(spec, meeting), *step.launcher_args]
        program = "accelerate launch"
    elif spec.launcher is Launcher.DEEPSPEED and spec.resources.nodes == 1 and not step.axolotl:
        words = [f"--num_gpus={spec.ranks_per_node}", *step.launcher_args]
        program = "deepspeed"
    else:
        words = [*_torchrun(spec, meeting), *step.launcher_args]
        program = "torchrun"
    if step.axolotl:
        shell = step.shell.removesuffix(_OR_TRUE)
        return " ".join([shell, "--launcher", program.split()[0], "--", *words]) + step.shell[len(shell) :]
    return " ".join([program, *words, step.shell])


def _torchrun(spec: JobSpec, meeting: Meeting) -> list[str]:
    if spec.resources.nodes == 1:
        return ["--standalone", "--nnodes=1", f"--nproc_per_node={spec.ranks_per_node}"]
    return [
        f"--nnodes={meeting.nodes or spec.resources.nodes}",
        f"--nproc_per_node={spec.ranks_per_node}",
        f"--node_rank={meeting.rank}",
        "--rdzv_backend=static",
        f"--rdzv_id={meeting.job}",
        f"--master_addr={meeting.address}",
        f"--master_port={meeting.port}",
    ]


def _accelerate(spec: JobSpec, meeting: Meeting) -> list[str]:
    nodes = spec.resources.nodes
    words = [f"--num_machines={nodes}", f"--num_processes={nodes * spec.ranks_per_node}"]  # the total
    if nodes > 1:
        words += [
            f"--machine_rank={meeting.rank}",
            "--rdzv_backend=static",
            f"--main_process_ip={meeting.address}",
            f"--main_process_port={meeting.port}",
        ]
    return words
