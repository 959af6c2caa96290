"""What is refused before anything is sent to Modal, and what a person should know of a job there."""

from __future__ import annotations

import re
import sys
from types import MappingProxyType
from typing import Final

from clusterkernel.backends.modal import app, prices
from clusterkernel.backends.modal.options import parse
from clusterkernel.errors import SpecError
from clusterkernel.formats.container.image import is_file, registry_name
from clusterkernel.formats.modal import limits as modal_limits
from clusterkernel.spec import JobSpec
from clusterkernel.units import format_duration, format_memory

__all__ = ["check", "notes"]

_UNUSABLE: Final = MappingProxyType(
    {
        "partition": "Modal has no partitions",
        "reservation": "Modal has no reservations",
        "dependency": "Modal starts jobs without regard to others",
        "zone": "Modal takes a region, not a zone",
        "constraint": "Modal chooses the hosts by what is asked for",
    }
)
_LEFT_OUT: Final = MappingProxyType(
    {"account": "Modal charges the workspace", "qos": "Modal has no quality of service", "priority": "Modal has none"}
)
_REGION: Final = re.compile(r"[a-z]{2,3}(-[a-z]+)*(-[0-9])?")
#: Pythons that Modal's own image can have (the client's list of 2026).
_PYTHONS: Final = range(10, 15)


def check(spec: JobSpec) -> None:
    """Refuse what Modal would refuse later, or silently do otherwise.

    Raises
    ------
    SpecError
        The first such field.
    """
    _check_cores(spec)
    prices.affordable(spec)
    for limit in modal_limits.limits(spec):
        flag = "--" + limit.field.replace("_", "-")
        raise SpecError(limit.message, field=flag, hint=limit.hint)
    for field, why in _UNUSABLE.items():
        if value := getattr(spec.schedule, field):
            raise SpecError(f"--{field} = {value}, but {why}.", field=f"--{field}", hint="Leave it out.")
    if region := spec.schedule.region:
        for part in region.split(","):
            if not _REGION.fullmatch(part.strip()):
                raise SpecError(
                    f"--region = {region}: {part.strip()!r} is no region of Modal's.",
                    field="--region",
                    hint="Write us, eu, us-east or another of its guide on regions; several with commas.",
                )
    if strange := [stage for stage in spec.stages if stage.name != prices.STAGE]:
        raise SpecError(
            f"The stage {strange[0].name} has needs of its own, which cannot be sent to Modal yet.",
            field="stages",
            hint=f"Only {prices.STAGE} of an axolotl run can have some.",
        )
    for secret in spec.environment.secrets:
        if secret.startswith("MODAL_"):
            raise SpecError(f"--secrets = {secret}: such names are Modal's own.", field="--secrets", hint="Rename it.")
    for volume in spec.storage.volumes:
        if not modal_limits.is_name(volume.name):
            raise SpecError(
                f"--volumes = {volume.name}: a volume's name has letters, digits, dashes, dots and underscores.",
                field="--volumes",
                hint="Rename it.",
            )
    image = spec.environment.image
    if image is not None and is_file(image):
        raise SpecError(
            f"--image = {image} is a file, and Modal takes its images from a registry.",
            field="--image",
            hint="Push it to a registry, and name it as team/image:tag.",
        )
    if image is not None:
        registry_name(image)
    elif sys.version_info.minor not in _PYTHONS:
        raise SpecError(
            f"This notebook has Python 3.{sys.version_info.minor}, of which Modal has no image.",
            field="--image",
            hint="Name an --image that has it, or use a kernel with Python 3.10 to 3.14.",
        )


def _check_cores(spec: JobSpec) -> None:
    limit = parse(spec.extra.get("modal", ())).cpu_limit
    asked = prices.cores(spec)
    if limit is not None and limit < asked:
        per_rank = f", {spec.ranks_per_node} x {spec.resources.cpus_per_task}" if spec.ranks_per_node > 1 else ""
        raise SpecError(
            f"--cpu-limit={limit:g} is below the cores asked for, {asked:g}{per_rank}.",
            field="--modal",
            hint="Raise the limit or lower --cpus-per-task.",
        )


def notes(spec: JobSpec) -> tuple[str, ...]:
    """What differs from what was asked for, and what Modal does by itself; full sentences."""
    made = []
    for field, why in _LEFT_OUT.items():
        if getattr(spec.schedule, field):
            made.append(f"{why}: --{field} is left out.")
    if spec.schedule.time is None or app.time_limit(spec) != spec.schedule.time:
        why = f"--max-cost {spec.max_cost:g} buys no more" if spec.max_cost else "Modal's longest run is 24h"
        made.append(f"It is ended after {format_duration(app.time_limit(spec))}: {why}.")
    if (asked := prices.stage(spec).time) and (given := app.first_time(spec)) != asked:
        made.append(f"The step {prices.STAGE} is ended after {format_duration(given)}, as the job is.")
    if spec.resources.gpus_per_node and spec.resources.gpus_per_node.type is None and spec.gpus:
        made.append("Modal needs a type of GPU, and none is named: H100 is taken.")
    if spec.environment.workdir:
        made.append("The working folder is empty there, unless it is on a volume: take files along with --files.")
    if spec.environment.interpreter:
        made.append("The image brings its own Python: --interpreter is left out.")
    if spec.max_cost and not spec.resources.memory_limit and (held := prices.memory_limit(spec)):
        made.append(f"Memory is held at {format_memory(held)}, so that the ceiling holds: --memory-limit sets more.")
    made.append(prices.note(spec, app.time_limit(spec) + app.MARGIN))
    made.append("Modal may move a job to another machine; it is then started again from its beginning.")
    made.append("Results are fetched while a kernel watches; Modal keeps each part for 7 days from when it is written.")
    return tuple(made)
