"""From launches, taken apart, to the steps of a program: counts checked, what belongs to Slurm alone named."""

from __future__ import annotations

import re
from typing import Final

from clusterkernel.errors import FormatError
from clusterkernel.formats.launch.counts import (
    Shape,
    count_of,
    counts,
    runs_once,
)
from clusterkernel.formats.launch.told import Steps, Teller
from clusterkernel.formats.model import How, Runs, Step
from clusterkernel.formats.sbatch.kept import Body, Found
from clusterkernel.formats.sbatch.needs import Counts
from clusterkernel.formats.shell.values import Variables
from clusterkernel.spec import Launcher

__all__ = ["EACH_NODE", "Shape", "Steps", "counts", "steps"]

#: ``set -e``, and the sign of the last of them.
_STOPS: Final = re.compile(r"(?m)^\s*set\b.*?\s([-+])(?:\w*e\w*|o errexit)(?=\s|$|;)")
EACH_NODE: Final = "The script starts it on the first node alone, where it would wait for the others."


def steps(body: Body, variables: Variables, shape: Shape, agreed: Counts, name: str) -> Steps:
    """The steps, with a row for each option on the way to them.

    Parameters
    ----------
    body : Body
        The lines.
    variables : Variables
        As they were at the end.
    shape : Shape
        What the job has.
    agreed : Counts
        Of all launches.
    name : str
        What errors call the script.

    Raises
    ------
    FormatError
        A step of a shape that only Slurm has.
    """
    maker = _Maker(body, variables, shape, agreed, name)
    for number, part in enumerate(body.parts):
        maker.add(number, part)
    return maker.made


