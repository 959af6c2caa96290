"""A batch script that stands on its own: what `sbatch.reader` reads, or any other format's program, for Slurm.

The directives are those of `sbatch.directives`, which the backend's scripts
have, too. Where the program came from a batch script, its options keep their
spelling as far as they still say what the spec says: then Slurm holds the same
of both.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Mapping
from typing import Final

import msgspec

from clusterkernel import fields
from clusterkernel.errors import ClusterKernelError
from clusterkernel.formats import secrets
from clusterkernel.formats.model import Program, Written
from clusterkernel.formats.reporting import Report, by_name
from clusterkernel.formats.sbatch.directives import MEMORY, RESERVED, directives
from clusterkernel.formats.sbatch.grammar import Given, Header
from clusterkernel.formats.sbatch.needs import Counts, needs, options_of
from clusterkernel.formats.sbatch.options import Option, gres_gpus
from clusterkernel.formats.sbatch.steps import body
from clusterkernel.formats.sbatch.writer import clean_name
from clusterkernel.spec import Array, JobSpec, Launcher

__all__ = ["write"]

#: Options that only together say what each node brings.
_SHAPE: Final = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "ntasks-per-gpu",
    "cpus-per-task",
    "cpus-per-gpu",
    "mincpus",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gpus-per-socket",
    "sockets-per-node",
    "gres",
    *MEMORY,
    "exclusive",
)
_SINGLE: Final[Mapping[str, str]] = {
    "job-name": "name",
    "time": "time",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "priority": "priority",
    "constraint": "constraint",
    "network": "network",
    "reservation": "reservation",
    "dependency": "dependency",
    "tmp": "ephemeral_disk",
    "signal": "checkpoint_signal",
}
_OF_SHAPE: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": ("nodes",),
    "gpus_per_node": ("gpus-per-node", "gres", "gpus", "gpus-per-task", "gpus-per-socket", "ntasks-per-gpu"),
    "tasks_per_node": ("ntasks-per-node", "ntasks", "ntasks-per-gpu"),
    "cpus_per_task": ("cpus-per-task", "cpus-per-gpu", "mincpus"),
    "memory": MEMORY,
    "exclusive": ("exclusive",),
}


def write(spec: JobSpec, program: Program) -> Written:
    """The script of a job.

    Parameters
    ----------
    spec : JobSpec
        What it needs.
    program : Program
        What it runs.

    Raises
    ------
    SpecError
        Options that go to sbatch as they are contradict the spec.
    """
    report = Report()
    spec = _sendable(by_name(spec, report), report)
    options = _options(spec, program, report)
    run_by = (option for option in program.options.get("shell", ()) if option.startswith("--run-by="))
    shell = next(run_by, "/bin/bash").removeprefix("--run-by=")
    report.exact("program.options.shell.run-by", "#!", shell)
    lines = [f"#!{shell}", *(f"#SBATCH {option.text}" for option in options.values())]
    lines += body(spec, program, _of_shell(spec, program, options), report)
    _tell(spec, program, options, report)
    rows = report.rows(spec, program, "Slurm has no place for it.")
    return Written(text="\n".join(lines) + "\n", fields=rows)


def _sendable(spec: JobSpec, report: Report) -> JobSpec:
    """The spec without what Slurm would refuse or take no notice of."""
    priority = spec.schedule.priority
    if priority is not None and not (priority.isdecimal() or priority == "TOP"):
        report.dropped("priority", "Slurm's priority is a number or TOP; --qos and --partition set one for everybody.")
        spec = msgspec.structs.replace(spec, schedule=msgspec.structs.replace(spec.schedule, priority=None))
    constraint = spec.schedule.constraint
    if constraint is not None and re.search(r"[=/]", constraint):
        why = (
            "Labels of Kubernetes, which sbatch refuses: --constraint takes the features that scontrol show node lists."
        )
        report.dropped("constraint", why)
        spec = msgspec.structs.replace(spec, schedule=msgspec.structs.replace(spec.schedule, constraint=None))
    if spec.name is not None and clean_name(spec.name) != spec.name:
        name = clean_name(spec.name)
        report.changed("name", "--job-name", name, "Slurm keeps one line of at most 200 bytes.")
        spec = msgspec.structs.replace(spec, name=name)
    return spec


def _of_shell(spec: JobSpec, program: Program, options: Mapping[str, Option]) -> Mapping[str, Option]:
    """The options as the lines need them: the last step stands in the background only where a trap has to run."""
    signal = options.get("signal")
    if signal is None or "B" not in (signal.value or "").partition(":")[0]:
        return options
    name = (signal.value or "").partition(":")[2].partition("@")[0]
    trap = re.compile(rf"\btrap\b.*?\b(?:SIG)?(?:{re.escape(name)}|{_number(name)})\b", re.DOTALL)
    texts = [*spec.environment.setup, *(step.shell for step in program.steps)]
    if any(trap.search(text) for text in texts):
        return options
    return {key: option for key, option in options.items() if key != "signal"}


def _number(name: str) -> str:
    """The other way to write a signal."""
    if name.isdecimal():
        known = int(name) in {item.value for item in signals.Signals}
        return signals.Signals(int(name)).name.removeprefix("SIG") if known else name
    plain = name.upper().removeprefix("SIG")
    return str(signals.Signals[f"SIG{plain}"].value) if f"SIG{plain}" in signals.Signals.__members__ else plain


# -- options ------------------------------------------------------------------------------


def _options(spec: JobSpec, program: Program, report: Report) -> dict[str, Option]:
    """All options by name, in their order."""
    ours = {option.name: option for option in directives(spec)}
    if spec.recovery.requeue is None and spec.recovery.attempts == 1:
        ours.pop("no-requeue", None)  # the cluster's own default holds, as for any script
    if (signal := ours.get("signal")) is not None and signal.value:
        # The steps get it: a batch shell without a trap would die of it.
        ours["signal"] = Option("signal", re.sub(r"^(R?)B:", lambda match: match[1] and "R:", signal.value), "")
    if spec.name is not None:
        ours = {"job-name": Option("job-name", spec.name, ""), **ours}
    if spec.array is not None:
        throttle = f"%{spec.parallelism}" if spec.parallelism else ""
        ours["array"] = Option("array", f"0-{spec.array.size - 1}{throttle}", "")
    if "slurm" in program.options:
        ours = _spelled(spec, options_of(program.options["slurm"]), ours)
    return {name: option for name, option in ours.items() if not (name == "array" and spec.array is None)}


def _spelled(spec: JobSpec, given: Mapping[str, Given], ours: dict[str, Option]) -> dict[str, Option]:
    """The options in the source's own spelling, where it still says the same."""
    said = _said(spec, given)
    found: dict[str, Option] = {}
    same_shape = said is not None and _shape(said) == _shape(spec)
    if same_shape and (safe := _safe(given)) is not given:
        alone = _said(spec, safe)
        same_shape = alone is not None and _shape(alone) == _shape(spec)
        given = safe
    for name, option in given.items():
        theirs = Option(name, option.value, option.text)
        if name in _SHAPE:
            if same_shape:
                found[name] = theirs
        elif name in ("requeue", "no-requeue"):
            if said is not None and said.recovery == spec.recovery:
                found[name] = theirs
        elif name == "array":
            if said is not None and (said.array, said.parallelism) == (spec.array, spec.parallelism):
                found[name] = theirs
        elif name in _SINGLE:
            if said is not None and fields.get(said, _SINGLE[name]) == fields.get(spec, _SINGLE[name]):
                found[name] = theirs
        elif name in RESERVED or name.startswith(("container", "no-container")):
            found[name] = theirs
    for name, own in ours.items():
        if name in found or (same_shape and name in _SHAPE):
            continue
        if name == "time" and "time" in given and spec.schedule.time is None:
            found[name] = Option(name, given["time"].value, "")
        elif name in ("requeue", "no-requeue") and {"requeue", "no-requeue"} & found.keys():
            continue
        else:
            found[name] = own
    return found


