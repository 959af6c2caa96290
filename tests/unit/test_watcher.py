"""Many jobs under one watch, in several kernels: one that is damaged, silent or gone hides no other."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from clusterkernel import executor, index, lookup, patience, rescue, submission, submitter, watcher
from clusterkernel.arrays import JobArray
from clusterkernel.backends import registry
from clusterkernel.errors import BackendUnavailable, ClusterKernelError, JobLost, UnreadableJobError
from clusterkernel.files import write_atomic
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot, default_root
from clusterkernel.jobs import Job, of_folder
from clusterkernel.ledger import Ledger
from clusterkernel.magics import greeting
from clusterkernel.records import Submission
from clusterkernel.states import JobState
from clusterkernel.submitter import Submitter
from clusterkernel.tracking import Tracking
from tests.unit import making
from tests.unit.given import AWAY, Platform, make
from tests.unit.making import until


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    found = Platform()
    monkeypatch.setattr(registry, "get", lambda name: found)
    for module, pause in ((watcher, "_REPEAT"), (submitter, "_LIMIT_PAUSE")):
        monkeypatch.setattr(module, pause, 0.05)
    yield found
    watcher.stop_all()


@pytest.fixture
def sender() -> Iterator[Submitter]:
    found = Submitter()
    yield found
    found.stop()


def sent(tasks: int | None = None) -> JobFolder:
    folder = make(tasks)
    folder.prepare()
    folder.write_submission(Submission(platform_ids=((f"p{folder.id}", 0, tasks or 1),)))
    return folder


# -- damage ------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"\xff\0garbage"),
    "empty": lambda path: path.write_bytes(b""),
    "another thing": lambda path: path.write_bytes(b'{"schema": 1}'),
    "newer": lambda path: path.write_bytes(b'{"schema": 999}'),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_job_is_listed_and_hides_no_other(platform: Platform, damage: str, known: bool) -> None:
    folders = [sent() for _ in range(3)]
    if known:
        assert [view.state for view in submission.summaries()] == [JobState.QUEUED] * 3
        platform.polled.clear()
    DAMAGES[damage](folders[1].path / "job.json")
    views = submission.summaries()
    assert [view.id for view in views] == ["1", "2", "3"]
    assert [view.state for view in views] == [JobState.QUEUED, JobState.LOST, JobState.QUEUED]
    assert "Job 2" in views[1].reason
    assert len(views[1].reason.splitlines()) == 1
    until(lambda: {"1", "3"} in map(set, platform.polled), "a question about the others")
    with pytest.raises(UnreadableJobError):
        lookup.job("2")
    assert lookup.job("local:p3").id == "3"


def test_a_cell_whose_newest_job_is_damaged_attaches_to_the_one_before(platform: Platform) -> None:
    folders = [sent(), sent()]
    assert len(submission.summaries()) == 2
    (folders[1].path / "job.json").write_bytes(b"{")
    found = submission.find_attachable("")  # the key of both
    assert found is not None
    assert found.id == folders[0].id


def test_a_damaged_job_is_taken_in_again_once_it_is_mended(platform: Platform) -> None:
    folder = sent()
    path = folder.path / "job.json"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    assert [view.state for view in submission.summaries()] == [JobState.LOST]
    path.write_bytes(whole)
    assert [view.state for view in submission.summaries()] == [JobState.QUEUED]


def test_a_job_whose_backend_is_not_installed_hides_no_other(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [sent(), sent()]
    about = msgspec.json.decode((folders[0].path / "job.json").read_bytes())
    about["spec"]["backend"] = "gone"
    (folders[0].path / "job.json").write_bytes(msgspec.json.encode(about))

    def get(name: str) -> Platform:
        if name == "gone":
            raise ClusterKernelError("There is no backend gone.")
        return platform

    monkeypatch.setattr(registry, "get", get)
    views = submission.summaries()
    assert [(view.state, view.reason) for view in views] == [
        (JobState.LOST, "There is no backend gone."),
        (JobState.QUEUED, ""),
    ]


@pytest.mark.parametrize("summary", [b"\xffgarbage", b"{}", b'{"id": 1}', b'{"state": "OF_A_NEWER_VERSION"}'])
def test_a_damaged_summary_is_made_anew(platform: Platform, summary: bytes) -> None:
    folders = [sent(), sent()]
    folders[0].write_refused("No.")
    submission.summaries()
    book = Ledger(default_root())
    index.sync(JobRoot(), book)
    folders[0].write_submission(Submission(platform_ids=(("p1", 0, 1),)))
    for folder in folders:
        book.end(folder.id, summary)
    assert "1" in greeting.greeting()
    assert [view.id for view in submission.summaries()] == ["1", "2"]
    book.close()


def test_a_damaged_answer_is_no_answer(platform: Platform) -> None:
    tracking = Tracking(sent(), platform)
    tracking.restore(0.0)
    tracking.hear(1.0, b"\xffgarbage", 1.0)
    tracking.hear(1.0, b'[{"task": "x"}]', 1.0)
    assert not tracking.answered
    tracking.hear(1.0, b'[{"task": 0, "state": "RUNNING", "of": "a newer version"}]', 1.0)
    assert tracking.answered
    assert tracking.tasks[0].state is JobState.STARTING


def test_records_that_break_the_reader_end_no_watch(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = of_folder(sent()), of_folder(sent())
    scan = Tracking.scan

    def fail(self: Tracking, now: float) -> list[int]:
        if self.folder.id == bad.id:
            raise ZeroDivisionError("division by zero")
        return scan(self, now)

    monkeypatch.setattr(Tracking, "scan", fail)
    until(lambda: "ZeroDivisionError" in bad.reason, "a word")
    assert not bad.done()
    shutil.rmtree(good.folder.path)
    assert good.wait(making.CEILING) is JobState.LOST
    assert "ZeroDivisionError" in caplog.text


# -- cancels -----------------------------------------------------------------------------


def test_a_cancel_that_failed_is_repeated_until_it_is_taken(platform: Platform) -> None:
    job = of_folder(sent())
    platform.refusals += [AWAY, AWAY, AWAY]
    with pytest.raises(BackendUnavailable):
        job.cancel()
    assert platform.cancelled == []
    until(lambda: platform.cancelled, "the cancel")
    until(lambda: job.folder.cancel_pending() is None)
    seen = len(platform.polled)
    until(lambda: len(platform.polled) > seen + 3)
    assert platform.cancelled == [job.id], "what was taken is not repeated"


def test_another_kernel_repeats_a_cancel(platform: Platform) -> None:
    folder = sent(3)
    folder.request_cancel((1,))  # by a kernel that died then
    jobs_ = JobArray(JobFolder(folder.path))
    until(lambda: platform.cancelled == [folder.id], "the cancel")
    assert not jobs_.done()


def test_a_cancel_while_the_platform_hangs_gives_the_kernel_back(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = threading.Event()
    monkeypatch.setattr(sys.modules[Job.__module__], "_CANCEL_PATIENCE", 0.05)
    monkeypatch.setattr(watcher, "_REPEAT", 1000.0)
    monkeypatch.setattr(Platform, "cancel", lambda self, folder, tasks=None: hang.wait())
    array = JobArray(sent(2))
    with pytest.raises(BackendUnavailable, match="stands and is repeated"):
        array.cancel()
    assert array.folder.cancel_pending() == ()
    hang.set()
    until(lambda: array.folder.cancel_pending() is None, "the word that it was taken after all")


def test_patience_gives_what_the_call_gives() -> None:
    assert patience.within(making.CEILING, lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        patience.within(making.CEILING, lambda: 1 // 0)
    hang = threading.Event()
    with pytest.raises(TimeoutError):
        patience.within(0.01, hang.wait)
    hang.set()


# -- a platform that is silent --------------------------------------------------------------


def test_a_list_does_not_wait_for_a_platform_that_hangs(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    hang, asked = threading.Event(), threading.Event()

    def poll(self: Platform, folders: Sequence[JobFolder]) -> dict[str, list[object]]:
        asked.set()
        hang.wait()
        return {}

    monkeypatch.setattr(Platform, "poll", poll)
    sent()
    (view,) = submission.summaries(settle=0.3)
    assert asked.is_set()
    assert (view.state, view.reason) == (JobState.QUEUED, f"{view.backend} has not answered yet.")
    hang.set()


# -- folders that go ------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["unsent", "sent", "made again"])
def test_a_removed_folder_ends_the_job_with_a_sentence(platform: Platform, state: str) -> None:
    folder = make() if state == "unsent" else sent()
    job = of_folder(folder)
    other = of_folder(sent())
    shutil.rmtree(folder.path)
    if state == "made again":  # by a process of the job, which still writes
        folder.prepare()
        folder.out().mkdir(parents=True)
    assert job.wait(making.CEILING) is JobState.LOST
    assert job.reason == f"Its folder {folder.path} was removed."
    with pytest.raises(JobLost, match="was removed"):
        job.result(0)
    assert job.summary().ended is not None
    assert [view.id for view in submission.summaries()] == [other.id]
    assert not other.done()


def test_a_removed_array_ends_with_a_sentence(platform: Platform) -> None:
    array = JobArray(sent(3))
    shutil.rmtree(array.folder.path)
    assert array.wait(making.CEILING) is JobState.LOST
    assert array.counts() == {JobState.LOST: 3}
    assert list(array.frame()["state"]) == ["LOST"] * 3
    with pytest.raises(JobLost, match="was removed"):
        array.results(0)
    assert submission.summaries() == []


def test_a_folder_that_goes_while_it_is_sent_keeps_no_other_back(platform: Platform, sender: Submitter) -> None:
    gone, other = make(), make()
    submit = platform.submit

    def remove(folder: JobFolder) -> Submission:
        if folder.id == gone.id:
            shutil.rmtree(folder.path)
            raise ClusterKernelError("Its script is not there.")
        return submit(folder)

    platform.submit = remove  # type: ignore[method-assign]
    for folder in (gone, other):
        sender.submit(folder)
    until(other.submission, "the other's turn")


def test_a_refusal_that_cannot_be_written_is_written_later(
    platform: Platform, sender: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.answers += [ClusterKernelError("No."), ClusterKernelError("Still no.")]
    full = [OSError(28, "No space left on device")]
    write = JobFolder.write_refused

    def once(self: JobFolder, why: str) -> None:
        if full:
            raise full.pop()
        write(self, why)

    monkeypatch.setattr(JobFolder, "write_refused", once)
    folder = make()
    sender.submit(folder)
    assert of_folder(folder).wait(making.CEILING) is JobState.LAUNCH_FAILED
    assert folder.refused() == "Still no."


def test_an_answer_that_cannot_be_written_is_found_again(
    platform: Platform, sender: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [OSError(28, "No space left on device")]
    add = JobFolder.add_submission

    def once(self: JobFolder, more: Submission, *, first: bool = False) -> Submission:
        if full:
            raise full.pop()
        return add(self, more, first=first)

    monkeypatch.setattr(JobFolder, "add_submission", once)
    monkeypatch.setattr(submitter, "_PAUSE", 0.05)
    folder = make()
    platform.found.append(Submission(platform_ids=((f"p{folder.id}", 0, 1),)))
    sender.submit(folder)
    until(folder.submission)
    assert platform.calls == [f"submit {folder.id}", f"find {folder.id}"]
    assert folder.refused() == ""


def test_a_job_that_another_kernel_gave_up_is_not_sent(platform: Platform, sender: Submitter) -> None:
    given_up, other = make(), make()
    rescue.rescue(given_up, platform)
    platform.calls.clear()
    for folder in (given_up, other):
        sender.submit(folder)
    until(other.submission)
    assert platform.calls == [f"submit {other.id}"]


def test_a_refused_job_has_an_end(platform: Platform, sender: Submitter) -> None:
    platform.answers.append(ClusterKernelError("No."))
    folder = make()
    before = time.time()
    sender.submit(folder)
    assert of_folder(folder).wait(making.CEILING) is JobState.LAUNCH_FAILED
    (view,) = submission.summaries()
    assert view.ended is not None
    assert before - 1 <= view.ended <= time.time() + 1


# -- kernels together ---------------------------------------------------------------------------

ATTACH = """
import sys
from clusterkernel import submission
from tests.unit.given import make
print("ready", flush=True)
sys.stdin.readline()
with submission.attaching("abc"):
    found = submission.find_attachable("abc")
    print("attached" if found else "made", found.id if found else submission._root().create(
        lambda job_id, key: __import__("msgspec").structs.replace(
            __import__("tests.unit.making").unit.making.record(job_id, key), attach_key="abc"),
        lambda path: None,
    ).id)
