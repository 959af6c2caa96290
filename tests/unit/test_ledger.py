"""The cache on local disk: lost without harm, and one poller for a user on a host."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterkernel import index, ledger
from clusterkernel.errors import JobRootError
from clusterkernel.jobroot import JobRoot, default_root
from clusterkernel.ledger import Ledger, local_dir
from tests.unit import making


@pytest.fixture
def book() -> Iterator[Ledger]:
    made = Ledger(default_root())
    yield made
    made.close()


def answer(asked: list[float], body: bytes = b"x", *jobs: str) -> Callable[[], dict[str, bytes]]:
    """A platform that says `body` of `jobs` and notes that it was asked."""

    def ask() -> dict[str, bytes]:
        asked.append(time.time())
        return dict.fromkeys(jobs or ("1",), body)

    return ask


def never() -> dict[str, bytes]:
    raise AssertionError("the platform was asked")


def file_of(book: Ledger) -> Path:
    book.known()
    (path,) = local_dir().glob("*.sqlite")
    return path


# -- what it keeps -----------------------------------------------------------------------


def test_jobs_are_kept_until_they_end_and_go(book: Ledger) -> None:
    for job_id, key in (("9", "a"), ("10", "a"), ("11", "b")):
        book.add(job_id, key)
    book.add("9", "other")  # known already
    assert book.known() == {"9": None, "10": None, "11": None}
    assert book.same("a") == ["10", "9"], "the newest first, by number"
    assert book.same("other") == []
    book.end("9", b"summary")
    book.end("10")
    assert Ledger(default_root()).known() == {"9": b"summary", "10": b"", "11": None}
    book.forget("9")
    assert book.known() == {"10": b"", "11": None}
    assert book.same("a") == ["10"]


def test_what_the_platform_said_of_an_ended_job_goes(book: Ledger) -> None:
    asked: list[float] = []
    book.add("1", "")
    assert set(book.answers("slurm", ["1"], answer(asked), max_age=60)) == {"1"}
    book.end("1")
    assert book.answers("slurm", ["1"], never, max_age=60) == {}


def test_each_root_has_a_file_of_its_own(tmp_path: Path) -> None:
    books = [Ledger(tmp_path / name) for name in ("one", "two", *making.NASTY)]
    for number, book in enumerate(books):
        book.add(str(number), "")
    assert [list(book.known()) for book in books] == [[str(number)] for number in range(len(books))]
    for book in books:
        book.close()


def test_a_root_that_was_made_again_starts_anew() -> None:
    # Its numbers start again: what is known of the old jobs is not true of the new ones.
    JobRoot().ensure()
    old = Ledger(default_root())
    old.add("1", "")
    old.end("1", b"it failed")
    old.close()
    subprocess.run(["rm", "-rf", str(default_root())], check=True)
    root = JobRoot()
    assert making.job(root, "true").id == "1"
    book = Ledger(default_root())
    assert index.sync(root, book) == {"1": None}
    assert [folder.id for folder in index.live(root, book)] == ["1"]
    book.close()


# -- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [b"", b"not a database" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_made_anew(book: Ledger, damage: bytes) -> None:
    book.add("1", "")
    path = file_of(book)
    book.close()
    path.write_bytes(damage)
    again = Ledger(default_root())
    assert again.known() == {}
    again.add("2", "")
    assert again.known() == {"2": None}
    again.close()


def test_a_file_that_is_damaged_while_it_is_open_is_made_anew(book: Ledger) -> None:
    for number in range(2000):
        book.add(str(number), "key" * 50)
    path = file_of(book)
    book._run("PRAGMA wal_checkpoint(TRUNCATE)")
    with open(path, "r+b") as file:
        file.seek(0)
        file.write(b"\xff" * path.stat().st_size)
    other = Ledger(default_root())
    assert other.known() == {}
    other.add("1", "")
    book.add("2", "")
    assert {"1", "2"} <= set(Ledger(default_root()).known()) | set(book.known())
    for each in (book, other):
        each.close()


def test_the_ledger_is_rebuilt_from_the_folders(book: Ledger) -> None:
    root = JobRoot()
    folders = [making.job(root, "true") for _ in range(3)]
    assert index.sync(root, book) == {"1": None, "2": None, "3": None}
    book.end("2", b"done")
    path = file_of(book)
    book.close()
    for each in path.parent.glob(path.name + "*"):
        each.unlink()
    again = Ledger(default_root())
    assert index.sync(root, again) == {"1": None, "2": None, "3": None}
    root.remove(folders[1])
    assert index.sync(root, again) == {"1": None, "3": None}
    again.close()


def test_a_file_that_is_deleted_under_us_does_no_harm(book: Ledger) -> None:
    book.add("1", "")
    subprocess.run(["rm", "-rf", str(local_dir())], check=True)
    book.add("2", "")
    asked: list[float] = []
    assert set(book.answers("slurm", ["1"], answer(asked), max_age=60)) == {"1"}
    other = Ledger(default_root())
    other.add("3", "")
    book.add("4", "")
    assert "3" in other.known()
    assert "4" in book.known()
    other.close()


def test_one_of_a_newer_version_is_left_alone(book: Ledger) -> None:
    path = file_of(book)
    newer = path.with_name(path.name.replace(f".v{ledger.SCHEMA}.", f".v{ledger.SCHEMA + 1}."))
    assert newer != path
    newer.write_bytes(b"of another version")
    path.write_bytes(b"damaged" * 1000)
    again = Ledger(default_root())
    again.add("1", "")
    assert newer.read_bytes() == b"of another version"
    again.close()


def test_where_no_file_can_be_made_the_cache_is_in_memory(book: Ledger) -> None:
    path = file_of(book)
    book.close()
    path.unlink()
    path.mkdir()  # as a full disk: no file can be opened there
    (path / "in the way").touch()
    asked: list[float] = []
    again = Ledger(default_root())
    again.add("1", "")
    assert again.known() == {"1": None}
    assert set(again.answers("slurm", ["1"], answer(asked), max_age=60)) == {"1"}
    again.answers("slurm", ["1"], never, max_age=60)
    again.close()


def test_a_file_that_stays_locked_is_told_in_one_line(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file_of(book)
    book.close()
    monkeypatch.setattr(ledger, "_PATIENCE", 0.05)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    again = Ledger(default_root())
    with pytest.raises(JobRootError) as caught:
        again.add("1", "")
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.hint
    asked: list[float] = []
    with pytest.raises(JobRootError):
        again.answers("slurm", ["1"], answer(asked), max_age=60)
    holder.execute("ROLLBACK")
    holder.close()
    again.add("1", "")
    assert path.is_file(), "a file that is only in use is not thrown away"
    assert set(again.answers("slurm", ["1"], answer(asked), max_age=60)) == {"1"}
    again.close()


HAMMER = """
import sys
from pathlib import Path
from clusterkernel.ledger import Ledger
print("ready", flush=True)
sys.stdin.readline()
for number in range(50):
    book = Ledger(Path(sys.argv[1]))
    book.add(f"{sys.argv[2]}{number}", "")
    book.close()
