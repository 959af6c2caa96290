"""The parent of a payload, and the local runner above it: real processes through the shipped runtime."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterkernel import ledger, logs
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.runtime import processes, verdict
from clusterkernel.runtime import slots as machine
from tests.unit import making
from tests.unit.making import records, until

# A payload that says that it runs, and waits for its end.
WAITS = ("sh", "-c", 'echo "$$"; exec sleep 1000')
DEAF = ("sh", "-c", 'trap "" TERM INT; echo "$$"; while :; do sleep 1000; done')
# Started workers in sessions of their own, as a launcher's may be; prints their pids.
WORKERS = """
import os, subprocess, sys, time
for _ in range(3):
    worker = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    print(worker.pid)
{then}
"""


def job(*argv: str, **wanted: Any) -> JobFolder:
    return making.job(JobRoot(), *argv, **wanted)


def shell(text: str, **wanted: Any) -> JobFolder:
    return job("sh", "-c", text, **wanted)


def out(folder: JobFolder, **which: int) -> str:
    """What a payload printed so far."""
    path = folder.out(**which) / "stdout"
    return path.read_text() if path.exists() else ""


def supervise(folder: JobFolder, **about: Any) -> subprocess.Popen[str]:
    return making.runtime("supervise", str(folder.path), **about)


def finish(process: subprocess.Popen[str]) -> int:
    _, err = process.communicate(timeout=making.CEILING)
    assert "Traceback" not in err, err
    return process.returncode


def outcome(folder: JobFolder, **which: int) -> dict[str, Any]:
    (found,) = records(folder, "outcome", **which)
    return found


def said(folder: JobFolder, count: int = 1, **which: int) -> list[int]:
    """The pids that the payload printed, once it has."""
    until(lambda: out(folder, **which).count("\n") >= count, "its output")
    return [int(word) for word in out(folder, **which).split()]


def ended(pid: int) -> bool:
    return processes.start_time(pid) is None


# -- how a payload ends --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "state", "code", "signum", "reason"),
    [
        ("exit 0", "SUCCEEDED", 0, None, ""),
        ("exit 3", "FAILED", 3, None, "Exit code 3."),
        ("exit 1", "FAILED", 1, None, "Exit code 1."),
        ("exit 128", "FAILED", 128, None, "Exit code 128."),
        (
            "exit 127",
            "LAUNCH_FAILED",
            127,
            None,
            "A command was not found there (exit code 127): install it, or name its path.",
        ),
        ("exit 137", "DIED", 137, 9, "It was ended by SIGKILL (9)."),
        ("kill -9 $$", "DIED", None, 9, "It was ended by SIGKILL (9)."),
        ("kill -SEGV $$", "DIED", None, 11, "It was ended by SIGSEGV (11)."),
        ("kill -TERM $$", "DIED", None, 15, "It was ended by SIGTERM (15)."),
    ],
)
def test_the_end_of_a_command_is_told(text: str, state: str, code: int | None, signum: int | None, reason: str) -> None:
    folder = shell(text)
    exit_code = finish(supervise(folder))
    told = outcome(folder)
    assert (told["state"], told["exit_code"], told["signum"], told["reason"]) == (state, code, signum, reason)
    assert exit_code == (code or (1 if state != "SUCCEEDED" else 0)), "the platform sees it too"


@pytest.mark.parametrize("code", [200, 255])
def test_a_large_exit_code_is_no_signal(code: int) -> None:
    # sys.exit(-1) is 255.
    folder = shell(f"exit {code}")
    finish(supervise(folder))
    assert (outcome(folder)["state"], outcome(folder)["signum"]) == ("FAILED", None)


@pytest.mark.parametrize("argv", [["/no/such/program"], ["no-such-program", "x"]])
def test_a_command_that_is_not_there_is_told(argv: list[str]) -> None:
    folder = job(*argv)
    assert finish(supervise(folder)) == 127
    assert outcome(folder)["state"] == "LAUNCH_FAILED"
    assert outcome(folder)["reason"].startswith(f"{argv[0].rpartition('/')[2]} was not found there (exit code 127)")
    complaint = (folder.out() / "stderr").read_text()
    assert "No such file" in complaint
    assert argv[0] in complaint


def test_the_records_tell_the_story() -> None:
    folder = shell("sleep 0.3", tasks_per_node=1)
    finish(supervise(folder, constants={"HEARTBEAT": 0.05}))
    kinds = [record["kind"] for record in records(folder)]
    assert kinds[:3] == ["started", "running", "heartbeat"]
    assert kinds[-1] == "outcome"
    assert set(kinds[2:-1]) == {"heartbeat"}
    (started,) = records(folder, "started")
    wanted = {"platform_id": "77", "attempt": 0, "task": 0, "rank": 0, "world": 1, "host": os.uname().nodename}
    assert {name: started[name] for name in wanted} == wanted
    times = [record["t"] for record in records(folder)]
    assert times == sorted(times)


SET_BACK = """
import sys, time
sys.path.insert(0, sys.argv[1])
from ckruntime import cli, supervisor
supervisor.HEARTBEAT = 0.05
real, began = time.time, time.time()
time.time = lambda: real() - (3600 if real() > began + 0.2 else 0)
cli.main(["supervise", sys.argv[2]])
"""


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    folder = shell("until [ -e stop ]; do sleep 0.05; done", workdir=str(JobRoot().path))
    process = making.python(SET_BACK, str(JobRoot().runtime()), str(folder.path), stderr=subprocess.PIPE)
    (started,) = until(lambda: records(folder, "started"))
    until(lambda: [one for one in records(folder, "heartbeat") if one["t"] < started["t"] - 1800], "a later heartbeat")
    (JobRoot().path / "stop").touch()
    assert finish(process) == 0
    assert outcome(folder)["state"] == "SUCCEEDED"


# When the user's code was through, and when it was told to end, as seconds of one clock.
BEFORE, AFTER = 100.0, 102.0


@pytest.mark.parametrize(
    ("said", "through", "cause", "state"),
    [
        ("SUCCEEDED", BEFORE, {"ended_by": 15}, "SUCCEEDED"),
        ("SUCCEEDED", AFTER, {"ended_by": 15}, "CANCELLED"),
        ("SUCCEEDED", BEFORE, {"timed_out": True}, "SUCCEEDED"),
        ("SUCCEEDED", AFTER, {"timed_out": True}, "TIMED_OUT"),
        ("FAILED", BEFORE, {"ended_by": 15}, "FAILED"),
        ("FAILED", AFTER, {"ended_by": 15}, "CANCELLED"),
        ("CANCELLED", AFTER, {"timed_out": True}, "TIMED_OUT"),
        ("CANCELLED", AFTER, {"ended_by": 15}, "CANCELLED"),
        ("FAILED", AFTER, {}, "FAILED"),
    ],
)
def test_what_came_first_is_the_end(said: str, through: float, cause: dict[str, Any], state: str) -> None:
    code = 0 if said == "SUCCEEDED" else 1
    report = {"state": said, "reason": "", "exit_code": code, "error": None, "result": "ok", "through": through}
    report["outputs"] = {"model": {"size": 1, "type": "int", "error": None}}
    told = 101.0 if cause else None
    ended = verdict.judge(code << 8, report, "", told_to_end=told, **cause)
    assert (ended["state"], ended["outputs"].keys()) == (state, {"model"})


def test_a_payload_that_is_killed_from_outside() -> None:
    folder = job(*WAITS)
    process = supervise(folder)
    os.kill(said(folder)[0], signal.SIGKILL)
    assert finish(process) == 1
    assert (outcome(folder)["state"], outcome(folder)["signum"]) == ("DIED", 9)


# -- signals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_ends_is_passed_on(signum: signal.Signals) -> None:
    name = signum.name.removeprefix("SIG")
    folder = shell(f"trap 'echo got {name}; exit 5' {name}; echo $$; while :; do sleep 0.05; done")
    process = supervise(folder)
    said(folder)
    process.send_signal(signum)
    assert finish(process) == 5
    told = outcome(folder)
    assert (told["state"], told["signum"], told["exit_code"]) == ("CANCELLED", signum, 5), (
        "why is for the platform to say"
    )
    assert f"got {name}" in out(folder)
    assert [record["signum"] for record in records(folder, "signal")] == [signum]


def test_a_payload_that_does_not_hear_is_killed_after_a_while() -> None:
    folder = job(*DEAF)
    process = supervise(folder, constants={"GRACE": 0.2})
    (pid,) = said(folder)
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert ended(pid)
    assert (outcome(folder)["state"], outcome(folder)["signum"]) == ("CANCELLED", 9)


def test_other_signals_are_passed_on_and_end_nothing() -> None:
    folder = shell(
        "trap 'echo saved' USR1; echo $$; until [ -e stop ]; do sleep 0.05; done", workdir=str(JobRoot().path)
    )
    process = supervise(folder)
    said(folder)
    process.send_signal(signal.SIGUSR1)
    until(lambda: "saved" in out(folder))
    (JobRoot().path / "stop").touch()
    assert finish(process) == 0
    assert outcome(folder)["state"] == "SUCCEEDED"


def test_a_payload_that_does_well_in_spite_of_a_signal_is_told_by_the_signal() -> None:
    # A command says nothing but its exit code: whether it was through is not known.
    folder = shell("trap 'exit 0' TERM; echo $$; while :; do sleep 0.05; done")
    process = supervise(folder)
    said(folder)
    process.send_signal(signal.SIGTERM)
    assert finish(process) == 1
    assert outcome(folder)["state"] == "CANCELLED"


# -- what a payload leaves behind ---------------------------------------------------------------


@pytest.mark.parametrize("then", ["raise SystemExit(0)", "raise SystemExit(3)", "os.kill(os.getpid(), 9)"])
def test_workers_do_not_outlive_their_launcher(then: str) -> None:
    # A torchrun that is killed with -9 must not leave its workers training.
    folder = job(sys.executable, "-u", "-c", WORKERS.format(then=then))
    finish(supervise(folder))
    workers = said(folder, 3)
    assert all(ended(pid) for pid in workers)
    assert outcome(folder)["state"] == {"0)": "SUCCEEDED", "3)": "FAILED", "9)": "DIED"}[then[-2:]]


def test_workers_that_do_not_hear_go_too() -> None:
    folder = shell("setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1000; done' & sleep 0.5; exit 3")
    finish(supervise(folder, constants={"LEFTOVER_GRACE": 0.2}))
    assert all(ended(pid) for pid in said(folder))
    assert outcome(folder)["exit_code"] == 3


def test_the_supervisors_own_death_ends_the_payload() -> None:
    folder = job(*WAITS)
    process = supervise(folder)
    (pid,) = said(folder)
    process.kill()
    process.communicate()
    until(lambda: ended(pid), "the payload's end")
    assert records(folder, "outcome") == []


# -- what a payload finds ------------------------------------------------------------------------


def test_it_reads_nothing_and_has_no_files_of_ours() -> None:
    code = "import os; print(os.readlink('/proc/self/fd/0')); print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    folder = job(sys.executable, "-c", code)
    finish(supervise(folder))
    assert out(folder) == "/dev/null\n[0, 1, 2]\n"


def test_its_environment(tmp_path: Path) -> None:
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
    folder = job(
        sys.executable, "-c", code, env={"A": "1 2", "CLUSTERKERNEL_TASK": "9"}, workdir=str(tmp_path), tasks_per_node=1
    )
    finish(supervise(folder))
    environment, cwd = json.loads(out(folder))
    assert cwd == str(tmp_path)
    wanted = {
        "A": "1 2",
        "CLUSTERKERNEL_JOB": folder.id,
        "CLUSTERKERNEL_JOB_DIR": str(folder.path),
        "CLUSTERKERNEL_OUT": str(folder.out()),
        "CLUSTERKERNEL_TASK": "0",
        "CLUSTERKERNEL_RANK": "0",
        "CLUSTERKERNEL_WORLD": "1",
        "CLUSTERKERNEL_ATTEMPT": "0",
        "CLUSTERKERNEL_PLATFORM_ID": "77",
    }
    assert {name: environment[name] for name in wanted} == wanted


def test_it_has_the_default_signals_and_a_session_of_its_own() -> None:
    code = "import os, signal as s; print(os.getsid(0) == os.getpid(), s.pthread_sigmask(0, []), s.getsignal(15) == 0)"
    folder = job(sys.executable, "-c", code)
    finish(supervise(folder))
    assert out(folder) == "True set() True\n"


def test_what_it_leaves_is_private() -> None:
    folder = shell("echo x")
    finish(supervise(folder))
    for path in [folder.out(), *folder.out().iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


# -- output ----------------------------------------------------------------------------------------


# Writes to a stream once what went to the other has been kept.
IN_TURN = """
import glob, os, sys, time
kept = 0
for n in range(1, 6):
    for number, word in ((1, "out"), (2, "err")):
        text = f"{word} {n}\\n".encode()
        os.write(number, text)
        kept += len(text)
        while sum(os.stat(path).st_size for path in glob.glob(sys.argv[1] + "/1/out/0/0.0/std*")) < kept:
            time.sleep(0.001)
