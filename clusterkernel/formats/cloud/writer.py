"""Writes axolotl's cloud YAML: a run of axolotl's for Modal or Baseten."""

from __future__ import annotations

import re
from typing import Any, Final

from clusterkernel import fields
from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.cloud import keys
from clusterkernel.formats.modal.limits import LONGEST
from clusterkernel.formats.model import Program, Step, Written
from clusterkernel.formats.reporting import Report, by_name
from clusterkernel.payload import yamltext
from clusterkernel.spec import JobSpec, Launcher
from clusterkernel.units import format_memory

__all__ = ["write_baseten", "write_modal"]

_INSTALL: Final = re.compile(r"(pip3?|uv|python3? -m pip|apt-get|apt|conda|git|curl|wget) ")
_NO_PLACE: Final = "axolotl's cloud file has no place for it."
_FOR_MORE: Final = "A Modal app (--to modal) and a truss config (--to baseten) hold more."


def write_modal(spec: JobSpec, program: Program) -> Written:
    """``modal.yaml``.

    Raises
    ------
    FormatError
        The program is not axolotl's.
    """
    report = Report()
    steps = _steps(program, "modal.yaml")
    spec = by_name(spec, report)
    resources, environment = spec.resources, spec.environment
    document: dict[str, Any] = {"provider": "modal"}
    if spec.name is not None:
        document["project_name"] = spec.name
        report.changed("name", "project_name", spec.name, keys.IGNORED["project_name"])
    if spec.storage.volumes:
        document["volumes"] = [{"name": volume.name, "mount": volume.mount} for volume in spec.storage.volumes]
        for volume in spec.storage.volumes:
            report.exact(f"volumes.{volume.name}", "volumes", f"{volume.name}:{volume.mount}")
    _names(spec, document, report)
    if environment.env:
        document["env"] = [{name: value} for name, value in environment.env.items()]
        for name, value in environment.env.items():
            report.variable(name, "env", value)
    _image(spec, document, report)
    for option in program.options.get("axolotl", ()):
        name, _, value = option.partition("=")
        if name == "branch":
            document["branch"] = value
            report.exact("program.options.axolotl.branch", "branch", value)
    _modal_gpu(spec, document, report)
    if resources.nodes > 1:
        report.dropped("nodes", f"{keys.IGNORED['node_count']} {_FOR_MORE}")
    if resources.memory is not None:
        document["memory"] = _gib(resources.memory, "memory", "memory", report)
    else:
        report.assumed("memory", "", "128 GiB", "axolotl asks Modal for so much where none is given.")
    if spec.schedule.time is not None:
        document["timeout"] = _limited(spec.schedule.time, "time", "timeout", report)
    else:
        report.assumed("time", "", "86400 s", "axolotl sets a day where no limit is given.")
    _cores(spec, report)
    _stages(spec, document, report)
    _setup(spec, document, report)
    text = _text(spec, program, steps, document, report, "modal.yaml")
    return Written(text=text, fields=report.rows(spec, program, f"{_NO_PLACE} {_FOR_MORE}"))


