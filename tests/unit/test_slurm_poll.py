"""How jobs are, from answers of Slurm 22.05 that came, came in part, or did not come."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterkernel.backends.slurm import poll as poll_module
from clusterkernel.backends.slurm.commands import Answer
from clusterkernel.backends.slurm.poll import Poller
from clusterkernel.backends.slurm.records import SEPARATOR
from clusterkernel.errors import BackendUnavailable
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, PayloadSummary, Submission
from clusterkernel.spec import Array, JobSpec, Recovery

INVALID = "slurm_load_jobs error: Invalid job id specified\n"
DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
DISABLED = "Slurm accounting storage is disabled\n"


class Script:
    """A transport with an answer for each command; keeps what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str, str] | None] = {
            "squeue": (0, "", ""),
            "scontrol": (1, "", INVALID * 9),
            "sacct": (1, "", DISABLED),
        }
        self.asked: list[str] = []

    def which(self, name: str) -> str | None:
        return f"/usr/bin/{name}"

    def query(self, *argv: str, timeout: float = 5.0, text: str = "") -> Answer:
        self.asked.append(argv[0])
        answer = self.answers[argv[0]]
        if answer is None:
            raise BackendUnavailable(f"{argv[0]} did not answer within {timeout:g} s.")
        return Answer(argv, *answer)

    def submission(self, argv: Sequence[str]) -> list[str]:
        raise AssertionError("nothing is submitted here")


@pytest.fixture
def slurm() -> Script:
    return Script()


@pytest.fixture
def poller(slurm: Script) -> Poller:
    return Poller(slurm)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., JobFolder]:
    root = JobRoot(tmp_path / "jobs")

    def make(*ids: tuple[str, int, int], tasks: int | None = None, **fields: Any) -> JobFolder:
        spec = JobSpec(backend="slurm", array=Array(size=tasks) if tasks else None, **fields)

        def record(job_id: str, key: str) -> JobRecord:
            summary = PayloadSummary(kind="command")
            return JobRecord(
                id=job_id,
                key=key,
                name="try",
                created=0.0,
                host="head",
                user="me",
                spec=spec,
                payload=summary,
                tasks=tasks or 1,
                array=tasks is not None,
            )

        folder = root.create(record, lambda path: None)
        folder.prepare()  # as its sender does
        folder.write_submission(Submission(platform_ids=ids or (("81", 0, tasks or 1),)))
        return folder

    return make


def listed(
    folder: JobFolder,
    state: str,
    *,
    job: str = "81",
    index: str = "N/A",
    reason: str = "None",
    node: str = "",
    **other: str,
) -> str:
    comment = other.get("comment", f"clusterkernel:{folder.record.key}:0:1")
    command = other.get("command", f"{folder.path}/script.sh")
    return SEPARATOR.join((job, job, index, state, reason, node, comment, command)) + "\n"


def shown(folder: JobFolder, state: str, *, job: str = "81", index: str = "", **other: str) -> str:
    array = f"ArrayJobId={job} ArrayTaskId={index} " if index else ""
    comment = other.get("comment", f"clusterkernel:{folder.record.key}:0:1")
    return (
        f"JobId={job} {array}JobName={other.get('name', 'try')} UserId=me(1000) GroupId=me(1000) MCS_label=N/A "
        f"Priority=1 Nice=0 Account=a QOS=normal JobState={state} Reason={other.get('reason', 'None')} "
        f"Dependency=(null) Requeue=1 Restarts={other.get('restarts', '0')} BatchFlag=1 Reboot=0 "
        f"ExitCode={other.get('code', '0:0')} DerivedExitCode={other.get('derived', '0:0')} RunTime=00:00:01 "
        f"ReqNodeList=(null) ExcNodeList=(null) NodeList=gpu1 BatchHost=gpu1 Command={folder.path}/script.sh "
        f"WorkDir=/w Comment={comment}  StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null Power= \n"
    )


def told(row: str, *values: str) -> str:
    return SEPARATOR.join((row, *values)) + "\n"


def states(poller: Poller, *folders: JobFolder) -> dict[str, list[tuple[int, str | None]]]:
    return {
        job: sorted((seen.task, seen.state and str(seen.state)) for seen in seen)  # type: ignore[misc]
        for job, seen in poller.poll(folders).items()
    }


def one(poller: Poller, folder: JobFolder) -> Any:
    (seen,) = poller.poll([folder])[folder.id]
    return seen


# -- what squeue lists -----------------------------------------------------------------------------