"""


def test_both_streams_are_kept_in_order() -> None:
    folder = job(sys.executable, "-c", IN_TURN, str(JobRoot().path))
    finish(supervise(folder))
    assert logs.tail(folder.out(), None) == "\n".join(f"{name} {n}" for n in range(1, 6) for name in ("out", "err"))


@pytest.mark.parametrize("lines", [1, 1_000_000])
def test_much_output_is_kept_whole(lines: int) -> None:
    # A line of 50 MB, and a million lines.
    line = f"'x' * {50_000_000 // lines - 1} + '\\n'"
    code = f"import sys\nline = {line}\nfor _ in range({lines}): sys.stdout.write(line)"
    folder = job(sys.executable, "-c", code)
    assert finish(supervise(folder)) == 0
    assert (folder.out() / "stdout").stat().st_size == 50_000_000
    assert outcome(folder)["state"] == "SUCCEEDED"
    assert len(logs.tail(folder.out(), 20)) <= logs.TAIL_BYTES


def test_bytes_that_are_no_text_are_kept() -> None:
    folder = job(sys.executable, "-c", "import os; os.write(1, bytes(range(256)) * 100)")
    assert finish(supervise(folder)) == 0
    assert (folder.out() / "stdout").read_bytes() == bytes(range(256)) * 100


def test_the_last_words_are_kept() -> None:
    folder = job(sys.executable, "-c", "import os; os.write(1, b'x' * 60000 + b'last'); os._exit(9)")
    finish(supervise(folder))
    assert out(folder).endswith("last")


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_costs_the_log_not_the_job() -> None:
    folder = shell("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo the end >&2; exit 4")
    with small_disk(folder.path / "out", "1m"):
        assert finish(supervise(folder)) == 4
        assert outcome(folder)["state"] == "FAILED"
        assert 0 < (folder.out() / "stdout").stat().st_size <= 1 << 20
        assert logs.tail(folder.out(), 5)


def test_a_log_goes_on_when_there_is_room_again() -> None:
    text = (
        "head -c 2000000 /dev/zero | tr '\\0' x; touch written; until [ -e gone ]; do sleep 0.05; done; "
        "echo; echo the end; sleep 0.2; echo of it >&2"
    )
    folder = shell(text, workdir=str(JobRoot().path))
    with small_disk(folder.path / "out", "1m"):
        ballast = folder.path / "out" / "ballast"
        ballast.write_bytes(b"x" * 500_000)
        process = supervise(folder)
        # What is still in the pipe by then finds room.
        until((JobRoot().path / "written").exists, "the payload's output")
        ballast.unlink()
        (JobRoot().path / "gone").touch()
        assert finish(process) == 0
        assert logs.tail(folder.out(), 2) == "the end\nof it"
        assert logs.tail(folder.out(), None).endswith("x\nthe end\nof it")


# -- the fence --------------------------------------------------------------------------------------

RACE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from ckruntime.context import Context
from ckruntime.supervisor import Supervisor
read_end, write_end = os.pipe()
copies = []
for number in range(int(sys.argv[3])):
    pid = os.fork()
    if pid == 0:
        os.close(write_end)
        os.read(read_end, 1)  # the start: its end is closed
        os._exit(Supervisor(Context(sys.argv[2], platform_id=str(8000 + number))).run())
    copies.append(pid)
os.close(write_end)
print([os.WEXITSTATUS(os.waitpid(pid, 0)[1]) for pid in copies])
"""