"""


def test_many_processes_write_at_once() -> None:
    writers = [making.python(HAMMER, str(default_root()), str(number)) for number in range(1, 5)]
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
    book = Ledger(default_root())
    assert len(book.known()) == 200, "one of them threw away a file that was only in use"
    book.close()


def test_a_forked_child_has_a_connection_of_its_own(book: Ledger) -> None:
    book.add("1", "")

    def child() -> str:
        book.add("2", "")
        found = sorted(book.known())
        book.close()
        gc.collect()
        return " ".join(found)

    assert making.Forked(child).said() == "1 2"
    book.add("3", "")
    assert sorted(book.known()) == ["1", "2", "3"]


# -- one poller ------------------------------------------------------------------------------

ASK = """
import sys
from pathlib import Path
from clusterkernel.ledger import Ledger
book = Ledger(Path(sys.argv[1]))
def ask():
    with open(sys.argv[2], "a") as file:
        file.write("asked\\n")
    return {"1": b"x", "2": b"y"}
print("ready", flush=True)
sys.stdin.readline()
got = {}
for _ in range(50):
    got = book.answers("slurm", ["1"], ask, max_age=1000)
while not got:  # another process is asking
    got = book.answers("slurm", ["1"], ask, max_age=1000)
print(sorted(got))
"""


def test_four_processes_ask_once(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    pollers = [making.python(ASK, str(default_root()), str(calls)) for _ in range(4)]
    for poller in pollers:
        assert poller.stdout is not None
        assert poller.stdout.readline() == "ready\n"
    for poller in pollers:
        assert poller.stdin is not None
        poller.stdin.write("go\n")
        poller.stdin.flush()
    assert {poller.communicate()[0] for poller in pollers} == {"['1']\n"}
    assert calls.read_text() == "asked\n"


def test_the_platform_is_asked_again_when_the_answer_is_old(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    for at, calls in ((1000.0, 1), (1004.9, 1), (1005.0, 2), (1009.0, 2), (1010.0, 3), (500.0, 4), (501.0, 4)):
        now = at  # the last two: the clock was set back
        book.answers("slurm", ["1"], answer(asked), max_age=5)
        assert len(asked) == calls, f"at {at}"


def test_each_platform_is_asked_for_itself(book: Ledger) -> None:
    asked: list[float] = []
    one = book.answers("slurm", ["1"], answer(asked, b"slurm"), max_age=60)
    other = book.answers("local", ["1"], answer(asked, b"local"), max_age=60)
    assert (one["1"][1], other["1"][1], len(asked)) == (b"slurm", b"local", 2)


def test_an_answer_comes_with_its_time(book: Ledger) -> None:
    before = time.time()
    (at, body) = book.answers("slurm", ["1"], answer([], b"\0binary"), max_age=60)["1"]
    assert before <= at <= time.time()
    assert body == b"\0binary"
    assert book.answers("slurm", ["1"], never, max_age=60) == {"1": (at, body)}


def test_a_job_left_out_keeps_its_earlier_answer(book: Ledger) -> None:
    first = book.answers("slurm", ["1", "2"], answer([], b"x", "1", "2"), max_age=0)
    second = book.answers("slurm", ["1", "2", "3"], answer([], b"y", "2"), max_age=0)
    assert second["1"] == first["1"], "an answer that says less says nothing"
    assert second["2"][1] == b"y"
    assert "3" not in second


def test_a_platform_that_fails_is_left_in_peace_and_asked_again(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, bytes]:
        raise RuntimeError("slurm_load_jobs error")

    with pytest.raises(RuntimeError, match="slurm_load_jobs"):
        book.answers("slurm", ["1"], fail, max_age=60)
    assert book.answers("slurm", ["1"], never, max_age=60) == {}
    later = time.time() + 61
    monkeypatch.setattr(time, "time", lambda: later)
    assert set(book.answers("slurm", ["1"], answer([]), max_age=60)) == {"1"}


HOLD = """
import os, sys, time
from pathlib import Path
from clusterkernel.ledger import Ledger
book = Ledger(Path(sys.argv[1]))
def ask():
    print("asking", flush=True)
    time.sleep(1000)
