"""A job at one moment, put together from its folder: what cards and tables show."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterkernel import loading, logs, spec
from clusterkernel.states import JobState
from clusterkernel.views import JobView

if TYPE_CHECKING:
    from clusterkernel.jobs import Job
    from clusterkernel.truth import TaskTruth

__all__ = ["TAIL_LINES", "latest", "summary"]

TAIL_LINES: Final = 20
_METRICS_TAIL: Final = 1 << 16
_NODES: Final = 4
# States in which what was printed is that of what comes before the job: the build of an image, setup lines.
_LAUNCHED: Final = (JobState.SUBMITTING, JobState.LAUNCH_FAILED)
_COST: Final = re.compile(r"_runtime$|_per_second$|_time$|flos$", re.IGNORECASE)
_TELLING: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^(train[_/])?loss$",
        r"loss|perplexity|ppl$",
        r"acc(uracy)?$|(^|[_/])(f1|bleu|rouge\w*|auc|wer|reward\w*|score|map|precision|recall)$",
        r"^(learning_rate|lr)$",
        r"^(step|epoch)$",
    )
)


def summary(job: Job, tail: int) -> JobView:
    """All that a card shows of a job, with the last `tail` lines that it printed."""
    truth, outcome = job.truth, job.outcome
    # What a signal raised in the code says nothing beside the reason.
    stopped = truth.state in (JobState.CANCELLED, JobState.TIMED_OUT)
    told = (outcome.error if outcome and not stopped else None) or {}
    begun = truth.started is not None
    progress, last = latest(job) if begun else (None, {})
    error = f"{told.get('type')}: {told.get('message')}" if told else ""
    out = job.out(truth.rank)
    return JobView(
        id=job.id,
        name=job.name,
        state=truth.state,
        backend=job.backend,
        reason=truth.reason,
        platform_id=job.platform_id or "",
        title=job.record.payload.title,
        counts=spec.describe(job.spec),
        nodes=job.spec.resources.nodes,
        gpus=job.spec.gpus,
        tags=tuple(job.spec.tags),
        node=_nodes(truth),
        rank=truth.rank,
        created=job.record.created,
        started=truth.started,
        ended=truth.ended,
        stale_since=job.stale_since,
        attempt=truth.attempt,
        exit_code=truth.exit_code,
        progress=progress,
        latest=last,
        outputs=loading.output_views(job),
        bind=job.record.payload.bind,
        changed=job.record.payload.changed,
        error=error,
        traceback=str(told.get("traceback") or ""),
        tail=job.logs(tail, rank=truth.rank) if tail and (begun or truth.state in _LAUNCHED) else "",
        log=str(out) if begun and logs.size(out) else "",
        folder=str(job.folder.path),
    )


def _nodes(truth: TaskTruth) -> str:
    """The nodes of a job in the order of its ranks, the first few by name."""
    names = list(dict.fromkeys(filter(None, (truth.hosts[rank] for rank in sorted(truth.hosts)))))
    if len(names) < 2:
        return truth.node
    rest = len(names) - _NODES
    return ", ".join(names[:_NODES]) + (f" and {rest} more" if rest > 0 else "")


def latest(job: Job) -> tuple[tuple[float, float] | None, dict[str, float]]:
    """Progress and each metric's last value, the telling ones first, from the end of the first process's records."""
    progress, values = None, {}
    for record in _last_records(job.out() / "metrics.jsonl"):
        # The user's code may write there too.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            if record.get("source") == "progress":
                progress = (float(record["done"]), float(record["total"]))
                continue
            for key in ("step", "epoch"):
                if record.get(key) is not None:
                    values[key] = float(record[key])
            values.update({name: float(value) for name, value in record.get("values", {}).items()})
    return progress, {name: values[name] for name in sorted(values, key=_importance)}


def _importance(name: str) -> int:
    """The place of a metric among others: what the run learns, how well, how far it is, and last what it cost."""
    if _COST.search(name):
        return len(_TELLING) + 1
    return next((place for place, pattern in enumerate(_TELLING) if pattern.search(name)), len(_TELLING))


def _last_records(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _METRICS_TAIL)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return []
    lines = data.split(b"\n")[1 if start else 0 : -1]
    records = []
    for line in lines:
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue  # NaN and infinities are beyond JSON: the card can do without
        if isinstance(record, dict):
            records.append(record)
    return records
