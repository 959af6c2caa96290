"""Reads Kubeflow's jobs: PyTorchJob of its training operator, and TrainJob of its trainer."""

from __future__ import annotations

import msgspec

from clusterkernel.formats.kubernetes import read_pod as kubernetes_read_pod
from clusterkernel.formats.kubernetes.found import Found
from clusterkernel.formats.kubernetes.objects import NODES
from clusterkernel.formats.kubernetes.read_job import attempts, kind_of, ttl_of
from clusterkernel.formats.kubernetes.read_needs import mounts, resources, unmounted
from clusterkernel.formats.kubernetes.read_nodes import placement, scheduling
from clusterkernel.formats.kubernetes.read_pod import labels, pod
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.launch.counts import Shape
from clusterkernel.formats.model import How, Runs, SourceField

__all__ = ["pytorch_job", "train_job"]


def pytorch_job(found: Found, job: Tree, service: bool) -> tuple[int, int | None]:
    """The nodes of a PyTorchJob; it has no arrays."""
    spec = job.at("spec")
    why = "The operator of PyTorchJob has been replaced: it is written as a Job, or a JobSet."
    found.row(job.at("kind"), None, How.CHANGED, why)
    replicas = {key: tree for key, tree in spec.at("pytorchReplicaSpecs").pairs() if key in ("Master", "Worker")}
    if not replicas:
        raise found.error(spec, "has no pytorchReplicaSpecs.")
    main = replicas.get("Master") or replicas["Worker"]
    nodes = 0
    for _, tree in replicas.items():
        count = tree.at("replicas")
        nodes += found.count(count) if count.value is not None else 1  # type: ignore[operator]
        if count.value is not None:
            found.row(count, "nodes")
    _elastic(found, spec)
    per_node = spec.at("nprocPerNode")
    if per_node.value is not None and str(per_node.value).isdigit():
        found.exact(per_node, "tasks_per_node", int(str(per_node.value)))
    elif per_node.value is not None:
        found.row(per_node, "tasks_per_node", reason="One rank for each GPU.")
    _run_policy(found, spec.at("runPolicy"))
    pod(found, main.at("template"), nodes=max(1, nodes), each=nodes > 1)
    _launched(found, max(1, nodes))
    _same_pods(found, main, replicas)
    restart = main.at("restartPolicy")
    if restart.value is not None:
        never = restart.value == "Never"
        why = "" if never else "A failed run starts anew, and not one of its pods."
        found.row(restart, "attempts", How.EXACT if never else How.CHANGED, why)
    return max(1, nodes), None


def _elastic(found: Found, spec: Tree) -> None:
    for key, tree in spec.at("elasticPolicy").pairs():
        if key in ("nProcPerNode",) and str(tree.value).isdigit():
            found.exact(tree, "tasks_per_node", int(str(tree.value)))
        else:
            found.row(tree, None, How.CHANGED, "The number of nodes is fixed, and where they meet is derived.")


def _run_policy(found: Found, policy: Tree) -> None:
    limit = policy.at("activeDeadlineSeconds")
    if (seconds := found.count(limit, least=1)) is not None:
        found.exact(limit, "time", seconds)
    again = found.count(policy.at("backoffLimit"))
    if again is not None:
        attempts(found, policy.at("backoffLimit"), again)
    ttl_of(found, policy)
    queue = policy.at("schedulingPolicy", "queue")
    if (name := found.text(queue)) is not None:
        found.exact(queue, "partition", name)
    chosen = policy.at("schedulingPolicy", "priorityClass")
    if (name := found.text(chosen)) is not None:
        found.exact(chosen, "priority", name)
    for key in ("cleanPodPolicy", "suspend", "managedBy"):
        if policy.at(key).value is not None:
            found.row(policy.at(key), None, How.DROPPED, "Only the operator of PyTorchJob has it.")