def test_one_squeue_tells_of_all_jobs(poller: Poller, slurm: Script, job: Any) -> None:
    first, second = job(("81", 0, 1)), job(("82", 0, 1))
    text = listed(first, "RUNNING", node="gpu1") + listed(second, "PENDING", job="82", reason="Priority")
    slurm.answers["squeue"] = (0, text, "")
    assert states(poller, first, second) == {first.id: [(0, "RUNNING")], second.id: [(0, "QUEUED")]}
    assert slurm.asked == ["squeue"]
    assert "higher priority" in one(poller, second).reason


def test_nothing_is_asked_where_nothing_is_live(poller: Poller, slurm: Script) -> None:
    assert poller.poll([]) == {}
    assert slurm.asked == []


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("PENDING", "JobHeldUser", "HELD"),
        ("PENDING", "launch failed requeued held", "HELD"),
        ("PENDING", "QOSMaxGRESPerUser", "QUEUED"),
        ("CONFIGURING", "None", "STARTING"),
        ("COMPLETING", "None", "FINISHING"),
        ("SUSPENDED", "None", "RUNNING"),
        ("REQUEUE_HOLD", "None", "HELD"),
        ("COMPLETED", "None", "SUCCEEDED"),
    ],
)
def test_live_states(poller: Poller, slurm: Script, job: Any, state: str, reason: str, expected: str) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, listed(folder, state, reason=reason), "")
    assert states(poller, folder) == {folder.id: [(0, expected)]}


def test_a_state_of_a_later_slurm_is_not_answered_for(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, listed(folder, "TELEPORTING"), "")
    assert states(poller, folder) == {}


