"""What is true of one array task: its supervisors' records and the platform's word, merged.

Pure: no files, no clock of its own. Times that are compared come from one
monotonic clock of the caller; those in records are only shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from clusterkernel.backends.base import Observation
from clusterkernel.records import End
from clusterkernel.states import JobState, may_follow

__all__ = ["Outcome", "TaskTruth"]

# A record that was written when the platform tells the end may take this long
# to be seen over NFS (attribute caches: 3 to 60 s; acregmin is 3 s).
OUTCOME_GRACE: Final = 8.0
SHELL_GRACE: Final = 0.5
# The same for what a record could not change much: with a question every 5 s it makes less than 10 s.
WORD_GRACE: Final = 3.0
# Exit 0 and no outcome: the slowest cache there is, and then some.
FINISHING_GRACE: Final = 90.0
# A signal from outside ended it, and only the platform knows why: until it says so (its epilog may run first).
VERDICT_GRACE: Final = 90.0
# Three heartbeats.
STALE_AFTER: Final = 35.0
# How often a platform has to say that it knows no such job.
UNKNOWN_ANSWERS: Final = 2

# What a supervisor may say, the most telling first: the user's error before the signals that it caused in the others.
_SAID: Final = (
    JobState.FAILED,
    JobState.RESULT_FAILED,
    JobState.OUT_OF_MEMORY,
    JobState.LAUNCH_FAILED,
    JobState.TIMED_OUT,
    JobState.DIED,
    JobState.CANCELLED,
    JobState.SUCCEEDED,
)
# Ends that the supervisor knows better than any platform.
_DECISIVE: Final = {
    JobState.SUCCEEDED,
    JobState.FAILED,
    JobState.LAUNCH_FAILED,
    JobState.RESULT_FAILED,
    JobState.TIMED_OUT,
    JobState.OUT_OF_MEMORY,
}
# With these a platform, or its want of memory, ends a job: HUP, INT, KILL, TERM. A payload dies of others by itself.
_FROM_OUTSIDE: Final = frozenset({1, 2, 9, 15})


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor's last record. `overtime`: its time limit was over."""

    state: JobState
    reason: str = ""
    exit_code: int | None = None
    signum: int | None = None
    error: dict[str, Any] | None = None
    result: str = "none"
    outputs: dict[str, dict[str, Any]] = {}
    retry: bool = False
    overtime: bool = False
    t: float = 0.0


