"""The sbatch script: its directives, what it refuses, and what its shell does."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.errors import SpecError
from clusterkernel.fields import build
from clusterkernel.formats.sbatch import writer as sbatch
from clusterkernel.formats.sbatch.directives import directives
from clusterkernel.formats.sbatch.options import gres_gpus, parse, quote
from clusterkernel.spec import JobSpec, Recovery, Schedule
from clusterkernel.units import GpuRequest


def text(spec: JobSpec, folder: str = "/jobs/1", **changes: Any) -> str:
    array = changes.get("array")
    given = {
        "job_name": "try",
        "comment": "clusterkernel:k:0:1",
        "log_path": sbatch.log_pattern(f"{folder}/batch", array=array is not None),
        "events": f"{folder}/events",
        "launch": [sys.executable, "-u", "/runtime", "supervise", folder],
        **changes,
    }
    return sbatch.write(spec, **given)


def options(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


# -- directives ---------------------------------------------------------------------------------


def test_all_fields_become_literals() -> None:
    spec = build(
        {
            "nodes": 2,
            "gpus_per_node": "h100:8",
            "tasks_per_node": "8",
            "cpus_per_task": "4",
            "memory": "512G",
            "time": "4h",
            "partition": "gpu",
            "account": "research",
            "qos": "high",
            "priority": "100",
            "constraint": "ib&h100",
            "network": "ib",
            "reservation": "course",
            "dependency": "afterok:12",
            "ephemeral_disk": "100G",
        }
    )
    written = options(text(spec))
    assert written == [
        "--job-name=try",
        "--comment=clusterkernel:k:0:1",
        "--nodes=2",
        "--ntasks-per-node=8",
        "--cpus-per-task=4",
        "--mem=512G",
        "--time=0-04:00:00",
        "--partition=gpu",
        "--account=research",
        "--qos=high",
        "--priority=100",
        "--constraint='ib&h100'",
        "--network=ib",
        "--reservation=course",
        "--tmp=100G",
        "--gpus-per-node=h100:8",
        "--no-requeue",
        "--dependency=afterok:12",
        "--output=/jobs/1/batch/%j.log",
        "--open-mode=append",
        "--export=ALL",
    ]
    assert not any("$" in line for line in written)


def test_memory_is_left_out_where_nobody_asked() -> None:
    assert not any(line.startswith("--mem") for line in options(text(JobSpec())))


def test_a_launcher_is_one_task_that_holds_the_cores_of_its_ranks() -> None:
    spec = build({"nodes": 2, "gpus_per_node": "8", "cpus_per_task": "4", "launcher": "torchrun"})
    written = text(spec)
    assert "--ntasks-per-node=1" in options(written)
    assert "--cpus-per-task=32" in options(written)
    assert "srun --kill-on-bad-exit=1 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=32 " in written


def test_the_launchers_of_several_nodes_are_told_once_where_they_meet() -> None:
    meet = ["/a b/python", "/runtime", "rendezvous"]
    several = text(build({"nodes": 2, "launcher": "torchrun"}), meet=meet)
    line = "CLUSTERKERNEL_RENDEZVOUS=$('/a b/python' /runtime rendezvous)\nexport CLUSTERKERNEL_RENDEZVOUS\n"
    assert several.index(line) < several.index("srun ")
    assert "RENDEZVOUS" not in text(build({"launcher": "torchrun"}), meet=meet)
    assert "RENDEZVOUS" not in text(build({"nodes": 2}), meet=meet)


def test_srun_only_where_there_is_more_than_one_process() -> None:
    assert "srun" not in text(JobSpec())
    assert "srun" not in text(build({"gpus_per_node": "8", "launcher": "torchrun"}))
    assert "srun --kill-on-bad-exit=1" in text(build({"tasks_per_node": "2"}))


def test_array_parts_are_counted_from_zero_and_know_their_first_task() -> None:
    written = text(JobSpec(), array=sbatch.ArrayPart(1001, 4, 2))
    assert "--array=0-3%2" in options(written)
    assert "--output=/jobs/1/batch/%A_%a.log" in options(written)
    assert "ck_task=$((1001 + SLURM_ARRAY_TASK_ID))" in written
    assert written.rstrip().endswith("--first-task 1001")
    whole = text(JobSpec(), array=sbatch.ArrayPart(0, 4))
    assert "--array=0-3" in options(whole)
    assert "--first-task" not in whole


def test_a_part_waits_beside_the_dependency_of_the_person() -> None:
    written = text(build({"dependency": "afterok:7"}), after="afterany:8")
    assert "--dependency=afterok:7,afterany:8" in options(written)


def test_whole_nodes_come_with_their_memory() -> None:
    assert {"--exclusive", "--mem=0"} <= set(options(text(build({"exclusive": "yes"}))))
    assert "--mem=64G" in options(text(build({"exclusive": "yes", "memory": "64G"})))
    written = options(text(build({"exclusive": "yes", "sbatch": "--mem-per-cpu=4G"})))
    assert "--mem-per-cpu=4G" in written
    assert "--mem=0" not in written


@pytest.mark.parametrize(
    ("recovery", "written"),
    [
        (Recovery(), "--no-requeue"),
        (Recovery(requeue=True), "--requeue"),
        (Recovery(attempts=3), "--requeue"),
        (Recovery(requeue=False), "--no-requeue"),
    ],
)
def test_slurm_starts_a_job_again_only_where_recovery_says_so(recovery: Recovery, written: str) -> None:
    assert written in options(text(JobSpec(recovery=recovery)))


@pytest.mark.parametrize(
    ("fields", "written"),
    [
        ({"checkpoint_signal": "USR1@120"}, "--signal=B:USR1@120"),
        ({"checkpoint_signal": "SIGUSR2"}, "--signal=B:USR2@60"),
        ({"checkpoint_signal": "10@5"}, "--signal=B:USR1@5"),
        ({"checkpoint_signal": "B:USR1@120", "tasks_per_node": "2"}, "--signal=USR1@120"),
    ],
)
def test_the_checkpoint_signal_goes_where_somebody_hears_it(fields: dict[str, str], written: str) -> None:
    assert written in options(text(build(fields)))


# -- options that are passed through --------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "present", "absent"),
    [
        ({"sbatch": "--exclude=n1 --nice=5 -H"}, {"--exclude=n1", "--nice=5", "--hold"}, set()),
        ({"sbatch": "-pgpu"}, {"--partition=gpu"}, set()),
        ({"sbatch": "--mem-per-cpu=4G"}, {"--mem-per-cpu=4G"}, {"--mem"}),
        ({"sbatch": ["--gres=gpu:a100:2"]}, {"--gres=gpu:a100:2"}, {"--gpus-per-node"}),
        ({"gpus_per_node": "h100:8", "sbatch": "--gres"}, {"--gres=gpu:h100:8"}, {"--gpus-per-node"}),
        ({"gpus_per_node": "h100:8", "sbatch": "--gres=gpu:H100:8"}, {"--gres=gpu:H100:8"}, {"--gpus-per-node"}),
        (
            {"gpus_per_node": "h100:8", "sbatch": "--gres=gpu:h100:8,nvme:1"},
            {"--gres=gpu:h100:8,nvme:1"},
            {"--gpus-per-node"},
        ),
        ({"gpus_per_node": "8", "sbatch": "--gres=nvme:1"}, {"--gres=nvme:1", "--gpus-per-node=8"}, set()),
        ({"gpus_per_node": "h100:8", "sbatch": "--gpus-per-node=H100:8"}, {"--gpus-per-node=H100:8"}, set()),
        ({"nodes": 2, "sbatch": "--nodes=2"}, {"--nodes=2"}, set()),
        ({"sbatch": ["--nice=5", "--nice=7"]}, {"--nice=7"}, {"--nice=5"}),
    ],
)
def test_passed_options_fill_what_the_spec_leaves_open(
    fields: dict[str, Any], present: set[str], absent: set[str]
) -> None:
    written = options(text(build(fields)))
    assert present <= set(written)
    assert not [line for line in written if any(line == word or line.startswith(f"{word}=") for word in absent)]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"nodes": 2, "sbatch": "--nodes=4"}, ["--nodes=4", "--nodes = 2"]),
        ({"sbatch": "-N4"}, ["-N4", "--nodes = 1"]),
        ({"time": "4h", "sbatch": "--time=8:00:00"}, ["--time=8:00:00", "--time = 0-04:00:00"]),
        ({"memory": "64G", "sbatch": "--mem-per-cpu=4G"}, ["--mem-per-cpu=4G", "--memory = 64G"]),
        ({"sbatch": ["--mem=1G", "--mem-per-cpu=4G"]}, ["--mem=1G", "--mem-per-cpu=4G"]),
        ({"gpus_per_node": "8", "sbatch": "--gres=gpu:4"}, ["--gres=gpu:4", "--gpus-per-node = 8"]),
        ({"gpus_per_node": "h100:8", "sbatch": "--gres=gpu:8"}, ["--gres=gpu:8", "--gpus-per-node = h100:8"]),
        ({"gpus_per_node": "8", "sbatch": "-G16"}, ["-G16", "--gpus-per-node = 8"]),
        ({"sbatch": "--gres=gpu:2 --gpus-per-task=1"}, ["--gres=gpu:2", "--gpus-per-task=1"]),
        ({"sbatch": "--gres"}, ["--gres", "--gpus-per-node"]),
        ({"sbatch": "--mem-per-gpu=4G"}, ["--mem-per-gpu=4G", "--gpus-per-node"]),
        ({"cpus_per_task": "4", "sbatch": "--cpus-per-gpu=4"}, ["--cpus-per-gpu=4", "--cpus-per-task = 4"]),
        ({"sbatch": "--output=x"}, ["--output=x", "%cluster_logs"]),
        ({"sbatch": "--array=0-3"}, ["--array=0-3", "map_jobs"]),
        ({"sbatch": "--export=NONE"}, ["--export=NONE", "--env"]),
        ({"sbatch": "--requeue"}, ["--requeue"]),
        ({"sbatch": "--ntasks=4"}, ["--ntasks=4", "--tasks-per-node"]),
        ({"sbatch": "--clusters=b"}, ["--clusters=b"]),
        ({"region": "us-east"}, ["--region", "us-east"]),
        ({"image": "a/b"}, ["--image", "pyxis"]),
        ({"volumes": "data:/data"}, ["--volumes", "data"]),
        ({"priority": "high"}, ["--priority", "high", "--qos"]),
        ({"priority": "-5"}, ["--priority", "-5"]),
        ({"checkpoint_signal": "FOO@12"}, ["--checkpoint-signal", "FOO@12"]),
        ({"checkpoint_signal": "99"}, ["--checkpoint-signal", "99"]),
        ({"requeue": "no", "attempts": "3"}, ["--attempts", "3"]),
    ],
)
def test_contradictions_are_one_line_that_names_both(fields: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        sbatch.check(build(fields))
    line = str(caught.value)
    assert "\n" not in line
    for name in names:
        assert name in line
    assert caught.value.hint


def test_a_name_with_a_line_break_is_refused_and_a_made_up_one_is_cleaned() -> None:
    with pytest.raises(SpecError, match="--name"):
        sbatch.check(JobSpec(name="a\nb"))
    assert sbatch.clean_name("a\nb\x1b[1m") == "a b [1m"
    assert len(sbatch.clean_name("ü" * 300).encode()) <= 200
    assert sbatch.clean_name("\n") == "job"


def test_a_line_break_never_reaches_a_directive() -> None:
    with pytest.raises(SpecError, match="--partition"):
        sbatch.check(JobSpec(schedule=Schedule(partition="a\n#SBATCH --uid=0")))
    with pytest.raises(SpecError, match="holds"):
        sbatch.log_pattern("/jobs/a\\b", array=False)


def test_percent_in_the_log_path_is_no_pattern_of_slurms() -> None:
    assert sbatch.log_pattern("/jobs/50%unit", array=False) == "/jobs/50%%unit/%j.log"


def test_notes_are_sentences_on_what_is_not_as_it_seems() -> None:
    spec = build(
        {"exclusive": "yes", "priority": "TOP", "network": "ib", "shm": "1G", "env": "HF_TOKEN=x", "time": "90s"}
    )
    notes = "\n".join(sbatch.notes(spec))
    for word in ("--mem=0", "administrator", "InfiniBand", "/dev/shm", "--secrets HF_TOKEN", "2 min"):
        assert word in notes
    assert "default limit" in sbatch.notes(JobSpec())[0]
    harmless = build({"env": ["TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=2048", "PAD_TOKEN=0"], "time": "60s"})
    assert not any("secret" in note for note in sbatch.notes(harmless))
    key = build({"env": "MODEL_ID=hf_" + "a" * 30, "time": "60s"})
    assert any("--secrets MODEL_ID" in note for note in sbatch.notes(key))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("gpu", "gpu"),
        ("a b", "'a b'"),
        ("a#b", "'a#b'"),
        ("it's", "'it'\"'\"'s'"),
        ("a\\b", "'a\\\\b'"),
        ("ü", "'ü'"),
        ("", "''"),
    ],
)
def test_values_are_quoted_as_sbatch_reads_them(value: str, written: str) -> None:
    assert quote(value) == written


def test_options_are_read_as_sbatch_reads_them() -> None:
    assert [(option.name, option.value) for option in parse(["-N2", "--tasks-per-node=4", "--hold", "-t 1:00:00"])] == [
        ("nodes", "2"),
        ("ntasks-per-node", "4"),
        ("hold", None),
        ("time", "1:00:00"),
    ]
    with pytest.raises(SpecError, match="not an option"):
        parse(["nodes=2"])


@pytest.mark.parametrize(
    ("value", "gpus", "others"),
    [
        ("gpu", GpuRequest(1), []),
        ("gpu:2", GpuRequest(2), []),
        ("gpu:a100:4", GpuRequest(4, "a100"), []),
        ("gres/gpu:a100:4,nvme:1", GpuRequest(4, "a100"), ["nvme:1"]),
        ("nvme:1", None, ["nvme:1"]),
    ],
)
def test_gres_is_read(value: str, gpus: GpuRequest | None, others: list[str]) -> None:
    assert gres_gpus(value) == (gpus, others)


# -- the shell ------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]]:
    """Run a script as slurmd would; gives the process and the shell's records of task 3."""
    folder = tmp_path / "it's a 50%unit"
    (folder / "events" / "0").mkdir(parents=True)

    def go(spec: JobSpec, program: str = "true", *, python: str = "/bin/sh", **env: str) -> Any:
        script = text(spec, str(folder), launch=[python, "-c", program], array=sbatch.ArrayPart(2, 4))
        path = folder / "script.sh"
        path.write_text(script)
        slurm = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "1", "SLURMD_NODENAME": "n1"}
        done = subprocess.run(
            ["/bin/bash", str(path)], capture_output=True, text=True, env={**os.environ, **slurm, **env}, check=False
        )
        attempt = env.get("SLURM_RESTART_COUNT", "0")
        records = folder / "events" / attempt / "3.shell.jsonl"
        return done, [json.loads(line) for line in records.read_text().splitlines()]

    return go


