"""The queue, the nodes and the accounting as records.

Times are Unix seconds or None, durations seconds, memory MiB.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from clusterkernel.backends.slurm.commands import Transport
from clusterkernel.backends.slurm.records import SEPARATOR, read_comment
from clusterkernel.backends.slurm.states import explain
from clusterkernel.errors import BackendUnavailable

__all__ = ["accounting", "nodes", "queue"]

_QUEUE: Final = {
    "job": "%i",
    "name": "%j",
    "user": "%u",
    "account": "%a",
    "partition": "%P",
    "qos": "%q",
    "state": "%T",
    "reason": "%r",
    "nodes": "%D",
    "cpus": "%C",
    "gres": "%b",
    "node_list": "%N",
    "priority": "%Q",
    "submitted": "%V",
    "started": "%S",
    "ends": "%e",
    "time_limit": "%l",
    "comment": "%k",
}
_NODES: Final = {
    "node": "%N",
    "partition": "%R",
    "state": "%T",
    "cpus": "%c",
    "cpus_used": "%C",
    "memory": "%m",
    "memory_free": "%e",
    "load": "%O",
    "gres": "%G",
    "features": "%f",
    "time_limit": "%l",
    "reason": "%E",
}
_ACCOUNTING: Final = {
    "job": "JobID",
    "name": "JobName",
    "user": "User",
    "account": "Account",
    "partition": "Partition",
    "qos": "QOS",
    "state": "State",
    "exit_code": "ExitCode",
    "submitted": "Submit",
    "started": "Start",
    "ended": "End",
    "runtime": "ElapsedRaw",
    "nodes": "NNodes",
    "cpus": "AllocCPUS",
    "tres": "AllocTRES",
    "node_list": "NodeList",
}


def _unix(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) else None


def _count(text: str) -> int | None:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _seconds(text: str) -> int | None:
    """Slurm's ``1-02:03:04``, ``02:03:04`` or ``03:04``; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _gpus(text: str) -> tuple[int, str | None]:
    """How many GPUs, and their type: ``gres:gpu:h100:8(S:0-1)``, ``gpu:8``, ``billing=4,gres/gpu:h100=8``."""
    count, kind = 0, None
    for match in re.finditer(r"(?:gres[:/])?gpu(?::([A-Za-z][\w.-]*))?[:=](\d+)", text):
        kind = match[1] or kind
        count = max(count, int(match[2]))
    return count, kind


def _rows(transport: Transport, argv: list[str], columns: Mapping[str, str], timeout: float) -> list[dict[str, str]]:
    answer = transport.query(*argv, timeout=timeout)
    if not answer.ok:
        raise BackendUnavailable(f"{argv[0]} failed: {answer.complaint}.", hint="%cluster_doctor looks for the cause.")
    rows = []
    for line in answer.out.split("\n"):
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) == len(columns):
            told = ("" if field in ("(null)", "N/A", "n/a") else field for field in fields)
            rows.append(dict(zip(columns, told, strict=True)))
    return rows


def queue(transport: Transport, *, everybody: bool = True) -> list[dict[str, Any]]:
    """The jobs in the queue, ours with the key that their comment holds.

    Raises
    ------
    BackendUnavailable
        Slurm does not answer.
    """
    argv = ["squeue", "-h", "-o", SEPARATOR.join(_QUEUE.values())]
    if not everybody:
        argv += ["-u", str(os.geteuid())]
    found = []
    for row in _rows(transport, argv, _QUEUE, 20.0):
        gpus, kind = _gpus(row["gres"])
        ours = read_comment(row["comment"])
        why = explain(row["reason"])[1] if row["state"] == "PENDING" else ""
        found.append(
            {
                **{name: row[name] for name in ("job", "name", "user", "account", "partition", "qos", "state")},
                "reason": why,
                "nodes": _count(row["nodes"]),
                "cpus": _count(row["cpus"]),
                "gpus_per_node": gpus,
                "gpu_type": kind,
                "node_list": row["node_list"],
                "priority": _count(row["priority"]),
                "submitted": _unix(row["submitted"]),
                "started": _unix(row["started"]),
                "ends": _unix(row["ends"]),
                "time_limit": _seconds(row["time_limit"]),
                "key": ours[0] if ours else "",
            }
        )
    return found


def nodes(transport: Transport) -> list[dict[str, Any]]:
    """The nodes, one record for each partition that a node is in.

    Raises
    ------
    BackendUnavailable
        Slurm does not answer.
    """
    argv = ["sinfo", "-h", "-N", "-o", SEPARATOR.join(_NODES.values())]
    found = []
    for row in _rows(transport, argv, _NODES, 20.0):
        gpus, kind = _gpus(row["gres"])
        used = row["cpus_used"].partition("/")[0]  # allocated/idle/other/total
        found.append(
            {
                "node": row["node"],
                "partition": row["partition"],
                "state": row["state"].rstrip("*~#!%$@^-+"),
                "responds": "*" not in row["state"],
                "cpus": _count(row["cpus"]),
                "cpus_used": _count(used),
                "memory": _count(row["memory"]),
                "memory_free": _count(row["memory_free"]),
                "load": _float(row["load"]),
                "gpus": gpus,
                "gpu_type": kind,
                "features": row["features"],
                "time_limit": _seconds(row["time_limit"]),
                "reason": "" if row["reason"] == "none" else row["reason"],
            }
        )
    return found


def accounting(transport: Transport, *, days: float = 7.0) -> list[dict[str, Any]]:
    """The user's jobs of the last days, from the accounting database.

    Raises
    ------
    BackendUnavailable
        It does not answer, or there is none.
    """
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - days * 86400))
    argv = ["sacct", "-X", "-n", "-P", f"--delimiter={SEPARATOR}", "-S", since, "-u", str(os.geteuid())]
    found = []
    for row in _rows(transport, [*argv, "-o", ",".join(_ACCOUNTING.values())], _ACCOUNTING, 60.0):
        gpus, kind = _gpus(row["tres"])
        code, _, signum = row["exit_code"].partition(":")
        found.append(
            {
                **{name: row[name] for name in ("job", "name", "user", "account", "partition", "qos")},
                "state": row["state"].split()[0] if row["state"] else "",
                "exit_code": _count(code),
                "signal": _count(signum),
                "submitted": _unix(row["submitted"]),
                "started": _unix(row["started"]),
                "ended": _unix(row["ended"]),
                "runtime": _count(row["runtime"]),
                "nodes": _count(row["nodes"]),
                "cpus": _count(row["cpus"]),
                "gpus": gpus,
                "gpu_type": kind,
                "node_list": row["node_list"],
            }
        )
    return found
