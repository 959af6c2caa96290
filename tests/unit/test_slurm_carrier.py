"""submitit's private seams, and what goes through them to an `sbatch` that is a program of the test's own.

Fails where a submitit that we allow would no longer do what the Slurm backend takes from it.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.backends.slurm import carrier
from clusterkernel.backends.slurm.commands import LocalTransport
from clusterkernel.backends.slurm.records import SEPARATOR
from clusterkernel.backends.slurm.submit import Submitter
from clusterkernel.errors import BackendUnavailable, SubmissionError
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, PayloadSummary
from clusterkernel.spec import JobSpec

RECORDER = """#!{python}
import json, os, sys
seen = {{"argv": sys.argv[1:], "env": dict(os.environ), "script": open(sys.argv[-1]).read()}}
with open({log!r}, "a") as file:
    file.write(json.dumps(seen) + "\\n")
answers = open({answers!r}).read().split("\\0")
sys.stdout.write(answers[0])
sys.stderr.write(answers[1])
sys.exit(int(answers[2]))
"""


class Sbatch:
    """The program: what it answers, and what it saw."""

    def __init__(self, folder: Path) -> None:
        self._answers = folder / "answers"
        self._log = folder / "log"
        self.answer("Submitted batch job 42\n")
        for name in ("sbatch", "srun"):
            path = folder / name
            path.write_text(RECORDER.format(python=sys.executable, log=str(self._log), answers=str(self._answers)))
            path.chmod(0o755)

    def answer(self, out: str, err: str = "", code: int = 0) -> None:
        self._answers.write_text(f"{out}\0{err}\0{code}")

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []


@pytest.fixture
def sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sbatch:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Sbatch(folder)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., JobFolder]:
    root = JobRoot(tmp_path / "50%job's")

    def make(**fields: Any) -> JobFolder:
        def record(job_id: str, key: str) -> JobRecord:
            return JobRecord(
                id=job_id,
                key=key,
                name="try",
                created=0.0,
                host="head",
                user="me",
                spec=JobSpec(backend="slurm", **fields),
                payload=PayloadSummary(kind="command"),
            )

        return root.create(record, lambda path: None)

    return make


def test_the_seams_are_where_we_take_hold() -> None:
    from submitit.core.core import Job, PicklingExecutor
    from submitit.slurm.slurm import SlurmExecutor

    assert list(inspect.signature(PicklingExecutor._submit_command).parameters) == ["self", "command"]
    assert list(inspect.signature(SlurmExecutor._make_submission_file_text).parameters) == ["self", "command", "uid"]
    assert list(inspect.signature(SlurmExecutor._make_submission_command).parameters) == [
        "self",
        "submission_file_path",
    ]
    assert isinstance(inspect.getattr_static(SlurmExecutor, "_submitit_command_str"), property)
    assert callable(SlurmExecutor._get_job_id_from_submission_command)
    assert callable(Job._register_in_watcher)
    ours = carrier.executor_class()
    assert issubclass(ours, SlurmExecutor)
    assert issubclass(ours.job_class, Job)


def test_one_script_goes_through_and_the_id_comes_back(
    sbatch: Sbatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from submitit.core import core

    def forbidden(seconds: float) -> None:
        raise AssertionError("submitit's own throttle is on")

    monkeypatch.setattr(core._time, "sleep", forbidden)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    launch = ["/a b/python", "-u", "it's"]
    seen: list[list[str]] = []
    path = tmp_path / "script.sh"

    def compose(words: Any) -> str:
        seen.append(list(words))
        path.write_text("#!/bin/bash\ntrue\n")
        return path.read_text()

    sbatch.answer("a word of the site's\nSubmitted batch job 42 on cluster east\n")
    for _ in range(2):
        sent = carrier.send(launch, compose, ["sbatch", str(path)])
        assert (sent.job, sent.cluster) == ("42", "east")
        assert "a word of the site's" in sent.said
    assert seen == [launch] * 2
    assert [call["argv"] for call in sbatch.calls] == [[str(path)]] * 2
    assert sorted(item.name for item in tmp_path.iterdir()) == ["bin", "script.sh"]  # submitit's own files are gone


@pytest.mark.parametrize(
    ("answer", "said", "code"),
    [
        (("", "sbatch: error: invalid partition specified: x\n", 1), "invalid partition", 1),
        (("job 7 is not submitted\n", "", 0), "job 7 is not submitted", 0),
        (("", "", 0), "", 0),
    ],
)
def test_no_id_means_refused_and_nothing_is_printed(
    sbatch: Sbatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    answer: tuple[str, str, int],
    said: str,
    code: int,
) -> None:
    path = tmp_path / "script.sh"
    path.write_text("#!/bin/bash\n")
    sbatch.answer(*answer)
    with pytest.raises(carrier.Refused) as caught:
        carrier.send(["python"], lambda words: "", LocalTransport().submission(["sbatch", str(path)]))
    assert said in caught.value.said
    assert caught.value.code == code
    assert capfd.readouterr() == ("", "")


def test_a_submission_leaves_the_text_that_was_sent_and_no_secret(
    sbatch: Sbatch, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/the/conf")
    folder = job()
    submission = Submitter(LocalTransport()).submit(folder)
    assert submission.platform_ids == (("42", 0, 1),)
    (call,) = sbatch.calls
    assert call["argv"] == [str(folder.script)]
    assert call["script"] == folder.script.read_text()
    assert call["env"]["SLURM_CONF"] == "/the/conf"
    assert "SLURM_JOB_ID" not in call["env"]
    assert "planted" not in json.dumps(call)
    assert f"clusterkernel:{folder.record.key}:0:1" in call["script"]
    assert f"supervise {shlex.quote(str(folder.path))}" in call["script"]
    assert "--output='" in call["script"]
    assert "50%%job" in call["script"]
    assert not (folder.path.parent / "5042ob's").exists()  # submitit would take %j for the job's id


def test_what_sbatch_says_becomes_the_error(sbatch: Sbatch, job: Any) -> None:
    submitter = Submitter(LocalTransport())
    sbatch.answer("", "sbatch: error: Batch job submission failed: Invalid qos specification\n", 1)
    with pytest.raises(SubmissionError, match="Slurm refused the job: Invalid qos specification"):
        submitter.submit(job())
    sbatch.answer("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", 1)
    with pytest.raises(BackendUnavailable, match="Socket timed out") as caught:
        submitter.submit(job())
    assert "by its key" in caught.value.hint
    sbatch.answer("The job was handed on.\n")  # a wrapper of the site's, maybe: it may have sent the job
    with pytest.raises(BackendUnavailable, match=r"The job was handed on\."):
        submitter.submit(job())


def test_a_job_that_was_tried_is_looked_for_before_it_is_sent_again(sbatch: Sbatch, job: Any, tmp_path: Path) -> None:
    submitter, folder = Submitter(LocalTransport()), job()
    sbatch.answer("", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n", 1)
    with pytest.raises(BackendUnavailable):
        submitter.submit(folder)
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    squeue.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="Unable to contact"):
        submitter.submit(folder)
    assert len(sbatch.calls) == 1  # not sent blindly
    row = SEPARATOR.join(("77", "77", "N/A", "PENDING", "Priority", "", f"clusterkernel:{folder.record.key}:0:1", ""))
    squeue.write_text(f"#!/bin/sh\necho '{row}'\n")
    assert submitter.submit(folder).platform_ids == (("77", 0, 1),)
    squeue.write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "sacct").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "sacct").chmod(0o755)
    sbatch.answer("Submitted batch job 78\n")
    assert submitter.submit(folder).platform_ids == (("78", 0, 1),)


def test_a_machine_without_sbatch_is_told_so(
    sbatch: Sbatch, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "sbatch").unlink()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{tmp_path / 'tools'}")
    (tmp_path / "tools").mkdir()
    for name in ("env", "sh", "setsid"):
        (tmp_path / "tools" / name).symlink_to(f"/usr/bin/{name}")
    with pytest.raises(BackendUnavailable, match="sbatch is not on PATH"):
        Submitter(LocalTransport()).submit(job())