def test_the_shell_leaves_a_record_of_every_end(run: Any) -> None:
    done, records = run(JobSpec(), "echo hello; exit 7")
    assert (done.returncode, done.stdout) == (7, "hello\n")
    (record,) = records
    assert (record["kind"], record["phase"], record["exit_code"], record["platform_id"], record["reason"]) == (
        "shell",
        "launch",
        7,
        "8_1",
        "",
    )


def test_a_later_attempt_has_its_own_record(run: Any) -> None:
    _, records = run(JobSpec(), "exit 0", SLURM_RESTART_COUNT="2")
    assert records[0]["exit_code"] == 0


@pytest.mark.parametrize(
    ("fields", "python", "phase", "reason"),
    [
        ({"setup": ["exit 5"]}, "/bin/sh", "setup", ""),
        ({"setup": ["set -e", "false"]}, "/bin/sh", "setup", "The setup line false failed with exit code 1."),
        (
            {"setup": ["if true; then", r'no-such-module load "a\b"', "fi"]},
            "/bin/sh",
            "setup",
            r'The setup line no-such-module load "a\b" failed with exit code 127.',
        ),
        ({"workdir": "/not \"there\" 'x'"}, "/bin/sh", "folder", "The working folder /not \"there\" 'x' is not there"),
        ({}, '/not/"there"', "interpreter", 'The interpreter /not/"there" is not there on node n1.'),
        ({}, "no-such-python", "interpreter", "The interpreter no-such-python is not there on node n1."),
    ],
)
def test_what_ends_before_python_says_why(
    run: Any, fields: dict[str, Any], python: str, phase: str, reason: str
) -> None:
    done, (record,) = run(build(fields), "echo never", python=python)
    assert done.returncode == record["exit_code"] != 0
    assert "never" not in done.stdout
    assert record["phase"] == phase
    assert record["reason"].startswith(reason)
    if reason and phase != "setup":
        assert reason.split('"')[0] in done.stderr


