"""What is true of a task: the supervisors' records and the platform's word, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clusterkernel import truth
from clusterkernel.backends.base import Observation
from clusterkernel.records import End
from clusterkernel.states import TERMINAL, JobState, may_follow
from clusterkernel.truth import TaskTruth

S = JobState
DAMAGED: list[Any] = [
    {"kind": "outcome"},
    {"kind": "outcome", "state": "NONSENSE"},
    {"kind": "outcome", "state": "RUNNING"},
    {"kind": "outcome", "state": "NODE_LOST"},
    {"kind": "outcome", "state": None},
    {"kind": "outcome", "state": "FAILED", "exit_code": "x"},
    {"kind": "outcome", "state": "FAILED", "outputs": []},
    {"kind": "outcome", "state": "FAILED", "retry": "perhaps"},
    {"kind": "started", "t": "soon", "host": None},
    {"kind": "started"},
    {"kind": 5},
    {"kind": "nonsense", "t": []},
]


class Story:
    """A task and the clock of who watches it; each word is one line of a story."""

    def __init__(self, world: int = 1, *, judge: bool = True) -> None:
        self.task = TaskTruth(world, judge=judge, **({} if judge else {"unknown_grace": 1.0}))
        self.now = 100.0
        self.asked = False
        self.task.submitted()

    def started(self, rank: int = 0, *, attempt: int = 0) -> Story:
        return self.record("started", rank=rank, attempt=attempt, host="cpu1")

    def record(self, kind: str, *, rank: int = 0, attempt: int = 0, **fields: Any) -> Story:
        self.task.records(rank, attempt, [{"t": 1000 + self.now, "kind": kind, **fields}], self.now)
        return self.decide()

    def outcome(self, state: JobState, *, rank: int = 0, attempt: int = 0, **fields: Any) -> Story:
        return self.record("outcome", rank=rank, attempt=attempt, state=state.value, **fields)

    def told(self, state: JobState | None, reason: str = "", **fields: Any) -> Story:
        self.task.observe(Observation(task=0, state=state, reason=reason, **fields), self.now)
        return self.decide()

    def cancel(self) -> Story:
        self.asked = True
        return self.decide()

    def after(self, seconds: float) -> Story:
        self.now += seconds
        return self.decide()

    def decide(self) -> Story:
        self.task.decide(self.now, cancelled=self.asked)
        return self

    @property
    def state(self) -> JobState:
        return self.task.state


GRACE = truth.OUTCOME_GRACE
WORD = truth.WORD_GRACE
LONG = truth.FINISHING_GRACE


def lines(story: Story, *steps: tuple[Callable[[Story], Story], JobState]) -> None:
    """Tell a story; the state after each line is given."""
    for number, (step, state) in enumerate(steps):
        assert step(story).state is state, f"after line {number}"


def silence(story: Story) -> tuple[JobState, float | None]:
    return story.state, story.task.stale_since


# -- the ordinary way ------------------------------------------------------------------------


def test_a_job_runs_and_does_well() -> None:
    story = Story()
    lines(
        story,
        (lambda s: s.told(S.QUEUED, "It waits."), S.QUEUED),
        (lambda s: s.told(S.HELD, "Held."), S.HELD),
        (lambda s: s.told(S.QUEUED), S.QUEUED),
        (lambda s: s.told(S.RUNNING, node="cpu1"), S.STARTING),
        (lambda s: s.started(), S.RUNNING),
        (lambda s: s.record("running"), S.RUNNING),
        (lambda s: s.told(S.RUNNING), S.RUNNING),
        (lambda s: s.told(S.QUEUED), S.RUNNING),  # late news
        (lambda s: s.record("heartbeat"), S.RUNNING),
        (lambda s: s.outcome(S.SUCCEEDED, result="ok"), S.SUCCEEDED),
    )
    assert story.task.outcome is not None
    assert story.task.outcome.result == "ok"
    assert (story.task.node, story.task.started, story.task.ended) == ("cpu1", 1100.0, 1100.0)
    assert not story.task.from_platform, "the records say it: nothing is to be kept beside them"


def test_records_alone_are_enough() -> None:
    lines(Story(), (lambda s: s.started(), S.RUNNING), (lambda s: s.outcome(S.SUCCEEDED), S.SUCCEEDED))


@pytest.mark.parametrize("state", sorted(truth._DECISIVE))
@pytest.mark.parametrize("told", [None, "before", "after"])
def test_what_the_supervisor_knows_better_stands_at_once(state: JobState, told: str | None) -> None:
    story = Story().started()
    if told == "before":
        story.told(S.FAILED, exit_code=1)
        assert not story.state.terminal, "its own word may come yet"
    story.outcome(state, reason="Why.", exit_code=3)
    assert story.state is state
    if told == "after":
        story.told(S.CANCELLED, "It was cancelled in Slurm.").after(1000)
    assert (story.state, story.task.reason, story.task.exit_code) == (state, "Why.", 3)


def test_a_refusal_is_an_end() -> None:
    task = TaskTruth(1)
    task.note("Slurm does not answer. It is sent again by itself.")
    assert (task.state, task.reason) == (S.SUBMITTING, "Slurm does not answer. It is sent again by itself.")
    task.refused("sbatch: error: Invalid account")
    assert (task.state, task.reason) == (S.LAUNCH_FAILED, "sbatch: error: Invalid account")
    task.note("late")
    assert task.reason == "sbatch: error: Invalid account"


# -- the platform alone ------------------------------------------------------------------------


@pytest.mark.parametrize("state", [S.CANCELLED, S.LAUNCH_FAILED])
def test_what_never_started_has_nothing_to_wait_for(state: JobState) -> None:
    story = Story().told(state, "Why.")
    assert (story.state, story.task.reason) == (state, "Why.")
    assert story.task.from_platform, "the platform forgets: it is to be kept"


@pytest.mark.parametrize(
    ("told", "before", "running"),
    [
        (S.TIMED_OUT, S.TIMED_OUT, S.TIMED_OUT),
        (S.NODE_LOST, S.NODE_LOST, S.NODE_LOST),
        (S.OUT_OF_MEMORY, S.OUT_OF_MEMORY, S.OUT_OF_MEMORY),
        (S.FAILED, S.LAUNCH_FAILED, S.DIED),
        (S.DIED, S.DIED, S.DIED),
        (S.CANCELLED, S.CANCELLED, S.CANCELLED),
    ],
)
@pytest.mark.parametrize("ran", [False, True])
def test_the_platform_tells_the_end(told: JobState, before: JobState, running: JobState, ran: bool) -> None:
    story = Story()
    if ran:
        story.started()
    story.told(told, "Why.", exit_code=7, signum=9)
    if ran:
        grace = GRACE if told in (S.FAILED, S.DIED) else WORD
        assert story.state is S.FINISHING, "an outcome may be on its way"
        story.after(grace - 0.1)
        assert story.state is S.FINISHING
    story.after(GRACE)
    assert story.state is (running if ran else before)
    assert (story.task.reason, story.task.exit_code, story.task.signum) == ("Why.", 7, 9)
    assert story.task.from_platform


def test_exit_code_0_without_an_outcome_waits_long_and_is_a_death() -> None:
    story = Story().started().told(S.SUCCEEDED)
    assert (story.state, story.task.reason) == (S.FINISHING, "It ended; its outcome is not visible yet.")
    story.after(LONG - 1)
    assert story.state is S.FINISHING
    story.after(1)
    assert (story.state, story.task.reason) == (S.DIED, "It ended with exit code 0, but left no outcome.")


def test_an_outcome_that_becomes_visible_late_counts() -> None:
    story = Story().started().told(S.SUCCEEDED).after(LONG - 1).outcome(S.FAILED, reason="ValueError")
    assert (story.state, story.task.reason) == (S.FAILED, "ValueError")


def test_a_copy_that_was_turned_away_ends_nothing() -> None:
    # The platform speaks of the second copy of a submission that it was sent twice; the first one runs.
    story = Story().started().told(S.SUCCEEDED)
    for _ in range(50):
        story.after(10).record("heartbeat").told(S.SUCCEEDED)
    assert not story.state.terminal
    assert story.outcome(S.SUCCEEDED).state is S.SUCCEEDED


def test_an_end_that_the_platform_takes_back_is_none() -> None:
    story = Story().started().told(S.NODE_LOST).after(WORD - 1).told(S.RUNNING).after(GRACE)
    assert not story.state.terminal


# -- cancels and signals --------------------------------------------------------------------------


def test_our_cancel_is_one() -> None:
    story = Story().started().cancel()
    assert story.state is S.RUNNING, "asking is not the end"
    story.outcome(S.CANCELLED, reason="It was ended by SIGTERM (15).", signum=15)
    assert (story.state, story.task.reason, story.task.signum) == (S.CANCELLED, "It was cancelled.", 15)


def test_a_payload_that_had_to_be_killed_was_cancelled_too() -> None:
    assert Story().started().cancel().outcome(S.DIED, signum=9).state is S.CANCELLED


def test_a_job_that_ends_before_its_cancel_arrives_keeps_its_end() -> None:
    assert Story().started().cancel().outcome(S.SUCCEEDED).state is S.SUCCEEDED
    assert Story().started().cancel().outcome(S.FAILED).state is S.FAILED
    story = Story().started().cancel().outcome(S.DIED, exit_code=9).after(GRACE)
    assert story.state is S.DIED


def test_a_cancel_of_what_waits() -> None:
    assert Story().cancel().told(S.CANCELLED).state is S.CANCELLED
    story = Story().cancel().told(None).after(GRACE).told(None)
    assert story.state is S.CANCELLED, "the platform has forgotten it: that is what was asked for"
    assert Story(judge=False).cancel().outcome(S.CANCELLED).state is S.CANCELLED


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (S.CANCELLED, S.CANCELLED),
        (S.TIMED_OUT, S.TIMED_OUT),
        (S.NODE_LOST, S.NODE_LOST),
        (S.OUT_OF_MEMORY, S.OUT_OF_MEMORY),
        (S.FAILED, S.DIED),
        (S.DIED, S.DIED),
        (S.SUCCEEDED, S.DIED),
    ],
)
@pytest.mark.parametrize("first", ["outcome", "told"])
def test_the_platform_tells_whose_signal_it_was(told: JobState, state: JobState, first: str) -> None:
    story = Story().started()
    if first == "outcome":
        story.outcome(S.CANCELLED, reason="It was ended by SIGTERM (15).", signum=15)
        assert story.state is S.FINISHING, "why is for the platform to say"
        story.after(4).told(told, "The platform's reason.")
    else:
        story.told(told, "The platform's reason.").outcome(
            S.CANCELLED, reason="It was ended by SIGTERM (15).", signum=15
        )
    assert story.state is state
    ours = state is S.DIED
    assert story.task.reason == ("It was ended by SIGTERM (15)." if ours else "The platform's reason.")
    assert story.task.signum == 15
    assert story.task.from_platform


def test_a_signal_is_not_explained_while_the_platform_does_not_answer() -> None:
    # squeue fails for a minute: a job at its time limit is not told as having died.
    story = Story().started().outcome(S.CANCELLED, signum=15).after(60)
    assert story.state is S.FINISHING
    story.told(S.FINISHING).after(20)  # its epilog runs
    assert story.state is S.FINISHING
    assert story.told(S.TIMED_OUT).state is S.TIMED_OUT


def test_a_signal_that_nobody_explains_is_a_death() -> None:
    story = Story().started().outcome(S.CANCELLED, reason="It was ended by SIGTERM (15).", signum=15)
    story.after(truth.VERDICT_GRACE)
    assert (story.state, story.task.reason) == (S.DIED, "It was ended by SIGTERM (15).")


def test_a_signal_that_the_platform_has_forgotten_was_its_own() -> None:
    said = "It was ended by SIGTERM (15)."
    forgotten = Story().started().outcome(S.CANCELLED, reason=said, signum=15).told(None)
    assert forgotten.state is S.FINISHING
    forgotten.told(None)
    assert (forgotten.state, forgotten.task.reason) == (S.CANCELLED, f"{said} The platform no longer tells why.")
    late = Story().started().outcome(S.CANCELLED, reason=said, signum=15, overtime=True).told(None).told(None)
    assert (late.state, late.task.reason) == (S.TIMED_OUT, f"Its time was over. {said}")
    assert Story().started().outcome(S.DIED, signum=9).told(None).told(None).state is S.DIED


@pytest.mark.parametrize("about", [{"exit_code": 9}, {"signum": 11}])
def test_a_payload_that_dies_by_itself_is_told_at_once(about: dict[str, int]) -> None:
    story = Story().started().outcome(S.DIED, reason="Why.", **about)
    assert (story.state, story.task.reason) == (S.DIED, "Why.")
    assert not story.task.from_platform
    several = Story(world=2).started(0).started(1).outcome(S.DIED, rank=1, **about)
    assert several.state is S.FINISHING, "another rank may have caused it"
    assert several.outcome(S.FAILED, rank=0, reason="ValueError").state is S.FAILED


@pytest.mark.parametrize(
    ("code", "phase", "ran", "state", "reason"),
    [
        (1, "setup", False, S.LAUNCH_FAILED, "A setup line ended the script with exit code 1."),
        (127, "launch", False, S.LAUNCH_FAILED, "It ended with exit code 127."),
        (137, "launch", True, S.DIED, "What the batch shell ran was killed by signal 9."),
        (1, "launch", True, S.DIED, "It ended with exit code 1."),
        ("?", "launch", True, S.DIED, "It ended without a word."),
        (0, "launch", True, S.FINISHING, "It ended; its outcome is not visible yet."),
    ],
)
def test_the_batch_shell_tells_what_the_platform_has_forgotten(
    code: Any, phase: str, ran: bool, state: JobState, reason: str
) -> None:
    story = Story().started() if ran else Story()
    story.told(None)
    assert story.task.told_end, "now is the time to look for the shell's record"
    story.task.shell({"phase": phase, "exit_code": code}, story.now)
    story.after(truth.SHELL_GRACE)
    assert (story.state, story.task.reason) == (state, reason)


def test_a_payload_that_was_killed_is_told_soon() -> None:
    story = Story().started().outcome(S.DIED, reason="It was ended by SIGKILL (9).", signum=9)
    assert story.state is S.FINISHING, "for want of memory, maybe: the platform may know"
    story.after(GRACE)
    assert (story.state, story.task.reason, story.task.signum) == (S.DIED, "It was ended by SIGKILL (9).", 9)
    assert story.task.from_platform, "what took time to decide is kept, so that no other kernel decides it again"
    assert Story().started().outcome(S.DIED, signum=9).told(S.OUT_OF_MEMORY).state is S.OUT_OF_MEMORY
    assert Story().started().outcome(S.DIED, signum=9).told(S.FAILED).state is S.DIED


def test_where_the_platform_knows_no_more_a_death_is_told_at_once() -> None:
    assert Story(judge=False).started().outcome(S.DIED, signum=9).state is S.DIED
    assert Story(judge=False).started().outcome(S.CANCELLED, signum=15).state is S.DIED
    assert Story(judge=False).started().cancel().outcome(S.CANCELLED, signum=15).state is S.CANCELLED


# -- answers that fail or do not know -------------------------------------------------------------


def test_a_poll_that_fails_says_nothing() -> None:
    story = Story().started().after(30)  # nobody calls observe
    assert story.state is S.RUNNING


def test_once_unknown_is_nothing() -> None:
    story = Story().told(S.QUEUED, "It waits.").told(None, "Slurm does not know the job.").after(1000)
    assert (story.state, story.task.reason) == (S.QUEUED, "It waits.")
    assert Story().started().told(None).after(1000).state is S.RUNNING


def test_an_answer_that_was_counted_already_counts_once() -> None:
    story = Story().told(S.QUEUED)
    for _ in range(10):
        story.task.observe(Observation(task=0, state=None), story.now, fresh=False)
        story.after(10)
    story.told(None).after(1000)
    assert story.state is S.QUEUED


def test_twice_unknown_is_the_end_after_a_while() -> None:
    story = Story().told(None).after(WORD - 1).told(None)
    assert story.state is S.QUEUED, "a record may be on its way"
    story.after(1)
    assert (story.state, story.task.reason) == (
        S.LOST,
        "The platform no longer knows the job, which never started: cancelled while it waited, maybe.",
    )
    story = (
        Story()
        .started()
        .told(None, "Its runner on this machine has ended.")
        .after(GRACE)
        .told(None, "Its runner on this machine has ended.")
    )
    assert (story.state, story.task.reason) == (S.DIED, "Its runner on this machine has ended.")


def test_a_word_in_between_starts_the_count_again() -> None:
    story = Story().started()
    for _ in range(20):
        story.told(None, "It is gone.").after(5).told(S.RUNNING).after(5)
    assert (story.state, story.task.reason) == (S.RUNNING, "")


def test_an_outcome_ends_the_waiting() -> None:
    assert Story().started().told(None).told(None).after(WORD - 1).outcome(S.SUCCEEDED).state is S.SUCCEEDED


# -- silence ------------------------------------------------------------------------------------


def test_a_silent_task_is_stale_and_no_more() -> None:
    story = Story().started().after(truth.STALE_AFTER - 1)
    assert story.task.stale_since is None
    story.after(1)
    assert silence(story) == (S.RUNNING, 100.0)
    assert silence(story.told(S.RUNNING).after(1e6)) == (S.RUNNING, 100.0)
    assert silence(story.record("heartbeat")) == (S.RUNNING, None)
    assert silence(story.after(1e6).outcome(S.SUCCEEDED)) == (S.SUCCEEDED, None)


def test_what_waits_is_stale_while_the_platform_is_silent() -> None:
    for state in (S.QUEUED, S.RUNNING):  # the latter has not started as far as its records tell
        story = Story().told(state)
        said = story.now
        assert silence(story.after(truth.STALE_AFTER - 1))[1] is None
        assert silence(story.after(1))[1] == said
        assert silence(story.told(state))[1] is None
    assert Story(judge=False).told(S.QUEUED).after(1e6).task.stale_since is None
    assert Story().decide().after(truth.STALE_AFTER).task.stale_since == 100.0, (
        "a kernel that starts while it is silent"
    )


# -- several ranks --------------------------------------------------------------------------------


def test_all_ranks_have_to_do_well() -> None:
    story = Story(world=3)
    for rank in range(3):
        story.started(rank)
    story.outcome(S.SUCCEEDED, rank=2).outcome(S.SUCCEEDED, rank=0).told(S.RUNNING).after(1000)
    assert story.state is S.RUNNING
    assert story.outcome(S.SUCCEEDED, rank=1).state is S.SUCCEEDED


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_users_error_comes_before_the_signals_that_it_caused(order: tuple[int, int]) -> None:
    story = Story(world=2).started(0).started(1)
    said: dict[int, dict[str, Any]] = {
        0: {"state": S.CANCELLED, "signum": 15},
        1: {"state": S.FAILED, "reason": "ValueError: x", "error": {"type": "ValueError"}},
    }
    for rank in order:
        story.outcome(rank=rank, **said[rank])
    assert (story.state, story.task.reason) == (S.FAILED, "ValueError: x")
    assert story.task.outcome is not None
    assert story.task.outcome.error == {"type": "ValueError"}


def test_one_rank_that_dies_ends_the_job() -> None:
    story = Story(world=2).started(0).started(1).outcome(S.DIED, rank=1, signum=9).after(GRACE)
    assert story.state is S.DIED


def test_a_rank_whose_supervisor_was_lost() -> None:
    story = Story(world=2).started(0).started(1).outcome(S.SUCCEEDED, rank=0).told(S.NODE_LOST).after(GRACE)
    assert story.state is S.NODE_LOST


def test_a_local_job_of_which_one_rank_is_through_runs_on() -> None:
    # Its platform says QUEUED as long as the runner lives.
    story = Story(world=2, judge=False).started(0).started(1).outcome(S.SUCCEEDED, rank=0).told(S.QUEUED)
    assert story.state is S.RUNNING
    assert story.outcome(S.SUCCEEDED, rank=1).state is S.SUCCEEDED


# -- attempts -------------------------------------------------------------------------------------


def test_a_requeue_that_the_platform_counts() -> None:
    story = Story().started().told(S.NODE_LOST, node="cpu1").after(2)
    lines(
        story,
        (lambda s: s.told(S.QUEUED, "It waits.", restarts=1), S.QUEUED),
        (lambda s: s.outcome(S.FAILED), S.QUEUED),  # of the orphan of the attempt before
        (lambda s: s.started(), S.QUEUED),
        (lambda s: s.after(1000), S.QUEUED),
        (lambda s: s.started(attempt=1), S.RUNNING),
        (lambda s: s.outcome(S.SUCCEEDED, attempt=1), S.SUCCEEDED),
    )
    assert story.task.attempt == 1
    assert story.task.node == "cpu1"


def test_a_requeue_forgets_the_node() -> None:
    story = Story().started().told(S.REQUEUED, restarts=1)
    assert (story.state, story.task.node, story.task.attempt) == (S.REQUEUED, "", 1)


def test_an_outcome_that_is_to_be_tried_again_is_no_end() -> None:
    story = Story().started().outcome(S.FAILED, retry=True)
    assert (story.state, story.task.attempt, story.task.reason) == (S.REQUEUED, 1, "Attempt 2 follows.")
    lines(
        story,
        (lambda s: s.told(S.RUNNING), S.REQUEUED),  # of the attempt before, which is just ending
        (lambda s: s.told(S.FAILED), S.FINISHING),
        (lambda s: s.told(S.QUEUED), S.FINISHING),
        (lambda s: s.after(1000), S.FINISHING),
        (lambda s: s.started(attempt=1), S.FINISHING),
        (lambda s: s.outcome(S.SUCCEEDED, attempt=1), S.SUCCEEDED),
    )


def test_all_ranks_are_waited_for_before_the_next_attempt() -> None:
    story = Story(world=2).started(0).started(1).outcome(S.FAILED, retry=True)
    assert story.task.attempt == 0
    assert story.outcome(S.CANCELLED, rank=1, signum=15).task.attempt == 1
    local = Story(world=2, judge=False).started(0).started(1).outcome(S.FAILED, retry=True)
    assert local.task.attempt == 1


@pytest.mark.parametrize("told", [S.FAILED, S.DIED, S.SUCCEEDED, None])
def test_an_attempt_that_never_comes_leaves_the_outcome_before(told: JobState | None) -> None:
    # Slurm would not requeue it; or the local runner was killed during the pause.
    story = Story(judge=told is not None).started()
    story.outcome(S.FAILED, retry=True, reason="ValueError", error={"type": "ValueError"})
    story.told(told, "It ended with exit code 1.").after(LONG).told(told, "It ended with exit code 1.")
    assert (story.state, story.task.reason, story.task.attempt) == (S.FAILED, "ValueError", 0)
    assert story.task.outcome is not None
    assert story.task.outcome.error == {"type": "ValueError"}
    assert story.task.from_platform


def test_a_requeue_of_what_did_well_in_part_is_no_success() -> None:
    story = Story(world=2).started(0).outcome(S.SUCCEEDED, rank=0).told(S.QUEUED, restarts=1).told(S.DIED).after(GRACE)
    assert story.state is S.DIED


def test_a_cancel_before_the_next_attempt() -> None:
    story = (
        Story()
        .started()
        .outcome(S.FAILED, retry=True)
        .cancel()
        .told(S.CANCELLED, "It was cancelled by me.", restarts=1)
    )
    assert (story.state, story.task.reason) == (S.CANCELLED, "It was cancelled by me.")
    assert story.task.attempt == 0, "whose output there is"


# -- damage and late words --------------------------------------------------------------------------


@pytest.mark.parametrize("record", DAMAGED, ids=str)
def test_a_damaged_record_costs_itself_alone(record: dict[str, Any]) -> None:
    story = Story().started()
    story.task.records(0, 0, [record], story.now)
    assert story.decide().state is S.RUNNING
    ended = story.told(S.FAILED, exit_code=1).after(GRACE)
    assert ended.state is S.DIED, "the platform's word stands"
    story = Story()
    story.task.records(0, 0, [record], story.now)
    assert story.outcome(S.SUCCEEDED).state is S.SUCCEEDED


def test_what_comes_after_the_end_is_ignored() -> None:
    story = Story().started().outcome(S.FAILED, reason="ValueError")
    story.outcome(S.SUCCEEDED).started(attempt=1).told(S.RUNNING).told(S.CANCELLED, restarts=3).cancel().after(1e6)
    story.task.refused("no")
    story.task.note("no")
    story.task.restore(End(state=S.LOST))
    assert (story.state, story.task.reason, story.task.attempt) == (S.FAILED, "ValueError", 0)


def test_an_end_that_was_kept_is_taken() -> None:
    task = TaskTruth(1)
    task.records(
        0,
        0,
        [{"t": 5.0, "kind": "started", "host": "cpu1"}, {"kind": "outcome", "state": "DIED", "signum": 9, "t": 7.0}],
        100.0,
    )
    task.restore(End(state=S.TIMED_OUT, reason="Its time was over.", signum=15, time=9.0))
    assert (task.state, task.reason, task.signum, task.ended) == (S.TIMED_OUT, "Its time was over.", 15, 9.0)
    assert task.outcome is not None


def test_the_batch_shells_word_is_that_of_one_attempt() -> None:
    story = Story().told(S.FAILED)
    story.task.shell({"phase": "setup", "reason": "module: not found"}, story.now)
    story.told(S.QUEUED, restarts=1).told(S.FAILED, "It ended with exit code 1.", restarts=1).after(GRACE)
    assert (story.state, story.task.reason) == (S.LAUNCH_FAILED, "It ended with exit code 1.")


# -- any order --------------------------------------------------------------------------------------

RANKS = 2
LIVE = [S.QUEUED, S.HELD, S.STARTING, S.RUNNING, S.REQUEUED, S.FINISHING]
SAID = sorted({*truth._SAID} - {S.SUCCEEDED})


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes: an end is final, states go forward, the clock of `ended` is that of the records."""

    @initialize(world=st.integers(1, RANKS), judge=st.booleans())
    def begin(self, world: int, judge: bool) -> None:
        self.story = Story(world, judge=judge)
        self.world = world
        self.said: dict[int, str] = {}
        self.well: set[int] = set()
        self.spoiled = False
        self.last: tuple[Any, ...] | None = None
        self.seen = self.story.state
        self.seen_attempt = 0

    @rule(seconds=st.sampled_from([0.1, 1, 5, GRACE, 40, LONG]))
    def time_goes_by(self, seconds: float) -> None:
        self.story.after(seconds)

    @rule(rank=st.integers(0, RANKS - 1), attempt=st.integers(0, 2))
    def starts(self, rank: int, attempt: int) -> None:
        self.story.started(rank % self.world, attempt=attempt)

    @rule(
        rank=st.integers(0, RANKS - 1),
        attempt=st.integers(0, 2),
        kind=st.sampled_from(["running", "heartbeat", "signal", "?"]),
    )
    def says(self, rank: int, attempt: int, kind: str) -> None:
        self.story.record(kind, rank=rank % self.world, attempt=attempt)

    @rule(record=st.sampled_from(DAMAGED), rank=st.integers(0, RANKS - 1))
    def says_nonsense(self, record: dict[str, Any], rank: int) -> None:
        self.story.task.records(rank % self.world, self.story.task.attempt, [record], self.story.now)
        self.story.decide()

    def may_restart(self, restarts: int) -> None:
        if restarts > self.story.task.attempt and not self.story.state.terminal:
            self.well.clear()  # that was another attempt

    @rule(rank=st.integers(0, RANKS - 1))
    def does_well(self, rank: int) -> None:
        rank %= self.world
        was_open = not self.story.state.terminal
        if was_open:
            self.well.add(rank)
        self.story.outcome(S.SUCCEEDED, rank=rank, attempt=self.story.task.attempt)
        if was_open and not self.spoiled:
            assert (self.story.state is S.SUCCEEDED) == (len(self.well) == self.world)

    @rule(
        rank=st.integers(0, RANKS - 1),
        state=st.sampled_from(SAID),
        retry=st.booleans(),
        signum=st.sampled_from([None, 9, 15]),
    )
    def does_badly(self, rank: int, state: JobState, retry: bool, signum: int | None) -> None:
        self.spoiled = True
        self.story.outcome(state, rank=rank % self.world, attempt=self.story.task.attempt, retry=retry, signum=signum)

    @rule(state=st.sampled_from([*LIVE, None]), restarts=st.integers(0, 2), reason=st.sampled_from(["", "Why."]))
    def platform_says(self, state: JobState | None, restarts: int, reason: str) -> None:
        if state is not None:
            self.may_restart(restarts)
        self.story.told(state, reason, restarts=restarts)

    @rule(state=st.sampled_from(sorted(TERMINAL)), restarts=st.integers(0, 2))
    def platform_says_the_end(self, state: JobState, restarts: int) -> None:
        self.may_restart(restarts)
        self.story.told(state, restarts=restarts)

    @rule(fresh=st.booleans())
    def platform_repeats(self, fresh: bool) -> None:
        self.story.task.observe(Observation(task=0, state=None), self.story.now, fresh=fresh)
        self.story.decide()

    @rule()
    def is_cancelled(self) -> None:
        self.story.cancel()

    @precondition(lambda self: self.story.state.terminal)
    @rule(state=st.sampled_from(sorted(TERMINAL)))
    def is_restored_late(self, state: JobState) -> None:
        self.story.task.restore(End(state=state))

    @invariant()
    def an_end_is_final(self) -> None:
        task = self.story.task
        now = (task.state, task.reason, task.exit_code, task.signum, task.attempt, task.outcome, task.ended)
        if self.last is not None:
            assert now == self.last
        if task.state.terminal:
            self.last = now
            assert task.stale_since is None

    @invariant()
    def states_go_forward(self) -> None:
        task = self.story.task
        if task.state is not self.seen and task.attempt == self.seen_attempt:
            assert may_follow(self.seen, task.state)
        self.seen, self.seen_attempt = task.state, task.attempt

    @invariant()
    def no_success_without_all_ranks(self) -> None:
        if self.story.state is S.SUCCEEDED:
            assert self.story.task.outcome is not None
            assert len(self.well) == self.world or self.spoiled

    @invariant()
    def what_has_ended_is_not_stale(self) -> None:
        assert self.story.task.stale_since is None or not self.story.state.terminal


AnyOrder.TestCase.settings = settings(
    deadline=None, max_examples=60, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyOrder = AnyOrder.TestCase
