"""What only Modal has, and what goes wrong there: through the real client, against the stand-in."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from modal_proto import api_pb2

import clusterkernel as ck
from clusterkernel import errors, secretstore, submission, submitter
from clusterkernel.backends import registry
from clusterkernel.backends.modal import app, rates, startup, volumes
from clusterkernel.backends.modal.client import connect, library
from clusterkernel.backends.modal.submit import stream_of
from clusterkernel.jobview import summary
from clusterkernel.magics import manage
from clusterkernel.states import JobState

from ..clusters.modal import ModalServer
from . import platforms

LIMIT = 60.0


@pytest.fixture
def platform(
    modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_folders: Path
) -> platforms.Platform:
    monkeypatch.setenv("CLUSTERKERNEL_SECRETS", str(own_folders / "secrets.json"))
    return platforms.modal(monkeypatch, tmp_path)


def until(done: Callable[[], Any], what: str) -> Any:
    """Wait for an event."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        if found := done():
            return found
        time.sleep(0.02)
    pytest.fail(f"waited for {LIMIT:g} s: {what}")


def idle(server: ModalServer) -> bool:
    """Whether nothing runs or waits there."""
    has = server.ask()
    return not has["containers"] and not has["queued"]


def started(job: ck.Job) -> None:
    for _ in job.follow():
        return


def marker(folder: Path) -> Callable[[], int]:
    """A function that counts its own runs in a file that all containers see."""
    path = str(folder / "runs")

    def run() -> int:
        with open(path, "a") as file:
            file.write("x")
        with open(path) as file:
            return len(file.read())

    return run


# -- what is asked for ----------------------------------------------------------


def test_what_is_declared_is_what_was_asked_for(platform: platforms.Platform, modal_server: ModalServer) -> None:
    executor = platform.executor(
        gpus_per_node="h100:2",
        cpus_per_task=4,
        memory="32G",
        memory_limit="64G",
        region="us-east,eu",
        ephemeral_disk="600G",
        attempts=3,
        backoff="10s",
        tasks_per_node=1,
        modal=["--gpu=A100-80GB:2 --apt=git --pip=einops --cpu-limit=8"],
        tags=["sweep"],
    )
    job = executor.submit(int)
    assert job.result(LIMIT) == 0
    declared = next(text for text in modal_server.ask()["functions"] if job.record.key in text)
    for wanted in (
        'gpu_type: "H100"',
        "count: 2",
        "milli_cpu: 4000",
        "milli_cpu_max: 8000",
        "memory_mb: 32768",
        "memory_mb_max: 65536",
        "ephemeral_disk_mb: 614400",
        "retries: 2",
        "initial_delay_ms: 10000",
        f"timeout_secs: {300 + app.MARGIN}",
        'regions: "us-east"',
        'regions: "eu"',
        "single_use_containers: true",
    ):
        assert wanted in declared, wanted
    assert 'gpu=["H100:2", "A100-80GB:2"]' in job.script
    layers = next(lines for lines in modal_server.ask()["images"] if any("einops" in line for line in lines))
    text = "\n".join(layers)
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"python:{minor}" in text
    assert "git" in text
    assert "cloudpickle" in text


def test_secrets_come_from_the_own_store_and_stay_out_of_the_job_folder(
    platform: platforms.Platform, own_folders: Path
) -> None:
    value = os.urandom(12).hex()
    secretstore.save("MY_TOKEN", value)
    digest = hashlib.sha256(value.encode()).hexdigest()
    job = platform.executor(secrets=["MY_TOKEN"]).submit(
        lambda: hashlib.sha256(os.environ["MY_TOKEN"].encode()).hexdigest()
    )
    assert job.result(LIMIT) == digest
    for path in job.folder.path.rglob("*"):
        assert not path.is_file() or value.encode() not in path.read_bytes(), path


