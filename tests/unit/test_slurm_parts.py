"""Small parts of the Slurm backend: what it reads, the environments, the bucket, the refusals, the registry."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from clusterkernel.backends import registry
from clusterkernel.backends.slurm import tables
from clusterkernel.backends.slurm.backend import SlurmBackend
from clusterkernel.backends.slurm.bucket import TokenBucket
from clusterkernel.backends.slurm.commands import Answer, LocalTransport, unreachable
from clusterkernel.backends.slurm.environment import for_queries, for_sbatch
from clusterkernel.backends.slurm.records import SEPARATOR, comment, expand, read_comment
from clusterkernel.backends.slurm.refusals import refusal
from clusterkernel.backends.slurm.states import Record, explain, judge
from clusterkernel.errors import BackendError, BackendUnavailable, SpecError
from clusterkernel.spec import Array, JobSpec, Schedule
from tests.unit.making import until


class Canned:
    """A transport that knows some answers by heart."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers

    def which(self, name: str) -> str | None:
        return None

    def query(self, *argv: str, timeout: float = 5.0, text: str = "") -> Answer:
        out = self.answers.get(argv[0])
        return Answer(argv, 1, "", "no") if out is None else Answer(argv, 0, out, "")

    def submission(self, argv: Sequence[str]) -> list[str]:
        return list(argv)


# -- reading ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("3", (3,)),
        ("0-3", (0, 1, 2, 3)),
        ("[0-3%2]", (0, 1, 2, 3)),
        ("6,8-10,12%3", (6, 8, 9, 10, 12)),
        ("0-8:4", (0, 4, 8)),
        ("0,2,4...", None),
        ("N/A", None),
    ],
)
def test_array_expressions(text: str, indices: tuple[int, ...] | None) -> None:
    assert expand(text) == indices


def test_the_comment_carries_key_and_tasks() -> None:
    assert read_comment(comment("ab12", 1001, 5) + " ") == ("ab12", 1001, 5)
    assert read_comment("clusterkernel:ab12:x:5") is None
    assert read_comment("project=4") is None


@pytest.mark.parametrize(
    ("reason", "held", "words"),
    [
        ("Priority", False, "higher priority"),
        ("(Resources)", False, "become free"),
        ("ReqNodeNotAvail, UnavailableNodes:gpu1", False, "down, drained"),
        ("QOSMaxGRESPerUser", False, "QOS allows no more GPUs"),
        ("AssocGrpGRES", False, "all its GPUs in use"),
        ("AssocMaxCpuPerJobLimit", False, "no more CPUs"),
        ("QOSMaxMemoryPerUser", False, "no more memory"),
        ("PartitionTimeLimit", False, "more time than its partition"),
        ("DependencyNeverSatisfied", True, "never start"),
        ("JobHeldAdmin", True, "administrator"),
        ("SomethingNew", False, "SomethingNew"),
        ("None", False, ""),
        ("(null)", False, ""),
    ],
)
def test_reasons_are_sentences(reason: str, held: bool, words: str) -> None:
    is_held, text = explain(reason)
    assert is_held is held
    assert words in text
    assert not text or text.endswith(".")


def test_who_cancelled_is_told_where_slurm_tells() -> None:
    by_root = judge(Record(state="CANCELLED by 0"))
    assert by_root is not None
    assert by_root.reason == "It was cancelled by root."
    unknown = judge(Record(state="CANCELLED by 3999999999"))
    assert unknown is not None
    assert "3999999999" in unknown.reason


# -- environments ----------------------------------------------------------------------------------


def test_sbatch_sees_no_secret_and_nothing_of_an_outer_job() -> None:
    environ = {
        "PATH": "/bin",
        "HOME": "/h",
        "SLURM_CONF": "/c",
        "LC_CTYPE": "C.UTF-8",
        "BASH_FUNC_module%%": "() { :; }",
        "VIRTUAL_ENV": "/v",
        "http_proxy": "http://proxy:1",
        "https_proxy": "http://me:word@proxy:1",
        "HF_TOKEN": "planted",
        "WANDB_API_KEY": "planted",
        "LMOD_SECRET": "planted",
        "SLURM_JOB_ID": "7",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SBATCH_PARTITION": "gpu",
        "PMI_RANK": "0",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "RANDOM_THING": "x",
    }
    assert for_sbatch(environ) == {
        name: environ[name]
        for name in ("PATH", "HOME", "SLURM_CONF", "LC_CTYPE", "BASH_FUNC_module%%", "VIRTUAL_ENV", "http_proxy")
    }


