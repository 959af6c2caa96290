"""Advice on a job before it is sent, as a DataFrame: of a file of any format, or of a spec."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterkernel import advice, patience
from clusterkernel.advice import axolotl_schema
from clusterkernel.backends import registry
from clusterkernel.errors import ClusterKernelError, SpecError, nearest, shown
from clusterkernel.formats import sources
from clusterkernel.formats.model import Format, Parsed
from clusterkernel.paths import expand
from clusterkernel.payload import yamltext
from clusterkernel.spec import JobSpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "advise", "check", "facts_of", "of_payload", "schema_of"]

COLUMNS: Final = ("level", "rule", "field", "message", "fix")
# Seconds to wait for a cluster's facts where a person waits for something else.
_PATIENCE: Final = 5.0
_AXOLOTL: Final = re.compile(r"^base_model\s*:", re.MULTILINE)


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
        A file of any format that `convert` reads, its text, or a spec; also an axolotl configuration.
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
    frame = pd.DataFrame(data, columns=list(COLUMNS), dtype="object")
    frame.attrs["clusterkernel"] = True  # notebooks show its texts in full
    return frame


def advise(
    source: str | os.PathLike[str] | JobSpec,
    *,
    values: Mapping[str, object] | None = None,
    source_format: str | Format | None = None,
    options: str | Sequence[str] = (),
    backend: str | None = None,
) -> tuple[advice.Advice, ...]:
    """As `check`, as the rules give it."""
    backend = _place(backend)
    if isinstance(source, JobSpec):
        spec = source if backend is None else msgspec.structs.replace(source, backend=backend)
        return advice.check(spec, facts=facts_of(spec))
    text, name = sources.load(source)
    if source_format is None and _AXOLOTL.search(text) and not text.startswith("#!"):
        document, _ = yamltext.load(text, name)
        spec = JobSpec(backend=backend or "local")
        return advice.check(spec, config=document, schema=schema_of(spec), facts=facts_of(spec))
    parsed = sources.read(text, name, values=values, source_format=source_format, options=options)
    spec = parsed.spec if backend is None else msgspec.structs.replace(parsed.spec, backend=backend)
    config = _config(parsed, source)
    return advice.check(
        spec,
        parsed.program,
        format=parsed.format,
        fields=parsed.fields,
        config=config,
        schema=schema_of(spec) if config is not None else None,
        facts=facts_of(spec),
    )


def _place(name: str | None) -> str | None:
    """The platform of this name: a backend, or a format that stands for one.

    Raises
    ------
    SpecError
        There is none.
    """
    if name is None:
        return None
    plain = name.strip().lower().removesuffix("-yaml")
    known = (*registry.names(), *(form.value for form in (Format.KUBERNETES, Format.BASETEN)))
    if plain not in known:
        raise SpecError(f"There is no platform {shown(name)}.", field="--backend", hint=nearest(plain, known))
    return plain


def of_payload(spec: JobSpec, files: Mapping[str, object]) -> tuple[advice.Advice, ...]:
    """Advice on a job of a notebook, beside what its backend notes; quick, so that it can be shown before each job.

    Parameters
    ----------
    spec : JobSpec
        What is asked for.
    files : mapping
        Files of the payload; ``config.yml`` is axolotl's configuration.
    """
    config = None
    if isinstance(text := files.get("config.yml"), str):
        document, _ = yamltext.load(text, "config.yml")
        config = document if isinstance(document, dict) else None
    schema = schema_of(spec, cached_only=True) if config is not None else None
    silent: tuple[advice.Advice, ...] = ()
    try:
        facts = patience.within(_PATIENCE, lambda: facts_of(spec))
    except TimeoutError:
        facts, silent = None, (_silent(spec),)
    case = advice.Case(spec=spec, config=config, schema=schema, facts=facts or advice.Facts())
    return silent + advice.check_case(case, beyond_notes=True)


def _silent(spec: JobSpec) -> advice.Advice:
    return advice.Advice(
        level=advice.Level.INFO,
        rule="platform-silent",
        field="backend",
        message=f"{spec.backend} does not answer; what the cluster would say was not looked at.",
    )


def facts_of(spec: JobSpec) -> advice.Facts | None:
    """What is known of the platform that a job goes to, where it can be asked here."""
    if spec.backend not in registry.names():
        return None
    backend = registry.get(spec.backend)
    ask: Callable[[JobSpec], advice.Facts] | None = getattr(backend, "facts", None)
    return ask(spec) if ask is not None and backend.available().ok else None


def schema_of(spec: JobSpec, *, cached_only: bool = False) -> Mapping[str, Any] | None:
    """The schema of the axolotl that is installed; the first time it takes some ten seconds."""
    python = axolotl_schema.find(spec.environment.interpreter)
    return axolotl_schema.load(python, cached_only=cached_only) if python is not None else None


def _config(parsed: Parsed, source: str | os.PathLike[str]) -> Mapping[str, Any] | None:
    """The configuration of axolotl, where it lies where the job would find it."""
    if not parsed.program.config or "$" in parsed.program.config:
        return None
    try:
        folder = Path.cwd() if isinstance(source, str) and "\n" in source else expand(source, "source").parent
        path = (folder / (parsed.spec.environment.workdir or "") / parsed.program.config).expanduser()
        with open(path, "rb") as file:
            text = file.read(yamltext.SIZE_LIMIT + 1).decode("utf-8")
        document, _ = yamltext.load(text, str(path))
    except (OSError, ValueError, RuntimeError, ClusterKernelError):
        return None  # a check looks at what it finds
    return document if isinstance(document, dict) else None
