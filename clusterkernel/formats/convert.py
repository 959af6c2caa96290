"""From one platform's file to another's, with a report that leaves nothing out."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from clusterkernel import fields
from clusterkernel.errors import FormatError
from clusterkernel.formats import sources
from clusterkernel.formats.model import Format, How, Parsed, Program, SourceField, TargetField, Written, worst
from clusterkernel.paths import expand
from clusterkernel.spec import JobSpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "Conversion", "Row", "convert", "parse"]

COLUMNS: Final = ("source", "value", "target", "target_value", "how", "reason")
# Format -> where its writer is; imported when it is used.
_WRITERS: Final[Mapping[Format, tuple[str, str]]] = {
    Format.SLURM: ("sbatch.script", "write"),
    Format.MODAL_YAML: ("cloud.writer", "write_modal"),
    Format.BASETEN_YAML: ("cloud.writer", "write_baseten"),
    Format.MODAL: ("modal.app", "write"),
    Format.BASETEN: ("truss_config", "write"),
    Format.KUBERNETES: ("kubernetes.writer", "write"),
    Format.PROFILE: ("profile_toml", "write"),
}
_BACKENDS: Final[Mapping[Format, str]] = {
    Format.SLURM: "slurm",
    Format.MODAL: "modal",
    Format.MODAL_YAML: "modal",
    Format.BASETEN: "baseten",
    Format.BASETEN_YAML: "baseten",
    Format.KUBERNETES: "kubernetes",
}
_SHOWN: Final[Mapping[Format, str]] = {
    Format.SLURM: "A batch script",
    Format.MODAL_YAML: "axolotl's cloud file",
    Format.BASETEN_YAML: "axolotl's cloud file",
    Format.MODAL: "A Modal app",
    Format.BASETEN: "A truss config",
    Format.KUBERNETES: "A manifest",
    Format.PROFILE: "A profile",
}
# What keeps a secret where the job runs without this package, in place of what a reader says of it.
_KEEPS: Final = re.compile(r"%cluster_secret set (\S+) keeps (?:its value|it)\.")
_MODAL_SECRET: Final = "modal secret create {name} {name}=... gives Modal its value."
_SECRETS: Final[Mapping[Format, str]] = {
    Format.MODAL: _MODAL_SECRET,
    Format.MODAL_YAML: _MODAL_SECRET,
    Format.BASETEN: "Add {name} to the secrets of the Baseten workspace.",
    Format.BASETEN_YAML: "Add {name} to the secrets of the Baseten workspace.",
    Format.KUBERNETES: "kubectl create secret generic {secret} --from-literal={key}=... gives the cluster its value.",
}


class Row(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of the report.

    Attributes
    ----------
    source, value : str
        The source's key and its value; empty for what only the target has.
    target, target_value : str
        The target's key and its value; empty for what was dropped.
    how : How
        How the field fared.
    reason : str
        A full sentence, where it is not exact.
    line : int or None
        Where it stands in the source.
    field : str or None
        The field of the spec or program that stands between the two.
    """

    source: str = ""
    value: str = ""
    target: str = ""
    target_value: str = ""
    how: How = How.EXACT
    reason: str = ""
    line: int | None = None
    field: str | None = None


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """A converted file.

    Attributes
    ----------
    text : str
        The target.
    spec : JobSpec
        What the job needs, for the target's backend.
    program : Program
        What it runs.
    source_format, format : Format
        From what, to what.
    rows : tuple of Row
        The report: one for each field of the source, and one for each value that the target needs beside.
    """

    text: str
    spec: JobSpec
    program: Program
    source_format: Format
    format: Format
    rows: tuple[Row, ...]

    def __repr__(self) -> str:
        counts = [(how, sum(row.how is how for row in self.rows)) for how in How]
        told = ", ".join(f"{count} {how.value}" for how, count in counts if count)
        return f"<Conversion from {self.source_format.value} to {self.format.value}: {told}>"

    @property
    def report(self) -> pd.DataFrame:
        """The rows as a DataFrame: source, value, target, target_value, how, reason (all text)."""
        import pandas as pd

        data = [(row.source, row.value, row.target, row.target_value, row.how.value, row.reason) for row in self.rows]
        frame = pd.DataFrame(data, columns=list(COLUMNS), dtype="object")
        frame.attrs["clusterkernel"] = True  # notebooks show its texts in full
        return frame

    @property
    def dropped(self) -> tuple[Row, ...]:
        """What the target has no place for."""
        return tuple(row for row in self.rows if row.how is How.DROPPED)

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the text to a file.

        Parameters
        ----------
        path : str or path
            The file.
        overwrite : bool
            Also where it is there already, and holds something else.

        Raises
        ------
        FormatError
            It cannot be written, or is there already.
        """
        target = expand(path, "path")
        try:
            if not overwrite and target.exists() and target.read_bytes() != self.text.encode():
                raise FormatError(
                    f"{target} is there already, and holds something else.",
                    hint="Name another file, or write over it: overwrite=True, --force.",
                )
            target.write_text(self.text, encoding="utf-8")
        except OSError as error:
            raise FormatError(f"{target} cannot be written: {error.strerror}.", hint="Name another file.") from None
        return target


class _Writer(Protocol):
    def __call__(self, spec: JobSpec, program: Program) -> Written: ...


def convert(
    source: str | os.PathLike[str],
    to: str | Format,
    *,
    values: Mapping[str, object] | None = None,
    source_format: str | Format | None = None,
    options: str | Sequence[str] = (),
) -> Conversion:
    """Convert a file.

    Parameters
    ----------
    source : str or path
        The file, or its text.
    to : str or Format
        ``slurm``, ``kubernetes``, ``modal`` (an app), ``baseten`` (a truss config), ``modal-yaml`` and
        ``baseten-yaml`` (axolotl's cloud files), ``profile``.
    values : mapping, optional
        Values of variables: those of directives (``NUM_NODES``), of the shell that would call sbatch, ``CONFIG``
        for a cloud file, ``PROFILE`` for a file of several.
    source_format : str or Format, optional
        What the source is, where that cannot be seen.
    options : str or sequence of str
        For a batch script: sbatch's command line before it, which counts over the script.

    Raises
    ------
    FormatError
        The source cannot be read, or the target cannot hold what it is.
    SpecError
        A value is wrong.

    Examples
    --------
    >>> done = convert("train.slurm", "kubernetes", values={"NUM_NODES": 2})  # doctest: +SKIP
    >>> done.report  # doctest: +SKIP
    >>> done.write("train.yaml")  # doctest: +SKIP
    """
    target = sources.format_of(to, writable=True)
    return write(parse(source, values=values, source_format=source_format, options=options), target)


def parse(
    source: str | os.PathLike[str],
    *,
    values: Mapping[str, object] | None = None,
    source_format: str | Format | None = None,
    options: str | Sequence[str] = (),
) -> Parsed:
    """Read a file of any format; parameters and errors as for `convert`."""
    text, name = sources.load(source)
    return sources.read(text, name, values=values, source_format=source_format, options=options)


def write(parsed: Parsed, to: Format) -> Conversion:
    """Write what a reader found in another format."""
    spec = parsed.spec
    if backend := _BACKENDS.get(to):
        spec = msgspec.structs.replace(spec, backend=backend)
    module, function = _WRITERS[to]
    writer: _Writer = getattr(importlib.import_module(f"clusterkernel.formats.{module}"), function)
    written = writer(spec, parsed.program)
    return Conversion(
        text=written.text,
        spec=spec,
        program=parsed.program,
        source_format=parsed.format,
        format=to,
        rows=tuple(_rows(parsed, written, spec, to)),
    )


# -- the report ---------------------------------------------------------------------------


def _rows(parsed: Parsed, written: Written, spec: JobSpec, to: Format) -> list[Row]:
    targets = {target.field: target for target in written.fields}
    answered: set[str] = set()
    rows = []
    for source in parsed.fields:
        target = _answer(source.field, targets)
        if target is not None:
            answered.add(target.field)
        rows.append(_row(source, target, parsed, spec, to))
    for target in written.fields:
        if target.how is How.ASSUMED and target.field not in answered:
            rows.append(
                Row(
                    target=target.key,
                    target_value=target.value,
                    how=How.ASSUMED,
                    reason=target.reason,
                    field=target.field,
                )
            )
    return rows


def _answer(field: str | None, targets: Mapping[str, TargetField]) -> TargetField | None:
    """The target field that answers for a field: itself, or what it is an item of."""
    while field:
        if field in targets:
            return targets[field]
        field = field.rpartition(".")[0]
    return None


def _row(source: SourceField, target: TargetField | None, parsed: Parsed, spec: JobSpec, to: Format) -> Row:
    key = value = ""
    how, reason = source.how, source.reason
    if source.field is None:
        pass
    elif target is not None and target.how is not How.DROPPED:
        key, value = target.key, target.value
        how, reason = worst(how, target.how), _both(reason, target.reason)
        if parsed.format is to and _same(source, target):
            how, reason = How.EXACT, ""
    elif target is None and _is_default(source.field, spec):
        reason = reason or "It is what holds there anyway."
    else:
        how = How.DROPPED
        reason = _both(reason, target.reason if target is not None else f"{_SHOWN[to]} has no place for it.")
    if to in _SECRETS and (found := _KEEPS.search(reason)):
        secret, _, secret_key = value.partition("/")
        mend = _SECRETS[to].format(name=found[1], secret=secret, key=secret_key or found[1])
        reason = _KEEPS.sub(lambda _: mend, reason)
    return Row(
        source=source.key,
        value=source.value,
        target=key,
        target_value=value,
        how=how,
        reason=reason,
        line=source.line,
        field=source.field,
    )


def _both(first: str, second: str) -> str:
    return f"{first} {second}" if first and second else first or second


def _is_default(field: str, spec: JobSpec) -> bool:
    return field in fields.FIELDS and fields.get(spec, field) == fields.FIELDS[field].default


def _same(source: SourceField, target: TargetField) -> bool:
    """Whether the same option stands there with the same value, however it was read in between."""
    if source.line is None or source.reason.startswith("$") or not source.key.startswith("-"):
        return False
    return bool(source.value) and source.value == target.value and source.key == target.key
