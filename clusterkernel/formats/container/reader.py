"""Reads the command of a container: what `container_script` wrote, and what others write there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.container import script as container_script
from clusterkernel.formats.launch import counts as launch_counts
from clusterkernel.formats.launch import steps as launch_steps
from clusterkernel.formats.launch.counts import Shape
from clusterkernel.formats.model import How, Mount, Runs, SourceField, Step
from clusterkernel.formats.sbatch import body as sbatch_body
from clusterkernel.spec import Launcher

__all__ = ["Ran", "read", "script_of"]

_SHELLS: Final = re.compile(r"(/usr)?(/bin/)?(bash|sh|dash|zsh)")
_STEP: Final = re.compile(
    rf"# step: (?P<name>[^,\n]+?)(?:, (?:(?P<head>{container_script.HEAD})|\d+ (?P<ranks>{container_script.RANKS})))?"
)
#: Slurm's own variables, and those of a login, but for the numbers of an array's tasks that do not begin at 0.
_OWN: Final = re.compile(r"export (?!SLURM_ARRAY_TASK_ID=\$\()(SLURM_[A-Z_]+|(?:USER|LOGNAME|TMPDIR)(?==\"\$))=.*")
_GUARD: Final = " || exit"
_K8S: Final = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What a command does.

    Attributes
    ----------
    ranks : int or None
        Ranks of a node, where the launcher says so.
    The others are as in `clusterkernel.spec` and `clusterkernel.formats.model`.
    """

    steps: tuple[Step, ...] = ()
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    secrets: tuple[str, ...] = ()
    workdir: str = ""
    config: str = ""
    interpreter: str = ""
    launcher: Launcher = Launcher.NONE
    ranks: int | None = None
    mounts: tuple[Mount, ...] = ()
    rows: tuple[SourceField, ...] = ()


def script_of(words: Sequence[str], names: Sequence[str]) -> str:
    """The words of a container's command as a script that bash reads.

    Parameters
    ----------
    words : sequence of str
        ``command`` and ``args``, as the manifest has them.
    names : sequence of str
        Variables of the container, which Kubernetes puts in for ``$(NAME)``.
    """
    if len(words) >= 3 and _SHELLS.fullmatch(words[0]):
        place = 1
        while place < len(words) and words[place].startswith("-"):
            flags = words[place]
            place += 1
            if not flags.startswith("--") and "c" in flags:
                if place == len(words) - 1:
                    return _expanded(words[place], names)
                break
            if flags in ("-o", "-O"):
                place += 1
    return " ".join(_word(word, names) for word in words)


def _expanded(text: str, names: Sequence[str]) -> str:
    """A script as bash is given it."""
    parts = []
    for part in re.split(r"(\$\$)", text):
        if part == "$$":
            parts.append("$")
        else:
            parts.append(_K8S.sub(lambda match: f"${{{match[1]}}}" if match[1] in names else match[0], part))
    return "".join(parts)


def _word(word: str, names: Sequence[str]) -> str:
    """One word of a command that no shell reads, as bash would write it."""
    if not any(name in names for name in _K8S.findall(word)):
        return shlex.quote(word.replace("$$", "$"))
    pieces = []
    for part in re.split(r"(\$\$|\$\([A-Za-z_][A-Za-z0-9_.-]*\))", word):
        match = _K8S.fullmatch(part)
        if match and match[1] in names:
            pieces.append(f"${{{match[1]}}}")
        else:
            pieces.append(re.sub(r'([\\"$`])', r"\\\1", part.replace("$$", "$")))
    return f'"{"".join(pieces)}"'


class _Section(msgspec.Struct):
    """A step of a script that we wrote: its lines, and the number of the first."""

    name: str
    runs: Runs
    first: int
    lines: list[str]


def read(text: str, *, name: str, line: int, values: Mapping[str, str], shape: Shape, each: bool) -> Ran:
    """What a script does.

    Parameters
    ----------
    text : str
        The script.
    name : str
        What errors call the manifest.
    line : int
        Where the script begins in it.
    values : mapping
        Variables of the container.
    shape : Shape
        What the job has.
    each : bool
        The script runs in several places at once, so that what stands in it does, too.

    Raises
    ------
    FormatError
        What it launches cannot be told.
    """
    source = _Source(name, values, shape, each)
    head, sections = _sections(text.split("\n"), line)
    if not sections:
        return source.read(text, line)
    rows: list[SourceField] = []
    kept = []
    for number, line_text in enumerate(head):
        if match := _OWN.fullmatch(line_text):
            why = "Slurm sets it; here the script does."
            rows.append(SourceField(f"export {match[1]}", "", line + number, None, reason=why))
            kept.append("")
        else:
            kept.append(line_text.removesuffix(_GUARD) if line_text.startswith("cd ") else line_text)
    ran = source.read("\n".join(kept), line)
    steps: list[Step] = []
    for section in sections:
        one = source.section(section)
        offset, words = len(steps), sum(len(step.launcher_args) for step in steps)
        steps += one.steps
        rows += [shifted(row, offset, words) for row in one.rows]
        if one.launcher is not Launcher.NONE:
            ran = msgspec.structs.replace(ran, launcher=one.launcher, ranks=one.ranks)
        ran = msgspec.structs.replace(
            ran, config=ran.config or one.config, interpreter=ran.interpreter or one.interpreter
        )
    return msgspec.structs.replace(ran, steps=tuple(steps), rows=(*ran.rows, *rows))


