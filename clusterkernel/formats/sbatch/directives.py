"""From a `JobSpec` to sbatch's options, merged with those that a person passes through.

An option of theirs fills what the spec leaves open, and is refused, by name,
where it contradicts what the spec says or what this package relies on.
"""

from __future__ import annotations

import re
import signal
from typing import Final

from clusterkernel.errors import SpecError
from clusterkernel.formats.sbatch.options import Option, gres_gpus, parse
from clusterkernel.spec import JobSpec
from clusterkernel.units import GpuRequest, slurm_memory, slurm_time

__all__ = ["checkpoint_signal", "directives", "lines", "may_requeue", "placement", "uses_srun"]

# sbatch option -> the field that says the same.
FIELD_OF: Final = {
    "nodes": "nodes",
    "ntasks-per-node": "tasks_per_node",
    "cpus-per-task": "cpus_per_task",
    "mem": "memory",
    "time": "time",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "priority": "priority",
    "constraint": "constraint",
    "exclusive": "exclusive",
    "network": "network",
    "reservation": "reservation",
    "dependency": "dependency",
    "tmp": "ephemeral_disk",
    "gpus-per-node": "gpus_per_node",
}
_LOGS: Final = "The job's output is kept in its folder; %cluster_logs shows it."
_NO_USE: Final = "Leave it out: it changes what sbatch prints or does, not the job."
RESERVED: Final = {
    "output": _LOGS,
    "error": _LOGS,
    "input": "A job reads its input from files.",
    "open-mode": _LOGS,
    "array": "Use map_jobs: it makes the array.",
    "wrap": "Use ex.run([...]) for a command.",
    "parsable": _NO_USE,
    "quiet": _NO_USE,
    "verbose": _NO_USE,
    "test-only": _NO_USE,
    "wait": "Use --wait without --sbatch.",
    "help": _NO_USE,
    "usage": _NO_USE,
    "version": _NO_USE,
    "ignore-pbs": _NO_USE,
    "export": "Use --env NAME=VALUE.",
    "export-file": "Use --env NAME=VALUE.",
    "get-user-env": "Use --setup for lines that the shell runs first.",
    "comment": "The comment holds the key by which the job is found again.",
    "job-name": "Use --name.",
    "chdir": "Use --workdir.",
    "clusters": "Jobs of another cluster cannot be followed; open the notebook there.",
    "ntasks": "Use --nodes and --tasks-per-node.",
    "ntasks-per-gpu": "Use --tasks-per-node.",
    "signal": "Use --checkpoint-signal.",
    "requeue": "Use --requeue without --sbatch.",
    "no-requeue": "Leave it out: a job is queued again only where --requeue or --attempts says so.",
    "hetjob": "Jobs of several unlike parts are not known here.",
}
MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")
GPUS: Final = ("gpus-per-node", "gpus", "gpus-per-task", "gpus-per-socket")
_SIGNAL: Final = re.compile(r"(?:(?P<who>[BR]+):)?(?:SIG)?(?P<signal>[A-Z]+\d*|\d+)(?:@(?P<seconds>\d+))?")


def uses_srun(spec: JobSpec) -> bool:
    """Whether the platform itself starts several processes."""
    return spec.processes > 1


def may_requeue(spec: JobSpec) -> bool:
    """Whether Slurm may start the job again by itself: then user code runs again."""
    return spec.recovery.requeue if spec.recovery.requeue is not None else spec.recovery.attempts > 1


def checkpoint_signal(spec: JobSpec) -> tuple[str, str] | None:
    """The name of the signal before the time limit, and the value of ``--signal``.

    Slurm sends it to the steps; where there is none, only to the batch shell
    and only if asked (``B:``), which then passes it on.

    Raises
    ------
    SpecError
        It is not a signal.
    """
    text = spec.recovery.checkpoint_signal
    if text is None:
        return None
    match = _SIGNAL.fullmatch(text.strip().upper())
    name = match["signal"] if match else ""
    if name.isdigit():
        known = int(name) in {item.value for item in signal.Signals}
        name = signal.Signals(int(name)).name.removeprefix("SIG") if known else ""
    if match is None or f"SIG{name}" not in signal.Signals.__members__ or int(match["seconds"] or 1) > 65535:
        raise SpecError(
            f"--checkpoint-signal = {text!r} is not a signal and its lead in seconds.",
            field="--checkpoint-signal",
            hint="Write USR1@120.",
        )
    who = ("R" if "R" in (match["who"] or "") else "") + ("" if uses_srun(spec) else "B")
    return name, f"{who + ':' if who else ''}{name}@{match['seconds'] or 60}"


def placement(spec: JobSpec) -> list[str]:
    """The options that say where and on whose account, as words of a command line."""
    named = {"partition", "account", "qos", "constraint", "reservation"}
    return [f"--{option.name}={option.value}" for option in directives(spec) if option.name in named]


