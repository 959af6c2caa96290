"""The lines of a batch script behind its directives: environment, setup, where the nodes meet, and the steps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final

from clusterkernel.formats.launch.writer import Meeting, command_line
from clusterkernel.formats.model import Program, Runs, Step
from clusterkernel.formats.reporting import Report
from clusterkernel.formats.sbatch.options import Option
from clusterkernel.formats.shell import effects
from clusterkernel.formats.shell.values import names_in
from clusterkernel.spec import JobSpec, Launcher

__all__ = ["ADDRESS", "PORT", "RETRY", "body", "retry"]

#: The first node's own address: names of nodes do not resolve everywhere.
ADDRESS: Final = (
    'export MASTER_ADDR=$(scontrol show node "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    " | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')"
)
PORT: Final = "export MASTER_PORT=$((20000 + (SLURM_JOB_ID * 31 + ${SLURM_RESTART_COUNT:-0} * 7) % 12000))"
#: What `retry` writes, for the reader.
RETRY: Final = re.compile(
    r"""trap 'ck_code=\$\?; if \[ "\$ck_code" -ne 0 \] && \[ "\$\{SLURM_RESTART_COUNT:-0\}" -lt (\d{1,3}) \]; then"""
    r""" (?:sleep (\d{1,9}); )?scontrol requeue "\$SLURM_JOB_ID"; fi; exit "\$ck_code"' EXIT""",
    re.ASCII,
)
# A bare `wait` would end with 0 whatever happened; a trapped signal ends `wait` before the step has ended, and a
# step that has ended tells its status again.
_WAIT: Final = ("# Again after a trapped signal; the status is the step's own.", "wait $!", "wait $!", "wait $!")
_FILE: Final = re.compile(r"^(/|\./|\.\./|~|\$)|\.(sif|sqsh|simg|squashfs)$")


def retry(attempts: int, backoff: int | None) -> str:
    """A line by which a failed job queues itself again."""
    pause = f"sleep {backoff}; " if backoff else ""
    return (
        f"""trap 'ck_code=$?; if [ "$ck_code" -ne 0 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {attempts - 1} ]; then"""
        f""" {pause}scontrol requeue "$SLURM_JOB_ID"; fi; exit "$ck_code"' EXIT"""
    )


def body(spec: JobSpec, program: Program, options: Mapping[str, Option], report: Report) -> list[str]:
    """All lines behind the directives, told to `report`."""
    writer = _Writer(spec, program, options, report)
    lines = ["", *writer.before(), *writer.steps()]
    return lines if program.steps else [*lines, "# What runs was not said: write the command here."]


