"""The pod of a job: its container, its places on disk, and the nodes that it may run on."""

from __future__ import annotations

import re
from typing import Any, Final

from clusterkernel.errors import SpecError
from clusterkernel.formats import gpu_names
from clusterkernel.formats.container.image import image_of
from clusterkernel.formats.kubernetes import words
from clusterkernel.formats.kubernetes.extra import Extra, tolerations
from clusterkernel.formats.model import Program, Runs
from clusterkernel.formats.reporting import Report
from clusterkernel.spec import JobSpec, Stage

__all__ = ["RANKS", "container", "pod", "secret_of"]

#: Says how many ranks a node has, where that is not one for each GPU.
RANKS: Final = "CLUSTERKERNEL_TASKS_PER_NODE"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
PRODUCT: Final = "nvidia.com/gpu.product"
SHM: Final = "shm"
_SIGNAL_LEAD: Final = re.compile(r".*@(\d+)")


def secret_of(name: str, extra: Extra) -> tuple[str, str]:
    """The Secret and its key that hold a secret of this name."""
    given = extra.all("secret").get(name)
    if given is None:
        return words.dns_label(name), name
    secret, _, key = given.partition("/")
    return secret, key or name


def container(
    spec: JobSpec, program: Program, extra: Extra, report: Report, *, name: str, command: list[str], shell: str
) -> dict[str, Any]:
    """The container that runs `shell`, by the words of `command` before it.

    Parameters
    ----------
    spec, program : JobSpec, Program
        What is asked for.
    extra : Extra
        What only Kubernetes knows.
    report : Report
        Told of all that goes in here.
    name : str
        The container's name.
    command : list of str
        Words that are executed.
    shell : str
        Their last argument; empty for none.
    """
    made: dict[str, Any] = {"name": name, "image": image_of(spec, program, report)}
    if policy := extra.get("pull-policy"):
        made["imagePullPolicy"] = policy
    made["command"] = [words.escape(word) for word in command]
    if shell:
        made["args"] = [words.escape(shell)]
    workdir = spec.environment.workdir
    if workdir and workdir.startswith("/"):
        made["workingDir"] = workdir
        report.exact("workdir", "workingDir", workdir)
    if env := _env(spec, program, extra, report):
        made["env"] = env
    made["resources"] = _resources(spec, extra, report)
    if mounts := _mounts(spec, program, report):
        made["volumeMounts"] = mounts
    return {key: value for key, value in made.items() if value != {}}


def stage_container(main: dict[str, Any], stage: Stage, spec: JobSpec, *, name: str, shell: str) -> dict[str, Any]:
    """A container like the main one for a step with needs of its own, and without GPUs."""
    made = {**main, "name": name, "args": [words.escape(shell)]}
    requests = {}
    if stage.cpus_per_task is not None:
        requests["cpu"] = words.quantity(stage.cpus_per_task)
    if stage.memory is not None:
        requests["memory"] = words.write_memory(stage.memory)
    limits = {"memory": requests["memory"]} if "memory" in requests else {}
    made.pop("resources", None)
    if requests:
        made["resources"] = {"requests": requests, **({"limits": limits} if limits else {})}
    return made


def _env(spec: JobSpec, program: Program, extra: Extra, report: Report) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for name, value in sorted(spec.environment.env.items()):
        made.append({"name": name, "value": words.escape(value)})
        report.variable(name, f"env {name}", value)
    if spec.resources.tasks_per_node is not None:
        made.append({"name": RANKS, "value": str(spec.resources.tasks_per_node)})
        report.exact("tasks_per_node", f"env {RANKS}", spec.resources.tasks_per_node)
    elif spec.ranks_per_node > 1 and not any(step.launched or step.runs is Runs.RANKS for step in program.steps):
        made.append({"name": RANKS, "value": str(spec.ranks_per_node)})  # its one process does not say so
    for name in spec.environment.secrets:
        secret, key = secret_of(name, extra)
        made.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
        report.exact(f"secrets.{name}", f"env {name} secretKeyRef", f"{secret}/{key}")
        if name in extra.all("secret"):
            report.exact(f"extra.kubernetes.secret.{name}", f"env {name} secretKeyRef", f"{secret}/{key}")
    return made


