"""What Modal does not take: its client checks little of it, its server the rest (guide pages of 2026)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from clusterkernel.errors import nearest
from clusterkernel.formats import gpu_names
from clusterkernel.formats.limits import Limit, set_field
from clusterkernel.spec import JobSpec
from clusterkernel.units import GpuRequest, format_duration, format_memory

__all__ = ["LONGEST", "LONGEST_PAUSE", "MOST_RETRIES", "is_name", "limits"]

LONGEST: Final = 86_400  # seconds of one attempt
MOST_RETRIES: Final = 10
LONGEST_PAUSE: Final = 60
LARGEST_DISK: Final = 3_145_728  # MiB
USUAL_DISK: Final = 524_288
MOST_NODES: Final = 32
HOST: Final = 8  # GPUs of a host
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_APP: Final = re.compile(r"ap-[A-Za-z0-9]{22}")
_TAKEN: Final = frozenset({"/", "/root", "/tmp"})


def is_name(text: str) -> bool:
    """Whether an app, a volume or a secret may be called so."""
    return _NAME.fullmatch(text) is not None and _APP.fullmatch(text) is None


def limits(spec: JobSpec) -> Iterator[Limit]:
    """All that this spec runs into on Modal."""
    yield from _gpus(spec)
    yield from _cluster(spec)
    time = spec.schedule.time
    if time is not None and time > LONGEST:
        yield Limit(
            rule="modal-time",
            field="time",
            message=f"--time {format_duration(time)} is longer than Modal's longest run, 24h.",
            hint="Set --time 24h, more --attempts, and go on from a checkpoint on a volume.",
            change=set_field("time", LONGEST),
            fatal=False,
        )
    retries = spec.recovery.attempts - 1
    if retries > MOST_RETRIES:
        yield Limit(
            rule="modal-retries",
            field="attempts",
            message=f"--attempts {retries + 1} are {retries} retries, and Modal's documents go to {MOST_RETRIES}.",
            hint=f"Set --attempts {MOST_RETRIES + 1}.",
            change=set_field("attempts", MOST_RETRIES + 1),
            fatal=False,
        )
    pause = spec.recovery.backoff
    if pause is not None and pause > LONGEST_PAUSE:
        yield Limit(
            rule="modal-backoff",
            field="backoff",
            message=f"--backoff {format_duration(pause)} is longer than Modal's longest pause, 60s.",
            hint="Set --backoff 60s.",
            change=set_field("backoff", LONGEST_PAUSE),
            fatal=False,
        )
    disk = spec.storage.ephemeral_disk
    if disk is not None and disk > LARGEST_DISK:
        yield Limit(
            rule="modal-disk",
            field="ephemeral_disk",
            message=f"--ephemeral-disk {format_memory(disk)} is more than Modal gives, 3T.",
            hint="Set --ephemeral-disk 3T, or keep the data on a volume.",
            change=set_field("ephemeral_disk", LARGEST_DISK),
        )
    for volume in spec.storage.volumes:
        if volume.place in _TAKEN:
            yield Limit(
                rule="modal-mount",
                field="volumes",
                message=f"--volumes {volume.name}:{volume.mount}: Modal mounts nothing at {volume.mount}.",
                hint="Mount it below, such as /data.",
            )
    mounts: dict[str, str] = {}
    for volume in spec.storage.volumes:
        if (other := mounts.setdefault(volume.name, volume.place)) != volume.place:
            yield Limit(
                rule="modal-volume",
                field="volumes",
                message=f"--volumes {volume.name} is mounted at {other} and {volume.place}: Modal mounts it once.",
                hint="Keep one of them: the other can be a link to it, made by a --setup line.",
            )


def _gpus(spec: JobSpec) -> Iterator[Limit]:
    gpus = spec.resources.gpus_per_node
    if gpus is None:
        return
    if gpus.type is not None and gpus.type not in gpu_names.MODAL:
        yield Limit(
            rule="modal-gpu",
            field="gpus_per_node",
            message=f"--gpus-per-node {gpus}: Modal has no GPU {gpus.type}.",
            hint=nearest(gpus.type, gpu_names.MODAL),
        )
        return
    name = gpu_names.MODAL.get(gpus.type or "", "")
    most = gpu_names.MODAL_MOST.get(name, HOST)
    if gpus.count > most:
        nodes, rest = divmod(gpus.count, most)
        whole = not rest and most == HOST and spec.resources.nodes * nodes <= MOST_NODES
        hint = (
            f"Ask for {spec.resources.nodes * nodes} nodes with {most} each." if whole else f"Ask for at most {most}."
        )
        yield Limit(
            rule="modal-gpu-count",
            field="gpus_per_node",
            message=f"--gpus-per-node {gpus}: a container of Modal's has at most {most} {name or 'GPUs'}.",
            hint=hint,
            change=_spread(nodes, most) if whole else None,
        )


def _spread(nodes: int, most: int) -> Callable[[JobSpec], JobSpec]:
    def change(spec: JobSpec) -> JobSpec:
        gpus = spec.resources.gpus_per_node
        assert gpus is not None
        resources = msgspec.structs.replace(
            spec.resources, nodes=spec.resources.nodes * nodes, gpus_per_node=GpuRequest(most, gpus.type)
        )
        return msgspec.structs.replace(spec, resources=resources)

    return change


def _cluster(spec: JobSpec) -> Iterator[Limit]:
    nodes, gpus = spec.resources.nodes, spec.resources.gpus_per_node
    if nodes == 1:
        return
    if gpus is None:
        yield Limit(
            rule="modal-cluster",
            field="nodes",
            message=f"--nodes {nodes}: a cluster of Modal's has GPUs, and none are asked for.",
            hint=f"Ask for --gpus-per-node h100:{HOST}, or for one node.",
        )
    elif gpus.count < (host := gpu_names.MODAL_MOST.get(gpu_names.MODAL.get(gpus.type or "", ""), HOST)):
        yield Limit(
            rule="modal-cluster",
            field="gpus_per_node",
            message=f"--gpus-per-node {gpus}: the nodes of a Modal cluster have all GPUs of their host, {host}.",
            hint=f"Ask for {host} on each node, or for one node.",
        )
    if nodes > MOST_NODES:
        yield Limit(
            rule="modal-cluster",
            field="nodes",
            message=f"--nodes {nodes}: a cluster of Modal's has at most {MOST_NODES} nodes.",
            hint=f"Ask for at most {MOST_NODES}.",
        )
