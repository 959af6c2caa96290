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

from clusterkernel import units
from clusterkernel.errors import SpecError, nearest
from clusterkernel.spec import JobSpec, Launcher, Volume

__all__ = ["FIELDS", "Field", "build", "diff", "flatten"]


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One leaf of the spec.

    Attributes
    ----------
    name : str
        Profile key and attribute.
    group : str
        Attribute of `JobSpec` that holds it; empty for its own.
    unit : str
        How its text is read: ``text``, ``count``, ``number``, ``memory``,
        ``time``, ``gpus``, ``switch``, ``pairs``, ``names``, ``lines``,
        ``volumes`` or ``choice``.
    """

    name: str
    group: str
    help: str
    example: str
    unit: str
    default: Any
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """The flag of the magic."""
        return "--" + self.name.replace("_", "-")

    @property
    def repeats(self) -> bool:
        """Whether the flag may be given several times."""
        return self.unit in {"pairs", "names", "lines", "volumes"}


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
# Read by `build` beside the fields: the job's total of GPUs, and options that go to sbatch as they are.
PSEUDO: Final = ("gpus", "sbatch")


def parse(field: Field, value: object, label: str) -> Any:
    """`value` as the field holds it.

    Parameters
    ----------
    field : Field
        Where it goes.
    value : object
        Text as people write it, or a value that already is what it should be.
    label : str
        The name that the person used, for errors.

    Raises
    ------
    SpecError
        It cannot be read or is out of range.
    """
    match field.unit:
        case "memory":
            return units.parse_memory(_text(value, label, bare="its unit"), field=label)
        case "time":
            return units.parse_duration(_text(value, label, bare="its unit"), field=label)
        case "gpus":
            if isinstance(value, units.GpuRequest):
                return value
            return units.parse_gpus(str(value) if not isinstance(value, bool) else "?", field=label)
        case "count":
            return _number(field, value, label, int)
        case "number":
            return _number(field, value, label, float)
        case "switch":
            return _switch(value, label)
        case "choice":
            text = value.value if isinstance(value, Launcher) else _text(value, label)
            if text not in field.choices:
                raise SpecError(f"{label} = {text!r} is not known.", field=label, hint=nearest(text, field.choices))
            return Launcher(text)
        case "pairs":
            return _pairs(value, label)
        case "names":
            return tuple(_text(item, label) for item in _items(value, split=","))
        case "lines":
            return tuple(_text(item, label) for item in _items(value))
        case "volumes":
            return tuple(_volume(item, label) for item in _items(value, split=","))
    return _text(value, label)


def _text(value: object, label: str, *, bare: str = "") -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and bare:
        return str(value)  # the unit's parser refuses it with the mend
    if not isinstance(value, str):
        raise SpecError(f"{label} = {value!r} is not text.", field=label, hint="Write it in quotes.")
    if not value.strip():
        raise SpecError(f"{label} is empty.", field=label, hint="Leave it out, or give it a value.")
    if "\0" in value or "\n" in value or "\r" in value:
        raise SpecError(f"{label} = {value!r} holds a line break or a NUL.", field=label, hint="Write it on one line.")
    return value


def _number(field: Field, value: object, label: str, kind: type) -> Any:
    try:
        if isinstance(value, bool) or (kind is int and isinstance(value, float) and not value.is_integer()):
            raise ValueError
        number = kind(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        wanted = "a whole number" if kind is int else "a number"
        raise SpecError(
            f"{label} = {value!r} is not {wanted}.", field=label, hint=f"Write it as {field.example}."
        ) from None
    low, high = field.low, field.high
    if (low is not None and (number < low or (kind is float and number <= low))) or (high is not None and number > high):
        span = f"above {low:g}" if kind is float else f"at least {low:g}" + (f", at most {high:g}" if high else "")
        raise SpecError(f"{label} = {value!r} is out of range.", field=label, hint=f"Write a number {span}.")
    return number


def _switch(value: object, label: str) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if str(value).lower() in words:
        return words[str(value).lower()]
    raise SpecError(f"{label} = {value!r} is neither yes nor no.", field=label, hint="Write true or false.")


def _items(value: object, *, split: str | None = None) -> list[object]:
    items = [value] if isinstance(value, str | Volume) else list(value)  # type: ignore[call-overload]
    if split is None:
        return items
    parts: list[object] = []
    for item in items:
        parts += [part.strip() for part in item.split(split) if part.strip()] if isinstance(item, str) else [item]
    return parts


def _pairs(value: object, label: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    items = value.items() if isinstance(value, Mapping) else [_pair(item, label) for item in _items(value)]
    for name, text in items:
        if not str(name).replace("_", "a").isalnum() or str(name)[0].isdigit() or not str(name).isascii():
            raise SpecError(f"{label}: {name!r} is not a variable's name.", field=label, hint="Write NAME=VALUE.")
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise SpecError(f"{label}: {name} = {text!r} is not text.", field=label, hint="Write it in quotes.")
        if "\0" in str(text):
            raise SpecError(f"{label}: {name} holds a NUL.", field=label, hint="Take it out.")
        pairs[str(name)] = str(text)
    return pairs


def _pair(item: object, label: str) -> tuple[str, str]:
    name, equals, text = str(item).partition("=")
    if not equals:
        raise SpecError(f"{label} = {item!r} has no value.", field=label, hint="Write NAME=VALUE.")
    return name, text


def _volume(item: object, label: str) -> Volume:
    if isinstance(item, Volume):
        return item
    if isinstance(item, Mapping) and set(item) == {"name", "mount"}:
        name, mount = str(item["name"]), str(item["mount"])
    else:
        name, _, mount = str(item).partition(":")
    if not name or not mount.startswith("/"):
        raise SpecError(f"{label} = {item!r} is not a volume.", field=label, hint="Write NAME:/MOUNT/POINT.")
    return Volume(name=name, mount=mount)


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
        fields: ``gpus`` (the job's total, as in Slurm) and ``sbatch`` (options
        that go to sbatch as they are, one string or several).
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
        if value is None or name in PSEUDO:
            continue
        field = FIELDS.get(name)
        label = origins.get(name) or "--" + name.replace("_", "-")
        if field is None:
            known = nearest(name, [*FIELDS, *PSEUDO])
            raise SpecError(f"{label} is not a field of a job.", field=label, hint=known)
        parsed = parse(field, value, label)
        if field.unit == "pairs":
            parsed = {**getattr(getattr(spec, field.group), name), **parsed}
        groups.setdefault(field.group, {})[name] = parsed
    changes = {**groups.pop("", {})}
    for group, inner in groups.items():
        changes[group] = msgspec.structs.replace(getattr(spec, group), **inner)
    spec = msgspec.structs.replace(spec, **changes)
    if values.get("gpus") is not None:
        spec = _total_gpus(spec, values, origins)
    if values.get("sbatch"):
        given = [text for item in _items(values["sbatch"]) for text in _options(item, origins.get("sbatch", "--sbatch"))]
        kept = spec.extra.get("slurm", ())
        spec = msgspec.structs.replace(spec, extra={**spec.extra, "slurm": (*kept, *given)})
    return _consistent(spec, origins)


def _options(item: object, label: str) -> list[str]:
    try:
        options = shlex.split(_text(item, label))
    except ValueError as error:
        raise SpecError(f"{label} = {item!r} cannot be split: {error}.", field=label, hint="Close the quote.") from None
    joined: list[str] = []
    for option in options:
        if option.startswith("-"):
            joined.append(option)
        elif joined and "=" not in joined[-1]:
            joined[-1] += f"={option}" if joined[-1].startswith("--") else option
        else:
            raise SpecError(f"{label}: {option!r} is not an option.", field=label, hint='Write "--option=value".')
    return joined


def _total_gpus(spec: JobSpec, values: Mapping[str, object], origins: Mapping[str, str]) -> JobSpec:
    label = origins.get("gpus", "--gpus")
    if values.get("gpus_per_node") is not None:
        raise SpecError(
            f"{label} and --gpus-per-node are both given.",
            field=label,
            hint="Keep one: --gpus is the job's total, --gpus-per-node that of each node.",
        )
    total, nodes = units.parse_gpus(str(values["gpus"]), field=label), spec.resources.nodes
    if total is None:
        each = None
    elif total.count % nodes:
        raise SpecError(
            f"{label} = {values['gpus']} does not divide by {nodes} nodes.",
            field=label,
            hint=f"Write {total.count // nodes * nodes or nodes} or {-(-total.count // nodes) * nodes}.",
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
    repeated = [name for name in set(spec.environment.secrets) if name in spec.environment.env]
    if repeated:
        raise SpecError(
            f"{repeated[0]} is given both as a secret and as a variable.", field="--secrets", hint="Keep the secret."
        )
    return spec


def write(field: Field, value: Any) -> str:
    """A field's value as a person writes it."""
    match field.unit:
        case "memory":
            return units.format_memory(value)
        case "time":
            return units.format_duration(value).replace(" ", "")
        case "switch":
            return "true" if value else "false"
        case "choice":
            return str(value.value)
        case "pairs":
            return " ".join(f"{name}={shlex.quote(text)}" for name, text in sorted(value.items()))
        case "names":
            return ",".join(value)
        case "lines":
            return "; ".join(value)
        case "volumes":
            return ",".join(f"{volume.name}:{volume.mount}" for volume in value)
    return str(value)


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
            flat[name] = write(field, value) if value is not None else ""
    if options := spec.extra.get("slurm"):
        flat["sbatch"] = " ".join(options)
    return flat


def diff(one: JobSpec, other: JobSpec) -> list[tuple[str, str, str]]:
    """The fields in which two specs differ: name, value in `one`, value in `other`; empty for the default."""
    left, right = flatten(one), flatten(other)
    return [
        (name, left.get(name, ""), right.get(name, ""))
        for name in [*FIELDS, "sbatch"]
        if left.get(name) != right.get(name)
    ]