class _Maker(Teller):
    def _named(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._names:
            name, number = f"{wanted}{number}", number + 1
        self._names.add(name)
        return name

    def add(self, number: int, part: Found | str) -> None:
        """One part of the body."""
        if isinstance(part, str):
            self.made.steps.append(Step(name=self._named("prepare"), shell=part, runs=Runs.HEAD))
            return
        launch, line = part.launch, part.line
        if not launch.program:
            raise FormatError(f"{self._name}, line {line}: srun starts no program.", hint="Mend that line.")
        runs, how, why = self._runs(part)
        step_name = self._named(launch.axolotl or "run")
        self._srun_options(part, runs, step_name)
        self._mpi_options(part)
        self._container(part)
        args = self._launcher_options(part)
        launched = launch.launcher is not Launcher.NONE
        if launch.axolotl:
            self._config(part)
        if launch.interpreter and not self.made.interpreter:
            self.made.interpreter = launch.interpreter
            self._row(line, "python", launch.interpreter, "interpreter")
        if launch.login:
            why = "What a login shell reads first is not read: have setup lines do it, such as module load."
            self._row(line, "bash -l", "", None, How.CHANGED, why)
        shell = self._meeting_names(launch.shell, line)
        if part.may_fail or self._goes_on(part, number, runs):
            # What stands in a heredoc ends on a line of its own.
            shell = f"{{ {shell}\n}} || true" if "\n" in shell else f"{shell} || true"
        elif self._stops_here(part, number) and how is How.EXACT:
            how, why = How.CHANGED, "What comes behind it runs only if it did well; the script goes on in any case."
        step = Step(name=step_name, shell=shell, runs=runs, launched=launched, launcher_args=args)
        self.made.steps.append(step)
        if launched:
            key = f"axolotl --launcher {launch.launcher.value}" if launch.axolotl else launch.launcher_name
            self._row(line, key, "", "launcher")
        key = "srun" if launch.srun is not None else "command"
        self._row(line, key, shell, f"program.steps.{number}", how, why)

    def _goes_on(self, part: Found, number: int, runs: Runs) -> bool:
        """Whether the script would go on after a failure of what only prepares."""
        launch = part.launch
        plain = launch.srun is None and launch.launcher is Launcher.NONE and not launch.axolotl
        alone = runs is Runs.HEAD and not part.background  # whoever waits for it wants its status
        return plain and alone and not part.checked and self._stops_here(part, number)

    def _stops_here(self, part: Found, number: int) -> bool:
        """Whether a failure ends the job, but not the script."""
        before = [*self._body.setup, *(text for text in self._body.parts[:number] if isinstance(text, str))]
        stops = (_STOPS.findall("\n".join(before)) or ["+"])[-1] == "-"
        behind = part.checked or number < len(self._body.parts) - 1
        return behind and not part.guards and not part.may_fail and not stops

    def _runs(self, part: Found) -> tuple[Runs, How, str]:
        """Where a step runs, and how exactly that is what the script does."""
        launch, shape = part.launch, self._shape
        launched = launch.launcher is not Launcher.NONE
        if launch.axolotl == "preprocess":
            many = launch.srun is not None and shape.nodes * shape.tasks > 1
            if many and not runs_once(launch, shape, self._variables):
                return Runs.HEAD, How.CHANGED, "Each task would do the same work again: it runs once."
            return Runs.HEAD, How.EXACT, ""
        if launch.srun is not None and runs_once(launch, shape, self._variables):
            return Runs.HEAD, How.EXACT, ""
        if launched:
            if launch.srun is None and shape.nodes > 1:
                return Runs.NODES, How.CHANGED, EACH_NODE
            if shape.tasks > 1 and launch.srun is not None:
                why = f"{shape.tasks} launchers on a node would start {shape.tasks} times the ranks: it is one."
                return Runs.NODES, How.CHANGED, why
            return Runs.NODES, How.EXACT, ""
        if launch.srun is None and launch.mpirun is None:
            return Runs.HEAD, How.EXACT, ""
        if launch.mpirun is not None:
            self._check_mpirun(part)
            return Runs.RANKS, How.CHANGED, "The platform starts the ranks, and not mpirun."
        return self._runs_of_srun(part)

    def _check_mpirun(self, part: Found) -> None:
        """Refuse an mpirun that starts other processes than the job has tasks."""
        shape, options = self._shape, {option.name: option.value for option in part.launch.mpirun or []}
        total = next((options[name] for name in ("np", "n", "c") if name in options), None)
        each = next((options[name] for name in ("npernode", "N", "ppn") if name in options), None)
        for word, has, flag in ((total, shape.nodes * shape.tasks, "ntasks"), (each, shape.tasks, "ntasks-per-node")):
            number = count_of(word, self._variables, shape)
            if number is not None and number.isdecimal() and int(number[:9]) != has:
                raise FormatError(
                    f"{self._name}, line {part.line}: mpirun starts {number} processes where the job has {has}.",
                    hint=f"Ask for them: #SBATCH --{flag}={number}",
                )

    def _runs_of_srun(self, part: Found) -> tuple[Runs, How, str]:
        shape = self._shape
        options = {option.name: option.value for option in part.launch.srun or []}
        tasks = count_of(options.get("ntasks"), self._variables, shape)
        each = count_of(options.get("ntasks-per-node"), self._variables, shape)
        if tasks is None or not tasks.isdecimal():
            if each == "1" and shape.tasks > 1:
                return Runs.NODES, How.EXACT, ""
            return Runs.RANKS, How.EXACT, ""
        total = int(tasks)
        if total == shape.nodes * shape.tasks:
            return Runs.RANKS, How.EXACT, ""
        if total == shape.nodes:
            return Runs.NODES, How.EXACT, ""
        raise FormatError(
            f"{self._name}, line {part.line}: srun starts {total} of the job's {shape.nodes * shape.tasks} tasks.",
            hint="No other platform starts a part of a job: ask for as many tasks as srun starts.",
        )

    def _meeting_names(self, shell: str, line: int) -> str:
        """The script's own names of where the nodes meet, as the names that every job has."""
        for name in self._body.meeting:
            plain = "$MASTER_PORT" if "PORT" in name.upper() else "$MASTER_ADDR"
            if "ENDPOINT" in name.upper():
                plain = "$MASTER_ADDR:$MASTER_PORT"
            if name not in ("MASTER_ADDR", "MASTER_PORT"):
                shell = re.sub(rf"\$\{{{name}(?:\[0\])?\}}|\${name}\b", plain, shell)
                if re.search(rf"\$\{{[#!]?{name}\b", shell):
                    raise FormatError(
                        f"{self._name}, line {line}: ${{{name}...}} names other nodes than the first one.",
                        hint="Only Slurm names them: have the program ask its launcher, or scontrol, for them.",
                    )
        return shell
