"""The states of a job and how one may follow another."""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["LIVE", "TERMINAL", "JobState", "may_follow"]


class JobState(str, enum.Enum):
    """Where a job is. `stale_since` stands beside the state, it is not one."""

    SUBMITTING = "SUBMITTING"
    QUEUED = "QUEUED"
    HELD = "HELD"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    REQUEUED = "REQUEUED"
    FINISHING = "FINISHING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    DIED = "DIED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    NODE_LOST = "NODE_LOST"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    RESULT_FAILED = "RESULT_FAILED"
    LOST = "LOST"

    def __str__(self) -> str:
        return self.value

    @property
    def terminal(self) -> bool:
        """Whether the job has ended."""
        return self in TERMINAL


TERMINAL: Final = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.DIED,
        JobState.OUT_OF_MEMORY,
        JobState.TIMED_OUT,
        JobState.CANCELLED,
        JobState.NODE_LOST,
        JobState.LAUNCH_FAILED,
        JobState.RESULT_FAILED,
        JobState.LOST,
    }
)
LIVE: Final = frozenset(JobState) - TERMINAL

# A queued job may be held and released; a running one may be requeued. Time
# only goes forward otherwise, so that late news of an earlier state is dropped.
_ORDER: Final = {
    JobState.SUBMITTING: 0,
    JobState.QUEUED: 1,
    JobState.HELD: 1,
    JobState.STARTING: 2,
    JobState.RUNNING: 3,
    JobState.FINISHING: 4,
}


def may_follow(old: JobState, new: JobState) -> bool:
    """Whether `new` may come after `old`.

    Terminal states are final. `REQUEUED` may follow any live state and may be
    followed by any; the other live states only go forward.
    """
    if old.terminal or old is new:
        return False
    if new.terminal or JobState.REQUEUED in (old, new):
        return True
    return _ORDER[new] >= _ORDER[old]