def _of_spec(spec: JobSpec) -> dict[str, str | None]:
    """What the spec itself says. GPUs and the memory of whole nodes are added by `directives`."""
    resources, schedule = spec.resources, spec.schedule
    ours: dict[str, str | None] = {
        "nodes": str(resources.nodes),
        "ntasks-per-node": str(spec.tasks_per_node),
    }
    cpus = resources.cpus_per_task
    if cpus is not None:
        # A launcher is one task of Slurm's and holds the cores of all its ranks.
        ours["cpus-per-task"] = str(cpus * (spec.ranks_per_node // spec.tasks_per_node))
    if resources.memory is not None:
        ours["mem"] = slurm_memory(resources.memory)
    if schedule.time is not None:
        ours["time"] = slurm_time(schedule.time)
    for name in ("partition", "account", "qos", "priority", "constraint", "network", "reservation", "dependency"):
        value = getattr(schedule, name)
        if value is not None:
            ours[name] = value
    if schedule.exclusive:
        ours["exclusive"] = None
    if spec.storage.ephemeral_disk is not None:
        ours["tmp"] = slurm_memory(spec.storage.ephemeral_disk)
    return ours


def directives(spec: JobSpec) -> list[Option]:
    """All options of the job but its name, comment, log and array.

    Raises
    ------
    SpecError
        An option that was passed through contradicts a field, or the package.
    """
    ours = _of_spec(spec)
    theirs = {option.name: option for option in parse(spec.extra.get("slurm", ()))}  # sbatch too: the last one counts
    for option in list(theirs.values()):
        if option.name in RESERVED:
            raise SpecError(
                f'--sbatch "{option.given}" cannot be passed through.', field="--sbatch", hint=RESERVED[option.name]
            )
        if option.name in ours:
            if option.value != ours[option.name]:
                field = "--" + FIELD_OF[option.name].replace("_", "-")
                raise _contradiction(option, field, ours[option.name])
            del theirs[option.name]
    _merge_memory(spec, ours, theirs)
    gpus = _merge_gpus(spec.resources.gpus_per_node, ours, theirs)
    if "cpus-per-gpu" in theirs and "cpus-per-task" in ours:
        raise _contradiction(theirs["cpus-per-gpu"], "--cpus-per-task", ours["cpus-per-task"])
    if "mem-per-gpu" in theirs and not (gpus or any(name in theirs for name in GPUS)):
        raise SpecError(
            f'--sbatch "{theirs["mem-per-gpu"].given}" needs GPUs.',
            field="--sbatch",
            hint="Use --memory, or ask for GPUs with --gpus-per-node.",
        )
    ours["requeue" if may_requeue(spec) else "no-requeue"] = None
    if (asked := checkpoint_signal(spec)) is not None:
        ours["signal"] = asked[1]
    return [Option(name, value, "") for name, value in ours.items()] + list(theirs.values())


def _merge_memory(spec: JobSpec, ours: dict[str, str | None], theirs: dict[str, Option]) -> None:
    given = [theirs[name] for name in MEMORY if name in theirs]
    if given and "mem" in ours:
        raise _contradiction(given[0], "--memory", ours["mem"])
    if len(given) > 1:
        raise SpecError(
            f'--sbatch "{given[0].given}" and "{given[1].given}" exclude each other.',
            field="--sbatch",
            hint="Keep one of them.",
        )
    if spec.schedule.exclusive and not given and "mem" not in ours:
        ours["mem"] = "0"  # else whole nodes come with the default memory of a part of one


def _merge_gpus(request: GpuRequest | None, ours: dict[str, str | None], theirs: dict[str, Option]) -> bool:
    """Say GPUs once, by ``--gpus-per-node`` or ``--gres``: from 26.05 on both together are fatal.

    ``--gres`` alone, without a value, means: ask for the spec's GPUs by ``--gres``.
    """
    gres = theirs.get("gres")
    asked, others = gres_gpus(gres.value) if gres and gres.value else (None, [])
    if request is None:
        if gres and not gres.value:
            raise SpecError(
                '--sbatch "--gres" has no value.', field="--sbatch", hint="Add --gpus-per-node, or write --gres=gpu:1."
            )
        given = [theirs[name] for name in GPUS if name in theirs]
        if asked and given:
            assert gres is not None
            raise SpecError(
                f'--sbatch "{gres.given}" and "{given[0].given}" both ask for GPUs.',
                field="--sbatch",
                hint="Keep one, or use --gpus-per-node without --sbatch.",
            )
        return asked is not None
    ours["gpus-per-node"] = str(request)
    for name in GPUS:
        if (option := theirs.get(name)) is None:
            continue
        kind, _, count = (option.value or "").rpartition(":")
        same = name == "gpus-per-node" and count.isdigit() and _same(request, GpuRequest(int(count), kind or None))
        if not same:
            raise _contradiction(option, "--gpus-per-node", str(request))
        ours[name] = theirs.pop(name).value  # their spelling of the type
    if gres is None:
        return True
    if asked is not None and not _same(request, asked):
        raise _contradiction(gres, "--gpus-per-node", str(request))
    if asked is not None or not gres.value:
        del ours["gpus-per-node"], theirs["gres"]
        ours["gres"] = ",".join([f"gpu:{asked or request}", *others])
    return True


def _same(one: GpuRequest, other: GpuRequest) -> bool:
    return one.count == other.count and (one.type or "").lower() == (other.type or "").lower()


def _contradiction(option: Option, field: str, value: str | None) -> SpecError:
    said = f"{field} = {value}" if value is not None else field
    return SpecError(f'--sbatch "{option.given}" contradicts {said}.', field="--sbatch", hint="Keep one of the two.")


def lines(options: list[Option]) -> list[str]:
    """The directives."""
    return [f"#SBATCH {option.text}" for option in options]
