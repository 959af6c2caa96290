"""What the advice wants to know of the cluster that a job goes to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from clusterkernel.advice.base import Facts
from clusterkernel.backends.slurm import tables
from clusterkernel.backends.slurm.commands import Transport
from clusterkernel.errors import BackendUnavailable
from clusterkernel.formats.sbatch import values as sbatch_values
from clusterkernel.spec import JobSpec

__all__ = ["gather", "goes_to"]

_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
# Switches that make --network mean something: HPE Slingshot, and Cray's of old.
_FABRICS: Final = ("slingshot", "cray", "hpe")


def gather(transport: Transport, spec: JobSpec) -> Facts:
    """The facts for a job; what the cluster does not tell stays unknown. Never raises."""
    config = _config(transport)
    if not config:
        return Facts()  # it does not answer: the other questions would wait as long
    partition, default, longest = _partition(transport, spec)
    cpus, memory, gpus, features = _nodes(transport, spec, partition)
    version = _VERSION.search(config.get("SLURM_VERSION", ""))
    ram = config.get("ConstrainRAMSpace", "").lower()
    switch = config.get("SwitchType", "").lower()
    size = config.get("MaxArraySize", "")
    return Facts(
        version=(int(version[1]), int(version[2])) if version else None,
        node_cpus=cpus,
        node_memory=memory,
        node_gpus=gpus,
        features=features,
        default_time=default,
        longest_time=longest,
        hard_memory={"yes": True, "true": True, "no": False, "false": False}.get(ram),
        operator=_operator(transport),
        array_size=int(size) if size.isdigit() else None,
        submitted=_room(transport),
        network_option=any(name in switch for name in _FABRICS) if switch else None,
    )


def _ask(transport: Transport, *argv: str) -> str:
    try:
        answer = transport.query(*argv)
    except BackendUnavailable:
        return ""
    return answer.out if answer.ok else ""


def _config(transport: Transport) -> Mapping[str, str]:
    pairs = (line.partition("=") for line in _ask(transport, "scontrol", "show", "config").splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _time(text: str) -> int | None:
    try:
        return sbatch_values.time(text)
    except ValueError:
        return None


def goes_to(transport: Transport, spec: JobSpec) -> str | None:
    """The partition that the job goes to: the first that it names, or the cluster's default."""
    return _partition(transport, spec)[0]


def _partition(transport: Transport, spec: JobSpec) -> tuple[str | None, int | None, int | None]:
    """The partition that the job goes to, its default time and its longest."""
    asked = (spec.schedule.partition or "").split(",")[0]
    for line in _ask(transport, "sinfo", "-h", "-o", "%P|%L|%l").splitlines():
        name, default, longest = (part.strip() for part in line.split("|"))
        if name.rstrip("*") == asked or (not asked and name.endswith("*")):
            return name.rstrip("*"), _time(default), _time(longest)
    return None, None, None


def _nodes(
    transport: Transport, spec: JobSpec, partition: str | None
) -> tuple[int | None, int | None, int | None, tuple[str, ...]]:
    """The largest node that may run it: cores, MiB, GPUs; and all features."""
    try:
        rows = tables.nodes(transport)
    except BackendUnavailable:
        return None, None, None, ()
    rows = [row for row in rows if partition is None or row["partition"] == partition]
    request = spec.resources.gpus_per_node
    kind = request.type if request else None
    fitting = [row for row in rows if kind is None or (row["gpu_type"] or "").lower() == kind] or rows

    def largest(column: str, among: list[dict[str, Any]]) -> int | None:
        return max((row[column] for row in among if row[column] is not None), default=None)

    features = {name for row in rows for name in (row["features"] or "").split(",") if name}
    return (largest("cpus", fitting), largest("memory", fitting), largest("gpus", fitting), tuple(sorted(features)))


def _operator(transport: Transport) -> bool | None:
    text = _ask(transport, "sacctmgr", "-n", "-P", "show", "user", str(_user(transport)), "format=AdminLevel").strip()
    if os.geteuid() == 0:
        return True
    return text.lower() in ("operator", "administrator") if text else None


def _user(transport: Transport) -> str:
    return _ask(transport, "id", "-un", str(os.geteuid())).strip() or str(os.geteuid())


def _room(transport: Transport) -> int | None:
    """How many more jobs may be submitted: the tightest limit of the user's associations, less what is queued."""
    argv = ("sacctmgr", "-n", "-P", "show", "assoc", f"user={_user(transport)}", "format=MaxSubmit")
    limits = [int(word) for word in _ask(transport, *argv).split() if word.isdigit()]
    if not limits:
        return None
    queued = len(_ask(transport, "squeue", "-h", "-r", "-o", "%i", "-u", str(os.geteuid())).splitlines())
    return max(0, min(limits) - queued)
