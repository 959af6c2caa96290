"""Sending jobs to a platform that refuses, is silent, takes a part, or breaks; and what a dead sender leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkernel import rescue, submitter
from clusterkernel.arrays import JobArray
from clusterkernel.backends import registry
from clusterkernel.backends.slurm.backend import SlurmBackend
from clusterkernel.errors import BackendUnavailable, LimitReached, SubmissionError
from clusterkernel.jobfolder import WITHDRAWN, JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.jobs import of_folder
from clusterkernel.records import Submission
from clusterkernel.runtime import events
from clusterkernel.states import JobState
from clusterkernel.submitter import Submitter
from clusterkernel.watcher import stop_all
from tests.unit import making
from tests.unit.given import AWAY, Platform, make
from tests.unit.making import until


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    found = Platform()
    monkeypatch.setattr(registry, "get", lambda name: found)
    for pause in ("_PAUSE", "_LIMIT_PAUSE"):
        monkeypatch.setattr(submitter, pause, 0.05)
    yield found
    stop_all()


@pytest.fixture
def sender() -> Iterator[Submitter]:
    found = Submitter()
    yield found
    found.stop()


def ids(folder: JobFolder) -> list[tuple[str, int, int]]:
    submission = folder.submission()
    return list(submission.platform_ids) if submission else []


def test_jobs_are_sent_in_their_order(platform: Platform, sender: Submitter) -> None:
    folders = [make() for _ in range(5)]
    for folder in folders:
        sender.submit(folder)
    until(lambda: all(map(ids, folders)))
    assert platform.calls == [f"submit {folder.id}" for folder in folders]


def test_silence_is_followed_by_a_look_and_another_try(platform: Platform, sender: Submitter) -> None:
    platform.answers += [AWAY, AWAY]
    platform.found += [AWAY, None, None]
    first, second = make(), make()
    job = of_folder(first)
    sender.submit(first)
    sender.submit(second)
    until(lambda: ids(first) and ids(second))
    one, two = first.id, second.id
    assert platform.calls == [
        f"submit {one}", f"find {one}", f"find {one}", f"submit {one}", f"find {one}", f"submit {one}", f"submit {two}"
    ]  # fmt: skip
    assert job.state is not JobState.LAUNCH_FAILED


def test_what_is_found_is_not_sent_again(platform: Platform, sender: Submitter) -> None:
    platform.answers.append(AWAY)
    platform.found.append(Submission(platform_ids=(("77", 0, 1),)))
    folder = make()
    sender.submit(folder)
    until(lambda: ids(folder))
    assert ids(folder) == [("77", 0, 1)]
    assert platform.calls == [f"submit {folder.id}", f"find {folder.id}"]


def test_a_limit_holds_up_no_other_job(platform: Platform, sender: Submitter) -> None:
    platform.answers += [LimitReached("MaxSubmitJobs."), LimitReached("MaxSubmitJobs.")]
    folders = [make() for _ in range(3)]
    job = of_folder(folders[0])
    for folder in folders:
        sender.submit(folder)
    until(lambda: ids(folders[2]))
    until(lambda: ids(folders[0]))
    assert platform.calls.index(f"submit {folders[2].id}") < len(platform.calls) - 1
    assert not [call for call in platform.calls if call.startswith("find")], "a clear answer needs no look"
    until(lambda: job.state is JobState.QUEUED)


def test_what_is_taken_in_part_follows(platform: Platform, sender: Submitter) -> None:
    platform.answers += [(("a", 0, 4),), (("b", 4, 2),), LimitReached("Full."), (("c", 6, 2),)]
    folder = make(8)
    jobs = JobArray(folder)
    sender.submit(folder)
    until(lambda: len(ids(folder)) == 3)
    assert ids(folder) == [("a", 0, 4), ("b", 4, 2), ("c", 6, 2)]
    until(lambda: all(job.state is JobState.QUEUED for job in jobs))


def test_a_refusal_of_the_rest_ends_the_rest(platform: Platform, sender: Submitter) -> None:
    platform.answers += [(("a", 0, 2),), SubmissionError("Your account has expired.")]
    folder = make(3)
    jobs = JobArray(folder)
    sender.submit(folder)
    assert jobs[2].wait(making.CEILING) is JobState.LAUNCH_FAILED
    assert jobs[2].reason == "Your account has expired."
    assert [job.state for job in jobs[:2]] == [JobState.QUEUED, JobState.QUEUED]


def test_a_job_that_breaks_the_backend_does_not_keep_the_others_back(
    platform: Platform, sender: Submitter, caplog: pytest.LogCaptureFixture
) -> None:
    platform.answers += [ZeroDivisionError("division by zero"), SubmissionError("No such partition.")]
    folders = [make() for _ in range(3)]
    jobs = [of_folder(folder) for folder in folders]
    for folder in folders:
        sender.submit(folder)
    assert [job.wait(making.CEILING) for job in jobs[:2]] == [JobState.LAUNCH_FAILED] * 2
    assert [job.reason for job in jobs[:2]] == [
        "The job could not be sent: ZeroDivisionError: division by zero",
        "No such partition.",
    ]
    until(lambda: ids(folders[2]))
    assert "ZeroDivisionError" in caplog.text


def test_what_waits_behind_a_silent_platform_is_cancelled_at_once(
    platform: Platform, sender: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "_PAUSE", 1000.0)
    platform.answers.append(AWAY)
    folders = [make(), make()]
    jobs = [of_folder(folder) for folder in folders]
    for folder in folders:
        sender.submit(folder)
    until(lambda: "It is sent again by itself" in jobs[0].reason)
    assert jobs[1].cancel() is True
    assert jobs[1].wait(making.CEILING) is JobState.CANCELLED
    assert jobs[1].reason == rescue.CANCELLED
    assert jobs[0].cancel() is True
    assert jobs[0].wait(1.0) is JobState.SUBMITTING, "it may have been taken"


def test_a_cancel_that_comes_while_a_job_is_sent_reaches_it(platform: Platform, sender: Submitter) -> None:
    folder = make()
    submit = platform.submit

    def slow(one: JobFolder) -> Submission:
        one.request_cancel()
        return submit(one)

    platform.submit = slow  # type: ignore[method-assign]
    sender.submit(folder)
    until(lambda: platform.cancelled)
    assert platform.cancelled == [folder.id]


ENDED = "The kernel ended before it was sent. Send it with %cluster_rerun."


# -- what a dead sender leaves -------------------------------------------------------------


def test_a_sender_that_lives_is_left_alone() -> None:
    senders = rescue.Senders(JobRoot().path)
    assert not senders.gone(make().record, 0.0)
    gone = making.Forked(lambda: make().id)
    assert senders.gone(JobFolder(JobRoot().path / gone.said()).record, 0.0)


def test_what_is_withdrawn_cannot_run_any_more(platform: Platform) -> None:
    folder = make(3)
    folder.write_submission(Submission(platform_ids=(("a", 0, 1),)))
    assert rescue.withdraw(folder) == ""
    claims = [str(folder.path / "claims" / str(task)) for task in range(3)]
    assert [events.claim(claim, "copy") for claim in claims] == ["copy", WITHDRAWN, WITHDRAWN]
    assert rescue.withdraw(folder) == "", "twice is once"


def test_what_runs_is_not_withdrawn(platform: Platform) -> None:
    folder = make()
    events.claim(str(folder.path / "claims" / "0"), "81")
    assert rescue.withdraw(folder) == "81"
    rescue.rescue(folder, platform)
    assert (ids(folder), folder.refused()) == ([("81", 0, 1)], "")


@pytest.mark.parametrize(
    ("found", "known", "calls", "expected"),
    [
        (None, None, ["find"], "refused"),
        ((("a", 0, 3),), None, ["find"], [("a", 0, 3)]),
        ((("a", 0, 2),), None, ["find", "submit"], [("a", 0, 2), ("b", 2, 1)]),
        (None, (("a", 0, 2),), ["find", "submit"], [("a", 0, 2), ("b", 2, 1)]),
    ],
)
def test_a_rescue_keeps_finds_sends_or_ends(
    platform: Platform, found: Any, known: Any, calls: list[str], expected: Any
) -> None:
    folder = make(3)
    if known:
        folder.write_submission(Submission(platform_ids=known))
    platform.found.append(Submission(platform_ids=found) if found else None)
    platform.answers.append((("b", 2, 1),))
    rescue.rescue(folder, platform)
    assert [call.split()[0] for call in platform.calls] == calls
    assert (folder.refused() or ids(folder)) == (ENDED if expected == "refused" else expected)


def test_a_rescue_without_an_answer_concludes_nothing(platform: Platform) -> None:
    platform.found.append(AWAY)
    folder = make()
    with pytest.raises(BackendUnavailable):
        rescue.rescue(folder, platform)
    assert (ids(folder), folder.refused(), folder.holder()) == ([], "", "")


def test_the_rest_of_a_cancelled_array_is_not_sent(platform: Platform) -> None:
    folder = make(3)
    folder.write_submission(Submission(platform_ids=(("a", 0, 2),)))
    folder.request_cancel()
    rescue.rescue(folder, platform)
    assert platform.calls == [f"find {folder.id}"]
    jobs = JobArray(folder)
    assert jobs[2].wait(making.CEILING) is JobState.CANCELLED
    assert not jobs[0].state.terminal


@pytest.mark.parametrize(
    ("holder", "task", "known", "ids_then"),
    [
        ("82", 0, (("81", 0, 1),), [("82", 0, 1), ("81", 0, 1)]),
        ("81", 0, (("81", 0, 1),), None),
        ("", 0, (("81", 0, 1),), None),
        (WITHDRAWN, 0, (("81", 0, 1),), None),
        ("82", 0, (), [("82", 0, 1)]),
    ],
)
def test_the_copy_that_runs_is_adopted(holder: str, task: int, known: Any, ids_then: Any) -> None:
    folder = make()
    if known:
        folder.write_submission(Submission(platform_ids=known))
    if holder:
        events.claim(str(folder.path / "claims" / str(task)), holder)
    assert folder.adopt(task) is (ids_then is not None)
    assert ids(folder) == (ids_then or list(known))


def test_a_part_of_an_array_is_adopted_in_the_place_of_its_twin() -> None:
    folder = make(6)
    folder.write_submission(Submission(platform_ids=(("81", 0, 4), ("82", 4, 2))))
    events.claim(str(folder.path / "claims" / "5"), "90_1")
    assert folder.adopt(5)
    assert ids(folder) == [("81", 0, 4), ("90", 4, 2), ("82", 4, 2)]
    events.claim(str(folder.path / "claims" / "2"), "91_1")
    assert not folder.adopt(2), "of a part without a twin nobody knows how long it is"


# -- two clusters behind one backend ----------------------------------------------------------


def test_each_cluster_is_asked_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend, seen = SlurmBackend(), []
    for conf in ("", str(tmp_path / "a.conf"), str(tmp_path / "b.conf")):
        monkeypatch.setitem(os.environ, "SLURM_CONF", conf)
        seen.append(backend.lane)
    assert len(set(seen)) == 3
    assert all(name.replace("-", "").isalnum() for name in seen), "it is part of a file's name"
