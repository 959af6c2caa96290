"""What is known of a job at one moment, for whoever shows it."""

from __future__ import annotations

from typing import Final

import msgspec

from clusterkernel.states import JobState

__all__ = ["JobView", "OutputView", "of_bytes"]


class OutputView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A name that a job saved.

    Attributes
    ----------
    size : int
        Bytes of the file.
    type : str
        The type's name.
    error : str
        Why it could not be saved; empty where it was.
    """

    size: int = 0
    type: str = ""
    error: str = ""


class JobView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job at one moment. Times are Unix seconds, None where they did not come yet.

    Attributes
    ----------
    id : str
        Ours: ``12``, ``12_3`` for a task of an array.
    reason : str
        Why it is in this state, in a sentence.
    counts : str
        The counts and their product: ``2 nodes x 8 H100 = 16 GPUs``.
    stale_since : float or None
        Since when nothing was heard of it; the state is the last one known.
    tags : tuple of str
        What it was sent with to be found by.
    node : str
        The nodes that it runs on, the first few by name.
    rank : int
        The process whose end tells why the job ended.
    progress : tuple of (float, float) or None
        Done and total.
    latest : dict
        The last value of each metric.
    outputs : dict
        Saved names.
    bind : tuple of str
        Names that are bound in the notebook by themselves.
    changed : dict
        Parameters that a rerun set -> their values.
    error : str
        The user's exception in one line.
    traceback : str
        Its traceback as text.
    tasks : dict
        State -> count, for an array.
    tail : str
        The last lines that it printed.
    log : str
        The folder with all that it printed; empty where it printed nothing.
    """

    id: str
    name: str
    state: JobState
    backend: str
    reason: str = ""
    platform_id: str = ""
    title: str = ""
    counts: str = ""
    nodes: int = 1
    gpus: int = 0
    tags: tuple[str, ...] = ()
    node: str = ""
    rank: int = 0
    created: float | None = None
    started: float | None = None
    ended: float | None = None
    stale_since: float | None = None
    attempt: int = 0
    exit_code: int | None = None
    progress: tuple[float, float] | None = None
    latest: dict[str, float] = {}
    outputs: dict[str, OutputView] = {}
    bind: tuple[str, ...] = ()
    changed: dict[str, str] = {}
    error: str = ""
    traceback: str = ""
    tasks: dict[str, int] = {}
    tail: str = ""
    log: str = ""
    folder: str = ""

    @property
    def runtime(self) -> float | None:
        """Seconds from start to end, None before the end."""
        if self.started is None or self.ended is None:
            return None
        return max(0.0, self.ended - self.started)


_DECODER: Final = msgspec.json.Decoder(JobView)


def of_bytes(data: bytes | None) -> JobView | None:
    """The view that was kept; None where there is none, or it is damaged or of another version."""
    try:
        return _DECODER.decode(data) if data else None
    except msgspec.DecodeError:
        return None
