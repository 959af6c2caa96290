"""What the lines of a batch script do: variables, setup, where it goes, and what it launches."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.launch.lines import is_launch, take_apart
from clusterkernel.formats.model import How, SourceField
from clusterkernel.formats.sbatch.kept import DERIVED, Body, Found, Keeper, fits, several, without_substitutions
from clusterkernel.formats.sbatch.steps import RETRY
from clusterkernel.formats.shell import effects
from clusterkernel.formats.shell.pieces import Word
from clusterkernel.formats.shell.values import Variables, assignment
from clusterkernel.formats.shell.words import Kind, Statement, statements
from clusterkernel.spec import Launcher

__all__ = ["read"]

_LAUNCHES: Final = re.compile(
    r"(?:^|[\s;&|({\"'`])(srun|mpirun|mpiexec|torchrun|deepspeed|accelerate\s+launch|axolotl\s+\w+"
    r"|torch\.distributed\.(?:run|launch))(?=\s)",
    re.MULTILINE,
)
_MUST: Final = re.compile(r"\$\{(\w+):?\?[^{}]*\}", re.ASCII)
_DEFAULT: Final = re.compile(r"\$\{(\w+):?=([^{}]*)\}", re.ASCII)
#: Behind a command that may fail; no word of a person's.
_OR_TRUE: Final = ("||", "true")
#: Its operator, and its file; not a document.
_REDIRECT: Final = re.compile(r"(\d*(?:&>>?|>\||>>?|<)\s*)([^<>&\s].*)")
#: By these apptainer sets variables inside its containers.
_INSIDE: Final = re.compile(r"(?:APPTAINER|SINGULARITY)ENV_([A-Za-z_]\w*)$", re.ASCII)
_STATUS: Final = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS")
_KEEPS_STATUS: Final = re.compile(r"""([A-Za-z_]\w*)=["']?\$(?:\?|\{\?\}|\{PIPESTATUS\[0\]\})["']?""", re.ASCII)
_KEEPS_PROCESS: Final = re.compile(r"""([A-Za-z_]\w*)=["']?\$(?:!|\{!\})["']?""", re.ASCII)
_EXPORTS: Final = frozenset({"export", "declare", "typeset", "readonly", "local"})
#: In the environment of each shell, so that an assignment changes it there.
_EXPORTED: Final = frozenset("HOME LANG LD_LIBRARY_PATH PATH SHELL TMPDIR USER".split())
#: Of no use behind the last launch, since a script ends there anyway.
_ENDS: Final = frozenset({"wait", "exit", "echo", "date", "printf", ":", "true"})


def read(
    text: str, *, name: str, first_line: int, values: Mapping[str, str], chdir: str = ""
) -> tuple[Body, Variables]:
    """Go through the lines of a script.

    Parameters
    ----------
    text : str
        The script.
    name : str
        What errors call it.
    first_line : int
        The number of its first line.
    values : mapping
        Variables that a person gave.
    chdir : str
        Where Slurm starts it.

    Raises
    ------
    FormatError
        Its syntax is wrong, or what it launches cannot be told.
    """
    walker = _Walker(name, values, chdir)
    walker.walk(statements(text, name=name, first_line=first_line))
    return walker.body, walker.variables


class _Walker(Keeper):
    def __init__(self, name: str, values: Mapping[str, str], chdir: str) -> None:
        super().__init__(name, values, chdir)
        self._rest: Sequence[Sequence[Statement]] = ()  # chains behind the one at hand
        self._background = False  # something was passed on that runs on
        self._exports_all = False
        self._just_launched = False  # by the chain before the one at hand

    def walk(self, found: Sequence[Statement]) -> None:
        """All statements, chain by chain."""
        chains: list[list[Statement]] = []
        for statement in found:
            if not statement.before or not chains:
                chains.append([])
            chains[-1].append(statement)
        awaited = 0
        for number, chain in enumerate(chains):
            if number < awaited:
                continue
            self._rest = chains[number + 1 :]
            launches = len(self.body.parts)
            if waits := self._awaited(chain):
                awaited = number + 1 + waits
                self._rest = chains[awaited:]
                chain = [msgspec.structs.replace(chain[0], background=False)]
            self._chain(chain)
            self._just_launched = len(self.body.parts) > launches
            if len(chain) == 1 and chain[0].words[:1] == ("exit",):
                return

    def _awaited(self, chain: Sequence[Statement]) -> int:
        """How many lines see to a launch in the background, up to its ``wait``, so that it is one in the foreground.

        Where a trap has to run meanwhile, the body says that it is in the background, and what names its process.
        """
        if len(chain) > 1 or not chain[0].background or self._background or not self._launches(chain[0]):
            return 0
        if any(isinstance(part, Found) and part.background for part in self.body.parts):
            return 0  # they run at once
        name, traps = "", []
        for count, (one, *more) in enumerate(self._rest, 1):
            if more or one.background or one.redirects:
                return 0
            if kept := _KEEPS_PROCESS.fullmatch(one.text):
                name = kept[1]
            elif one.words[:1] == ("trap",) and not re.search(r"[$`]", re.sub(r"'[^']*'", "", one.text)):
                traps.append(one)
            elif re.fullmatch(rf"""wait(\s+["']?\$\{{?(!|{name})\}}?["']?)?""", one.text):
                for trap in traps:
                    self._simple(trap)
                field = None
                if any(re.search(r"\btrap\b", text) for text in (*self.body.setup, *map(str, self.body.parts))):
                    self.body.process, field = name or "!", "program.options.shell.process"
                why = "A trap runs while it does." if field else "A job waits for its step."
                self._row(one.line, "wait", one.text, field, why=why)
                return count
            else:
                return 0
        return 0

    # -- chains -----------------------------------------------------------------------

    def _chain(self, chain: Sequence[Statement]) -> None:
        """What is joined by && and the like."""
        if len(chain) == 1 and chain[0].kind is Kind.SIMPLE:
            if not self._look_back(chain):
                self._simple(chain[0])
            return
        operators = {statement.before for statement in chain[1:]}
        self._look_back(chain)
        if any(statement.kind is Kind.BLOCK for statement in chain):
            self._opaque(chain)
        elif operators == {"||"} and chain[0].words[:1] == ("cd",) and chain[1].words[:1] == ("exit",):
            self._simple(chain[0])
        elif operators == {"&&"}:
            self._all_of(chain)
        elif not any(self._launches(statement) for statement in chain):
            self._opaque(chain)
        elif self._launches(chain[0]) and not any(self._launches(statement) for statement in chain[1:]):
            self._followed(chain)
        else:
            self._refuse(chain)

    def _followed(self, chain: Sequence[Statement]) -> None:
        """A launch, with what its output goes through, and what runs only if it did well, or only if it did not."""
        pipes = 0
        for statement in chain[1:]:
            if statement.before != "|":
                break
            pipes += 1
            why = "The platform keeps what the job prints."
            key = f"| {statement.words[0] if statement.words else ''}".strip()
            self._row(statement.line, key, statement.text, None, How.DROPPED, why)
        first, behind = chain[0], chain[1 + pipes :]
        launch = take_apart(first, self.variables, self._name)
        shells = launch.srun is None and launch.mpirun is None and not launch.axolotl  # it can be a part of the step
        exits = len(behind) == 1 and behind[0].before == "||" and behind[0].words[:1] == ("exit",)
        if not behind or (len(behind) == 1 and behind[0].before == "||" and behind[0].words in (("true",), (":",))):
            may_fail = _OR_TRUE if behind else ()
            self._simple(msgspec.structs.replace(first, words=(*first.words, *may_fail)))
        elif chain[-1].background or any("<<" in redirect for one in chain for redirect in one.redirects):
            self._refuse(chain, "what runs behind it depends on how it ends")
        elif shells:
            text = self._hide(_joined(behind), first.line, quoted=False)
            self._need(effects.reads(text, self._assigned))
            self._simple(first, guards=exits)
            found = self.body.parts[-1]
            assert isinstance(found, Found)
            found.launch.program.append(Word(f"{behind[0].before} {text}", None))
        elif exits:
            self._simple(first, guards=True)
            how = How.CHANGED if behind[0].words[1:] else How.EXACT
            why = "A job ends with the status of its step."
            self._row(behind[0].line, "|| exit", behind[0].text, None, how, why)
        elif behind[-1].before == "||" and all(one.words[:1] in (("echo",), ("printf",)) for one in behind):
            self._simple(msgspec.structs.replace(first, words=(*first.words, *_OR_TRUE)))
            self._row(behind[0].line, behind[0].words[0], _joined(behind), None, How.CHANGED, "It only prints.")
        else:
            self._refuse(chain, "what runs behind it depends on how it ends")

    def _look_back(self, chain: Sequence[Statement]) -> bool:
        """A chain that looks at the status of the launch before it, which ends the job if it did not do well.

        Says whether that was all of it (``rc=$?``): a script that keeps the status ends with it.
        """
        parts = self.body.parts
        if not parts or not isinstance(parts[-1], Found) or not _STATUS.search(_joined(chain)):
            return False
        if parts[-1].may_fail or not self._just_launched:
            return False
        parts[-1] = msgspec.structs.replace(parts[-1], checked=True)
        kept = _KEEPS_STATUS.fullmatch(chain[0].text)
        if len(chain) > 1 or kept is None:
            return False
        self.variables.set(kept[1], "0")
        self._assigned[kept[1]] = f"{kept[1]}=0"
        self._row(chain[0].line, kept[1], "$?", None, How.CHANGED, "A job ends with the status of its step.")
        return True

    def _all_of(self, chain: Sequence[Statement]) -> None:
        """What is joined by &&: each runs only if those before it did well."""
        launches = any(self._launches(statement) for statement in chain)
        background = chain[-1].background
        if background and (not launches or self._goes_on()):
            self._refuse(chain) if launches else self._opaque(chain)
            return
        while len(chain) > 1 and _succeeds(chain[0]):
            self._simple(chain[0])
            chain = chain[1:]
        if len(chain) == 1:
            self._simple(chain[0])
        elif not launches:
            self._opaque(chain)
        elif self._goes_on():
            self._refuse(chain)  # what comes behind would run in any case
        else:
            for statement in chain[:-1]:
                if self._launches(statement) or _succeeds(statement):
                    self._simple(statement, guards=True)
                else:
                    text = f"{self._hidden_words(statement)} || exit"
                    self._pass_on(statement.line, text, key=statement.words[0] if statement.words else text)
            self._simple(chain[-1])

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

    def _refuse(
        self, chain: Sequence[Statement], why: str = "what is launched there depends on what runs before it"
    ) -> None:
        raise FormatError(
            f"{self._name}, line {chain[0].line}: {why}.",
            hint="Write the launch as a line of its own.",
        )

    def _opaque(self, chain: Sequence[Statement]) -> None:
        """Lines that are passed on as they are, since only a shell knows what they do."""
        text = _joined(chain)
        if launch := _LAUNCHES.search(without_substitutions(text)):
            called = " ".join(launch[1].split())
            raise FormatError(
                f"{self._name}, line {chain[0].line}: {called} stands in a condition, a loop or a function, "
                "so that what is launched is known only while it runs.",
                hint="Write the launch as a line of its own.",
            )
        self._pass_on(chain[0].line, text, key=text.split(None, 1)[0])

    # -- simple commands --------------------------------------------------------------

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
                launch = take_apart(statement, self.variables, self._name)
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

    def _allexport(self, raw: Sequence[str]) -> None:
        """``set -a``: what is assigned from here on is exported."""
        for word, following in zip(raw[1:], (*raw[2:], ""), strict=True):
            if re.fullmatch(r"[-+]\w*a\w*", word) or (re.fullmatch(r"[-+]\w*o", word) and following == "allexport"):
                self._exports_all = word[0] == "-"

    def _defaults(self, statement: Statement) -> None:
        """``: "${DATA:=/data}"`` sets a variable that nobody has set."""
        for name, default in _DEFAULT.findall(" ".join(statement.words)):
            if self.variables.get(name) is None and (value := self.variables.value(f'"{default}"')) is not None:
                self.variables.set(name, value)
                why = "The shell that calls sbatch may set it; this is what the script has otherwise."
                self.body.rows.append(
                    SourceField(f"${name}", secrets.shown(value), statement.line, None, How.ASSUMED, why)
                )

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

    # -- variables --------------------------------------------------------------------

    def _export(self, statement: Statement) -> None:
        for word in statement.words[1:]:
            if word.startswith("-"):
                if word == "-n" or word == "-f":
                    self._pass_on(statement.line, statement.text, key="export")
                    return
                continue
            if assignment(word):
                self._assign(word, statement.line, exported=True)
                continue
            name = word
            if secrets.is_name(name):
                self._secret(name, statement.line, f"export {name}", "A secret is named, and never passed on.")
            elif name in self.body.meeting:
                self._row(statement.line, f"export {name}", "", None, How.CHANGED, DERIVED)
            elif (value := self.variables.get(name)) is not None and fits(value) and self._hoists(name, value):
                self._assigned.pop(name, None)
                self._row(statement.line, f"export {name}", value, f"env.{name}")
            else:
                self._exported.add(name)
                self._pass_on(statement.line, f"export {name}", key="export")

    def _assign(self, word: str, line: int, *, exported: bool) -> None:
        found = assignment(word)
        assert found is not None
        name, raw, added = found
        inside = _INSIDE.match(name) if exported else None
        if inside is not None and inside[1] not in _EXPORTED:
            name, word = inside[1], word[inside.start(1) :]
        exported = exported or self._exports_all or name in self.body.env or name in self._exported or name in _EXPORTED
        key = f"export {name}" if exported else name
        if raw.startswith("("):
            self._array(name, raw, word, line, added)
            return
        value = None if added else self.variables.value(raw)
        if added and (old := self.variables.get(name)) is not None and (new := self.variables.value(raw)) is not None:
            value = old + new
        if secrets.is_name(name) and value != "":
            clear = value is not None and "$" not in raw
            why = "A secret in the clear became a name" if clear else "A secret is taken by its name"
            self._secret(name, line, key, f"{why}: %cluster_secret set {name} keeps its value.")
            self.variables.set(name, None)
            return
        if value is not None and secrets.is_value(value):
            self._secret(name, line, key, f"It has the form of a key: %cluster_secret set {name} keeps its value.")
            self.variables.set(name, None)
            return
        if self._meets(name, raw):
            self.body.meeting.add(name)
            self.variables.set(name, None)
            self._row(line, key, raw, None, How.CHANGED, DERIVED)
            return
        partly = value is None and not added and self.variables.set_partly(name, raw)
        if value is not None or not partly:
            self.variables.set(name, value)
        if exported and value is not None and fits(value) and self._hoists(name, value):
            how, why = How.EXACT, ""
            if "$" in raw:
                why = "Its variables stand there with their values."
            if inside is not None:
                how, why = How.CHANGED, "The job has it as well as its container."
            self._row(line, key, value, f"env.{name}", how, why)
        elif (exported and not (partly and several(raw))) or (value is None and not partly):
            if value is not None and "$" in raw:
                word = f"{name}={shlex.quote(value)}"
            if exported:
                self._exported.add(name)
            if name not in effects.reads(word, (name,)) and not (added and value is None):
                self._assigned.pop(name, None)
            self._pass_on(line, f"export {word}" if exported else word, key=key, sets=())
        else:
            self._assigned[name] = f"export {word}" if exported else word
            self._row(line, key, raw if value is None else value, None, why="Its value stands wherever it is used.")

    def _array(self, name: str, raw: str, word: str, line: int, added: bool) -> None:
        if self._meets(name, raw):
            self.body.meeting.add(name)
            self._row(line, name, raw, None, How.CHANGED, DERIVED)
            return
        inner = statements(raw[1:-1], name=self._name, first_line=line)
        if any(one.kind is not Kind.SIMPLE or one.redirects or one.before or one.background for one in inner):
            self.variables.set(name, None)
            self._pass_on(line, word, key=name)
            return
        words = self.variables.words(part for one in inner for part in one.words)
        old = self.variables.copy_of(name) if added else None
        self.variables.set(name, [*(old or []), *words])
        self._assigned[name] = f"{name}{'+' * added}=({' '.join(item.shell for item in words)})"
        self._row(line, name, " ".join(item.shell for item in words), None, why="Its words stand where they are used.")

    # -- launches ---------------------------------------------------------------------

    def _launch(self, statement: Statement, *, guards: bool) -> None:
        may_fail = statement.words[-2:] == _OR_TRUE
        if may_fail:
            statement = msgspec.structs.replace(statement, words=statement.words[:-2])
        launch = take_apart(statement, self.variables, self._name)
        line = statement.line
        open_ = " ".join(word.shell for word in self.variables.words(statement.words) if word.value is None)
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


def _succeeds(statement: Statement) -> bool:
    """Whether a command goes well for sure: it goes elsewhere, which `workdir` sees to, or sets a variable."""
    words = statement.words
    if statement.redirects or not words:
        return False
    plain = not any(mark in statement.text for mark in ("$(", "`", "<(", ">("))
    return (words[0] == "cd" and len(words) == 2) or (plain and (words[0] == "export" or all(map(assignment, words))))


def _joined(chain: Sequence[Statement]) -> str:
    text = chain[0].text
    for statement in chain[1:]:
        text += f" {statement.before} {statement.text}"
    return text + (" &" if chain[-1].background else "")
