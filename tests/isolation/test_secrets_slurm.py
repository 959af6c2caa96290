"""A secret's value on a real Slurm: in the job's environment, and nowhere else."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import secretstore, submission
from clusterkernel.states import JobState
from tests.backends.platforms import Platform
from tests.unit.making import until

from . import planted

pytestmark = pytest.mark.slurm
LIMIT = 60.0


@pytest.fixture
def store(slurm: Platform, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store that the nodes see."""
    path = slurm.shared / "keep" / "secrets.json"
    monkeypatch.setenv("CLUSTERKERNEL_SECRETS", str(path))
    return path


def wait_and_tell(gate: str) -> str:
    import time
    from pathlib import Path

    print("here", flush=True)
    while not Path(gate).exists():
        time.sleep(0.02)
    return hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest()


def fail() -> None:
    assert os.environ["HF_TOKEN"]
    raise ValueError("of its own")


def everything_slurm_says(cluster: Any, job: str) -> str:
    """What a person, or an administrator, can ask of a job."""
    said = [
        cluster.run("scontrol", "-dd", "show", "job", job),
        cluster.run("scontrol", "write", "batch_script", job, "-", check=False),
        cluster.run("scontrol", "-dd", "show", "step", job, check=False),
        cluster.run("squeue", "-h", "-t", "all", "-j", job, "-O", "All:200", check=False),
    ]
    said += [cluster.run("sacct", "-j", job, *options) for options in (("-B",), ("--env-vars",), ("-P", "-o", "All"))]
    return "\n".join(said)


def test_the_value_is_in_the_job_s_environment_and_nowhere_else(
    slurm: Platform, slurm_cluster: Any, own_folders: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, control = planted.new(), planted.new("control")
    # In the kernel's own environment too, as after `huggingface-cli login` in many shells.
    for name in ("HF_TOKEN", "MY_THING"):
        monkeypatch.setenv(name, value)
    secretstore.save("HF_TOKEN", value)
    gates = [slurm.shared / name for name in ("one", "many")]
    with planted.commands_that_show(value) as shown:
        one = slurm.executor(secrets="HF_TOKEN", env={"GIVEN": control}).submit(wait_and_tell, str(gates[0]))
        many = slurm.executor(secrets="HF_TOKEN", tasks_per_node=2).submit(wait_and_tell, str(gates[1]))
        failed = slurm.executor(secrets="HF_TOKEN").submit(fail)
        # A command with the name of its variable on its line: no shell of ours puts the value there.
        command = slurm.executor(secrets="HF_TOKEN").run([sys.executable, "-c", "import os; os.environ['HF_TOKEN']"])
        for job in (one, many):
            assert "here" in next(job.follow(), ""), (job.state, job.reason)
        ids = [str(job.platform_id) for job in (one, many)]
        while_running = [everything_slurm_says(slurm_cluster, job) for job in ids]
        places = [slurm_cluster.folder / name for name in ("spool", "ctld", "log")]
        kept = planted.files_with([value], *places, one.folder.path, many.folder.path)
        for gate in gates:
            gate.touch()
        digest = hashlib.sha256(value.encode()).hexdigest()
        assert one.result(LIMIT) == digest
        many.result(LIMIT)
        assert many.results() == [digest, digest]
        error = failed.exception(LIMIT)
        assert command.wait(LIMIT) is JobState.SUCCEEDED
    assert kept == []
    assert not shown
    jobs = [one, many, failed, command]
    stored = f"HOME={os.environ['HOME']}"
    for job in jobs:
        options = ("-j", str(job.platform_id), "--env-vars")
        until(lambda options=options: stored in slurm_cluster.run("sacct", *options), "the stored environment")
    said = while_running + [everything_slurm_says(slurm_cluster, str(job.platform_id)) for job in jobs]
    assert control in said[0], "what is given with --env is to be seen, so that this looks in the right places"
    assert stored in said[-1], "and the stored environment is shown"
    for text in [*said, *map(repr, submission.summaries())]:
        assert value not in text
    for job in jobs:
        assert value not in repr(job.summary()) + job.logs() + job.script
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, ck.ClusterKernelError)
    assert value not in repr(error) + str(error.__cause__) + str(vars(error.__cause__))
    found = planted.files_with([value], slurm_cluster.folder, own_folders)
    assert found == [str(store)], "the controller's state, the database, the spool folders and the logs among them"
    for place in ("ctld", "db"):
        assert planted.files_with([control], slurm_cluster.folder / place), "so the look into them finds something"


def test_a_node_that_does_not_see_the_store_says_so(slurm: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only /tmp/pytest-of-... is shared with the nodes; /var/tmp is each node's own.
    path = Path("/var/tmp") / f"keep-{os.getpid()}" / "secrets.json"
    monkeypatch.setenv("CLUSTERKERNEL_SECRETS", str(path))
    secretstore.save("HF_TOKEN", "one")
    try:
        job = slurm.executor(secrets="HF_TOKEN").submit(fail)
        assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
        assert f"The secrets in {path} cannot be read on" in job.reason
        assert "No such file" in job.reason
    finally:
        path.unlink()
        path.parent.rmdir()
