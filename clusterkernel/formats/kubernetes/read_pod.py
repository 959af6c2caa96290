"""Reads the pod of a job: the container that trains, and those that run before it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from clusterkernel.formats import secrets
from clusterkernel.formats.container import reader as container_reader
from clusterkernel.formats.kubernetes import words
from clusterkernel.formats.kubernetes.extra import Extra
from clusterkernel.formats.kubernetes.found import Found, is_secret, shown
from clusterkernel.formats.kubernetes.pod import RANKS, secret_of
from clusterkernel.formats.kubernetes.read_needs import DEVICES, mounts, resources, unmounted
from clusterkernel.formats.kubernetes.read_nodes import placement, scheduling
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.launch.counts import Shape
from clusterkernel.formats.model import How, Runs

__all__ = ["command", "environment", "image", "labels", "pod", "put", "stage"]

_DERIVED: Final = frozenset(
    "MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK NODE_RANK GROUP_RANK LOCAL_WORLD_SIZE NNODES "
    "PET_MASTER_ADDR PET_MASTER_PORT PET_NNODES PET_NODE_RANK PET_RDZV_ENDPOINT PET_RDZV_BACKEND PET_RDZV_ID".split()
)
_MEETS: Final = "Where the nodes meet is derived inside the job."
_INDEX: Final = re.compile(r"(\$\{?)JOB_COMPLETION_INDEX\b")
_COUNTS: Final = (RANKS, "PET_NPROC_PER_NODE", "NPROC_PER_NODE")
_MAIN: Final = ("main", "node", "trainer", "pytorch", "master", "worker", "training")


def pod(found: Found, template: Tree, *, nodes: int, each: bool) -> None:
    """The template of the pods.

    Parameters
    ----------
    found : Found
        Takes what is there.
    template : Tree
        With ``metadata`` and ``spec``.
    nodes : int
        Of the job.
    each : bool
        The script of a pod runs in several at once.
    """
    labels(found, template)
    spec = template.at("spec")
    containers = spec.at("containers").items()
    if not containers:
        raise found.error(spec, "has no containers.", "A pod runs at least one.")
    main = _main(containers)
    placement(found, spec)
    scheduling(found, spec)
    volumes = {item.at("name").value: item for item in spec.at("volumes").items()}
    before = spec.at("initContainers").items()
    gpus = resources(found, main.at("resources"))
    for first in before:
        _stage(found, first, nodes)
    container(found, main, volumes, Shape(nodes, 1, gpus), each=each)
    for other in containers:
        if other.path != main.path:
            found.dropped(other, "A container beside the training: no other platform runs two.")
    for tree in volumes.values():
        unmounted(found, tree)


def labels(found: Found, template: Tree) -> None:
    """Labels and annotations of the pods."""
    for group, prefix in (("labels", "label"), ("annotations", "annotation")):
        for key, tree in template.at("metadata", group).pairs():
            found.option(tree, f"{prefix}.{key}={tree.value}")


def _main(containers: Sequence[Tree]) -> Tree:
    """The container that trains: by its GPUs, else by its name, else the first."""
    for item in containers:
        limits = item.at("resources", "limits").value or {}
        if isinstance(limits, dict) and any(str(key) in DEVICES for key in limits):
            return item
    return next((item for item in containers if item.at("name").value in _MAIN), containers[0])


def container(found: Found, tree: Tree, volumes: dict[Any, Tree], shape: Shape, *, each: bool) -> None:
    """The container that trains."""
    if tree.at("name").value is not None:
        found.row(tree.at("name"), None, reason="A container's name says nothing of the run.")
    image(found, tree.at("image"))
    policy = tree.at("imagePullPolicy")
    if policy.value in ("Always", "IfNotPresent", "Never"):
        found.option(policy, f"pull-policy={policy.value}")
    if (folder := found.text(tree.at("workingDir"))) is not None:
        found.exact(tree.at("workingDir"), "workdir", folder)
    environment(found, tree.at("env"))
    mounts(found, tree.at("volumeMounts"), volumes)
    command(found, tree.at("command"), tree.at("args"), shape, each=each)
    for item in tree.at("ports").items():
        found.row(item, None, reason="Where the nodes meet is derived inside the job.")
    capabilities = tree.at("securityContext", "capabilities", "add")
    if capabilities.value == ["IPC_LOCK"]:
        found.changed(
            capabilities, None, "RDMA pins memory: the platform's own nodes allow it, or its profile says so."
        )


def image(found: Found, tree: Tree) -> None:
    """The container's image."""
    if (name := found.text(tree)) is not None:
        found.exact(tree, "image", name)


