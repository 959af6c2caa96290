"""What a spec has no field for and Kubernetes needs: ``extra["kubernetes"]``, one ``key=value`` in each string.

::

    kind=JobSet                      JobSet or Job, for several nodes; TrainJob, for Kubeflow's trainer
    runtime=torch-distributed        of a TrainJob, runtime-kind=
    namespace=ml                     service-account=, runtime-class=, scheduler=, pull-secret=, pull-policy=
    resource.rdma/ib=1               a further resource of each node
    label.team=nlp                   a label of the pods, annotation.KEY=VALUE
    toleration=nvidia.com/gpu:NoSchedule
    secret.HF_TOKEN=hugging-face/token     the Secret and its key behind a secret's name
    ttl=3600                         seconds after which a finished job is taken away
    host-network=true
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from clusterkernel.errors import SpecError, nearest
from clusterkernel.formats.kubernetes import words

__all__ = ["Extra", "parse", "tolerations"]

#: Keys with one value -> what it must be.
SINGLE: Final[Mapping[str, tuple[str, ...] | Callable[[str], bool]]] = {
    "kind": ("Job", "JobSet", "TrainJob"),
    "runtime": words.is_subdomain,
    "runtime-kind": ("ClusterTrainingRuntime", "TrainingRuntime"),
    "namespace": words.is_dns_label,
    "service-account": words.is_subdomain,
    "runtime-class": words.is_subdomain,
    "scheduler": words.is_subdomain,
    "pull-policy": ("Always", "IfNotPresent", "Never"),
    "ttl": str.isdigit,
    "host-network": ("true", "false"),
}
SEVERAL: Final[Mapping[str, Callable[[str], bool]]] = {"pull-secret": words.is_subdomain, "toleration": bool}
NAMED: Final[Mapping[str, Callable[[str], bool]]] = {
    "resource": words.is_label_key,
    "label": words.is_label_key,
    "annotation": words.is_label_key,
    "secret": str.isidentifier,
}


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """The options, read.

    Attributes
    ----------
    single : dict
        Key -> value.
    several : dict
        Key -> its values.
    named : dict
        ``resource``, ``label``, ``annotation``, ``secret`` -> name -> value.
    """

    single: dict[str, str] = {}
    several: dict[str, tuple[str, ...]] = {}
    named: dict[str, dict[str, str]] = {}

    def get(self, key: str) -> str | None:
        """The value of a key."""
        return self.single.get(key)

    def all(self, group: str) -> dict[str, str]:
        """The names and values of a group."""
        return self.named.get(group, {})


def parse(options: Iterable[str]) -> Extra:
    """Read the options.

    Raises
    ------
    SpecError
        One that Kubernetes has no place for.
    """
    single: dict[str, str] = {}
    several: dict[str, tuple[str, ...]] = {}
    named: dict[str, dict[str, str]] = {}
    for option in options:
        key, equals, value = option.partition("=")
        group, dot, name = key.partition(".")
        if not equals:
            raise _error(option, "It has no value: write key=value.")
        if key in SINGLE:
            allowed = SINGLE[key]
            if isinstance(allowed, tuple):
                if value not in allowed:
                    raise _error(option, nearest(value, allowed))
            elif not allowed(value):
                raise _error(option, f"{value!r} is no {key}.")
            single[key] = value
        elif key in SEVERAL:
            if not SEVERAL[key](value):
                raise _error(option, f"{value!r} is no {key}.")
            several[key] = (*several.get(key, ()), value)
        elif dot and group in NAMED:
            if not NAMED[group](name) or (group == "label" and not words.is_label_value(value)):
                raise _error(option, f"It is no {group}.")
            if group == "resource" and words.read_quantity(value) is None:
                raise _error(option, f"{value!r} is no quantity.")
            named.setdefault(group, {})[name] = value
        else:
            known = [*SINGLE, *SEVERAL, *(f"{name}.NAME" for name in NAMED)]
            raise _error(option, nearest(key, known))
    return Extra(single=single, several=several, named=named)


def _error(option: str, hint: str) -> SpecError:
    return SpecError(f'extra.kubernetes = "{option}" has no place in a manifest.', field="extra.kubernetes", hint=hint)


def tolerations(texts: Iterable[str]) -> list[dict[str, Any]]:
    """``key``, ``key=value`` or ``key:Effect`` as tolerations."""
    made = []
    for text in texts:
        head, colon, effect = text.rpartition(":")
        if not colon:
            head, effect = text, ""
        key, equals, value = head.partition("=")
        item: dict[str, Any] = {"key": key, "operator": "Equal" if equals else "Exists"}
        if equals:
            item["value"] = value
        if effect:
            item["effect"] = effect
        made.append(item)
    return made
