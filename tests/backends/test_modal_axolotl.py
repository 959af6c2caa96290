"""An axolotl run on Modal: data taken along, preprocessed without GPUs, trained with them, in two containers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.states import JobState

from ..clusters.modal import ModalServer
from . import platforms

LIMIT = 90.0
CONFIG = """\
base_model: tiny/model
datasets:
  - path: data.jsonl
    type: alpaca
deepspeed: zero.json
output_dir: ./out
"""
# Does what is needed to see which step ran where, and from which files.
AXOLOTL = """\
#!/usr/bin/env python3
import json, os, pathlib, sys, time
step, log = sys.argv[1], pathlib.Path(os.environ["SEEN"])
prepared = pathlib.Path("last_run_prepared/data.arrow")
with open(log, "a") as file:
    file.write(json.dumps({"step": step, "cwd": os.getcwd(), "argv": sys.argv[2:], "task": os.environ["MODAL_TASK_ID"],
                           "side": pathlib.Path("zero.json").exists(), "prepared": prepared.exists()}) + "\\n")
if step == "preprocess":
    prepared.parent.mkdir()
    prepared.write_text(pathlib.Path("data.jsonl").read_text().upper())
    sys.exit(int(os.environ.get("BAD_DATA", "0")))
if (out := os.environ.get("OUT")) and step == "train":
    text = pathlib.Path(sys.argv[2]).read_text()
    with open(log, "a") as file:
        file.write(json.dumps({"step": "resume", "config": text}) + "\\n")
    kept = pathlib.Path(out, "checkpoint-10")
    if not kept.exists():
        kept.mkdir()
        kept.joinpath("trainer_state.json").write_text('{"global_step": 10}')
        pathlib.Path(out, "checkpoint-20").mkdir()  # it was killed while it wrote this one
        sys.exit("killed")
if "flaky" in os.environ.get("HOW", "") and log.read_text().count('"step": "train"') == 1:
    sys.exit("out of luck")
print("training on", prepared.read_text().strip(), flush=True)
print("{'loss': 0.5, 'epoch': 1.0, 'step': 1}", flush=True)
"""


@pytest.fixture
def platform(modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> platforms.Platform:
    tool = tmp_path / "bin" / "axolotl"
    tool.parent.mkdir()
    tool.write_text(AXOLOTL)
    tool.chmod(0o755)
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.yaml").write_text(CONFIG)
    (project / "data.jsonl").write_text("an example\n")
    (project / "zero.json").write_text("{}")
    made = platforms.modal(monkeypatch, tmp_path)
    monkeypatch.chdir(project)
    made.fields |= {"gpus_per_node": "h100:2"}
    return made


def env(platform: platforms.Platform, **more: str) -> dict[str, str]:
    path = f"{platform.shared / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "SEEN": str(platform.shared / "seen"), **more}


def seen(platform: platforms.Platform) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (platform.shared / "seen").read_text().splitlines()]


def away(platform: platforms.Platform) -> None:
    """As on Modal: the folder of the notebook is not there."""
    (platform.shared / "project").rename(platform.shared / "elsewhere")


def test_preprocess_and_train_are_two_containers(
    platform: platforms.Platform, modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = platform.executor(env=env(platform)).train("train.yaml")
    monkeypatch.chdir(platform.shared)
    away(platform)
    assert job.wait(LIMIT) is JobState.SUCCEEDED, job.logs()
    first, second = seen(platform)
    assert [first["step"], second["step"]] == ["preprocess", "train"]
    assert first["task"] != second["task"]
    assert first["side"]
    assert second["side"]
    assert second["prepared"]
    assert "training on AN EXAMPLE" in job.logs()
    assert list(job.metrics()["loss"].dropna()) == [0.5]
    declared = [text for text in modal_server.ask()["functions"] if job.record.key in text]
    assert sorted("gpu_type" in text for text in declared) == [False, True]
    assert "axolotlai/axolotl" in job.script


def test_two_nodes_train_on_what_one_prepared(platform: platforms.Platform) -> None:
    platform.fields |= {"gpus_per_node": "h100:8", "nodes": 2}
    job = platform.executor(env=env(platform)).train("train.yaml")
    assert job.wait(LIMIT) is JobState.SUCCEEDED, job.logs()
    first, *others = seen(platform)
    assert first["step"] == "preprocess"
    assert [one["step"] for one in others] == ["train", "train"]
    assert all(one["prepared"] for one in others)
    ranks = [argv[argv.index("--") + 1 :] for one in others if (argv := one["argv"])]
    assert sorted(next(word for word in words if "node_rank" in word)[-1] for words in ranks) == ["0", "1"]


def test_data_that_cannot_be_prepared_asks_for_no_gpu(platform: platforms.Platform, modal_server: ModalServer) -> None:
    job = platform.executor(env=env(platform, BAD_DATA="3")).train("train.yaml")
    assert job.wait(LIMIT) is JobState.FAILED
    assert "3" in job.reason
    assert [one["step"] for one in seen(platform)] == ["preprocess"]


def test_training_that_fails_is_tried_again_without_preprocessing(platform: platforms.Platform) -> None:
    job = platform.executor(env=env(platform, HOW="flaky"), attempts=2).train("train.yaml")
    assert job.wait(LIMIT) is JobState.SUCCEEDED, job.logs()
    assert [one["step"] for one in seen(platform)] == ["preprocess", "train", "train"]


def test_a_retry_goes_on_from_the_checkpoint_that_the_job_left_on_a_volume(platform: platforms.Platform) -> None:
    mount = platform.shared / "kept"
    volume = f"ck-resume-{os.getpid()}:{mount}"
    options = {"volumes": [volume], "modal": ["--create-volumes=true"]}
    # Of an earlier run, which is not gone on with.
    old = platform.executor(tasks_per_node=1, **options).submit(
        lambda: [
            (mount / "checkpoint-99").mkdir(),
            (mount / "checkpoint-99" / "trainer_state.json").write_text("{}"),
        ]
    )
    old.result(LIMIT)
    config = Path("train.yaml")
    config.write_text(CONFIG.replace("./out", str(mount)) + "resume_from_checkpoint: null\n")
    job = platform.executor(env=env(platform, OUT=str(mount)), attempts=2, **options).train("train.yaml")
    assert job.wait(LIMIT) is JobState.SUCCEEDED, job.logs()
    first, second = (one["config"] for one in seen(platform) if one["step"] == "resume")
    resumed = [line for line in second.splitlines() if "resume" in line]
    assert [line for line in first.splitlines() if "resume" in line] == ["resume_from_checkpoint: null"]
    assert resumed == [f'resume_from_checkpoint: "{mount}/checkpoint-10"']
    assert [one["step"] for one in seen(platform) if one["step"] != "resume"] == ["preprocess", "train", "train"]
