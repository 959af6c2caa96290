"""Reads what a container needs: cores, memory, GPUs, and its places on disk."""

from __future__ import annotations

import difflib
import math
from typing import Any, Final

from clusterkernel.formats.kubernetes import words
from clusterkernel.formats.kubernetes.found import Found, shown
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.model import How, Mount, SourceField
from clusterkernel.units import GpuRequest

__all__ = ["finish_cpus", "mounts", "resources", "unmounted"]

DEVICES: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915")


def resources(found: Found, tree: Tree) -> int:
    """``requests`` and ``limits``; the count of the GPUs, whose type the labels may name."""
    requests, limits = tree.at("requests"), tree.at("limits")
    gpus = 0
    for device in DEVICES:
        for place in (limits, requests):
            part = place.at(device)
            if part.value is None:
                continue
            size = words.read_quantity(str(part.value))
            if size is None or size != int(size):
                raise found.error(part, f"is {shown(part.value)!r}, and not a count.")
            gpus = max(gpus, int(size))
            found.row(part, "gpus_per_node")
    kind = found.values.pop("gpu type", None)
    if gpus:
        found.values["gpus_per_node"] = GpuRequest(gpus, kind)
    elif kind is not None:
        for number, row in enumerate(found.rows):
            if row.field == "gpus_per_node":
                why = "The container asks for no GPUs, and a type alone has no place: ask for some."
                found.rows[number] = SourceField(row.key, row.value, row.line, None, How.DROPPED, why)
    _memory(found, requests.at("memory"), limits.at("memory"))
    _disk(found, requests.at("ephemeral-storage"), limits.at("ephemeral-storage"))
    _cpus(found, requests.at("cpu"), limits.at("cpu"))
    for name in {key: None for place in (limits, requests) for key, _ in place.pairs()}:
        asked, most = requests.at(name), limits.at(name)
        if name in (*DEVICES, "memory", "cpu", "ephemeral-storage") or not words.is_label_key(name):
            continue
        if close := difflib.get_close_matches(name, (*DEVICES, "memory", "cpu", "ephemeral-storage"), 1, 0.9):
            for tree in [one for one in (most, asked) if one.value is not None]:
                found.row(tree, None, How.DROPPED, f"Did you mean {close[0]}, for {name}? No node has that.")
            continue
        told = most if most.value is not None else asked
        if words.read_quantity(str(told.value)) is not None:
            found.option(told, f"resource.{name}={told.value}")
            if asked.value is not None and told is most:
                found.row(asked, f"extra.kubernetes.resource.{name}")
    return gpus


def _size(found: Found, tree: Tree) -> tuple[int, bool] | None:
    if tree.value is None:
        return None
    read = words.read_memory(str(tree.value))
    if read is None:
        raise found.error(tree, f"is {shown(tree.value)!r}, and not a size.")
    return read


def _memory(found: Found, request: Tree, limit: Tree) -> None:
    asked, most = _size(found, request), _size(found, limit)
    _not_below(found, limit, asked and asked[0], most and most[0])
    if asked is not None:
        _sized(found, request, "memory", asked)
    if most is not None and asked is not None and most[0] > asked[0]:
        _sized(found, limit, "memory_limit", most)
    elif most is not None:
        if asked is None:
            found.values["memory"] = most[0]
        found.row(limit, "memory")


def _not_below(found: Found, limit: Tree, asked: float | None, most: float | None) -> None:
    if asked is not None and most is not None and most < asked:
        raise found.error(limit, "is below what is requested.", "Raise the limit or lower the request.")


def _sized(found: Found, tree: Tree, field: str, size: tuple[int, bool]) -> None:
    mib, whole = size
    found.values[field] = mib
    found.row(tree, field, How.EXACT if whole else How.CHANGED, "" if whole else f"It is rounded up to {mib} MiB.")


def _disk(found: Found, request: Tree, limit: Tree) -> None:
    for tree in (request, limit):
        if (size := _size(found, tree)) is not None:
            found.values["ephemeral_disk"] = max(size[0], found.values.get("ephemeral_disk", 0))
            found.row(tree, "ephemeral_disk")


