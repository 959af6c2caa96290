"""Reads where and when a pod may run: labels of nodes, tolerations, classes."""

from __future__ import annotations

from typing import Final

from clusterkernel.formats import gpu_names
from clusterkernel.formats.kubernetes.found import Found
from clusterkernel.formats.kubernetes.pod import PRODUCT, REGION, ZONE
from clusterkernel.formats.kubernetes.yaml import Tree
from clusterkernel.formats.model import How

__all__ = ["placement", "scheduling"]

_GPU_LABELS: Final = (
    PRODUCT,
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "gpu.nvidia.com/model",
    "gpu.nvidia.com/class",
)
# Names that clusters give their own labels of it.
_GPU_NAMES: Final = frozenset("gpu gpu-type gpu-model gpu-product gpu.product accelerator accelerator-type".split())
_NO_TYPE: Final = "It names no type of GPU that is known here: write the type to the count of the GPUs, as h100:8."
_KEPT: Final = {  # of the pod -> an option of ours
    "serviceAccountName": "service-account",
    "runtimeClassName": "runtime-class",
    "schedulerName": "scheduler",
}
_ONLY: Final = "Only Kubernetes has it."


def scheduling(found: Found, spec: Tree) -> None:
    """Classes, accounts, tolerations and limits of the pod."""
    for key, option in _KEPT.items():
        if (value := found.text(spec.at(key))) is not None:
            found.option(spec.at(key), f"{option}={value}")
    if (value := found.text(spec.at("priorityClassName"))) is not None:
        found.exact(spec.at("priorityClassName"), "priority", value)
    if spec.at("hostNetwork").value is True:
        found.option(spec.at("hostNetwork"), "host-network=true")
        if spec.at("dnsPolicy").value == "ClusterFirstWithHostNet":
            found.row(spec.at("dnsPolicy"), "extra.kubernetes.host-network")
    for item in spec.at("imagePullSecrets").items():
        if (value := found.text(item.at("name"))) is not None:
            found.option(item, f"pull-secret={value}")
    for item in spec.at("tolerations").items():
        _toleration(found, item)
    grace = spec.at("terminationGracePeriodSeconds")
    if (lead := found.count(grace)) is not None:
        if lead == 30:
            found.row(grace, None, reason="It is what Kubernetes waits anyway.")
        else:
            why = "Kubernetes sends SIGTERM at the limit and waits so long; here the signal comes so long before it."
            found.changed(grace, "checkpoint_signal", why, f"TERM@{max(1, min(lead, 65535))}")
    limit = spec.at("activeDeadlineSeconds")
    if (seconds := found.count(limit, least=1)) is not None:
        found.exact(limit, "time", seconds)


def _toleration(found: Found, item: Tree) -> None:
    key = item.at("key").value
    if key is None or item.at("tolerationSeconds").value is not None:
        found.dropped(item, _ONLY)
        return
    value, effect = item.at("value").value, item.at("effect").value
    text = f"{key}={value}" if item.at("operator").value != "Exists" and value is not None else str(key)
    found.option(item, f"toleration={text}" + (f":{effect}" if effect else ""))


def placement(found: Found, spec: Tree) -> None:
    """The nodes that it may run on."""
    constraint: list[str] = []
    for key, tree in spec.at("nodeSelector").pairs():
        value = str(tree.value)
        if key in (ZONE, REGION):
            found.exact(tree, "zone" if key == ZONE else "region", value)
        elif key in _GPU_LABELS or _is_gpu_name(key):
            _gpu_type(found, tree, key, [value])
        else:
            constraint.append(f"{key}={value}")
            found.row(tree, "constraint")
    required = spec.at("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = required.at("nodeSelectorTerms").items()
    if len(terms) == 1:
        for item in terms[0].at("matchExpressions").items():
            _expression(found, item, constraint)
    if constraint:
        found.values["constraint"] = "&".join(constraint)


def _expression(found: Found, item: Tree, constraint: list[str]) -> None:
    key, operator, values = (item.at(name).value for name in ("key", "operator", "values"))
    values = [str(value) for value in values or []]
    if (key in _GPU_LABELS or _is_gpu_name(str(key))) and operator == "In" and values:
        _gpu_type(found, item, str(key), values)
    elif key in (ZONE, REGION) and operator == "In" and len(values) == 1:
        found.exact(item, "zone" if key == ZONE else "region", values[0])
    elif operator == "Exists":
        constraint.append(str(key))
        found.row(item, "constraint")
    elif operator == "In" and len(values) == 1:
        constraint.append(f"{key}={values[0]}")
        found.row(item, "constraint")
    else:
        found.row(item, None, How.DROPPED, "No other platform chooses nodes so.")


def _is_gpu_name(key: str) -> bool:
    return key.rpartition("/")[2].lower().replace("_", "-") in _GPU_NAMES


def _gpu_type(found: Found, tree: Tree, key: str, values: list[str]) -> None:
    """What a label says of the GPUs' type; the values of a cluster's own labels may be anything."""
    kinds = {gpu_names.plain(value) for value in values}
    known = next((ours for ours, all_ in gpu_names.KUBERNETES.items() if set(all_) == set(values)), None)
    kind = known or (kinds.pop() if len(kinds) == 1 else None)
    if kind is None:
        found.row(tree, None, How.DROPPED, "Several types of GPU would do; a job here names one, or none.")
    elif key not in _GPU_LABELS and not gpu_names.is_known(kind):
        found.row(tree, None, How.DROPPED, _NO_TYPE)
    else:
        found.values["gpu type"] = kind
        found.row(tree, "gpus_per_node")
