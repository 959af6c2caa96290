"""Trees of processes: found, ended whole, named for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.jobroot import JobRoot
from clusterkernel.runtime import processes
from tests.unit import making

# A process that makes the tree that its argument describes, and prints the pids.
TREE = """
import os, signal, sys, threading, time
def leaf():
    print(os.getpid(), flush=True)
    signal.pause()
def child(body, *, setsid=False):
    if os.fork() == 0:
        if setsid:
            os.setsid()
        body()
        os._exit(0)
kind = sys.argv[1]
if kind == "setsid":
    child(leaf, setsid=True)
elif kind == "deep":
    child(lambda: (print(os.getpid(), flush=True), child(lambda: (print(os.getpid(), flush=True), child(leaf),
          signal.pause())), signal.pause()))
elif kind == "deaf":
    def deaf():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        leaf()
    child(deaf)
elif kind == "polite":
    def polite():
        signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"goodbye"), os._exit(0)))
        leaf()
    child(polite)
elif kind == "thread":
    threading.Thread(target=lambda: (child(leaf), signal.pause()), daemon=True).start()
elif kind == "daemon":  # forks twice, as a daemon does: its parent is gone
    child(lambda: child(leaf, setsid=True))
signal.pause()
"""


@pytest.fixture
def tree() -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def start(kind: str, count: int) -> tuple[subprocess.Popen[str], list[int]]:
        root = making.python(TREE, kind)
        started.append(root)
        assert root.stdout is not None
        return root, [int(root.stdout.readline()) for _ in range(count)]

    yield start
    for root in started:
        processes.send([root.pid, *processes.descendants(root.pid)], signal.SIGKILL)
        root.communicate()


def alive(pid: int) -> bool:
    return processes.start_time(pid) is not None


@pytest.mark.parametrize(("kind", "count"), [("setsid", 1), ("deep", 3), ("thread", 1)])
def test_all_below_are_found(tree: Any, kind: str, count: int) -> None:
    root, pids = tree(kind, count)
    assert sorted(processes.descendants(root.pid)) == sorted(pids)
    assert processes.children(os.getpid()).count(root.pid) == 1


def test_a_process_that_is_gone_has_nothing_below() -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    assert processes.children(done.pid) == processes.descendants(done.pid) == []
    assert processes.start_time(done.pid) is None
    processes.send([done.pid, 0x7FFFFFFF], signal.SIGKILL)


def test_a_thread_that_ends_meanwhile_hides_no_child(monkeypatch: pytest.MonkeyPatch, tree: Any) -> None:
    root, pids = tree("deep", 3)
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["0", *real(path)])  # "0" has ended by now
    assert sorted(processes.descendants(root.pid)) == sorted(pids)


def test_a_process_is_named_for_good() -> None:
    mine = processes.start_time(os.getpid())
    assert mine == processes.start_time(os.getpid())
    child = making.python("input()")
    theirs = processes.start_time(child.pid)
    assert mine is not None
    assert theirs is not None
    assert theirs >= mine
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_time(child.pid) is None, "a zombie has ended"
    child.communicate()


def test_a_strange_name_does_not_hide_the_start(tmp_path: Path) -> None:
    # The name stands in parentheses in /proc/PID/stat, and may hold any.
    program = tmp_path / "a) Z (b"
    program.symlink_to(sys.executable)
    child = subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE)
    making.until(lambda: b"a) Z (b" in Path(f"/proc/{child.pid}/stat").read_bytes())
    assert isinstance(processes.start_time(child.pid), int)
    child.communicate(b"\n")


def in_fork(code: str, *arguments: str) -> str:
    """What a process that uses the runtime prints."""
    head = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom ckruntime import processes\nimport os, signal, subprocess\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + code, str(JobRoot().runtime()), *arguments],
        capture_output=True,
        text=True,
        timeout=making.CEILING,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


END = f"""
processes.become_subreaper()
root = subprocess.Popen([sys.executable, "-c", {TREE!r}, sys.argv[2]], stdout=subprocess.PIPE, text=True)
pids = [int(root.stdout.readline()) for _ in range(int(sys.argv[3]))]
if sys.argv[4] == "orphaned":
    root.kill()
    os.waitid(os.P_PID, root.pid, os.WEXITED | os.WNOWAIT)
    processes.reap()
