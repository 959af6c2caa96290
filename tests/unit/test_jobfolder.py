"""One job's folder: whole at every moment, private, and patient with what is not there yet."""

from __future__ import annotations

import os
import pwd
import stat
import time
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from clusterkernel import files, jobfolder, records
from clusterkernel.errors import JobRootError, UnknownJobError, UnreadableJobError
from clusterkernel.files import check_private, write_atomic
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import End, Submission
from clusterkernel.states import JobState
from tests.unit import making


@pytest.fixture
def folder() -> JobFolder:
    return making.job(JobRoot(), "true")


# -- write_atomic ------------------------------------------------------------------


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with open(path, "rb") as reader:
        write_atomic(path, b"new and longer")
        assert reader.read() == b"old", "who reads sees the whole old file"
    assert path.read_bytes() == b"new and longer"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_: object) -> NoReturn:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(type(error)):
            write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)); import signal; "
    code = (
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); import sys, pathlib\n"
        "from clusterkernel.files import write_atomic\n"
        "try: write_atomic(pathlib.Path(sys.argv[1]), b'x' * 100_000)\n"
        "except OSError as error: print(error.errno)\n"
    )
    assert (
        making.python(limit + code, str(path)).communicate()[0].strip() == "27"
    )  # EFBIG: a short write, as on a full disk
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


# -- what is in it -------------------------------------------------------------------


def test_what_will_be_watched_is_there_from_the_start() -> None:
    made = making.job(JobRoot(), "true", tasks=2, tasks_per_node=3)
    for name in ("submission.json", "cancel.json", "cancel-taken.json", "refused.txt", "delivered.json", "prepared"):
        assert (made.path / name).read_bytes() == b""
    made.prepare()
    assert made.prepared()
    for task in range(2):
        for rank in range(3):
            assert made.events(0, task, rank).read_bytes() == b""
    made.events(0, 1, 2).write_bytes(b"said")
    made.prepare()
    assert made.events(0, 1, 2).read_bytes() == b"said"


HAMMER = """
import sys
from pathlib import Path
from clusterkernel.jobfolder import JobFolder
from clusterkernel.records import Submission
folder = JobFolder(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
first = int(sys.argv[2]) * 25
for task in range(first, first + 25):
    folder.request_cancel((task,))
    folder.write_cancel_taken((task,))
    folder.add_submission(Submission(platform_ids=((f"p{task}", task, 1),)))
"""