@pytest.mark.parametrize("round_", [0, *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 100))])
def test_of_a_hundred_copies_one_runs(tmp_path: Path, round_: int) -> None:
    folder = shell(f"echo ran >> {tmp_path}/ran; exit 3")
    racer = making.python(RACE, str(JobRoot().runtime()), str(folder.path), "100")
    codes = json.loads(racer.communicate()[0])
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert sorted(codes) == [0] * 99 + [3], "a copy that is turned away is no failure"
    (started,) = records(folder, "started")
    duplicates = list(folder.events().parent.glob("*.duplicate.*"))
    assert len(duplicates) == 99
    assert json.loads(duplicates[0].read_bytes())["claimed_by"] == started["platform_id"]
    assert sorted(os.listdir(folder.path / "claims")) == ["0", "0.0"]


def test_a_restart_of_the_same_job_runs(tmp_path: Path) -> None:
    folder = shell(f"echo $CLUSTERKERNEL_ATTEMPT >> {tmp_path}/ran")
    for attempt in (0, 1, 2):
        assert finish(supervise(folder, env={"SLURM_RESTART_COUNT": str(attempt)})) == 0
    assert (tmp_path / "ran").read_text() == "0\n1\n2\n"
    assert outcome(folder, attempt=2)["state"] == "SUCCEEDED"
    other = supervise(folder, env={"SLURM_RESTART_COUNT": "3", "SLURM_JOB_ID": "78"})
    assert finish(other) == 0
    assert (tmp_path / "ran").read_text() == "0\n1\n2\n", "another job's restart is a copy"


