"""What a function of a Modal app declares: the keywords of ``app.function``."""

from __future__ import annotations

from clusterkernel.formats import gpu_names
from clusterkernel.formats.modal import limits as modal_limits
from clusterkernel.formats.python_text import Source
from clusterkernel.formats.reporting import Report
from clusterkernel.spec import JobSpec

__all__ = ["arguments"]


def arguments(spec: JobSpec, report: Report) -> dict[str, object]:
    """What the function declares: keywords of ``app.function``, in the order in which they are written."""
    resources, schedule = spec.resources, spec.schedule
    made: dict[str, object] = {"image": Source("image")}
    if resources.gpus_per_node is not None:
        made["gpu"] = _gpu(spec, report)
    if resources.cpus_per_task is not None:
        made["cpu"] = float(resources.cpus_per_task * spec.ranks_per_node)
        why = "For the node's ranks together; Modal counts physical cores, of two hardware threads each."
        report.changed("cpus_per_task", "cpu", made["cpu"], why)
    _memory(spec, made, report)
    if schedule.time is None:
        made["timeout"] = modal_limits.LONGEST
        report.assumed("time", "timeout", modal_limits.LONGEST, "Without a limit Modal ends a run after 5 minutes.")
    elif schedule.time > modal_limits.LONGEST:
        made["timeout"] = modal_limits.LONGEST
        why = "Modal's longest run is 24 hours: go on from a checkpoint on a volume."
        report.changed("time", "timeout", modal_limits.LONGEST, why)
    else:
        made["timeout"] = schedule.time
        report.exact("time", "timeout", schedule.time)
    _retries(spec, made, report)
    made["volumes"] = Source("VOLUMES")
    made["secrets"] = Source("SECRETS")
    if env := dict(sorted(spec.environment.env.items())):
        made["env"] = env
        for name, value in env.items():
            report.variable(name, "env", value)
    if schedule.region is not None:
        made["region"] = schedule.region
        report.exact("region", "region", schedule.region)
    _disk(spec, made, report)
    if spec.array is not None and spec.parallelism is not None:
        made["max_containers"] = min(spec.parallelism, spec.array.size) * spec.resources.nodes
        report.exact("parallelism", "max_containers", made["max_containers"])
    return made


def _gpu(spec: JobSpec, report: Report) -> str:
    gpus = spec.resources.gpus_per_node
    assert gpus is not None
    name = gpu_names.MODAL[gpus.type or "h100"]
    text = f"{name}:{gpus.count}" if gpus.count > 1 else name
    if gpus.type is None:
        why = f"Modal needs a type, and none is named: {name} is taken; a smaller one costs less."
        report.changed("gpus_per_node", "gpu", text, why)
    elif gpus.type == "a100":
        why = "Modal's A100 has 40 GB; a100-80gb names the one that has 80."
        report.changed("gpus_per_node", "gpu", text, why)
    elif name.lower() == gpus.type:
        report.exact("gpus_per_node", "gpu", text)
    else:
        report.changed("gpus_per_node", "gpu", text, f"Modal calls it {name}.")
    return text


def _memory(spec: JobSpec, made: dict[str, object], report: Report) -> None:
    memory, limit = spec.resources.memory, spec.resources.memory_limit
    if memory is not None and limit is None:
        made["memory"] = memory
        report.exact("memory", "memory", memory)
    elif limit is not None:
        made["memory"] = (memory or limit, limit)
        report.exact("memory_limit", "memory", limit)
        if memory is not None:
            report.exact("memory", "memory", memory)
        else:
            report.assumed("memory", "memory", limit, "A limit here needs a request beside it.")


def _retries(spec: JobSpec, made: dict[str, object], report: Report) -> None:
    recovery = spec.recovery
    again = min(recovery.attempts - 1, modal_limits.MOST_RETRIES)
    if again:
        pause = min(recovery.backoff or 0, modal_limits.LONGEST_PAUSE)
        retries = f"modal.Retries(max_retries={again}, initial_delay={float(pause)}, backoff_coefficient=1.0)"
        made["retries"] = Source(retries)
    if again < recovery.attempts - 1:
        report.changed("attempts", "retries", again, f"Modal's documents go to {modal_limits.MOST_RETRIES}.")
    elif again:
        report.exact("attempts", "retries", again)
    if recovery.backoff is not None:
        if not again:
            report.dropped("backoff", "There is one attempt only.")
        elif recovery.backoff > modal_limits.LONGEST_PAUSE:
            report.changed("backoff", "retries", "60 s", "Modal's longest pause is 60 s.")
        else:
            report.exact("backoff", "retries", recovery.backoff)
    if recovery.requeue:
        report.exact("requeue", "function", "Modal starts again what it pre-empted")
    elif recovery.requeue is False:
        report.dropped("requeue", "Modal starts again what it pre-empted, whatever is asked for.")


def _disk(spec: JobSpec, made: dict[str, object], report: Report) -> None:
    disk = spec.storage.ephemeral_disk
    if disk is None:
        return
    if disk > modal_limits.USUAL_DISK:
        made["ephemeral_disk"] = disk
        report.exact("ephemeral_disk", "ephemeral_disk", disk)
    else:
        report.changed("ephemeral_disk", "function", "512G", "Modal gives so much to every container.")
