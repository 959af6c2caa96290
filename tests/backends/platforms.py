"""The platforms that the contract suite runs on, and how a test asks for one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck

__all__ = ["Platform"]


class Platform:
    """One backend as the suite uses it.

    Parameters
    ----------
    backend : str
        Its name.
    fields : dict
        What every job must ask for there (an account, a partition).
    """

    def __init__(self, backend: str, shared: Path, **fields: Any) -> None:
        self.backend = backend
        self.shared = shared
        self.fields = fields

    def executor(self, **wanted: Any) -> ck.Executor:
        """An executor with what the platform requires."""
        return ck.Executor(self.backend, **{**self.fields, **wanted})


def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Platform:
    monkeypatch.chdir(tmp_path)
    return Platform("local", tmp_path)


def slurm(env: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Platform:
    """A folder of the test's own on the cluster's share, with the job root in it."""
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(folder / "jobs"))
    monkeypatch.chdir(folder)
    return Platform("slurm", folder, time="5m", **fields)
