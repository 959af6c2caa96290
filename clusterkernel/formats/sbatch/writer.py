"""The sbatch script of a job: literals only, and a shell that tells what died before Python did.

The script ends where the supervisor takes over. What the shell itself knows
(a setup line that fails or exits, a folder or an interpreter that the node lacks, the
supervisor's exit code) it leaves as one JSON line in
``events/ATTEMPT/TASK.shell.jsonl``::

    {"t": 1790000000, "kind": "shell", "phase": "setup|folder|interpreter|launch",
     "exit_code": 127, "platform_id": "8123_4", "host": "gpu1", "reason": "..."}

``reason`` is there where the shell gave up by itself.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

from clusterkernel.errors import SpecError
from clusterkernel.formats import secrets
from clusterkernel.formats.sbatch.directives import checkpoint_signal, directives, lines, may_requeue, uses_srun
from clusterkernel.formats.sbatch.options import quote
from clusterkernel.runtime import setuplines
from clusterkernel.spec import JobSpec, Launcher
from clusterkernel.units import format_memory

__all__ = ["ArrayPart", "check", "clean_name", "log_pattern", "notes", "write"]

# Slurm's accounting keeps names in a column of 255 bytes.
NAME_BYTES: Final = 200
_MODULE: Final = re.compile(r"\s*(module|ml)\s")


class ArrayPart(msgspec.Struct, frozen=True):
    """The tasks of an array that one script starts.

    Attributes
    ----------
    first, count : int
        The first array task, and how many: Slurm counts them from 0.
    parallelism : int or None
        How many run at once.
    """

    first: int
    count: int
    parallelism: int | None = None


def clean_name(name: str) -> str:
    """A job name that fits on a directive and into Slurm's tables: without control characters, at most 200 bytes."""
    shown = "".join(char if char.isprintable() and not "\ud800" <= char <= "\udfff" else " " for char in name)
    data = " ".join(shown.split()).encode()[:NAME_BYTES]
    return data.decode("utf-8", "ignore") or "job"


def log_pattern(folder: str, *, array: bool) -> str:
    """The value of ``--output`` for a folder that exists.

    ``%`` is doubled, or ``50%unit`` would hold the user's name. A backslash
    makes Slurm take all of ``%`` literally and then fail to open the file.

    Raises
    ------
    SpecError
        Slurm cannot write to a path like this.
    """
    if bad := next((char for char in "\\\n\r\0" if char in folder), None):
        raise SpecError(
            f"Slurm cannot write a log to {folder!r}, whose name holds {bad!r}.",
            hint="Set CLUSTERKERNEL_JOB_ROOT to another folder.",
        )
    return folder.replace("%", "%%") + ("/%A_%a.log" if array else "/%j.log")


def check(spec: JobSpec) -> None:
    """Refuse what sbatch surely refuses, silently ignores, or cannot mean.

    Raises
    ------
    SpecError
        One line with the field, its value and the mend.
    """
    for value, flag, mend in (
        (spec.schedule.region, "--region", "Leave it out; --constraint names nodes by their features."),
        (spec.schedule.zone, "--zone", "Leave it out; --constraint names nodes by their features."),
        (spec.environment.image, "--image", 'Where the site has pyxis: --sbatch "--container-image=...".'),
    ):
        if value is not None:
            raise SpecError(f"{flag} = {value!r} means nothing to Slurm.", field=flag, hint=mend)
    if spec.storage.volumes:
        name = spec.storage.volumes[0].name
        raise SpecError(
            f"--volumes = {name!r} means nothing to Slurm.",
            field="--volumes",
            hint="Use a folder that the nodes share.",
        )
    if spec.name is not None and clean_name(spec.name) != spec.name:
        raise SpecError(
            f"--name = {spec.name!r} is not a name that Slurm keeps.",
            field="--name",
            hint=f"Write one line of at most {NAME_BYTES} bytes.",
        )
    priority = spec.schedule.priority
    if priority is not None and not (priority.isdigit() or priority == "TOP"):
        raise SpecError(
            f"--priority = {priority!r} would be ignored: Slurm's priority is a number or TOP.",
            field="--priority",
            hint="Use --qos or --partition, which set priorities for everybody.",
        )
    if spec.recovery.requeue is False and spec.recovery.attempts > 1:
        raise SpecError(
            f"--attempts = {spec.recovery.attempts} needs a job that Slurm may queue again.",
            field="--attempts",
            hint="Take requeue = false away, or set --attempts 1.",
        )
    for flag, text in _texts(spec):
        if bad := next((char for char in "\n\r\0" if char in text), None):
            raise SpecError(f"{flag} = {text!r} holds {bad!r}.", field=flag, hint="Write it on one line.")
    directives(spec)


