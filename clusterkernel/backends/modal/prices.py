"""What a job costs on Modal: an estimate from list prices, and the time that a ceiling buys.

The prices are those of Modal's page on pricing as others transcribed it on
2026-07-01. Modal has a call that tells a workspace's own, whose keys are
documented nowhere; it is not asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from clusterkernel.backends.modal.options import parse
from clusterkernel.errors import SpecError
from clusterkernel.formats import gpu_names
from clusterkernel.spec import JobSpec
from clusterkernel.units import format_duration

__all__ = ["DATED", "Price", "affordable", "hourly", "note"]

DATED: Final = "2026-07-01"
# Dollars a second, of one GPU.
_GPUS: Final[Mapping[str, float]] = MappingProxyType(
    {
        "B300": 0.001736,
        "B200": 0.001736,
        "H200": 0.001261,
        "H100": 0.001097,
        "RTX-PRO-6000": 0.000842,
        "A100-80GB": 0.000694,
        "A100": 0.000583,
        "A100-40GB": 0.000583,
        "L40S": 0.000542,
        "A10": 0.000306,
        "L4": 0.000222,
        "T4": 0.000164,
    }
)
_CORE: Final = 0.0000131
_GIB: Final = 0.00000222
# Unless asked for otherwise: cores, MiB, and the cores above its request at which a container is held back.
_CORES, _MEMORY, _SPARE = 0.125, 128, 16
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


def hourly(spec: JobSpec) -> Price:
    """The price of a job: of several kinds of GPUs that of the dearest."""
    options = parse(spec.extra.get("modal", ()))
    gpus = spec.resources.gpus_per_node
    kinds = [(gpu_names.MODAL[gpus.type or "h100"], gpus.count)] if gpus else []
    for text in options.gpu:
        name, _, count = text.partition(":")
        kinds.append((gpu_names.MODAL[name.rstrip("!+").lower()], int(count or 1)))
    devices = max((_GPUS[name] * count for name, count in kinds), default=0.0)
    cores = spec.resources.cpus_per_task * spec.ranks_per_node if spec.resources.cpus_per_task else _CORES
    memory = max(spec.resources.memory or _MEMORY, spec.resources.memory_limit or 0) / 1024 * _GIB
    factor = 3600 * spec.resources.nodes * (_REGION if spec.schedule.region else 1.0)
    limit = options.cpu_limit if options.cpu_limit is not None else cores + _SPARE
    return Price(
        asked=factor * (devices + memory + cores * _CORE),
        most=factor * (devices + memory + max(cores, limit) * _CORE),
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
    return f"{text} for {' x '.join(parts)}: an estimate from list prices of {DATED}."
