"""Which state may follow which."""

from __future__ import annotations

import itertools
import json

import pytest

from clusterkernel.states import LIVE, TERMINAL, JobState, may_follow

PAIRS = list(itertools.product(JobState, JobState))


def test_every_state_is_either_live_or_terminal() -> None:
    assert set(JobState) == LIVE | TERMINAL
    assert not LIVE & TERMINAL
    for state in JobState:
        assert state.terminal == (state in TERMINAL)


@pytest.mark.parametrize("old", sorted(TERMINAL))
def test_a_terminal_state_is_final(old: JobState) -> None:
    assert not any(may_follow(old, new) for new in JobState)


@pytest.mark.parametrize("old", sorted(LIVE))
def test_a_live_state_may_end_any_way(old: JobState) -> None:
    assert all(may_follow(old, new) for new in TERMINAL)


@pytest.mark.parametrize("state", list(JobState))
def test_no_state_follows_itself(state: JobState) -> None:
    assert not may_follow(state, state)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *itertools.pairwise(
            [JobState.SUBMITTING, JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.FINISHING]
        ),
        (JobState.SUBMITTING, JobState.RUNNING),
        (JobState.QUEUED, JobState.HELD),
        (JobState.HELD, JobState.QUEUED),
    ],
)
def test_time_goes_forward(old: JobState, new: JobState) -> None:
    assert may_follow(old, new)


def test_late_news_of_an_earlier_state_is_dropped() -> None:
    for old, new in PAIRS:
        both_ways = may_follow(old, new) and may_follow(new, old)
        held = {old, new} == {JobState.QUEUED, JobState.HELD}
        requeued = old is not new and JobState.REQUEUED in {old, new} and {old, new} <= LIVE
        assert both_ways == (held or requeued)


@pytest.mark.parametrize("state", sorted(LIVE - {JobState.REQUEUED}))
def test_a_requeue_may_come_at_any_time(state: JobState) -> None:
    assert may_follow(state, JobState.REQUEUED)
    assert may_follow(JobState.REQUEUED, state)


def test_a_state_reads_as_its_name() -> None:
    # Texts, JSON records and pandas show it.
    for state in JobState:
        assert str(state) == f"{state}" == state.value == state.name
        assert JobState(json.loads(json.dumps(state))) is state