def _said(spec: JobSpec, given: Mapping[str, Given]) -> JobSpec | None:
    """What the source's options alone say; None where they say nothing that holds."""
    counts = Counts(launcher=spec.launcher, ranks=spec.resources.tasks_per_node)
    header = Header(tuple(given.values()), {})
    try:
        asked = needs(header, counts, "script")
        return asked.spec(JobSpec(launcher=spec.launcher))
    except ClusterKernelError:
        return None


def _shape(spec: JobSpec) -> object:
    whole = msgspec.structs.replace(spec.resources, tasks_per_node=spec.ranks_per_node, memory_limit=None)
    everything = [option for option in spec.extra.get("slurm", ()) if option.startswith(("--mem=0", "--gres="))]
    return whole, spec.schedule.exclusive, everything


def _safe(given: Mapping[str, Given]) -> Mapping[str, Given]:
    """The options as every version of Slurm takes them: from 26.05 on GPUs may be asked for once only."""
    gres = given.get("gres")
    if gres is None or not gres.value or "gpus-per-node" not in given:
        return given
    asked, others = gres_gpus(gres.value.replace("gres:", ""))
    if asked is None:
        return given
    kept = {name: option for name, option in given.items() if name != "gres"}
    if others:
        kept["gres"] = Given("gres", ",".join(others), "--gres", None, gres.origin)
    return kept


# -- the report ---------------------------------------------------------------------------


def _tell(spec: JobSpec, program: Program, options: Mapping[str, Option], report: Report) -> None:
    def told(field: str, names: tuple[str, ...]) -> None:
        found = [options[name] for name in names if name in options]
        if found and field not in report:
            option = found[0]
            report.exact(field, f"--{option.name}", option.value or "")

    for field, names in _OF_SHAPE.items():
        if field != "tasks_per_node" or spec.launcher is Launcher.NONE:
            told(field, names)
    if spec.launcher is not Launcher.NONE and not any(step.launched for step in program.steps):
        for field in ("launcher", "tasks_per_node"):
            report.dropped(field, "There is no program that it could start.")
    for name, field in _SINGLE.items():
        told(field, (name,))
    told("requeue", ("requeue", "no-requeue"))
    told("array", ("array",))
    if spec.array is not None and spec.parallelism and "array" in options:
        report.exact("parallelism", "--array", f"%{spec.parallelism}")
    if spec.array == Array(size=1) and "array" not in options:
        report.exact("array", "", "")
    for option in spec.extra.get("slurm", ()):
        name = option.lstrip("-").partition("=")[0]
        if name in options:
            report.exact(f"extra.slurm.{name}", f"--{name}", options[name].value or "")
    for option in program.options.get("slurm", ()):
        name = option.lstrip("-").partition("=")[0]
        if name in options:
            report.exact(f"program.options.slurm.{name}", f"--{name}", secrets.shown(options[name].value or ""))
        else:
            report.changed(f"program.options.slurm.{name}", "", "", "The spec says it in another way.")
    report.exact("program.shell", "--export=ALL", "")
