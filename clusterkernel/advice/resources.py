"""Processors, memory, time and ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from clusterkernel.advice.base import Advice, Case, Level, rule
from clusterkernel.formats.limits import set_field
from clusterkernel.formats.reporting import option_name
from clusterkernel.spec import Launcher
from clusterkernel.units import GpuRequest, format_duration, format_memory

CPUS_PER_GPU: Final = 16
MEMORY_PER_GPU: Final = 64 * 1024
TIGHT_PER_GPU: Final = 8 * 1024
GIB: Final = 1024
# Nobody gives these a time, memory or cores by the field; sbatch options that say the same.
_CPU_OPTIONS: Final = frozenset({"cpus-per-gpu", "c"})
_MEMORY_OPTIONS: Final = frozenset({"mem", "mem-per-gpu", "mem-per-cpu"})
_RANKS: Final = re.compile(r"--nproc[_-]per[_-]node[= ](\d+)")


def changes(**values: Any) -> Callable[[Case], Case]:
    """A mend that sets fields of the spec."""

    def change(case: Case) -> Case:
        for name, value in values.items():
            case = case.with_spec(set_field(name, value))
        return case

    return change


def _slurm_options(case: Case) -> set[str]:
    return {option_name(option) for option in case.spec.extra.get("slurm", ())}


@rule("gpu-ratio")
def gpu_ratio(case: Case) -> Iterator[Advice]:
    """GPUs without cores or memory to feed them: 16 cores and 64 GiB for each, as far as the node has them."""
    resources, gpus = case.spec.resources, case.gpus
    if not gpus or case.spec.backend == "local" or case.spec.schedule.exclusive:
        return
    given = _slurm_options(case)
    facts = case.facts
    share = min(1.0, gpus / facts.node_gpus) if facts.node_gpus else 1.0
    wanted: dict[str, Any] = {}
    if resources.cpus_per_task is None and not given & _CPU_OPTIONS:
        cpus = CPUS_PER_GPU * gpus
        if facts.node_cpus:
            cpus = min(cpus, int(facts.node_cpus * share))
        wanted["cpus_per_task"] = max(1, cpus // case.spec.ranks_per_node)
    if resources.memory is None and resources.memory_limit is None and not given & _MEMORY_OPTIONS:
        memory = MEMORY_PER_GPU * gpus
        if facts.node_memory:
            memory = min(memory, int(facts.node_memory * share) // GIB * GIB or facts.node_memory)
        wanted["memory"] = memory
    if not wanted:
        return
    texts = {
        "cpus_per_task": f"--cpus-per-task {wanted.get('cpus_per_task')}",
        "memory": f"--memory {format_memory(wanted.get('memory', 0))}",
    }
    what = " and ".join("cores" if name == "cpus_per_task" else "memory" for name in wanted)
    yield Advice(
        level=Level.INFO,
        rule="gpu-ratio",
        field=next(iter(wanted)),
        message=f"{gpus} GPUs are asked for without {what}, and the platform's own default may starve them.",
        fix=f"Add {' '.join(texts[name] for name in wanted)}: 16 cores and 64 GiB for each GPU is a usual start.",
        change=changes(**wanted),
    )


@rule("over-node")
def over_node(case: Case) -> Iterator[Advice]:
    """More GPUs, cores or memory than a node of the platform has."""
    resources, facts = case.spec.resources, case.facts
    ranks = case.spec.ranks_per_node
    if facts.node_gpus is not None and case.gpus > facts.node_gpus:
        request = resources.gpus_per_node
        assert request is not None
        fits = GpuRequest(facts.node_gpus, request.type) if facts.node_gpus else None
        yield _over("gpus_per_node", f"{case.gpus} GPUs", f"{facts.node_gpus}", changes(gpus_per_node=fits))
    if facts.node_cpus and (cpus := (resources.cpus_per_task or 0) * ranks) > facts.node_cpus:
        fits_cpus = max(1, facts.node_cpus // ranks)
        yield _over("cpus_per_task", f"{cpus} cores", str(facts.node_cpus), changes(cpus_per_task=fits_cpus))
    if facts.node_memory and (resources.memory or 0) > facts.node_memory:
        assert resources.memory is not None
        had, asked = format_memory(facts.node_memory), format_memory(resources.memory)
        yield _over("memory", f"{asked} of memory", had, changes(memory=facts.node_memory))


def _over(field: str, asked: str, has: str, change: Callable[[Case], Case]) -> Advice:
    return Advice(
        level=Level.ERROR,
        rule="over-node",
        field=field,
        message=f"{asked} are asked for on each node, and the largest node has {has}: no node can ever run it.",
        fix=f"Ask for at most {has}, or for more nodes.",
        change=change,
    )


@rule("ranks-gpus")
def ranks_gpus(case: Case) -> Iterator[Advice]:
    """Ranks that do not match the GPUs of a node."""
    gpus, ranks = case.gpus, case.spec.ranks_per_node
    if not gpus:
        return
    for field, line in case.lines():
        if (match := _RANKS.search(line)) and int(match[1]) != gpus:
            yield _ranks(field, int(match[1]), gpus, None)
    if ranks > gpus or (ranks < gpus and case.spec.launcher is not Launcher.NONE):
        yield _ranks("tasks_per_node", ranks, gpus, changes(tasks_per_node=None))


def _ranks(field: str, ranks: int, gpus: int, change: Callable[[Case], Case] | None) -> Advice:
    more = ranks > gpus
    why = "ranks share a GPU and may hang" if more else f"{gpus - ranks} GPUs of each node do nothing"
    return Advice(
        level=Level.ERROR if more else Level.WARNING,
        rule="ranks-gpus",
        field=field,
        message=f"A node starts {ranks} rank{'s' * (ranks > 1)} for {gpus} GPU{'s' * (gpus > 1)}: {why}.",
        fix="Leave --tasks-per-node out: a node then starts one rank for each GPU.",
        change=change,
    )


@rule("time-missing", noted=["slurm"])
def time_missing(case: Case) -> Iterator[Advice]:
    """No time limit."""
    if case.spec.schedule.time is not None or "time" in _slurm_options(case):
        return
    if case.spec.backend == "modal" and case.spec.max_cost is not None:
        return  # it is the time that this buys
    backend, default = case.spec.backend, case.facts.default_time
    if backend == "slurm":
        limit = f"{format_duration(default)} here" if default else "unlimited, or too short"
        why = f"the partition's default holds, which is {limit}, and the scheduler cannot fit the job into a gap"
    elif backend == "kubernetes":
        why = "a hung run keeps its GPUs for ever"
    elif backend == "modal":
        why = "a run has 24 hours, and a hung one is paid for so long"
    else:
        return
    yield Advice(
        level=Level.INFO if backend == "modal" else Level.WARNING,
        rule="time-missing",
        field="time",
        message=f"No time limit is set: {why}.",
        fix="Set --time to somewhat more than the run takes, such as 4h.",
    )


@rule("time-too-long")
def time_too_long(case: Case) -> Iterator[Advice]:
    """A longer time than the partition allows."""
    time, longest = case.spec.schedule.time, case.facts.longest_time
    if time is None or longest is None or time <= longest:
        return
    yield Advice(
        level=Level.ERROR,
        rule="time-too-long",
        field="time",
        message=f"--time {format_duration(time)} is longer than the partition allows, {format_duration(longest)}.",
        fix=f"Set --time {format_duration(longest).replace(' ', '')}, and go on from a checkpoint.",
        change=changes(time=longest),
    )


@rule("memory-limit", noted=["slurm"])
def memory_limit(case: Case) -> Iterator[Advice]:
    """A second number for memory where the platform has one."""
    limit = case.spec.resources.memory_limit
    if limit is None or case.spec.backend not in ("slurm", "baseten"):
        return
    yield Advice(
        level=Level.WARNING,
        rule="memory-limit",
        field="memory_limit",
        message=f"--memory-limit {format_memory(limit)} has no effect: this platform has one number for memory, "
        "at which it ends the job.",
        fix="Put the number into --memory.",
        change=changes(memory=max(limit, case.spec.resources.memory or 0), memory_limit=None),
    )


@rule("memory-soft")
def memory_soft(case: Case) -> Iterator[Advice]:
    """Memory that is only reserved, and no cap."""
    resources = case.spec.resources
    if case.spec.backend != "modal" or resources.memory is None or resources.memory_limit is not None:
        return
    size = format_memory(resources.memory)
    yield Advice(
        level=Level.INFO,
        rule="memory-soft",
        field="memory",
        message=f"On Modal --memory {size} is what is reserved: a run may use more, which is billed.",
        fix=f"Add --memory-limit {size} where a cap is meant.",
        change=changes(memory_limit=resources.memory),
    )


@rule("memory-tight")
def memory_tight(case: Case) -> Iterator[Advice]:
    """Little memory for GPUs where going over it ends the job."""
    memory, gpus = case.spec.resources.memory, case.gpus
    hard = case.spec.backend in ("kubernetes", "baseten") or (
        case.spec.backend == "slurm" and case.facts.hard_memory is not False
    )
    if not memory or not gpus or not hard or memory >= TIGHT_PER_GPU * gpus:
        return
    yield Advice(
        level=Level.INFO,
        rule="memory-tight",
        field="memory",
        message=f"--memory {format_memory(memory)} is little for {gpus} GPUs, and a hard limit: loading a model that "
        "is larger ends the job.",
        fix=f"Try --memory {format_memory(MEMORY_PER_GPU * gpus)}, which is 64 GiB for each GPU.",
        change=changes(memory=min(MEMORY_PER_GPU * gpus, case.facts.node_memory or MEMORY_PER_GPU * gpus)),
    )


@rule("shm-small")
def shm_small(case: Case) -> Iterator[Advice]:
    """The 64 MB of /dev/shm that a container has, for ranks and data loaders that talk through it."""
    shm, memory = case.spec.storage.shm, case.spec.resources.memory
    if case.spec.backend != "kubernetes" or not case.gpus or (shm is not None and shm >= GIB):
        return
    wanted = min(64 * GIB, (memory or 64 * GIB) // 4)
    if shm is not None and wanted <= shm:
        return
    yield Advice(
        level=Level.WARNING,
        rule="shm-small",
        field="shm",
        message=f"/dev/shm of the container has {format_memory(shm) if shm else '64M'}: data loaders with workers, "
        "and NCCL, fail there with bus errors.",
        fix=f"Set --shm {format_memory(wanted)}; it counts as memory of the job.",
        change=changes(shm=wanted),
    )


@rule("shm-memory")
def shm_memory(case: Case) -> Iterator[Advice]:
    """A /dev/shm that takes all of the memory."""
    shm = case.spec.storage.shm
    limit = case.spec.resources.memory_limit or case.spec.resources.memory
    if case.spec.backend != "kubernetes" or shm is None or limit is None or shm < limit:
        return
    yield Advice(
        level=Level.ERROR,
        rule="shm-memory",
        field="shm",
        message=f"--shm {format_memory(shm)} may fill all of the memory, {format_memory(limit)}, which it counts as.",
        fix=f"Set --shm {format_memory(max(1, limit // 4))}, or more --memory.",
        change=changes(shm=max(1, limit // 4)),
    )