def environment(found: Found, tree: Tree) -> None:
    """Environment variables: literals, secrets by reference, and what the platform knows itself."""
    for item in tree.items():
        name = found.text(item.at("name"))
        if name is None:
            continue
        value, source = item.at("value").value, item.at("valueFrom")
        secret = source.at("secretKeyRef").value
        if isinstance(secret, dict):
            given = (str(secret.get("name", "")), str(secret.get("key", "")))
            found.secrets.append(name)
            if given == secret_of(name, Extra()):
                found.row(item, f"secrets.{name}", value=f"{given[0]}/{given[1]}")
            else:
                found.extra.append(f"secret.{name}={given[0]}/{given[1]}")
                why = "The variable's name stands for the Secret; Kubernetes alone needs to know which."
                found.row(item, f"secrets.{name}", How.CHANGED if not all(given) else How.EXACT, why, "/".join(given))
        elif name in _COUNTS and str(value).isdigit():
            found.exact(item, "tasks_per_node", int(str(value)))
        elif found.index and "job-completion-index" in str(source.at("fieldRef", "fieldPath").value):
            found.setup.append(f"export {name}=${found.index}")
            found.elsewhere.append(name)
            found.row(item, f"setup.{len(found.setup) - 1}", value=name)
        elif name in _DERIVED or source.at("fieldRef").value or source.at("resourceFieldRef").value:
            found.elsewhere.append(name)
            found.row(item, None, How.CHANGED, _MEETS if name in _DERIVED else "It is known inside the job only.")
        elif source.value is not None:
            found.elsewhere.append(name)
            found.row(item, None, How.DROPPED, "Its value lies in another object of the cluster.", value=name)
        else:
            _literal(found, item, name, "" if value is None else value)


def _literal(found: Found, item: Tree, name: str, value: Any) -> None:
    if not isinstance(value, str):
        told = secrets.HIDDEN if secrets.is_name(name) else shown(value)
        raise found.error(item.at("value"), f"is {told!r}, and not a text.", "Write it in quotes.")
    text = words.unescape(value)
    if is_secret(name, text):
        found.secrets.append(name)
        why = f"A secret in the clear became a name: %cluster_secret set {name} keeps its value."
        found.row(item, f"secrets.{name}", How.CHANGED, why, secrets.HIDDEN)
        return
    for known, other in found.env.items():
        text = text.replace(f"$({known})", other)
    found.env[name] = text
    changed = text != words.unescape(value)
    why = "Its variables stand there with their values." if changed else ""
    found.row(item, f"env.{name}", How.CHANGED if changed else How.EXACT, why, f"{name}={shown(text)}")


