"""Judges of manifests that others wrote: the JSON schemas of Kubernetes, and the models of Kubeflow's trainer."""

from __future__ import annotations

import functools
from typing import Any

VERSION = "1.37"


def judge(document: dict[str, Any]) -> None:
    """Refuse a manifest that has a wrong or an unknown field, at any depth, or lacks one."""
    kind = document["kind"]
    if kind in ("JobSet", "TrainJob"):
        model = _model(kind)
        read = model.from_dict(document).to_dict()
        # A field that the model does not know is gone afterwards.
        assert read == document, f"{kind}: {_difference(document, read)}"
    else:
        import kubernetes_validate

        kubernetes_validate.validate(document, VERSION, strict=True)


@functools.cache
def _model(kind: str) -> Any:
    if kind == "JobSet":
        from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

        return JobsetV1alpha2JobSet
    from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

    return TrainerV1alpha1TrainJob


def _difference(one: Any, other: Any, path: str = "") -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{path}.{key}")
    return f"{path}: {one!r} became {other!r}"