def test_secrets_come_from_the_environment_where_the_store_has_none(
    platform: platforms.Platform, modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = os.urandom(12).hex(), os.urandom(12).hex()
    secretstore.save("IN_BOTH", mine)
    monkeypatch.setenv("IN_BOTH", other)
    monkeypatch.setenv("IN_ENVIRONMENT", other)

    def digests() -> list[str]:
        return [hashlib.sha256(os.environ[name].encode()).hexdigest() for name in ("IN_BOTH", "IN_ENVIRONMENT")]

    job = platform.executor(secrets=["IN_BOTH", "IN_ENVIRONMENT"]).submit(digests)
    assert job.result(LIMIT) == [hashlib.sha256(value.encode()).hexdigest() for value in (mine, other)]
    for folder in (job.folder.path, modal_server.folder):
        for path in folder.rglob("*"):
            if path.is_file():
                data = path.read_bytes()
                assert mine.encode() not in data, path
                assert other.encode() not in data, path


def test_a_secret_that_is_nowhere_is_refused_before_anything_is_sent(
    platform: platforms.Platform, modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")

    def sent() -> int:  # others may still be asked about
        return sum(modal_server.calls().count(call) for call in ("VolumePutFiles2", "AppCreate", "SecretGetOrCreate"))

    before = sent()
    for name in ("NOWHERE", "EMPTY"):
        with pytest.raises(errors.SpecError) as caught:
            platform.executor(secrets=[name]).submit(int)
        assert str(caught.value) == (
            f"There is no secret {name}. %cluster_secret set {name} keeps it, "
            f"or set {name} in this notebook's environment."
        )
    assert len(ck.jobs()) == 0
    assert sent() == before


def test_a_volume_keeps_what_a_failed_run_left(platform: platforms.Platform, modal_server: ModalServer) -> None:
    mount = platform.shared / "checkpoints"

    def train() -> None:
        (mount / "step-1").write_text("weights")
        raise ValueError("diverged")

    options = {"volumes": [f"ck-test-{os.getpid()}:{mount}"], "modal": ["--create-volumes=true"]}
    job = platform.executor(**options).submit(train)
    assert isinstance(job.exception(LIMIT), ValueError)
    assert any(call.startswith("VolumeCommit") for call in modal_server.calls())
    assert platform.executor(**options).submit((mount / "step-1").read_text).result(LIMIT) == "weights"
    name = options["volumes"][0].partition(":")[0]

    async def cell() -> list[str]:
        return list(volumes.files(name)["path"])

    assert asyncio.run(cell()) == ["step-1"], "as in a notebook, where an event loop runs"
    lines: list[str] = []
    [got] = volumes.download(name, "/", platform.shared / "here", show=lines.append)
    assert got.read_text() == "weights"
    assert "100%" in lines[-1]
    with pytest.raises(errors.BackendError, match="/none not found"):
        volumes.download(name, "/none", platform.shared / "here")


def test_a_large_result_comes_over_the_volume(platform: platforms.Platform) -> None:
    job = platform.executor().submit(bytes, 6_000_000)
    assert job.result(LIMIT) == bytes(6_000_000)


def test_setup_lines_run_before_and_are_in_the_log(platform: platforms.Platform) -> None:
    executor = platform.executor(setup=["export GREETING=hello"])
    assert executor.submit(os.getenv, "GREETING").result(LIMIT) == "hello"
    loud = platform.executor(setup=["echo loading"]).submit(print, "here")
    assert loud.wait(LIMIT) is JobState.SUCCEEDED
    assert loud.logs() == "loading\nhere"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["exit 7"], "A setup line ended the script with exit code 7."),
        (["echo so", "exit 7"], "A setup line ended the script with exit code 7: so."),
        (
            ["echo so", "no-such load cuda", "echo not here"],
            "The setup line no-such load cuda failed with exit code 127: no-such: command not found. "
            "Put || true behind it where that does no harm.",
        ),
    ],
)
def test_a_setup_line_that_fails_ends_the_job(platform: platforms.Platform, lines: list[str], reason: str) -> None:
    job = platform.executor(setup=lines).submit(print, "never")
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert job.reason == reason
    assert ("so" in job.logs()) is (len(lines) > 1)
    assert "never" not in job.logs()
    assert "not here" not in job.logs()