def command(found: Found, argv: Tree, args: Tree, shape: Shape, *, each: bool) -> None:
    """What the container runs."""
    given = [*(argv.value or []), *(args.value or [])]
    if not all(isinstance(word, str) for word in given):
        raise found.error(argv if argv.value else args, "holds what is no text.", "Write each word in quotes.")
    if not argv.value:
        if args.value:
            found.row(args, None, How.DROPPED, "What they are given to is known to the image alone: name the command.")
        else:
            why = "The image's own command runs, which is known to the image alone: name it for other platforms."
            found.assumed("command", "", "program.steps", why)
        return
    names = [*found.env, *found.secrets, *found.elsewhere, *(["JOB_COMPLETION_INDEX"] if found.index else [])]
    text = container_reader.script_of(given, names)
    if found.index:
        text = _INDEX.sub(rf"\1{found.index}", text)
    last = args if args.value else argv
    place = last.at(len(last.value) - 1)
    line = (place.line or 0) + ("\n" in text)
    ran = container_reader.read(text, name=found.name, line=line, values=found.env, shape=shape, each=each)
    one = len(ran.steps) == 1
    # The words that a manifest names are the command: they have one row.
    put(found, msgspec.structs.replace(ran, rows=tuple(row for row in ran.rows if row.key != "command" or not one)))
    field = f"program.steps.{len(found.steps) - 1}" if one else None
    for tree in (argv, args):
        if tree.value:
            why = "" if one else "Its lines are told one by one."
            found.row(tree, field, reason=why, value=" ".join(tree.value))
    if "tasks_per_node" in found.values:
        return
    if ran.ranks is not None:
        if ran.ranks != (shape.gpus or 1):
            found.values["tasks_per_node"] = ran.ranks
    elif shape.gpus > 1 and ran.steps and not any(one.launched or one.runs is Runs.RANKS for one in ran.steps):
        found.values["tasks_per_node"] = 1
        found.assumed("ranks", "1", None, "A container starts one process, which has all of its GPUs.")


def put(found: Found, ran: container_reader.Ran) -> None:
    """Add what a script does behind what is there already."""
    steps, setup = len(found.steps), len(found.setup)
    args = sum(len(step.launcher_args) for step in found.steps)
    found.rows += [container_reader.shifted(row, steps, args, setup) for row in ran.rows]
    found.steps += ran.steps
    found.setup += [line for line in ran.setup if line not in found.setup]
    found.env.update(ran.env)
    found.secrets += [name for name in ran.secrets if name not in found.secrets]
    found.mounts += ran.mounts
    found.config = found.config or ran.config
    if ran.workdir and "workdir" not in found.values:
        found.values["workdir"] = ran.workdir
    if ran.interpreter:
        found.values["interpreter"] = ran.interpreter
    if ran.launcher.value != "none":
        found.values["launcher"] = ran.launcher.value


def _stage(found: Found, tree: Tree, nodes: int) -> None:
    """A container that runs before the main one: a step, once for each node, with needs of its own."""
    given = [*(tree.at("command").value or []), *(tree.at("args").value or [])]
    name = found.text(tree.at("name")) or "prepare"
    if not given or not all(isinstance(word, str) for word in given):
        found.dropped(tree, "It runs before the training by its image's own command, which is not known here.")
        return
    before = len(found.steps)
    text = container_reader.script_of(given, [])
    shape = Shape(1, 1, 0)
    ran = container_reader.read(text, name=found.name, line=tree.line or 0, values={}, shape=shape, each=nodes > 1)
    put(found, ran)
    runs = Runs.HEAD if nodes == 1 else Runs.NODES
    for number in range(before, len(found.steps)):
        called = name if number == before else f"{name}{number - before + 1}"
        found.steps[number] = msgspec.structs.replace(found.steps[number], name=called, runs=runs)
    stage(found, tree, name, None)
    for key in ("name", "command", "args"):
        if tree.at(key).value is not None:
            found.row(tree.at(key), f"program.steps.{before}")
    for key in ("image", "workingDir", "env", "volumeMounts"):
        if tree.at(key).value is not None:
            found.row(tree.at(key), None, How.CHANGED, "The step has those of the training.", value=key)


def stage(found: Found, tree: Tree, name: str, time: int | None) -> None:
    """The needs of a step that is a container of its own."""
    requests, limits = tree.at("resources", "requests"), tree.at("resources", "limits")
    cpus = memory = None
    for place in (requests, limits):
        if (cpu := place.at("cpu")).value is not None and (size := words.read_quantity(str(cpu.value))):
            cpus = cpus or max(1, math.ceil(size))
            found.row(cpu, f"stages.{name}.cpus_per_task")
        if (part := place.at("memory")).value is not None and (read := words.read_memory(str(part.value))):
            memory = memory or read[0]
            found.row(part, f"stages.{name}.memory")
    if cpus or memory or time:
        found.stages.append((name, cpus, memory, time))
