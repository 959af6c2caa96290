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
    shared : Path
        A folder that the jobs see, too.
    script : str
        How the text begins that is sent.
    own_folder : bool
        Whether the job works in the job folder itself, and not in a copy of it.
    fields : dict
        What every job must ask for there (an account, a partition).
    """

    def __init__(
        self, backend: str, shared: Path, *, script: str = "#!/bin/bash", own_folder: bool = True, **fields: Any
    ) -> None:
        self.backend = backend
        self.shared = shared
        self.script = script
        self.own_folder = own_folder
        self.fields = fields

    def executor(self, **wanted: Any) -> ck.Executor:
        """An executor with what the platform requires."""
        return ck.Executor(self.backend, **{**self.fields, **wanted})


def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Platform:
    monkeypatch.chdir(tmp_path)
    return Platform("local", tmp_path)


def modal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Platform:
    """The stand-in's containers are processes of this machine: they see the test's folder, and a copy of the job."""
    monkeypatch.chdir(tmp_path)
    return Platform("modal", tmp_path, script='"""Job 1', own_folder=False, time="5m")


def slurm(env: Mapping[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Platform:
    """A folder of the test's own on the cluster's share, with the job root in it."""
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(folder / "jobs"))
    monkeypatch.chdir(folder)
    return Platform("slurm", folder, time="5m", **fields)
