"""What a process printed: in order, bounded, and readable whatever the bytes are."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkernel import logs
from clusterkernel.logs import Reader, tail
from clusterkernel.runtime.supervisor import ORDER
from tests.unit import making

FILES = ("stdout", "stderr", "order")


class Printer:
    """Writes as the supervisor does."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._files = {name: open(out / name, "ab", buffering=0) for name in FILES}  # noqa: SIM115
        self.out = out

    def __call__(self, data: str | bytes, stream: str = "stdout", *, told: bool = True) -> None:
        data = data.encode() if isinstance(data, str) else data
        self._files[stream].write(data)
        if told:
            self._files["order"].write(ORDER.pack(stream[3:4].encode(), len(data), time.time()))

    def close(self) -> None:
        for file in self._files.values():
            file.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def prints(out: Path) -> Any:
    printer = Printer(out)
    yield printer
    printer.close()


def everything(reader: Reader, limit: int = 1 << 22) -> bytes:
    return b"".join(iter(lambda: reader.read(limit), b""))


# -- order -------------------------------------------------------------------------------


def test_both_streams_come_in_the_order_in_which_they_were_written(out: Path, prints: Printer) -> None:
    for number in range(5):
        prints(f"out {number}\n")
        prints(f"err {number}\n", "stderr")
    assert tail(out, None) == "\n".join(f"{name} {n}" for n in range(5) for name in ("out", "err"))
    assert tail(out, 3) == "err 3\nout 4\nerr 4"
    assert tail(out, 2, "stdout") == "out 3\nout 4"
    assert tail(out, None, "stderr") == "\n".join(f"err {n}" for n in range(5))
    assert tail(out, 0) == ""
    assert tail(out, 100) == tail(out, None)


PIECES = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=40)), min_size=1, max_size=60
)
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(PIECES, st.integers(1, 50), st.integers(0, 3000))
def test_every_byte_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[str, bytes]], limit: int, back: int
) -> None:
    out = tmp_path_factory.mktemp("out")
    printer = Printer(out)
    reader, whole = Reader(out), b""
    for stream, data in pieces:
        printer(data, stream)
        whole += data
        reader.read(1)  # reads along, as a follower does
    printer.close()
    assert everything(Reader(out), limit) == whole
    for name in ("stdout", "stderr"):
        own = b"".join(data for stream, data in pieces if stream == name)
        assert everything(Reader(out, name), limit) == own
        late = Reader(out, name)
        late.seek_tail(back)
        assert everything(late, limit) == own[max(0, len(own) - back) :]
    late = Reader(out)
    late.seek_tail(back)
    rest = everything(late, limit)
    assert whole.endswith(rest)
    assert min(back, len(whole)) <= len(rest) <= back + 40, "about so much, cut between two pieces"


def test_a_follower_gets_what_is_new(out: Path, prints: Printer) -> None:
    reader = Reader(out)
    assert reader.read() == b""
    prints("one\n")
    prints("two\n", "stderr")
    assert reader.read() == b"one\ntwo\n"
    assert reader.read() == b""
    prints("three\n")
    assert reader.read() == b"three\n"


def test_a_follower_is_not_ahead_of_the_order(out: Path, prints: Printer) -> None:
    # The stream is written first: what has no place yet comes later, not twice.
    reader = Reader(out)
    prints("half", told=False)
    assert reader.read() == b""
    with open(out / "order", "ab") as order:
        record = ORDER.pack(b"o", 4, 0.0)
        order.write(record[:5])
        order.flush()
        assert reader.read() == b""
        order.write(record[5:])
    assert reader.read() == b"half"
    assert tail(out, 1) == "half"


def test_an_order_that_is_seen_before_the_bytes_waits_for_them(out: Path, prints: Printer) -> None:
    # As on NFS, where each file is fresh at its own time.
    prints("one\n")
    prints("err\n", "stderr")
    prints("two\n")
    whole = (out / "stdout").read_bytes()
    reader = Reader(out)
    (out / "stdout").write_bytes(whole[:2])
    assert reader.read() == b"on"
    assert reader.read() == b""
    (out / "stdout").write_bytes(whole)
    assert everything(reader) == b"e\nerr\ntwo\n"