class _Writer:
    def __init__(self, spec: JobSpec, program: Program, options: Mapping[str, Option], report: Report) -> None:
        self._spec = spec
        self._program = program
        self._options = options
        self._report = report
        self._image = spec.environment.image
        said = [option.removeprefix("--").partition("=") for option in program.options.get("container", ())]
        self._inside = {name: value for name, equals, value in said if equals}  # workdir, from
        kinds = [name for name, equals, _ in said if not equals]
        #: By what the steps get into their container; empty where sbatch's own options see to that.
        self._container = "" if "container-image" in options else next(iter(kinds), "apptainer")
        workdir = spec.environment.workdir or ""
        if not kinds and self._image is not None and self._container and workdir.startswith("/"):
            self._inside.setdefault("workdir", workdir)  # elsewhere it was a folder of the image
        signal = options.get("signal")
        who = (signal.value or "").partition(":")[0] if signal and ":" in (signal.value or "") else ""
        self._waits = "B" in who  # a trap of the batch shell fires between commands, or in `wait`
        self._signalled = signal is not None and not self._waits
        shell = [
            option.removeprefix("--process=") for option in program.options.get("shell", ()) if "process" in option
        ]
        self._process = shell[0].strip("!") if shell else ""  # what names the step that a trap works beside
        self._waits = self._waits or bool(shell)

    # -- what comes first -------------------------------------------------------------

    def before(self) -> list[str]:
        """Environment, secrets, setup, and the working folder."""
        spec, report = self._spec, self._report
        environment = spec.environment
        lines: list[str] = []
        if spec.recovery.attempts > 1:
            lines.append(retry(spec.recovery.attempts, spec.recovery.backoff))
            report.exact("attempts", "trap ... EXIT", spec.recovery.attempts)
            if spec.recovery.backoff:
                report.exact("backoff", "sleep", spec.recovery.backoff)
        for name, value in environment.env.items():
            line = f"export {name}={shlex.quote(value)}"
            lines += [] if line in environment.setup else [line]
            report.exact(f"env.{name}", f"export {name}", value)
        for name in environment.secrets:
            lines.append(f': "${{{name}:?is a secret: set it in the shell that calls sbatch}}"')
            report.exact(f"secrets.{name}", f"${name}")
        if chdir := self._chdir():
            lines.append(chdir)
        for number, line in enumerate(environment.setup):
            lines.append(line)
            report.exact(f"setup.{number}", "script", line)
        if self._meets():
            lines += ["# The nodes meet at the first one, at a port of this job.", ADDRESS, PORT]
        for name in self._handed_on():
            lines.append(f"export {name}")
        if environment.interpreter:
            if any(step.launched for step in self._program.steps):
                report.exact("interpreter", "script", environment.interpreter)
            else:
                report.dropped("interpreter", "The command names its own.")
        return lines

    def _chdir(self) -> str:
        workdir = self._spec.environment.workdir
        given = self._options.get("chdir")
        if workdir is None:
            return ""
        if outside := self._inside.get("from"):
            self._report.exact("program.options.container.from", "cd", outside)
            workdir = outside
        elif workdir == self._inside.get("workdir"):
            return ""
        for option in (given, self._options.get("container-workdir")):
            if option is not None and option.value == workdir:
                self._report.exact("workdir", f"--{option.name}", workdir)
                return ""
        if not outside:
            self._report.exact("workdir", "cd", workdir)
        plain = workdir if workdir.startswith("~") and shlex.quote(workdir[1:] or "x") == (workdir[1:] or "x") else ""
        return f"cd {plain or shlex.quote(workdir)} || exit"

    def _meets(self) -> bool:
        steps = self._program.steps
        named = any("MASTER_" in text for step in steps for text in (step.shell, *step.launcher_args))
        many = any(step.runs is not Runs.HEAD for step in steps) and self._spec.resources.nodes > 1
        ranks = self._spec.launcher is Launcher.NONE and any(self._tasks(step) > 1 for step in steps)
        return named or many or ranks

    def _handed_on(self) -> list[str]:
        """Variables that a setup line sets and a step reads, and that nobody exports: a step is another process."""
        lines = [*self._spec.environment.setup, *(step.shell for step in self._program.steps if step.name == "prepare")]
        text = "\n".join(lines)
        set_there = set(effects.sets(text))
        wanted = []
        for step in self._program.steps:
            for name in names_in(step.shell) if step.runs is not Runs.HEAD else []:
                if name not in set_there or name in wanted:
                    continue
                array = re.search(rf"(?m)^\s*{name}\+?=\(", text)
                if not array and not re.search(rf"(?m)^\s*(export|declare -x)\s.*\b{name}\b", text):
                    wanted.append(name)
        return wanted

    # -- steps ------------------------------------------------------------------------

    def steps(self) -> list[str]:
        """The steps, each told to the report."""
        lines: list[str] = []
        steps, report = self._program.steps, self._report
        words = 0
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            lines += self._step(number, step, last=last)
            report.exact(f"program.steps.{number}", "script", step.shell)
            for word in step.launcher_args:
                report.exact(f"program.launcher_args.{words}", "script", word)
                words += 1
        spec = self._spec
        if any(step.launched for step in steps):
            report.exact("launcher", "script", spec.launcher.value)
            report.exact("tasks_per_node", "script", spec.ranks_per_node)
        if self._program.config:
            report.exact("program.config", "script", self._program.config)
        if self._image is not None and steps:
            self._tell_container()
        return lines

    def _tell_container(self) -> None:
        report, kind = self._report, self._container
        if not kind:
            report.exact("image", "--container-image", self._image or "")
            report.exact("program.mounts", "--container-mounts")
            return
        key = "srun --container-image" if kind == "pyxis" else f"{kind} exec"
        if "container" in self._program.options:
            report.exact("image", key, self._image or "")
            report.exact(f"program.options.container.{kind}", key)
            if workdir := self._inside.get("workdir"):
                inside = "srun --container-workdir" if kind == "pyxis" else f"{kind} exec --pwd"
                report.exact("workdir", inside, workdir)
                report.exact("program.options.container.workdir", inside, workdir)
        else:
            why = "It is written for apptainer; a site with pyxis has srun --container-image."
            report.changed("image", key, self._image or "", why)
            if workdir := self._inside.get("workdir"):
                report.exact("workdir", f"{kind} exec --pwd", workdir)
        for number, mount in enumerate(self._program.mounts):
            report.exact(f"program.mounts.{number}", key, mount.text)

    def _tasks(self, step: Step) -> int:
        """Processes that srun starts for a step."""
        nodes = self._spec.resources.nodes
        if step.runs is Runs.HEAD:
            return 1
        return nodes if step.launched or step.runs is Runs.NODES else nodes * self._spec.ranks_per_node

    def _step(self, number: int, step: Step, *, last: bool) -> list[str]:
        spec = self._spec
        meeting = Meeting("$SLURM_NODEID", "$MASTER_ADDR", "$MASTER_PORT", "$SLURM_JOB_ID")
        command = command_line(spec, step, meeting)
        if step.is_lines:
            return command.splitlines()
        inside = self._image is not None and bool(self._container)
        tasks = self._tasks(step)
        pyxis = inside and self._container == "pyxis"
        own = f"srun-{step.name}" in self._program.options
        srun = tasks > 1 or pyxis or own or (self._signalled and last)
        if inside and not pyxis:
            command = " ".join(self._apptainer()) + " " + _shielded(command, always=srun)
        elif srun:
            command = _shielded(command, always=False)
        if srun:
            command = " ".join([*self._srun(step, tasks, pyxis=pyxis), command])
        if "\n" in command and not command.startswith(("srun ", "bash -c ")):
            command = f"bash -c {shlex.quote(command)}"
        if self._waits and all(later.is_lines for later in self._program.steps[number + 1 :]):
            named = [f"{self._process}=$!"] if self._process else []
            alone = command.removesuffix(" || true")  # a signal for the process is one for the command
            then = " || true" if alone != command else "" if last else " || exit"
            self._report.exact("program.options.shell.process", "wait", self._process)
            return [f"{alone} &", *named, *_WAIT[:-1], _WAIT[-1] + then]
        return [command if last or command.endswith("|| true") else f"{command} || exit"]

    def _srun(self, step: Step, tasks: int, *, pyxis: bool) -> list[str]:
        spec, nodes = self._spec, self._spec.resources.nodes
        words = ["srun", "--kill-on-bad-exit=1"]
        if step.runs is Runs.HEAD:
            words += ["--nodes=1", "--ntasks=1"]
        else:
            each = max(1, tasks // nodes)
            if "nodes" in self._options:
                words += [f"--nodes={nodes}", f"--ntasks={tasks}", f"--ntasks-per-node={each}"]
            else:  # Slurm laid the tasks on as many nodes as it liked
                words.append(f"--ntasks={tasks}")
            if each > spec.tasks_per_node:
                words.append("--overcommit")
        cpus = self._options.get("cpus-per-task")
        if cpus is not None and cpus.value and step.runs is not Runs.HEAD:
            words.append(f"--cpus-per-task={cpus.value}")  # since 22.05 srun no longer takes sbatch's
        for option in self._program.options.get(f"srun-{step.name}", ()):
            words.append(_word(option))
            name = option.lstrip("-").partition("=")[0]
            self._report.exact(f"program.options.srun-{step.name}.{name}", "srun", option)
        if pyxis:
            words.append(f"--container-image={_word(self._image or '')}")
            if workdir := self._inside.get("workdir"):
                words.append(f"--container-workdir={_word(workdir)}")
            if self._program.mounts:
                words.append(f"--container-mounts={_word(','.join(mount.text for mount in self._program.mounts))}")
        return words

    def _apptainer(self) -> list[str]:
        image = self._image or ""
        place = image if _FILE.search(image) or "://" in image else f"docker://{image}"
        words = [self._container if self._container in ("apptainer", "singularity") else "apptainer", "exec"]
        if self._spec.resources.gpus_per_node:
            words.append("--nv")
        for mount in self._program.mounts:
            words += ["--bind", _word(mount.text)]
        if workdir := self._inside.get("workdir"):
            words += ["--pwd", _word(workdir)]
        return [*words, _word(place)]


def _word(text: str) -> str:
    """One word; variables in it are known inside the job."""
    return '"' + re.sub(r'([\\"`])', r"\\\1", text) + '"' if "$" in text else shlex.quote(text)


def _shielded(command: str, *, always: bool) -> str:
    """A command as words that another program starts: by a shell of its own where it needs one."""
    plain = not any(char in command for char in "|&;<>()\n") and not command.split("=", 1)[0].isidentifier()
    inner = bool(re.search(r"\$\{?(SLURM_(?!ARRAY_|JOB_)|MASTER_|RANK|LOCAL_RANK|NODE_RANK)", command))
    array = bool(re.search(r"\$\{#?\w+\[", command))  # no other shell has it
    if plain and not inner and (not always or array or "$" not in command):
        return command
    arguments = ' bash "$@"' if re.search(r"\$(\{?\d|[@*])", command) else ""
    return f"bash -c {shlex.quote(command)}{arguments}"