book.answers("slurm", ["1"], ask, max_age=0)
"""


def test_others_do_not_wait_for_one_that_asks_and_take_over_when_it_is_killed(book: Ledger) -> None:
    holder = making.python(HOLD, str(default_root()))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "asking\n"
    assert book.answers("slurm", ["1"], never, max_age=0) == {}
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    asked: list[float] = []
    assert set(book.answers("slurm", ["1"], answer(asked), max_age=0)) == {"1"}
    assert len(asked) == 1


def test_a_child_that_is_forked_meanwhile_does_not_keep_the_turn(book: Ledger) -> None:
    # A data loader's worker lives for hours.
    workers: list[making.Forked] = []

    def ask() -> dict[str, bytes]:
        workers.append(making.Forked(signal.pause))
        return {}

    book.answers("slurm", ["1"], ask, max_age=0)
    try:
        asked: list[float] = []
        book.answers("slurm", ["1"], answer(asked), max_age=0)
        assert len(asked) == 1
    finally:
        workers[0].kill()


# -- the folder ------------------------------------------------------------------------------


def refusal(path: Path) -> JobRootError:
    with pytest.raises(JobRootError) as caught:
        Ledger(default_root())
    assert str(path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert "CLUSTERKERNEL_LOCAL_DIR" in caught.value.hint
    return caught.value


def test_the_folder_is_private(book: Ledger) -> None:
    assert stat.S_IMODE(local_dir().stat().st_mode) == 0o700
    for path in [file_of(book), *local_dir().iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or path.suffix not in {".sqlite", ".lock"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "local"
    monkeypatch.setenv("CLUSTERKERNEL_LOCAL_DIR", str(path))
    return path


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777, 0o1777, 0o701])
def test_a_folder_that_is_open_to_others_is_refused(place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)
    assert "chmod 700" in refusal(place).hint
    assert list(place.iterdir()) == []


def test_the_folder_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(place, 65534, -1)
    else:  # only root can give a folder away: look at it as somebody else
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert "not a folder of yours" in str(refusal(place))


def test_a_link_to_a_folder_is_refused(place: Path, tmp_path: Path) -> None:
    # As another user could lay it into /var/tmp, to have us write where they like.
    (tmp_path / "target").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "target")
    refusal(place)
    assert list((tmp_path / "target").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused(place: Path) -> None:
    place.touch()
    assert "File exists" in str(refusal(place))


def test_it_is_on_the_local_disk_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTERKERNEL_LOCAL_DIR")
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    monkeypatch.setattr(os, "lstat", lambda path: os.stat_result((0o40700, 0, 0, 0, os.geteuid(), 0, 0, 0, 0, 0)))
    assert local_dir() == Path(f"/var/tmp/clusterkernel-{os.geteuid()}")
