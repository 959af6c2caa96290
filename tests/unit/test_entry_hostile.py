"""User code that gets in the way of its own report: the report comes, and with it all that can be saved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from clusterkernel import loading
from clusterkernel.payload import function
from clusterkernel.runtime import events
from clusterkernel.spec import Launcher
from tests.unit import payloads
from tests.unit.making import until
from tests.unit.payloads import Notebook, Ran


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


def outcome(ran: Ran) -> dict[str, Any]:
    """What the supervisor wrote at the end, as strict a reader as the notebook's has it."""
    lines = (ran.job / "events/0/0.0.jsonl").read_bytes().split(b"\n")[:-1]
    record: dict[str, Any] = msgspec.json.decode(lines[-1])
    assert record["kind"] == "outcome"
    return record


# -- exceptions ---------------------------------------------------------------------------

FROZEN = """
import dataclasses
@dataclasses.dataclass(frozen=True)
class Bad(Exception):
    why: str = "frozen"
"""
TEXT = """
class Bad(Exception):
    def __str__(self): raise KeyboardInterrupt
    __repr__ = __str__
"""
CLASS = """
class Bad(Exception):
    @property
    def __class__(self): raise SystemExit("no class")
"""
NOTES = """
class Bad(Exception):
    @property
    def __notes__(self): raise KeyboardInterrupt
    __cause__ = __context__ = __notes__
"""
TRACEBACK = """
class Bad(Exception):
    @property
    def __traceback__(self): raise KeyboardInterrupt
"""
REDUCE = """
class Bad(Exception):
    def __reduce_ex__(self, _): raise SystemExit(0)
"""


@pytest.mark.parametrize("kind", [FROZEN, TEXT, CLASS, NOTES, TRACEBACK, REDUCE])
def test_an_exception_that_breaks_what_looks_at_it_is_reported(notebook: Notebook, tmp_path: Path, kind: str) -> None:
    ran = notebook.train(kind + "before = 1\ndef fails():\n    raise Bad()\nfails()", tmp_path)
    assert (ran.code, ran.state, ran.report["error"]["type"]) == (1, "FAILED", "Bad")
    assert ran.report["reason"].startswith("Bad")
    assert "in fails" in ran.report["error"]["traceback"]
    assert "cellrun" not in ran.report["error"]["traceback"]
    assert ran.report["error"]["traceback"] in ran.stderr
    assert notebook.output(ran, "before") == 1
    assert outcome(ran)["outputs"]["before"]["error"] is None


@pytest.mark.parametrize("end", ["raise ValueError({})", "import sys\nsys.exit({})"])
def test_half_a_surrogate_pair_is_readable_by_everybody(notebook: Notebook, tmp_path: Path, end: str) -> None:
    ran = notebook.train("x = 1\nprint('x')\n" + end.format(r'"bad \ud800 text"'), tmp_path)
    assert "bad ? text" in outcome(ran)["reason"]
    assert msgspec.json.decode((ran.out / "report.json").read_bytes())["state"] == "FAILED"
    assert notebook.output(ran, "x") == 1


def test_records_of_before_are_read_without_half_pairs() -> None:
    line = json.dumps({"kind": "outcome", "reason": "\ud800 and \U0001f600"}).encode()
    (record,) = events.parse(line + b"\n")[0]
    assert record["reason"] == "? and \U0001f600"


@pytest.mark.parametrize(
    ("code", "reason", "number"),
    [
        ("'x' * 10**7", "xxx", 1),
        ("10**5000", "sys.exit((its text cannot be had)) was called.", 1),
        ("Level.TWO", "sys.exit(2) was called.", 2),
        ("(1, 2)", "(1, 2)", 1),
    ],
)
def test_what_is_given_to_exit_is_bounded_and_read_as_python_does(
    notebook: Notebook, tmp_path: Path, code: str, reason: str, number: int
) -> None:
    ran = notebook.train(f"import enum, sys\nclass Level(enum.IntEnum):\n    TWO = 2\nsys.exit({code})", tmp_path)
    assert (ran.state, ran.code) == ("FAILED", number)
    assert ran.report["reason"].startswith(reason)
    assert len(json.dumps(ran.report)) < 1000


