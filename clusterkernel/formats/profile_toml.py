"""Reads and writes one of our own profiles as a TOML file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from clusterkernel import fields, fieldtext
from clusterkernel.errors import FormatError, nearest
from clusterkernel.formats import secrets
from clusterkernel.formats.model import Format, How, Parsed, Program, SourceField, Written
from clusterkernel.formats.reporting import Report, by_name, option_name
from clusterkernel.spec import JobSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["read", "write"]

_LARGEST: Final = 1 << 18
# The standard library's reader takes the square of a dotted key's length, in memory too.
_DOTS: Final = 200
_TABLE: Final = re.compile(r"\s*\[\s*profiles\s*\.\s*(\"[^\"]*\"|'[^']*'|[\w-]+)\s*(?:\.\s*(\w+)\s*)?\]", re.ASCII)
_KEY: Final = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*(?:=|\.)", re.ASCII)
#: Platforms whose files are written, and to which no job is sent.
_TEXT_ONLY: Final = ("kubernetes", "baseten")
_NO_PROGRAM: Final = "A profile says where a run runs, and not what it runs."


def read(text: str, *, name: str, values: Mapping[str, str] | None = None) -> Parsed:
    """Read a profile.

    Parameters
    ----------
    text : str
        TOML with tables ``[profiles.NAME]``.
    name : str
        What errors call the file.
    values : mapping, optional
        ``PROFILE``, which of several is meant. It stands on top of ``[profiles.default]``.

    Raises
    ------
    FormatError
        It is no TOML, or does not say which profile is meant.
    SpecError
        A field's value is wrong.
    """
    tables = _tables(text, name)
    wanted = (values or {}).get("PROFILE")
    others = [table for table in tables if table != "default"]
    if wanted is None:
        if len(others) > 1:
            raise FormatError(
                f"{name} has several profiles: {', '.join(others)[:200]}.",
                hint=f'Pick one: values={{"PROFILE": "{others[0]}"}}.',
            )
        wanted = others[0] if others else "default"
    if wanted not in tables:
        raise FormatError(f"{name} has no profile {wanted!r}.", hint=nearest(wanted, tables))
    lines = _lines(text)
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    rows: list[SourceField] = []
    for table in dict.fromkeys(("default", wanted)):
        for key, value in tables.get(table, {}).items():
            line = lines.get((table, key))
            if key not in fields.FIELDS and key not in fields.PSEUDO:
                hint = nearest(key, [*fields.FIELDS, *fields.PSEUDO])
                why = f"There is no field {key}. {hint if hint.startswith('Did') else ''}".strip()
                rows.append(SourceField(key, _shown(key, value), line, None, How.DROPPED, why))
                continue
            if key in found and table != "default":
                old = lines.get(("default", key))
                rows = [row for row in rows if row.line != old or row.key.partition(".")[0] != key]
                why = f"The profile {wanted} says it again."
                rows.append(SourceField(key, _shown(key, found[key]), old, None, How.EXACT, why))
            found = fields.merge(found, {key: value})
            origins[key] = f"{name}, line {line or 1}: {key}"
            rows += _rows(key, value, line, origins[key])
    found, hidden = _without_secrets(found)
    rows = [
        msgspec.structs.replace(hidden[row.field], line=row.line) if row.field and row.field in hidden else row
        for row in rows
    ]
    spec = fields.build(found, origins=origins)
    return Parsed(format=Format.PROFILE, spec=spec, program=Program(), fields=tuple(rows))


def _tables(text: str, name: str) -> dict[str, dict[str, Any]]:
    if len(text) > _LARGEST:
        raise FormatError(f"{name} is too large for profiles.", hint="Is it the right file?")
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > _DOTS:
            raise FormatError(f"{name}, line {number}: it is nested too deeply.", hint="Is it the right file?")
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # a number of thousands of digits, too
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        line = place[1] if place else str(text.count("\n") + 1)
        reason = secrets.shown(re.sub(r" \(at .*\)$", "", str(error)))
        raise FormatError(f"{name}, line {line}: it is no valid TOML: {reason}.", hint="Mend that line.") from None
    except RecursionError:
        raise FormatError(f"{name} is nested too deeply.", hint="Is it the right file?") from None
    if not _is_flat(document):
        raise FormatError(f"{name} is nested too deeply.", hint="Is it the right file?")
    tables = document.get("profiles")
    if not isinstance(tables, dict) or not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise FormatError(f"{name} has no profiles.", hint="Write [profiles.NAME] above the fields.")
    return tables


def _is_flat(document: object) -> bool:
    """Whether nothing is nested more than profiles ever are."""
    level = [document]
    for _ in range(8):
        level = [
            part
            for item in level
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
    return not level


def _lines(text: str) -> dict[tuple[str, str], int]:
    """The line of each key of each profile."""
    found: dict[tuple[str, str], int] = {}
    table = ""
    inner = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TABLE.match(line):
            table, inner = match[1].strip("\"'"), match[2] or ""
            if inner:
                found.setdefault((table, inner), number)
        elif line.lstrip().startswith("["):
            table = table if inner else ""
        elif table and not inner and (key := _KEY.match(line)):
            found.setdefault((table, key[1]), number)
    return found


def _rows(key: str, value: Any, line: int | None, label: str) -> Iterator[SourceField]:
    """The rows of one key: one for each item, where it holds several."""
    if key == "sbatch":
        for item in fieldtext.items(value, label):
            for option in fieldtext.options(item, label):
                yield SourceField(key, secrets.shown(option), line, f"extra.slurm.{option_name(option)}")
        return
    if key == "gpus":
        why = "The job's total, over its nodes."
        yield SourceField(key, _shown(key, value), line, "gpus_per_node", How.CHANGED, why)
        return
    field = fields.FIELDS[key]
    parsed = fieldtext.parse(field, value, label)
    if field.unit == "pairs":
        for name, text in parsed.items():
            yield SourceField(f"{key}.{name}", secrets.shown(text), line, f"{key}.{name}")
    elif field.unit == "lines":
        for number, text in enumerate(parsed):
            yield SourceField(key, secrets.shown(text), line, f"{key}.{number}")
    elif field.unit == "volumes":
        for item in parsed:
            yield SourceField(key, f"{item.name}:{item.mount}", line, f"{key}.{item.name}")
    elif field.unit == "names":
        for item in parsed:
            yield SourceField(key, item, line, f"{key}.{item}")
    else:
        how, why = (How.EXACT, "") if key != "backend" else (How.EXACT, "The target says it.")
        yield SourceField(key, _shown(key, value), line, None if key == "backend" else key, how, why)


def _shown(key: str, value: object) -> str:
    if key != "secrets" and secrets.is_name(key):  # those are names
        return secrets.HIDDEN
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name}={secrets.HIDDEN if secrets.is_name(str(name)) else text}" for name, text in value.items()
        )
    text = secrets.shown(" ".join(str(value).split()))
    return text if len(text) <= 120 else text[:117] + "..."


def _without_secrets(found: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, SourceField]]:
    """Fields whose variables are no secrets, and the rows of those that were."""
    if found.get("env") is None:
        return dict(found), {}
    env = fieldtext.parse(fields.FIELDS["env"], found["env"], "env")
    hidden = [name for name, text in env.items() if secrets.is_name(name) or secrets.is_value(text)]
    if not hidden:
        return dict(found), {}
    field = fields.FIELDS["secrets"]
    named = list(fieldtext.parse(field, found["secrets"], "secrets")) if found.get("secrets") else []
    rows = {}
    for name in hidden:
        named += [] if name in named else [name]
        why = f"A secret in the clear became a name: %cluster_secret set {name} keeps its value."
        rows[f"env.{name}"] = SourceField(f"env.{name}", secrets.HIDDEN, None, f"secrets.{name}", How.CHANGED, why)
    kept = {name: text for name, text in env.items() if name not in hidden}
    return {**found, "env": kept or None, "secrets": named}, rows


def write(spec: JobSpec, program: Program) -> Written:
    """A file with one profile, named after the job."""
    import tomli_w

    report = Report()
    spec = by_name(spec, report)
    values = fields.values(spec)
    if spec.backend in _TEXT_ONLY:
        del values["backend"]
        why = f"No job is sent to {spec.backend} yet: name another backend, here or with --backend."
        report.assumed("backend", "", "", why)
    for key in values:
        report.exact("extra.slurm" if key == "sbatch" else key, key, _shown(key, values[key]))
    for name, text in spec.environment.env.items():
        report.exact(f"env.{name}", f"env.{name}", text)
    if spec.array is not None:
        report.dropped("array", "map_jobs makes arrays, and no profile.")
    for stage in spec.stages:
        report.dropped(f"stages.{stage.name}", "A profile has no stages.")
    for part in ("config", "steps", "launcher_args", "mounts", "options", "shell"):
        report.dropped(f"program.{part}", _NO_PROGRAM)
    table = re.sub(r"[^\w-]+", "-", spec.name or "", flags=re.ASCII).strip("-") or "converted"
    text = tomli_w.dumps({"profiles": {table: values}})
    return Written(text=text, fields=report.rows(spec, program, "A profile has no place for it."))
