"""The shell script of a platform whose nodes are containers: Kubernetes, Modal, Baseten.

It runs once on each node. What Slurm does between the lines of a batch script
(a step on the first node only, a task for each rank) is written out, and of
Slurm's own variables those that the program reads are set.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.formats.launch.writer import Meeting, command_line
from clusterkernel.formats.model import Program, Runs, Step
from clusterkernel.formats.reporting import Report
from clusterkernel.formats.sbatch.values import array_indices
from clusterkernel.spec import JobSpec, Launcher

__all__ = ["HEAD", "MODULES", "RANKS", "Place", "marker", "script", "variables_of"]

HEAD: Final = "on the first node"
RANKS: Final = "ranks on each node"

#: A line that wants the environment modules of a cluster.
MODULES: Final = re.compile(r"\s*(module|ml)\s")
_PLAIN: Final = re.compile(r"(python[\d.]*|torchrun|accelerate|axolotl|deepspeed|/[\w./-]+)(\s|$)")
_SIGNS: Final = frozenset(";&|#\n<>")
# Lines that want files of the cluster.
_FROM_OUTSIDE: Final = re.compile(
    r"\s*(source|\.|conda|mamba|micromamba|spack|eval|cd|pushd|cp|mv|ln|rsync|scp|tar|unzip)\s|.*[^<]<\s*[^<]"
)
_GPUS_PER_TASK: Final = re.compile(r"--gpus-per-task=(?:[\w.-]+:)?(\d{1,3})$", re.ASCII)
_VARIABLE: Final = re.compile(r"\$\{?(SLURM_[A-Z0-9_]+|(?:USER|LOGNAME|TMPDIR)\b)")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a node of a platform knows, as words that bash reads.

    Attributes
    ----------
    platform : str
        What a person calls it.
    meeting : Meeting
        Where the nodes of a job meet.
    task : str
        The index of an array's task.
    job : str
        The platform's id of the job.
    shared : bool
        The nodes see the same files somewhere: what one of them prepares, the others find.
    """

    platform: str
    meeting: Meeting
    task: str = "0"
    job: str = ""
    shared: bool = False


def script(
    spec: JobSpec,
    program: Program,
    place: Place,
    report: Report,
    *,
    cd: str = "",
    steps: Sequence[Step] | None = None,
) -> str:
    """The lines that bash runs on each node.

    Parameters
    ----------
    spec, program : JobSpec, Program
        What to run.
    place : Place
        Where.
    report : Report
        Told of the setup lines, the steps and the launcher.
    cd : str
        A folder to go to first, as bash reads it.
    steps : sequence of Step, optional
        Those of the program's that this script runs; by itself all.
    """
    lines = [*_slurm_variables(spec, program, place), *([f"cd {cd} || exit"] if cd else [])]
    for number, line in enumerate(spec.environment.setup):
        if MODULES.match(line):
            report.dropped(f"setup.{number}", "A container has no environment modules: its image brings all there is.")
            continue
        lines.append(line.rstrip("\n"))
        if _FROM_OUTSIDE.match(line):
            report.changed(
                f"setup.{number}", "script", line, "The image, the app's folder or a volume has to have what it names."
            )
        else:
            report.exact(f"setup.{number}", "script", line)
    if spec.resources.nodes > 1:
        lines += [f"export MASTER_ADDR={place.meeting.address}", f"export MASTER_PORT={place.meeting.port}"]
    if spec.launcher is not Launcher.NONE and program.steps:
        _tell_launcher(spec, program, report)
    mine = program.steps if steps is None else steps
    word = 0
    for number, step in enumerate(program.steps):
        if step in mine:
            lines += _step(spec, program, mine, place, report, number, step)
            for offset in range(len(step.launcher_args)):
                report.exact(f"program.launcher_args.{word + offset}", "script", step.launcher_args[offset])
        word += len(step.launcher_args)
    return "\n".join([*lines, ""])


def marker(name: str, where: str = "") -> str:
    """The comment before a step, by which `container_reader` knows it again."""
    return f"# step: {name}" + (f", {where}" if where else "")


def _tell_launcher(spec: JobSpec, program: Program, report: Report) -> None:
    launcher = spec.launcher.value
    if not any(step.launched for step in program.steps):
        report.dropped("launcher", "No step is started by it.")
    elif spec.launcher is Launcher.DEEPSPEED and any(step.launched and step.axolotl for step in program.steps):
        why = "DeepSpeed's launcher does not start axolotl; torchrun does."
        report.changed("launcher", "script", "torchrun", why)
    elif spec.launcher is Launcher.DEEPSPEED and spec.resources.nodes > 1:
        why = "DeepSpeed's launcher reaches other nodes by ssh; torchrun starts its programs as well."
        report.changed("launcher", "script", "torchrun", why)
    else:
        report.exact("launcher", "script", launcher)


