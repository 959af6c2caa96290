"""Single commands of a batch script: what prepares, where it goes, and what is launched."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.launch.lines import is_launch, take_apart
from clusterkernel.formats.model import How
from clusterkernel.formats.sbatch.assigned import Assigner
from clusterkernel.formats.sbatch.kept import DERIVED, Found, fits
from clusterkernel.formats.sbatch.steps import RETRY
from clusterkernel.formats.shell import effects
from clusterkernel.formats.shell.pieces import Word
from clusterkernel.formats.shell.values import assignment
from clusterkernel.formats.shell.words import Kind, Statement
from clusterkernel.spec import Launcher

__all__ = ["OR_TRUE", "Commands"]

_MUST: Final = re.compile(r"\$\{(\w+):?\?[^{}]*\}", re.ASCII)
#: Behind a command that may fail; no word of a person's.
OR_TRUE: Final = ("||", "true")
#: Its operator, and its file; not a document.
_REDIRECT: Final = re.compile(r"(\d*(?:&>>?|>\||>>?|<)\s*)([^<>&\s].*)")
_EXPORTS: Final = frozenset({"export", "declare", "typeset", "readonly", "local"})
#: Of no use behind the last launch, since a script ends there anyway.
_ENDS: Final = frozenset({"wait", "exit", "echo", "date", "printf", ":", "true"})


class Commands(Assigner):
    """Goes through commands, each on its own."""

    def __init__(self, name: str, values: Mapping[str, str], chdir: str) -> None:
        super().__init__(name, values, chdir)
        self._rest: Sequence[Sequence[Statement]] = ()  # chains behind the one at hand
        self._background = False  # something was passed on that runs on

    def _goes_on(self) -> bool:
        """Whether something runs behind this chain that does more than to print."""
        return any(not self._ends(statement) for chain in self._rest for statement in chain)

    def _ends(self, statement: Statement) -> bool:
        """Whether a command only prints, waits or ends the script."""
        prints = all(re.search(r"&[12]$|/dev/(null|stdout|stderr)$", redirect) for redirect in statement.redirects)
        if statement.words[:1] == ("wait",):
            return not self._background
        return statement.words[:1] != () and statement.words[0] in _ENDS and prints and not statement.background

    def _launches(self, statement: Statement) -> bool:
        return statement.kind is Kind.SIMPLE and is_launch(self.variables.words(statement.words[:4]))

    def _simple(self, statement: Statement, *, guards: bool = False) -> None:
        raw = statement.words
        self.variables.place = f"{self._name}, line {statement.line}"
        if statement.background and (not self._launches(statement) or self._beside(statement)):
            self._background = True
            text = f"{self._hidden_words(statement)} &" if "\n" not in statement.text else f"{{ {statement.text}\n}} &"
            self._pass_on(statement.line, text, key=raw[0] if raw else "&", sets=())
        elif not raw:
            self._pass_on(statement.line, statement.text, key=statement.text.split(None, 1)[0])
        elif all(map(assignment, raw)):
            for word in raw:
                self._assign(word, statement.line, exported=False)
        elif raw[0] in _EXPORTS and (raw[0] == "export" or self._exports(raw)):
            self._export(statement)
        elif raw[0] == "cd" and len(raw) == 2:
            self._cd(statement)
        elif self._launches(statement):
            self._launch(statement, guards=guards)
        else:
            self._other(statement)

    def _beside(self, statement: Statement) -> bool:
        """Whether a launch runs beside one behind it, which a job without Slurm can do on one node only."""
        for other in (one for chain in self._rest for one in chain):
            if other.words[:1] == ("wait",) or (other.kind is Kind.BLOCK and re.search(r"\bwait\b", other.text)):
                return False
            if self._launches(other):
                if other.background:
                    return False  # refused with both lines
                words = self.variables.words(statement.words)
                launch = take_apart(words, statement.line, self.variables, self._name)
                if launch.srun is None and launch.mpirun is None and launch.launcher is Launcher.NONE:
                    return True
                raise FormatError(
                    f"{self._name}, line {other.line}: it runs beside what line {statement.line} launches.",
                    hint="Only Slurm can part a job so: give each a script of its own.",
                )
        return False

    @staticmethod
    def _exports(raw: Sequence[str]) -> bool:
        return raw[0] in ("declare", "typeset") and any(word.startswith("-") and "x" in word for word in raw[1:])

    def _other(self, statement: Statement) -> None:
        raw = statement.words
        if self._launched and self._ends(statement) and not isinstance(self.body.parts[-1], str):
            prints = raw[0] in ("echo", "date", "printf")
            if prints and self._goes_on():
                self._row(statement.line, raw[0], statement.text, None, How.CHANGED, "It only prints.")
            elif raw[0] == "exit" and raw[1:2] and "$" not in raw[1]:
                self._row(
                    statement.line, "exit", statement.text, None, How.CHANGED, "A job ends as its last step does."
                )
            elif raw[0] in ("wait", "exit"):
                self._row(statement.line, raw[0], statement.text, None, why="A job ends behind its last step.")
            else:
                why = "A job ends with the status of its last step."
                self._row(statement.line, raw[0], statement.text, None, How.CHANGED, why)
            return
        if raw[0] == ":" and (must := [found for word in raw[1:] for found in _MUST.findall(word)]):
            for name in must:
                if secrets.is_name(name):
                    self._secret(name, statement.line, f": ${{{name}:?}}", "It has to be set, and is a secret.")
            if all(secrets.is_name(name) for name in must):
                return
        sets = None
        if raw[0] == ":":
            self._defaults(statement)
            sets = [name for name in effects.sets(statement.text) if self.variables.get(name) is None]
        if raw[0] == "set":
            self._allexport(raw)
        if raw[0] == "trap" and (again := RETRY.fullmatch(statement.text)):
            self.body.attempts, self.body.backoff = int(again[1]) + 1, int(again[2] or 0)
            self._row(statement.line, "trap", f"{self.body.attempts} starts in all", "attempts")
            if self.body.backoff:
                self._row(statement.line, "trap", f"sleep {self.body.backoff}", "backoff")
            return
        if raw[0] in _EXPORTS:
            for word in raw[1:]:
                if (found := assignment(word)) and secrets.is_name(found[0]):
                    self._assign(word, statement.line, exported=True)
                    return
        self._pass_on(statement.line, self._hidden_words(statement), key=raw[0], sets=sets)

    def _cd(self, statement: Statement) -> None:
        raw = statement.words[1]
        if re.fullmatch(r'"?\$\{?SLURM_SUBMIT_DIR\}?"?/?', raw):
            self._row(statement.line, "cd", raw, None, why="A job starts in the folder that it is sent from.")
            return
        value = self.variables.value(raw)
        if value is None or self._moved or self.body.parts or not value or not value.isprintable():
            self._pass_on(statement.line, statement.text, key="cd")
            return
        place = value if value.startswith(("/", "~")) else posixpath.join(self.body.workdir or self._chdir, value)
        self.body.workdir = posixpath.normpath(place)
        self._row(statement.line, "cd", value, "workdir")

    def _launch(self, statement: Statement, *, guards: bool) -> None:
        may_fail = statement.words[-2:] == OR_TRUE
        if may_fail:
            statement = msgspec.structs.replace(statement, words=statement.words[:-2])
        line, words = statement.line, self.variables.words(statement.words)
        launch = take_apart(words, line, self.variables, self._name)
        open_ = " ".join(word.shell for word in words if word.value is None)
        self._need(effects.reads(open_, self._assigned))
        for text in launch.before:
            self._pass_on(line, text, key=text.split(None, 1)[0])
        for name, word in launch.env:
            if secrets.is_name(name):
                self._secret(name, line, name, f"A secret became a name: %cluster_secret set {name} keeps its value.")
            elif self._meets(name, word.shell):
                self._row(line, name, word.shell, None, How.CHANGED, DERIVED)
            elif launch.launcher is Launcher.NONE and not launch.axolotl and self._has_others():
                launch.program = [Word(f"{name}={word.shell}", None), *launch.program]
                self._row(line, name, word.shell, f"program.steps.{len(self.body.parts)}")
            elif self._has_others() and self.body.env.get(name, word.value) != word.value:
                raise FormatError(
                    f"{self._name}, line {line}: {name} has another value for this launch than for others.",
                    hint="Give each launch a script of its own.",
                )
            elif word.value is not None and fits(word.value):
                self.body.env[name] = word.value
                self._row(line, name, word.value, f"env.{name}", How.CHANGED, "It is set for all steps.")
            else:
                self._pass_on(line, f"export {name}={word.shell}", key=name)
        launch.program = self.hide_words(launch.program, line)
        read_later = any(self._is_read_later(redirect) for redirect in statement.redirects)
        for redirect in statement.redirects:
            if redirect.startswith("<") or read_later:
                launch.program = [*launch.program, Word(self._resolved(redirect), None)]
            elif "&1" in redirect or "&2" in redirect or "/dev/null" in redirect:
                self._row(line, redirect, "", None, why="The platform keeps both streams.")
            else:
                self._row(line, redirect, "", None, How.DROPPED, "The platform keeps what the job prints.")
        text = secrets.shown(statement.text)
        self.body.parts.append(Found(launch, line, text, statement.background, may_fail, guards))
        self._launched = True

    def _resolved(self, redirect: str) -> str:
        """A redirection whose file has the variables that are known by their values."""
        match = _REDIRECT.fullmatch(redirect)
        if match is None:
            return redirect
        found = self.variables.expand(match[2], split=False)
        return match[1] + found[0].shell if len(found) == 1 else redirect

    def _has_others(self) -> bool:
        """Whether the launch at hand is not the only one."""
        return self._launched or any(self._launches(one) for chain in self._rest for one in chain)

    def _is_read_later(self, redirect: str) -> bool:
        """Whether a later line names the file that a launch prints to."""
        file = redirect.lstrip("0123456789&>| ").strip("\"'")
        later = (one.text for chain in self._rest for one in chain)
        return "/dev/" not in file and len(file) > 1 and any(file in text for text in later)