def _resources(spec: JobSpec, extra: Extra, report: Report) -> dict[str, Any]:
    resources = spec.resources
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if resources.cpus_per_task is not None:
        requests["cpu"] = words.quantity(resources.cpus_per_task * spec.ranks_per_node)
        report.exact("cpus_per_task", "resources.requests.cpu", requests["cpu"])
    if resources.memory is not None:
        requests["memory"] = limits["memory"] = words.write_memory(resources.memory)
        report.exact("memory", "resources.requests.memory", requests["memory"])
    if resources.memory_limit is not None:
        limits["memory"] = words.write_memory(resources.memory_limit)
        if resources.memory is None:
            why = "Without a request Kubernetes reserves as much as the limit."
            report.changed("memory_limit", "resources.limits.memory", limits["memory"], why)
        else:
            report.exact("memory_limit", "resources.limits.memory", limits["memory"])
    if spec.storage.ephemeral_disk is not None:
        size = words.write_memory(spec.storage.ephemeral_disk)
        requests["ephemeral-storage"] = limits["ephemeral-storage"] = size
        report.exact("ephemeral_disk", "resources.requests.ephemeral-storage", size)
    if gpus := resources.gpus_per_node:
        device = "amd.com/gpu" if gpu_names.is_amd(gpus.type) else "nvidia.com/gpu"
        requests[device] = limits[device] = words.quantity(gpus.count)
        _tell_gpus(spec, device, report)
    for name, amount in extra.all("resource").items():
        requests[name] = limits[name] = amount
        report.exact(f"extra.kubernetes.resource.{name}", f"resources.limits.{name}", amount)
    made = {"requests": requests, "limits": limits}
    return {key: value for key, value in made.items() if value}


def _tell_gpus(spec: JobSpec, device: str, report: Report) -> None:
    gpus = spec.resources.gpus_per_node
    assert gpus is not None
    key = f"resources.limits.{device}"
    if gpus.type is None:
        report.exact("gpus_per_node", key, gpus.count)
    elif gpus.type in gpu_names.KUBERNETES:
        why = f"The type is asked for by the label {PRODUCT}, which NVIDIA's GPU feature discovery sets."
        report.changed("gpus_per_node", key, f"{gpus.count}, {PRODUCT}", why)
    else:
        why = f"No label is known for {gpus.type}: the count alone is asked for, and --constraint can name a label."
        report.changed("gpus_per_node", key, gpus.count, why)


def _mounts(spec: JobSpec, program: Program, report: Report) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    names, claims = _volume_names(spec), _claims(spec)
    for volume in spec.storage.volumes:
        mounts.append({"name": names[volume.name], "mountPath": volume.mount})
        claim = claims[volume.name]
        if claim == volume.name:
            report.exact(f"volumes.{volume.name}", "persistentVolumeClaim", claim)
        else:
            why = "A claim's name holds lower-case letters, digits, dots and dashes."
            report.changed(f"volumes.{volume.name}", "persistentVolumeClaim", claim, why)
    for number, mount in enumerate(program.mounts):
        item: dict[str, Any] = {"name": f"host-{number}", "mountPath": mount.target}
        if "ro" in mount.options.split(","):
            item["readOnly"] = True
        mounts.append(item)
        why = "A path of the Kubernetes node: it must be there, and policies of the cluster may forbid it."
        report.changed(f"program.mounts.{number}", "hostPath", mount.text, why)
    if spec.storage.shm is not None:
        mounts.append({"name": SHM, "mountPath": "/dev/shm"})
        report.exact("shm", "emptyDir.sizeLimit", words.write_memory(spec.storage.shm))
    places = [item["mountPath"].rstrip("/") for item in mounts]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise SpecError(
            f"--volumes: two of the places are {twice}.", field="--volumes", hint="Give each a place of its own."
        )
    return mounts


def _claims(spec: JobSpec) -> dict[str, str]:
    """Volume -> its claim: no two of them may become one."""
    claims = {volume.name: volume.name for volume in spec.storage.volumes if words.is_subdomain(volume.name)}
    for volume in spec.storage.volumes:
        if volume.name not in claims:
            claim = words.dns_label(volume.name, most=50)
            claims[volume.name] = f"{claim}-{len(claims)}" if claim in claims.values() else claim
    return claims


def _volume_names(spec: JobSpec) -> dict[str, str]:
    """Volume -> its name within the pod."""
    names: dict[str, str] = {}
    for volume in spec.storage.volumes:
        name = words.dns_label(volume.name, most=50)
        if name in names.values() or name == SHM or name.startswith("host-"):
            name = f"{name}-{len(names)}"
        names[volume.name] = name
    return names