def test_an_attempt_that_sees_a_newer_one_stops() -> None:
    # An orphan on a node that was lost, beside its requeued copy.
    folder = job(*DEAF)
    orphan = supervise(folder, constants={"HEARTBEAT": 0.05})
    (pid,) = said(folder)
    newer = supervise(folder, env={"SLURM_RESTART_COUNT": "1"}, constants={"GRACE": 0.1})
    said(folder, attempt=1)
    assert finish(orphan) == 0
    assert ended(pid)
    assert records(folder)[-1]["kind"] == "superseded"
    assert records(folder, "outcome") == []
    newer.terminate()
    finish(newer)


def test_an_attempt_that_comes_late_does_not_run(tmp_path: Path) -> None:
    # The node was lost before the orphan came to its claim, and is back.
    folder = shell(f"echo $CLUSTERKERNEL_ATTEMPT >> {tmp_path}/ran")
    finish(supervise(folder, env={"SLURM_RESTART_COUNT": "1"}))
    finish(supervise(folder))
    assert (tmp_path / "ran").read_text() == "1\n"


# -- several steps, several ranks -----------------------------------------------------------------------


def test_steps_follow_each_other_until_one_fails() -> None:
    steps: list[dict[str, Any]] = [
        {"name": "preprocess", "argv": ["sh", "-c", "echo one {payload}"], "once": True},
        {"name": "train", "argv": ["sh", "-c", "echo two; exit 6"]},
        {"name": "after", "argv": ["echo", "three"]},
    ]
    folder = making.job(JobRoot(), steps=steps)
    assert finish(supervise(folder)) == 6
    assert out(folder) == f"one {folder.payload}\ntwo\n"
    assert (outcome(folder)["state"], outcome(folder)["exit_code"]) == ("FAILED", 6)
    assert [record["step"] for record in records(folder, "running")] == ["preprocess", "train"]