def _step(
    spec: JobSpec, program: Program, steps: Sequence[Step], place: Place, report: Report, number: int, step: Step
) -> list[str]:
    command = command_line(spec, step, place.meeting)
    position = list(steps).index(step)
    last = position == len(steps) - 1
    nodes, ranks = spec.resources.nodes, spec.ranks_per_node
    key = "script"
    traps = any(re.search(r"\btrap\b", text) for text in (*spec.environment.setup, *(one.shell for one in steps)))
    why = _why_variables(step.shell, place)
    if step.runs is Runs.HEAD and nodes > 1 and not place.shared:
        why = f"{place.platform} gives the nodes no files in common, so that each node does it."
    elif step.runs is Runs.HEAD and nodes > 1:
        inner = command.splitlines() if step.is_lines else _guarded(command, last=False)
        lines = [f'if [ "{place.meeting.rank}" = 0 ]; then', *_indented(inner)]
        if any(later.launched for later in steps[position + 1 :]):
            # The first node listens there as soon as it has come to the launch.
            lines += ["else", '    until (exec 3<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2>/dev/null; do sleep 5; done']
        elif not last:
            why = "The first node does it, and the others do not wait for it."
        _tell(report, number, key, step, why)
        return [marker(step.name, HEAD), *lines, "fi"]
    elif step.runs is Runs.RANKS and not step.launched and ranks > 1:
        why = why or f"{place.platform} starts one process on each node; the script starts the {ranks} ranks."
        _tell(report, number, key, step, why)
        return [
            marker(step.name, f"{ranks} {RANKS}"),
            *_ranks(command, nodes, ranks, place, _gpus_of_a_rank(program, step), traps=traps),
        ]
    _tell(report, number, key, step, why)
    plain = step.is_lines or (last and traps)  # a trap is the shell's, which therefore stays
    return [marker(step.name), *(command.splitlines() if plain else _guarded(command, last=last))]


def _tell(report: Report, number: int, key: str, step: Step, why: str) -> None:
    if why:
        report.changed(f"program.steps.{number}", key, step.shell, why)
    else:
        report.exact(f"program.steps.{number}", key, step.shell)


def _guarded(command: str, *, last: bool) -> list[str]:
    """A command after which the script only goes on where it did well."""
    if last:
        # Where nothing comes behind it, it takes the shell's place, and gets the platform's signals.
        return (
            [f"exec {command}"] if _PLAIN.match(command) and not _SIGNS.intersection(command) else command.splitlines()
        )
    if _SIGNS.intersection(command):
        return ["{", *command.splitlines(), "} || exit"]
    return [f"{command} || exit"]


def _indented(lines: Iterable[str]) -> list[str]:
    # No indent within a block of the person's own lines: it may hold a here-document.
    lines = list(lines)
    return lines if len(lines) > 1 else [f"    {line}" for line in lines]


def _gpus_of_a_rank(program: Program, step: Step) -> str:
    """The GPUs that Slurm would show to a rank alone (``--gpus-per-task``); empty for all of the node's."""
    options = (*program.options.get(f"srun-{step.name}", ()), *program.options.get("slurm", ()))
    for option in options:
        if (match := _GPUS_PER_TASK.match(option)) and (each := int(match[1])):
            return (
                "$LOCAL_RANK"
                if each == 1
                else f"$(seq -s , $((LOCAL_RANK * {each})) $((LOCAL_RANK * {each} + {each - 1})))"
            )
    return ""


def _ranks(command: str, nodes: int, ranks: int, place: Place, gpus: str, *, traps: bool) -> list[str]:
    first = f"{place.meeting.rank} * {ranks} + " if nodes > 1 else ""
    # Each rank tells how it ended, also where another one hangs: the first that failed ends the script.
    return [
        f"export WORLD_SIZE={nodes * ranks}",
        'ck_ends=$(mktemp -u) && mkfifo "$ck_ends" && exec 9<>"$ck_ends" && rm "$ck_ends" || exit',
        "set -m",
        *(["ck_trap=$(trap -p EXIT)"] if traps else []),  # the person's own runs behind ours
        "trap '"
        + ("ck_ended=$?; " if traps else "")
        + 'for ck_rank in $(jobs -p); do kill -- -"$ck_rank" 2>/dev/null; done'
        + ('; eval "set -- $ck_trap"; (exit "$ck_ended"); eval "${3-}"' if traps else "")
        + "' EXIT",
        f"for LOCAL_RANK in $(seq 0 {ranks - 1}); do",
        f"    export LOCAL_RANK RANK=$(({first}LOCAL_RANK)) SLURM_LOCALID=$LOCAL_RANK",
        "    export SLURM_PROCID=$RANK" + (f" CUDA_VISIBLE_DEVICES={gpus}" if gpus else ""),
        "    {",
        "(",
        *command.splitlines(),
        ")",
        "    echo $? >&9",
        "    } &",
        "done",
        f'for ck_rank in $(seq {ranks}); do read -r ck_code <&9; [ "$ck_code" = 0 ] || exit "$ck_code"; done',
    ]


