"""The variables of a batch script: what becomes the environment, what stands where it is used, what is kept."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from clusterkernel.formats import secrets
from clusterkernel.formats.model import How, SourceField
from clusterkernel.formats.sbatch.kept import DERIVED, Keeper, fits, several
from clusterkernel.formats.shell import effects
from clusterkernel.formats.shell.values import assignment
from clusterkernel.formats.shell.words import Kind, Statement, statements

__all__ = ["Assigner"]

_DEFAULT: Final = re.compile(r"\$\{(\w+):?=([^{}]*)\}", re.ASCII)
#: By these apptainer sets variables inside its containers.
_INSIDE: Final = re.compile(r"(?:APPTAINER|SINGULARITY)ENV_([A-Za-z_]\w*)$", re.ASCII)
#: In the environment of each shell, so that an assignment changes it there.
_EXPORTED: Final = frozenset("HOME LANG LD_LIBRARY_PATH PATH SHELL TMPDIR USER".split())


class Assigner(Keeper):
    """Goes through assignments."""

    def __init__(self, name: str, values: Mapping[str, str], chdir: str) -> None:
        super().__init__(name, values, chdir)
        self._exports_all = False

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
