"""What a script, a cloud YAML or a manifest says that nobody reads, or that means something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from clusterkernel.advice.base import Advice, Case, Level, rule
from clusterkernel.advice.resources import changes
from clusterkernel.formats.launch.steps import EACH_NODE
from clusterkernel.formats.model import Format, How
from clusterkernel.spec import Launcher

_VARIABLE: Final = re.compile(r"\$\{?[A-Za-z_]\w*")
_CLOUDS: Final = (Format.MODAL_YAML, Format.BASETEN_YAML)


@rule("directive-variable")
def directive_variable(case: Case) -> Iterator[Advice]:
    """A variable in a directive, which sbatch does not expand."""
    if case.format is not Format.SLURM:
        return
    for field in case.fields:
        told = field.line is not None and field.key.startswith("-")
        if not told or not (_VARIABLE.search(field.value) or _VARIABLE.search(field.reason)):
            continue
        if field.key.lstrip("-") in ("output", "error", "o", "e", "wrap"):
            continue
        yield Advice(
            level=Level.ERROR,
            rule="directive-variable",
            field=field.key,
            message=f"Line {field.line}: {field.key} holds a variable, and sbatch expands none in a directive: it "
            "refuses the script, whatever the environment or the command line say.",
            fix="Write the value itself; a value of one run goes to sbatch's command line.",
        )


@rule("directive-late")
def directive_late(case: Case) -> Iterator[Advice]:
    """A directive behind the first command, which sbatch does not look at."""
    for field in case.fields if case.format is Format.SLURM else ():
        if field.key == "#SBATCH":
            yield Advice(
                level=Level.ERROR,
                rule="directive-late",
                field=field.key,
                message=f"Line {field.line}: sbatch takes no notice of #SBATCH {field.value}, since it stands behind a "
                "command.",
                fix="Move it up, before the first command.",
            )


@rule("launch-one-node")
def launch_one_node(case: Case) -> Iterator[Advice]:
    """A launcher of several nodes that the script starts on the first one alone."""
    for field in case.fields if case.format is Format.SLURM and case.spec.backend == "slurm" else ():
        if field.field is not None and EACH_NODE in field.reason:
            yield Advice(
                level=Level.ERROR,
                rule="launch-one-node",
                field=field.key,
                message=f"Line {field.line}: {case.spec.launcher.value} starts on the first of {case.nodes} nodes "
                "alone, where it waits for the others until it gives up.",
                fix="Write srun before it: srun --ntasks-per-node=1 torchrun ...",
            )


@rule("key-ignored")
def key_ignored(case: Case) -> Iterator[Advice]:
    """A key of a cloud YAML that axolotl does not read, or of a manifest that is nearly one, and nobody says it."""
    if case.format not in (*_CLOUDS, Format.KUBERNETES):
        return
    for field in case.fields:
        if field.how is not How.DROPPED:
            continue
        if case.format is Format.KUBERNETES and not field.reason.startswith("Did you mean"):
            continue
        change: Callable[[Case], Case] | None = None
        fix = "Leave it out."
        if field.key.startswith("restart_policy"):
            if case.spec.recovery.attempts > 1:
                continue  # it is said in a way that counts
            attempts = re.search(r"max_(?:attempts|retries)\D{1,4}(\d{1,2})", f"{field.key}: {field.value}")
            count = max(1, int(attempts[1])) if attempts else 3
            fix = f"Set --attempts {count}, and let the training go on from its last checkpoint."
            change = changes(attempts=count)
        where = f" (line {field.line})" if field.line else ""
        yield Advice(
            level=Level.WARNING,
            rule="key-ignored",
            field=field.key,
            message=f"{field.key}{where} has no effect. {field.reason}",
            fix=fix,
            change=change,
        )


@rule("launcher-tasks")
def launcher_tasks(case: Case) -> Iterator[Advice]:
    """Several tasks on each node that each start a launcher, which starts all ranks again."""
    if case.format is not Format.SLURM or case.spec.launcher is Launcher.NONE:
        return
    for field in case.fields:
        name = field.key.lstrip("-")
        if name not in ("ntasks-per-node", "tasks-per-node") or not field.value.isdigit() or int(field.value) <= 1:
            continue
        launcher = case.spec.launcher.value
        yield Advice(
            level=Level.ERROR,
            rule="launcher-tasks",
            field=field.key,
            message=f"{field.key}={field.value} starts {field.value} times {launcher} on each node, and each of them "
            "starts all ranks of the node.",
            fix=f"Write {field.key}=1: {launcher} starts the ranks.",
        )
