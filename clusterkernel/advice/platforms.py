"""The limits of the clouds and of Kubernetes, and what they have no place for."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from clusterkernel import fields
from clusterkernel.advice.base import Advice, Case, Level, rule
from clusterkernel.errors import ClusterKernelError
from clusterkernel.formats import gpu_names, truss_config
from clusterkernel.formats.kubernetes import extra as kubernetes_extra
from clusterkernel.formats.kubernetes import words
from clusterkernel.formats.limits import Limit, set_field
from clusterkernel.formats.modal import limits as modal_limits
from clusterkernel.formats.model import How, Program, Step, Written
from clusterkernel.spec import JobSpec

_LIMITS: Final[Mapping[str, Callable[[JobSpec], Iterable[Limit]]]] = MappingProxyType(
    {"modal": modal_limits.limits, "baseten": truss_config.limits}
)
_MODAL: Final = tuple(
    f"modal-{name}" for name in "gpu gpu-count cluster time retries backoff disk mount volume".split()
)
_BASETEN: Final = ("baseten-gpu", "baseten-gpu-count", "baseten-array")
_STAND_IN: Final = Program(steps=(Step(name="run", shell="true"),))
_NUMBER: Final = re.compile(r"\d+|TOP")


def _apply(change: Callable[[JobSpec], JobSpec]) -> Callable[[Case], Case]:
    return lambda case: case.with_spec(change)


def _limits(case: Case, backend: str) -> Iterator[Advice]:
    if case.spec.backend != backend:
        return
    for limit in _LIMITS[backend](case.spec):
        yield Advice(
            level=Level.ERROR if limit.fatal or limit.rule == "modal-time" else Level.WARNING,
            rule=limit.rule,
            field=limit.field,
            message=limit.message,
            fix=limit.hint,
            change=_apply(limit.change) if limit.change else None,
        )


@rule("modal-limits", ids=_MODAL)
def modal(case: Case) -> Iterator[Advice]:
    """GPUs, counts, time, retries, disk and clusters that Modal does not take."""
    yield from _limits(case, "modal")


@rule("baseten-limits", ids=_BASETEN)
def baseten(case: Case) -> Iterator[Advice]:
    """GPUs, counts and arrays that Baseten does not take."""
    yield from _limits(case, "baseten")


@rule("kubernetes-gpu-type")
def kubernetes_gpu_type(case: Case) -> Iterator[Advice]:
    """A type of GPU that no common label of nodes names."""
    gpus = case.spec.resources.gpus_per_node
    if case.spec.backend != "kubernetes" or gpus is None or gpus.type is None or gpus.type in gpu_names.KUBERNETES:
        return
    if "=" in (case.spec.schedule.constraint or ""):
        return
    yield Advice(
        level=Level.WARNING,
        rule="kubernetes-gpu-type",
        field="gpus_per_node",
        message=f"No label is known that tells nodes with {gpus.type} from others: the job may get any GPU.",
        fix="Name the label of your cluster: --constraint key=value (kubectl get nodes --show-labels).",
    )


@rule("kubernetes-name")
def kubernetes_name(case: Case) -> Iterator[Advice]:
    """A name that no object of Kubernetes may have."""
    name = case.spec.name
    if case.spec.backend != "kubernetes" or name is None or words.is_dns_label(name, most=52):
        return
    near = words.dns_label(name, most=52)
    yield Advice(
        level=Level.INFO,
        rule="kubernetes-name",
        field="name",
        message=f"--name {name!r} is no name of Kubernetes: lower-case letters, digits and dashes, 52 of them at most.",
        fix=f"Set --name {near}.",
        change=_apply(set_field("name", near)),
    )


@rule("kubernetes-priority")
def kubernetes_priority(case: Case) -> Iterator[Advice]:
    """A priority that is no PriorityClass."""
    priority = case.spec.schedule.priority
    if case.spec.backend != "kubernetes" or priority is None or not _NUMBER.fullmatch(priority):
        return
    yield Advice(
        level=Level.WARNING,
        rule="kubernetes-priority",
        field="priority",
        message=f"--priority {priority} is a number of Slurm's; Kubernetes takes the name of a PriorityClass.",
        fix="Name one of your cluster's: kubectl get priorityclasses.",
        change=_apply(set_field("priority", None)),
    )


@rule("kubernetes-extra")
def kubernetes_extra_options(case: Case) -> Iterator[Advice]:
    """An option for Kubernetes that a manifest has no place for."""
    if case.spec.backend != "kubernetes":
        return
    try:
        kubernetes_extra.parse(case.spec.extra.get("kubernetes", ()))
    except ClusterKernelError as error:
        yield Advice(
            level=Level.ERROR,
            rule="kubernetes-extra",
            field="extra.kubernetes",
            message=error.message,
            fix=error.hint,
        )


@functools.cache
def _writer(backend: str) -> Callable[[JobSpec, Program], Written] | None:
    from clusterkernel.formats.kubernetes import writer as kubernetes
    from clusterkernel.formats.modal import app as modal_app

    return {"kubernetes": kubernetes.write, "modal": modal_app.write, "baseten": truss_config.write}.get(backend)


# What a file for the platform has no place for, and what sends jobs there does itself.
_OURS: Final[Mapping[str, tuple[str, ...]]] = {"modal": ("max_cost", "launcher")}


@rule("field-ignored")
def field_ignored(case: Case) -> Iterator[Advice]:
    """A field that the platform has no place for."""
    write = _writer(case.spec.backend)
    if write is None:
        return
    try:
        written = write(case.spec, case.program if case.program.steps else _STAND_IN)
    except ClusterKernelError:
        return  # another rule says why
    for row in written.fields:
        name = row.field.partition(".")[0]
        if row.how is not How.DROPPED or name not in fields.FIELDS or name in ("setup", "interpreter", "files"):
            continue
        if name in _OURS.get(case.spec.backend, ()):
            continue
        field = fields.FIELDS[name]
        yield Advice(
            level=Level.WARNING,
            rule="field-ignored",
            field=row.field,
            message=f"{field.flag} has no effect on {case.spec.backend}. {row.reason}",
            fix="Leave it out.",
            change=_apply(set_field(name, field.default)) if row.field == name else None,
        )