from clusterkernel import watcher
watcher.stop_all()
"""


def test_kernels_that_run_one_cell_at_once_make_one_job() -> None:
    kernels = [making.python(ATTACH) for _ in range(2)]
    for kernel in kernels:
        assert kernel.stdout is not None
        assert kernel.stdout.readline() == "ready\n"
    for kernel in kernels:
        assert kernel.stdin is not None
        kernel.stdin.write("go\n")
        kernel.stdin.flush()
    assert sorted(kernel.communicate()[0] for kernel in kernels) == ["attached 1\n", "made 1\n"]


def test_a_sender_on_another_host_is_gone_when_its_heart_stands_still() -> None:
    folder = make()
    root = JobRoot().path
    record = msgspec.structs.replace(folder.record, submitter="elsewhere:1:2")
    senders = rescue.Senders(root)
    beat = rescue.beat_file(root, record.submitter)
    beat.parent.mkdir(mode=0o700)
    assert not senders.gone(record, 0.0)
    assert not senders.gone(record, 299.0), "it may have begun to send a moment ago"
    write_atomic(beat, b"1")
    assert not senders.gone(record, 301.0)
    assert not senders.gone(record, 600.0)
    write_atomic(beat, b"2")
    assert not senders.gone(record, 610.0)
    assert not senders.gone(record, 909.0)
    assert senders.gone(record, 911.0)
    assert not senders.gone(msgspec.structs.replace(record, submitter="damaged:x:y"), 10_000.0)


def test_a_sender_that_waits_long_lets_its_heart_beat(
    platform: Platform, sender: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "_BEAT", 0.01)
    monkeypatch.setattr(submitter, "_PAUSE", 1000.0)
    platform.answers.append(AWAY)
    folder = make()
    sender.submit(folder)
    beat = rescue.beat_file(JobRoot().path, folder.record.submitter)
    first = until(lambda: beat.exists() and beat.read_bytes(), "a beat")
    until(lambda: beat.read_bytes() != first, "another beat")
    sender.stop()
    until(lambda: not beat.exists(), "the end of it")


def test_shutting_down_asks_all_although_the_platform_is_silent(platform: Platform) -> None:
    made = [of_folder(sent()) for _ in range(2)]
    platform.refusals += [AWAY, AWAY]
    executor_ = executor.Executor("local")
    executor_._submitted += made
    executor_.shutdown(wait=False, cancel_futures=True)
    assert [job.folder.cancel_request() for job in made] == [(), ()]