def shifted(row: SourceField, steps: int, words: int, setup: int = 0) -> SourceField:
    """A row of one part of a program, counted behind the parts before it."""
    field = row.field or ""
    for prefix, offset in (("program.steps.", steps), ("program.launcher_args.", words), ("setup.", setup)):
        if field.startswith(prefix) and field.removeprefix(prefix).isdecimal():
            field = f"{prefix}{int(field.removeprefix(prefix)) + offset}"
    return msgspec.structs.replace(row, field=field or None)


class _Source(msgspec.Struct, frozen=True):
    """What a script is read with."""

    name: str
    values: Mapping[str, str]
    shape: Shape
    each: bool

    def read(self, text: str, line: int) -> Ran:
        """A script that says what it does by its lines."""
        body, variables = sbatch_body.read(text, name=self.name, first_line=line, values=self.values)
        agreed = launch_counts.counts(body, variables, self.shape, self.name)
        made = launch_steps.steps(body, variables, self.shape, agreed, self.name)
        return Ran(
            steps=tuple(_placed(step, self.each) for step in made.steps),
            setup=tuple(body.setup),
            env={**body.env, **made.env},
            secrets=tuple(body.secrets),
            workdir=body.workdir or made.workdir,
            config=made.config,
            interpreter=made.interpreter,
            launcher=agreed.launcher,
            ranks=agreed.ranks,
            mounts=tuple(made.mounts),
            rows=tuple(sorted([*body.rows, *map(_told, made.rows)], key=lambda row: row.line or 0)),
        )

    def section(self, section: _Section) -> Ran:
        """A step that we wrote: one command, or lines that stay together."""
        text = "\n".join(section.lines)
        try:
            ran = self.read(text, section.first)
        except FormatError:
            ran = Ran()  # a shell knows what it does
        if len(ran.steps) == 1 and not (ran.setup or ran.env or ran.secrets or ran.workdir):
            step = msgspec.structs.replace(ran.steps[0], name=section.name, runs=section.runs)
            return msgspec.structs.replace(ran, steps=(step,))
        step = Step(name=section.name, shell=text, runs=section.runs)
        row = SourceField("command", secrets.shown(text.replace("\n", " ")[:120]), section.first, "program.steps.0")
        return Ran(steps=(step,), rows=(row,))


def _told(row: SourceField) -> SourceField:
    """A row of a step; a container starts it in each place, so that nothing changes there."""
    if row.key == "command" and row.how is How.CHANGED:
        return msgspec.structs.replace(row, how=How.EXACT, reason="")
    return row


def _placed(step: Step, each: bool) -> Step:
    """Where a step of a container runs: in each of them."""
    runs = Runs.NODES if step.launched or each else Runs.HEAD
    return msgspec.structs.replace(step, runs=runs)


def _sections(lines: Sequence[str], line: int) -> tuple[list[str], list[_Section]]:
    """The lines before the first step, and the steps, in a script that we wrote; else all lines, and none."""
    head: list[str] = []
    sections: list[_Section] = []
    for number, text in enumerate(lines):
        if match := _STEP.fullmatch(text):
            runs = Runs.HEAD if match["head"] else Runs.RANKS if match["ranks"] else Runs.NODES
            sections.append(_Section(match["name"], runs, line + number + 1, []))
        else:
            (sections[-1].lines if sections else head).append(text)
    for section in sections:
        _undo(section)
    return head, sections


def _undo(section: _Section) -> None:
    """Take off what `container_script` put around a command."""
    lines = section.lines
    while lines and not lines[-1].strip():
        lines.pop()
    if section.runs is Runs.HEAD and lines and lines[0].startswith("if [ ") and lines[-1] == "fi":
        lines = lines[1:-1]
        if len(lines) >= 2 and lines[-2] == "else":
            lines = lines[:-2]
    elif section.runs is Runs.RANKS and "(" in lines and "    } &" in lines:
        lines = lines[lines.index("(") + 1 : lines.index("    } &") - 2]
    if len(lines) == 1:
        lines = [lines[0].strip().removesuffix(_GUARD).removeprefix("exec ")]
    elif lines and lines[0] == "{" and lines[-1] == "}" + _GUARD:
        lines = lines[1:-1]
    section.lines = lines