# -- variables ------------------------------------------------------------------------


def variables_of(spec: JobSpec, program: Program, place: Place) -> Mapping[str, str]:
    """Slurm's variables that have a counterpart, and what to set them to."""
    gpus = spec.resources.gpus_per_node
    cpus = spec.resources.cpus_per_task
    nodes = spec.resources.nodes
    known = {
        "SLURM_JOB_ID": place.job,
        "SLURM_JOBID": place.job,
        "SLURM_JOB_NAME": shlex.quote(spec.name or "job"),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_NODEID": place.meeting.rank if nodes > 1 else "0",
        "SLURM_PROCID": place.meeting.rank if nodes > 1 else "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(spec.processes),
        "SLURM_NTASKS_PER_NODE": str(spec.tasks_per_node),
        "SLURM_CPUS_PER_TASK": str(cpus * spec.ranks_per_node // spec.tasks_per_node) if cpus else "",
        "SLURM_CPUS_ON_NODE": "$(nproc)",
        "SLURM_GPUS_ON_NODE": str(gpus.count) if gpus else "",
        "SLURM_GPUS_PER_NODE": str(gpus.count) if gpus else "",
        "SLURM_RESTART_COUNT": "0",
        "SLURM_SUBMIT_DIR": '"$PWD"',
        "SLURM_TMPDIR": '"${TMPDIR:-/tmp}"',
        "TMPDIR": '"${TMPDIR:-/tmp}"',
        **dict.fromkeys(("USER", "LOGNAME"), '"$(id -un)"'),
    }
    if spec.array is not None:
        ids = _array_ids(program, spec.array.size)
        known["SLURM_ARRAY_TASK_ID"] = _array_id(ids, place.task)
        known["SLURM_ARRAY_JOB_ID"] = place.job
        known["SLURM_ARRAY_TASK_COUNT"] = str(len(ids))
        known["SLURM_ARRAY_TASK_MIN"] = str(min(ids))
        known["SLURM_ARRAY_TASK_MAX"] = str(max(ids))
    return {name: value for name, value in known.items() if value}


def _array_ids(program: Program, size: int) -> Sequence[int]:
    """The numbers of an array's tasks: the source's own, where it has as many."""
    for option in program.options.get("slurm", ()):
        if option.startswith("--array="):
            ids = [number for part in array_indices(option.removeprefix("--array="))[0] for number in part]
            if len(ids) == size:
                return sorted(ids)
    return range(size)


def _array_id(ids: Sequence[int], task: str) -> str:
    """The number of the task that a platform counts as `task`, from 0."""
    step = ids[1] - ids[0] if len(ids) > 1 else 1
    if list(ids) == list(range(len(ids))):
        return task
    if all(number == ids[0] + place * step for place, number in enumerate(ids)):
        return f"$(({ids[0]} + {step} * {task}))" if step > 1 else f"$(({ids[0]} + {task}))"
    return f"$(set -- {' '.join(map(str, ids))}; shift {task}; echo $1)"


def _read(spec: JobSpec, program: Program) -> list[str]:
    texts = [*spec.environment.setup, *spec.environment.env.values()]
    texts += [text for step in program.steps for text in (step.shell, *step.launcher_args)]
    return list(dict.fromkeys(name for text in texts for name in _VARIABLE.findall(text)))


def _slurm_variables(spec: JobSpec, program: Program, place: Place) -> list[str]:
    known = variables_of(spec, program, place)
    return [f"export {name}={known[name]}" for name in _read(spec, program) if name in known]


def _why_variables(shell: str, place: Place) -> str:
    names = list(dict.fromkeys(_VARIABLE.findall(shell)))
    if not names:
        return ""
    return f"{place.platform} does not set {', '.join(names)}: the script sets what has a counterpart."
