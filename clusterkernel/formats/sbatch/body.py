"""What the lines of a batch script do: its chains of commands, one after another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats.launch.lines import take_apart
from clusterkernel.formats.model import How
from clusterkernel.formats.sbatch.commands import OR_TRUE, Commands
from clusterkernel.formats.sbatch.kept import Body, Found, without_substitutions
from clusterkernel.formats.shell import effects
from clusterkernel.formats.shell.pieces import Word
from clusterkernel.formats.shell.values import Variables, assignment
from clusterkernel.formats.shell.words import Kind, Statement, statements

__all__ = ["read"]

_LAUNCHES: Final = re.compile(
    r"(?:^|[\s;&|({\"'`])(srun|mpirun|mpiexec|torchrun|deepspeed|accelerate\s+launch|axolotl\s+\w+"
    r"|torch\.distributed\.(?:run|launch))(?=\s)",
    re.MULTILINE,
)
_STATUS: Final = re.compile(r"\$\?|\$\{\?\}|PIPESTATUS")
_KEEPS_STATUS: Final = re.compile(r"""([A-Za-z_]\w*)=["']?\$(?:\?|\{\?\}|\{PIPESTATUS\[0\]\})["']?""", re.ASCII)
_KEEPS_PROCESS: Final = re.compile(r"""([A-Za-z_]\w*)=["']?\$(?:!|\{!\})["']?""", re.ASCII)


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


class _Walker(Commands):
    def __init__(self, name: str, values: Mapping[str, str], chdir: str) -> None:
        super().__init__(name, values, chdir)
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
            # What a later line reads has to be there.
            if statement.before != "|" or any(map(self._is_read_later, statement.words[1:])):
                break
            pipes += 1
            why = "The platform keeps what the job prints."
            key = f"| {statement.words[0] if statement.words else ''}".strip()
            self._row(statement.line, key, statement.text, None, How.DROPPED, why)
        first, behind = chain[0], chain[1 + pipes :]
        exits = len(behind) == 1 and behind[0].before == "||" and behind[0].words[:1] == ("exit",)
        if not behind or (len(behind) == 1 and behind[0].before == "||" and behind[0].words in (("true",), (":",))):
            may_fail = OR_TRUE if behind else ()
            self._simple(msgspec.structs.replace(first, words=(*first.words, *may_fail)))
            return
        launch = take_apart(self.variables.words(first.words), first.line, self.variables, self._name)
        shells = launch.srun is None and launch.mpirun is None and not launch.axolotl  # it can be a part of the step
        if chain[-1].background or any("<<" in redirect for one in chain for redirect in one.redirects):
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
            self._simple(msgspec.structs.replace(first, words=(*first.words, *OR_TRUE)))
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