def test_a_message_of_megabytes_leaves_a_short_record_that_names_the_log(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        class Large:
            def __reduce__(self): raise ValueError("y" * 5_000_000)
        large = Large()
        raise ValueError("x" * 5_000_000)
        """
    ran = notebook.train(source, tmp_path)
    assert (ran.job / "events/0/0.0.jsonl").stat().st_size < 200_000
    assert len(ran.report["outputs"]["large"]["error"]) <= 300
    assert ran.report["error"]["traceback"].startswith("... (the whole of it is in the job's log)\n")
    assert "x" * 5_000_000 in ran.stderr


# -- values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "member",
    [
        "def __reduce__(self): raise SystemExit(3)",
        "def __reduce__(self): raise KeyboardInterrupt",
        "def __reduce__(self): raise Rude()",
        "__class__ = property(lambda self: 1 / 0)",
        "def __getattribute__(self, name): raise Rude()",
        "def __reduce__(self): return dict.fromkeys",
    ],
)
def test_one_value_that_does_not_save_costs_none_of_the_others(notebook: Notebook, tmp_path: Path, member: str) -> None:
    source = f"""
        class Rude(BaseException):
            def __str__(self): raise KeyboardInterrupt
        class Bad:
            {member}
        first = 1
        bad = Bad()
        last = 2
        """
    ran = notebook.train(source, tmp_path)
    assert (ran.code, ran.state) == (0, "SUCCEEDED"), ran.stderr
    assert (notebook.output(ran, "first"), notebook.output(ran, "last")) == (1, 2)
    assert outcome(ran)["outputs"].keys() >= {"first", "bad", "last"}


def test_a_result_that_ends_the_process_while_it_is_saved_is_told(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("class Bad:\n    def __reduce__(self): raise SystemExit(0)\nx = 1\nBad()", tmp_path)
    assert (ran.code, ran.state) == (1, "RESULT_FAILED")
    assert notebook.output(ran, "x") == 1


# -- streams ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "sys.stdout = Tee()",
        "sys.stdout = sys.stderr = None",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stderr = Tee(); sys.__stdout__ = None",
        "sys.stdout = Rude()",
        "del sys.stdout, sys.stderr",
    ],
)
def test_streams_of_the_users_cost_no_good_run(notebook: Notebook, tmp_path: Path, source: str) -> None:
    head = """
        import sys
        print("before", end="")
        class Tee:
            def write(self, text): pass
        class Rude(Tee):
            def flush(self): raise KeyboardInterrupt
        """
    ran = notebook.train(textwrap.dedent(head) + source + "\nx = 1", tmp_path)
    assert (ran.code, ran.state, outcome(ran)["state"]) == (0, "SUCCEEDED", "SUCCEEDED")
    assert ran.stdout == "before"


# -- forks --------------------------------------------------------------------------------


def test_a_fork_that_comes_to_the_cells_end_reports_nothing(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import os
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            x = "child"
            print("child")
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            x = "parent"
        """
    ran = notebook.train(source, tmp_path)
    assert (ran.code, ran.state, ran.stdout) == (0, "SUCCEEDED", "child\n")
    assert (notebook.output(ran, "x"), notebook.output(ran, "code")) == ("parent", 0)
    assert [record["kind"] for record in events.read(str(ran.job / "events/0/0.0.jsonl"))].count("outcome") == 1


@pytest.mark.parametrize(
    ("end", "code"), [("raise ValueError('in the fork')", 1), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 1)", -1)]
)
def test_a_fork_that_fails_fails_for_itself(notebook: Notebook, tmp_path: Path, end: str, code: int) -> None:
    source = f"""
        import os, sys
        pid = os.fork()
        if pid == 0:
            {end}
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        """
    ran = notebook.train(source, tmp_path)
    assert (ran.state, notebook.output(ran, "code")) == ("SUCCEEDED", code)
    assert ("ValueError: in the fork" in ran.stderr) == (code == 1)


def test_a_fork_of_a_function_returns_nothing(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        """
        import os
        def f():
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
            return "child" if pid == 0 else "parent"
        """
    )
    ran = payloads.run(function.build(notebook["f"], (), modules_root=tmp_path), tmp_path)
    assert notebook.result(ran) == "parent"


def test_a_fork_while_a_module_is_imported(notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ck_forks.py").write_text("import os\npid = os.getpid()\nif os.environ.get('RUN'): os.fork()\n")
    notebook.run("import ck_forks")
    ran = notebook.train("import os\nout = os.getpid() == ck_forks.pid", tmp_path, env={"RUN": "1"})
    assert (ran.code, ran.state) == (0, "SUCCEEDED")
    assert notebook.output(ran, "out") is True


# -- the environment ----------------------------------------------------------------------


def test_a_rank_that_the_code_sets_itself_costs_no_names(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("import os\nos.environ['RANK'] = '3'\nx = 1", tmp_path, env={"RANK": "2"})
    assert notebook.output(ran, "x") == 1


# -- a signal that the code hears by itself -----------------------------------------------


HEARS = """
import signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
print("ready", flush=True)
while not heard:
    time.sleep(0.01)
saved = 5
"""


def test_code_that_hears_a_signal_and_returns_was_cancelled_and_keeps_its_names(
    notebook: Notebook, tmp_path: Path
) -> None:
    payloads.lay_out(tmp_path, notebook.ship(HEARS + "time.sleep(0.2)", tmp_path))
    process = subprocess.Popen(payloads.command(tmp_path), env=payloads.environment())
    until(lambda: _out(tmp_path, "stdout") == "ready\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    ran = Ran(tmp_path / "job", subprocess.CompletedProcess([], 1, "", ""))
    assert (outcome(ran)["state"], outcome(ran)["reason"]) == ("CANCELLED", "It was ended by SIGTERM (15).")
    assert outcome(ran)["outputs"]["saved"]["error"] is None
    assert notebook.output(ran, "saved") == 5


def test_code_that_was_through_before_the_signal_has_succeeded(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import time
        class Slow:
            def __reduce__(self):
                time.sleep(0.5)  # well before the signal
                print("saving", flush=True)
                time.sleep(0.5)
                return dict, ()
        slow = Slow()
        """
    payloads.lay_out(tmp_path, notebook.ship(source, tmp_path))
    process = subprocess.Popen(payloads.command(tmp_path), env=payloads.environment())
    until(lambda: "saving" in _out(tmp_path, "stdout"))
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0
    ran = Ran(tmp_path / "job", subprocess.CompletedProcess([], 0, "", ""))
    assert outcome(ran)["state"] == "SUCCEEDED"
    assert notebook.output(ran, "slow") == {}


def _out(folder: Path, name: str) -> str:
    path = folder / "job/out/0/0.0" / name
    return path.read_text() if path.exists() else ""


# -- odd characters in a source -----------------------------------------------------------


@pytest.mark.parametrize("char", ["\f", "\u2028", "\x1c", "\x85", "\v"])
def test_a_line_ends_where_the_parser_says_so(notebook: Notebook, tmp_path: Path, char: str) -> None:
    source = f"""
        import inspect, multiprocessing
        text = "a{char}b"
        def first(x): return [x, "{char}"]
        def second(x): return len("{char}") + x
        shouted = !echo hi
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            out = [pool.map(first, [1]), pool.map(second, [1]), text, list(shouted), inspect.getsource(second)]
        """
    ran = notebook.train(source, tmp_path)
    assert ran.state == "SUCCEEDED", ran.stderr
    wanted = f'def second(x): return len("{char}") + x\n'
    assert notebook.output(ran, "out") == [[[1, char]], [2], f"a{char}b", ["hi"], wanted]


# -- records that are damaged -------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        "null", "[]", "3", '"x"', "{}", '{"state":', '{"state": 3}', "", "[" * 100_000,
        '{"state": "SUCCEEDED", "reason": "", "exit_code": 0, "error": null, "result": "ok", "outputs": {"x": 1}}',
    ],
)  # fmt: skip
def test_a_report_that_is_damaged_is_told(notebook: Notebook, tmp_path: Path, content: str) -> None:
    source = f"import os\nopen(os.environ['CLUSTERKERNEL_OUT'] + '/report.json', 'w').write({content!r})\nos._exit(0)"
    ran = payloads.run(notebook.ship(source, tmp_path), tmp_path)
    told = outcome(ran)
    assert (ran.code, told["state"]) == (1, "DIED")
    assert told["reason"] == f"What it said of its end is damaged: {ran.out / 'report.json'}."


def test_a_report_of_a_hundred_megabytes_is_not_read(notebook: Notebook, tmp_path: Path) -> None:
    source = "import os\nos.truncate(os.open(os.environ['CLUSTERKERNEL_OUT'] + '/report.json', 65), 10**8)\nos._exit(0)"
    assert "damaged" in outcome(notebook.train(source, tmp_path))["reason"]


@pytest.mark.parametrize("content", ["null", "[]", '{"tasks": 3}', '{"tasks"', "{}"])
def test_a_cancel_that_is_damaged_cancels_nothing(notebook: Notebook, tmp_path: Path, content: str) -> None:
    artefact = notebook.ship("x = 1", tmp_path)
    payloads.lay_out(tmp_path, artefact)
    (tmp_path / "job/cancel.json").write_text(content)
    assert payloads.run(artefact, tmp_path).state == "SUCCEEDED"


@pytest.mark.parametrize("content", ["null", "[]", "{}", "", "x"])
def test_a_claim_that_is_damaged_is_somebodys(tmp_path: Path, content: str) -> None:
    path = tmp_path / "0"
    path.write_text(content)
    assert events.claim(str(path), "77") == "unreadable"


def a_job(out: Path, **told: Any) -> Any:
    """As much of a job as its readers look at."""
    return SimpleNamespace(
        out=lambda _: out,
        spec=SimpleNamespace(launcher=Launcher.TORCHRUN),
        record=SimpleNamespace(payload=SimpleNamespace(kind="cell")),
        outcome=SimpleNamespace(**told),
    )


def test_ranks_are_those_that_are_numbered(tmp_path: Path) -> None:
    assert loading.result_dirs(a_job(tmp_path / "gone"), 0) == []
    for name in ("rank-10", "rank-2", "rank-x", "rank-", "rank"):
        (tmp_path / name).mkdir()
    assert [path.name for path in loading.result_dirs(a_job(tmp_path), 0)] == ["rank-2", "rank-10"]


@pytest.mark.parametrize("size", [None, "many", [1], {}])
def test_a_size_that_is_damaged_is_none(tmp_path: Path, size: Any) -> None:
    views = loading.output_views(a_job(tmp_path, outputs={"x": {"size": size, "type": None}}))
    assert (views["x"].size, views["x"].type, views["x"].error) == (0, "", "")
