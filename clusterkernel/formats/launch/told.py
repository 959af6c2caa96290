"""What becomes of the options of srun, mpirun, containers and launchers: a row for each."""

from __future__ import annotations

from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.launch.counts import RANKS, SRUN_COUNTS, SRUN_PARTS, Shape, count_of, ranks_of
from clusterkernel.formats.launch.options import Option
from clusterkernel.formats.model import How, Mount, Runs, SourceField, Step
from clusterkernel.formats.sbatch.kept import Body, Found
from clusterkernel.formats.sbatch.needs import Counts
from clusterkernel.formats.shell.pieces import Word
from clusterkernel.formats.shell.values import Variables

__all__ = ["Steps", "Teller"]

_DERIVED: Final = "Where the nodes meet is derived inside the job."
_MEETING: Final = frozenset(
    "rdzv-backend rdzv-endpoint rdzv-id rdzv-conf node-rank master-addr master-port local-addr standalone "
    "machine-rank main-process-ip main-process-port same-network hostfile no-ssh no-ssh-check include exclude "
    "launcher force-multi ssh-port use-env".split()
)
_NODES: Final = frozenset({"nnodes", "num-machines", "num-nodes"})


class Steps(msgspec.Struct, kw_only=True):
    """What the launches came to."""

    steps: list[Step] = []
    config: str = ""
    image: str = ""
    workdir: str = ""
    interpreter: str = ""
    container: str = ""
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    srun: dict[str, list[str]] = {}  # name of a step -> further options
    rows: list[SourceField] = []


