"""Platforms whose jobs are found again, and kernels to kill; the real ones are those of tests/kernel."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkernel import submission
from tests.backends import platforms
from tests.kernel.conftest import ipykernel6, kernel, new_kernel

from .plain import PlainKernel

__all__ = ["ipykernel6", "kernel", "new_kernel"]


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def platform(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[platforms.Platform]:
    """Where jobs run."""
    if request.param == "local":
        monkeypatch.setenv("CLUSTERKERNEL_LOCAL_SLOTS", "8")
        yield platforms.local(monkeypatch, tmp_path)
        cancel_all()
        return
    yield request.getfixturevalue("slurm")


@pytest.fixture
def slurm(slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[platforms.Platform]:
    """The cluster with accounting, with a folder of the test's own on its share."""
    folder = Path(slurm_cluster.shared) / f"reconnect-{uuid.uuid4().hex[:8]}"
    yield platforms.slurm(slurm_cluster.env, folder, monkeypatch)
    cancel_all()


def cancel_all() -> None:
    """What a test that failed has left."""
    from clusterkernel import lookup

    for view in submission.summaries(settle=0.0):
        if not view.state.terminal:
            lookup.job(view.id).cancel()


@pytest.fixture
def plain_kernel() -> Iterator[Callable[..., PlainKernel]]:
    """Starts processes that hold jobs, and can be killed."""
    started: list[PlainKernel] = []

    def start(code: str, *arguments: str, **env: str) -> PlainKernel:
        started.append(PlainKernel(code, *arguments, **env))
        return started[-1]

    yield start
    for one in started:
        one.close()
