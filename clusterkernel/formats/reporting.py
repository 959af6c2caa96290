"""Collects how a writer's fields fared, and names all that a spec and a program say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from clusterkernel import fields, fieldtext
from clusterkernel.formats import secrets
from clusterkernel.formats.model import How, Program, TargetField
from clusterkernel.spec import JobSpec

__all__ = ["Report", "by_name", "said"]

# Fields that hold several values, and the unit of one of them.
_SEVERAL: Final = frozenset({"pairs", "names", "lines", "volumes"})


_DEVICES: Final = frozenset("NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME NCCL_IB_HCA UCX_NET_DEVICES".split())
# Where Slurm writes what a job prints.
_LOG: Final = frozenset(f"program.options.slurm.{name}" for name in ("output", "error", "open-mode"))


class Report:
    """The rows of one writer, in the order in which they were told."""

    def __init__(self) -> None:
        self._rows: dict[str, TargetField] = {}

    def exact(self, field: str, key: str, value: object = "") -> None:
        """It means the same there."""
        self._add(TargetField(field, key, str(value)))

    def variable(self, name: str, key: str, value: str) -> None:
        """A variable of the environment, for a platform of other nodes."""
        if name in _DEVICES:
            self.changed(f"env.{name}", key, value, "It names a device of the cluster's nodes: leave it out elsewhere.")
        else:
            self.exact(f"env.{name}", key, value)

    def changed(self, field: str, key: str, value: object, reason: str) -> None:
        """It is there, but not the same."""
        self._add(TargetField(field, key, str(value), How.CHANGED, reason))

    def assumed(self, field: str, key: str, value: object, reason: str) -> None:
        """The target needs it, and nobody said it."""
        self._add(TargetField(field, key, str(value), How.ASSUMED, reason))

    def dropped(self, field: str, reason: str) -> None:
        """The target has no place for it."""
        self._add(TargetField(field, how=How.DROPPED, reason=reason))

    def _add(self, row: TargetField) -> None:
        self._rows[row.field] = row  # what is told later about the same thing counts

    def __contains__(self, field: str) -> bool:
        return field in self._rows

    def answers(self, field: str) -> bool:
        """Whether something was told of this field, or of all items of it."""
        while field and field not in self._rows:
            field = field.rpartition(".")[0]
        return bool(field)

    def rows(self, spec: JobSpec, program: Program, rest: str) -> tuple[TargetField, ...]:
        """All rows; what nobody told anything of is dropped, for the reason `rest`."""
        for field, _ in said(spec, program):
            if field in _LOG and not self.answers(field):
                self.changed(field, "", "", "The platform keeps what the job prints.")
            elif not self.answers(field):
                self.dropped(field, rest)
        return tuple(self._rows.values())


def by_name(spec: JobSpec, report: Report) -> JobSpec:
    """The spec with its secrets by their names, where it has some in the clear among its variables."""
    env = spec.environment.env
    hidden = [name for name, value in env.items() if value and (secrets.is_name(name) or secrets.is_value(value))]
    if not hidden:
        return spec
    for name in hidden:
        report.changed(f"env.{name}", name, secrets.HIDDEN, "It is a secret: the job takes it by its name.")
    environment = msgspec.structs.replace(
        spec.environment,
        env={name: value for name, value in env.items() if name not in hidden},
        secrets=tuple(dict.fromkeys([*spec.environment.secrets, *hidden])),
    )
    return msgspec.structs.replace(spec, environment=environment)


def said(spec: JobSpec, program: Program) -> Iterator[tuple[str, str]]:
    """All that a spec and a program say beside the defaults: the name of each field or item, and its value."""
    for name, field in fields.FIELDS.items():
        value = fields.get(spec, name)
        if name == "backend" or value == field.default or value is None:
            continue
        if field.unit == "pairs":
            yield from ((f"{name}.{item}", text) for item, text in value.items())
        elif field.unit == "lines":
            yield from ((f"{name}.{number}", line) for number, line in enumerate(value))
        elif field.unit == "volumes":
            yield from ((f"{name}.{item.name}", item.mount) for item in value)
        elif field.unit in _SEVERAL:
            yield from ((f"{name}.{item}", item) for item in value)
        else:
            yield name, fieldtext.write(field, value)
    if spec.array is not None:
        yield "array", str(spec.array.size)
    for stage in spec.stages:
        for part in ("cpus_per_task", "memory", "time"):
            if (value := getattr(stage, part)) is not None:
                yield f"stages.{stage.name}.{part}", str(value)
    for platform, options in spec.extra.items():
        yield from ((f"extra.{platform}.{option_name(option)}", option) for option in options)
    yield from _of_program(program)


def option_name(option: str) -> str:
    """The name of an option that goes to one platform as it is: ``mail-type`` of ``--mail-type=END``."""
    return option.partition("=")[0].strip().lstrip("-")


def _of_program(program: Program) -> Iterator[tuple[str, str]]:
    if program.config:
        yield "program.config", program.config
    for number, step in enumerate(program.steps):
        yield f"program.steps.{number}", step.shell
    words = [word for step in program.steps for word in step.launcher_args]
    yield from ((f"program.launcher_args.{number}", word) for number, word in enumerate(words))
    yield from ((f"program.mounts.{number}", mount.text) for number, mount in enumerate(program.mounts))
    for platform, options in program.options.items():
        yield from ((f"program.options.{platform}.{option_name(option)}", option) for option in options)