class Teller:
    """Goes through the options of each launch, and keeps what they came to."""

    def __init__(self, body: Body, variables: Variables, shape: Shape, agreed: Counts, name: str) -> None:
        self._body = body
        self._variables = variables
        self._shape = shape
        self._agreed = agreed
        self._name = name
        self._names: set[str] = set()
        self._words = 0
        self._several = sum(isinstance(part, Found) for part in body.parts) > 1
        self.made = Steps(steps=[], env={}, mounts=[], srun={}, rows=[])

    def _row(self, line: int, key: str, value: str, field: str | None, how: How = How.EXACT, why: str = "") -> None:
        self.made.rows.append(SourceField(key, secrets.shown(value), line, field, how, why))

    def _srun_options(self, part: Found, runs: Runs, step: str) -> None:
        for option in part.launch.srun or []:
            key, text = f"srun --{option.name}", option.text
            if option.name in ("gpus-per-task", "ntasks-per-gpu"):
                self._srun_option(part.line, key, option, step)  # else each task would see all GPUs
            elif option.name in SRUN_COUNTS:
                self._count(part.line, key, option, runs)
            elif option.name == "container-image":
                self._image(part.line, key, option, "pyxis")
            elif option.name == "container-mounts":
                self._bind(part.line, key, option.value)
            elif option.name == "container-workdir":
                self._inside(part.line, key, option)
            elif option.name == "export" and option.value and option.value.value is not None:
                if option.value.value == "NONE":
                    self._srun_option(part.line, key, option, step)
                else:
                    self._exports(part.line, key, option.value.value)
            elif option.name == "jobid":
                self._row(part.line, key, text, None, why="A step belongs to its job.")
            elif option.name == "kill-on-bad-exit":
                self._row(part.line, key, text, None, why="The ranks of a job live and die together.")
            elif option.name in SRUN_PARTS:
                self._row(part.line, key, text, None, How.CHANGED, "It runs on the first node.")
            else:
                self._srun_option(part.line, key, option, step)

    def _srun_option(self, line: int, key: str, option: Option, step: str) -> None:
        """What only srun understands: it stays with its step."""
        value = "" if option.value is None else f"={option.value.inner or option.text}"
        self.made.srun.setdefault(step, []).append(f"--{option.name}{value}")
        self._row(line, key, option.text, f"program.options.srun-{step}.{option.name}")

    def _count(self, line: int, key: str, option: Option, runs: Runs) -> None:
        field = {"nodes": "nodes", "cpus-per-task": "cpus_per_task"}.get(option.name)
        if field is None:
            field = "gpus_per_node" if option.name.startswith(("gpus", "gres")) else "tasks_per_node"
        known = count_of(option.value, self._variables, self._shape)
        if runs is Runs.HEAD:
            self._row(line, key, option.text, f"program.steps.{len(self.made.steps)}", why="It runs once.")
        elif known is None:
            self._row(line, key, option.text, field, How.CHANGED, "It is what the whole job has.")
        else:
            self._row(line, key, option.text, field)

    def _mpi_options(self, part: Found) -> None:
        for option in part.launch.mpirun or []:
            key = f"mpirun -{option.name}"
            if option.name == "x" and option.value is not None:
                name, equals, value = option.value.text.partition("=")
                if equals and not secrets.is_name(name):
                    self.made.env[name] = value
                    self._row(part.line, key, option.text, f"env.{name}")
                elif not equals:
                    self._row(part.line, key, option.text, None, why="The ranks have the job's environment.")
                else:
                    self._row(part.line, key, f"{name}={secrets.HIDDEN}", None, How.DROPPED, "It is a secret.")
            elif option.name in ("np", "n", "npernode", "N"):
                self._row(part.line, key, option.text, "tasks_per_node", How.CHANGED, "As many as the job has tasks.")
            else:
                self._row(part.line, key, option.text, None, How.DROPPED, "It is mpirun's own.")

    def _container(self, part: Found) -> None:
        launch = part.launch
        if not launch.container or launch.image is None:
            return
        self.made.container = self.made.container or launch.container
        key = f"{launch.container} exec"
        self._image(part.line, key, Option("image", launch.image, (launch.image.shell,)), launch.container)
        for option in launch.container_options:
            what, text = f"{launch.container} --{option.name}", option.text
            if option.name == "bind":
                self._bind(part.line, what, option.value)
            elif option.name == "env" and option.value and option.value.value is not None:
                self._exports(part.line, what, option.value.value)
            elif option.name in ("pwd", "cwd"):
                self._inside(part.line, what, option)
            elif option.name in ("nv", "rocm", "nvccli"):
                self._row(part.line, what, text, None, why="Every platform gives a container the GPUs of its job.")
            else:
                self._row(part.line, what, text, None, How.DROPPED, f"It is {launch.container}'s own.")

    def _image(self, line: int, key: str, option: Option, container: str) -> None:
        image = option.text.removeprefix("docker://") if container != "pyxis" else option.text
        if self.made.image and image != self.made.image:
            raise FormatError(
                f"{self._name}, line {line}: a second image, {image[:60]!r}.", hint="A job has one image for all steps."
            )
        self.made.image, self.made.container = image, self.made.container or container
        how, why = How.EXACT, ""
        if option.value is None or option.value.value is None:
            how, why = How.CHANGED, "Its variables are known inside the job only."
        self._row(line, key, option.text, "image", how, why)

    def _inside(self, line: int, key: str, option: Option) -> None:
        """Where a container's command starts: a folder that the node need not have."""
        self.made.workdir = self.made.workdir or (option.value.inner or option.text if option.value else "")
        self._row(line, key, option.text, "workdir")

    def _bind(self, line: int, key: str, word: Word | None) -> None:
        for bind in ((word.inner or word.text) if word is not None else "").split(","):
            if not bind:
                continue
            source, _, rest = bind.partition(":")
            target, _, options = rest.partition(":")
            mount = Mount(source, target or source, options)
            if mount not in self.made.mounts:
                self.made.mounts.append(mount)
            self._row(line, key, bind, f"program.mounts.{self.made.mounts.index(mount)}")

    def _exports(self, line: int, key: str, text: str) -> None:
        for pair in text.split(","):
            name, equals, value = pair.partition("=")
            if not equals:
                self._row(line, key, pair, None, why="The step has the job's environment.")
            elif self._several and {**self._body.env, **self.made.env}.get(name, value) != value:
                raise FormatError(
                    f"{self._name}, line {line}: {name} has another value for this launch than for others.",
                    hint=f"Write it before the command: {name}={value} python train.py.",
                )
            elif secrets.is_name(name) or secrets.is_value(value):
                if name not in self._body.secrets:
                    self._body.secrets.append(name)
                why = f"A secret in the clear became a name: %cluster_secret set {name} keeps its value."
                self._row(line, key, f"{name}={secrets.HIDDEN}", f"secrets.{name}", How.CHANGED, why)
            else:
                self.made.env[name] = value
                self._row(line, key, pair, f"env.{name}", How.CHANGED, "It is set for all steps.")

    def _launcher_options(self, part: Found) -> tuple[str, ...]:
        launch, kept = part.launch, []
        for option in launch.options:
            key, text = f"{launch.launcher_name} --{option.name}", option.text
            if option.name in _MEETING:
                self._row(part.line, key, text, None, How.CHANGED, _DERIVED)
            elif option.name in _NODES:
                number = count_of(option.value, self._variables, self._shape)
                same = number == str(self._shape.nodes)
                why = "" if same else f"The job has {self._shape.nodes}."
                self._row(part.line, key, text, "nodes", How.EXACT if same else How.CHANGED, why)
            elif option.name in RANKS:
                self._rank_row(part, key, option)
            elif option.name == "multi-gpu":
                self._row(part.line, key, text, None, why="It follows from the number of ranks.")
            else:
                words = ["=".join(option.words)] if option.words[0].startswith("--") else list(option.words)
                for word in words:
                    kept.append(word)
                    self._row(part.line, key, word, f"program.launcher_args.{self._words + len(kept) - 1}")
        self._words += len(kept)
        return tuple(kept)

    def _rank_row(self, part: Found, key: str, option: Option) -> None:
        ranks = ranks_of(part.launch, self._variables, self._shape)
        if ranks is None:
            why = "As many as a node has GPUs."
            known = option.text in ("gpu", "auto") or "SLURM_GPUS" in option.text
            self._row(part.line, key, option.text, "tasks_per_node", How.EXACT if known else How.ASSUMED, why)
        elif option.name == "num-processes" and self._shape.nodes > 1:
            why = f"The total of all nodes: {ranks} on each."
            self._row(part.line, key, option.text, "tasks_per_node", How.EXACT, why)
        else:
            self._row(part.line, key, option.text, "tasks_per_node")

    def _config(self, part: Found) -> None:
        config = part.launch.config
        if config is None:
            raise FormatError(
                f"{self._name}, line {part.line}: axolotl {part.launch.axolotl} has no configuration.",
                hint="Name its YAML file behind the command.",
            )
        if not self.made.config:
            self.made.config = config.text
            self._row(part.line, f"axolotl {part.launch.axolotl}", config.text, "program.config")