def _cpus(found: Found, request: Tree, limit: Tree) -> None:
    told = request if request.value is not None else limit
    if told.value is None:
        return
    size = words.read_quantity(str(told.value))
    if size is None or size <= 0:
        raise found.error(told, f"is {shown(told.value)!r}, and not a number of cores.")
    found.values["cpus"] = max(1, math.ceil(size))
    whole = size == int(size)
    found.row(
        told, "cpus_per_task", How.EXACT if whole else How.CHANGED, "" if whole else "It is rounded up to whole cores."
    )
    if told is request and limit.value is not None:
        most = words.read_quantity(str(limit.value))
        _not_below(found, limit, float(size), None if most is None else float(most))
        same = most == size
        why = "" if same else "A second number for cores has no place: the request counts."
        found.row(limit, "cpus_per_task" if same else None, How.EXACT if same else How.DROPPED, why)


def ranks_of(found: Found) -> int:
    """Ranks of a node, as the spec will have them."""
    gpus = found.values.get("gpus_per_node")
    asked = found.values.get("tasks_per_node")
    return asked or (gpus.count if isinstance(gpus, GpuRequest) else 1)


def finish_cpus(found: Found) -> None:
    """Cores of a rank from those of the node."""
    total = found.values.pop("cpus", None)
    if total is None:
        return
    ranks = ranks_of(found)
    each = max(1, total // ranks)
    found.values["cpus_per_task"] = each
    if each * ranks != total:
        for number, row in enumerate(found.rows):
            if row.field == "cpus_per_task":
                why = f"{total} cores do not divide by {ranks} ranks: {each} for each."
                why = f"{row.reason} {why}" if row.reason else why
                found.rows[number] = SourceField(row.key, row.value, row.line, row.field, How.CHANGED, why)


def mounts(found: Found, tree: Tree, volumes: dict[Any, Tree]) -> None:
    """What the container sees of the pod's volumes."""
    for item in tree.items():
        name, place = item.at("name").value, found.text(item.at("mountPath"))
        volume = volumes.get(name)
        if volume is None or place is None:
            raise found.error(item, f"names the volume {name!r}, which the pod does not have.")
        _mount(found, item, volume, place)


def _mount(found: Found, item: Tree, volume: Tree, place: str) -> None:
    claim = volume.at("persistentVolumeClaim", "claimName").value
    empty, host = volume.at("emptyDir"), volume.at("hostPath", "path").value
    below = item.at("subPath").value
    memory = isinstance(empty.value, dict) and empty.at("medium").value == "Memory"
    if claim is not None:
        found.volumes.append((str(claim), place))
        why = f"Its folder {below} alone is mounted here; elsewhere it is all of the volume." if below else ""
        found.row(item, f"volumes.{claim}", How.CHANGED if below else How.EXACT, why, f"{claim}:{place}")
        found.row(volume, f"volumes.{claim}", value=str(claim))
    elif memory and place.rstrip("/") == "/dev/shm":
        size = _size(found, empty.at("sizeLimit"))
        if size is not None:
            found.values["shm"] = size[0]
        how = How.EXACT if size else How.CHANGED
        why = "" if size else "It has no limit but the memory of the job."
        found.row(item, "shm" if size else None, how, why, place)
        found.row(volume, "shm" if size else None, how, why, str(empty.at("sizeLimit").value or "no limit"))
    elif host is not None:
        mount = Mount(str(host), place, "ro" if item.at("readOnly").value is True else "")
        field = f"program.mounts.{len(found.mounts)}"
        found.mounts.append(mount)
        found.row(item, field, value=mount.text)
        found.row(volume, field, value=str(host))
    elif empty.value is not None:
        why = "Scratch space of the pod; elsewhere a folder of the node's own disk is there for that."
        found.row(item, None, How.DROPPED, why, place)
        found.row(volume, None, How.DROPPED, why, str(name_of(volume)))
    else:
        why = "What is mounted there lies in the cluster: an object, or a file system that only it reaches."
        found.row(item, None, How.DROPPED, why, place)
        found.row(volume, None, How.DROPPED, why, str(name_of(volume)))


def name_of(volume: Tree) -> str:
    """A volume's kind, for a person."""
    kinds = [key for key, _ in volume.pairs() if key != "name"]
    return kinds[0] if kinds else "volume"


def unmounted(found: Found, volume: Tree) -> None:
    """A volume that the container does not see."""
    if list(volume.left()):
        found.dropped(volume, "The training does not mount it.")
