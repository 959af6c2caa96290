"""How nodes reach each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from clusterkernel.advice.base import Advice, Case, Level, rule
from clusterkernel.advice.resources import changes

_FABRIC: Final = re.compile(r"(^|[^a-z])(ib|infiniband|hdr|ndr|xdr|edr|roce|opa|slingshot)", re.IGNORECASE)
_INTERFACES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
_LOOPBACK: Final = r"(localhost|127\.\d+\.\d+\.\d+|\[?::1\]?|0\.0\.0\.0)"
_ENDPOINT: Final = re.compile(
    r"(--rdzv[_-]endpoint|--master[_-]addr|--main[_-]process[_-]ip|MASTER_ADDR|PRIMARY_ADDR|head_node_ip)"
    rf"\s*[= ]\s*[\"']?{_LOOPBACK}\b",
    re.IGNORECASE,
)
_FALLBACK: Final = re.compile(rf"\|\|\s*echo\s+[\"']?{_LOOPBACK}", re.IGNORECASE)
_FIXED_PORT: Final = re.compile(
    r"(--rdzv[_-]endpoint[= ][\"']?[^\s\"']*:|--master[_-]port[= ]|--main[_-]process[_-]port[= ]|MASTER_PORT[= ]"
    r"|PRIMARY_PORT[= ])[\"']?(\d{2,5})\b"
)
_FIXED_ID: Final = re.compile(r"--rdzv[_-]id[= ][\"']?([A-Za-z0-9_.-]+)(?![\w$])")


@rule("network-option", noted=["slurm"])
def network_option(case: Case) -> Iterator[Advice]:
    """``--network=ib``, which asks for nothing on most clusters."""
    network = case.spec.schedule.network
    if case.spec.backend != "slurm" or network is None or case.facts.network_option:
        return
    yield Advice(
        level=Level.WARNING,
        rule="network-option",
        field="network",
        message=f"--network {network} has an effect on HPE and Cray networks only; InfiniBand is NCCL's own choice.",
        fix="Leave it out; to get nodes that have it, ask for their feature with --constraint.",
        change=changes(network=None),
    )


@rule("infiniband-constraint")
def infiniband_constraint(case: Case) -> Iterator[Advice]:
    """Several GPU nodes of a cluster of which only some have a fast network."""
    features = [feature for feature in case.facts.features if _FABRIC.search(feature)]
    if case.spec.backend != "slurm" or case.nodes == 1 or not case.gpus or not features:
        return
    if case.spec.schedule.constraint is not None:
        return
    yield Advice(
        level=Level.INFO,
        rule="infiniband-constraint",
        field="constraint",
        message=f"Some nodes have the feature {features[0]}; the job may get others, which talk by Ethernet.",
        fix=f"Add --constraint {features[0]}.",
        change=changes(constraint=features[0]),
    )


@rule("infiniband-off")
def infiniband_off(case: Case) -> Iterator[Advice]:
    """NCCL told not to use InfiniBand."""
    if case.nodes == 1 or case.env.get("NCCL_IB_DISABLE", "0") not in ("1", "true"):
        return
    yield Advice(
        level=Level.WARNING,
        rule="infiniband-off",
        field="env.NCCL_IB_DISABLE",
        message="NCCL_IB_DISABLE=1 makes the nodes talk by TCP, also where there is InfiniBand.",
        fix="Leave it out: NCCL uses what it finds.",
        change=_without("NCCL_IB_DISABLE"),
    )


@rule("nccl-interface")
def nccl_interface(case: Case) -> Iterator[Advice]:
    """An interface for NCCL or gloo that no other node reaches."""
    for name in _INTERFACES:
        if case.nodes > 1 and case.env.get(name, "").strip("=") in ("lo", "docker0"):
            yield Advice(
                level=Level.ERROR,
                rule="nccl-interface",
                field=f"env.{name}",
                message=f"{name}={case.env[name]} is an interface that other nodes cannot reach: the ranks would hang.",
                fix="Leave it out, or name the network that joins the nodes.",
                change=_without(name),
            )


@rule("rdma-device")
def rdma_device(case: Case) -> Iterator[Advice]:
    """Several GPU nodes on Kubernetes without the device of the fast network."""
    extra = case.spec.extra.get("kubernetes", ())
    asked = any(re.match(r"resource\.[^=]*(rdma|efa|infiniband|/ib)", option) for option in extra)
    if case.spec.backend != "kubernetes" or case.nodes == 1 or not case.gpus or asked:
        return
    yield Advice(
        level=Level.INFO,
        rule="rdma-device",
        field="extra.kubernetes",
        message="Kubernetes gives a pod the fast network as a device; without it NCCL talks by TCP.",
        fix="Name the cluster's device in the profile: resource.rdma/ib=1, or vpc.amazonaws.com/efa and the like.",
    )


@rule("same-zone")
def same_zone(case: Case) -> Iterator[Advice]:
    """Nodes of one job in several zones, whose traffic is slow and billed."""
    schedule = case.spec.schedule
    topology = any("topology" in option for option in case.spec.extra.get("kubernetes", ()))
    if case.spec.backend != "kubernetes" or case.nodes == 1 or schedule.zone is not None or topology:
        return
    if "topology.kubernetes.io/zone" in (schedule.constraint or ""):
        return
    yield Advice(
        level=Level.INFO,
        rule="same-zone",
        field="zone",
        message=f"The {case.nodes} nodes may lie in several zones: their traffic is then slow, and may be billed.",
        fix="Set --zone, or where Kueue knows the topology, its annotation podset-required-topology.",
    )


def _said(case: Case) -> Iterator[tuple[str, str]]:
    """All text that may say where the ranks meet: of the spec, the program, and the source."""
    yield from case.lines()
    yield from ((f"env.{name}", f"{name}={value}") for name, value in case.env.items())
    for field in case.fields:
        yield field.key, f"{field.key.removeprefix('export ')}={field.value}"


@rule("rendezvous-localhost")
def rendezvous_localhost(case: Case) -> Iterator[Advice]:
    """Several nodes that are to meet on the loopback, so that each meets itself."""
    if case.nodes == 1:
        return
    for field, text in _said(case):
        if _ENDPOINT.search(text) or _FALLBACK.search(text):
            yield Advice(
                level=Level.ERROR,
                rule="rendezvous-localhost",
                field=field,
                message=f"{case.nodes} nodes are to meet on the loopback, where each finds itself only: they hang, or "
                "train apart.",
                fix="Leave the address out: with --launcher torchrun it is derived inside the job.",
                change=_without(field.removeprefix("env.")) if field.startswith("env.") else None,
            )
            return


@rule("rendezvous-fixed")
def rendezvous_fixed(case: Case) -> Iterator[Advice]:
    """A port or an id that all jobs share, so that two of them can meet."""
    if case.spec.backend not in ("slurm", "local"):
        return
    for field, text in _said(case):
        match = _FIXED_PORT.search(text)
        named = _FIXED_ID.search(text)
        if match or named:
            what = f"port {match[2]}" if match else f"id {named[1] if named else ''}"
            yield Advice(
                level=Level.WARNING,
                rule="rendezvous-fixed",
                field=field,
                message=f"The rendezvous has the fixed {what}: two jobs on one node collide there, or meet.",
                fix="Leave it out: with --launcher torchrun port and id are derived from the job.",
                change=_without(field.removeprefix("env.")) if field.startswith("env.") else None,
            )
            return


def _without(name: str) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        env = {key: value for key, value in case.env.items() if key != name}
        environment = msgspec.structs.replace(case.spec.environment, env=env)
        return msgspec.structs.replace(case, spec=msgspec.structs.replace(case.spec, environment=environment))

    return change