def _texts(spec: JobSpec) -> list[tuple[str, str]]:
    """What must stand on one line."""
    schedule, environment = spec.schedule, spec.environment
    found = [
        (f"--{name}", getattr(schedule, name))
        for name in ("partition", "account", "qos", "constraint", "network", "reservation", "dependency")
    ]
    found += [("--workdir", environment.workdir), ("--interpreter", environment.interpreter)]
    found += [("--setup", line.rstrip("\n")) for line in environment.setup]
    return [(flag, text) for flag, text in found if text is not None]


def notes(spec: JobSpec) -> tuple[str, ...]:
    """What a person should know before this is sent, in full sentences."""
    options = {option.name: option.value for option in directives(spec)}
    found = []
    if "time" not in options:
        found.append("No --time is set: the partition's default limit holds.")
    elif spec.schedule.time is not None and spec.schedule.time % 60:
        found.append(f"Slurm counts in whole minutes: it gives {-(-spec.schedule.time // 60)} min.")
    if spec.schedule.exclusive and options.get("mem") == "0":
        found.append("--exclusive asks for all memory of its nodes (--mem=0); to leave that out: --sbatch --exclusive.")
    if spec.schedule.priority is not None:
        found.append("Slurm ignores --priority silently, unless you are an operator or administrator.")
    if spec.schedule.network is not None:
        found.append("--network has an effect on HPE and Cray networks only; InfiniBand is NCCL's own choice.")
    if spec.resources.memory_limit is not None:
        limit = format_memory(spec.resources.memory_limit)
        found.append(f"Slurm has one number for memory: --memory-limit {limit} has no effect.")
    if spec.storage.shm is not None:
        found.append("--shm has no effect on Slurm: /dev/shm is the node's.")
    if may_requeue(spec):
        found.append("Slurm may start the job again: the code then runs from its beginning.")
    for name, value in spec.environment.env.items():
        if secrets.is_name(name) or secrets.is_value(value):
            found.append(f"{name} stands in the script, which Slurm stores: use --secrets {name} if it is secret.")
    return tuple(found)


def write(
    spec: JobSpec,
    *,
    job_name: str,
    comment: str,
    log_path: str,
    events: str,
    launch: Sequence[str],
    meet: Sequence[str] = (),
    workdir: str | None = None,
    array: ArrayPart | None = None,
    after: str | None = None,
) -> str:
    """The script's text.

    Parameters
    ----------
    spec : JobSpec
        What `check` lets pass.
    job_name : str
        Any text; see `clean_name`.
    comment : str
        Holds the job's key, so that it is found again.
    log_path : str
        The value of ``--output``; see `log_pattern`.
    events : str
        Folder of the records.
    launch : sequence of str
        The supervisor's command line; its first item is the interpreter.
    meet : sequence of str, optional
        A command that prints where the launchers of several nodes meet.
    workdir : str, optional
        Working folder, where the spec names none.
    array : ArrayPart, optional
        For an array.
    after : str, optional
        A further dependency.

    Raises
    ------
    SpecError
        As `check`.
    """
    workdir = spec.environment.workdir or workdir
    options = {option.name: option.value for option in directives(spec)}
    if after is not None:
        options["dependency"] = ",".join(filter(None, [options.get("dependency"), after]))
    head = ["#!/bin/bash", f"#SBATCH --job-name={quote(clean_name(job_name))}", f"#SBATCH --comment={quote(comment)}"]
    head += lines([option for option in directives(spec) if option.name != "dependency"])
    if options.get("dependency"):
        head.append(f"#SBATCH --dependency={quote(options['dependency'] or '')}")
    if array is not None:
        throttle = f"%{array.parallelism}" if array.parallelism else ""
        head.append(f"#SBATCH --array=0-{array.count - 1}{throttle}")
    head += [f"#SBATCH --output={quote(log_path)}", "#SBATCH --open-mode=append", "#SBATCH --export=ALL"]
    if workdir:
        head.append(f"#SBATCH --chdir={quote(workdir)}")
    first = array.first if array else 0
    body = [_records(events, first if array else None), *_signals(spec)]
    body += [f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.environment.env.items())]
    if any(_MODULE.match(line) for line in spec.environment.setup):
        # A batch shell is no login shell: where the kernel had no `module` to pass on, this has.
        body.append("type module >/dev/null 2>&1 || . /etc/profile")
    body += setuplines.guarded(spec.environment.setup)
    if workdir:
        missing = _stop(1, f"The working folder {workdir} is not there")
        body += ["ck_phase=folder", f"cd {shlex.quote(workdir)} || {missing}"]
    body += ["ck_phase=interpreter", _interpreter(launch[0]), "ck_phase=launch"]
    if meet and spec.launcher is not Launcher.NONE and spec.resources.nodes > 1:
        # Here, on the head, and once: all nodes inherit it.
        body += [f"CLUSTERKERNEL_RENDEZVOUS=$({shlex.join(meet)})", "export CLUSTERKERNEL_RENDEZVOUS"]
    words = [*_srun(spec, options), *launch]
    if first:
        words += ["--first-task", str(first)]
    body += _launch(spec, shlex.join(words))
    return "\n".join([*head, "", *body, ""])


