"""Reads a JobSet."""

from __future__ import annotations

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats.container import reader as container_reader
from clusterkernel.formats.kubernetes import read_pod as kubernetes_read_pod
from clusterkernel.formats.kubernetes.found import Found
from clusterkernel.formats.kubernetes.read_job import MEETS, attempts, job_spec, kind_of, ttl_of
from clusterkernel.formats.kubernetes.read_pod import pod
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.launch.counts import Shape
from clusterkernel.formats.model import How, Runs

__all__ = ["job_set"]


def job_set(found: Found, job: Tree, service: bool) -> tuple[int, int | None]:
    """The nodes of a JobSet; it has no arrays."""
    spec = job.at("spec")
    parts = spec.at("replicatedJobs").items()
    if not parts:
        raise found.error(spec, "has no replicatedJobs.")
    main = _main_part(found, parts)
    for part in parts:
        if part is not main:
            _part_before(found, part, main)
    template = main.at("template", "spec")
    nodes = (found.count(main.at("replicas")) or 1) * (found.count(template.at("parallelism")) or 1)
    if template.at("completionMode").value == "Indexed":
        found.index = "SLURM_NODEID"
    kind_of(found, job, usual=nodes > 1)
    for key in ("name", "replicas", "groupName"):
        if main.at(key).value is not None:
            found.row(main.at(key), "nodes" if key == "replicas" else None, reason="It says nothing of the run.")
    for key in ("completions", "parallelism", "completionMode"):
        if template.at(key).value is not None:
            found.row(template.at(key), "nodes")
    if main.at("dependsOn").value is not None:
        found.row(main.at("dependsOn"), "program.steps", value="the steps before it")
    _network(found, spec)
    _failure_policy(found, spec)
    limit = template.at("backoffLimit")
    if (again := found.count(limit)) is not None:
        why = "" if again == 0 else "All nodes start again together, and not one of them alone."
        found.row(limit, "attempts", How.CHANGED if why else How.EXACT, why)
    job_spec(found, template, in_set=True)
    pod(found, template.at("template"), nodes=nodes, each=nodes > 1)
    ttl_of(found, spec)
    return nodes, None


def _main_part(found: Found, parts: list[Tree]) -> Tree:
    """The replicated job that trains: the last that others do not wait for."""
    awaited = {
        item.at("name").value
        for part in parts
        for item in part.at("dependsOn").items()
        if item.at("status").value == "Complete"
    }
    left = [part for part in parts if part.at("name").value not in awaited]
    if len(left) != 1:
        names = ", ".join(str(part.at("name").value) for part in left)
        raise FormatError(
            f"{found.name}: the replicated jobs {names} run at once, and are unlike.",
            hint="No other platform has that: give each a job of its own.",
        )
    return left[0]


def _part_before(found: Found, part: Tree, main: Tree) -> None:
    """A replicated job that is complete before the training begins: a step on one node."""
    name = found.text(part.at("name")) or "prepare"
    template = part.at("template", "spec")
    containers = template.at("template", "spec", "containers").items()
    if len(containers) != 1 or (found.count(template.at("completions")) or 1) != 1:
        raise found.error(part, "runs before the training on several nodes.", "Give it a job of its own.")
    seconds = found.count(template.at("activeDeadlineSeconds"), least=1)
    if seconds is not None:
        found.row(template.at("activeDeadlineSeconds"), f"stages.{name}.time")
    box = containers[0]
    given = [*(box.at("command").value or []), *(box.at("args").value or [])]
    if not given or not all(isinstance(word, str) for word in given):
        raise found.error(box, "does not say what it runs.", "Name its command.")
    before = len(found.steps)
    text = container_reader.script_of(given, [])
    shape = Shape(1, 1, 0)
    ran = container_reader.read(text, name=found.name, line=box.line or 0, values={}, shape=shape, each=False)
    kubernetes_read_pod.put(found, ran)
    for number in range(before, len(found.steps)):
        called = name if number == before else f"{name}{number - before + 1}"
        found.steps[number] = msgspec.structs.replace(found.steps[number], name=called, runs=Runs.HEAD)
    kubernetes_read_pod.stage(found, box, name, seconds)
    field = f"program.steps.{before}"
    of_main = {leaf.path.removeprefix(main.path): leaf.value for leaf in main.left()}
    for leaf in list(part.left()):
        if any(leaf.path.startswith(f"{box.path}.{key}") for key in ("name", "command", "args")):
            found.row(leaf, field)
        elif of_main.get(leaf.path.removeprefix(part.path), leaf) == leaf.value:
            found.row(leaf, None, reason="It is as in the training.")
        else:
            found.row(leaf, None, How.CHANGED, "The step has what the training has, and no GPUs.")


def _network(found: Found, spec: Tree) -> None:
    for _, tree in spec.at("network").pairs():
        found.row(tree, None, reason=MEETS)
    for key in ("startupPolicy", "successPolicy", "coordinator"):
        if spec.at(key).value is not None:
            found.row(spec.at(key), None, How.CHANGED, "All nodes start together, and all have to do well.", value=key)
    if spec.at("suspend").value is not None:
        found.row(spec.at("suspend"), None, How.DROPPED, "Whether it waits is the platform's own business.")


def _failure_policy(found: Found, spec: Tree) -> None:
    again = found.count(spec.at("failurePolicy", "maxRestarts"))
    if again is not None:
        attempts(found, spec.at("failurePolicy", "maxRestarts"), again)
    for rule in spec.at("failurePolicy", "rules").items():
        reasons, action = rule.at("onJobFailureReasons").value, rule.at("action").value
        others = rule.at("targetReplicatedJobs").value or rule.at("onJobFailureMessagePatterns").value
        if others is None and reasons == ["PodFailurePolicy"] and action != "RestartJobSet":
            found.values["requeue"] = action == "RestartJobSetAndIgnoreMaxRestarts"
            found.row(rule, "requeue", value=str(action))
        elif others is None and reasons == ["DeadlineExceeded"] and action == "FailJobSet":
            found.row(rule, "time", reason="A run that reached its limit does not start again.", value=str(action))
