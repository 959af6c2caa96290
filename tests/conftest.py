"""What every test starts from: folders of its own, and the marks that keep shared services on one worker."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest_plugins = [name for name in ["tests.clusters.fixtures"] if importlib.util.find_spec(name)]

# Each of these marks stands for something that is started once: its tests go to one xdist worker.
SERVICES = ("slurm", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for name in SERVICES:
            if item.get_closest_marker(name) and not item.get_closest_marker("xdist_group"):
                item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep a test off the person's jobs, profiles, ledger and Jupyter settings; gives the folder that has them all."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(home / "jobs"))
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(home / name.lower()))
    for name in ("CLUSTERKERNEL_INTERACTIVE", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    return home