def _records(events: str, first: int | None) -> str:
    """The part that writes the shell's record at the end."""
    task = "ck_task=0" if first is None else f"ck_task=$(({first} + SLURM_ARRAY_TASK_ID))"
    own_id = "$SLURM_JOB_ID" if first is None else "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
    return f"""# What ends here, before or beside Python, leaves one record for the notebook.
ck_events={shlex.quote(events)}/${{SLURM_RESTART_COUNT:-0}}
{task}
ck_phase=setup
ck_reason=
ck_sweep() {{  # Its supervisor was killed: what it left must not train on.
    ck_mark="CLUSTERKERNEL_OUT=${{ck_events%/events/*}}/out/${{ck_events##*/}}/$ck_task."
    grep -zlsF "$ck_mark" /proc/[0-9]*/environ | while IFS=/ read -r _ _ ck_process _; do
        kill -KILL "$ck_process"
    done
}}
ck_end() {{
    ck_code=$?
    [ "$ck_code" -le 128 ] || ck_sweep
    [ -d "$ck_events" ] || mkdir -p -m 700 "$ck_events"
    ck_form='{{"t":%(%s)T,"kind":"shell","phase":"%s","exit_code":%d,"platform_id":"%s","host":"%s","reason":"%s"}}\\n'
    printf "$ck_form" -1 "$ck_phase" "$ck_code" "{own_id}" "$HOSTNAME" "$ck_reason" \\
        >>"$ck_events/$ck_task.shell.jsonl"
}}
ck_stop() {{
    ck_reason="$2 on node ${{SLURMD_NODENAME:-$HOSTNAME}}."
    printf 'clusterkernel: %s\\n' "$ck_reason" >&2
    exit "$1"
}}
ck_failed() {{
    ck_back='\\'
    ck_line=${{2:0:200}}
    ck_line=${{ck_line//"$ck_back"/"$ck_back$ck_back"}}
    ck_line=${{ck_line//'"'/"$ck_back"'"'}}
    ck_reason="The setup line ${{ck_line//[[:cntrl:]]/ }} failed with exit code $1."
    exit "$1"
}}
trap ck_end EXIT"""


def _stop(code: int, reason: str) -> str:
    return f"ck_stop {code} {shlex.quote(json.dumps(reason, ensure_ascii=False)[1:-1])}"


def _interpreter(python: str) -> str:
    """A line that gives up where the node has no such interpreter."""
    reason = _stop(127, f"The interpreter {python} is not there")
    test = f"[ -x {shlex.quote(python)} ]" if "/" in python else f"command -v {shlex.quote(python)} >/dev/null"
    return f"{test} || {reason}"


def _signals(spec: JobSpec) -> list[str]:
    """Slurm sends TERM to the whole process group: the shell must outlive the supervisor."""
    asked = checkpoint_signal(spec)
    if asked is None or uses_srun(spec):
        return ["trap : TERM"]
    return [
        "trap ck_again=1 TERM",
        f"trap 'ck_again=1; kill -s {asked[0]} \"$ck_pid\" 2>/dev/null' {asked[0]}",
    ]


def _srun(spec: JobSpec, options: dict[str, str | None]) -> list[str]:
    """Only where there is more than one process: srun costs 0.1 s. The ranks of a job live and die together."""
    if not uses_srun(spec):
        return []
    words = ["srun", "--kill-on-bad-exit=1", f"--nodes={spec.resources.nodes}", f"--ntasks={spec.processes}"]
    words.append(f"--ntasks-per-node={spec.tasks_per_node}")
    if options.get("cpus-per-task"):
        words.append(f"--cpus-per-task={options['cpus-per-task']}")  # since 22.05 srun no longer takes sbatch's
    return words


def _launch(spec: JobSpec, command: str) -> list[str]:
    """Run the supervisor; its exit code is the script's."""
    if checkpoint_signal(spec) is None or uses_srun(spec):
        run = [command]
    else:
        # In the background, since bash runs a trap only between commands, or in `wait`.
        run = [
            f"{command} &",
            "ck_pid=$!",
            "while ck_again=; do",
            '    wait "$ck_pid"',
            "    ck_code=$?",
            '    [ "$ck_again" ] || break',
            "done",
        ]
    if spec.recovery.attempts == 1:
        return run if len(run) == 1 else [*run, 'exit "$ck_code"']
    run += ["ck_code=$?"] if len(run) == 1 else []
    pause = f"sleep {spec.recovery.backoff} && " if spec.recovery.backoff else ""
    return [
        *run,
        "# The supervisor says whether the run may be tried again.",
        'ck_said=$(tail -qn 1 "$ck_events/$ck_task".[0-9]*.jsonl 2>/dev/null)',
        'if [ "$ck_code" -ne 0 ] && [[ $ck_said == *\'"retry": true\'* ]]; then',
        f'    {pause}scontrol requeue "$SLURM_JOB_ID" && sleep 60',
        "fi",
        'exit "$ck_code"',
    ]