def test_queries_speak_plainly_whatever_is_set() -> None:
    environ = {
        "PATH": "/bin",
        "SQUEUE_FORMAT": "%i",
        "SLURM_CONF": "/c",
        "SACCT_FORMAT": "x",
        "SLURM_TIME_FORMAT": "relative",
    }
    assert for_queries(environ) == {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_BITSTR_LEN": "0",
    }


# -- commands --------------------------------------------------------------------------------------


def test_a_command_that_hangs_ends_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(BackendUnavailable, match=r"did not answer within 0\.5 s"):
        LocalTransport().query("sh", "-c", f"sleep 60 & echo $! >{pids}; sleep 60", timeout=0.5)
    stat = Path(f"/proc/{int(pids.read_text())}/stat")

    def ended() -> bool:
        try:
            return stat.read_text().rpartition(") ")[2][0] == "Z"  # where nobody takes it over
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(ended, "the end of what it started")


def test_a_command_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(BackendUnavailable, match="no-such-command cannot be run"):
        LocalTransport().query("no-such-command")


def test_a_command_gets_its_input_and_gives_both_streams() -> None:
    answer = LocalTransport().query("sh", "-c", "cat; echo oops >&2; exit 3", text="hello\n")
    assert (answer.code, answer.out, answer.err, answer.complaint) == (3, "hello\n", "oops\n", "oops")


def test_complaints_of_a_silent_controller_are_known() -> None:
    assert unreachable("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    assert unreachable("Unable to contact slurm controller (connect failure)")
    assert not unreachable("sbatch: error: invalid partition specified: x")


# -- the bucket ------------------------------------------------------------------------------------


def test_bursts_pass_and_floods_are_slowed() -> None:
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    bucket = TokenBucket(5, 10.0, clock=lambda: now[0], sleep=sleep)
    assert [bucket.take() for _ in range(5)] == [0.0] * 5
    assert [round(bucket.take(), 6) for _ in range(3)] == [0.1, 0.1, 0.1]
    now[0] += 60.0
    assert [bucket.take() for _ in range(5)] == [0.0] * 5
    assert bucket.take() > 0


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "reason", "mend"),
    [
        (
            "sbatch: error: invalid partition specified: gpus\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
            "invalid partition specified: gpus. Invalid partition name specified.",
            "Did you mean gpu?",
        ),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "Invalid account",
            "Your accounts: lab, research.",
        ),
        ("sbatch: error: Memory specification can not be satisfied", "Memory specification", "--memory"),
        (
            "sbatch: error: Requested time limit is invalid (missing or exceeds some limit)",
            "time limit",
            "--time",
        ),
        (
            "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Job violates accounting/QOS policy (limits)",
            "AssocMaxSubmitJobLimit. Job violates accounting/QOS policy",
            "%cluster_jobs",
        ),
        ("sbatch: error: Job violates accounting/QOS policy (time limits)", "violates", "Ask for less"),
        (
            "sbatch: error: an account is mandatory here\n"
            "sbatch: error: Batch job submission failed: Unspecified error",
            "refused the job: an account is mandatory here.",
            "Your accounts: lab, research.",
        ),
        ("sbatch: error: something new", "something new", ""),
        ("", "sbatch said nothing", ""),
    ],
)
def test_refusals_keep_slurms_words_and_add_the_mend(said: str, reason: str, mend: str) -> None:
    transport = Canned(sinfo="debug\ngpu\n", id="me\n", sacctmgr="research\nlab\n")
    error = refusal(said, JobSpec(schedule=Schedule(partition="gpus")), transport)
    assert reason in str(error)
    assert mend in error.hint
    assert "\n" not in str(error)
    assert "sbatch: error" not in str(error)
    assert "Unspecified" not in str(error)


