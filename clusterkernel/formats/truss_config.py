"""A truss ``config.py`` for Baseten Training: ``truss train push config.py``.

Baseten uploads the folder of the file, starts the same commands on each node
and says in BT_* variables where the nodes meet.

Source: truss 0.18 (``truss_train.definitions``) and Baseten's guide.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final

import msgspec

from clusterkernel import fields
from clusterkernel.errors import SpecError, nearest
from clusterkernel.formats import gpu_names
from clusterkernel.formats.container import script as container_script
from clusterkernel.formats.container.image import image_of
from clusterkernel.formats.kubernetes import words
from clusterkernel.formats.launch.writer import Meeting
from clusterkernel.formats.limits import Limit, raise_first
from clusterkernel.formats.model import Program, Step, Written
from clusterkernel.formats.python_text import Source, block, call, literal
from clusterkernel.formats.reporting import Report, by_name
from clusterkernel.spec import JobSpec, describe

__all__ = ["limits", "write"]

PORT: Final = "29400"
HOST: Final = 8  # GPUs of a node
CHECKPOINTS: Final = "$BT_CHECKPOINT_DIR"
CACHE: Final = "$BT_PROJECT_CACHE_DIR"
_NO_PLACE: Final = {
    "partition": "Baseten has no queues.",
    "account": "Baseten charges the workspace.",
    "qos": "Baseten has no quality of service.",
    "constraint": "Baseten chooses the nodes by what is asked for.",
    "exclusive": "Baseten shares hosts; who asks for all 8 GPUs of one has it for himself.",
    "network": "Baseten joins several nodes by InfiniBand by itself.",
    "region": "Baseten chooses the region.",
    "zone": "Baseten chooses the zone.",
    "reservation": "Baseten has no reservations.",
    "dependency": "Baseten starts a job without regard to others.",
    "attempts": "Baseten starts no failed job again: truss train recreate does, by hand.",
    "backoff": "Baseten starts no failed job again.",
    "requeue": "Baseten starts no job again.",
    "checkpoint_signal": "Baseten sends no signal before the end: write checkpoints as you go.",
    "memory_limit": "Baseten has one number for memory.",
    "ephemeral_disk": "Baseten sets the disk itself.",
    "shm": "Baseten sets /dev/shm itself.",
    "interpreter": "The image brings its own Python.",
    "max_cost": "Baseten takes no ceiling for a job: set --time by the price.",
    "parallelism": "Baseten has no arrays.",
}
_REST: Final = "Baseten has no place for it."


def limits(spec: JobSpec) -> Iterator[Limit]:
    """What Baseten does not take."""
    gpus = spec.resources.gpus_per_node
    if gpus is not None and gpus.type is not None and gpus.type not in gpu_names.BASETEN:
        yield Limit(
            rule="baseten-gpu",
            field="gpus_per_node",
            message=f"--gpus-per-node {gpus}: Baseten has no GPU {gpus.type}.",
            hint=nearest(gpus.type, gpu_names.BASETEN),
        )
    elif gpus is not None and gpus.count > HOST:
        yield Limit(
            rule="baseten-gpu-count",
            field="gpus_per_node",
            message=f"--gpus-per-node {gpus}: a node of Baseten's has at most {HOST} GPUs.",
            hint=f"Ask for several nodes with {HOST} each.",
        )
    if spec.array is not None:
        yield Limit(
            rule="baseten-array",
            field="array",
            message=f"Baseten has no arrays, and {spec.array.size} tasks are asked for.",
            hint="Push one job for each task.",
        )


def write(spec: JobSpec, program: Program) -> Written:
    """The configuration's source, and how each field fared.

    Raises
    ------
    SpecError
        Baseten cannot run it, or the program says not what to run.
    """
    raise_first(limits(spec))
    if not program.steps:
        raise SpecError("The source does not say what is run.", field="program", hint="Add a command: a job runs one.")
    report = Report()
    spec = by_name(spec, report)
    for field, why in _NO_PLACE.items():
        if fields.get(spec, field) != fields.FIELDS[field].default:
            report.dropped(field, why)
    parts = [
        f'"""{_name(spec, program, report)} on Baseten: {describe(spec)}.\n\n    truss train push config.py\n"""',
        "import shlex\n\nfrom truss_train import definitions",
        f"SCRIPT = {block(_script(spec, program, report))}",
        f"runtime = {call('definitions.Runtime', _runtime(spec, report))}",
        f"job = {call('definitions.TrainingJob', _job(spec, program, report))}",
        f"project = definitions.TrainingProject(name={literal(_name(spec, program, report))}, job=job)",
    ]
    return Written(text="\n\n".join(parts) + "\n", fields=report.rows(spec, program, _REST))


def _name(spec: JobSpec, program: Program, report: Report) -> str:
    if spec.name is None:
        name = program.called
        report.assumed("name", "TrainingProject.name", name, "A project has a name, and none is given.")
        return name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", spec.name).strip("-") or "job"
    if name == spec.name:
        report.exact("name", "TrainingProject.name", name)
    else:
        report.changed("name", "TrainingProject.name", name, "Letters, digits, dashes, dots and underscores are safe.")
    return name


# -- the script ----------------------------------------------------------------------


def _script(spec: JobSpec, program: Program, report: Report) -> str:
    place = container_script.Place(
        platform="Baseten",
        meeting=Meeting("$BT_NODE_RANK", "$BT_LEADER_ADDR", PORT, "$BT_TRAINING_JOB_ID", "$BT_GROUP_SIZE"),
        job="$BT_TRAINING_JOB_ID",
        shared=bool(spec.storage.volumes),
    )
    steps = [_kept(step) for step in program.steps]
    changed = msgspec.structs.replace(program, steps=tuple(steps))
    lines = [line for volume in spec.storage.volumes for line in _linked(volume.name, volume.mount)]
    for volume in spec.storage.volumes:
        why = "A folder of the project's cache stands for the volume; Baseten keeps no second copy of it."
        report.changed(f"volumes.{volume.name}", "cache_config", f"{CACHE}/{volume.name}", why)
    for number, mount in enumerate(program.mounts):
        why = f"{mount.source} is a path of the cluster's nodes, which Baseten does not see."
        report.dropped(f"program.mounts.{number}", why)
    body = container_script.script(spec, changed, place, report, cd=_folder(spec, report))
    for number, (before, after) in enumerate(zip(program.steps, steps, strict=True)):
        if before != after:
            why = f"What it writes is lost but in {CHECKPOINTS}: it writes there."
            report.changed(f"program.steps.{number}", "start_commands", after.shell, why)
    _tell_stages(spec, report)
    return "\n".join([*lines, body])


def _kept(step: Step) -> Step:
    """The step, with its output where Baseten keeps it."""
    training = step.shell.split()[:2] == ["axolotl", "train"]
    if not training or re.search(r"--output[-_]dir\b", step.shell):
        return step
    return msgspec.structs.replace(step, shell=f'{step.shell} --output-dir="{CHECKPOINTS}"')


def _linked(name: str, mount: str) -> list[str]:
    place, kept = shlex.quote(mount.rstrip("/")), f'"{CACHE}"/{shlex.quote(name)}'
    parent = shlex.quote(mount.rstrip("/").rpartition("/")[0] or "/")
    return [f"mkdir -p {kept} {parent}", f"rmdir {place} 2>/dev/null; ln -sfnT {kept} {place} || exit"]


def _folder(spec: JobSpec, report: Report) -> str:
    asked = spec.environment.workdir
    for name in spec.environment.files:
        if name.startswith(("/", "~", "../")):
            report.dropped(f"files.{name}", "Baseten brings along what lies in the folder of config.py: copy it there.")
        else:
            report.exact(f"files.{name}", "folder of config.py", name)
    if asked is None:
        return ""
    mounts = [volume.mount.rstrip("/") for volume in spec.storage.volumes]
    if any(asked == mount or asked.startswith(f"{mount}/") for mount in mounts):
        report.exact("workdir", "start_commands", asked)
        return shlex.quote(asked)
    why = "Baseten sees no files of the cluster: it brings the folder of config.py along and starts there."
    report.changed("workdir", "folder of config.py", ".", why)
    return ""


def _tell_stages(spec: JobSpec, report: Report) -> None:
    for stage in spec.stages:
        for part in ("cpus_per_task", "memory", "time"):
            if getattr(stage, part) is not None:
                report.dropped(f"stages.{stage.name}.{part}", "Baseten runs all steps on the same nodes.")


# -- the objects ----------------------------------------------------------------------


def _runtime(spec: JobSpec, report: Report) -> dict[str, object]:
    argv = ["/bin/bash", "-c"]
    if spec.schedule.time is not None:
        argv = ["timeout", "--kill-after=60", str(spec.schedule.time), *argv]
        why = "Baseten has no time limit: the command timeout ends the script."
        report.changed("time", "start_commands", f"timeout {spec.schedule.time}", why)
    variables: dict[str, object] = {}
    for name, value in sorted(spec.environment.env.items()):
        variables[name] = value
        report.variable(name, "environment_variables", value)
    for name in spec.environment.secrets:
        variables[name] = Source(f"definitions.SecretReference(name={literal(name)})")
        report.exact(f"secrets.{name}", "SecretReference", name)
    made: dict[str, object] = {
        "start_commands": Source(f"[shlex.join([{', '.join(map(literal, argv))}, SCRIPT])]"),
        "environment_variables": variables,
        "checkpointing_config": Source("definitions.CheckpointingConfig(enabled=True)"),
    }
    why = f"Baseten keeps what is written to {CHECKPOINTS}, where this is on."
    report.assumed("program.options.baseten.checkpoints", "checkpointing_config", "enabled", why)
    if spec.storage.volumes:
        made["cache_config"] = Source("definitions.CacheConfig(enabled=True)")
    return made


def _job(spec: JobSpec, program: Program, report: Report) -> dict[str, object]:
    image = image_of(spec, program, report, key="Image.base_image")
    made: dict[str, object] = {
        "image": Source(f"definitions.Image(base_image={literal(image)})"),
        "compute": Source(call("definitions.Compute", _compute(spec, report), 4)),
        "runtime": Source("runtime"),
    }
    priority = spec.schedule.priority
    if priority is not None and priority.isdigit():
        made["priority"] = int(priority)
        report.exact("priority", "priority", priority)
    elif priority is not None:
        report.dropped("priority", "Baseten's priority is a whole number.")
    if program.config:
        report.exact("program.config", "folder of config.py", program.config)
    return made


def _compute(spec: JobSpec, report: Report) -> dict[str, object]:
    resources = spec.resources
    made: dict[str, object] = {"node_count": resources.nodes}
    report.exact("nodes", "Compute.node_count", resources.nodes)
    if resources.cpus_per_task is not None:
        made["cpu_count"] = resources.cpus_per_task * spec.ranks_per_node
        report.exact("cpus_per_task", "Compute.cpu_count", made["cpu_count"])
    else:
        report.assumed("cpus_per_task", "Compute.cpu_count", 1, "Nobody says how many: Baseten gives one.")
    if resources.memory is not None:
        made["memory"] = words.write_memory(resources.memory)
        report.exact("memory", "Compute.memory", made["memory"])
    else:
        report.assumed("memory", "Compute.memory", "2Gi", "Nobody says how much: Baseten gives so much.")
    if resources.tasks_per_node is not None:
        report.exact("tasks_per_node", "start_commands", resources.tasks_per_node)
    if (gpus := resources.gpus_per_node) is not None:
        name = gpu_names.BASETEN[gpus.type or "h100"]
        made["accelerator"] = f"{name}:{gpus.count}"
        if gpus.type is None:
            why = "Baseten needs a type, and none is named."
            report.changed("gpus_per_node", "Compute.accelerator", made["accelerator"], why)
        elif name.lower().replace("_", "-") == gpus.type:
            report.exact("gpus_per_node", "Compute.accelerator", made["accelerator"])
        else:
            report.changed("gpus_per_node", "Compute.accelerator", made["accelerator"], f"Baseten calls it {name}.")
    return made
