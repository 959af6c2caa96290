"""A few runs on the real Modal, for a person with an account: ``make test-modal``. They cost some cents."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import errors
from clusterkernel.backends import registry
from clusterkernel.backends.modal import app, rates
from clusterkernel.states import JobState

# Before the fixtures of all tests take them away.
TOKEN = {name: os.environ.get(name, "") for name in ("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET")}
LIMIT = 600.0

pytestmark = [
    pytest.mark.account,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not all(TOKEN.values()), reason="MODAL_TOKEN_ID and MODAL_TOKEN_SECRET are not set"),
]


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in TOKEN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def executor(**fields: Any) -> ck.Executor:
    return ck.Executor("modal", **{"time": "10m", "max_cost": 0.5, **fields})


def test_the_doctor_reaches_it() -> None:
    assert all(check.ok for check in registry.get("modal").doctor())


def test_a_call_returns_its_value_and_its_output() -> None:
    def speak() -> int:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        return 1024

    job = executor().submit(speak)
    assert job.result(LIMIT) == 1024
    assert set(job.logs().splitlines()) == {"to stdout", "to stderr"}


def test_errors_exits_and_large_results() -> None:
    def fail() -> None:
        raise KeyError("bad")

    jobs = [executor().submit(fail), executor().submit(sys.exit, 3), executor().submit(bytes, 6_000_000)]
    assert isinstance(jobs[0].exception(LIMIT), KeyError)
    assert jobs[1].wait(LIMIT) is JobState.FAILED
    assert jobs[2].result(LIMIT) == bytes(6_000_000)


def test_cancel() -> None:
    def wait() -> None:
        import time

        print("here", flush=True)
        time.sleep(600)

    job = executor().submit(wait)
    for _ in job.follow():
        break
    job.cancel()
    assert isinstance(job.exception(LIMIT), errors.JobCancelled)


def test_retries() -> None:
    def flaky() -> str:
        if os.environ["CLUSTERKERNEL_ATTEMPT"] == "0":
            raise ValueError("once")
        return os.environ["CLUSTERKERNEL_ATTEMPT"]

    assert executor(attempts=2).submit(flaky).result(LIMIT) == "1"


def test_a_gpu() -> None:
    job = executor(gpus_per_node="t4:1").run(["nvidia-smi", "--list-gpus"])
    assert job.wait(LIMIT) is JobState.SUCCEEDED
    assert "T4" in job.logs()


# What nobody could tell without an account: see the assumptions in tests/clusters/modal_*.py.


def test_the_workspace_s_rates_are_understood() -> None:
    found = rates.ask(30.0)
    assert {"H100", rates.CPU, rates.MEMORY} <= found.own, rates._told()


def test_an_image_that_cannot_be_built() -> None:
    job = executor(modal=["--pip=no-such-package-of-anybody"]).submit(int)
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert job.reason.startswith("The image cannot be built: ")
    assert "no-such-package-of-anybody" in job.logs()


@pytest.mark.parametrize("line", ["import not_in_the_image", "import os; os.write(2, b'bye\\n'); os._exit(127)"])
def test_containers_that_cannot_start(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    written = app.text
    monkeypatch.setattr(app, "text", lambda *a, **k: f"{written(*a, **k)}\n\nif not modal.is_local():\n    {line}\n")
    job = executor().submit(int)
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED, job.reason
    assert "Its containers end before they take the job" in job.reason


def test_a_job_that_needs_more_memory_than_it_may_have() -> None:
    job = executor(memory="512M", memory_limit="1G").submit(lambda: len(b"x" * (4 << 30)))
    assert job.wait(LIMIT) in (JobState.OUT_OF_MEMORY, JobState.DIED), job.reason


def test_setup_lines_that_fail() -> None:
    job = executor(setup=["echo so", "no-such load cuda"]).submit(int)
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert "The setup line no-such load cuda failed with exit code 127" in job.reason
