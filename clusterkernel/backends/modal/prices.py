"""What a job costs on Modal: an estimate, and the time that a ceiling buys (see `rates` for the prices)."""

from __future__ import annotations

from typing import Final

import msgspec

from clusterkernel.backends.modal import rates
from clusterkernel.backends.modal.options import parse
from clusterkernel.errors import SpecError
from clusterkernel.formats import gpu_names
from clusterkernel.spec import JobSpec, Stage
from clusterkernel.units import format_duration

__all__ = ["STAGE", "Price", "affordable", "cores", "hourly", "memory_limit", "note", "stage"]

#: The stage of a spec that says what steps need which are done without GPUs.
STAGE: Final = "preprocess"
# Unless asked for otherwise: cores, MiB, and the cores above its request at which a container is held back.
_CORES, _MEMORY, _SPARE = 0.125, 128, 16
# MiB at which a container is held back whose cost has a ceiling, and which names no memory.
_HELD: Final = 32_768
# Of a narrow region (us-west); a broad one (us) is 1.5 times as much.
_REGION: Final = 1.75
#: A shorter run is none.
SHORTEST: Final = 120


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars an hour, of all nodes of one task.

    Attributes
    ----------
    asked : float
        For what is asked for.
    most : float
        Where the job uses all cores that it may.
    """

    asked: float
    most: float


def memory_limit(spec: JobSpec) -> int | None:
    """MiB at which the container is held back; None where it may take what the host has."""
    limit = spec.resources.memory_limit
    if limit is None and spec.max_cost is not None:
        limit = spec.resources.memory or _HELD  # memory is paid for as it is used
    return limit


def cores(spec: JobSpec) -> float:
    """Cores that a container asks for: Modal gives some where none are named."""
    return spec.resources.cpus_per_task * spec.ranks_per_node if spec.resources.cpus_per_task else _CORES


def stage(spec: JobSpec) -> Stage:
    """What the steps without GPUs ask for."""
    return next((stage for stage in spec.stages if stage.name == STAGE), Stage(name=STAGE))


def _kinds(spec: JobSpec) -> list[tuple[str, int]]:
    """The GPUs that the job may get: Modal's name, and how many."""
    gpus = spec.resources.gpus_per_node
    kinds = [(gpu_names.MODAL[gpus.type or "h100"], gpus.count)] if gpus else []
    for text in parse(spec.extra.get("modal", ())).gpu:
        name, _, count = text.partition(":")
        kinds.append((gpu_names.MODAL[name.rstrip("!+").lower()], int(count or 1)))
    return kinds


def hourly(spec: JobSpec) -> Price:
    """The price of a job: of several kinds of GPUs that of the dearest."""
    price = rates.known().prices
    devices = max((price[name] * count for name, count in _kinds(spec)), default=0.0)
    asked = cores(spec)
    memory = spec.resources.memory or _MEMORY
    factor = spec.resources.nodes * (_REGION if spec.schedule.region else 1.0)
    limit = parse(spec.extra.get("modal", ())).cpu_limit
    most_cores = limit if limit is not None else asked + _SPARE
    most_memory = max(memory, memory_limit(spec) or 0)

    def cost(cores: float, memory: int) -> float:
        return cores * price[rates.CPU] + memory / 1024 * price[rates.MEMORY]

    first = stage(spec)  # before the rest, and so not beside it
    return Price(
        asked=factor * (devices + cost(asked, memory)),
        most=factor * max(devices + cost(most_cores, most_memory), cost(first.cpus_per_task or 0, first.memory or 0)),
    )


def affordable(spec: JobSpec) -> int | None:
    """Seconds that the ceiling buys, over all array tasks' attempts; None where there is no ceiling.

    Raises
    ------
    SpecError
        It buys next to nothing.
    """
    if spec.max_cost is None:
        return None
    tasks = spec.array.size if spec.array else 1
    bought = int(spec.max_cost / hourly(spec).most * 3600 / tasks)
    each = bought // spec.recovery.attempts
    if each < SHORTEST:
        price = hourly(spec).most * tasks
        raise SpecError(
            f"--max-cost = {spec.max_cost:g} buys {each} s of each attempt, at about ${price:.2f} an hour.",
            field="--max-cost",
            hint="Raise it, or ask for less.",
        )
    return bought


def note(spec: JobSpec, seconds: int) -> str:
    """What a person should know: the price, and the most that the run can cost in `seconds` for each attempt."""
    price = hourly(spec)
    tasks, attempts = spec.array.size if spec.array else 1, spec.recovery.attempts
    most = price.most * seconds / 3600 * tasks * attempts
    if spec.max_cost is not None:
        most = min(most, spec.max_cost)
    text = f"About ${price.asked * tasks:.2f} an hour; at most about ${most:.2f}"
    parts = [f"{format_duration(seconds)}"]
    if attempts > 1:
        parts.append(f"{attempts} attempts")
    if tasks > 1:
        parts.append(f"{tasks} tasks")
    used = {rates.CPU, rates.MEMORY, *(name for name, _ in _kinds(spec))}
    return f"{text} for {' x '.join(parts)}: an estimate from {rates.known().source(used)}."
