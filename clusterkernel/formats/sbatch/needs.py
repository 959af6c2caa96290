"""From sbatch's options, and what the launch lines say of counts, to the fields of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from clusterkernel import fields
from clusterkernel.formats import secrets
from clusterkernel.formats.model import How, Mount, SourceField
from clusterkernel.formats.sbatch import values as reads
from clusterkernel.formats.sbatch.checks import check
from clusterkernel.formats.sbatch.counts import Counting, Counts
from clusterkernel.formats.sbatch.directives import RESERVED
from clusterkernel.formats.sbatch.grammar import Given, Header, Origin
from clusterkernel.spec import Array, JobSpec

__all__ = ["Counts", "Needs", "needs", "options_of", "shape"]

#: Options that change what sbatch prints or does, and not the job.
_ABOUT_SBATCH: Final = frozenset("help ignore-pbs parsable quiet test-only usage verbose version wait wrap".split())
#: Option -> the field that holds its text as it is.
_SAME: Final = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "network": "network",
    "reservation": "reservation",
    "dependency": "dependency",
    "job-name": "name",
    "chdir": "workdir",
    "container-image": "image",
    "container-workdir": "workdir",
}


class Needs(msgspec.Struct, frozen=True):
    """What the options came to.

    Attributes
    ----------
    values : dict
        Fields by name, as `fields.build` reads them.
    origins : dict
        Field -> how errors call it.
    array : Array or None
        The array.
    extra : tuple of str
        Options that have no field, and that a job of ours takes along as they are.
    options : tuple of str
        All of them, as the script spells them.
    mounts : tuple of Mount
        Of a container.
    rows : tuple of SourceField
        One for each option.
    tasks : int
        Slurm's tasks on each node.
    """

    values: dict[str, Any]
    origins: dict[str, str]
    array: Array | None
    extra: tuple[str, ...]
    options: tuple[str, ...]
    mounts: tuple[Mount, ...]
    rows: tuple[SourceField, ...]
    tasks: int

    def spec(self, base: JobSpec) -> JobSpec:
        """The spec with these fields set.

        Raises
        ------
        SpecError
            A value that sbatch takes and a job of ours cannot hold.
        """
        spec = fields.build(self.values, base, origins=self.origins)
        extra = {"slurm": self.extra} if self.extra else {}
        return msgspec.structs.replace(spec, array=self.array, extra=extra)


def shape(header: Header, name: str) -> tuple[int, int, int]:
    """Nodes, and Slurm's tasks and the GPUs of each, as the options alone have them.

    Raises
    ------
    FormatError
        sbatch refuses the options.
    """
    check(header.given, header.last, name)
    return _Reader(header, Counts(), name).shape()


def needs(header: Header, counts: Counts, name: str) -> Needs:
    """The fields that a script's options ask for.

    Raises
    ------
    FormatError
        sbatch refuses them.
    """
    check(header.given, header.last, name)
    return _Reader(header, counts, name).read()


class _Reader(Counting):
    """Goes through the options once, group by group."""

    def __init__(self, header: Header, counts: Counts, name: str) -> None:
        super().__init__(header, counts, name)
        self._mounts: tuple[Mount, ...] = ()
        self._array: Array | None = None

    def shape(self) -> tuple[int, int, int]:
        tasks = self._shape()
        gpus = self._values.get("gpus_per_node")
        return self._values["nodes"], tasks, gpus.count if gpus else 0

    def read(self) -> Needs:
        self._overridden()
        tasks = self._shape()
        self._texts()
        self._schedule()
        self._rest()
        rows = [self._rows[option] for option in self._given if option in self._rows]
        return Needs(
            values=self._values,
            origins=self._origins,
            array=self._array,
            extra=tuple(self._extra),
            options=tuple(
                _hide(option) for option in self._last.values() if option.name and option.name not in _ABOUT_SBATCH
            ),
            mounts=self._mounts,
            rows=(*rows, *self._more),
            tasks=tasks,
        )

    def _texts(self) -> None:
        for name, field in _SAME.items():
            option = self._last.get(name)
            if option is None:
                continue
            if not (option.value or "").strip():
                self._row(option, None, How.EXACT, "It is empty, which is as if it were not there.")
                continue
            self._set(field, option.value, option)
            self._row(option, field)

    def _schedule(self) -> None:
        if option := self._last.get("time"):
            seconds = reads.time(option.value or "")
            if seconds is None:
                self._extra.append("--time=UNLIMITED")
                self._row(option, "extra.slurm.time")
            else:
                self._set("time", f"{seconds}s", option)
                self._row(option, "time")
        if option := self._last.get("priority"):
            text = (option.value or "").strip()
            if text.isdecimal() or text == "TOP":
                self._set("priority", text, option)
                self._row(option, "priority")
            else:
                self._row(option, None, How.DROPPED, "Slurm takes no notice of it: a priority is a number or TOP.")
        if option := self._last.get("exclusive"):
            if option.value in (None, "exclusive"):
                self._set("exclusive", True, option)
                self._row(option, "exclusive")
            else:
                self._extra.append(option.text)
                self._row(option, "extra.slurm.exclusive")
        if option := self._last.get("tmp"):
            size = reads.memory(option.value or "")
            if size:
                self._set("ephemeral_disk", f"{size}M", option)
            self._row(option, "ephemeral_disk")
        if option := self._last.get("signal"):
            who, text = reads.signal_text(option.value or "")
            self._set("checkpoint_signal", f"R:{text}" if "R" in who else text, option)
            self._row(option, "checkpoint_signal")
        chosen = [option for option in self._given if option.name in ("requeue", "no-requeue")]
        for option in chosen:
            if option is chosen[-1]:
                self._set("requeue", option.name == "requeue", option)
                self._row(option, "requeue")
            else:
                self._row(option, None, How.EXACT, f"{chosen[-1].key} counts.")
        if option := self._last.get("array"):
            self._read_array(option)

    def _read_array(self, option: Given) -> None:
        indices, throttle = reads.array_indices(option.value or "")
        size = sum(map(len, indices))
        self._array = Array(size=size)
        if throttle:
            self._set("parallelism", throttle, option)
            self._more.append(SourceField(option.key, f"%{throttle}", option.line, "parallelism"))
        self._row(option, "array")

    def _rest(self) -> None:
        for option in self._last.values():
            if option in self._rows or not option.name:
                continue
            if option.name in _ABOUT_SBATCH:
                self._row(option, None, How.EXACT, "It says what sbatch prints or does, and nothing of the job.")
            elif option.name == "export":
                self._export(option)
            elif option.name == "container-mounts":
                self._mounts = tuple(_mount(part) for part in (option.value or "").split(",") if part)
                self._row(option, "program.mounts")
            elif option.name in RESERVED or option.name.startswith(("container", "no-container")):
                self._row(option, f"program.options.slurm.{option.name}")
            else:
                self._extra.append(_hide(option))
                self._row(option, f"extra.slurm.{option.name}")

    def _export(self, option: Given) -> None:
        if option.value == "ALL":
            self._row(option, None, How.EXACT, "sbatch does so by itself.")
            return
        env: dict[str, str] = {}
        for part in (option.value or "").split(","):
            variable, equals, text = part.partition("=")
            variable = variable.strip()
            if not equals:
                how, why = How.EXACT, ""
                if variable.upper() == "NONE":
                    how, why = How.CHANGED, "No platform but Slurm would pass anything on."
                field = f"program.options.slurm.{option.name}"
                self._more.append(SourceField(option.key, variable, option.line, field, how, why))
            elif secrets.is_name(variable) or secrets.is_value(text):
                held = self._values.setdefault("secrets", [])
                held += [] if variable in held else [variable]
                why = f"A secret in the clear became a name: %cluster_secret set {variable} keeps its value."
                row = SourceField(option.key, f"{variable}={secrets.HIDDEN}", option.line, f"secrets.{variable}")
                self._more.append(msgspec.structs.replace(row, how=How.CHANGED, reason=why))
            else:
                env[variable] = text
                self._more.append(SourceField(option.key, part, option.line, f"env.{variable}"))
        if env:
            self._set("env", env, option)
        hidden = _hide(option).partition("=")[2]
        self._row(option, f"program.options.slurm.{option.name}", value=hidden)


def _mount(text: str) -> Mount:
    parts = text.split(":")
    return Mount(parts[0], parts[1] if len(parts) > 1 else parts[0], ":".join(parts[2:]))


def _hide(option: Given) -> str:
    """An option as it may be kept and shown: variables that are secrets by name only."""
    if option.name != "export" or option.value is None:
        return secrets.shown(option.text)
    parts = []
    for part in option.value.split(","):
        variable, equals, text = part.partition("=")
        hidden = equals and (secrets.is_name(variable.strip()) or secrets.is_value(text))
        parts.append(variable if hidden else part)
    return f"--export={','.join(parts)}"


def options_of(texts: tuple[str, ...]) -> Mapping[str, Given]:
    """Options as `Needs.options` keeps them, by name."""
    found = {}
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        found[name] = Given(name, value if equals else None, f"--{name}", None, Origin.SCRIPT)
    return found
