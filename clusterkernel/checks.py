"""Advice on a job before it is sent, as a DataFrame: of a file of any format, or of a spec."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterkernel import advice
from clusterkernel.errors import ClusterKernelError
from clusterkernel.formats import sources
from clusterkernel.formats.model import Format, Parsed
from clusterkernel.payload import yamltext
from clusterkernel.spec import JobSpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "advise", "check"]

COLUMNS: Final = ("level", "rule", "field", "message", "fix")


def check(
    source: str | os.PathLike[str] | JobSpec,
    *,
    values: Mapping[str, object] | None = None,
    source_format: str | Format | None = None,
    options: str | Sequence[str] = (),
    backend: str | None = None,
) -> pd.DataFrame:
    """What a person should know of a job before it is sent.

    Parameters
    ----------
    source : str, path or JobSpec
        A file of any format that `convert` reads, its text, or a spec.
    values, source_format, options
        As for `convert`.
    backend : str, optional
        Where it is to run; by itself where the source runs.

    Returns
    -------
    DataFrame
        ``level`` (error, warning, info), ``rule``, ``field``, ``message``, ``fix``: all text, the worst first.

    Raises
    ------
    FormatError, SpecError
        The source cannot be read.
    """
    import pandas as pd

    found = advise(source, values=values, source_format=source_format, options=options, backend=backend)
    data = [(item.level.value, item.rule, item.field, item.message, item.fix) for item in found]
    return pd.DataFrame(data, columns=list(COLUMNS), dtype="object")


def advise(
    source: str | os.PathLike[str] | JobSpec,
    *,
    values: Mapping[str, object] | None = None,
    source_format: str | Format | None = None,
    options: str | Sequence[str] = (),
    backend: str | None = None,
) -> tuple[advice.Advice, ...]:
    """As `check`, as the rules give it."""
    if isinstance(source, JobSpec):
        spec = source if backend is None else msgspec.structs.replace(source, backend=backend)
        return advice.check(spec)
    text, name = sources.load(source)
    parsed = sources.read(text, name, values=values, source_format=source_format, options=options)
    spec = parsed.spec if backend is None else msgspec.structs.replace(parsed.spec, backend=backend)
    config = _config(parsed, source)
    return advice.check(spec, parsed.program, format=parsed.format, fields=parsed.fields, config=config)


def _config(parsed: Parsed, source: str | os.PathLike[str]) -> Mapping[str, Any] | None:
    """The configuration of axolotl, where it lies where the job would find it."""
    if not parsed.program.config or "$" in parsed.program.config:
        return None
    folder = Path.cwd() if isinstance(source, str) and "\n" in source else Path(source).expanduser().parent
    try:
        path = (folder / (parsed.spec.environment.workdir or "") / parsed.program.config).expanduser()
        with open(path, "rb") as file:
            text = file.read(yamltext.SIZE_LIMIT + 1).decode("utf-8")
        document, _ = yamltext.load(text, str(path))
    except (OSError, ValueError, RuntimeError, ClusterKernelError):
        return None  # a check looks at what it finds
    return document if isinstance(document, dict) else None
