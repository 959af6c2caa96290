"""Reads a manifest: Job, JobSet, PyTorchJob and TrainJob.

Each leaf of the manifest has its row: what it became, or why it was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from clusterkernel import fields
from clusterkernel.errors import FormatError, SpecError, nearest
from clusterkernel.formats import secrets
from clusterkernel.formats.kubernetes import yaml as kubernetes_yaml
from clusterkernel.formats.kubernetes.found import Found, hidden_values
from clusterkernel.formats.kubernetes.objects import QUEUE, TAG
from clusterkernel.formats.kubernetes.read_job import MEETS, job
from clusterkernel.formats.kubernetes.read_kubeflow import pytorch_job, train_job
from clusterkernel.formats.kubernetes.read_needs import finish_cpus
from clusterkernel.formats.kubernetes.read_sets import job_set
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.model import Format, How, Parsed, Program, SourceField
from clusterkernel.spec import Array, Stage

__all__ = ["read"]

_BESIDE: Final = {
    "Service": MEETS,
    "ConfigMap": "An object of the cluster: its files are not known elsewhere.",
    "Secret": "Secrets are named and never passed on.",
    "PersistentVolumeClaim": "A volume is named here; it is made where it is.",
    "Namespace": "Only Kubernetes has it.",
    "ServiceAccount": "Only Kubernetes has it.",
    "LocalQueue": "A queue is named here; it is made where it is.",
}
_REST: Final = "No other platform has its like."


def read(text: str, *, name: str, values: Mapping[str, str] | None = None) -> Parsed:
    """Read a manifest.

    Parameters
    ----------
    text : str
        YAML, of one or several documents.
    name : str
        What errors call it.
    values : mapping, optional
        Values for ``${NAME}``, as envsubst puts them in before a manifest is sent.

    Raises
    ------
    FormatError
        It is no manifest, has no job or several, or runs what cannot be told.
    """
    try:
        documents = kubernetes_yaml.load(_substituted(text, values or {}), name)
        return _read(documents, name)
    except SpecError as error:
        raise FormatError(error.message, hint=error.hint) from None


def _substituted(text: str, values: Mapping[str, str]) -> str:
    for variable, value in values.items():
        text = text.replace(f"${{{variable}}}", value)
    return text


def _read(documents: list[Tree], name: str) -> Parsed:
    for document in documents:
        if not isinstance(document.value, dict) or not isinstance(document.value.get("kind"), str):
            where = f"{name}, line {document.line or 1}"
            raise FormatError(f"{where}: it is no manifest, for it has no kind.", hint="Is it the right file?")
    jobs = [document for document in documents if document.value["kind"] in _KINDS]
    if len(jobs) != 1:
        kinds = ", ".join(str(document.value["kind"]) for document in (jobs or documents)) or "nothing"
        found_what = f"{len(jobs)} jobs ({kinds})" if jobs else f"no job, but {kinds}"
        known = [str(document.value["kind"]) for document in documents]
        hint = "Read one job at a time." if jobs else nearest(known[0], _KINDS) if known else "Is it the right file?"
        raise FormatError(f"{name} holds {found_what}.", hint=hint)
    found = Found(name, hidden=hidden_values(documents))
    main = jobs[0]
    _head(found, main)
    service = any(document.value["kind"] == "Service" for document in documents)
    nodes, array = _KINDS[main.value["kind"]](found, main, service)
    found.dropped(main, _REST)
    for document in documents:
        if document is not main:
            _beside(found, document)
    return _parsed(found, nodes, array)


def _beside(found: Found, document: Tree) -> None:
    kind = str(document.value["kind"])
    why = _BESIDE.get(kind, "An object beside the job.")
    told = ("apiVersion", "kind", "type", "metadata.name", "metadata.namespace")
    how = How.CHANGED if kind in ("Service", "PersistentVolumeClaim", "LocalQueue") else How.DROPPED
    for leaf in list(document.left()):
        value = found.shown(leaf.take()) if kind != "Secret" or leaf.path in told else secrets.HIDDEN
        found.rows.append(SourceField(f"{kind} {leaf.path}", value, leaf.line, None, how, why))


def _parsed(found: Found, nodes: int, array: int | None) -> Parsed:
    finish_cpus(found)
    values: dict[str, Any] = {**found.values, "backend": "kubernetes", "nodes": nodes}
    for field, several in (
        ("env", found.env),
        ("secrets", list(dict.fromkeys(found.secrets))),
        ("setup", found.setup),
        ("volumes", [f"{name}:{place}" for name, place in found.volumes]),
        ("tags", found.tags),
    ):
        if several:
            values[field] = several
    for field, unit in (("time", "s"), ("memory", "M"), ("memory_limit", "M"), ("ephemeral_disk", "M"), ("shm", "M")):
        if isinstance(values.get(field), int):
            values[field] = f"{values[field]}{unit}"
    spec = fields.build(values, origins={field: f"{found.name}: {field}" for field in values})
    spec = msgspec.structs.replace(
        spec,
        array=Array(size=array) if array is not None else None,
        extra={"kubernetes": tuple(found.extra)} if found.extra else {},
        stages=tuple(
            Stage(name=name, cpus_per_task=cpus, memory=memory, time=time) for name, cpus, memory, time in found.stages
        ),
    )
    program = Program(steps=tuple(found.steps), config=found.config, mounts=tuple(found.mounts))
    rows = sorted(found.rows, key=lambda row: row.line or 0)
    return Parsed(format=Format.KUBERNETES, spec=spec, program=program, fields=tuple(rows))


def _head(found: Found, job: Tree) -> None:
    """The object's own name and labels."""
    found.row(job.at("apiVersion"), None, reason="It belongs to the kind.")
    metadata = job.at("metadata")
    if (name := found.text(metadata.at("name"))) is not None:
        found.exact(metadata.at("name"), "name", name)
    elif (name := found.text(metadata.at("generateName"))) is not None:
        found.changed(metadata.at("generateName"), "name", "Each job has its own number anyway.", name.rstrip("-"))
    if (namespace := found.text(metadata.at("namespace"))) is not None:
        found.option(metadata.at("namespace"), f"namespace={namespace}")
    for key, tree in metadata.at("labels").pairs():
        if key == QUEUE:
            found.changed(
                tree, "partition", "A queue of Kueue stands for a partition: their names differ.", str(tree.value)
            )
        elif key == "kueue.x-k8s.io/priority-class":
            found.changed(tree, "priority", "Kueue's class, as a priority.", str(tree.value))
        elif key.startswith(TAG):
            found.tags.append(key.removeprefix(TAG))
            found.row(tree, f"tags.{key.removeprefix(TAG)}")


_KINDS: Final[Mapping[str, Callable[[Found, Tree, bool], tuple[int, int | None]]]] = MappingProxyType(
    {"Job": job, "JobSet": job_set, "PyTorchJob": pytorch_job, "TrainJob": train_job}
)