def test_array_ranges_are_expanded(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(tasks=7)
    slurm.answers["squeue"] = (
        0,
        listed(folder, "RUNNING", index="0")
        + listed(folder, "COMPLETED", index="1")
        + listed(folder, "PENDING", index="2-3,5-6%2", reason="JobArrayTaskLimit")
        + listed(folder, "PENDING", index="4", reason="JobHeldUser"),
        "",
    )
    expected = ["RUNNING", "SUCCEEDED", "QUEUED", "QUEUED", "HELD", "QUEUED", "QUEUED"]
    assert states(poller, folder) == {folder.id: list(enumerate(expected))}
    assert slurm.asked == ["squeue"]


def test_a_range_that_was_cut_is_asked_for_again(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(tasks=3)
    slurm.answers["squeue"] = (0, listed(folder, "PENDING", index="0,2,4..."), "")
    slurm.answers["scontrol"] = (0, shown(folder, "PENDING", index="0-2%1"), "")
    assert states(poller, folder) == {folder.id: [(0, "QUEUED"), (1, "QUEUED"), (2, "QUEUED")]}


def test_a_split_array_is_one_job(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(("81", 0, 2), ("90", 2, 1), tasks=3)
    slurm.answers["squeue"] = (
        0,
        listed(folder, "RUNNING", index="0-1") + listed(folder, "PENDING", job="90", index="0"),
        "",
    )
    assert states(poller, folder) == {folder.id: [(0, "RUNNING"), (1, "RUNNING"), (2, "QUEUED")]}


def test_tasks_that_were_not_sent_yet_wait(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(("81", 0, 2), tasks=3)
    slurm.answers["squeue"] = (0, listed(folder, "RUNNING", index="0-1"), "")
    seen = {item.task: item for item in poller.poll([folder])[folder.id]}
    assert str(seen[2].state) == "QUEUED"
    assert "Not sent yet" in seen[2].reason


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "code", "derived", "expected", "signum"),
    [
        ("FAILED", "7:0", "0:0", "FAILED", None),
        ("FAILED", "0:9", "0:0", "DIED", 9),
        ("FAILED", "137:0", "0:0", "DIED", 9),
        ("FAILED", "1:0", "0:125", "OUT_OF_MEMORY", None),
        ("FAILED", "0:53", "0:0", "LAUNCH_FAILED", None),
        ("OUT_OF_MEMORY", "0:125", "0:0", "OUT_OF_MEMORY", None),
        ("TIMEOUT", "0:15", "0:0", "TIMED_OUT", 15),
        ("DEADLINE", "0:0", "0:0", "TIMED_OUT", None),
        ("CANCELLED", "0:15", "0:0", "CANCELLED", 15),
        ("NODE_FAIL", "0:0", "0:0", "NODE_LOST", None),
        ("PREEMPTED", "0:0", "0:0", "CANCELLED", None),
        ("BOOT_FAIL", "0:0", "0:0", "LAUNCH_FAILED", None),
    ],
)
def test_ends_come_with_their_exit_code(
    poller: Poller, slurm: Script, job: Any, state: str, code: str, derived: str, expected: str, signum: int | None
) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, listed(folder, state), "")
    slurm.answers["scontrol"] = (0, shown(folder, state, code=code, derived=derived), "")
    seen = one(poller, folder)
    assert (str(seen.state), seen.signum) == (expected, signum)
    assert seen.reason.endswith(".")
    slurm.asked.clear()
    assert one(poller, folder) == seen  # and is not asked for again
    assert slurm.asked == []


def test_an_end_whose_code_scontrol_does_not_tell_comes_a_little_later(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, listed(folder, "FAILED"), "")
    slurm.answers["scontrol"] = None
    seen = [states(poller, folder) for _ in range(poll_module.PATIENCE)]
    assert seen == [{}] * (poll_module.PATIENCE - 1) + [{folder.id: [(0, "FAILED")]}]


def test_a_requeued_job_is_known_by_its_restarts(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(recovery=Recovery(requeue=True))
    slurm.answers["squeue"] = (0, listed(folder, "PENDING", reason="BeginTime"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "PENDING", reason="BeginTime", restarts="1"), "")
    seen = one(poller, folder)
    assert (str(seen.state), seen.restarts) == ("REQUEUED", 1)


def test_cleaning_up_before_a_restart_is_no_end(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(recovery=Recovery(requeue=True))
    slurm.answers["squeue"] = (0, listed(folder, "COMPLETING"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "COMPLETING", restarts="1"), "")
    assert str(one(poller, folder).state) == "REQUEUED"
    folder.events(1).parent.mkdir()
    folder.events(1).write_text("{}\n")
    assert str(one(poller, folder).state) == "FINISHING"


def test_what_the_batch_shell_wrote_explains_a_failure(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, listed(folder, "FAILED"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "FAILED", code="127:0"), "")
    why = "The interpreter /p is not there on node gpu1."
    record = {"t": 1, "kind": "shell", "phase": "interpreter", "exit_code": 127, "platform_id": "81", "reason": why}
    other = {**record, "platform_id": "80", "reason": "of another copy"}
    (folder.path / "events" / "0" / "0.shell.jsonl").write_text(f"{json.dumps(record)}\n{json.dumps(other)}\n{{\n")
    seen = one(poller, folder)
    assert (str(seen.state), seen.reason, seen.exit_code) == ("LAUNCH_FAILED", why, 127)


def test_python_that_did_not_start_is_explained_by_the_log(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    (folder.path / "batch").mkdir()
    (folder.path / "batch" / "81.log").write_text("noise\npython: error while loading libpython3.so\n\n")
    slurm.answers["squeue"] = (0, listed(folder, "FAILED"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "FAILED", code="1:0"), "")
    assert one(poller, folder).reason == "It ended with exit code 1: python: error while loading libpython3.so"


# -- answers that fail -----------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, (1, "", DOWN), (1, "", "squeue: error: Socket timed out on send/recv")])
def test_a_controller_that_is_silent_tells_nothing(poller: Poller, slurm: Script, job: Any, answer: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = answer
    assert states(poller, folder) == {}
    assert slurm.asked == ["squeue"]


def test_a_squeue_that_cannot_be_used_is_replaced(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = (1, "", "squeue: unrecognized option '-t'")
    slurm.answers["scontrol"] = (0, shown(folder, "RUNNING"), "")
    assert states(poller, folder) == {folder.id: [(0, "RUNNING")]}


def test_an_empty_answer_makes_no_job_gone(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, "", "")
    slurm.answers["scontrol"] = (0, shown(folder, "RUNNING"), "")
    assert states(poller, folder) == {folder.id: [(0, "RUNNING")]}
    for broken in (None, (1, "", DOWN), (1, "", ""), (1, "", INVALID[:10])):
        slurm.answers["scontrol"] = broken
        assert states(poller, folder) == {}


def test_only_good_answers_make_a_job_unknown(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    for broken in (None, (1, "", "sacct: error: slurm_persist_conn_open_without_init: Connection refused")):
        slurm.answers["sacct"] = broken
        assert states(poller, folder) == {}
    slurm.answers["sacct"] = (0, "", "")
    assert states(poller, folder) == {folder.id: [(0, None)]}


def test_accounting_that_is_off_is_not_asked_again(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    assert states(poller, folder) == {folder.id: [(0, None)]}
    assert states(poller, folder) == {folder.id: [(0, None)]}
    assert slurm.asked.count("sacct") == 1


def test_the_database_knows_what_the_controller_forgot(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(("81", 0, 3), tasks=3)
    slurm.answers["sacct"] = (
        0,
        told("81_0", "COMPLETED", "0:0", "0:0", "gpu1", "try")
        + told("81_1", "CANCELLED by 0", "0:0", "0:0", "gpu1", "try")
        + told("81_2", "FAILED", "3:0", "0:0", "gpu1", "try"),
        "",
    )
    assert states(poller, folder) == {folder.id: [(0, "SUCCEEDED"), (1, "CANCELLED"), (2, "FAILED")]}
    assert "cancelled by root" in poller.poll([folder])[folder.id][1].reason
    assert slurm.asked.count("sacct") == 1


def test_a_database_that_lags_behind_is_given_time(
    poller: Poller, slurm: Script, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job()
    slurm.answers["sacct"] = (0, told("81", "RUNNING", "0:0", "0:0", "gpu1", "try"), "")
    assert states(poller, folder) == {}
    monkeypatch.setattr(poll_module, "LAG", 0.0)
    assert states(poller, folder) == {folder.id: [(0, None)]}


# -- ids -------------------------------------------------------------------------------------------


def test_an_id_that_was_given_to_another_job_is_not_ours(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, listed(folder, "RUNNING", comment="clusterkernel:ffff:0:1"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "RUNNING", comment="clusterkernel:ffff:0:1"), "")
    slurm.answers["sacct"] = (0, told("81", "COMPLETED", "0:0", "0:0", "gpu1", "another"), "")
    assert states(poller, folder) == {folder.id: [(0, None)]}


def test_a_site_may_rewrite_the_comment(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    slurm.answers["squeue"] = (0, listed(folder, "RUNNING", comment="project=42"), "")
    assert states(poller, folder) == {folder.id: [(0, "RUNNING")]}
    slurm.answers["squeue"] = (0, listed(folder, "RUNNING", comment="project=42", command="/other/script.sh"), "")
    assert states(poller, folder) == {folder.id: [(0, None)]}


def test_what_a_name_says_is_not_a_field(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job()
    name = "x UserId=me JobState=FAILED ExitCode=1:0 Reason=None Dependency="
    folder.__dict__["record"] = msgspec.structs.replace(folder.record, name=name)
    slurm.answers["scontrol"] = (0, shown(folder, "RUNNING", name=name), "")
    assert states(poller, folder) == {folder.id: [(0, "RUNNING")]}


def test_a_waiting_task_that_was_cancelled_has_no_record_at_all(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(tasks=3)
    slurm.answers["squeue"] = (0, listed(folder, "PENDING", index="0,2"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "PENDING", index="0,2"), "")
    assert states(poller, folder) == {folder.id: [(0, "QUEUED"), (1, "CANCELLED"), (2, "QUEUED")]}


def test_a_task_that_ran_and_is_forgotten_is_unknown(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(tasks=3)
    slurm.answers["squeue"] = (0, listed(folder, "PENDING", index="0,2"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "PENDING", index="0,2"), "")
    folder.events(0, 1).write_text('{"kind": "started"}\n')
    assert states(poller, folder) == {folder.id: [(0, "QUEUED"), (1, None), (2, "QUEUED")]}


def test_what_the_database_says_late_of_a_known_array_is_passed_over(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(tasks=3)
    slurm.answers["squeue"] = (0, listed(folder, "PENDING", index="0,2"), "")
    slurm.answers["scontrol"] = (0, shown(folder, "PENDING", index="0,2"), "")
    slurm.answers["sacct"] = (
        0,
        SEPARATOR.join(("81_[0-2]", "PENDING", "0:0", "0:0", "None assigned", "try")) + "\n",
        "",
    )
    assert states(poller, folder) == {folder.id: [(0, "QUEUED"), (1, "CANCELLED"), (2, "QUEUED")]}


def test_of_two_copies_the_one_with_the_claim_counts(poller: Poller, slurm: Script, job: Any) -> None:
    folder = job(("81", 0, 1), ("82", 0, 1))
    slurm.answers["squeue"] = (0, listed(folder, "PENDING") + listed(folder, "RUNNING", job="82"), "")
    assert states(poller, folder) == {folder.id: [(0, "RUNNING")]}
    (folder.path / "claims" / "0").write_text(json.dumps({"platform_id": "81"}))
    slurm.answers["squeue"] = (0, listed(folder, "RUNNING") + listed(folder, "COMPLETED", job="82"), "")
    assert states(poller, folder) == {folder.id: [(0, "RUNNING")]}
