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
from clusterkernel.backends.local import LocalBackend
from clusterkernel.errors import JobRootError
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
