"""A supervisor's records, and the fence between copies of a job."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkernel.runtime import events
from clusterkernel.runtime.events import EventLog, claim, parse, read
from tests.unit import making

examples = settings(deadline=None)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "events" / "0" / "0.0.jsonl")


# -- records -----------------------------------------------------------------------------


def test_records_are_read_as_they_were_written(path: str) -> None:
    before = time.time()
    log = EventLog(path)
    assert log.write("started", host="node\n1", pid=7)
    assert log.write("outcome", state="FAILED", error={"message": "日本\u2028\r\n"}, exit_code=None)
    log.close()
    first, second = read(path)
    assert before <= first.pop("t") <= second.pop("t") <= time.time()
    assert first == {"kind": "started", "host": "node\n1", "pid": 7}
    assert second == {"kind": "outcome", "state": "FAILED", "error": {"message": "日本\u2028\r\n"}, "exit_code": None}
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700


def test_a_log_that_is_opened_again_goes_on(path: str) -> None:
    for number in range(3):
        log = EventLog(path)
        log.write("heartbeat", number=number)
        log.close()
    assert [record["number"] for record in read(path)] == [0, 1, 2]


def test_what_is_not_there_has_no_records(path: str) -> None:
    assert read(path) == []
    os.makedirs(path)
    assert read(path) == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(["a", "b", "reason"]), VALUES)


@examples
@given(st.lists(FIELDS, max_size=8), st.lists(st.floats(0, 1), max_size=5))
def test_a_reader_takes_whole_lines_each_once(
    tmp_path_factory: pytest.TempPathFactory, fields: list[dict[str, Any]], parts: list[float]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    log = EventLog(str(path))
    for each in fields:
        log.write("kind", **each)
    log.close()
    whole = path.read_bytes()
    cuts = sorted(int(part * len(whole)) for part in parts)
    got: list[dict[str, Any]] = []
    offset = 0
    for cut in [*cuts, len(whole)]:
        records, used = parse(whole[offset:cut])
        got += records
        offset += used
    assert offset == len(whole)
    assert [{name: value for name, value in record.items() if name not in ("t", "kind")} for record in got] == fields


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\n\n",
        b"{",
        b'{"kind"',
        b"\0" * 4096,
        b"\xff\xfe",
        b"null",
        b"[1]",
        b'"kind"',
        b'{"t": 1}',
        b"[" * 100_000,
        b'{"kind": "x"}}',
    ],
)
def test_a_damaged_line_costs_itself_alone(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"kind": "one"}\n' + damage + b'\n{"kind": "two"}\n')
    assert [record["kind"] for record in read(str(path))] == ["one", "two"]


def test_a_line_that_is_being_written_waits() -> None:
    data = b'{"kind": "one"}\n{"kind": "tw'
    records, used = parse(data)
    assert (len(records), used) == (1, 16)
    assert parse(data[used:]) == ([], 0)
    assert parse(data[used:] + b'o"}\n')[0] == [{"kind": "two"}]


def test_a_full_disk_costs_the_record_not_the_job(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(path)
    log.write("started")
    real = os.write

    def full(_: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert log.write("heartbeat") is False
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:10]))
    assert log.write("heartbeat") is False, "only half of it found room"
    monkeypatch.setattr(os, "write", real)
    assert log.write("outcome", state="SUCCEEDED")
    log.close()
    assert [record["kind"] for record in read(path)] == ["started", "outcome"]


def test_records_of_several_processes_do_not_mix(path: str) -> None:
    # One writer is the rule; a copy that is turned away late must still do no harm.
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from ckruntime.events import EventLog; log = EventLog(sys.argv[1])\n"
        "for number in range(300): log.write('heartbeat', pad='x' * 3000, number=number)\n"
    )
    from clusterkernel.jobroot import JobRoot

    writers = [making.python(code, path, str(JobRoot().runtime())) for _ in range(4)]
    for writer in writers:
        writer.communicate()
    assert len(read(path)) == 1200


# -- the fence -------------------------------------------------------------------------------


def test_the_first_copy_holds_the_claim(tmp_path: Path) -> None:
    path = str(tmp_path / "0")
    assert claim(path, "8123") == "8123"
    assert claim(path, "8124") == "8123"
    assert claim(path, "8123") == "8123", "a restart of the same job"
    body = json.loads(Path(path).read_bytes())
    assert body["platform_id"] == "8123"
    assert body["host"] == socket.gethostname()
    assert os.listdir(tmp_path) == ["0"], "no rest"


def test_a_link_whose_answer_got_lost_is_known_as_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # NFS sends a request again whose answer got lost, and the second one fails.
    real = os.link

    def lost(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")

    monkeypatch.setattr(os, "link", lost)
    assert claim(str(tmp_path / "0"), "8123") == "8123"


def test_a_claim_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space"):
        claim(str(tmp_path / "0"), "8123")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        claim(str(tmp_path / "gone" / "0"), "8123")


def test_a_rest_of_a_killed_copy_is_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda _: None)
        claim(str(tmp_path / "0"), "killed")
    os.unlink(tmp_path / "0")
    assert len(os.listdir(tmp_path)) == 1
    assert claim(str(tmp_path / "0"), "8123") == "8123"


def test_of_many_copies_at_once_one_holds_the_claim(tmp_path: Path) -> None:
    for round_ in range(20):
        path = str(tmp_path / str(round_))
        barrier = threading.Barrier(8)
        holders: list[str] = []

        def copy(name: str, path: str = path, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            holders.append(claim(path, name))  # noqa: B023 - joined below

        threads = [threading.Thread(target=copy, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(holders) == 8
        assert len(set(holders)) == 1
    assert sorted(os.listdir(tmp_path), key=int) == [str(round_) for round_ in range(20)]


def test_the_module_is_read_by_an_old_python() -> None:
    # A node's Python may be 3.6: no syntax that it does not know.
    import ast

    for source in sorted(Path(events.__file__).parent.glob("*.py")):
        ast.parse(source.read_text(encoding="utf-8"), feature_version=(3, 6))
