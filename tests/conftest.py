"""What every test starts from: folders of its own, none of them the person's."""

from __future__ import annotations

import signal
from pathlib import Path

import hypothesis
import pytest

# How fast a machine is says nothing of what is tested.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")

# What a shell starts in the background ignores Ctrl-C, and so does all that it starts: kernels would not hear of it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.clusters.fixtures", "tests.clusters.modal"]

FOLDERS = {
    "CLUSTERKERNEL_JOB_ROOT": "jobs",
    "CLUSTERKERNEL_LOCAL_DIR": "local",
    "IPYTHONDIR": "ipython",
    "JUPYTER_CONFIG_DIR": "jupyter/config",
    "JUPYTER_DATA_DIR": "jupyter/data",
    "JUPYTER_RUNTIME_DIR": "jupyter/runtime",
    "XDG_CACHE_HOME": "cache",
    "XDG_CONFIG_HOME": "config",
    "XDG_DATA_HOME": "data",
    "XDG_STATE_HOME": "state",
}
# What would make a test behave otherwise on one machine than on another.
UNSET = (
    "CLUSTERKERNEL_INTERACTIVE",
    "CLUSTERKERNEL_PROFILES",
    "MODAL_PROFILE",
    "MODAL_SERVER_URL",
    "MODAL_TOKEN_ID",
    "MODAL_TOKEN_SECRET",
    "SLURM_CONF",
)


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep a test off the person's jobs, profiles, ledger and Jupyter settings; gives the folder that has them all."""
    home = tmp_path_factory.mktemp("home")
    for name, folder in FOLDERS.items():
        monkeypatch.setenv(name, str(home / folder))
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    return home
