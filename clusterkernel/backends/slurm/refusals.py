"""Why sbatch would not take a job, in one line with the mend."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from clusterkernel.backends.slurm import tables
from clusterkernel.backends.slurm.commands import Transport
from clusterkernel.backends.slurm.facts import goes_to
from clusterkernel.errors import BackendUnavailable, SubmissionError, nearest
from clusterkernel.spec import JobSpec

__all__ = ["LIMIT", "partitions", "refusal", "waits"]

# A limit of how many jobs one may have submitted: what was sent stays sent.
LIMIT: Final = re.compile(
    r"MaxSubmitJob|violates accounting/QOS policy|Job limit|MaxJobCount|queue full|too many jobs", re.IGNORECASE
)
# Of the many limits behind LIMIT those that pass with time.
_WAITS: Final = re.compile(r"MaxSubmitJob|MaxJobCount|queue full|too many jobs", re.IGNORECASE)
_NOISE: Final = re.compile(
    r"^sbatch: (error: |fatal: )?(Batch job submission failed: |Unable to allocate resources: )?"
)


def partitions(transport: Transport) -> list[str]:
    """The names of the cluster's partitions; empty where it does not answer."""
    try:
        answer = transport.query("sinfo", "-h", "-o", "%R")
    except BackendUnavailable:
        return []
    return sorted(set(answer.out.split())) if answer.ok else []


def _associations(transport: Transport, column: str) -> list[str]:
    uid = str(os.geteuid())
    try:
        user = transport.query("id", "-un", uid).out.strip() or uid
        argv = ("sacctmgr", "-n", "-P", "show", "assoc", f"user={user}", f"format={column}")
        answer = transport.query(*argv)
    except BackendUnavailable:
        return []
    return sorted({word for line in answer.out.splitlines() for word in line.split(",") if word}) if answer.ok else []


def _partition(spec: JobSpec, transport: Transport) -> str:
    known = partitions(transport)
    return nearest(spec.schedule.partition or "", known) if known else "%cluster_nodes lists the partitions."


def _account(spec: JobSpec, transport: Transport) -> str:
    known = _associations(transport, "account")
    return f"Your accounts: {', '.join(known)}. Set --account." if known else "Set --account to one of yours."


def _qos(spec: JobSpec, transport: Transport) -> str:
    known = _associations(transport, "qos")
    return f"Your QOS: {', '.join(known)}." if known else "Set --qos to one that you may use."


def _gpus_or(text: str) -> Callable[[JobSpec, Transport], str]:
    """Where the GPUs are that the job asks for; `text` where they are not what is missing."""
    return lambda spec, transport: _gpus(spec, transport) or text


def _gpus(spec: JobSpec, transport: Transport) -> str:
    wanted, nodes = spec.resources.gpus_per_node, spec.resources.nodes
    try:
        rows = [row for row in tables.nodes(transport) if row["gpus"]]
    except BackendUnavailable:
        return ""
    if wanted is None or not rows:
        return ""
    fitting = [row for row in rows if wanted.type in (None, (row["gpu_type"] or "").lower())]
    if not fitting:
        have = sorted({f"{_gpus_of(row)} in partition {row['partition']}" for row in rows})
        return f"No node has {wanted.type}. There is {', '.join(have)}."
    most = max(fitting, key=lambda row: int(row["gpus"]))
    if most["gpus"] < wanted.count:
        return f"At most {_gpus_of(most)} on one node, in partition {most['partition']}."
    found: dict[str, set[str]] = {}
    for row in fitting:
        if row["gpus"] >= wanted.count:
            found.setdefault(row["partition"], set()).add(row["node"])
    enough = sorted(partition for partition, names in found.items() if len(names) >= nodes)
    if not enough:
        largest = max(found, key=lambda partition: len(found[partition]))
        count = len(found[largest])
        which = "1 node of a partition has" if count == 1 else f"{count} nodes of a partition have"
        return f"At most {which} {wanted}: {largest}."
    if goes_to(transport, spec) in enough:
        return ""  # something else is missing
    has = "has" if len(enough) == 1 else "have"
    what = str(wanted) if wanted.type else f"{wanted} GPUs"
    return f"Partition {', '.join(enough)} {has} {what}: set --partition {enough[0]}."


def _gpus_of(row: Mapping[str, Any]) -> str:
    return f"{row['gpu_type']}:{row['gpus']}" if row["gpu_type"] else f"{row['gpus']} GPUs"


def _say(text: str) -> Callable[[JobSpec, Transport], str]:
    return lambda spec, transport: text


_MENDS: Final[tuple[tuple[re.Pattern[str], Callable[[JobSpec, Transport], str]], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), mend)
    for pattern, mend in (
        (r"invalid partition|partition name", _partition),
        (r"\baccount\b", _account),
        (r"invalid qos", _qos),
        (
            r"^(?!.*MaxSubmit).*violates accounting/QOS policy",
            _say("Ask for less (time, nodes, GPUs), or wait for jobs of yours to end."),
        ),
        (LIMIT.pattern, _say("Wait for jobs of yours to end, or cancel some: %cluster_jobs lists them.")),
        (
            r"memory specification|--mem|mem-per",
            _say('Change --memory or leave it out; some sites take only --sbatch "--mem-per-cpu=4G".'),
        ),
        (r"time limit", _say("Set --time to at most the partition's limit: sinfo -o '%R %l' shows it.")),
        (
            r"node count|more nodes|node configuration",
            _gpus_or("Ask for fewer nodes, CPUs, GPUs or less memory a node: %cluster_nodes shows what there is."),
        ),
        (r"more processors|cpu count", _say("Lower --cpus-per-task or --tasks-per-node.")),
        (
            r"generic resource|gres",
            _gpus_or("Change --gpus-per-node; some sites take only --gres: add --sbatch --gres."),
        ),
        (r"feature|constraint", _say("Change --constraint: sinfo -o '%N %f' shows the features.")),
        (r"reservation", _say("Change --reservation: scontrol show reservation lists them.")),
        (r"dependency", _say("Change --dependency: a job in it is not known.")),
        (r"licen[sc]e", _say("Change the licences: scontrol show license lists them.")),
        (r"array", _say("Ask for fewer array tasks.")),
        (r"permission|denied", _say("Ask the site whether you may use this partition, account or QOS.")),
    )
)


def waits(said: str) -> bool:
    """Whether sbatch would take the job once others of the user have ended."""
    return _WAITS.search(said) is not None


def refusal(said: str, spec: JobSpec, transport: Transport) -> SubmissionError:
    """The error for what sbatch said, with the mend where one is known."""
    lines = [_NOISE.sub("", line).strip() for line in said.splitlines() if line.strip()]
    lines = [line for line in lines if line != "Unspecified error"] or lines  # a site's own rule has said more
    reason = " ".join(dict.fromkeys(line.rstrip(".") + "." for line in lines if line)) or "sbatch said nothing."
    for pattern, mend in _MENDS:
        if pattern.search(said):
            return SubmissionError(f"Slurm refused the job: {reason}", hint=mend(spec, transport))
    return SubmissionError(f"Slurm refused the job: {reason}")