def test_what_several_kernels_write_at_once_is_not_lost() -> None:
    made = making.job(JobRoot(), "true", tasks=100)
    writers = [making.python(HAMMER, str(made.path), str(number)) for number in range(4)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    assert [writer.returncode for writer in writers] == [0] * 4
    assert made.cancel_request() == tuple(range(100))
    assert made.cancel_pending() is None
    submission = made.submission()
    assert submission is not None
    assert [first for _, first, _ in submission.platform_ids] == list(range(100))


def test_a_stopped_holder_of_the_lock_keeps_nobody_from_cancelling(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.locked(folder.path / ".lock"):
        monkeypatch.setattr(time, "monotonic", iter(range(0, 1000, 10)).__next__)  # its patience is soon over
        folder.request_cancel()
    assert folder.cancel_request() == ()


@pytest.mark.parametrize(
    ("asked", "taken", "left"),
    [
        ([], [], None),
        ([()], [], ()),
        ([()], [()], None),
        ([(1,)], [], (1,)),
        ([(1,)], [(1,)], None),
        ([(1,)], [()], None),
        ([(1,), (2,)], [(1,)], (2,)),
        ([(1,), ()], [(1,)], ()),
        ([(1,), (2,)], [(1,), (2,)], None),
    ],
)
def test_what_the_platform_did_not_take_is_known(
    folder: JobFolder, asked: list[tuple[int, ...]], taken: list[tuple[int, ...]], left: tuple[int, ...] | None
) -> None:
    for tasks in asked:
        folder.request_cancel(tasks)
    for tasks in taken:
        folder.write_cancel_taken(tasks)
    assert folder.cancel_pending() == left


def test_the_first_to_tell_an_end_is_believed(folder: JobFolder) -> None:
    first, second = End(state=JobState.CANCELLED, reason="first"), End(state=JobState.DIED, reason="second")
    assert folder.write_end(0, first) == first
    assert folder.write_end(0, second) == first
    assert folder.end(0) == first
    (folder.path / "ends" / "0.json").write_bytes(b"dam")
    assert folder.write_end(0, second) == second
    assert folder.end(0) == second


def test_a_job_of_a_newer_version_is_read_where_its_format_is_ours_and_else_said_to_be_newer() -> None:
    made = making.job(JobRoot(), "true", name="mine")
    path = made.path / "job.json"
    about = msgspec.json.decode(path.read_bytes())
    about["spec"]["moons"] = about["moons"] = {"of": 2}
    path.write_bytes(msgspec.json.encode(about))
    assert JobFolder(made.path).record.name == made.record.name
    path.write_bytes(msgspec.json.encode({"schema": records.SCHEMA + 1, "spec": "is a text now"}))
    with pytest.raises(UnreadableJobError, match="made by a newer clusterkernel") as caught:
        JobFolder(made.path).record
    assert "Update" in caught.value.hint


def test_nothing_in_it_is_open_to_others(folder: JobFolder) -> None:
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    for path in folder.path.rglob("*"):
        assert path.is_file() or stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_the_answer_is_kept(folder: JobFolder) -> None:
    assert folder.submission() is None
    answer = Submission(platform_ids=(("8123", 0, 4), ("8124", 4, 4)), cluster="here")
    folder.write_submission(answer)
    assert JobFolder(folder.path).submission() == answer
    assert answer.platform_id == "8123"


def test_a_refusal_is_kept(folder: JobFolder) -> None:
    assert folder.refused() == ""
    folder.write_refused("sbatch: error: ünknown account")
    assert JobFolder(folder.path).refused() == "sbatch: error: ünknown account"


@pytest.mark.parametrize(
    ("requests", "tasks"),
    [
        ([()], ()),
        ([(1,)], (1,)),
        ([(1,), (3, 2)], (1, 2, 3)),
        ([(1,), (1,)], (1,)),
        ([(1,), ()], ()),
        ([(), (1,)], ()),  # all were asked for: that stands
    ],
)
def test_requests_to_cancel_add_up(folder: JobFolder, requests: list[tuple[int, ...]], tasks: tuple[int, ...]) -> None:
    assert folder.cancel_request() is None
    for request in requests:
        folder.request_cancel(request)
    assert JobFolder(folder.path).cancel_request() == tasks


def test_the_runner_on_the_node_reads_the_request(folder: JobFolder) -> None:
    from clusterkernel.runtime.context import read_json

    folder.request_cancel((2,))
    assert read_json(str(folder.path / "cancel.json"))["tasks"] == [2]


def test_an_end_is_kept_for_each_task(folder: JobFolder) -> None:
    assert folder.end() is None
    end = End(state=JobState.NODE_LOST, reason="A node went down.", signum=9, time=12.5)
    folder.write_end(3, end)
    assert JobFolder(folder.path).end(3) == end
    assert folder.end(0) is None


def test_delivery_is_noted(folder: JobFolder) -> None:
    assert not folder.delivered()
    folder.write_delivered(("model",))
    assert JobFolder(folder.path).delivered()


@pytest.mark.parametrize("damage", [b"{", b"\0" * 100, b"[]", b"\xff", b'{"tasks": "x"}'])
def test_a_damaged_file_costs_no_more_than_what_it_said(folder: JobFolder, damage: bytes) -> None:
    # A lost answer is found again by the job's key, and an end is decided again.
    for name in ("submission.json", "cancel.json", "ends/0.json", "refused.txt", "delivered.json"):
        (folder.path / name).write_bytes(damage)
    assert folder.submission() is None
    assert folder.cancel_request() == (), "somebody asked"
    assert folder.end() is None
    assert isinstance(folder.refused(), str)
    folder.request_cancel((1,))
    assert folder.cancel_request() == ()


def test_a_job_that_is_not_there_is_named(folder: JobFolder) -> None:
    missing = JobFolder(folder.path.with_name("99"))
    with pytest.raises(UnknownJobError) as caught:
        missing.record
    assert str(caught.value) == f"There is no job 99 in {folder.path.parent}. %cluster_jobs lists all."


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"id": "1"}'])
def test_a_description_that_cannot_be_read_is_named(folder: JobFolder, damage: bytes) -> None:
    (folder.path / "job.json").write_bytes(damage)
    with pytest.raises(UnknownJobError) as caught:
        JobFolder(folder.path).record
    assert str(folder.path / "job.json") in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_description_of_a_newer_version_is_still_read(folder: JobFolder) -> None:
    body = msgspec.json.decode((folder.path / "job.json").read_bytes())
    (folder.path / "job.json").write_bytes(msgspec.json.encode({**body, "colour": "red"}))
    assert JobFolder(folder.path).record == folder.record


def test_its_size_is_what_it_takes_on_disk(folder: JobFolder) -> None:
    before = folder.size()
    (folder.out() / "deep").mkdir(parents=True)
    (folder.out() / "deep" / "stdout").write_bytes(b"x" * 100_000)
    (folder.out() / "link").symlink_to("/nowhere")
    assert 100_000 <= folder.size() - before < 150_000


# -- whose it is ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "..", "payload"])
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702, 0o720])
def test_what_others_can_write_to_is_not_unpickled(folder: JobFolder, name: str, mode: int) -> None:
    folder.verify()
    (folder.path / name).resolve().chmod(mode)
    with pytest.raises(JobRootError, match="can be written by another user") as caught:
        folder.verify()
    assert "chmod go-w" in caught.value.hint


@pytest.mark.parametrize("name", [".", "..", "payload"])
def test_what_belongs_to_another_is_not_unpickled(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if os.geteuid() == 0:
        os.chown((folder.path / name).resolve(), 65534, -1)
    else:  # only root can give a file away: look at it as somebody else
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(JobRootError, match="belongs to another user"):
        folder.verify()


def test_a_folder_that_others_may_read_is_fine(folder: JobFolder) -> None:
    folder.path.parent.chmod(0o755)
    folder.verify()


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobRootError, match="is not there any more"):
        check_private(tmp_path / "gone")


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    # Containers run under ids that /etc/passwd does not know.
    def unknown(_: int) -> NoReturn:
        raise KeyError("uid not found")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert records.user() == str(os.geteuid())
    made = making.job(JobRoot(), "true")
    made.request_cancel()
    assert made.record.user == str(os.geteuid())


def test_the_module_offers_what_it_says() -> None:
    assert all(hasattr(jobfolder, name) for name in jobfolder.__all__)
