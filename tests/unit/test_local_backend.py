"""The local machine's runner: started once, found again, and stronger than a supervisor that hears nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterkernel import rescue
from clusterkernel.backends import local
from clusterkernel.backends.local import LocalBackend
from clusterkernel.errors import JobRootError, SubmissionError
from clusterkernel.jobfolder import WITHDRAWN, JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.jobs import of_folder
from clusterkernel.records import Submission
from clusterkernel.runtime import events, processes
from clusterkernel.states import JobState
from clusterkernel.submitter import Submitter
from clusterkernel.watcher import stop_all
from tests.unit import making
from tests.unit.making import until


@pytest.fixture
def started() -> Iterator[list[JobFolder]]:
    """Folders whose runners are ended after the test."""
    found: list[JobFolder] = []
    yield found
    for folder in found:
        folder.request_cancel()
        LocalBackend().cancel(folder)
    for folder in found:
        until(lambda folder=folder: not runner_lives(folder), "the end of a runner")
    stop_all()


def runner_lives(folder: JobFolder) -> bool:
    holder = folder.holder("runner")
    _, pid, start = holder.rsplit(":", 2) if holder else ("", "0", "0")
    return processes.start_time(int(pid)) == int(start)


def waiting(name: Path) -> JobFolder:
    """A job that ends well once the file `name` is there."""
    wait = f"echo here; while [ ! -e {name} ]; do sleep 0.05; done"
    folder = making.job(JobRoot(), "sh", "-c", wait)
    folder.prepare()
    return folder


def by_hand(folder: JobFolder) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(folder.script)], capture_output=True, text=True, check=False)


def test_a_script_that_is_run_by_hand_beside_its_job_starts_nothing(started: list[JobFolder], tmp_path: Path) -> None:
    folder = waiting(tmp_path / "go")
    started.append(folder)
    submission = LocalBackend().submit(folder)
    folder.write_submission(submission)
    until(lambda: making.records(folder, "running"))
    done = by_hand(folder)
    assert done.returncode == 1
    assert done.stderr == f"This job was started already, by {submission.platform_id}.\n"
    (tmp_path / "go").touch()
    assert of_folder(folder).wait(making.CEILING) is JobState.SUCCEEDED
    assert [record["kind"] for record in making.records(folder) if record["kind"] in ("started", "outcome")] == [
        "started",
        "outcome",
    ]
    assert by_hand(folder).returncode == 1, "nor after it"


def test_a_copy_without_the_claim_writes_nothing_into_the_job_s_records(started: list[JobFolder]) -> None:
    folder = making.job(JobRoot(), "true")
    folder.prepare()
    events.claim(str(folder.path / "claims" / "0"), WITHDRAWN)
    started.append(folder)
    LocalBackend().submit(folder)
    until(lambda: not runner_lives(folder))
    assert making.records(folder) == []


def test_a_job_that_waits_for_a_slot_when_its_kernel_dies_runs(
    started: list[JobFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERKERNEL_LOCAL_SLOTS", "1")
    first, second = waiting(tmp_path / "go"), waiting(tmp_path / "go")
    for folder in (first, second):
        started.append(folder)
        sent = LocalBackend().submit(folder)  # and the kernel dies before it writes that down
        assert LocalBackend().find(folder) == Submission(platform_ids=sent.platform_ids, cluster=sent.cluster)
        if folder is first:
            until(lambda: making.records(first, "running"))
    rescue.rescue(second, LocalBackend())
    assert second.refused() == ""
    assert second.submission() is not None
    (tmp_path / "go").touch()
    assert of_folder(second).wait(making.CEILING) is JobState.SUCCEEDED


def test_a_job_that_was_never_started_is_ended_with_a_sentence() -> None:
    folder = making.job(JobRoot(), "true")
    rescue.rescue(folder, LocalBackend())
    assert "%cluster_rerun" in folder.refused()
    assert of_folder(folder).wait(making.CEILING) is JobState.LAUNCH_FAILED
    stop_all()


IMPATIENT = """
import sys
sys.path.insert(0, sys.argv[1])
from ckruntime import localrun
localrun._GRACE = 0.3
localrun.main(sys.argv[2], sys.argv[3], 1)
"""


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_stopped_supervisor_is_killed_with_all_that_it_started(tmp_path: Path, cancelled: bool) -> None:
    file = tmp_path / "pid"
    folder = making.job(JobRoot(), "sh", "-c", f"echo $$ > {file}.new; mv {file}.new {file}; sleep 600")
    folder.prepare()
    runner = making.python(IMPATIENT, str(JobRoot().runtime()), str(folder.path), str(tmp_path / "slots"))
    identity = runner.communicate()[0].strip()
    payload = int(until(lambda: file.exists() and file.read_text()))
    supervisor = making.records(folder, "started")[0]["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    if cancelled:
        folder.request_cancel()
    os.kill(int(identity.rsplit(":", 2)[1]), signal.SIGTERM)
    (outcome,) = until(lambda: making.records(folder, "outcome"), "the end")
    assert outcome["state"] == ("CANCELLED" if cancelled else "DIED")
    assert "signal 9" in outcome["reason"]
    until(lambda: processes.start_time(payload) is None and not runner_lives(folder), "the end of all processes")


def test_what_is_run_is_private_and_nobody_else_s(started: list[JobFolder], tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        folder = waiting(tmp_path / "go")
        started.append(folder)
        LocalBackend().submit(folder)
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.script.stat().st_mode) == 0o600
    runtime = JobRoot().runtime()
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in runtime.rglob("*.py")}
    assert modes == dict.fromkeys(modes, 0o600)


def test_a_payload_that_others_can_write_to_is_not_sent(tmp_path: Path) -> None:
    folder = waiting(tmp_path / "go")
    (folder.payload / "payload.json").chmod(0o666)
    sender = Submitter()
    sender.submit(folder)
    job = of_folder(folder)
    assert job.wait(making.CEILING) is JobState.LAUNCH_FAILED
    assert "can be written by another user" in job.reason
    assert folder.holder("runner") == ""
    sender.stop()
    stop_all()


def test_a_runtime_that_was_changed_is_replaced() -> None:
    root = JobRoot()
    file = root.runtime() / "ckruntime" / "cli.py"
    whole = file.read_bytes()
    file.write_bytes(b"#" * len(whole))
    assert (root.runtime() / "ckruntime" / "cli.py").read_bytes() == whole


@pytest.mark.parametrize("inner", [".", "..", "ckruntime"])
def test_a_runtime_that_others_can_write_to_is_refused(inner: str) -> None:
    root = JobRoot()
    folder = root.runtime() / inner
    folder.chmod(0o777)
    with pytest.raises(JobRootError, match="can be written by another user"):
        root.runtime()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "no-such-module load cuda",
            "The setup line no-such-module load cuda failed with exit code 127: no-such-module: command not found. "
            "Put || true behind it where that does no harm.",
        ),
        ("exit 3", "A setup line ended the script with exit code 3: setting up."),
    ],
)
def test_a_setup_line_that_fails_ends_the_job_before_its_code(line: str, reason: str, tmp_path: Path) -> None:
    folder = making.job(JobRoot(), "touch", str(tmp_path / "ran"), setup=["echo setting up", line])
    folder.prepare()
    Submitter().submit(folder)
    job = of_folder(folder)
    assert job.wait(making.CEILING) is JobState.LAUNCH_FAILED
    assert job.reason == reason
    assert job.logs().startswith("setting up")
    assert not (tmp_path / "ran").exists()
    stop_all()


def test_what_setup_lines_print_is_in_the_log(started: list[JobFolder]) -> None:
    folder = making.job(JobRoot(), "echo", "mine", setup=["echo out", "echo err >&2"])
    folder.prepare()
    started.append(folder)
    Submitter().submit(folder)
    job = of_folder(folder)
    assert job.wait(making.CEILING) is JobState.SUCCEEDED
    assert job.logs() == "out\nerr\nmine"
    assert job.logs(2) == "err\nmine"


@pytest.mark.parametrize(
    "line", ["exec >/dev/null 2>&1", "exec 1>&-", r"printf 'caf\351'", "sleep 600 & echo $! >$PIDS"]
)
def test_whatever_a_setup_line_does_to_the_output_the_job_is_sent_once(
    line: str, started: list[JobFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    folder = making.job(JobRoot(), "sh", "-c", f"echo ran >> {tmp_path}/ran", setup=[line])
    folder.prepare()
    started.append(folder)
    Submitter().submit(folder)
    job = of_folder(folder)
    assert job.wait(making.CEILING) is JobState.SUCCEEDED
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert folder.refused() == ""
    if (pids := tmp_path / "pids").exists():
        os.kill(int(pids.read_text()), signal.SIGKILL)


def test_setup_lines_that_hang_start_nothing_late(
    started: list[JobFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_PATIENCE", 0.3)
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; touch {tmp_path}/went"
    folder = making.job(JobRoot(), "touch", str(tmp_path / "ran"), setup=[f"echo $$ > {tmp_path}/pid", wait])
    folder.prepare()
    with pytest.raises(SubmissionError, match=r"did not start its job within 0\.3 s"):
        LocalBackend().submit(folder)
    assert not processes.start_time(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "went").exists()


def test_a_ctrl_c_that_meets_the_script_before_its_session_loses_no_job(
    started: list[JobFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a terminal it goes to the kernel's whole process group, and for a moment the new process is in it."""
    start, programs = subprocess.Popen, [["/bin/sh", "-c", "kill -INT $$"]]
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **more: start(programs.pop() if programs else argv, **more))
    folder = making.job(JobRoot(), "echo", "mine")
    folder.prepare()
    started.append(folder)
    folder.write_submission(LocalBackend().submit(folder))
    assert not programs
    job = of_folder(folder)
    assert job.wait(making.CEILING) is JobState.SUCCEEDED
    assert job.logs() == "mine"


def test_one_odd_identity_hides_no_other_job(started: list[JobFolder], tmp_path: Path) -> None:
    good, odd = waiting(tmp_path / "go"), waiting(tmp_path / "go")
    started.append(good)
    good.write_submission(LocalBackend().submit(good))
    odd.write_submission(Submission(platform_ids=(("8123", 0, 1),), cluster="here"))
    assert [*LocalBackend().poll([odd, good])] == [good.id]
    (tmp_path / "go").touch()
