"""What is kept of a batch script's lines: variables, setup, steps and launches, and never a secret."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.formats import secrets
from clusterkernel.formats.launch.lines import Launch
from clusterkernel.formats.model import How, SourceField
from clusterkernel.formats.shell import effects
from clusterkernel.formats.shell.pieces import Word
from clusterkernel.formats.shell.values import Variables, names_in
from clusterkernel.formats.shell.words import Statement

__all__ = ["DERIVED", "Body", "Found", "Keeper", "fits", "several", "without_substitutions"]

_MEETING_NAME: Final = re.compile(
    r"(MASTER|MAIN|HEAD|PRIMARY|RDZV|RENDEZVOUS|MAIN_PROCESS|LEADER|COORDINATOR|CHIEF)(_?NODE)?"
    r"(_?(ADDR|ADDRESS|IP|HOST|HOSTNAME|PORT|ENDPOINT|NODE|ID))*(_IP|_ADDR)?",
    re.IGNORECASE,
)
_MEETING_TEXT: Final = re.compile(
    r"SLURM_(JOB_|STEP_)?NODELIST|SLURM_LAUNCH_NODE_IPADDR|SLURM_SRUN_COMM_HOST|scontrol\s+show\s+host"
)
#: What makes more of the nodes' names than the first of them.
_ALL_NODES: Final = re.compile(r"\|\s*(wc|paste|tr|sort|xargs|grep|tail|tee|nl|uniq)\b|>")
_ONLY_SLURM: Final = re.compile(r"(?:^|[\s;&|(`])(scontrol|squeue|sinfo|sacct|scancel|sbcast|sbatch|sstat)(?=\s)")
_SOURCED: Final = re.compile(r"(?:source|\.)\s+[\"']?[/~$]")
#: A file that may read and set each variable; those that most scripts begin with set other ones.
_ANY_FILE: Final = re.compile(
    r"\s*(source|\.|eval)\s(?!.*(activate|bashrc|profile|conda|mamba|modul|lmod|spack|/etc/))"
)
DERIVED: Final = "Where the nodes meet is derived inside the job."
#: Commands that do the same in every folder, as does a file that is sourced by its whole path.
_ANYWHERE: Final = frozenset(
    ": conda date echo export false hostname mamba micromamba ml module nvidia-smi printf read set shopt sleep spack "
    "trap true type ulimit umask uname unset which whoami".split()
)


class Found(msgspec.Struct, frozen=True):
    """A launch, and where it stands."""

    launch: Launch
    line: int
    text: str
    background: bool
    may_fail: bool
    guards: bool = False  # what stands behind it runs only if it did well
    checked: bool = False  # the line behind it looks at its exit status


class Body(msgspec.Struct, kw_only=True):
    """All that the lines say.

    Attributes
    ----------
    env : dict
        Variables that the script exports, with their literal values.
    secrets : list of str
        Names.
    setup : list of str
        Lines that prepare.
    parts : list
        Launches, and texts of several lines that run on the first node, in their order.
    workdir : str
        Where it goes.
    attempts : int
        How often it may start in all, where it queues itself again.
    backoff : int
        Seconds before another start.
    process : str
        The variable that names the process of the last launch, which a trap works beside; ``!`` for none.
    meeting : set of str
        Variables that say where the nodes meet.
    rows : list of SourceField
        One for each line.
    """

    env: dict[str, str] = {}
    secrets: list[str] = []
    setup: list[str] = []
    parts: list[Found | str] = []
    workdir: str = ""
    attempts: int = 1
    backoff: int = 0
    process: str = ""
    meeting: set[str] = set()
    rows: list[SourceField] = []


class Keeper:
    """Puts what the lines do to the body, with a row for each."""

    def __init__(self, name: str, values: Mapping[str, str], chdir: str) -> None:
        self._name = name
        self._chdir = chdir
        self.variables = Variables(values)
        self.body = Body(env={}, secrets=[], setup=[], parts=[], meeting=set(), rows=[])
        self._assigned: dict[str, str] = {}  # not exported, and so far not needed in a line
        self._launched = False
        self._exported: set[str] = set()  # by a line that is passed on
        self._passed: set[str] = set()  # variables that lines which are passed on set or read
        self._settled = True  # so far nothing was passed on that sets or looks at the environment
        self._moved = False  # a line that is passed on went elsewhere, or may depend on where it is

    def _row(self, line: int, key: str, value: str, field: str | None, how: How = How.EXACT, why: str = "") -> None:
        self.body.rows.append(SourceField(key, secrets.shown(value), line, field, how, why))

    def _pass_on(self, line: int, text: str, *, key: str, sets: Sequence[str] | None = None) -> None:
        hidden = self._hide(text, line, quoted=False)
        names = names_in(hidden)
        sets = effects.sets(hidden) if sets is None else sets
        if key in ("echo", "printf") and not sets and any(several(self._assigned.get(name, "")) for name in names):
            self._row(line, key, text, None, How.CHANGED, "It only prints what is launched.")
            return
        anything = _ANY_FILE.match(hidden) is not None
        self._need(list(self._assigned) if anything else [*effects.reads(hidden, self._assigned), *sets])
        if self.body.meeting.intersection(names) and key in ("echo", "printf", "export"):
            self._row(line, key, text, None, How.CHANGED, DERIVED)
            return
        how, why = How.EXACT, ""
        if only := _ONLY_SLURM.search(hidden):
            how, why = How.CHANGED, f"Only Slurm has {only[1]}."
        field = self._keep(hidden)
        for name in [*self.variables.own, *self.body.env] if anything else ():
            self.variables.set(name, None)
        self._notice(key, hidden, sets)
        shown = hidden if len(hidden) <= 120 else hidden[:117] + "..."
        self._row(line, key, shown, field, how, why)

    def _notice(self, key: str, text: str, sets: Sequence[str]) -> None:
        """What a line that is passed on does to what comes behind it."""
        for name in sets:
            self.variables.set(name, None)
            self._assigned.pop(name, None)
        self._passed.update(sets, effects.mentions(text))
        command = text.split(None, 1)[0]
        assigns = key.startswith("export") or command.startswith((f"{key}=", f"{key}+="))
        if not effects.spawns_nothing("true" if assigns else command, text):
            self._settled = False
        anywhere = command in _ANYWHERE or _SOURCED.match(text)
        if not anywhere and not assigns:
            self._moved = True

    def _hoists(self, name: str, value: str) -> bool:
        """Put a variable to the environment, where it may be set before all that is passed on; else say no.

        Behind a line that may set it, too, it is set there again.
        """
        if self.body.parts or name in self._passed:
            return False
        if not self._settled:
            if self.body.env.get(name, value) != value or not value.isprintable():
                return False
            self.body.setup.append(f"export {name}={shlex.quote(value)}")
            self._passed.add(name)
        self.body.env[name] = value
        return True

    def _keep(self, text: str) -> str:
        """Put a line to the others; those that fill several lines, and all behind them, are a step of their own."""
        parts = self.body.parts
        if not parts and text.replace("\t", " ").isprintable():
            self.body.setup.append(text)
            return f"setup.{len(self.body.setup) - 1}"
        if parts and isinstance(parts[-1], str):
            parts[-1] += "\n" + text
        else:
            parts.append(text)
        return f"program.steps.{len(parts) - 1}"

    def _need(self, names: Sequence[str]) -> None:
        """Keep the assignments that a line which is passed on reads, each behind those that it reads itself."""
        found: list[str] = []
        todo = [name for name in dict.fromkeys(names) if name in self._assigned]
        while todo:
            name = todo.pop()
            if (line := self._assigned.pop(name, None)) is not None:
                found.append(line)
                todo += [other for other in names_in(line) if other in self._assigned]
        for line in reversed(found):
            self._keep(line)

    def _meets(self, name: str, raw: str) -> bool:
        """Whether a variable says where the nodes meet."""
        if several(raw) and not raw.startswith("("):
            return False  # a command line, in which it is named
        if _MEETING_TEXT.search(raw) and not _ALL_NODES.search(raw):
            return True
        if self.body.meeting.intersection(names_in(raw)):
            return True
        return bool(_MEETING_NAME.fullmatch(name)) and name.upper() not in ("MAIN", "HEAD", "PRIMARY", "LEADER")

    # -- secrets ----------------------------------------------------------------------

    def _secret(self, name: str, line: int, key: str, why: str) -> None:
        if name not in self.body.secrets:
            self.body.secrets.append(name)
        self.body.rows.append(SourceField(key, secrets.HIDDEN, line, f"secrets.{name}", How.CHANGED, why))

    def _hide(self, text: str, line: int, *, quoted: bool) -> str:
        """A text in which the names of keys stand for them."""
        for form in dict.fromkeys(secrets.found(text)):
            name = secrets.name_for(form)
            self._secret(name, line, "a key in the clear", f"It became a name: %cluster_secret set {name} keeps it.")
            text = text.replace(form, f"${name}" if quoted else f"${{{name}}}")
        return text

    def _hidden_words(self, statement: Statement) -> str:
        """A command without the secrets in its words."""
        words = [Word(word, self.variables.value(word)) for word in statement.words]
        hidden = self.hide_words(words, statement.line)
        if all(new is old for new, old in zip(hidden, words, strict=True)):
            return statement.text
        return " ".join([*(word.shell for word in hidden), *statement.redirects])

    def hide_words(self, words: Sequence[Word], line: int) -> list[Word]:
        """Words in which the names of secrets stand for them."""
        found: list[Word] = []
        option = ""
        command = posixpath.basename(words[0].text) if words else ""
        for word in words:
            value = word.value
            if value is None:
                hidden = self._hide(word.shell, line, quoted=True) if secrets.is_value(word.shell) else word.shell
                found.append(word if hidden == word.shell else Word(hidden, None))
                option = ""
                continue
            name, equals, given = value.partition("=") if value.startswith("-") else (option, "=", value)
            named = bool(name) and bool(equals) and bool(given) and secrets.is_name(name)
            if named or secrets.is_value(value) or (command == "wandb" and secrets.is_wandb_key(value)):
                what = given if named else next(iter(secrets.found(value)), value)
                variable = secrets.name_for(what)
                if variable == "SECRET" and name:
                    variable = re.sub(r"\W+", "_", name.strip("-")).upper() or variable
                why = f"A secret in the clear became a name: %cluster_secret set {variable} keeps its value."
                self._secret(variable, line, name or command, why)
                text = re.sub(r'([\\"$`])', r"\\\1", value).replace(what, f"${{{variable}}}")
                found.append(Word(f'"{text}"', None))
            else:
                found.append(word)
            option = value if value.startswith("-") and not equals else ""
        return found


def several(raw: str) -> bool:
    """Whether a raw value is a line of words, and not one."""
    if len(raw.split(None, 2)) < 2:
        return False
    return bool(re.search(r"\s", without_substitutions(raw.removeprefix("export ")).strip("'\" ")))


def fits(value: str) -> bool:
    """Whether a variable of the environment can have this value."""
    return (value.isascii() and "\0" not in value) or not re.search("[\0\ud800-\udfff]", value)


def without_substitutions(text: str) -> str:
    """A text without what only gives a value to a variable (``$(srun hostname)``), and without comments."""
    text = re.sub(r"\$\((?:[^()]|\([^()]*\))*\)", "", text)
    return re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