def test_much_of_the_other_stream_is_passed_over(out: Path, prints: Printer) -> None:
    prints("begin\n", "stderr")
    with open(out / "order", "ab") as order, open(out / "stdout", "ab") as stdout:
        order.write(ORDER.pack(b"o", 1, 0.0) * 200_000)
        stdout.write(b"x" * 200_000)
    prints("end\n", "stderr")
    assert tail(out, None, "stderr") == "begin\nend"
    assert tail(out, 5, "stderr") == "begin\nend"
    assert everything(Reader(out, "stderr")) == b"begin\nend\n"


# -- bounds --------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read of a file."""
    sizes: list[int] = []
    real = open

    class Counting:
        def __init__(self, *arguments: Any) -> None:
            self._file = real(*arguments)

        def __enter__(self) -> Counting:
            return self

        def __exit__(self, *_: object) -> None:
            self._file.close()

        def read(self, size: int) -> bytes:
            data: bytes = self._file.read(size)
            sizes.append(len(data))
            return data

        def seek(self, offset: int) -> None:
            self._file.seek(offset)

    monkeypatch.setattr(logs, "open", Counting, raising=False)
    return sizes


@pytest.mark.parametrize("stream", ["both", "stdout"])
def test_the_tail_of_a_line_of_50_mb_is_bounded(
    out: Path, prints: Printer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = b"x" * (1 << 16)
    for _ in range(800):
        prints(block)
    prints(b"the end")
    sizes = counted(monkeypatch)
    text = tail(out, 20, stream)
    assert text.endswith("xxxthe end")
    assert len(text) <= logs.TAIL_BYTES
    assert sum(sizes) < 2 * logs.TAIL_BYTES
    assert len(sizes) < 20


@pytest.mark.parametrize("stream", ["both", "stdout"])
def test_the_tail_of_a_million_lines_is_bounded(
    out: Path, prints: Printer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each line came by itself: the dearest order there is.
    lines = b"".join(b"%07d\n" % number for number in range(1_000_000))
    (out / "stdout").write_bytes(lines)
    (out / "order").write_bytes(ORDER.pack(b"o", 8, 0.0) * 1_000_000)
    sizes = counted(monkeypatch)
    assert tail(out, 3, stream) == "0999997\n0999998\n0999999"
    assert sum(sizes) < 8 * logs.TAIL_BYTES
    assert len(sizes) < 200, "one look at the file for each line is too dear on NFS"


def test_all_of_a_million_lines_comes(out: Path, prints: Printer) -> None:
    lines = b"".join(b"%07d\n" % number for number in range(1_000_000))
    (out / "stdout").write_bytes(lines)
    (out / "order").write_bytes(ORDER.pack(b"o", 8, 0.0) * 1_000_000)
    assert tail(out, None).encode() + b"\n" == lines


@pytest.mark.parametrize("lines", [None, 10])
def test_a_job_that_never_stops_printing_does_not_keep_us(
    out: Path, prints: Printer, lines: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints("x\n" * 100)
    reads = itertools.count()
    real = Reader._take

    def take(self: Reader, stream: str, size: int) -> bytes:
        assert next(reads) < 50, "it reads for ever"
        prints("more\n")
        return real(self, stream, size)

    monkeypatch.setattr(Reader, "_take", take)
    assert tail(out, lines)


def test_the_tail_holds_together_while_the_job_prints(
    out: Path, prints: Printer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        prints(f"out {number}\n")
        prints(f"err {number}\n", "stderr")
    real = os.stat
    written = itertools.count()

    def stat(path: Any, **about: Any) -> os.stat_result:
        if Path(path).parent == out and next(written) < 4:
            prints("late out\n")  # between two looks at sizes that belong together
        return real(path, **about)

    monkeypatch.setattr(os, "stat", stat)
    text = tail(out, 104, limit=200)
    assert all(line.split()[0] in {"out", "err", "late"} for line in text.splitlines()[1:]), text


# -- what was printed ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a\nb\n", "a\nb"),
        ("a\nb", "a\nb"),
        ("\n\na\n\n", "\n\na\n"),
        ("", ""),
        ("\n", ""),
        ("a\r\nb\r\n", "a\nb"),
        ("10%\r20%\r100%\ndone\n", "100%\ndone"),
        ("10%|##  |\r20%|### |", "20%|### |"),
        ("long bar\rshort", "shortbar"),
        ("100%\r", "100%"),
        ("bar 100%\r        \rdone\n", "done"),
        ("\r\r\n", ""),
        ("\rx\n", "x"),
    ],
)
def test_carriage_returns_are_applied(out: Path, prints: Printer, printed: str, shown: str) -> None:
    prints(printed)
    assert tail(out, None) == tail(out, 50) == shown


def test_a_bar_with_many_steps_is_one_line(out: Path, prints: Printer) -> None:
    for step in range(20_000):
        prints(f"\r{step:6}|{'#' * (step // 2000):10}|", "stderr")
    assert tail(out, 2) == tail(out, None) == " 19999|######### |"


@pytest.mark.parametrize("data", [b"\xff\xfe\n", b"ok \x80\n", b"\xe6\x97", b"\0\n", bytes(range(256))])
def test_bytes_that_are_no_text_are_shown_as_such(out: Path, prints: Printer, data: bytes) -> None:
    prints(b"before\n" + data)
    for lines in (None, 300):
        text = tail(out, lines)
        assert text.startswith("before\n")
        assert text.encode()  # it can be shown


def test_a_character_cut_at_the_start_of_the_tail_is_left_out(out: Path, prints: Printer) -> None:
    prints("日" * 100)
    for limit in range(30, 40):
        text = tail(out, 5, limit=limit)
        assert set(text) == {"日"}
        assert len(text) == limit // 3


# -- what is not there --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["both", "stdout", "stderr"])
@pytest.mark.parametrize("lines", [None, 10, 0])
def test_an_attempt_that_printed_nothing_is_empty(out: Path, stream: str, lines: int | None) -> None:
    assert tail(out, lines, stream) == ""
    reader = Reader(out, stream)
    reader.seek_tail(100)
    assert reader.read() == b""
    Printer(out).close()
    assert tail(out, lines, stream) == ""
    assert reader.read() == b""


@pytest.mark.parametrize("missing", FILES)
def test_a_file_that_is_not_there_costs_only_what_it_held(out: Path, prints: Printer, missing: str) -> None:
    prints("one\n")
    prints("two\n", "stderr")
    (out / missing).unlink()
    shown = {"stdout": "two", "stderr": "one", "order": "one\ntwo"}[missing]
    assert tail(out, None) == tail(out, 10) == shown


def test_what_a_full_disk_kept_from_the_order_is_shown(out: Path, prints: Printer) -> None:
    prints("one\n")
    prints("two\n", told=False)
    prints("err\n", "stderr", told=False)
    assert tail(out, None) == tail(out, 10) == "one\ntwo\nerr"
    prints("x" * 1000 + "\nend\n", told=False)
    assert tail(out, 2, limit=100) == "end\nerr"


@pytest.mark.parametrize("lost", range(1, ORDER.size))
def test_a_torn_order_costs_the_order_not_the_text(out: Path, prints: Printer, lost: int) -> None:
    prints("one\n")
    prints("two\n", "stderr")
    with open(out / "order", "r+b") as order:
        order.truncate(2 * ORDER.size - lost)
    for number in range(20):
        prints(f"out {number}\n")
    for lines in (None, 100):
        shown = tail(out, lines).splitlines()
        assert {"one", "two", "out 0", "out 19"} <= set(shown), "a line of the log is lost"


def test_the_order_is_what_the_supervisor_writes() -> None:
    assert ORDER.size == 13
    assert logs.STREAMS == {b"o": "stdout", b"e": "stderr"}
    assert making.CEILING > 0