count = processes.end_all_below(os.getpid(), float(sys.argv[5]))
rest = root.stdout.read().strip()
print(count, [processes.start_time(pid) for pid in pids + [root.pid]], processes.descendants(os.getpid()), rest)
"""


@pytest.mark.parametrize("how", ["whole", "orphaned"])
@pytest.mark.parametrize(("kind", "count"), [("setsid", 1), ("deep", 3), ("thread", 1), ("daemon", 1)])
def test_all_below_are_ended(kind: str, count: int, how: str) -> None:
    told, ends = in_fork(END, kind, str(count), how, "60").strip().split(" ", 1)
    nones = ", ".join(["None"] * (count + 1))
    assert ends == f"[{nones}] []"
    if kind != "daemon":  # whose own parent is just ending
        assert int(told) == count + (how == "whole")


def test_who_does_not_hear_is_killed() -> None:
    assert in_fork(END, "deaf", "1", "orphaned", "0.1").strip() == "1 [None, None] []"


def test_who_hears_may_say_goodbye() -> None:
    assert in_fork(END, "polite", "1", "orphaned", "60").strip() == "1 [None, None] [] goodbye"


def test_with_nothing_below_nothing_is_waited_for() -> None:
    began = time.monotonic()
    assert processes.end_all_below(0x7FFFFFFF, 1000) == 0
    assert time.monotonic() - began < 100


def test_a_tree_that_grows_while_it_is_ended_goes_too() -> None:
    code = """
processes.become_subreaper()
grow = '''
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
for _ in range(400):
    if os.fork() == 0:
        os.setsid()
    else:
        os._exit(0)
signal.pause()
'''
root = subprocess.Popen([sys.executable, "-c", grow], stdout=subprocess.PIPE)
root.stdout.readline()
processes.end_all_below(os.getpid(), 0)
print(processes.descendants(os.getpid()))
"""
    assert in_fork(code) == "[]\n"


def test_what_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that a driver or a dead file server holds: the job's end must still be told.
    clock = iter(range(1000))
    monkeypatch.setattr(processes, "descendants", lambda _: [0x7FFFFFFF])
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(processes, "reap", dict)
    assert processes.end_all_below(1, 3) == 1


def test_ended_children_are_reaped() -> None:
    code = """
first = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
second = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
ended = processes.reap()
assert list(ended) == [first.pid] and os.WEXITSTATUS(ended[first.pid]) == 3
assert processes.reap() == {}
second.kill()
os.waitid(os.P_PID, second.pid, os.WEXITED | os.WNOWAIT)
assert os.WTERMSIG(processes.reap()[second.pid]) == signal.SIGKILL
assert processes.reap() == {}
"""
    assert in_fork(code) == ""


DIE = """
up_read, up_write = os.pipe()
read_end, write_end = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        os.setsid()
        processes.die_with_parent(parent)
        os.write(up_write, b"up")
        signal.pause()
    os.close(write_end)
    os.read(up_read, 2)
    os.kill(parent, signal.SIGKILL)
os.close(write_end)
assert os.read(read_end, 100) == b""  # its end is closed: it has ended
"""


def test_a_process_dies_with_its_parent() -> None:
    assert in_fork(DIE) == ""


def test_a_process_whose_parent_is_gone_already_ends_at_once() -> None:
    code = """
child = os.fork()
if child == 0:
    processes.die_with_parent(1 if os.getppid() != 1 else 2)
    os._exit(0)
assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 1
"""
    assert in_fork(code) == ""


@pytest.mark.parametrize(
    ("cgroup", "files", "kills"),
    [
        ("0::/job\n", {"/sys/fs/cgroup/job/memory.events": "low 0\noom 4\noom_kill 3\n"}, 3),
        ("0::/job\n", {"/sys/fs/cgroup/job/memory.events": "low 0\noom_kill 0\n"}, 0),
        ("4:cpu,memory:/job\n", {"/sys/fs/cgroup/memory/job/memory.oom_control": "under_oom 0\noom_kill 2\n"}, 2),
        ("4:cpu:/job\n1:name=systemd:/x\n", {}, None),
        ("0::/job\n", {}, None),
        ("0::/job\n", {"/sys/fs/cgroup/job/memory.events": "oom_kill many\n"}, None),
    ],
)
def test_the_kernel_tells_of_full_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cgroup: str, files: dict[str, str], kills: int | None
) -> None:
    known = {"/proc/self/cgroup": cgroup, **files}

    def fake(path: str) -> Any:
        if path not in known:
            raise FileNotFoundError(path)
        copy = tmp_path / "copy"
        copy.write_text(known[path])
        return copy.open()

    monkeypatch.setattr(processes, "open", fake, raising=False)
    assert processes.oom_kills() == kills
