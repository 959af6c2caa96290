"""Payloads run to their end under a real supervisor, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.payload import Artefact, function, results
from tests.unit import payloads
from tests.unit.payloads import Notebook, Ran


@pytest.fixture
def notebook() -> Notebook:
    return Notebook()


# -- cells ------------------------------------------------------------------------


def test_value_of_the_last_expression_is_the_result_and_names_are_saved(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("base = 10")
    ran = notebook.train("a = base + 1\nb = [a]\nb", tmp_path)
    assert (ran.code, ran.state, ran.report["result"]) == (0, "SUCCEEDED", "ok")
    assert notebook.result(ran) == [11]
    assert {name: about["type"] for name, about in ran.report["outputs"].items()} == {"a": "int", "b": "list"}
    assert notebook.output(ran, "b") == [11]
    assert "__clusterkernel_result__" not in ran.report["outputs"]


def test_without_a_last_expression_there_is_no_result(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("x = 1", tmp_path)
    assert ran.report["result"] == "none"
    assert not (ran.out / "result.pkl").exists()
    assert notebook.result(ran) is None


def test_modules_and_deleted_names_are_not_saved(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("m = __import__('math')\nx = 1\ny = 2\ndel y", tmp_path)
    assert set(ran.report["outputs"]) == {"x"}


def test_captured_objects_keep_their_identity(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("a = [1]\nb = {'a': a}\nclass Box: ...\nbox = Box()\nbox.a = a\nkind = Box")
    ran = notebook.train("(b['a'] is a, box.a is a, type(box) is kind, box.__class__.__module__)", tmp_path)
    assert notebook.result(ran) == (True, True, True, "__main__")


def test_functions_of_the_notebook_share_the_cells_globals(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        """
        counter = 0
        def count():
            global counter
            counter += 1
            return later() + counter
        class Asks:
            def ask(self): return later()
        """
    )
    ran = notebook.train("def later(): return 100\n[count(), count(), counter, Asks().ask()]", tmp_path)
    assert notebook.result(ran) == [101, 102, 2, 100]


def test_main_is_fresh_and_has_the_cells_file(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train(
        """
        import sys
        main = sys.modules["__main__"]
        names = sorted(name for name in globals() if name[0] != "_")
        out = (__name__, main.__dict__ is globals(), main.__file__, sys.argv, names)
        """,
        tmp_path,
    )
    main_file = str(ran.payload / "main.py")
    assert notebook.output(ran, "out") == ("__main__", True, main_file, [main_file], ["main", "sys"])


def test_path_and_folder(notebook: Notebook, tmp_path: Path) -> None:
    extra = str(tmp_path / "extra")
    ran = notebook.train("import os, sys\nout = (os.getcwd(), sys.path)", tmp_path, env={"PYTHONPATH": extra})
    folder, path = notebook.output(ran, "out")
    assert folder == str(tmp_path / "work")
    assert path[:3] == [str(ran.payload / "modules"), folder, extra]
    assert str(tmp_path / "runtime") not in path[:3]


def test_local_module_is_the_one_of_submission(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = tmp_path / "ck_entry_helper.py"
    helper.write_text("VALUE = 1\n")
    artefact = notebook.ship("import ck_entry_helper\nck_entry_helper.VALUE", tmp_path)
    payloads.lay_out(tmp_path, artefact)
    helper.write_text("VALUE = 2\n")
    assert notebook.result(payloads.run(artefact, tmp_path)) == 1


def test_top_level_await(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train(
        "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x\ny = await f(2)\nawait f(y + 1)",
        tmp_path,
    )
    assert notebook.result(ran) == 3
    assert notebook.output(ran, "y") == 2


def test_shell_lines(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train(
        "word = 'hi'\nlines = !echo {word}; echo $word\n!echo out; echo err >&2; exit 3\nlines.n", tmp_path
    )
    assert notebook.result(ran) == "hi\nhi"
    assert ran.stdout == "out\n"
    assert "err" in ran.stderr
    assert "exit code 3" in ran.stderr


def test_display_prints_where_there_is_no_ipython(notebook: Notebook, tmp_path: Path) -> None:
    assert notebook.train("display([1], 'a')", tmp_path).stdout == "[1]\n'a'\n"


def test_inspect_finds_the_source_of_functions_and_classes(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        """
        def sent(x):
            return x  # sent

        class Sent:
            def go(self):
                return 1  # go
        """
    )
    ran = notebook.train(
        """
        import inspect
        def own(x):
            return x  # own
        class Mine:
            # mine
            pass
        out = [inspect.getsource(one) for one in (own, Mine, sent, Sent.go)]
        """,
        tmp_path,
        first_line=2,
    )
    own, mine, sent, go = notebook.output(ran, "out")
    assert own == "def own(x):\n    return x  # own\n"
    assert mine.startswith("class Mine:\n    # mine")
    assert sent == "def sent(x):\n    return x  # sent\n"
    assert "# go" in go


# -- how it ends --------------------------------------------------------------------


def test_users_exception_has_the_cells_lines_and_none_of_our_frames(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        """
        class MyError(Exception):
            def __init__(self, a, b):
                super().__init__(f"{a} and {b}")
                self.a = a
        def deep(x):
            return int(x)
        """
    )
    ran = notebook.train(
        """
        before = 1
        try:
            deep("x")
        except ValueError as error:
            raise MyError(3, 4) from error
        """,
        tmp_path,
        filename="Cell In[7]",
        first_line=2,
    )
    assert (ran.code, ran.state, ran.report["reason"]) == (1, "FAILED", "MyError: 3 and 4")
    told = ran.report["error"]
    assert (told["type"], told["message"]) == ("MyError", "3 and 4")
    assert 'File "Cell In[7]", line 5, in <module>\n    deep("x")' in told["traceback"]
    assert 'File "Cell In[7]", line 7, in <module>\n    raise MyError(3, 4) from error' in told["traceback"]
    assert "return int(x)" in told["traceback"]
    assert "ckruntime" not in told["traceback"]
    assert "cellrun" not in ran.stderr
    assert told["traceback"] in ran.stderr
    error = notebook.error(ran)
    assert type(error) is notebook["MyError"]
    assert (error.args, error.a) == (("3 and 4",), 3)  # type: ignore[union-attr]
    assert notebook.output(ran, "before") == 1


def test_exception_in_async_code_has_no_frames_of_the_loop(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("async def f(): raise KeyError('k')\nawait f()", tmp_path)
    assert "asyncio" not in ran.report["error"]["traceback"]
    assert ran.report["error"]["type"] == "KeyError"


def test_closed_streams_and_huge_messages_do_not_lose_the_report(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("import sys\nsys.stderr.close()\nsys.stdout = None\nraise ValueError('x' * 10**6)", tmp_path)
    assert ran.state == "FAILED"
    assert len(ran.report["reason"]) < 400
    assert len(json.dumps(ran.report)) < 200_000
    assert "ValueError" in ran.stderr


def test_exception_that_does_not_pickle_is_text(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("import threading\nraise ValueError(threading.Lock())", tmp_path)
    assert ran.state == "FAILED"
    assert "ValueError" in ran.report["error"]["traceback"]
    assert notebook.error(ran) is None


@pytest.mark.parametrize(
    ("call", "code", "state", "reason"),
    [
        ("sys.exit()", 0, "SUCCEEDED", ""),
        ("sys.exit(0)", 0, "SUCCEEDED", ""),
        ("sys.exit(3)", 3, "FAILED", "sys.exit(3) was called."),
        ("sys.exit('no data')", 1, "FAILED", "no data"),
    ],
)
def test_sys_exit(notebook: Notebook, tmp_path: Path, call: str, code: int, state: str, reason: str) -> None:
    ran = notebook.train(f"import sys\nx = 1\n{call}", tmp_path)
    assert (ran.code, ran.report["exit_code"], ran.state, ran.report["reason"]) == (code, code, state, reason)
    assert notebook.output(ran, "x") == 1
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("(i for i in [])", "result: generator"),
        ("Model()", "result.parts[1].lock: _thread.lock"),
    ],
)
def test_result_that_does_not_pickle_names_the_part_and_keeps_the_rest(
    notebook: Notebook, tmp_path: Path, value: str, path: str
) -> None:
    started = time.monotonic()
    ran = notebook.train(
        f"""
        import threading
        class Part:
            def __init__(self): self.lock = threading.Lock()
        class Model:
            def __init__(self): self.parts = [1, Part()]
        good = [1, 2]
        bad = threading.Lock()
        {value}
        """,
        tmp_path,
    )
    assert time.monotonic() - started < 5
    assert (ran.code, ran.state, ran.report["result"]) == (1, "RESULT_FAILED", "failed")
    assert ran.report["reason"] == f"The result could not be saved: {path} does not pickle."
    assert ran.report["outputs"]["bad"]["error"] == "bad: _thread.lock does not pickle"
    assert notebook.output(ran, "good") == [1, 2]
    assert not list(ran.out.rglob("*.tmp"))


def test_failing_names_do_not_fail_the_job(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train("x = 1\ng = (i for i in [])\nclass Bad:\n    def __reduce__(self): 1 / 0\nb = Bad()", tmp_path)
    assert (ran.code, ran.state) == (0, "SUCCEEDED")
    assert ran.report["outputs"]["g"]["error"] == "g: generator does not pickle"
    assert "division by zero" in ran.report["outputs"]["b"]["error"]
    assert ran.report["outputs"]["x"]["error"] is None


def test_value_that_cannot_be_read_here_is_a_failed_launch(notebook: Notebook, tmp_path: Path) -> None:
    artefact = notebook.ship("1", tmp_path)
    body = {**artefact.body, "imports": ["ck_nowhere.deep"]}
    changed = Artefact(kind="cell", title="t", body=body, files=artefact.files)
    ran = payloads.run(changed, tmp_path)
    assert ran.state == "LAUNCH_FAILED"
    assert ran.report["reason"] == f"ModuleNotFoundError: No module named 'ck_nowhere' on {os.uname().nodename}"
    assert ran.code == 1


def test_the_value_that_cannot_be_read_is_named(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ck_soon_gone.py").write_text("class Thing: ...\n")
    notebook.run("from ck_soon_gone import Thing\nthing = Thing()")
    artefact = notebook.ship("thing", tmp_path)
    payloads.lay_out(tmp_path, artefact)
    (tmp_path / "job" / "payload" / "modules" / "ck_soon_gone.py").unlink()
    ran = payloads.run(artefact, tmp_path)
    where = os.uname().nodename
    reason = f"ModuleNotFoundError: No module named 'ck_soon_gone' on {where} (needed by thing)"
    assert (ran.state, ran.report["reason"]) == ("LAUNCH_FAILED", reason)


def test_another_python_is_a_failed_launch(notebook: Notebook, tmp_path: Path) -> None:
    artefact = notebook.ship("1", tmp_path)
    changed = Artefact(kind="cell", title="t", body={**artefact.body, "python": "2.7"}, files=artefact.files)
    ran = payloads.run(changed, tmp_path)
    assert ran.state == "LAUNCH_FAILED"
    assert ran.report["reason"].startswith("It was sent from Python 2.7, and ")


def test_missing_working_folder_is_a_failed_launch(notebook: Notebook, tmp_path: Path) -> None:
    artefact = notebook.ship("1", tmp_path)
    missing = str(tmp_path / "missing")
    ran = payloads.run(artefact, tmp_path, environment={"workdir": missing})
    assert ran.state == "LAUNCH_FAILED"
    assert f"The working folder {missing} cannot be used on " in ran.report["reason"]


def test_exit_functions_and_threads_run_to_their_end(notebook: Notebook, tmp_path: Path) -> None:
    ran = notebook.train(
        """
        import atexit, threading, time
        def slow():
            time.sleep(0.2)
            print("thread")
        atexit.register(print, "exit")
        threading.Thread(target=slow).start()
        """,
        tmp_path,
    )
    assert ran.stdout == "thread\nexit\n"


# -- signals --------------------------------------------------------------------------


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{text!r} never came"
        time.sleep(0.02)


def start(notebook: Notebook, folder: Path, source: str) -> subprocess.Popen[bytes]:
    payloads.lay_out(folder, notebook.ship(source, folder))
    return subprocess.Popen(payloads.command(folder), env=payloads.environment(), stderr=subprocess.DEVNULL)


def test_names_are_saved_after_sigterm_and_a_second_one_breaks_nothing(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import time
        step = 0
        try:
            while True:
                step += 1
                print("step", step)
                time.sleep(0.05)
        finally:
            cleaned = True
            print("cleaning")
            time.sleep(0.5)
            print("cleaned")
        """
    process = start(notebook, tmp_path, source)
    stdout = tmp_path / "job" / "out" / "0" / "0.0" / "stdout"
    wait_for(stdout, "step 3")
    process.send_signal(signal.SIGTERM)
    wait_for(stdout, "cleaning")
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    ran = Ran(tmp_path / "job", subprocess.CompletedProcess([], process.returncode, "", ""))
    assert ran.stdout.endswith("cleaning\ncleaned\n")
    assert (ran.state, ran.report["exit_code"]) == ("CANCELLED", 143)
    assert "SIGTERM" in ran.report["reason"]
    assert notebook.output(ran, "step") >= 3
    assert notebook.output(ran, "cleaned") is True
    assert "time.sleep(0.05)" in ran.report["error"]["traceback"]
    records = [json.loads(line) for line in (tmp_path / "job/events/0/0.0.jsonl").read_text().splitlines()]
    assert records[-1]["state"] == "CANCELLED"
    assert set(records[-1]["outputs"]) >= {"step", "cleaned"}