def _gib(memory: int, field: str, key: str, report: Report) -> int:
    """Whole GiB, as axolotl takes them."""
    size = -(-memory // 1024)
    if memory % 1024:
        report.changed(field, key, size, f"In whole GiB: {format_memory(memory)} are asked for.")
    else:
        report.exact(field, key, size)
    return size


def _limited(time: int, field: str, key: str, report: Report) -> int:
    """Seconds as Modal takes them."""
    if time <= LONGEST:
        report.exact(field, key, time)
    else:
        report.changed(field, key, LONGEST, "Modal's longest run is 24 hours.")
    return min(time, LONGEST)


def write_baseten(spec: JobSpec, program: Program) -> Written:
    """``baseten.yaml``.

    Raises
    ------
    FormatError
        The program is not axolotl's.
    """
    report = Report()
    steps = _steps(program, "baseten.yaml")
    spec = by_name(spec, report)
    document: dict[str, Any] = {"provider": "baseten"}
    if spec.name is not None:
        document["project_name"] = spec.name
        report.exact("name", "project_name", spec.name)
    else:
        report.assumed("name", "", "axolotl-project", "axolotl's own name for a project without one.")
    _names(spec, document, report)
    gpus = spec.resources.gpus_per_node
    document["gpu"] = keys.BASETEN_GPU
    document["gpu_count"] = gpus.count if gpus else 1
    if gpus is None:
        report.assumed("gpus_per_node", "gpu", "h100", "axolotl always asks Baseten for a GPU.")
    elif gpus.type in (None, keys.BASETEN_GPU):
        report.exact("gpus_per_node", "gpu, gpu_count", f"h100, {gpus.count}")
        if gpus.type is None:
            report.changed("gpus_per_node", "gpu, gpu_count", f"h100, {gpus.count}", "axolotl always takes H100.")
    else:
        report.changed("gpus_per_node", "gpu, gpu_count", f"h100, {gpus.count}", "axolotl always takes H100 there.")
    nodes = spec.resources.nodes
    document["node_count"] = nodes
    if nodes > 1:
        why = "axolotl starts its nodes so that they do not meet; --to baseten writes a config whose nodes do."
        report.changed("nodes", "node_count", nodes, why)
    else:
        report.exact("nodes", "node_count", nodes)
    for field, key in (("memory", "memory"), ("time", "timeout"), ("env", "env"), ("volumes", "volumes")):
        _no_key(spec, field, key, report)
    if spec.environment.image is not None:
        report.dropped("image", keys.IGNORED["docker_tag"])
    text = _text(spec, program, steps, document, report, "baseten.yaml")
    return Written(text=text, fields=report.rows(spec, program, f"{_NO_PLACE} {_FOR_MORE}"))


def _no_key(spec: JobSpec, field: str, key: str, report: Report) -> None:
    """Say why Baseten's provider has no such key, where the spec has the field."""
    if fields.get(spec, field):
        names = list(spec.environment.env) if field == "env" else []
        names += [volume.name for volume in spec.storage.volumes] if field == "volumes" else []
        for name in [f"{field}.{name}" for name in names] or [field]:
            report.dropped(name, f"{keys.IGNORED[key]} {_FOR_MORE}")


def _steps(program: Program, name: str) -> tuple[Step, ...]:
    """The steps that are axolotl's; refuses a program that is another's."""
    steps = tuple(step for step in program.steps if step.axolotl)
    if program.steps and not any(step.shell.startswith("axolotl train") for step in steps):
        command = program.steps[-1].shell.split("\n")[0]
        shown = command if len(command) <= 60 else command[:57] + "..."
        raise FormatError(
            f"{name} can only run axolotl, and the program is {secrets.shown(shown)!r}.",
            hint="Write a Modal app (--to modal) or a truss config (--to baseten).",
        )
    return steps


def _names(spec: JobSpec, document: dict[str, Any], report: Report) -> None:
    for name in spec.environment.secrets:
        report.exact(f"secrets.{name}", "secrets", name)
    if spec.environment.secrets:
        document["secrets"] = list(spec.environment.secrets)


def _image(spec: JobSpec, document: dict[str, Any], report: Report) -> None:
    image = spec.environment.image
    if image is None:
        return
    name = image.removeprefix("docker://").removeprefix("docker.io/")
    if name.startswith(keys.RELEASES) and re.fullmatch(r"[\w.-]{1,128}", name[len(keys.RELEASES) :], re.ASCII):
        document["docker_tag"] = name[len(keys.RELEASES) :]
        report.exact("image", "docker_tag", document["docker_tag"])
    else:
        report.dropped("image", f"axolotl runs in its own images only. {_FOR_MORE}")


def _modal_gpu(spec: JobSpec, document: dict[str, Any], report: Report) -> None:
    gpus = spec.resources.gpus_per_node
    kind = gpus.type if gpus else None
    document["gpu"] = kind if kind in keys.MODAL_GPUS else "h100"
    document["gpu_count"] = gpus.count if gpus else 1
    shown = f"{document['gpu']}, {document['gpu_count']}"
    if gpus is None:
        report.assumed("gpus_per_node", "gpu", shown, "axolotl always asks Modal for a GPU.")
    elif kind is None:
        report.changed("gpus_per_node", "gpu, gpu_count", shown, "axolotl has to be told a type, and none is named.")
    elif kind in keys.MODAL_GPUS:
        report.exact("gpus_per_node", "gpu, gpu_count", shown)
    else:
        why = f"axolotl refuses {kind} on Modal, and H100 stands for it. {_FOR_MORE}"
        report.changed("gpus_per_node", "gpu, gpu_count", shown, why)


def _cores(spec: JobSpec, report: Report) -> None:
    each = spec.resources.cpus_per_task
    if each is None:
        return
    gpus = spec.resources.gpus_per_node
    total = each * spec.ranks_per_node
    if spec.ranks_per_node == (gpus.count if gpus else 1) and each == max(1, keys.CORES // spec.ranks_per_node):
        report.exact("cpus_per_task", "", f"{keys.CORES} cores, always")
    else:
        why = f"axolotl always asks Modal for {keys.CORES} cores; {total} are asked for here."
        report.dropped("cpus_per_task", f"{why} {_FOR_MORE}")


def _stages(spec: JobSpec, document: dict[str, Any], report: Report) -> None:
    for stage in spec.stages:
        if stage.name != "preprocess":
            continue
        if stage.memory is not None:
            document["memory_preprocess"] = _gib(stage.memory, "stages.preprocess.memory", "memory_preprocess", report)
        if stage.time is not None:
            document["timeout_preprocess"] = _limited(
                stage.time, "stages.preprocess.time", "timeout_preprocess", report
            )
        if stage.cpus_per_task is not None:
            report.dropped("stages.preprocess.cpus_per_task", "axolotl always asks for 8 cores to preprocess.")


def _setup(spec: JobSpec, document: dict[str, Any], report: Report) -> None:
    commands = []
    for number, line in enumerate(spec.environment.setup):
        if _INSTALL.match(line):
            commands.append(f"RUN {line}")
            why = "It runs while the image is built, and not before the code."
            report.changed(f"setup.{number}", "dockerfile_commands", line, why)
        else:
            report.dropped(f"setup.{number}", "axolotl runs no lines before the code.")
    if commands:
        document["dockerfile_commands"] = commands


def _text(
    spec: JobSpec, program: Program, steps: tuple[Step, ...], document: dict[str, Any], report: Report, name: str
) -> str:
    """The file: how it is used, and what it says."""
    config = program.config or "train.yaml"
    launcher = spec.launcher.value if spec.launcher is not Launcher.NONE else "torchrun"
    head = []
    words = 0
    for number, step in enumerate(program.steps):
        shell = " ".join(step.shell.split())
        if step in steps:
            command = f"axolotl {'preprocess' if shell.startswith('axolotl preprocess') else 'train'} {config}"
            more = f" --launcher {launcher}" if step.launched else ""
            head.append(f"# {command}{more} --cloud {name}")
            if shell == command:
                report.exact(f"program.steps.{number}", "command line", head[-1][2:])
            else:
                why = "axolotl drops what stands behind the configuration: write it into the configuration."
                report.changed(f"program.steps.{number}", "command line", head[-1][2:], why)
        else:
            report.dropped(f"program.steps.{number}", "axolotl runs nothing beside itself.")
        for word in step.launcher_args:
            report.dropped(f"program.launcher_args.{words}", f"axolotl drops {word} with --cloud.")
            words += 1
    if program.config:
        report.exact("program.config", "command line", program.config)
    if any(step.launched for step in steps):
        report.exact("launcher", "command line", launcher)
    if spec.resources.tasks_per_node is None:
        report.exact("tasks_per_node", "", "one rank for each GPU")
    return "\n".join([*head, yamltext.dump(document)])