def test_what_is_left_at_modal_is_cleared(platform: platforms.Platform, modal_server: ModalServer) -> None:
    job = platform.executor().submit(int)
    assert job.result(LIMIT) == 0
    key = job.record.key

    def cleared() -> bool:
        has = modal_server.ask()
        volume = modal_server.folder / "volumes" / has["volumes"]["clusterkernel-jobs"]
        return not any(key in name for name in has["dicts"]) and not (volume / key).exists()

    until(cleared, "the job's Dict and its files on the volume are removed")
    until(lambda: modal_server.calls()[-1] == "AppStop" or "AppStop" in modal_server.calls(), "its app is stopped")


def test_deleting_a_job_removes_what_it_left_and_nothing_else(
    platform: platforms.Platform, modal_server: ModalServer, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [platform.executor(modal=["--pip=no-such-tool"]).submit(int) for _ in range(2)]
    for job in jobs:  # its payload was sent, and its app begun
        assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    volume = modal_server.folder / "volumes" / modal_server.ask()["volumes"]["clusterkernel-jobs"]
    mine, other = jobs
    assert (volume / mine.record.key).exists()
    modal_server.fail({"method": "VolumeGetOrCreate", "status": "UNAVAILABLE", "times": 1000})
    manage._delete([summary(mine, 0)], {mine.id: 0})
    [said] = capsys.readouterr().out.splitlines()
    assert said.startswith(f"Job {mine.id} is kept: What job {mine.id} left there cannot be removed: Modal does not")
    assert mine.folder.is_there(), "who knows what is left there is kept"
    modal_server.fail()
    manage._delete([summary(mine, 0)], {mine.id: 2048})
    assert capsys.readouterr().out.splitlines() == [
        "Deleted 1 job; 2.05 kB are free.",
        "Removed from modal what 1 job had left there: files.",
    ]
    assert not mine.folder.is_there()
    assert not (volume / mine.record.key).exists()
    assert (volume / other.record.key).exists()
    done = platform.executor().submit(int)
    assert done.result(LIMIT) == 0
    until(lambda: json.loads((done.folder.path / "modal.json").read_bytes())["cleared"], "the watcher has cleared it")
    assert submission.remove(done.id) == []


def test_an_app_that_a_killed_kernel_had_begun_is_stopped(
    platform: platforms.Platform, modal_server: ModalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = (
        "import clusterkernel as ck, time\n"
        "ck.Executor('modal', time='5m', modal=['--pip=to-be-built']).submit(int)\n"
        "time.sleep(600)\n"
    )

    def begun() -> set[str]:
        return {each for each, state in modal_server.ask()["apps"].items() if state == api_pb2.APP_STATE_INITIALIZING}

    modal_server.ask(build=False)
    before = begun()
    killed = []
    try:
        for number in ("1", "2"):
            killed.append(subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path))
            until(lambda number=int(number): len(begun() - before) == number, "its app is begun, and its image built")
    finally:
        for process in killed:
            process.kill()
            process.wait()
        modal_server.ask(build=True)
    assert ck.job("1").wait(LIMIT) is JobState.LAUNCH_FAILED
    manage._delete([summary(ck.job("1"), 0)], {"1": 2048})
    assert capsys.readouterr().out.splitlines() == [
        "Deleted 1 job; 2.05 kB are free.",
        "Removed from modal what 1 job had left there: unfinished app, files.",
    ]
    assert len(begun() - before) == 1, "the other job's is left alone"
    assert ck.job("2").wait(LIMIT) is JobState.LAUNCH_FAILED
    assert submission.remove("2") == ["unfinished app", "files"]
    assert begun() == before


# -- the image --------------------------------------------------------------------


def test_what_the_build_of_the_image_prints_is_seen_meanwhile(
    platform: platforms.Platform, modal_server: ModalServer
) -> None:
    modal_server.ask(build=False)
    try:
        job = platform.executor(modal=["--pip=to-be-built"]).submit(print, "here")
        until(lambda: job.logs() == "Collecting what is asked for", "the build's first line is seen")
        assert next(job.follow()) == "Collecting what is asked for\n"
        assert summary(job, tail=5).tail == "Collecting what is asked for"
        assert job.state is JobState.SUBMITTING
    finally:
        modal_server.ask(build=True)
    assert job.wait(LIMIT) is JobState.SUCCEEDED
    assert job.logs() == "here"


@pytest.mark.parametrize(
    ("package", "said"),
    [("no-such-package", "No matching distribution found"), ("no-such-tool", "ERROR: it is nowhere to be found")],
)
def test_an_image_that_cannot_be_built(platform: platforms.Platform, package: str, said: str) -> None:
    job = platform.executor(modal=[f"--pip={package}"]).submit(int)
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert job.reason == f"The image cannot be built: {said}. %cluster_logs shows what its build printed."
    assert job.logs() == "Collecting what is asked for\nERROR: it is nowhere to be found"


# -- containers that cannot start ------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import not_in_the_image", "ModuleNotFoundError: No module named 'not_in_the_image'"),
        ("import os; os.write(2, b'exec python: not found\\n'); os._exit(127)", "exec python: not found"),
    ],
)
def test_a_job_whose_containers_cannot_start_does_not_wait_for_ever(
    platform: platforms.Platform,
    modal_server: ModalServer,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    said: str,
) -> None:
    written = app.text
    monkeypatch.setattr(app, "text", lambda *a, **k: f"{written(*a, **k)}\n\nif not modal.is_local():\n    {line}\n")
    monkeypatch.setattr(startup, "_FIRST", 0.5)
    monkeypatch.setattr(startup, "_QUIET", 0.5)
    stops = modal_server.calls().count("AppStop")
    job = platform.executor().submit(int)
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert job.reason == f"Its containers end before they take the job: {said}"
    assert said in job.logs()
    until(lambda: modal_server.calls().count("AppStop") > stops, "its app is stopped")
    until(lambda: idle(modal_server), "its call is cancelled")