@pytest.mark.parametrize(("code", "state"), [(0, "SUCCEEDED"), (5, "FAILED")])
def test_what_is_done_once_is_done_by_the_first_process(code: int, state: str) -> None:
    steps: list[dict[str, Any]] = [
        {"name": "preprocess", "argv": ["sh", "-c", f"echo once; exit {code}"], "once": True},
        {"name": "train", "argv": ["echo", "train"]},
    ]
    folder = making.job(JobRoot(), steps=steps, tasks_per_node=2)
    ranks = [
        supervise(folder, env={"SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2"}) for rank in (1, 0)
    ]
    assert [finish(process) != 0 for process in ranks] == [code != 0] * 2
    assert out(folder, rank=0).split() == ["once", "train"][: 1 if code else 2]
    assert out(folder, rank=1).split() == ([] if code else ["train"])
    assert [outcome(folder, rank=rank)["state"] for rank in (0, 1)] == [state] * 2


def test_who_waits_for_the_first_process_hears_signals() -> None:
    steps = [{"name": "preprocess", "argv": ["true"], "once": True}]
    folder = making.job(JobRoot(), steps=steps, tasks_per_node=2)
    process = supervise(folder, env={"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"})
    until(lambda: records(folder, "started", rank=1))
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert (outcome(folder, rank=1)["state"], outcome(folder, rank=1)["signum"]) == ("CANCELLED", 15)


# -- the local runner -----------------------------------------------------------------------------------