def _launched(found: Found, nodes: int) -> None:
    """A program that the operator starts once on each node, with the variables that torchrun sets."""
    if nodes == 1 or found.values.get("launcher") or not found.steps:
        return
    step = found.steps[-1]
    words = step.shell.split()
    if words and words[0].rpartition("/")[2].startswith("python"):
        shell = step.shell.split(None, 1)[1] if len(words) > 1 else ""
        found.steps[-1] = msgspec.structs.replace(step, shell=shell, launched=True, runs=Runs.NODES)
        found.values["launcher"] = "torchrun"
        found.values.setdefault("tasks_per_node", 1)
        why = "The operator sets the variables of a rank on each node; torchrun does elsewhere."
        found.rows.append(SourceField("the operator", "", None, "launcher", How.CHANGED, why))


def _same_pods(found: Found, main: Tree, replicas: dict[str, Tree]) -> None:
    for _, tree in replicas.items():
        if tree.path == main.path:
            continue
        same = tree.at("template").value == main.at("template").value
        why = "" if same else "All nodes are as the first one."
        how = How.EXACT if same else How.CHANGED
        for leaf in list(tree.left()):
            found.row(leaf, None, how, why)


def train_job(found: Found, job: Tree, service: bool) -> tuple[int, int | None]:
    """The nodes of a TrainJob; it has no arrays."""
    spec, trainer = job.at("spec"), job.at("spec", "trainer")
    kind_of(found, job, usual=False)
    nodes = found.count(trainer.at("numNodes"), least=1) or 1
    if trainer.at("numNodes").value is not None:
        found.row(trainer.at("numNodes"), "nodes")
    else:
        found.assumed("spec.trainer.numNodes", "1", "nodes", "The runtime says it, which is an object of the cluster.")
    runtime = spec.at("runtimeRef")
    if (name := found.text(runtime.at("name"))) is not None:
        found.option(runtime.at("name"), f"runtime={name}")
    if runtime.at("kind").value in ("ClusterTrainingRuntime", "TrainingRuntime"):
        found.option(runtime.at("kind"), f"runtime-kind={runtime.at('kind').value}")
    if runtime.at("apiGroup").value is not None:
        found.row(runtime.at("apiGroup"), None, reason="It belongs to the kind.")
    for patch in spec.at("runtimePatches").items():
        _patch(found, patch)
    per_node = found.count(trainer.at("numProcPerNode"), least=1)
    if per_node is not None:
        found.exact(trainer.at("numProcPerNode"), "tasks_per_node", per_node)
    limit = spec.at("activeDeadlineSeconds")
    if (seconds := found.count(limit, least=1)) is not None:
        found.exact(limit, "time", seconds)
    if trainer.at("image").value is not None:
        kubernetes_read_pod.image(found, trainer.at("image"))
    gpus = resources(found, trainer.at("resourcesPerNode"))
    kubernetes_read_pod.environment(found, trainer.at("env"))
    shape = Shape(nodes, 1, gpus)
    kubernetes_read_pod.command(found, trainer.at("command"), trainer.at("args"), shape, each=nodes > 1)
    if spec.at("suspend").value is not None:
        found.row(spec.at("suspend"), None, How.DROPPED, "Whether it waits is the platform's own business.")
    return nodes, None


def _patch(found: Found, patch: Tree) -> None:
    """What a TrainJob changes of its runtime's pods."""
    if patch.at("manager").value is not None:
        found.row(patch.at("manager"), None, reason="It says who wrote the patch, and nothing of the run.")
    for part in patch.at("trainingRuntimeSpec", "template", "spec", "replicatedJobs").items():
        if part.at("name").value != NODES:
            continue
        found.row(part.at("name"), None, reason="The training's own part of the runtime.")
        template = part.at("template", "spec", "template")
        labels(found, template)
        spec = template.at("spec")
        placement(found, spec)
        scheduling(found, spec)
        volumes = {item.at("name").value: item for item in spec.at("volumes").items()}
        for container in spec.at("containers").items():
            if container.at("name").value == NODES:
                found.row(container.at("name"), None, reason="A container's name says nothing of the run.")
                kubernetes_read_pod.environment(found, container.at("env"))
                mounts(found, container.at("volumeMounts"), volumes)
        for volume in volumes.values():
            unmounted(found, volume)
