"""The Slurm backend on a real Slurm: what it sends, how it sees ends, how it finds what it lost."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.errors import BackendUnavailable, SubmissionError
from clusterkernel.spec import Environment, JobSpec, Schedule
from clusterkernel.states import JobState

from .slurm_jobs import Jobs

pytestmark = pytest.mark.slurm


def make_jobs(cluster: Any, monkeypatch: pytest.MonkeyPatch, name: str = "") -> Jobs:
    for key, value in cluster.env.items():
        monkeypatch.setenv(key, value)
    folder = Path(cluster.shared) / (name or f"backend-{uuid.uuid4().hex[:8]}")
    folder.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(folder / "jobs"))
    return Jobs(cluster, folder)


@pytest.fixture
def jobs(slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    made = make_jobs(slurm_cluster, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def bare(slurm_bare: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    made = make_jobs(slurm_bare, monkeypatch)
    yield made
    made.close()


# -- sending ---------------------------------------------------------------------------------------


def test_a_command_runs_and_its_end_is_seen(jobs: Jobs) -> None:
    folder = jobs.start(["sh", "-c", "echo hello from $SLURMD_NODENAME"])
    seen = jobs.end(folder)[0]
    assert (seen.state, seen.exit_code) == (JobState.SUCCEEDED, seen.exit_code)
    assert folder.out().joinpath("stdout").read_text() == f"hello from {seen.node}\n"


def test_ranks_run_over_nodes_and_tasks(jobs: Jobs) -> None:
    folder = jobs.start(["sh", "-c", "echo $SLURM_PROCID $SLURMD_NODENAME"], nodes=2, tasks_per_node=2)
    assert jobs.end(folder)[0].state is JobState.SUCCEEDED
    said = [folder.out(rank=rank).joinpath("stdout").read_text().split() for rank in range(4)]
    assert [rank for rank, _ in said] == ["0", "1", "2", "3"]
    assert len({node for _, node in said}) == 2


@pytest.mark.parametrize("options", [[], ["--gres"]], ids=["gpus-per-node", "gres"])
def test_gpus_are_asked_for_as_the_site_wants(jobs: Jobs, options: list[str]) -> None:
    folder = jobs.start(
        ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"],
        partition="gpu",
        gpus_per_node="h100:3",
        tasks_per_node="1",
        sbatch=options,
    )
    assert jobs.end(folder)[0].state is JobState.SUCCEEDED
    assert len(folder.out().joinpath("stdout").read_text().split(",")) == 3


HOSTILE = [
    "plain",
    "with blank",
    'it\'s "quoted"',
    "50%unit-%j-%t",
    "$(touch PWNED);`touch PWNED`",
    "日本-ü-😀",
    "a;b|c&d#e",
    "-rf",
]


def test_hostile_names_and_folders_run_and_are_never_executed(
    slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for word in HOSTILE:
        jobs = make_jobs(slurm_cluster, monkeypatch, f"{word}-{uuid.uuid4().hex[:6]}")
        name = f"{word}\nJobState=FAILED \\ end"
        made.append((jobs, jobs.start(["sh", "-c", "echo $PWD"], name=name, env={"ODD": f"{word}\n$(exit 9)'\""})))
    for jobs, folder in made:
        assert jobs.end(folder)[0].state is JobState.SUCCEEDED, jobs.folder
        assert folder.out().joinpath("stdout").read_text() == f"{jobs.folder}\n"
        (log,) = (folder.path / "batch").iterdir()
        assert (log.name, log.read_text()) == (f"{folder.submission().platform_id}.log", "")  # type: ignore[union-attr]
        assert not list(jobs.folder.rglob("PWNED"))
        jobs.close()


def test_no_secret_of_the_kernel_reaches_slurm_or_the_job(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = uuid.uuid4().hex
    for name in ("HF_TOKEN", "WANDB_API_KEY", "MY_THING", "SLURM_CPU_BIND", "SBATCH_COMMENT", "SQUEUE_FORMAT"):
        monkeypatch.setenv(name, planted)
    folder = jobs.start(["sh", "-c", "env; srun -n1 env"], env={"GIVEN": "yes"})
    assert jobs.end(folder)[0].state is JobState.SUCCEEDED
    said = folder.out().joinpath("stdout").read_text()
    assert said.count("GIVEN=yes") == 2
    assert f"SLURM_CONF={os.environ['SLURM_CONF']}" in said
    assert planted not in said
    assert planted not in folder.script.read_text()
    job = folder.submission().platform_id  # type: ignore[union-attr]
    monkeypatch.delenv("SQUEUE_FORMAT")
    assert planted not in jobs.cluster.run("scontrol", "-d", "show", "job", job)
    for option in ("--env-vars", "--batch-script"):
        assert planted not in jobs.cluster.run("sacct", "-X", "-j", job, option)


@pytest.mark.parametrize(
    ("fields", "reason", "mend"),
    [
        ({"partition": "gup"}, "invalid partition", "Did you mean gpu?"),
        ({"account": "nobodys"}, "Invalid account", "Your accounts: "),
        ({"qos": "nothing"}, "Invalid qos", "Your QOS: "),
        ({"memory": "900T"}, "emory", "--memory"),
        (
            {"gpus_per_node": "h100:9", "partition": "gpu", "tasks_per_node": "1"},
            "node configuration",
            "At most h100:8 on one node, in partition gpu.",
        ),
        ({"constraint": "quantum"}, "feature", "--constraint"),
        ({"reservation": "none"}, "reservation", "--reservation"),
        ({"dependency": "afterok:x"}, "dependency", "--dependency"),
    ],
)
def test_what_slurm_refuses_is_one_line_with_the_mend(jobs: Jobs, fields: Any, reason: str, mend: str) -> None:
    folder = jobs.make(["true"], **fields)
    with pytest.raises(SubmissionError) as caught:
        jobs.backend.submit(folder)
    assert re.search(reason, str(caught.value), re.IGNORECASE), caught.value
    assert mend in caught.value.hint
    assert "\n" not in str(caught.value)


# -- ends ------------------------------------------------------------------------------------------


def test_ends_are_told_apart(jobs: Jobs, bare: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """With accounting and without it: the same words."""
    cases: dict[str, tuple[list[str], dict[str, Any], str, str]] = {
        "code": (["sh", "-c", "exit 7"], {}, "FAILED", "exit code 7"),
        "interpreter": (["true"], {"interpreter": "/not/there"}, "LAUNCH_FAILED", "The interpreter /not/there"),
        "folder": (["true"], {"workdir": "/not there"}, "LAUNCH_FAILED", "The working folder /not there"),
        "setup": (["true"], {"setup": ["exit 5"]}, "LAUNCH_FAILED", "setup line"),
        "module": (
            ["true"],
            {"setup": ["echo so", "no-such load cuda"]},
            "LAUNCH_FAILED",
            "The setup line no-such load cuda failed with exit code 127: no-such: command not found.",
        ),
        "no python": (["true"], {"interpreter": "/bin/false"}, "FAILED", "exit code 1"),
        "supervisor": (["sh", "-c", "kill -9 $PPID; sleep 30"], {}, "DIED", "SIGKILL"),
        "shell": (["sh", "-c", "kill -9 $(ps -o ppid= $PPID); sleep 30"], {}, "DIED", "SIGKILL"),
    }
    for made in (jobs, bare):
        monkeypatch.setenv("SLURM_CONF", made.cluster.env["SLURM_CONF"])
        folders = {name: made.start(argv, **fields) for name, (argv, fields, _, _) in cases.items()}
        if made.cluster.cgroups:
            cases["memory"] = (["python3", "-c", "bytearray(900 << 20)"], {"memory": "300M"}, "OUT_OF_MEMORY", "memory")
            folders["memory"] = made.start(cases["memory"][0], **cases["memory"][1])
        for name, folder in folders.items():
            seen = made.end(folder)[0]
            assert str(seen.state) == cases[name][2], (name, seen)
            assert cases[name][3] in seen.reason, (name, seen)


def _all_cancelled(told: dict[int, Any], tasks: tuple[int, ...]) -> bool:
    return all(told[task].state is JobState.CANCELLED for task in tasks)


def test_cancels_are_seen(jobs: Jobs, bare: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    for made in (jobs, bare):
        monkeypatch.setenv("SLURM_CONF", made.cluster.env["SLURM_CONF"])
        running, waiting = made.start(["sleep", "300"]), made.start(["sleep", "300"], sbatch=["--begin=now+1hour"])
        held = made.start(["sleep", "300"], sbatch=["-H"])
        array = made.start(["sleep", "300"], tasks=6, parallelism=1)
        made.until_state(running, "RUNNING")
        assert "its owner" in made.until_state(held, "HELD").reason
        made.until_state(array, "RUNNING")
        for folder in (running, waiting, held):
            made.backend.cancel(folder)
        array.request_cancel((0, 2, 3, 5))
        made.backend.cancel(array, [0, 2, 3, 5])
        for folder in (running, waiting, held):
            assert made.end(folder)[0].state is JobState.CANCELLED
        told = made.until(array, lambda told: len(told) == 6 and _all_cancelled(told, (0, 2, 3, 5)))
        assert {str(told[task].state) for task in (1, 4)} <= {"QUEUED", "RUNNING", "STARTING"}
        made.backend.cancel(array)
        assert {seen.state for seen in made.end(array).values()} == {JobState.CANCELLED}
        made.backend.cancel(array)  # once more is no error


def test_a_job_that_slurm_starts_again_says_so(jobs: Jobs) -> None:
    folder = jobs.start(["sh", "-c", '[ "$SLURM_RESTART_COUNT" ] || sleep 300'], requeue=True)
    jobs.until_state(folder, "RUNNING")
    jobs.cluster.run("scontrol", "requeue", folder.submission().platform_id)  # type: ignore[union-attr]
    again = jobs.until(folder, lambda told: told[0].restarts == 1)[0]
    assert str(again.state) in ("REQUEUED", "STARTING", "RUNNING", "SUCCEEDED")
    seen = jobs.end(folder)[0]
    assert (seen.state, seen.restarts) == (JobState.SUCCEEDED, 1)


def test_a_run_that_failed_is_tried_again_by_itself(jobs: Jobs) -> None:
    folder = jobs.start(["sh", "-c", '[ "$SLURM_RESTART_COUNT" ] || exit 3'], attempts=2)
    seen = jobs.end(folder, ceiling=120)[0]
    assert (seen.state, seen.restarts) == (JobState.SUCCEEDED, 1)
    assert '"retry": true' in folder.events(0).read_text()
    assert '"SUCCEEDED"' in folder.events(1).read_text()


# -- finding ---------------------------------------------------------------------------------------


def test_a_submission_whose_answer_was_lost_is_found_and_not_sent_again(
    jobs: Jobs, bare: Jobs, monkeypatch: Any
) -> None:
    for made in (jobs, bare):
        monkeypatch.setenv("SLURM_CONF", made.cluster.env["SLURM_CONF"])
        folder = made.make(["true"], tasks=3)
        assert made.backend.find(folder) is None
        sent = made.backend.submit(folder)  # and the kernel is killed before it writes this down
        found = made.backend.find(folder)
        assert found == sent
        before = made.ids(folder)
        assert len(before) == 1
        assert made.backend.submit(folder) == sent
        assert made.ids(folder) == before
        folder.write_submission(sent)
        made.end(folder)


def test_what_the_controller_forgot_is_found_in_the_database(jobs: Jobs) -> None:
    from clusterkernel.backends.slurm.submit import Submitter

    folder = jobs.make(["true"])
    sent = jobs.backend.submit(folder)
    folder.write_submission(sent)
    jobs.end(folder)
    found: dict[str, Any] = {}

    def there() -> bool:
        found.update(Submitter(jobs.backend._transport)._find_accounted(folder))
        return bool(found)

    for _ in range(200):  # the database is told a little later
        if there():
            break
    assert found == {sent.platform_id: (0, 1)}


# -- a cluster to break ----------------------------------------------------------------------------


def test_arrays_past_the_limit_and_a_controller_that_is_down(slurm_own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = slurm_own(accounting=False, overrides=("MaxArraySize=4", "MinJobAge=2", "MessageTimeout=5"))
    jobs = make_jobs(cluster, monkeypatch)
    # Tasks that must not all run at once: one part follows the other.
    array = jobs.start(["sh", "-c", "echo $CLUSTERKERNEL_TASK"], tasks=10, parallelism=4)
    assert [(first, count) for _, first, count in array.submission().platform_ids] == [(0, 4), (4, 4), (8, 2)]  # type: ignore[union-attr]
    assert "--dependency=afterany:" in (array.path / "script.8.sh").read_text()
    outputs = [array.out(task=task) / "stdout" for task in range(10)]
    jobs.until(array, lambda told: all(path.exists() and path.read_text() for path in outputs))
    assert [path.read_text() for path in outputs] == [f"{task}\n" for task in range(10)]
    # Finished and forgotten, and no accounting: known well to be unknown.
    told = jobs.until(array, lambda told: all(seen.state is None or seen.state.terminal for seen in told.values()))
    assert len(told) == 10
    running = jobs.start(["sleep", "300"])
    jobs.until_state(running, "RUNNING")
    fresh = jobs.make(["true"])
    cluster.stop_controller()
    assert jobs.look(running) == {}
    with pytest.raises(BackendUnavailable):
        jobs.backend.submit(fresh)
    with pytest.raises(BackendUnavailable):
        jobs.backend.submit(fresh)  # it was tried: it is looked for first
    with pytest.raises(BackendUnavailable):
        jobs.backend.cancel(running)
    assert not {check.name: check for check in jobs.backend.doctor()}["Slurm controller"].ok
    cluster.start_controller()
    assert jobs.until_state(running, "RUNNING").node
    assert jobs.end(jobs.send(fresh))[0].state is JobState.SUCCEEDED
    jobs.backend.cancel(running)
    assert jobs.end(running)[0].state is JobState.CANCELLED


def test_a_limit_of_submitted_jobs_keeps_what_was_sent(slurm_own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = slurm_own(overrides=("MaxArraySize=4",))
    jobs = make_jobs(cluster, monkeypatch)
    cluster.run("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=6")
    array = jobs.make(["sleep", "300"], tasks=8)
    sent = jobs.backend.submit(array)
    assert [(first, count) for _, first, count in sent.platform_ids] == [(0, 4), (4, 2)]
    array.write_submission(sent)
    told = jobs.until(array, lambda told: len(told) == 8)
    assert "Not sent yet" in told[7].reason
    cluster.run("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=-1")
    for _ in range(100):
        again = jobs.backend.submit(array)
        if len(again.platform_ids) == 3:
            break
    assert [(first, count) for _, first, count in again.platform_ids] == [(0, 4), (4, 2), (6, 2)]
    assert again.platform_id == sent.platform_id
    array.write_submission(again)
    jobs.close()


# -- looking around --------------------------------------------------------------------------------


def test_the_doctor_proves_the_folder_from_a_node(jobs: Jobs) -> None:
    spec = JobSpec(schedule=Schedule(partition="gpu", constraint="a100"))
    checks = {check.name: check for check in jobs.backend.doctor(deep=True, spec=spec)}
    assert [name for name, check in checks.items() if not check.ok] == []
    assert {"Slurm controller", "Slurm account", "Job folder", "Test job", "Interpreter on a node"} <= set(checks)
    assert "on gpu3" in checks["Test job"].detail
    assert not list(jobs.root.path.glob(".doctor-*"))
    elsewhere = JobSpec(environment=Environment(interpreter="/not/there"))
    checks = {check.name: check for check in jobs.backend.doctor(deep=True, spec=elsewhere)}
    assert checks["Test job"].ok
    assert not checks["Interpreter on a node"].ok
    assert "/not/there" in checks["Interpreter on a node"].detail


def test_the_doctor_finds_a_folder_that_the_nodes_lack(
    jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", f"/tmp/ck-private-{uuid.uuid4().hex[:6]}")
    checks = {check.name: check for check in jobs.backend.doctor()}
    assert not checks["Job folder"].ok
    assert "/tmp" in checks["Job folder"].detail
    shutil.rmtree(os.environ["CLUSTERKERNEL_JOB_ROOT"])


def test_tables_of_a_real_cluster(jobs: Jobs) -> None:
    folder = jobs.start(["sleep", "300"], gpus_per_node="h100:2", partition="gpu", tasks_per_node="1", time="7m")
    jobs.until_state(folder, "RUNNING")
    (mine,) = [row for row in jobs.backend.queue() if row["key"] == folder.record.key]
    assert (mine["gpus_per_node"], mine["gpu_type"], mine["time_limit"], mine["state"]) == (2, "h100", 420, "RUNNING")
    assert mine["ends"] - mine["started"] == 420
    nodes = {row["node"]: row for row in jobs.backend.nodes()}
    assert set(nodes) == set(jobs.cluster.nodes)
    assert (nodes["gpu3"]["gpus"], nodes["gpu3"]["gpu_type"], nodes["gpu3"]["memory"]) == (8, "a100", 512000)
    jobs.backend.cancel(folder)
    jobs.end(folder)
    job = folder.submission().platform_id  # type: ignore[union-attr]
    rows: list[dict[str, Any]] = []
    for _ in range(100):  # the database is told a little later
        rows = [row for row in jobs.backend.accounting(days=1) if row["job"] == job and row["state"] == "CANCELLED"]
        if rows:
            break
    assert [row["gpus"] for row in rows] == [2]