class Runner:
    """A local runner, as the backend starts it."""

    def __init__(self, folder: JobFolder, *, slots: int = 4, constants: Mapping[str, float] = {}) -> None:
        self.folder = folder
        self.slots_dir = ledger.local_dir() / "slots"
        starter = making.runtime("local", str(folder.path), str(self.slots_dir), str(slots), constants=constants)
        self.platform_id, err = (text.strip() for text in starter.communicate(timeout=making.CEILING))
        assert starter.returncode == 0, err
        host, pid, started = self.platform_id.rsplit(":", 2)
        assert host == os.uname().nodename
        self.pid, self.start = int(pid), int(started)

    def over(self) -> bool:
        """Whether it has ended."""
        return bool(processes.start_time(self.pid) != self.start)

    def wait(self) -> Runner:
        until(self.over, "the runner's end")
        assert (self.folder.path / "runner.log").read_text() == ""
        return self

    def cancel(self, *tasks: int) -> None:
        self.folder.request_cancel(tasks)
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and all below it, where a test failed."""
        if not self.over():
            processes.send([self.pid, *processes.descendants(self.pid)], signal.SIGKILL)


@pytest.fixture
def run() -> Iterator[Any]:
    started: list[Runner] = []

    def start(folder: JobFolder, **about: Any) -> Runner:
        started.append(Runner(folder, **about))
        return started[-1]

    yield start
    for runner in started:
        runner.kill()


def states(folder: JobFolder, **which: int) -> list[str]:
    return [outcome(folder, task=task, **which)["state"] for task in range(folder.record.tasks)]


def test_all_tasks_run_and_the_runner_ends(run: Any) -> None:
    folder = shell("echo $CLUSTERKERNEL_JOB; exit $CLUSTERKERNEL_TASK", tasks=4)
    run(folder, slots=2).wait()
    assert states(folder) == ["SUCCEEDED", "FAILED", "FAILED", "FAILED"]
    assert [out(folder, task=task) for task in range(4)] == [f"{folder.id}_{task}\n" for task in range(4)]
    assert [outcome(folder, task=task)["exit_code"] for task in range(4)] == [0, 1, 2, 3]


def test_it_stands_alone(run: Any) -> None:
    folder = job(*WAITS)
    runner = run(folder)
    said(folder)
    assert os.getsid(runner.pid) not in (os.getsid(0), runner.pid), "no terminal, and none to be given"
    links = {os.readlink(f"/proc/{runner.pid}/fd/{number}") for number in (0, 1)}
    assert links == {"/dev/null"}
    assert os.readlink(f"/proc/{runner.pid}/fd/2") == str(folder.path / "runner.log")
    runner.cancel()
    runner.wait()


def test_ranks_run_together_and_fall_together(run: Any) -> None:
    text = 'echo "$CLUSTERKERNEL_RANK/$CLUSTERKERNEL_WORLD"; [ $CLUSTERKERNEL_RANK = 1 ] && exit 7; exec sleep 1000'
    folder = shell(text, tasks_per_node=3)
    run(folder).wait()
    assert [out(folder, rank=rank) for rank in (0, 1, 2)] == ["0/3\n", "1/3\n", "2/3\n"]
    assert [outcome(folder, rank=rank)["state"] for rank in (0, 1, 2)] == ["CANCELLED", "FAILED", "CANCELLED"]


# Fails where it is not alone.
ALONE = "mkdir alone || exit 9; sleep 0.1; rmdir alone"


def test_slots_hold_over_jobs(run: Any, tmp_path: Path) -> None:
    folders = [shell(ALONE, tasks=3, workdir=str(tmp_path)) for _ in range(2)]
    for runner in [run(folder, slots=1) for folder in folders]:
        runner.wait()
    assert [states(folder) for folder in folders] == [["SUCCEEDED"] * 3] * 2


def test_as_many_run_at_once_as_there_are_slots(run: Any, tmp_path: Path) -> None:
    meet = "touch $0; until [ -e $1 ]; do sleep 0.02; done"
    folders = [job("sh", "-c", meet, *names, workdir=str(tmp_path)) for names in (("a", "b"), ("b", "a"))]
    for runner in [run(folder, slots=2) for folder in folders]:
        runner.wait()
    assert [states(folder) for folder in folders] == [["SUCCEEDED"]] * 2


def test_fewer_run_at_once_where_the_job_says_so(run: Any, tmp_path: Path) -> None:
    folder = shell(ALONE, tasks=3, parallelism=1, workdir=str(tmp_path))
    run(folder, slots=4).wait()
    assert states(folder) == ["SUCCEEDED"] * 3


def test_a_slot_is_free_again_when_its_holder_is_killed(run: Any, tmp_path: Path) -> None:
    first = run(job(*WAITS), slots=1)
    said(first.folder)
    second = run(shell("exit 0"), slots=1)
    os.kill(first.pid, signal.SIGKILL)
    second.wait()
    assert states(second.folder) == ["SUCCEEDED"]


def test_jobs_run_in_the_order_in_which_they_were_sent(run: Any, tmp_path: Path) -> None:
    first = run(job(*WAITS), slots=1)
    said(first.folder)
    text = "echo $CLUSTERKERNEL_JOB >>order"
    folders = [shell(text, workdir=str(tmp_path), tasks=tasks) for tasks in (1, 3, 1, 1, 1)]
    runners = [run(folder, slots=1) for folder in folders]
    first.cancel()
    for runner in runners:
        runner.wait()
    ids = [line.split("_")[0] for line in (tmp_path / "order").read_text().split()]
    assert ids == [folder.id for folder in folders for _ in range(folder.record.tasks)]
    assert [name for name in os.listdir(first.slots_dir) if not name.startswith("slot-")] == []


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_waits_in_front_and_is_no_more_is_passed_over(run: Any, signum: signal.Signals) -> None:
    first = run(job(*WAITS), slots=1)
    said(first.folder)
    ahead = run(shell("exit 0"), slots=1)
    os.kill(ahead.pid, signum)
    last = run(shell("exit 0"), slots=1)
    first.cancel()
    last.wait()
    assert states(last.folder) == ["SUCCEEDED"]
    assert records(ahead.folder, "started") == []


def test_who_holds_the_slots_is_known(run: Any) -> None:
    first = run(job(*WAITS), slots=2)
    array = run(shell("echo $$; exec sleep 1000", tasks=2), slots=2)
    said(first.folder)
    said(array.folder)
    assert machine.holders(str(first.slots_dir)) == [str(first.folder.path), f"{array.folder.path}_0"]
    first.kill()
    until(lambda: machine.holders(str(first.slots_dir)) == [f"{array.folder.path}_{task}" for task in (1, 0)])
    array.cancel()
    array.wait()
    assert machine.holders(str(first.slots_dir)) == []


def test_slots_that_were_swept_away_are_made_again(run: Any) -> None:
    first = run(shell("exit 0"))
    first.wait()
    subprocess.run(["rm", "-rf", str(first.slots_dir)], check=True)
    second = run(shell("exit 0"))
    second.wait()
    assert states(second.folder) == ["SUCCEEDED"]


# -- cancels --------------------------------------------------------------------------------------------


def test_a_running_task_is_cancelled(run: Any) -> None:
    folder = job(*WAITS)
    runner = run(folder)
    (pid,) = said(folder)
    runner.cancel()
    runner.wait()
    assert ended(pid)
    assert (outcome(folder)["state"], outcome(folder)["signum"]) == ("CANCELLED", 15)


def test_one_that_does_not_hear_is_cancelled_too(run: Any) -> None:
    folder = job(*DEAF)
    runner = run(folder, constants={"GRACE": 0.2})
    said(folder)
    runner.cancel()
    runner.wait()
    assert (outcome(folder)["state"], outcome(folder)["signum"]) == ("CANCELLED", 9)


def test_one_that_waits_for_a_slot_is_cancelled(run: Any) -> None:
    folder = shell("exit 0")
    slots = ledger.local_dir() / "slots"
    slots.mkdir()
    with open(slots / "slot-0", "w") as slot:
        fcntl.flock(slot, fcntl.LOCK_EX)
        runner = run(folder, slots=1)
        runner.cancel()
        runner.wait()
    assert outcome(folder)["state"] == "CANCELLED"
    assert outcome(folder)["reason"] == "It was cancelled before it started."
    assert records(folder, "started") == []


def test_one_task_of_an_array_is_cancelled_and_the_others_run(run: Any, tmp_path: Path) -> None:
    folder = shell("echo $$; until [ -e go ]; do sleep 0.02; done", tasks=4, workdir=str(tmp_path))
    runner = run(folder, slots=3)  # the last one waits
    for task in range(3):
        said(folder, task=task)
    runner.cancel(1, 3)
    until(lambda: records(folder, "outcome", task=1) and records(folder, "outcome", task=3))
    (tmp_path / "go").touch()
    runner.wait()
    assert states(folder) == ["SUCCEEDED", "CANCELLED", "SUCCEEDED", "CANCELLED"]


@pytest.mark.parametrize("round_", range(8))
def test_a_cancel_at_once_ends_it_and_only_it(run: Any, round_: int) -> None:
    # The runner's id is known before it has begun.
    folder = shell("[ $CLUSTERKERNEL_TASK = 1 ] || exec sleep 1000", tasks=2)
    runner = run(folder)
    runner.cancel(0)
    runner.wait()
    assert states(folder) == ["CANCELLED", "SUCCEEDED"]


def test_a_runner_that_is_ended_by_others_ends_all_and_says_so(run: Any) -> None:
    folder = job(*WAITS, tasks=2)
    runner = run(folder, slots=1)
    until(lambda: out(folder, task=0) or out(folder, task=1))
    os.kill(runner.pid, signal.SIGTERM)
    runner.wait()
    assert states(folder) == ["CANCELLED"] * 2
    reasons = {outcome(folder, task=task)["reason"] for task in range(2)}
    assert reasons == {"It was ended by SIGTERM (15).", "Its runner was ended before it started."}


# -- deaths ---------------------------------------------------------------------------------------------


def test_a_killed_payload_is_told(run: Any) -> None:
    folder = job(*WAITS)
    runner = run(folder)
    os.kill(said(folder)[0], signal.SIGKILL)
    runner.wait()
    assert (outcome(folder)["state"], outcome(folder)["signum"]) == ("DIED", 9)


@pytest.mark.parametrize("round_", range(4))
def test_a_killed_supervisor_takes_all_below_it_along(run: Any, round_: int) -> None:
    code = WORKERS.format(then="print(os.getpid(), flush=True); time.sleep(1000)")
    folder = job(sys.executable, "-u", "-c", code)
    runner = run(folder)
    pids = said(folder, 4)
    (started,) = records(folder, "started")
    os.kill(started["pid"], signal.SIGKILL)
    runner.wait()
    assert [ended(pid) for pid in pids] == [True] * 4
    told = outcome(folder)
    assert (told["state"], told["reason"]) == ("DIED", "Its supervisor was ended by signal 9.")


def test_one_killed_supervisor_does_not_end_the_other_tasks(run: Any, tmp_path: Path) -> None:
    folder = shell("echo $$; until [ -e go ]; do sleep 0.02; done", tasks=3, workdir=str(tmp_path))
    runner = run(folder)
    for task in range(3):
        said(folder, task=task)
    os.kill(records(folder, "started", task=1)[0]["pid"], signal.SIGKILL)
    until(lambda: records(folder, "outcome", task=1))
    (tmp_path / "go").touch()
    runner.wait()
    assert states(folder) == ["SUCCEEDED", "DIED", "SUCCEEDED"]


def test_a_killed_runner_takes_all_along(run: Any) -> None:
    code = WORKERS.format(then="print(os.getpid(), flush=True); time.sleep(1000)")
    folder = job(sys.executable, "-u", "-c", code, tasks=2)
    runner = run(folder)
    pids = [pid for task in range(2) for pid in said(folder, 4, task=task)]
    os.kill(runner.pid, signal.SIGKILL)
    until(lambda: all(ended(pid) for pid in pids), "the end of all")
    until(lambda: all(records(folder, "outcome", task=task) for task in range(2)), "the outcomes")
    assert states(folder) == ["DIED"] * 2


def test_a_supervisor_that_cannot_start_is_spoken_for(run: Any) -> None:
    folder = shell("exit 0")
    (folder.payload / "payload.json").unlink()
    runner = run(folder)
    until(runner.over, "the runner's end")
    assert outcome(folder)["state"] == "DIED"
    assert "see runner.log" in outcome(folder)["reason"]
    assert "payload.json" in (folder.path / "runner.log").read_text()


# -- limits and attempts --------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [WAITS, DEAF], ids=["hears", "does not hear"])
def test_the_time_limit_holds(run: Any, argv: tuple[str, ...]) -> None:
    folder = job(*argv, time="1s")
    run(folder, constants={"GRACE": 0.2}).wait()
    assert (outcome(folder)["state"], outcome(folder)["reason"]) == ("TIMED_OUT", "It reached its time limit.")
    assert ended(said(folder)[0])


def test_the_limit_counts_from_the_start_not_from_the_queue(run: Any) -> None:
    first = run(shell("sleep 1.2"), slots=1)
    until(lambda: records(first.folder, "started"))
    second = run(shell("exit 0", time="1s"), slots=1)
    second.wait()
    assert states(second.folder) == ["SUCCEEDED"]


def test_what_fails_is_tried_again(run: Any) -> None:
    folder = shell("echo try $CLUSTERKERNEL_ATTEMPT; [ $CLUSTERKERNEL_ATTEMPT = 2 ]", attempts=4)
    run(folder).wait()
    assert [outcome(folder, attempt=attempt)["state"] for attempt in range(3)] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert [outcome(folder, attempt=attempt).get("retry") for attempt in range(3)] == [True, True, None]
    assert [out(folder, attempt=attempt) for attempt in range(4)] == ["try 0\n", "try 1\n", "try 2\n", ""]


def test_attempts_end(run: Any) -> None:
    folder = shell("exit 3", attempts=2)
    run(folder).wait()
    assert outcome(folder, attempt=1)["state"] == "FAILED"
    assert "retry" not in outcome(folder, attempt=1)
    assert not folder.events(2).exists()


def test_a_cancel_during_the_pause_ends_the_attempts(run: Any) -> None:
    folder = shell("exit 3", attempts=2, backoff="1h")
    runner = run(folder)
    until(lambda: records(folder, "outcome"))
    runner.cancel()
    runner.wait()
    assert [record["state"] for record in records(folder, "outcome", attempt=1)] in (["CANCELLED"], [])


# -- names ----------------------------------------------------------------------------------------------


def gone(platform_id: str) -> bool:
    _, pid, started = platform_id.rsplit(":", 2)
    return bool(processes.start_time(int(pid)) != int(started))


@pytest.mark.parametrize("name", making.NASTY)
def test_a_job_runs_from_a_folder_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from clusterkernel.backends.local import LocalBackend

    monkeypatch.chdir(tmp_path)
    where = tmp_path / f"work {name}"
    where.mkdir()
    folder = making.job(JobRoot(tmp_path / name), "sh", "-c", 'pwd; echo "$X"', env={"X": name})
    # The form takes no line break; the notebook's own folder may have one.
    environment = msgspec.structs.replace(folder.record.spec.environment, workdir=str(where))
    record = msgspec.structs.replace(
        folder.record, spec=msgspec.structs.replace(folder.record.spec, environment=environment)
    )
    (folder.path / "job.json").write_bytes(msgspec.json.encode(record))
    submission = LocalBackend().submit(JobFolder(folder.path))
    until(lambda: gone(submission.platform_id), "the runner's end")
    assert outcome(folder)["state"] == "SUCCEEDED"
    assert out(folder) == f"{where}\n{name}\n"
    assert not list(tmp_path.glob("owned"))