# -- tables ----------------------------------------------------------------------------------------


def test_tables_have_typed_columns() -> None:
    row = (
        "8123_[0-3%2]", "try", "me", "lab", "gpu", "normal", "PENDING", "Priority", "2", "32", "gres:gpu:h100:8",
        "", "12", "1796047592", "N/A", "N/A", "1-02:00:00", "clusterkernel:ab:0:4",
    )  # fmt: skip
    (job,) = tables.queue(Canned(squeue=SEPARATOR.join(row) + "\n"))
    assert (job["gpus_per_node"], job["gpu_type"], job["time_limit"], job["started"]) == (8, "h100", 93600, None)
    assert (job["submitted"], job["nodes"], job["key"]) == (1796047592, 2, "ab")
    assert "higher priority" in job["reason"]
    row = (
        "gpu1",
        "gpu",
        "mixed*",
        "64",
        "8/56/0/64",
        "512000",
        "1000",
        "0.53",
        "gpu:h100:8(S:0-1)",
        "ib",
        "infinite",
        "none",
    )
    (node,) = tables.nodes(Canned(sinfo=SEPARATOR.join(row) + "\n"))
    assert (node["state"], node["responds"], node["cpus_used"], node["gpus"]) == ("mixed", False, 8, 8)
    assert (node["time_limit"], node["load"], node["reason"]) == (None, 0.53, "")
    row = (
        "8123_1", "try", "me", "lab", "gpu", "normal", "CANCELLED by 0", "0:9", "1796047592", "1796047593", "Unknown",
        "12", "1", "4", "billing=4,cpu=4,gres/gpu:h100=8,gres/gpu=8,mem=1G,node=1", "gpu1",
    )  # fmt: skip
    (past,) = tables.accounting(Canned(sacct=SEPARATOR.join(row) + "\n"))
    assert (past["state"], past["exit_code"], past["signal"], past["ended"]) == ("CANCELLED", 0, 9, None)
    assert (past["runtime"], past["gpus"], past["gpu_type"]) == (12, 8, "h100")


def test_a_table_that_does_not_come_is_an_error() -> None:
    with pytest.raises(BackendUnavailable, match="squeue failed"):
        tables.queue(Canned())


# -- the backend without a cluster -----------------------------------------------------------------


def test_no_slurm_on_this_machine_is_one_line() -> None:
    backend = SlurmBackend(Canned())
    assert not backend.available().ok
    with pytest.raises(BackendUnavailable, match="sbatch not found") as caught:
        backend.check(JobSpec())
    assert "login node" in caught.value.hint
    with pytest.raises(SpecError, match="--priority"):  # the field comes first
        backend.check(JobSpec(schedule=Schedule(priority="high")))


def test_a_plan_needs_no_slurm() -> None:
    plan = SlurmBackend(Canned()).plan(JobSpec(name="x", array=Array(size=3), parallelism=2))
    assert "#SBATCH --array=0-2%2" in plan.text
    assert "supervise JOB_FOLDER" in plan.text
    assert plan.notes


# -- the registry ----------------------------------------------------------------------------------


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entries = (
        EntryPoint("good", f"{__name__}:Canned", registry.GROUP),
        EntryPoint("broken", "no_such_module:Thing", registry.GROUP),
    )
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: entries)
    registry.get.cache_clear()
    yield
    registry.get.cache_clear()


@pytest.mark.usefixtures("plugins")
def test_backends_are_found_by_name_and_broken_ones_hurt_nobody_else() -> None:
    assert registry.names() == ("broken", "good", "local", "modal", "slurm")
    assert isinstance(registry.get("good"), Canned)
    assert registry.get("slurm") is registry.get("slurm")
    with pytest.raises(BackendError, match="'broken' cannot be loaded: ModuleNotFoundError"):
        registry.get("broken")
    with pytest.raises(SpecError, match="Did you mean slurm") as caught:
        registry.get("slrum")
    assert caught.value.field == "--backend"