def _volumes(spec: JobSpec, program: Program) -> list[dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    names, claims = _volume_names(spec), _claims(spec)
    for volume in spec.storage.volumes:
        name, claim = names[volume.name], claims[volume.name]
        made[name] = {"name": name, "persistentVolumeClaim": {"claimName": claim}}
    for number, mount in enumerate(program.mounts):
        made[f"host-{number}"] = {"name": f"host-{number}", "hostPath": {"path": mount.source}}
    if spec.storage.shm is not None:
        size = words.write_memory(spec.storage.shm)
        made[SHM] = {"name": SHM, "emptyDir": {"medium": "Memory", "sizeLimit": size}}
    return list(made.values())


def pod(spec: JobSpec, program: Program, extra: Extra, report: Report, containers: list[Any]) -> dict[str, Any]:
    """The pod's spec around its containers; the last of them is the main one, others run before it."""
    made: dict[str, Any] = {"restartPolicy": "Never"}
    for key, name in (
        ("service-account", "serviceAccountName"),
        ("runtime-class", "runtimeClassName"),
        ("scheduler", "schedulerName"),
    ):
        if (value := extra.get(key)) is not None:
            made[name] = value
            report.exact(f"extra.kubernetes.{key}", name, value)
    if extra.get("host-network") == "true":
        made |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if secrets := extra.several.get("pull-secret"):
        made["imagePullSecrets"] = [{"name": name} for name in secrets]
    _priority(spec, made, report)
    _signal(spec, made, report)
    _nodes(spec, made, report)
    if accepted := extra.several.get("toleration"):
        made["tolerations"] = tolerations(accepted)
    if len(containers) > 1:
        made["initContainers"] = containers[:-1]
    made["containers"] = containers[-1:]
    if volumes := _volumes(spec, program):
        made["volumes"] = volumes
    return made


def _priority(spec: JobSpec, made: dict[str, Any], report: Report) -> None:
    priority = spec.schedule.priority
    if priority is None:
        return
    if priority.isdigit() or not words.is_subdomain(priority):
        report.dropped("priority", "A number of Slurm's; Kubernetes takes the name of a PriorityClass.")
    else:
        made["priorityClassName"] = priority
        report.exact("priority", "priorityClassName", priority)


def _signal(spec: JobSpec, made: dict[str, Any], report: Report) -> None:
    signal = spec.recovery.checkpoint_signal
    if signal is None:
        return
    match = _SIGNAL_LEAD.fullmatch(signal)
    lead = int(match[1]) if match else 60
    made["terminationGracePeriodSeconds"] = lead
    why = f"Kubernetes sends SIGTERM, at the limit itself and to the first process, and waits {lead} s for its end."
    report.changed("checkpoint_signal", "terminationGracePeriodSeconds", lead, why)


def _nodes(spec: JobSpec, made: dict[str, Any], report: Report) -> None:
    """The nodes that the pods may run on, by their labels."""
    selector: dict[str, str] = {}
    expressions: list[dict[str, Any]] = []
    for field, key in (("region", REGION), ("zone", ZONE)):
        value = getattr(spec.schedule, field)
        if value is not None and words.is_label_value(value):
            selector[key] = value
            report.exact(field, f"nodeSelector {key}", value)
        elif value is not None:
            report.dropped(field, "No label of a node has such a value.")
    _constraint(spec, selector, expressions, report)
    gpus = spec.resources.gpus_per_node
    if gpus and gpus.type is not None and gpus.type in gpu_names.KUBERNETES:
        expressions.append({"key": PRODUCT, "operator": "In", "values": list(gpu_names.KUBERNETES[gpus.type])})
    if selector:
        made["nodeSelector"] = selector
    if expressions:
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        made["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def _constraint(spec: JobSpec, selector: dict[str, str], expressions: list[Any], report: Report) -> None:
    constraint = spec.schedule.constraint
    if constraint is None:
        return
    keys: set[str] = set(selector)
    bare = False
    for part in re.split(r"[&,]", constraint):
        key, equals, value = part.strip().partition("=")
        if not words.is_label_key(key) or not words.is_label_value(value) or key in keys:
            why = "Kubernetes knows nodes by labels: write key=value, several with & between them."
            report.dropped("constraint", why)
            return
        keys.add(key)
        bare = bare or not equals
    parts = re.split(r"[&,]", constraint)
    for part in parts:
        key, equals, value = part.strip().partition("=")
        if equals:
            selector[key] = value
        else:
            expressions.append({"key": key, "operator": "Exists"})
    if bare:
        why = "A feature of Slurm's nodes; here nodes are asked for that have a label of this name."
        report.changed("constraint", "nodeAffinity", constraint, why)
    elif "&".join(part.strip() for part in parts) == constraint:
        report.exact("constraint", "nodeSelector", constraint)
    else:
        report.changed("constraint", "nodeSelector", constraint, "Commas are written as &.")
