"""Tables over many jobs and over the cluster, for people: pandas DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from clusterkernel.errors import BackendError, SpecError, shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["accounting", "jobs", "nodes", "queue"]

_TEXT: Final = "string"
_COUNT: Final = "Int64"
_MEASURE: Final = "float64"
_TIME: Final = "time"
_DURATION: Final = "duration"
# What a backend's records hold, in the order of the columns.
_COLUMNS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "queue": {
            **dict.fromkeys(("job", "name", "user", "account", "partition", "qos", "state", "reason"), _TEXT),
            **dict.fromkeys(("nodes", "cpus", "gpus_per_node"), _COUNT),
            **dict.fromkeys(("gpu_type", "node_list"), _TEXT),
            "priority": _COUNT,
            **dict.fromkeys(("submitted", "started", "ends"), _TIME),
            "time_limit": _DURATION,
        },
        "nodes": {
            **dict.fromkeys(("node", "partition", "state"), _TEXT),
            "responds": "boolean",
            **dict.fromkeys(("cpus", "cpus_used", "memory", "memory_free"), _COUNT),
            "load": _MEASURE,
            "gpus": _COUNT,
            **dict.fromkeys(("gpu_type", "features"), _TEXT),
            "time_limit": _DURATION,
            "reason": _TEXT,
        },
        "accounting": {
            **dict.fromkeys(("job", "name", "user", "account", "partition", "qos", "state"), _TEXT),
            **dict.fromkeys(("exit_code", "signal"), _COUNT),
            **dict.fromkeys(("submitted", "started", "ended"), _TIME),
            "runtime": _DURATION,
            **dict.fromkeys(("nodes", "cpus", "gpus"), _COUNT),
            **dict.fromkeys(("gpu_type", "node_list"), _TEXT),
        },
    }
)


def jobs() -> pd.DataFrame:
    """All jobs of the job root, the oldest first; an array is one row.

    Returns
    -------
    pandas.DataFrame
        The columns of `clusterkernel.frames.jobs_frame`, whether there are jobs or not.
    """
    from clusterkernel import frames, submission

    return frames.jobs_frame(submission.summaries())


def queue(backend: str | None = None) -> pd.DataFrame:
    """The cluster's queue, everybody's jobs.

    Parameters
    ----------
    backend : str, optional
        Whose; by itself the first that has one and can be used here.

    Returns
    -------
    pandas.DataFrame
        ``job``, ``name``, ``user``, ``account``, ``partition``, ``qos``, ``state``, ``reason``, ``nodes``, ``cpus``,
        ``gpus_per_node``, ``gpu_type``, ``node_list``, ``priority``, ``submitted``, ``started``, ``ends`` (UTC),
        ``time_limit`` (timedelta64[ns]).

    Raises
    ------
    BackendError
        There is none, or it does not answer.
    """
    return _table("queue", backend)


def nodes(backend: str | None = None) -> pd.DataFrame:
    """The cluster's nodes, a row for each partition that a node is in; parameters and errors as for `queue`.

    Returns
    -------
    pandas.DataFrame
        ``node``, ``partition``, ``state``, ``responds``, ``cpus``, ``cpus_used``, ``memory``, ``memory_free`` (MiB),
        ``load``, ``gpus``, ``gpu_type``, ``features``, ``time_limit`` (timedelta64[ns]), ``reason``.
    """
    return _table("nodes", backend)


def accounting(backend: str | None = None) -> pd.DataFrame:
    """What the accounting says of your jobs of the last week; parameters and errors as for `queue`.

    Returns
    -------
    pandas.DataFrame
        ``job``, ``name``, ``user``, ``account``, ``partition``, ``qos``, ``state``, ``exit_code``, ``signal``,
        ``submitted``, ``started``, ``ended`` (UTC), ``runtime`` (timedelta64[ns]), ``nodes``, ``cpus``, ``gpus``,
        ``gpu_type``, ``node_list``.
    """
    return _table("accounting", backend)


def _table(what: str, name: str | None) -> pd.DataFrame:
    return _frame(what, _records(what, name))


def _records(what: str, name: str | None) -> Sequence[Mapping[str, Any]]:
    from clusterkernel.backends import registry

    if not isinstance(name, str | None):
        raise SpecError(f"backend = {shown(name)} is not a name.", field="backend", hint="Write it in quotes.")
    for one in [name] if name else registry.names():
        backend = registry.get(one)
        read = getattr(backend, what, None)
        if read is not None and (name or backend.available().ok):
            found: Sequence[Mapping[str, Any]] = read()
            return found
    missing = f"The backend {name} has no {what}." if name else f"No backend that can be used here has {_THINGS[what]}."
    raise BackendError(missing, hint="%cluster_doctor tells what is ready.")


_THINGS: Final = MappingProxyType({"queue": "a queue", "nodes": "nodes to list", "accounting": "an accounting"})


def _frame(what: str, records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    made = {}
    for column, kind in _COLUMNS[what].items():
        values = [record.get(column) for record in records]
        if kind is _TIME:
            made[column] = pd.to_datetime(pd.Series(values, dtype="float64"), unit="s", utc=True).astype(
                "datetime64[ns, UTC]"
            )
        elif kind is _DURATION:
            made[column] = pd.to_timedelta(pd.Series(values, dtype="float64"), unit="s").astype("timedelta64[ns]")
        else:
            made[column] = pd.Series(values, dtype=kind)
    frame = pd.DataFrame(made)
    frame.attrs["clusterkernel"] = True  # notebooks show its texts in full
    return frame
