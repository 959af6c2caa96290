"""What launch lines say of counts: how many ranks, on how many nodes; launches that are unlike are refused."""

from __future__ import annotations

from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats.launch.lines import Launch
from clusterkernel.formats.sbatch.kept import Body, Found
from clusterkernel.formats.sbatch.needs import Counts
from clusterkernel.formats.shell.pieces import Word
from clusterkernel.formats.shell.values import Variables
from clusterkernel.spec import Launcher

__all__ = ["RANKS", "SRUN_COUNTS", "SRUN_PARTS", "Shape", "count_of", "counts", "ranks_of", "runs_once"]

#: Steps of one job that are believed.
MOST: Final = 200
#: Options of launchers that say how many ranks there are.
RANKS: Final = frozenset({"nproc-per-node", "num-processes", "num-gpus", "num-accelerators"})
#: Options of srun that say how many tasks there are, on which nodes, with what.
SRUN_COUNTS: Final = frozenset(
    "nodes ntasks ntasks-per-node cpus-per-task gpus-per-task gpus-per-node gpus gres mincpus ntasks-per-gpu".split()
)
#: Those that pick a part of the job's nodes.
SRUN_PARTS: Final = frozenset("het-group pack-group relative nodelist exclude multi-prog nodefile".split())


class Shape(msgspec.Struct, frozen=True):
    """What a job has.

    Attributes
    ----------
    nodes : int
        Nodes.
    tasks : int
        Slurm's tasks on each.
    gpus : int
        GPUs of each.
    """

    nodes: int
    tasks: int
    gpus: int


def counts(body: Body, variables: Variables, shape: Shape, name: str) -> Counts:
    """What the launch lines say of counts; refuses launches that are unlike.

    Raises
    ------
    FormatError
        Several launches at once, or by unlike means.
    """
    found = [part for part in body.parts if isinstance(part, Found)]
    if len(found) > MOST:
        raise FormatError(
            f"{name}, line {found[MOST].line}: more than {MOST} commands are launched one after another.",
            hint="Is it the right file?",
        )
    at_once = [part for part in found if part.background]
    if len(at_once) > 1:
        raise FormatError(
            f"{name}, line {at_once[1].line}: {len(at_once)} commands run at once, each on a part of the job.",
            hint="Only Slurm can part a job so: give each a script of its own.",
        )
    for part in found:
        for option in part.launch.srun or []:
            if option.name in SRUN_PARTS and not runs_once(part.launch, shape, variables):
                raise FormatError(
                    f"{name}, line {part.line}: srun --{option.name} picks a part of the job's nodes.",
                    hint="No other platform has that: give the parts scripts of their own.",
                )
    launched = [part for part in found if part.launch.launcher is not Launcher.NONE]
    chosen = {part.launch.launcher for part in launched}
    if len(chosen) > 1:
        raise FormatError(
            f"{name}, line {launched[1].line}: another launcher than on line {launched[0].line}.",
            hint="A job has one: give each launch a script of its own.",
        )
    srun: dict[str, str] = {}
    for part in found:
        if part.launch.srun is None or runs_once(part.launch, shape, variables):
            continue
        mine = {
            option.name: said
            for option in part.launch.srun
            if option.name in SRUN_COUNTS and (said := count_of(option.value, variables, shape)) is not None
        }
        for key, value in mine.items():
            if key in ("nodes", "ntasks", "ntasks-per-node") and srun.get(key, value) != value:
                raise FormatError(
                    f"{name}, line {part.line}: srun --{key}={value}, where an earlier one has {srun[key]}.",
                    hint="Steps of unlike shape are Slurm's own: give each a script of its own.",
                )
            srun.setdefault(key, value)
    agreed: int | None = None
    for part in launched:
        own = ranks_of(part.launch, variables, shape)
        if agreed is not None and own is not None and own != agreed:
            raise FormatError(
                f"{name}, line {part.line}: {own} ranks on each node, where an earlier launch has {agreed}.",
                hint="Give each launch a script of its own.",
            )
        agreed = own if own is not None else agreed
    return Counts(launcher=chosen.pop() if chosen else Launcher.NONE, ranks=agreed, srun=srun)


def runs_once(launch: Launch, shape: Shape, variables: Variables) -> bool:
    """Whether srun starts one process in all."""
    options = {option.name: option.value for option in launch.srun or []}
    tasks = count_of(options.get("ntasks"), variables, shape)
    nodes = count_of(options.get("nodes"), variables, shape)
    return (tasks == "1" and shape.nodes * shape.tasks > 1) or (tasks is None and nodes == "1" and shape.nodes > 1)


def count_of(word: Word | None, variables: Variables, shape: Shape) -> str | None:
    """A count as a text; of Slurm's own variables those that are counts are known."""
    if word is None:
        return None
    if word.value is not None:
        return word.value
    known = {
        "SLURM_NNODES": shape.nodes,
        "SLURM_JOB_NUM_NODES": shape.nodes,
        "SLURM_NTASKS": shape.nodes * shape.tasks,
        "SLURM_NPROCS": shape.nodes * shape.tasks,
        "SLURM_NTASKS_PER_NODE": shape.tasks,
        "SLURM_GPUS_ON_NODE": shape.gpus,
        "SLURM_GPUS_PER_NODE": shape.gpus,
        "WORLD_SIZE": shape.nodes * max(shape.gpus, 1),
    }
    inner = Variables({name: str(count) for name, count in known.items() if count})
    return inner.value(word.shell)


def ranks_of(launch: Launch, variables: Variables, shape: Shape) -> int | None:
    """Ranks of a node, as the launcher's options have it."""
    for option in launch.options:
        if option.name in RANKS:
            text = count_of(option.value, variables, shape)
            if text is None or not text.isdecimal() or not 0 < int(text[:9]) <= 4096 * shape.nodes:
                return None
            total = int(text)
            return max(1, total // shape.nodes) if option.name == "num-processes" else total
    return None
