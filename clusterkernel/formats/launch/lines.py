"""One command of a script, taken apart: srun, container, launcher, and the program that they start."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats.launch import options as launch_options
from clusterkernel.formats.launch.options import Option, split
from clusterkernel.formats.shell.pieces import Word
from clusterkernel.formats.shell.values import Variables, assignment
from clusterkernel.formats.shell.words import Kind, statements
from clusterkernel.spec import Launcher

__all__ = ["SETUP", "Launch", "is_launch", "take_apart"]

#: Commands that prepare, and are not what a job is there for.
SETUP: Final = frozenset(
    ". : [ [[ alias awk bind builtin cat cd chmod chown clear conda cp curl date declare df dirname disown du echo "
    "enable env eval exit export false find free getconf git grep groups head hash history hostname huggingface-cli "
    "id install ip kill let ln local locale ls lscpu lspci mamba micromamba mkdir mktemp ml module mount mv "
    "nproc nvcc nvidia-smi pip pip3 popd printenv printf ps pushd pwd read readonly readlink realpath return rm rmdir "
    "rsync scancel scontrol sed set setenv shift shopt sinfo sleep sort source spack squeue sstat stat sync tail tar "
    "tee test touch tr trap true type typeset ulimit umask unalias uname unset unsetenv unzip uptime use wait wandb wc "
    "wget which who whoami xargs zip".split()
)
_TRANSPARENT: Final = frozenset("exec command nohup time builtin unbuffer".split())
_SHELLS: Final = frozenset("bash sh zsh dash".split())
_PYTHON_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "axolotl.cli.main": "axolotl",
}
_AXOLOTL_MODULE: Final = "axolotl.cli."
#: What axolotl's commands of these names do is a stage of a training.
AXOLOTL_STEPS: Final = ("preprocess", "train")
_LAUNCHERS: Final = {
    "torchrun": (Launcher.TORCHRUN, launch_options.TORCHRUN),
    "accelerate launch": (Launcher.ACCELERATE, launch_options.ACCELERATE),
    "deepspeed": (Launcher.DEEPSPEED, launch_options.DEEPSPEED),
}
_DEEPEST: Final = 12
_ARGUMENT: Final = re.compile(r'"\$(?:@|\{@\})"|\$([1-9])|\$\{([1-9]\d{0,3})\}')


class Launch(msgspec.Struct, kw_only=True):
    """A command, taken apart from the outside in.

    Attributes
    ----------
    srun : list of Option or None
        Options of srun, where srun starts it.
    mpirun : list of Option or None
        Options of mpirun.
    container : str
        ``apptainer`` or ``singularity``, where one of them starts it.
    image : Word or None
        The container's image.
    container_options : list of Option
        What else was said to the container.
    env : list
        Name and word of variables that stand before the command.
    before : list of str
        Lines that a shell runs first (``bash -c "source env; ..."``).
    launcher : Launcher
        What starts the ranks.
    launcher_name : str
        As it is called in the script.
    options : list of Option
        The launcher's.
    program : list of Word
        What stands behind all of that; for axolotl, its whole command without the launcher.
    interpreter : str
        The Python beside the launcher, where it was named by its path.
    axolotl : str
        axolotl's command (``train``), where it is axolotl.
    config : Word or None
        axolotl's configuration.
    login : bool
        A login shell starts it (``bash -lc``).
    """

    srun: list[Option] | None = None
    mpirun: list[Option] | None = None
    container: str = ""
    image: Word | None = None
    container_options: list[Option] = []
    env: list[tuple[str, Word]] = []
    before: list[str] = []
    launcher: Launcher = Launcher.NONE
    launcher_name: str = ""
    options: list[Option] = []
    program: list[Word] = []
    interpreter: str = ""
    axolotl: str = ""
    config: Word | None = None
    login: bool = False

    @property
    def shell(self) -> str:
        """The program as bash reads it."""
        return " ".join(word.shell for word in self.program)


def is_launch(words: Sequence[Word]) -> bool:
    """Whether a command is what a job is there for, as far as its first words tell."""
    rest = [word.text for word in words if assignment(word.shell) is None]
    while rest and posixpath.basename(rest[0]) in _TRANSPARENT:
        rest = rest[_own_words(rest) :]
    if not rest:
        return False
    head = posixpath.basename(rest[0])
    if head == "env":
        return len(rest) > 1 and posixpath.basename(rest[1]) not in SETUP
    if head.startswith("python") and rest[1:3] in (["-m", "pip"], ["-m", "venv"]):
        return False
    if head in ("uv", "poetry", "pixi", "conda", "mamba", "micromamba"):
        return rest[1:2] == ["run"]
    return head not in SETUP


def _own_words(words: Sequence[str]) -> int:
    """How many words of ``exec -a NAME --`` and its like stand before the command that they start."""
    at = 1
    while at < len(words) and words[at] in ("-p", "-c", "-l", "-a"):
        at += 2 if words[at] == "-a" else 1
    return at + (words[at : at + 1] == ["--"])


def take_apart(words: Sequence[Word], line: int, variables: Variables, name: str) -> Launch:
    """A simple command, from the outside in; `line` is where it stands, and its `words` are expanded.

    Raises
    ------
    FormatError
        It starts several programs at once, or hides what it starts.
    """
    reader = _Reader(variables, name, line)
    reader.read(list(words), 0)
    return reader.launch


def _with_arguments(text: str, arguments: Sequence[Word]) -> str | None:
    """The text behind ``bash -c`` with the words that stand behind it; None where they cannot be put in."""
    if "$" not in text:
        return text

    def put(match: re.Match[str]) -> str:
        if not (number := match[1] or match[2]):
            return " ".join(word.shell for word in arguments)
        value = arguments[int(number) - 1].value if int(number) <= len(arguments) else None
        return value if value is not None and shlex.quote(value) == value else match[0]

    text = _ARGUMENT.sub(put, text)
    left = text.replace('"$@"', "")  # the script's own
    return None if arguments and re.search(r"\$\{?[1-9@*]", left) else text


class _Reader:
    def __init__(self, variables: Variables, name: str, line: int) -> None:
        self._variables = variables
        self._name = name
        self._line = line
        self.launch = Launch(container_options=[], env=[], before=[], options=[], program=[])

    def read(self, words: list[Word], depth: int) -> None:
        """Take words apart, and what is behind them."""
        if depth > _DEEPEST:
            raise self._error("commands are nested too deeply", "Is it the right file?")
        launch = self.launch
        while words and (found := assignment(words[0].shell)) is not None:
            value = words[0].value
            text = value.partition("=")[2] if value is not None else None
            launch.env.append((found[0], Word(found[1], text)))
            words = words[1:]
        if not words:
            return
        head = posixpath.basename(words[0].text)
        if head in _TRANSPARENT:
            self.read(words[_own_words([word.text for word in words]) :], depth + 1)
        elif head == "env" and len(words) > 1 and assignment(words[1].shell):
            self.read(words[1:], depth + 1)
        elif head in _SHELLS and self._inner(words, depth):
            return
        elif head == "srun":
            if launch.srun is not None:
                raise self._error("srun starts another srun", "Start the program by one of them.")
            launch.srun, rest = split(words[1:], launch_options.SRUN)
            self.read(rest, depth + 1)
        elif head in ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun"):
            launch.mpirun, rest = split(words[1:], launch_options.MPIRUN)
            self.read(rest, depth + 1)
        elif head in ("apptainer", "singularity"):
            self._container(words, head, depth)
        else:
            self._program(words)

    def _error(self, message: str, hint: str) -> FormatError:
        return FormatError(f"{self._name}, line {self._line}: {message}.", hint=hint)

    def _inner(self, words: list[Word], depth: int) -> bool:
        """``bash -c "..."``; False for a shell that runs a file."""
        at = 1
        while at < len(words) and words[at].text.startswith("-"):
            flags = words[at].text
            at += 1
            if not flags.startswith("--") and "c" in flags:
                break
            if flags in ("-o", "-O", "--rcfile", "--init-file"):
                at += 1
        else:
            return False
        if at >= len(words):
            return False
        login = any(word.text == "--login" or re.match(r"-\w*l", word.text) for word in words[1:at])
        text = words[at].inner or words[at].text
        if words[at].value is not None:  # else its $1 may be the script's own
            filled = _with_arguments(text, words[at + 2 :])
            if filled is None:
                return False
            text = filled
        inner = statements(text, name=self._name, first_line=self._line)
        simple = [one for one in inner if one.kind is Kind.SIMPLE]
        if not inner or len(simple) < len(inner) or any(one.before == "||" or one.background for one in inner):
            return False
        if len(inner) > 1 and inner[-1].before == "|" and inner[-1].words[0] != "tee":
            return False
        while len(inner) > 1 and inner[-1].before == "|":
            inner.pop()
        for one in inner[:-1]:
            expanded = self._variables.words(one.words)
            if one.before == "|" or is_launch(expanded):
                return False
        if len(inner) == 1 and not inner[0].words:
            return False
        if words[at].value is None and inner[-1].words[:1] and inner[-1].words[0].startswith(("$", '"$')):
            return False  # a command line in a variable, which the inner shell reads once more
        self.launch.login |= login
        self.launch.before += [one.text for one in inner[:-1]]
        self.read(self._variables.words(inner[-1].words), depth + 1)
        return True

    def _container(self, words: list[Word], head: str, depth: int) -> None:
        launch = self.launch
        first, rest = split(words[1:], launch_options.CONTAINER)
        if launch.container or not rest or rest[0].text not in ("exec", "run"):
            self._program(words)
            return
        second, behind = split(rest[1:], launch_options.CONTAINER)
        if not behind or (rest[0].text == "run" and len(behind) == 1):
            self._program(words)
            return
        launch.container, launch.image, launch.container_options = head, behind[0], [*first, *second]
        self.read(behind[1:], depth + 1)

    # -- launchers --------------------------------------------------------------------

    def _program(self, words: list[Word]) -> None:
        called, rest = self._called(words)
        launch = self.launch
        if called in _SHELLS and len(words) == 3 and words[1].text == "-c" and words[2].value is not None:
            launch.program = [Word(words[2].value, None)]  # a shell reads a step anyway
            return
        if called == "axolotl" and rest and rest[0].text in AXOLOTL_STEPS:
            self._axolotl(rest[0].text, rest[1:])
            return
        if called not in _LAUNCHERS:
            launch.program = words
            return
        launcher, table = _LAUNCHERS[called]
        options, program = split(rest, table)
        if not program:
            launch.program = words
            return
        launch.launcher, launch.launcher_name = launcher, called
        launch.options = [option for option in options if option.name != "module"]
        if any(option.name == "module" for option in options):
            module = [Word("-m", "-m"), *program]  # the switch may stand anywhere before it
            if module[1].text.startswith(_AXOLOTL_MODULE):
                step = module[1].text.removeprefix(_AXOLOTL_MODULE)
                if step in AXOLOTL_STEPS:
                    self._axolotl_of(step, module[2:])
                    return
            program = module
        launch.program = program

    def _called(self, words: list[Word]) -> tuple[str, list[Word]]:
        """What a command is, whether it is called by its name or as a module; and what stands behind."""
        head = posixpath.basename(words[0].text)
        folder = posixpath.dirname(words[0].value or "")
        name, rest = head, list(words[1:])
        if head.startswith("python") and len(words) > 2:
            at = 1
            while at < len(words) - 1 and words[at].text in ("-u", "-O", "-B", "-E", "-s", "-I"):
                at += 1
            module = words[at + 1].text if words[at].text == "-m" and at + 1 < len(words) else ""
            name, rest = _PYTHON_MODULES.get(module, ""), list(words[at + 2 :])
            if module.startswith(_AXOLOTL_MODULE) and (step := module.removeprefix(_AXOLOTL_MODULE)) in AXOLOTL_STEPS:
                name, rest = "axolotl", [Word(step, step), *rest]
            if not name:
                return "", rest
            if folder:
                self.launch.interpreter = words[0].value or ""
        elif folder and name in ("torchrun", "accelerate", "deepspeed", "axolotl"):
            self.launch.interpreter = f"{folder}/python"
        if name == "accelerate" and rest and rest[0].text == "launch":
            name, rest = "accelerate launch", rest[1:]
        return name, rest

    def _axolotl(self, step: str, words: list[Word]) -> None:
        """``axolotl train train.yaml --launcher torchrun -- --nproc_per_node=8``."""
        launch = self.launch
        known = {"torchrun": "torchrun", "accelerate": "accelerate launch"}
        at = next((place for place, word in enumerate(words) if word.text == "--"), len(words))
        own, behind = words[:at], words[at + 1 :]
        launcher = "accelerate"
        kept: list[Word] = []
        place = 0
        while place < len(own):
            name, equals, value = own[place].text.partition("=")
            if name != "--launcher" or not (equals or place + 1 < len(own)):
                kept.append(own[place])
                place += 1
                continue
            launcher = value if equals else own[place + 1].text
            place += 1 if equals else 2
        if step != "train" or launcher not in known:
            self._axolotl_of(step, words)  # one process, which it starts itself
            return
        launch.launcher, table = _LAUNCHERS[known[launcher]]
        launch.launcher_name = known[launcher]
        launch.options, more = split(behind, table)
        self._axolotl_of(step, [*kept, *more])

    def _axolotl_of(self, step: str, words: list[Word]) -> None:
        launch = self.launch
        launch.axolotl = step
        launch.config = next((word for word in words if not word.text.startswith("-")), None)
        launch.program = [Word("axolotl", "axolotl"), Word(step, step), *words]
        if step != "train":
            launch.launcher, launch.launcher_name, launch.options = Launcher.NONE, "", []
