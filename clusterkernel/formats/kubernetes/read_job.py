"""Reads a Job, and what a Job says within other kinds."""

from __future__ import annotations

import re
from typing import Final

from clusterkernel.formats.kubernetes.found import Found
from clusterkernel.formats.kubernetes.read_pod import pod
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.model import How

__all__ = ["MEETS", "attempts", "job", "job_spec", "kind_of", "ttl_of"]

MEETS: Final = "Where the nodes meet is derived inside the job."

# What a program says whose pods are the nodes of one run.
_MEETING: Final = re.compile(
    r"MASTER_ADDR|rdzv[_-]endpoint|--master[_-]addr|--(nnodes|num[_-]machines)[= ]\W*([2-9]|1\d|[A-Za-z{])"
)
_MOST_ATTEMPTS: Final = 100


def job(found: Found, tree: Tree, service: bool) -> tuple[int, int | None]:
    """The nodes, and the tasks of an array, of a Job."""
    spec = tree.at("spec")
    tasks, several = _tasks(found, spec, service)
    nodes = tasks if several else 1
    if _indexed(spec):
        found.index = "SLURM_NODEID" if several else "SLURM_ARRAY_TASK_ID"
    kind_of(found, tree, usual=nodes == 1)
    _attempts_of_job(found, spec, tasks)
    job_spec(found, spec, in_set=False)
    pod(found, spec.at("template"), nodes=nodes, each=nodes > 1)
    subdomain = spec.at("template", "spec", "subdomain")
    if subdomain.value is not None:
        found.row(subdomain, None, How.CHANGED, MEETS)
    ttl_of(found, spec)
    return nodes, (tasks if tasks > 1 or _indexed(spec) else None) if not several else None


def _indexed(spec: Tree) -> bool:
    return bool(spec.at("completionMode").value == "Indexed")


def _tasks(found: Found, spec: Tree, service: bool) -> tuple[int, bool]:
    """How many pods, and whether they are the nodes of one run (and not the tasks of an array)."""
    completions, parallelism = spec.at("completions"), spec.at("parallelism")
    tasks = found.count(completions, least=1) or 1
    at_once = found.count(parallelism) or 1
    together = at_once >= tasks and tasks > 1
    text = str(spec.at("template", "spec").value)
    meets = spec.at("template", "spec", "subdomain").value is not None or service
    meets = meets or _MEETING.search(text) is not None
    several = together and meets
    field = "nodes" if several else "array"
    if completions.value is not None:
        found.row(completions, field if tasks > 1 or _indexed(spec) else None)
    if parallelism.value is not None:
        if several or (at_once == tasks):
            found.row(parallelism, field if tasks > 1 else None)
        elif tasks > 1:
            found.exact(parallelism, "parallelism", at_once)
        else:
            found.row(parallelism, None, How.CHANGED, "There is one pod.")
    mode = spec.at("completionMode")
    if mode.value is not None:
        found.row(mode, field if tasks > 1 else None)
    elif tasks > 1 and not several:
        found.assumed("spec.completionMode", "NonIndexed", "array", "The tasks get an index, which they had not.")
    return tasks, several


def attempts(found: Found, tree: Tree, again: int, *, why: str = "") -> None:
    """How often it may start, from how often again."""
    most = min(again + 1, _MOST_ATTEMPTS)
    if most < again + 1:
        why = f"A job here starts at most {_MOST_ATTEMPTS} times."
    found.values["attempts"] = most
    found.row(tree, "attempts", How.CHANGED if why else How.EXACT, why)


def _attempts_of_job(found: Found, spec: Tree, tasks: int) -> None:
    limit = spec.at("backoffLimit")
    again = found.count(limit)
    if (each := found.count(spec.at("backoffLimitPerIndex"))) is not None:
        attempts(found, spec.at("backoffLimitPerIndex"), each)
        if again is not None:
            found.row(limit, None, How.DROPPED, "No other platform counts failures of all tasks together.")
    elif again is None:
        found.values["attempts"] = 7
        found.assumed(
            "spec.backoffLimit", "6", "attempts", "Nobody says how often: Kubernetes starts it 6 times again."
        )
    elif tasks > 1 and again:
        attempts(found, limit, -(-again // tasks), why=f"It counts pods, of {tasks} together.")
    else:
        attempts(found, limit, again)


def job_spec(found: Found, spec: Tree, *, in_set: bool) -> None:
    """What a Job says beside its pods' template and its counts."""
    limit = spec.at("activeDeadlineSeconds")
    if (seconds := found.count(limit, least=1)) is not None:
        found.exact(limit, "time", seconds)
    policy = spec.at("template", "spec", "restartPolicy")
    if policy.value == "Never":
        found.row(policy, "attempts")
    elif policy.value is not None:
        found.row(policy, "attempts", How.CHANGED, "A failed run starts anew, and not within its container.")
    rules = spec.at("podFailurePolicy", "rules")
    for rule in rules.items():
        conditions = rule.at("onPodConditions").items()
        disrupted = [item.at("type").value for item in conditions] == ["DisruptionTarget"]
        action = rule.at("action").value
        if disrupted and action in ("Ignore", "FailJob") and rule.at("onExitCodes").value is None:
            if not in_set:
                found.values["requeue"] = action == "Ignore"
            found.row(rule, "requeue", value=str(action))
    suspend = spec.at("suspend")
    if suspend.value is not None:
        found.row(suspend, None, How.DROPPED, "Whether it waits is the platform's own business.")


def kind_of(found: Found, tree: Tree, *, usual: bool) -> None:
    """The kind, which is kept where the number of nodes does not say it."""
    kind = tree.at("kind")
    if usual:
        found.row(kind, None, reason="It follows from the number of nodes.")
    else:
        found.extra.append(f"kind={kind.value}")
        found.row(kind, "extra.kubernetes.kind")


def ttl_of(found: Found, spec: Tree) -> None:
    """How long a finished job stays."""
    ttl = spec.at("ttlSecondsAfterFinished")
    if (seconds := found.count(ttl)) is not None:
        found.option(ttl, f"ttl={seconds}")