def test_of_a_job_that_no_container_takes_a_person_is_told(
    platform: platforms.Platform, modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, before = app.text, modal_server.crashes()
    silent = "if not modal.is_local():\n    import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr(app, "text", lambda *a, **k: f"{written(*a, **k)}\n\n{silent}\n")
    monkeypatch.setattr(startup, "_FIRST", 0.1)
    monkeypatch.setattr(startup, "_QUIET", 0.1)
    monkeypatch.setattr(startup, "_LONG", 1.0)
    job = platform.executor().submit(int)
    until(lambda: job.reason, "it is told")
    assert job.reason == (
        "No container has taken it yet: Modal may have none free of what it asks for, or they end before they say a "
        f"word. Modal's page of the app {app.app_name(job.record)} tells which; %cluster_cancel {job.id} ends it."
    )
    until(lambda: modal_server.crashes() >= before + 3, "its containers end")
    assert job.state is JobState.QUEUED, "it may as well wait for GPUs"
    assert job.cancel()
    assert job.wait(LIMIT) is JobState.CANCELLED
    until(lambda: idle(modal_server), "its call is cancelled")


def test_a_job_that_was_long_in_the_queue_runs(platform: platforms.Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_LONG", 0.0)
    job = platform.executor().submit(int)
    assert job.result(LIMIT) == 0
    assert job.reason == ""


# -- retries, time, pre-emption -------------------------------------------------


def test_a_run_that_fails_is_tried_again(platform: platforms.Platform) -> None:
    count = marker(platform.shared)

    def flaky() -> int:
        runs = count()
        if runs < 3:
            raise ValueError(f"run {runs}")
        return runs

    job = platform.executor(attempts=3).submit(flaky)
    assert job.result(LIMIT) == 3
    assert job.summary().attempt == 2


def test_a_run_that_fails_each_time_ends_with_its_own_error(platform: platforms.Platform) -> None:
    count = marker(platform.shared)

    def fail() -> None:
        raise ValueError(f"run {count()}")

    job = platform.executor(attempts=2).submit(fail)
    with pytest.raises(ValueError, match="run 2"):
        job.result(LIMIT)


def test_a_container_that_is_taken_away_is_started_again(
    platform: platforms.Platform, modal_server: ModalServer
) -> None:
    count = marker(platform.shared)

    def work() -> int:
        import time

        runs = count()
        print("here", flush=True)
        while runs == 1:
            time.sleep(0.05)
        return runs

    job = platform.executor().submit(work)
    started(job)
    modal_server.ask(kill=True)
    assert job.result(LIMIT) == 2
    assert job.summary().attempt == 1


def test_containers_that_die_again_and_again_are_given_up(platform: platforms.Platform) -> None:
    def die() -> None:
        import signal

        pid = os.getpid()
        while b"_container_entrypoint" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        os.kill(pid, signal.SIGKILL)
        signal.pause()

    job = platform.executor().submit(die)
    assert job.wait(LIMIT) is JobState.DIED
    assert job.reason.startswith("Its containers died 6 times without a word")


@pytest.mark.parametrize(
    ("status", "text", "state", "reason"),
    [
        (
            *("INTERNAL_FAILURE", "Worker was preempted", JobState.NODE_LOST),
            "Modal lost its container, or took its machine: Worker was preempted",
        ),
        (
            *("KERNEL_OOM_KILL", "The container ran out of memory", JobState.OUT_OF_MEMORY),
            "Modal ended its container: The container ran out of memory.",
        ),
        ("FAILURE", "Runner failed", JobState.DIED, "Modal ended its container: Runner failed."),
        ("TERMINATED", "", JobState.DIED, "Modal ended its container."),
    ],
)
def test_what_modal_says_of_an_end_is_told_and_no_more(
    platform: platforms.Platform, modal_server: ModalServer, status: str, text: str, state: JobState, reason: str
) -> None:
    def work() -> None:
        import time

        print("here", flush=True)
        time.sleep(600)

    job = platform.executor().submit(work)
    started(job)
    modal_server.ask(end={"status": status, "text": text})
    assert job.wait(LIMIT) is state
    assert job.reason == reason


def test_the_time_limit_leaves_time_to_save(platform: platforms.Platform) -> None:
    def work() -> None:
        import time

        print("here", flush=True)
        time.sleep(600)

    job = platform.executor(time="2s").submit(work)
    error = job.exception(LIMIT)
    assert isinstance(error, errors.JobTimedOut)
    assert "here" in error.log_tail


def test_modal_s_own_limit_is_told_as_a_time_limit(
    platform: platforms.Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deaf() -> None:
        import signal
        import time

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)

    monkeypatch.setattr(app, "MARGIN", 1)
    job = platform.executor(time="3s").submit(deaf)
    assert job.wait(LIMIT) is JobState.TIMED_OUT


def test_a_job_that_waits_is_cancelled(platform: platforms.Platform) -> None:
    go = platform.shared / "go"

    def wait(task: int) -> int:
        import time

        print("here", flush=True)
        while not go.exists():
            time.sleep(0.05)
        return task

    jobs = platform.executor(parallelism=1).map_jobs(wait, range(2))
    first = until(lambda: next((job for job in jobs if job.logs()), None), "one of the two runs")
    other = next(job for job in jobs if job is not first)
    assert other.cancel()
    assert isinstance(other.exception(LIMIT), errors.JobCancelled)
    go.touch()
    assert first.result(LIMIT) == first.task


def test_an_array_of_many_tasks(platform: platforms.Platform, modal_server: ModalServer) -> None:
    jobs = platform.executor(parallelism=4).map_jobs(abs, range(-12, 0))
    assert jobs.results(LIMIT) == list(range(12, 0, -1))
    assert len({job.platform_id for job in jobs}) == 12


def test_the_doctor_asks_modal(platform: platforms.Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(check.ok for check in registry.get("modal").doctor())
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-expired")
    *_, last = registry.get("modal").doctor()
    assert not last.ok
    assert "does not accept the token" in last.detail
    assert "modal token new" in last.fix


# -- cost -----------------------------------------------------------------------


def test_the_workspace_s_own_rates_are_taken(
    platform: platforms.Platform, modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "_ANSWERS", {})
    modal_server.ask(rates={"gpu_h100": "5.00", "cpu": "0.05", "memory": "0.008"})
    try:
        executor = platform.executor(gpus_per_node="h100:1", max_cost=20, time="10h")
        [note] = [note for note in executor.plan().notes if "estimate" in note]
        assert note.startswith("About $5.01 an hour; at most about $20.00 ")
        assert note.endswith(": an estimate from your workspace's rates of today.")
        job = executor.submit(int)
        assert job.result(LIMIT) == 0
        hour = 5.00 + 16.125 * 0.05 + 32 * 0.008
        bought = int(20 / hour * 3600)
        declared = next(text for text in modal_server.ask()["functions"] if job.record.key in text)
        assert f"timeout_secs: {bought}" in declared
        assert "memory_mb_max: 32768" in declared
    finally:
        modal_server.ask(rates={})


@pytest.mark.parametrize("fault", [{"delay": 30.0}, {"status": "PERMISSION_DENIED", "times": 99}])
def test_a_plan_does_not_wait_for_rates_nor_fail_for_them(
    platform: platforms.Platform, modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any]
) -> None:
    monkeypatch.setattr(rates, "_ANSWERS", {})
    modal_server.fail({"method": "WorkspaceBillingRates", **fault})
    [note] = [note for note in platform.executor(gpus_per_node="t4:1").plan().notes if "estimate" in note]
    assert note.endswith(f"an estimate from list prices of {rates.DATED}.")


# -- several nodes ---------------------------------------------------------------


def test_the_ranks_of_two_nodes_know_each_other(platform: platforms.Platform) -> None:
    def rank() -> tuple[int, int, str, str]:
        from ckruntime import rendezvous

        place = os.environ[rendezvous.VARIABLE]
        return (
            int(os.environ["CLUSTERKERNEL_RANK"]),
            int(os.environ["CLUSTERKERNEL_WORLD"]),
            os.environ["JOB_COMPLETION_INDEX"],
            place.rpartition(":")[0],
        )

    job = platform.executor(nodes=2, gpus_per_node="h100:8", tasks_per_node=2).submit(rank)
    assert job.result(LIMIT) == (0, 4, "0", "::1")
    assert job.results() == [(number, 4, str(number // 2), "::1") for number in range(4)]
    assert "@modal.clustered(size=2, rdma=True)" in job.script


def test_a_node_that_fails_ends_the_others(platform: platforms.Platform) -> None:
    def fail() -> None:
        import time

        if os.environ["CLUSTERKERNEL_RANK"] == "1":
            raise ValueError("node 1")
        time.sleep(600)

    job = platform.executor(nodes=2, gpus_per_node="h100:8", tasks_per_node=1).submit(fail)
    with pytest.raises(ValueError, match="node 1"):
        job.result(LIMIT)


# -- a service that is away -----------------------------------------------------


def test_a_server_that_does_not_answer_is_asked_again(platform: platforms.Platform, modal_server: ModalServer) -> None:
    modal_server.fail({"method": "AppCreate", "status": "UNAVAILABLE", "times": 5})
    count = marker(platform.shared)
    job = platform.executor().submit(count)
    assert job.result(LIMIT) == 1


def test_a_server_that_is_away_at_submission(platform: platforms.Platform, modal_server: ModalServer) -> None:
    count = marker(platform.shared)
    modal_server.ask(down=3.0)
    job = platform.executor().submit(count)
    assert job.result(LIMIT) == 1


def test_a_submission_whose_answer_got_lost_runs_once(platform: platforms.Platform, modal_server: ModalServer) -> None:
    # The client itself sends it again: Modal then has two calls of the job.
    modal_server.fail({"method": "FunctionMap", "status": "UNAVAILABLE", "times": 1, "after": True})
    before = modal_server.ask()["calls"]
    count = marker(platform.shared)
    job = platform.executor().submit(count)
    assert job.result(LIMIT) == 1
    assert modal_server.ask()["calls"] == before + 2
    until(lambda: idle(modal_server), "the second copy ends")
    assert count() == 2, "the job itself ran once"


def test_a_submission_of_which_no_answer_came_is_found(platform: platforms.Platform, modal_server: ModalServer) -> None:
    modal_server.fail({"method": "FunctionMap", "status": "UNAVAILABLE", "times": 4, "after": True})
    count = marker(platform.shared)
    job = platform.executor().submit(count)
    assert job.result(LIMIT) == 1


def test_a_job_that_is_cancelled_on_its_way_cannot_run_later(
    platform: platforms.Platform, modal_server: ModalServer
) -> None:
    modal_server.fail({"method": "AppCreate", "status": "UNAVAILABLE", "times": 1000})
    job = platform.executor().submit(int)
    until(lambda: modal_server.calls().count("AppCreate") and "AppCreate" in modal_server.calls()[-1], "it is tried")
    until(lambda: "does not answer" in job.reason, "it is told that Modal does not answer")
    job.cancel()
    assert isinstance(job.exception(LIMIT), errors.JobCancelled)
    modal_server.fail()
    assert stream_of(job.folder).holder(0) == "withdrawn"


def test_a_server_that_goes_away_while_it_runs(platform: platforms.Platform, modal_server: ModalServer) -> None:
    go = platform.shared / "go"

    def work() -> str:
        import time

        print("here", flush=True)
        while not go.exists():
            time.sleep(0.05)
        print("there", flush=True)
        return "done"

    job = platform.executor().submit(work)
    started(job)
    modal_server.ask(down=2.0)
    go.touch()
    assert job.result(LIMIT) == "done"
    assert job.logs() == "here\nthere"


def test_a_service_that_is_not_available_in_the_middle_changes_nothing(
    platform: platforms.Platform, modal_server: ModalServer
) -> None:
    go = platform.shared / "go"

    def work() -> str:
        import time

        while not go.exists():
            print("here", flush=True)
            time.sleep(0.05)
        return "done"

    job = platform.executor().submit(work)
    started(job)
    # The client itself asks four times: more often than that, so that we are told.
    faults = [{"method": name, "status": "UNAVAILABLE", "times": 10} for name in ("DictGet", "FunctionGetOutputs")]
    modal_server.fail(*faults)
    until(lambda: modal_server.ask()["rules"][0]["times"] == 0, "it has failed so often")
    assert not job.state.terminal
    go.touch()
    assert job.result(LIMIT) == "done"


def test_a_limit_of_the_workspace_is_waited_for(
    platform: platforms.Platform, modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitter, "_LIMIT_PAUSE", 1.0)
    # The client asks this again by itself a few times, too.
    modal_server.fail({"method": "FunctionMap", "status": "RESOURCE_EXHAUSTED", "times": 1000})
    job = platform.executor().submit(int)
    until(
        lambda: "a fault that was asked for. It is sent by itself then." in job.reason, "it is told what it waits for"
    )
    modal_server.fail()
    assert job.result(LIMIT) == 0


def test_answers_that_come_slowly_lose_nothing(platform: platforms.Platform, modal_server: ModalServer) -> None:
    modal_server.fail(
        {"method": "DictGet", "delay": 0.3, "times": 10}, {"method": "DictUpdate", "delay": 0.3, "times": 9}
    )

    def speak() -> int:
        for number in range(2000):
            print(number)
        return 2000

    job = platform.executor().submit(speak)
    assert job.result(LIMIT) == 2000
    assert job.logs() == "\n".join(map(str, range(2000)))


def test_another_kernel_fetches_what_came_when_none_watched(platform: platforms.Platform, tmp_path: Path) -> None:
    script = (
        "import clusterkernel as ck, os, time\n"
        "job = ck.Executor('modal', time='5m').submit(pow, 3, 4)\n"
        "while job.folder.submission() is None: time.sleep(0.02)\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, timeout=LIMIT, check=False)
    assert done.returncode == 9
    job = ck.job("1")
    assert job.result(LIMIT) == 81


def test_what_modal_no_longer_has_is_lost_and_says_why(
    platform: platforms.Platform, modal_server: ModalServer, tmp_path: Path
) -> None:
    script = (
        "import clusterkernel as ck, os, time\n"
        "job = ck.Executor('modal', time='5m').submit(pow, 3, 4)\n"
        "while job.folder.submission() is None: time.sleep(0.02)\n"
        "print(job.record.key, flush=True)\n"
        "os._exit(9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, timeout=LIMIT, check=False, stdout=-1, text=True
    )
    until(lambda: idle(modal_server), "it ends unseen")
    library().Dict.objects.delete(f"clusterkernel-{done.stdout.strip()}", client=connect())
    job = ck.job("1")
    assert job.wait(LIMIT) is JobState.LOST
    assert "7 days" in job.reason


# -- what is refused, in one line -----------------------------------------------


def refused(job: ck.Job) -> str:
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert "\n" not in job.reason
    return str(job.reason)


def test_a_token_that_is_not_accepted(platform: platforms.Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-expired")
    assert refused(platform.executor().submit(int)) == (
        "The job could not be sent: Modal does not accept the token (Token validation failed). "
        "Run `modal token new` in a terminal, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET."
    )


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (
            {"modal": ["--secret=not-there"]},
            "Modal has no secret not-there in your workspace. `modal secret list` shows those that are.",
        ),
        (
            {"volumes": ["not-there:/data"]},
            'Modal has no volume not-there in your workspace. --modal "--create-volumes=true" makes it.',
        ),
        ({"region": "us-nowhere"}, "The job could not be sent: Unknown region: us-nowhere."),
    ],
)
def test_what_modal_does_not_have(platform: platforms.Platform, fields: dict[str, Any], wanted: str) -> None:
    assert refused(platform.executor(**fields).submit(int)) == wanted


def test_an_image_of_another_python(platform: platforms.Platform) -> None:
    other = sys.version_info.minor + 1
    here = f"3.{sys.version_info.minor}"
    assert refused(platform.executor(image=f"team/image:py3.{other}-cu128").submit(int)) == (
        f"--image = team/image:py3.{other}-cu128 has Python 3.{other}, and this notebook {here}: cells and functions "
        f"need the same. Choose an image with Python {here}, or a kernel with Python 3.{other}."
    )


def test_a_payload_that_is_too_large(platform: platforms.Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from clusterkernel.backends.modal import submit

    monkeypatch.setattr(submit, "LARGEST", 100)
    assert refused(platform.executor().submit(len, "x" * 5000)) == (
        "The payload of job 1 has 0 MiB packed, and 0 MiB is the most. Keep the data on a volume: --volumes NAME:/data."
    )


def test_the_folder_of_a_job_is_not_left_by_what_a_container_says(platform: platforms.Platform) -> None:
    from clusterkernel.backends.modal.stream import Stream

    job = platform.executor().submit(int)
    assert job.result(LIMIT) == 0
    stream = Stream(job.folder, None, "")
    for path in ("../../x", "out/../../x", "/etc/x", "job.json", "out/0/../../../x", "payload/x"):
        with pytest.raises(errors.BackendError, match="outside"):
            stream._apply([(path, 0, b"x")])
    assert json.loads((job.folder.path / "job.json").read_bytes())["id"] == "1"
