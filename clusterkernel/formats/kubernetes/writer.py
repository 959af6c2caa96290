"""Kubernetes manifests: written as Job, Job with a Service, JobSet or TrainJob; read as these and PyTorchJob."""

from __future__ import annotations

from typing import Any, Final

from clusterkernel import fields
from clusterkernel.errors import SpecError
from clusterkernel.formats.kubernetes import extra as kubernetes_extra
from clusterkernel.formats.kubernetes import yaml as kubernetes_yaml
from clusterkernel.formats.kubernetes.objects import Builder, Command
from clusterkernel.formats.kubernetes.reader import read
from clusterkernel.formats.kubernetes.train_job import TrainJobBuilder
from clusterkernel.formats.model import Program, Written
from clusterkernel.formats.reporting import Report, by_name
from clusterkernel.spec import JobSpec

__all__ = ["Command", "manifest", "read", "write"]

_NO_PLACE: Final = {
    "account": "Kubernetes charges by namespace.",
    "qos": "Kubernetes makes the quality of service of requests and limits.",
    "exclusive": "Kubernetes shares nodes; who asks for all GPUs of a node has it for himself.",
    "network": "Kubernetes offers a fabric as a device: extra.kubernetes resource.rdma/ib=1, or as its site names it.",
    "reservation": "Kubernetes has no reservations.",
    "dependency": "Kubernetes starts a job without regard to others.",
    "backoff": "Kubernetes has pauses of its own: 10 s, doubled each time, at most 6 minutes.",
    "interpreter": "The image brings its own Python.",
    "files": "No file travels with a manifest: put it into the image or onto a volume.",
    "max_cost": "Kubernetes knows no prices.",
    "parallelism": "It says how many tasks of an array run at once, and there is no array.",
}
_REST: Final = "Kubernetes has no place for it."


def write(spec: JobSpec, program: Program) -> Written:
    """A manifest, and how each field fared.

    Raises
    ------
    SpecError
        Kubernetes cannot run it.
    """
    report = Report()
    documents = manifest(spec, program, report)
    return Written(text=kubernetes_yaml.dump(documents), fields=report.rows(spec, program, _REST))


def manifest(
    spec: JobSpec, program: Program, report: Report | None = None, *, command: Command | None = None
) -> list[dict[str, Any]]:
    """The objects of a job.

    Parameters
    ----------
    spec, program : JobSpec, Program
        What to run.
    report : Report, optional
        Told how each field fares.
    command : Command, optional
        Runs on each node instead of the program's steps.

    Raises
    ------
    SpecError
        Kubernetes cannot run it.
    """
    report = report or Report()
    spec = by_name(spec, report)
    extra = kubernetes_extra.parse(spec.extra.get("kubernetes", ()))
    if spec.array is not None and spec.resources.nodes > 1:
        raise SpecError(
            "An array of jobs of several nodes has no place in one manifest.",
            field="--nodes",
            hint="Write one manifest for each task.",
        )
    for field, why in _NO_PLACE.items():
        if _asked(spec, field):
            report.dropped(field, why)
    for key in (*extra.single, *(key for key in extra.several)):
        report.exact(f"extra.kubernetes.{key}", key, extra.get(key) or ",".join(extra.several.get(key, ())))
    if extra.get("kind") == "TrainJob":
        return TrainJobBuilder(spec, program, extra, report, command).objects()
    for key in ("runtime", "runtime-kind"):
        if extra.get(key):
            report.dropped(f"extra.kubernetes.{key}", "Only a TrainJob has a runtime.")
    return Builder(spec, program, extra, report, command).objects()


def _asked(spec: JobSpec, field: str) -> bool:
    if field == "parallelism":
        return spec.parallelism is not None and spec.array is None
    return bool(fields.get(spec, field) != fields.FIELDS[field].default)
