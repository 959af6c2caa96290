"""What Slurm silently does otherwise, and what its versions refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from clusterkernel.advice.base import Advice, Case, Level, rule
from clusterkernel.advice.resources import changes
from clusterkernel.formats.model import Format
from clusterkernel.formats.reporting import option_name

_GPU_OPTIONS: Final = ("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
_SHORT: Final = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "p": "partition", "t": "time"}
_MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")


@rule("priority-ignored", noted=["slurm"])
def priority_ignored(case: Case) -> Iterator[Advice]:
    """``--priority``, which Slurm honours from operators only."""
    priority = case.spec.schedule.priority
    if case.spec.backend != "slurm" or priority is None or case.facts.operator:
        return
    yield Advice(
        level=Level.WARNING,
        rule="priority-ignored",
        field="priority",
        message=f"--priority {priority} is honoured from operators and administrators only; from others Slurm takes "
        "the job and forgets the priority.",
        fix="Use --qos or --partition, which set priorities for everybody.",
        change=changes(priority=None),
    )


@rule("array-size")
def array_size(case: Case) -> Iterator[Advice]:
    """An array with indices beyond the cluster's MaxArraySize."""
    array, most = case.spec.array, case.facts.array_size
    if case.spec.backend != "slurm" or array is None or most is None or array.size < most:
        return
    script = case.format is Format.SLURM
    yield Advice(
        level=Level.ERROR if script else Level.INFO,
        rule="array-size",
        field="array",
        message=f"The array has {array.size} tasks, and an index must be below MaxArraySize = {most}"
        + (": sbatch refuses the script." if script else ": it is sent in several parts."),
        fix=f"Give each task several items, so that there are fewer than {most}.",
    )


@rule("submit-limit")
def submit_limit(case: Case) -> Iterator[Advice]:
    """More tasks than the person may still submit."""
    array, left = case.spec.array, case.facts.submitted
    tasks = array.size if array else 1
    if case.spec.backend != "slurm" or left is None or tasks <= left:
        return
    yield Advice(
        level=Level.WARNING,
        rule="submit-limit",
        field="array",
        message=f"The job has {tasks} task{'s' * (tasks > 1)}, and your limit leaves room for {left}.",
        fix="Give each task several items, or wait for jobs of yours to end.",
    )


def _options(case: Case) -> Mapping[str, str]:
    """Options of sbatch as they were given: passed through, or in the source."""
    found: dict[str, str] = {}
    if case.format is Format.SLURM:
        for field in case.fields:
            if field.line is None or not field.key.startswith("-"):
                continue
            name = field.key.lstrip("-")
            found[_SHORT.get(name, name) if not field.key.startswith("--") else name] = field.value
    if case.spec.backend == "slurm":
        for option in case.spec.extra.get("slurm", ()):
            found.setdefault(option_name(option), option.partition("=")[2])
        if case.spec.resources.gpus_per_node is not None and case.format is not Format.SLURM:
            found.setdefault("gpus-per-node", str(case.spec.resources.gpus_per_node))
        if case.spec.resources.memory is not None and case.format is not Format.SLURM:
            found.setdefault("mem", str(case.spec.resources.memory))
        if case.spec.resources.cpus_per_task is not None and case.format is not Format.SLURM:
            found.setdefault("cpus-per-task", str(case.spec.resources.cpus_per_task))
    return found


@rule("slurm-conflict")
def slurm_conflict(case: Case) -> Iterator[Advice]:
    """Options of sbatch that exclude each other, in this version or a later one."""
    options = _options(case)
    gpus = [name for name in _GPU_OPTIONS if name in options]
    gres = options.get("gres", "")
    gres_gpu = any(part.removeprefix("gres/").split(":")[0] == "gpu" for part in gres.split(","))
    memory = [name for name in _MEMORY if name in options]
    if len(memory) > 1:
        yield _conflict(memory[1], f"--{memory[0]} and --{memory[1]} exclude each other: sbatch refuses both together.")
    if "mem-per-gpu" in options and not gpus and not gres_gpu:
        yield _conflict("mem-per-gpu", "--mem-per-gpu needs GPUs that are asked for.")
    for other in ("ntasks-per-node", "gpus-per-task", "gpus-per-socket"):
        if "ntasks-per-gpu" in options and other in options:
            yield _conflict("ntasks-per-gpu", f"--ntasks-per-gpu and --{other} exclude each other.")
    if "cpus-per-gpu" in options and "cpus-per-task" in options:
        yield _conflict("cpus-per-gpu", "--cpus-per-gpu and --cpus-per-task exclude each other where there are GPUs.")
    if "gpus-per-socket" in options and "sockets-per-node" not in options:
        yield _conflict("gpus-per-socket", "--gpus-per-socket needs --sockets-per-node.")
    if "gpus-per-task" in options and not {"ntasks", "ntasks-per-node", "gpus"} & options.keys():
        yield _conflict("gpus-per-task", "--gpus-per-task needs --ntasks-per-node, --ntasks or --gpus.")
    typed = [name for name in gpus if ":" in options[name]]
    if typed and len(typed) < len(gpus):
        yield _conflict(typed[0], f"--{gpus[0]} and --{gpus[1]} name GPUs with and without a type.")
    if "gpus-per-node" in options and gres_gpu:
        version = case.facts.version
        if version is None or version >= (26, 5):
            known = version is not None
            yield Advice(
                level=Level.ERROR if known else Level.WARNING,
                rule="slurm-conflict",
                field="gres",
                message="--gpus-per-node and --gres=gpu both ask for GPUs, which sbatch refuses from Slurm 26.05 on"
                + (", and this is one." if known else "."),
                fix="Keep --gpus-per-node.",
            )


def _conflict(field: str, message: str) -> Advice:
    return Advice(
        level=Level.ERROR, rule="slurm-conflict", field=field, message=message, fix="Keep one way of saying it."
    )