def test_sigint_is_a_keyboard_interrupt(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import time
        try:
            print("ready")
            time.sleep(60)
        except KeyboardInterrupt:
            print("stopped")
        done = 1
        """
    process = start(notebook, tmp_path, source)
    stdout = tmp_path / "job" / "out" / "0" / "0.0" / "stdout"
    wait_for(stdout, "ready")
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert "stopped" in stdout.read_text()


def test_checkpoint_signals_end_nothing_by_themselves(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import os, signal
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR2, lambda *_: print("checkpoint"))
        os.kill(os.getpid(), signal.SIGUSR2)
        done = 1
        """
    ran = notebook.train(source, tmp_path)
    assert (ran.state, ran.stdout) == ("SUCCEEDED", "checkpoint\n")


def test_saving_that_hangs_is_given_up_after_sigterm(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import time
        first = 1
        class Slow:
            def __reduce__(self):
                print("saving")
                time.sleep(300)
        slow = Slow()
        last = 2
        """
    process = start(notebook, tmp_path, source)
    wait_for(tmp_path / "job" / "out" / "0" / "0.0" / "stdout", "saving")
    process.send_signal(signal.SIGTERM)
    process.wait(60)
    ran = Ran(tmp_path / "job", subprocess.CompletedProcess([], process.returncode, "", ""))
    assert ran.report["outputs"]["first"]["error"] is None
    assert ran.report["outputs"]["slow"]["error"] == "the time for saving was over"


# -- worker processes ---------------------------------------------------------------------


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_worker_processes_find_definitions_and_do_not_train_again(
    notebook: Notebook, tmp_path: Path, method: str
) -> None:
    notebook.run(
        """
        offset = 1000
        table = {"k": 5}
        class Sent:
            def __init__(self, v): self.v = v
        def sent(x):
            return Sent(x + offset)
        """
    )
    ran = notebook.train(
        f"""
        import multiprocessing
        print("training")
        FACTOR = 10
        class Mine:
            def __init__(self, v): self.v = v
        def own(x):
            return Mine(x * FACTOR + table["k"])
        with multiprocessing.get_context("{method}").Pool(1) as pool:
            a = pool.map(own, [1, 2])
            b = pool.map(sent, [Sent(1).v, 2])
        out = ([one.v for one in a], [one.v for one in b], type(a[0]) is Mine, type(b[0]) is Sent)
        """,
        tmp_path,
    )
    assert ran.state == "SUCCEEDED", ran.stderr
    assert notebook.output(ran, "out") == ([15, 25], [1001, 1002], True, True)
    assert ran.stdout == "training\n"


# -- functions ------------------------------------------------------------------------------


def test_function_payload_spawns_workers_too(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run(
        """
        def square(x): return x * x
        def job(items):
            import multiprocessing
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return pool.map(square, items)
        """
    )
    ran = payloads.run(function.build(notebook["job"], ([1, 2, 3],), modules_root=tmp_path), tmp_path)
    assert notebook.result(ran) == [1, 4, 9]


def test_a_trivial_task_imports_little(notebook: Notebook, tmp_path: Path) -> None:
    # Each of them costs every task of an array some milliseconds.
    code = "set(__import__('sys').modules)"
    bare = subprocess.run(
        [sys.executable, "-c", f"print(*{code})"],
        env=payloads.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    ran = payloads.run(function.build(eval, (code,), modules_root=tmp_path), tmp_path)
    costly = {
        "cloudpickle",
        "asyncio",
        "inspect",
        "multiprocessing",
        "json",
        "re",
        "enum",
        "ctypes",
        "runpy",
        "logging",
    }
    assert notebook.result(ran) & costly <= set(bare.stdout.split())


def test_coroutine_function_is_awaited(notebook: Notebook, tmp_path: Path) -> None:
    notebook.run("async def f(x): return x + 1")
    ran = payloads.run(function.build(notebook["f"], (1,), modules_root=tmp_path), tmp_path)
    assert notebook.result(ran) == 2


@pytest.mark.parametrize(("rank", "saved"), [("0", {"x"}), ("1", set())])
def test_every_rank_returns_and_the_first_saves_names(
    notebook: Notebook, tmp_path: Path, rank: str, saved: set[str]
) -> None:
    # As a launcher starts it, below its supervisor.
    runtime = payloads.lay_out(tmp_path, notebook.ship("import os\nx = 1\nos.environ.pop('RANK')", tmp_path))
    job = tmp_path / "job"
    told = {"JOB_DIR": job, "OUT": job / "out/0/0.0", "TASK": 0, "RANK": 0, "WORLD": 1, "ATTEMPT": 0, "PLATFORM_ID": ""}
    environment = payloads.environment(RANK=rank, **{f"CLUSTERKERNEL_{name}": str(told[name]) for name in told})
    subprocess.run([sys.executable, str(runtime), "rank"], env=environment, check=True, timeout=120)
    out = job / "out/0/0.0" / f"rank-{rank}"
    assert results.load_result(out, notebook.names, job / "payload") == rank
    assert set(json.loads((out / "report.json").read_bytes())["outputs"]) == saved


def test_shim_stands_in_where_the_product_is_not_installed(notebook: Notebook, tmp_path: Path) -> None:
    source = """
        import clusterkernel as ck
        ck.log(step=1, loss=0.5)
        out = ck.__file__
        """
    ran = notebook.train(source, tmp_path, env={"PYTHONPATH": ""})
    assert ran.state == "SUCCEEDED", ran.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in (ran.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["values"] for line in lines if line["source"] == "log"] == [{"loss": 0.5}]
