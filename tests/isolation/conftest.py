"""Slurm and kernels for these tests; the kernels are those of tests/kernel."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterkernel import submission
from tests.backends import platforms
from tests.kernel.conftest import ipykernel6, kernel, new_kernel

__all__ = ["ipykernel6", "kernel", "new_kernel"]


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> platforms.Platform:
    """This machine."""
    return platforms.local(monkeypatch, tmp_path)


@pytest.fixture
def slurm(slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[platforms.Platform]:
    """The cluster with accounting, with a folder of the test's own on its share."""
    folder = Path(slurm_cluster.shared) / f"isolation-{uuid.uuid4().hex[:8]}"
    yield platforms.slurm(slurm_cluster.env, folder, monkeypatch)
    ids = [view.platform_id for view in submission.summaries(settle=0.0) if not view.state.terminal]
    if any(ids):
        slurm_cluster.run("scancel", *filter(None, ids), check=False)
