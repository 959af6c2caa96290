"""Records of jobs -> pandas, with columns and dtypes that never vary.

Times are UTC (``datetime64[ns, UTC]``), text is ``string``, counts that may be
missing are ``Int64``, measures are ``float64`` with NaN for what was not logged.
An empty table has the same columns. pandas is imported when a table is made.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterkernel.states import TERMINAL

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["jobs_frame", "joined", "metrics_frame", "read_records", "usage_frame"]

_UTC_NS: Final = "datetime64[ns, UTC]"
_PLACE: Final = ("time", "step", "epoch", "rank", "source")
_ALWAYS: Final = ("loss", "eval_loss", "learning_rate", "grad_norm")
_USAGE: Final = (
    "time", "rank", "host", "cpu_percent", "memory_mib",
    "gpu_util_percent", "gpu_memory_mib", "gpu_power_w", "gpu_count",
)  # fmt: skip
_SAMPLED: Final = ("cpu_percent", "rss_mib", "gpus")
_JOBS: Final = (
    "id", "name", "state", "backend", "platform_id", "created",
    "started", "ended", "runtime", "nodes", "gpus", "tags", "reason",
)  # fmt: skip


def read_records(path: str | Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Whole records of a file of JSON lines that may still grow.

    Parameters
    ----------
    path : path
    offset : int
        Where the last call stopped. A file that has become shorter is read anew.

    Returns
    -------
    records : list of dict
        A line that is no JSON object is passed over.
    offset : int
        Where to go on: behind the last whole line. A line that is half written, or
        whose bytes NFS has not delivered yet, is left for the next call.
    """
    try:
        with Path(path).open("rb") as file:
            if file.seek(0, 2) < offset:
                offset = 0
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    # A hole at the end of a file that another host appends to fills with time.
    while end and b"\0" in data[data.rfind(b"\n", 0, end - 1) + 1 : end]:
        end = data.rfind(b"\n", 0, end - 1) + 1
    records = []
    for line in data[:end].split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records, offset + end


def metrics_frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """What was logged, one row for each event, by time.

    Parameters
    ----------
    records : iterable of mapping
        Records of ``metrics.jsonl``; those of progress are passed over.

    Returns
    -------
    DataFrame
        ``time``, ``step`` (Int64, missing where it is not known), ``epoch``, ``rank`` (Int64), ``source``
        (``log``: by `ck.log`; ``parsed``: from the output), then one float64 column for each metric: ``loss``,
        ``eval_loss``, ``learning_rate`` and ``grad_norm`` always, the others in the order of their first row.
        A metric that is called like one of the first five has an underscore after its name.
    """
    import numpy as np
    import pandas as pd

    events = [record for record in records if record.get("source") != "progress" and _is_event(record)]
    events.sort(key=lambda record: float(record["t"]))
    cells: dict[str, tuple[list[int], list[float]]] = {name: ([], []) for name in _ALWAYS}
    for row, record in enumerate(events):
        for name, value in record["values"].items():
            rows, numbers = cells.setdefault(f"{name}_" if name in _PLACE else str(name), ([], []))
            rows.append(row)
            numbers.append(_number(value))
    columns: dict[str, Any] = {
        "time": _times([record["t"] for record in events]),
        "step": _counts([record.get("step") for record in events]),
        "epoch": np.array([_number(record.get("epoch")) for record in events], dtype="float64"),
        "rank": _counts([record.get("rank") for record in events]),
        "source": _texts([record.get("source") for record in events]),
    }
    for name, (rows, numbers) in cells.items():
        column = np.full(len(events), np.nan)
        column[rows] = numbers
        columns[name] = column
    return pd.DataFrame(columns)


def usage_frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """What was used, one row for each sample of a process, by time.

    Parameters
    ----------
    records : iterable of mapping
        Records of ``usage.jsonl``.

    Returns
    -------
    DataFrame
        ``time``, ``rank`` (Int64: the process that the platform started), ``host``, ``cpu_percent`` (100 is one
        core), ``memory_mib``, and of the process's GPUs ``gpu_util_percent`` (their mean), ``gpu_memory_mib``,
        ``gpu_power_w`` (their sums) and ``gpu_count`` (Int64).
    """
    import numpy as np
    import pandas as pd

    # A process that had just ended told nothing.
    samples = [record for record in records if _is_time(record.get("t")) and any(map(record.get, _SAMPLED))]
    samples.sort(key=lambda record: float(record["t"]))
    gpus = [[gpu for gpu in record.get("gpus") or () if isinstance(gpu, Mapping)] for record in samples]

    def of_gpus(name: str, mean: bool = False) -> Any:
        column = []
        for row in gpus:
            told = [number for number in (_number(gpu.get(name)) for gpu in row) if not math.isnan(number)]
            column.append(sum(told) / (len(told) if mean else 1) if told else math.nan)
        return np.array(column, dtype="float64")

    values = (
        _times([record["t"] for record in samples]),
        _counts([record.get("rank") for record in samples]),
        _texts([record.get("host") for record in samples]),
        np.array([_number(record.get("cpu_percent")) for record in samples], dtype="float64"),
        np.array([_number(record.get("rss_mib")) for record in samples], dtype="float64"),
        of_gpus("util_percent", mean=True),
        of_gpus("memory_mib"),
        of_gpus("power_w"),
        _counts([len(row) for row in gpus]),
    )
    return pd.DataFrame(dict(zip(_USAGE, values, strict=True)))