def test_what_may_fail_in_a_setup_line_ends_nothing(run: Any, tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("false\ngrep -q a /dev/null\ntrue\n")
    lines = [f". {tmp_path}/rc", "false || true", "[ -e /not/there ] && exit 9", "inner() { false; true; }; inner"]
    done, (record,) = run(build({"setup": lines}), "false; echo there")
    assert (done.stdout, record["phase"], record["reason"]) == ("there\n", "launch", "")


def test_variables_and_setup_lines_reach_the_program(run: Any, tmp_path: Path) -> None:
    value = "it's $HOME `id`\nsecond line"
    spec = build({"env": {"GREETING": value}, "setup": ["export MORE=1"], "workdir": str(tmp_path)})
    done, _ = run(spec, 'printf "%s|%s|%s" "$GREETING" "$MORE" "$PWD"')
    assert done.stdout == f"{value}|1|{tmp_path}"


def test_the_shell_outlives_a_supervisor_that_ends_in_good_order(run: Any) -> None:
    # As Slurm does it: the signal goes to the whole process group.
    program = "import os, signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); os.kill(os.getppid(), 15); "
    program += "os.kill(os.getpid(), 15); time.sleep(30)"
    done, (record,) = run(JobSpec(), program, python=sys.executable)
    assert done.returncode == record["exit_code"] == 3


@pytest.mark.parametrize("code", [0, 4])
def test_the_checkpoint_signal_is_passed_on(run: Any, code: int) -> None:
    # Slurm sends it to the batch shell alone.
    program = f"import os, signal, sys, time; signal.signal(10, lambda *_: (print('saved'), sys.exit({code}))); "
    program += "os.kill(os.getppid(), 10); time.sleep(30)"
    done, (record,) = run(build({"checkpoint_signal": "USR1@60"}), program, python=sys.executable)
    assert done.stdout == "saved\n"
    assert done.returncode == record["exit_code"] == code


def test_a_run_that_may_be_tried_again_is_queued_again(run: Any, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >>{shlex.quote(str(asked))}\nexit 1\n')
    (tools / "scontrol").chmod(0o755)
    events = tmp_path / "it's a 50%unit" / "events" / "0" / "3.0.jsonl"
    path = f"{tools}:{os.environ['PATH']}"
    spec = JobSpec(recovery=Recovery(attempts=2))
    for line, queued in (({"kind": "outcome", "retry": True}, True), ({"kind": "outcome"}, False)):
        asked.unlink(missing_ok=True)
        events.write_text(json.dumps({"kind": "started"}) + "\n" + json.dumps(line) + "\n")
        done, _ = run(spec, "exit 6", PATH=path)
        assert done.returncode == 6
        assert asked.exists() is queued
    events.write_text(json.dumps({"kind": "outcome", "retry": True}) + "\n")
    asked.unlink(missing_ok=True)
    done, _ = run(spec, "exit 0", PATH=path)
    assert done.returncode == 0
    assert not asked.exists()


def test_a_module_line_finds_modules_where_the_kernel_had_none() -> None:
    assert ". /etc/profile" in text(build({"setup": ["module load cuda/12.4"]}))
    assert ". /etc/profile" not in text(build({"setup": ["echo module load"]}))


def test_signals_keep_their_names() -> None:
    assert signal.Signals["SIGUSR1"].value == 10  # what the programs above send
    assert [option.name for option in directives(JobSpec())] == ["nodes", "ntasks-per-node", "no-requeue"]