class TaskTruth:
    """One array task over time.

    Parameters
    ----------
    world : int
        Processes that the platform starts for it.
    judge : bool
        Whether the platform tells more than the supervisor about a violent end.
    """

    def __init__(self, world: int, *, judge: bool = True, unknown_grace: float = WORD_GRACE) -> None:
        self.world = world
        self.judge = judge
        self.unknown_grace = unknown_grace
        self.state = JobState.SUBMITTING
        self.reason = ""
        self.attempt = 0
        self.node = ""
        self.hosts: dict[int, str] = {}  # of each process that started
        self.rank = 0  # of the process whose outcome tells why it ended
        self.started: float | None = None
        self.ended: float | None = None
        self.stale_since: float | None = None
        self.exit_code: int | None = None
        self.signum: int | None = None
        self.outcome: Outcome | None = None
        self.from_platform = False
        self._outcomes: dict[int, Outcome] = {}
        self._started_ranks: set[int] = set()
        self._heard: float | None = None  # when a supervisor last wrote
        self._spoken: float | None = None  # when the platform last answered
        self._first_bad: float | None = None  # when a violent outcome was first seen
        self._told_end: float | None = None  # when the platform first told the end
        self._unknown = 0
        self._unknown_since: float | None = None
        self._unknown_reason = ""
        self._before: dict[int, Outcome] = {}  # of the attempt that is to be tried again
        self._shell: Mapping[str, Any] = {}
        self._shell_at = 0.0

    # -- what comes in ------------------------------------------------------------

    def records(self, rank: int, attempt: int, records: Sequence[Mapping[str, Any]], now: float) -> None:
        """New records of a process's supervisor; `now` is the caller's monotonic clock."""
        if attempt != self.attempt or self.state.terminal:
            return
        for record in records:
            self._heard = now
            if record["kind"] == "started":
                self._started_ranks.add(rank)
                self.hosts[rank] = str(record.get("host", ""))
                self.node = self.node or self.hosts[rank]
                at = record.get("t")
                if self.started is None and isinstance(at, int | float):
                    self.started = float(at)
                self._move(JobState.RUNNING, "")
            elif record["kind"] == "outcome":
                try:
                    outcome = msgspec.convert(record, Outcome)
                except msgspec.ValidationError:
                    continue  # damaged: the platform's word stands
                if outcome.state in _SAID:
                    self._outcomes[rank] = outcome
        self._merge_outcomes(now)

    def observe(self, seen: Observation, now: float, *, fresh: bool = True) -> None:
        """The platform's word. `fresh` is False for an answer that was already counted."""
        if self.state.terminal:
            return
        if fresh:
            self._spoken = now
        if seen.state is None:
            if fresh:
                self._unknown += seen.times
                self._unknown_reason = seen.reason
                if self._unknown_since is None:
                    self._unknown_since = now
            return
        self._unknown, self._unknown_since = 0, None
        if seen.restarts > self.attempt:
            self._restart(seen.restarts)
        elif self.judge and seen.restarts < self.attempt and not seen.state.terminal:
            self._told_end = None
            return  # it still speaks of the attempt before
        if seen.node:
            self.node = seen.node
        if seen.state.terminal:
            if self._told_end is None:
                self._told_end = now
            self._told = seen
            return
        self._told_end = None
        if seen.state is JobState.RUNNING and not self._started_ranks:
            self._move(JobState.STARTING, seen.reason)
        elif seen.state in (JobState.QUEUED, JobState.HELD) and self._started_ranks:
            # It ran and is queued again: a requeue whose count was not told.
            if self.judge and self._outcomes:
                self._move(JobState.REQUEUED, seen.reason)
        else:
            self._move(seen.state, seen.reason)

    @property
    def told_end(self) -> bool:
        """Whether the platform told an end, or knows no such job, and no supervisor explains it: the shell may."""
        return not self.state.terminal and not self._outcomes and (self._told_end is not None or self._unknown > 0)

    def shell(self, record: Mapping[str, Any], now: float) -> None:
        """The batch shell's own last record; it is all there is of what ended before Python.

        The shell writes after its supervisor: once its record is there, an
        outcome of the same node that is not will not come.
        """
        if not self._shell:
            self._shell, self._shell_at = record, now

    def submitted(self) -> None:
        """The platform took it."""
        if self.state is JobState.SUBMITTING:
            self._move(JobState.QUEUED, "")

    def refused(self, why: str) -> None:
        """The platform did not take it."""
        if not self.state.terminal:
            self._finish(JobState.LAUNCH_FAILED, why)

    def note(self, reason: str) -> None:
        """A word about a live state."""
        if not self.state.terminal:
            self.reason = reason

    def restore(self, end: End) -> None:
        """An end that was decided and kept earlier."""
        if self.state.terminal:
            return
        self._finish(end.state, end.reason, end.exit_code, end.signum)
        self.ended = end.time or self.ended

    # -- what follows -------------------------------------------------------------

    def decide(self, now: float, *, cancelled: bool = False) -> None:
        """Draw what conclusions time allows.

        Parameters
        ----------
        now : float
            The caller's monotonic clock.
        cancelled : bool
            Whether somebody asked for this task's end through us.
        """
        if self.state.terminal:
            return
        violent = self._first_bad is not None
        told = self._told if self._told_end is not None else None
        if violent:
            self._violent_end(told, now, cancelled)
        elif told is not None and self._told_end is not None:
            self._told_without_outcome(told, self._told_end, now, cancelled)
        elif self._unknown_since is not None and self._shell:
            self._told_without_outcome(_word_of(self._shell), self._unknown_since, now, cancelled)
        elif self._forgotten(now, at_once=cancelled and not self._started_ranks):
            if cancelled:
                self._finish(JobState.CANCELLED, "It was cancelled.", from_platform=True)
            elif self._started_ranks:
                why = self._unknown_reason or "It ended without a word."
                self._finish(JobState.DIED, why, from_platform=True)
            elif not self._fall_back():
                why = "The platform no longer knows the job, which never started: cancelled while it waited, maybe."
                self._finish(JobState.LOST, why, from_platform=True)
        self._watch_silence(now)

    def _forgotten(self, now: float, *, at_once: bool = False) -> bool:
        """Whether the platform says for long enough that it knows no such job."""
        since = self._unknown_since
        grace = 0.0 if at_once else self.unknown_grace
        return since is not None and self._unknown >= UNKNOWN_ANSWERS and now - since >= grace

    def _violent_end(self, told: Observation | None, now: float, cancelled: bool) -> None:
        """A signal ended it: ours, the platform's, or nobody knows whose."""
        assert self._first_bad is not None
        outcome = self._chosen()
        from_outside = outcome.state is JobState.CANCELLED
        grace = VERDICT_GRACE if from_outside else OUTCOME_GRACE
        forgotten = self._unknown >= UNKNOWN_ANSWERS
        if cancelled and (from_outside or outcome.signum is not None):
            self._finish(JobState.CANCELLED, "It was cancelled.", outcome.exit_code, outcome.signum)
        elif told is not None and told.state not in (JobState.SUCCEEDED, JobState.FAILED, JobState.DIED):
            self._end_by_platform(told, outcome)
        elif self.judge and told is None and not forgotten and now - self._first_bad < grace:
            self._move(JobState.FINISHING, outcome.reason)
        else:
            state, reason = JobState.DIED, outcome.reason
            if from_outside and told is None and outcome.overtime:
                state, reason = JobState.TIMED_OUT, f"Its time was over. {outcome.reason}"
            elif from_outside and told is None and forgotten and self.judge:
                # It was the platform's signal, and not a limit's.
                state, reason = JobState.CANCELLED, f"{outcome.reason} The platform no longer tells why."
            self._finish(state, reason, outcome.exit_code, outcome.signum, from_platform=self.judge)

    def _told_without_outcome(self, told: Observation, since: float, now: float, cancelled: bool) -> None:
        waited = now - since
        if told.state is JobState.SUCCEEDED:
            # While its supervisor is heard it lives, whatever ended well: a copy that was turned away, maybe.
            if now - max(since, self._heard or since) >= FINISHING_GRACE:
                if self._is_of_before(told) and self._fall_back():
                    return
                why = "It ended with exit code 0, but left no outcome."
                self._finish(JobState.DIED, why, told.exit_code, told.signum, from_platform=True)
            else:
                self._move(JobState.FINISHING, "It ended; its outcome is not visible yet.")
            return
        # What never started has no outcome to wait for.
        before_python = bool(self._shell) and self._shell.get("phase") != "launch"
        if before_python and told.state in (JobState.FAILED, JobState.DIED):
            told = msgspec.structs.replace(told, state=JobState.LAUNCH_FAILED)
        never = not self._started_ranks and told.state in (JobState.CANCELLED, JobState.LAUNCH_FAILED)
        last_word = bool(self._shell) and now - self._shell_at >= (
            SHELL_GRACE if self.world == 1 else OUTCOME_GRACE / 2
        )
        # Of an exit code the records know more; a shell that was killed, or what the platform ended, left none.
        coded = told.state is JobState.FAILED or (told.state is JobState.DIED and told.exit_code is not None)
        if waited >= (OUTCOME_GRACE if coded else WORD_GRACE) or never or last_word:
            if cancelled and told.state in (JobState.DIED, JobState.FAILED):
                told = msgspec.structs.replace(told, state=JobState.CANCELLED, reason="It was cancelled.")
            elif told.state in (JobState.FAILED, JobState.DIED) and self._is_of_before(told) and self._fall_back():
                return
            self._end_by_platform(told, None)
        else:
            self._move(JobState.FINISHING, told.reason)

    def _end_by_platform(self, told: Observation, outcome: Outcome | None) -> None:
        assert told.state is not None
        state = told.state
        if state is JobState.FAILED:
            # The platform saw an exit code; the user's code had no chance to say more.
            state = JobState.DIED if self._started_ranks else JobState.LAUNCH_FAILED
        code = told.exit_code if told.exit_code is not None else (outcome.exit_code if outcome else None)
        signum = told.signum or (outcome.signum if outcome else None)
        reason = str(self._shell.get("reason") or "") or told.reason or (outcome.reason if outcome else "")
        self._finish(state, reason, code, signum, from_platform=True)

    def _merge_outcomes(self, now: float) -> None:
        if not self._outcomes or self.state.terminal:
            return
        complete = len(self._outcomes) == self.world
        chosen = self._chosen()
        if chosen.retry:
            if complete or not self.judge:
                before = self._outcomes
                self._restart(self.attempt + 1)
                self._before = before
            return
        if chosen.state is JobState.SUCCEEDED and not complete:
            return
        by_itself = chosen.state is JobState.DIED and chosen.signum not in _FROM_OUTSIDE
        if chosen.state in _DECISIVE or (by_itself and complete):
            self._finish(chosen.state, chosen.reason, chosen.exit_code, chosen.signum)
        elif self._first_bad is None:
            self._first_bad = now

    def _chosen(self) -> Outcome:
        """The outcome that tells why."""
        self.rank = min(self._outcomes, key=lambda rank: (_SAID.index(self._outcomes[rank].state), rank))
        return self._outcomes[self.rank]

    def _is_of_before(self, told: Observation) -> bool:
        """Whether the platform speaks of the attempt before, and the next has not begun."""
        return told.restarts < self.attempt and not self._started_ranks

    def _fall_back(self) -> bool:
        """Take the outcome of the attempt before, where the one that should follow never came."""
        if not self._before:
            return False
        self._outcomes, self.attempt, self._before = self._before, self.attempt - 1, {}
        chosen = self._chosen()
        self._finish(chosen.state, chosen.reason, chosen.exit_code, chosen.signum, from_platform=True)
        return True

    def _restart(self, attempt: int) -> None:
        self.attempt = attempt
        self._before = {}
        self.node = ""
        self.hosts = {}
        self.rank = 0
        self._outcomes = {}
        self._started_ranks.clear()
        self._first_bad = self._told_end = self._heard = self._unknown_since = None
        self._unknown = 0
        self._shell = {}
        self.state, self.reason = JobState.REQUEUED, f"Attempt {attempt + 1} follows."

    def _move(self, state: JobState, reason: str) -> None:
        if may_follow(self.state, state):
            self.state = state
            self.reason = reason
        elif self.state is state and reason:
            self.reason = reason

    def _finish(
        self,
        state: JobState,
        reason: str,
        exit_code: int | None = None,
        signum: int | None = None,
        *,
        from_platform: bool = False,
    ) -> None:
        if self._before and not self._started_ranks:
            # What there is to see is that of the attempt before.
            self._outcomes, self.attempt, self._before = self._before, self.attempt - 1, {}
            self.outcome = self._chosen()
        elif self._outcomes:
            self.outcome = self._chosen()
            self.ended = max(outcome.t for outcome in self._outcomes.values()) or None
        self.state, self.reason = state, reason
        self.exit_code, self.signum = exit_code, signum
        self.from_platform = from_platform or (self.outcome is not None and self.outcome.state is not state)
        self.stale_since = None

    def _watch_silence(self, now: float) -> None:
        if self.state is JobState.RUNNING and self._heard is not None:
            silent = now - self._heard
            self.stale_since = self._heard if silent >= STALE_AFTER else None
        elif self.judge and not self.state.terminal and self.state not in (JobState.SUBMITTING, JobState.RUNNING):
            # How it waits is known from the platform alone.
            self._spoken = now if self._spoken is None else self._spoken
            self.stale_since = self._spoken if now - self._spoken >= STALE_AFTER else None
        else:
            self.stale_since = None

    _told: Observation = Observation(task=0, state=None)


def _word_of(shell: Mapping[str, Any]) -> Observation:
    """What the batch shell's record says of the end, where the platform has forgotten it."""
    code = shell.get("exit_code")
    if not isinstance(code, int):
        return Observation(task=0, state=JobState.DIED, reason="It ended without a word.")
    if code == 0:
        return Observation(task=0, state=JobState.SUCCEEDED, exit_code=0)
    if code > 128:  # how a shell says that what it ran was killed
        reason = f"What the batch shell ran was killed by signal {code - 128}."
        return Observation(task=0, state=JobState.DIED, reason=reason, exit_code=code, signum=code - 128)
    what = "A setup line ended the script" if shell.get("phase") == "setup" else "It ended"
    reason = str(shell.get("reason") or f"{what} with exit code {code}.")
    return Observation(task=0, state=JobState.FAILED, reason=reason, exit_code=code)