def joined(metrics: pd.DataFrame, usage: pd.DataFrame, *, within: float = 60.0) -> pd.DataFrame:
    """Metrics beside what was used at that time.

    Parameters
    ----------
    metrics, usage : DataFrame
        Of `metrics_frame` and `usage_frame`.
    within : float
        Seconds. A row takes the nearest sample; its columns are missing where none is so near.

    Returns
    -------
    DataFrame
        The rows of `metrics`, indexed by ``time``, with the columns of `usage` but its rank. A rank takes the samples
        of the process of that number, one without any those of the first: ranks under a launcher share a process.
    """
    import pandas as pd

    left = metrics.sort_values("time", kind="stable")
    right = usage.sort_values("time", kind="stable").rename(columns={"rank": "_process"})
    # dtypes of `_process` must agree, which a missing rank would not allow.
    right["_process"] = right["_process"].fillna(0).astype("int64")
    processes = set(right["_process"])
    first = min(processes, default=0)
    ranks = left["rank"].fillna(0).astype("int64")
    left["_process"] = ranks.where(ranks.isin(processes), first)
    table = pd.merge_asof(
        left, right, on="time", by="_process", direction="nearest", tolerance=pd.Timedelta(seconds=within)
    )
    return table.drop(columns="_process").set_index("time")


def jobs_frame(rows: Iterable[Any], *, now: float | None = None) -> pd.DataFrame:
    """A table of jobs in the given order.

    Parameters
    ----------
    rows : iterable
        `views.JobView` or mappings with its names; times are Unix seconds, datetimes, or None.
    now : float, optional
        Unix seconds, up to which a job that runs is counted. Default: the present.

    Returns
    -------
    DataFrame
        ``id``, ``name``, ``state``, ``backend``, ``platform_id``, ``created``, ``started``, ``ended`` (UTC, missing
        before they come), ``runtime`` (timedelta64[ns], so far where it runs), ``nodes``, ``gpus`` (Int64), ``tags``
        (with commas between them), ``reason``.
    """
    import pandas as pd

    now = time.time() if now is None else now
    listed = list(rows)

    def column(name: str, default: object = None) -> list[Any]:
        return [row.get(name, default) if isinstance(row, Mapping) else getattr(row, name, default) for row in listed]

    started, ended = _times(column("started")), _times(column("ended"))
    living = pd.Series([str(state) not in _TERMINAL_NAMES for state in column("state")], dtype="bool")
    until = ended.where(ended.notna() | ~living, _times([now] * len(listed)))
    columns = {name: _texts(column(name, "")) for name in ("id", "name", "state", "backend", "platform_id", "reason")}
    columns["created"] = _times(column("created"))
    columns["started"], columns["ended"] = started, ended
    columns["runtime"] = (until - started).clip(lower=pd.Timedelta(0)).astype("timedelta64[ns]")
    columns["tags"] = _texts(", ".join(tags or ()) for tags in column("tags"))
    columns["nodes"], columns["gpus"] = _counts(column("nodes", 1)), _counts(column("gpus", 0))
    frame = pd.DataFrame({name: columns[name] for name in _JOBS})
    frame.attrs["clusterkernel"] = True  # notebooks show its texts in full
    return frame


_TERMINAL_NAMES: Final = frozenset(str(state) for state in TERMINAL)


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 9e9


def _is_event(record: Mapping[str, Any]) -> bool:
    return _is_time(record.get("t")) and isinstance(record.get("values"), Mapping)


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return math.nan


def _times(values: list[Any]) -> pd.Series[Any]:
    import pandas as pd

    seconds = [value.timestamp() if isinstance(value, dt.datetime) else value for value in values]
    seconds = [float(value) if _is_time(value) else math.nan for value in seconds]
    return (
        pd.to_datetime(pd.Series(seconds, dtype="float64").round(3), unit="s", utc=True).dt.round("ms").astype(_UTC_NS)
    )


def _counts(values: list[Any]) -> pd.Series[Any]:
    import pandas as pd

    whole = [int(value) if isinstance(value, (int, float)) and abs(value) < 2**63 else None for value in values]
    return pd.Series(whole, dtype="Int64")


def _texts(values: Iterable[Any]) -> pd.Series[Any]:
    import pandas as pd

    return pd.Series([None if value is None else str(value) for value in values], dtype="string")
