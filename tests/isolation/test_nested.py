"""A job that submits: nothing of what the outer job was told of itself reaches the inner one."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import lookup
from clusterkernel.jobroot import JobRoot
from tests.backends.platforms import Platform

LIMIT = 120.0
# What an outer job may have been told, by Slurm, an MPI or a launcher.
OF_THE_OUTER = {
    "SBATCH_COMMENT": "outer",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_NTASKS": "77",
    "SLURM_JOB_NAME": "outer",
    "SLURM_EXPORT_ENV": "NIL",
    "PMI_RANK": "6",
    "PMI2_SIZE": "7",
    "PMIX_NAMESPACE": "outer",
    "RANK": "5",
    "LOCAL_RANK": "5",
    "WORLD_SIZE": "9",
    "MASTER_ADDR": "outer",
    "TORCHELASTIC_RUN_ID": "outer",
}


def submit_one(backend: str, **fields: Any) -> tuple[dict[str, str], str, dict[str, str]]:
    """In the outer job: its environment, the inner job's id, and the inner one's environment."""

    def environment() -> dict[str, str]:
        import os

        import clusterkernel as ck

        ck.log(step=1, loss=0.5)
        return dict(os.environ)

    os.environ.update(OF_THE_OUTER)
    inner = ck.Executor(backend, **fields).submit(environment)
    return dict(os.environ), inner.id, inner.result(LIMIT)


def check(outer: dict[str, str], inner: dict[str, str], job: Any) -> None:
    assert outer["CLUSTERKERNEL_JOB"] != inner["CLUSTERKERNEL_JOB"] == job.id
    for name, value in OF_THE_OUTER.items():
        assert inner.get(name) != value, name
    for name in ("CLUSTERKERNEL_JOB_DIR", "CLUSTERKERNEL_OUT", "CLUSTERKERNEL_PLATFORM_ID"):
        assert inner[name] != outer[name]
    assert job.metrics()["rank"].tolist() == [0]


@pytest.mark.slurm
def test_a_slurm_job_submits_to_slurm(slurm: Platform, slurm_cluster: Any) -> None:
    outer, inner_id, inner = slurm.executor().submit(submit_one, "slurm", time="5m").result(LIMIT)
    job = lookup.job(inner_id, root=JobRoot())  # it went to the same job root
    check(outer, inner, job)
    assert outer["SLURM_CONF"] == inner["SLURM_CONF"] == slurm_cluster.env["SLURM_CONF"]
    assert inner["SLURM_JOB_ID"] == job.platform_id != outer["SLURM_JOB_ID"]
    assert inner["SLURM_JOB_NAME"] == job.name
    assert inner["SLURM_NTASKS"] == "1"
    assert "SLURM_CPU_BIND" not in inner
    assert not [name for name in inner if re.match(r"SBATCH_|PMI|TORCHELASTIC|RANK$|MASTER_", name)]


@pytest.mark.slurm
def test_a_rank_of_srun_submits_to_slurm(slurm: Platform) -> None:
    def ranks() -> tuple[bool, dict[str, str]]:
        import os

        import clusterkernel as ck

        if os.environ["SLURM_PROCID"] != "1":
            return False, {}
        here = any(name.startswith(("PMI", "SLURM_STEP_ID")) for name in os.environ)
        return here, ck.Executor("slurm", time="5m").submit(lambda: dict(os.environ)).result(100)

    job = slurm.executor(tasks_per_node=2).submit(ranks)
    job.result(LIMIT)
    here, inner = job.results()[1]
    assert here, "srun told its ranks something"
    assert not [name for name in inner if re.match(r"PMI|SLURM_(STEP|CPU_BIND|DISTRIBUTION|SRUN|UMASK)", name)]
    assert (inner["SLURM_NTASKS"], inner["SLURM_PROCID"]) == ("1", "0")


def test_a_local_job_submits_to_this_machine(local: Platform) -> None:
    outer, inner_id, inner = local.executor().submit(submit_one, "local").result(LIMIT)
    job = lookup.job(inner_id)
    check(outer, inner, job)
    assert not [name for name in inner if re.match(r"SLURM_|SBATCH_|PMI|TORCHELASTIC|RANK$|WORLD_SIZE|MASTER_", name)]


@pytest.mark.slurm
def test_a_slurm_job_submits_to_its_own_node(slurm: Platform, slurm_cluster: Any) -> None:
    outer, inner_id, inner = slurm.executor().submit(submit_one, "local").result(LIMIT)
    assert [name for name in inner if name.startswith("SLURM_")] == ["SLURM_CONF"]
    assert inner["SLURM_CONF"] == slurm_cluster.env["SLURM_CONF"]
    check(outer, inner, lookup.job(inner_id))
    assert Path(inner["CLUSTERKERNEL_JOB_DIR"]).parent == JobRoot().path
