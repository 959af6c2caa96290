"""The spec's fields as one flat table: from text to `JobSpec` and back.

What people write (flags, form values, profile keys) comes in here and is
checked field by field, with the name they used in each error.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
import msgspec.inspect

from clusterkernel import fieldtext, units
from clusterkernel.errors import SpecError, nearest
from clusterkernel.fieldtext import Field
from clusterkernel.spec import JobSpec, Launcher

__all__ = ["FIELDS", "Field", "build", "diff", "flatten", "get", "merge", "values"]


def _limits(kind: Any) -> tuple[float | None, float | None]:
    while isinstance(kind, msgspec.inspect.Metadata):
        kind = kind.type
    if isinstance(kind, msgspec.inspect.UnionType):
        kind = kind.types[0]
    if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
        return (kind.ge if kind.ge is not None else kind.gt), kind.le
    return None, None


def _table(cls: type[msgspec.Struct], group: str = "") -> Iterable[Field]:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        if isinstance(field.type, msgspec.inspect.Metadata):
            schema, extra = field.type.extra_json_schema or {}, field.type.extra or {}
            low, high = _limits(field.type)
            default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
            yield Field(
                name=field.name,
                group=group,
                help=schema["description"],
                example=(schema.get("examples") or [""])[0],
                unit=extra["unit"],
                default=default,
                low=low,
                high=high,
                choices=tuple(item.value for item in Launcher) if extra["unit"] == "choice" else (),
            )
        elif isinstance(field.type, msgspec.inspect.StructType):
            yield from _table(field.type.cls, field.name)


FIELDS: Final[Mapping[str, Field]] = MappingProxyType({field.name: field for field in _table(JobSpec)})
# Options that go to a platform as they are: the flag's name -> the key of `JobSpec.extra`.
OPTIONS: Final[Mapping[str, str]] = MappingProxyType({"sbatch": "slurm", "modal": "modal"})
# Read by `build` beside the fields: the job's total of GPUs, and those options.
PSEUDO: Final = ("gpus", *OPTIONS)


def build(
    values: Mapping[str, object],
    base: JobSpec | None = None,
    *,
    origins: Mapping[str, str] | None = None,
) -> JobSpec:
    """A spec from flat values.

    Parameters
    ----------
    values : mapping
        Field name -> text or value; ``None`` leaves the base's. Beside the
        fields: ``gpus`` (the job's total, as in Slurm), ``sbatch`` and ``modal``
        (options that go to the platform as they are, one string or several).
    base : JobSpec, optional
        What is kept where `values` says nothing. ``env`` is merged into it.
    origins : mapping, optional
        Field name -> how the person named it; default: the flag.

    Raises
    ------
    SpecError
        An unknown field, a bad value, or two that exclude each other.
    """
    spec = base or JobSpec()
    origins = origins or {}
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        field = FIELDS.get(name)
        if name in PSEUDO or (value is None and field is not None):
            continue
        label = origins.get(name) or "--" + name.replace("_", "-")
        if field is None:
            known = nearest(name, [*FIELDS, *PSEUDO])
            raise SpecError(f"{label} is not a field of a job.", field=label, hint=known)
        parsed = fieldtext.parse(field, value, label)
        if field.unit == "pairs":
            parsed = {**getattr(getattr(spec, field.group), name), **parsed}
        groups.setdefault(field.group, {})[name] = parsed
    changes = {**groups.pop("", {})}
    for group, inner in groups.items():
        changes[group] = msgspec.structs.replace(getattr(spec, group), **inner)
    spec = msgspec.structs.replace(spec, **changes)
    if values.get("gpus") is not None:
        spec = _total_gpus(spec, values, origins)
    for name, key in OPTIONS.items():
        if values.get(name):
            label = origins.get(name, f"--{name}")
            items = fieldtext.items(values[name], label)
            given = [text for item in items for text in fieldtext.options(item, label)]
            spec = msgspec.structs.replace(spec, extra={**spec.extra, key: (*spec.extra.get(key, ()), *given)})
    return _consistent(spec, origins)


def _total_gpus(spec: JobSpec, values: Mapping[str, object], origins: Mapping[str, str]) -> JobSpec:
    label = origins.get("gpus", "--gpus")
    if values.get("gpus_per_node") is not None:
        raise SpecError(
            f"{label} and --gpus-per-node are both given.",
            field=label,
            hint="Keep one: --gpus is the job's total, --gpus-per-node that of each node.",
        )
    nodes = spec.resources.nodes
    total = units.parse_gpus(fieldtext.as_text(values["gpus"]), field=label, most=1024 * nodes)
    if total is None:
        each = None
    elif total.count % nodes:
        near = sorted({total.count // nodes * nodes or nodes, -(-total.count // nodes) * nodes})
        raise SpecError(
            f"{label} = {total} does not divide by {nodes} nodes.",
            field=label,
            hint=f"Write {' or '.join(map(str, near))}, or another number of nodes.",
        )
    else:
        each = units.GpuRequest(total.count // nodes, total.type)
    return msgspec.structs.replace(spec, resources=msgspec.structs.replace(spec.resources, gpus_per_node=each))


def _consistent(spec: JobSpec, origins: Mapping[str, str]) -> JobSpec:
    memory, limit = spec.resources.memory, spec.resources.memory_limit
    if memory and limit and limit < memory:
        label = origins.get("memory_limit", "--memory-limit")
        raise SpecError(
            f"{label} = {units.format_memory(limit)} is below the memory asked for, {units.format_memory(memory)}.",
            field=label,
            hint="Raise the limit or lower the request.",
        )
    repeated = [name for name in spec.environment.secrets if name in spec.environment.env]
    if repeated:
        raise SpecError(
            f"{repeated[0]} is given both as a secret and as a variable.",
            field=origins.get("secrets", "--secrets"),
            hint="Keep the secret.",
        )
    places: dict[str, str] = {}
    for volume in spec.storage.volumes:
        if (other := places.get(volume.place)) is not None:
            both = f"{other} and {volume.name} are both" if other != volume.name else f"{other} is twice"
            label = origins.get("volumes", "--volumes")
            hint = "Give each a mount point of its own." if other != volume.name else "Name it once."
            raise SpecError(f"{label}: {both} mounted at {volume.place}.", field=label, hint=hint)
        places[volume.place] = volume.name
    return spec


def get(spec: JobSpec, name: str) -> Any:
    """The field's value in `spec`."""
    group = FIELDS[name].group
    return getattr(getattr(spec, group) if group else spec, name)


def flatten(spec: JobSpec) -> dict[str, str]:
    """What differs from the defaults, by field name, as a person writes it."""
    flat = {}
    for name, field in FIELDS.items():
        value = get(spec, name)
        if value != field.default:
            flat[name] = fieldtext.write(field, value) if value is not None else ""
    for name, key in OPTIONS.items():
        if options := spec.extra.get(key):
            flat[name] = shlex.join(options)
    return flat


def values(spec: JobSpec) -> dict[str, object]:
    """What differs from the defaults, as a profile's file holds it: `build` makes the same spec of it."""
    found = {
        name: fieldtext.plain(field, value)
        for name, field in FIELDS.items()
        if (value := get(spec, name)) != field.default
    }
    for name, key in OPTIONS.items():
        if options := spec.extra.get(key):
            found[name] = [shlex.quote(option) for option in options]
    return found


def merge(under: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Flat values in two layers: the upper wins, field by field.

    ``gpus`` and ``gpus_per_node`` say the same thing in two ways, so that one
    of them replaces the other; the variables of ``env`` are put together.

    Raises
    ------
    SpecError
        One of the two ``env`` cannot be read.
    """
    upper = {name: value for name, value in over.items() if value is not None}
    lower = dict(under)
    if upper.keys() & {"gpus", "gpus_per_node"}:
        lower.pop("gpus", None)
        lower.pop("gpus_per_node", None)
    if upper.get("env") is not None and lower.get("env") is not None:
        env = FIELDS["env"]
        upper["env"] = {**fieldtext.parse(env, lower["env"], env.flag), **fieldtext.parse(env, upper["env"], env.flag)}
    return {**lower, **upper}


def diff(one: JobSpec, other: JobSpec) -> list[tuple[str, str, str]]:
    """The fields in which two specs differ: name, value in `one`, value in `other`; empty for the default."""
    left, right = flatten(one), flatten(other)
    return [
        (name, left.get(name, ""), right.get(name, ""))
        for name in [*FIELDS, *OPTIONS]
        if left.get(name) != right.get(name)
    ]
