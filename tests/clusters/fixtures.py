"""Pytest fixtures: real Slurm clusters, started when a test first asks and stopped at the end of the run.

Load it as a plugin from the top conftest (``pytest_plugins = ("tests.clusters.fixtures",)``, or import the names).
Under pytest-xdist all workers share one cluster of each kind: the first to ask starts it under a lock, and the
controlling process, which outlives the workers, stops it. What a killed run left is stopped by the next one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .cluster import Options, SlurmCluster
from .procs import ClusterError, alive

_RUN = "CLUSTERKERNEL_TEST_RUN"
_BASE = Path("/tmp")  # short, for unix sockets, and open to the ordinary user of a strict cluster
_KINDS = {
    "full": Options(),
    "bare": Options(accounting=False),
    "strict": Options(strict=True, lag=3.0),
}


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; with the pid it names a process for good."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19]
    except OSError:
        return ""


def _folder(kind: str) -> Path:
    return _BASE / f"ck-{os.environ[_RUN]}-{kind}"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(f"{folder}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(folder: Path) -> None:
    """Stop a cluster and delete its files."""
    with _locked(folder):
        if folder.exists():
            SlurmCluster(folder).down()
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                if (place := line.split()[4]).startswith(f"{folder}/"):
                    subprocess.run(["umount", "-l", place], check=False)
            shutil.rmtree(folder)
    Path(f"{folder}.lock").unlink(missing_ok=True)


def _reap() -> None:
    """Stop the clusters of runs that were killed."""
    for folder in _BASE.glob("ck-*-*-*"):
        match = re.fullmatch(r"ck-(\d+)-(\d+)-\w+", folder.name)
        if match and folder.is_dir() and not (alive(int(match[1])) and _started(int(match[1])) == match[2]):
            _remove(folder)


def pytest_configure(config: pytest.Config) -> None:
    """Name this run, in the controlling process; the workers inherit the name."""
    if not hasattr(config, "workerinput"):
        os.environ[_RUN] = f"{os.getpid()}-{_started(os.getpid())}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop this run's clusters, in the controlling process, after the last worker."""
    if not hasattr(config, "workerinput") and _RUN in os.environ and os.geteuid() == 0:
        for folder in _BASE.glob(f"ck-{os.environ[_RUN]}-*"):
            if folder.is_dir():
                _remove(folder)


def _temporary(factory: pytest.TempPathFactory) -> str:
    """The folder above every tmp_path of this user, which the nodes shall see, too."""
    base = factory.getbasetemp()
    roots = [above for above in base.parents if above.name.startswith("pytest-of-")]
    return str(roots[0] if roots else base.parent if base.name.startswith("popen-") else base)


def _shared_cluster(kind: str, factory: pytest.TempPathFactory) -> SlurmCluster:
    folder = _folder(kind)
    wanted = replace(_KINDS[kind], shared=(_temporary(factory),))
    ready = folder / "ready"
    if os.geteuid() != 0:
        pytest.fail("slurm: the test Slurm needs root: run the tests as root or with sudo", pytrace=False)
    try:
        with _locked(folder):
            # Only the first of the workers starts it: a second `up` would mend what a test is breaking on purpose.
            if not ready.exists():
                _reap()
                SlurmCluster(folder, wanted).up()
                ready.touch()
        return SlurmCluster(folder)
    except ClusterError as error:
        problem = str(error)
    # outside the handler, so that pytest shows one line and no chain
    pytest.fail(f"slurm: {problem}", pytrace=False)


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> SlurmCluster:
    """The cluster with accounting, shared by all tests and workers."""
    return _shared_cluster("full", tmp_path_factory)


@pytest.fixture(scope="session")
def slurm_bare(tmp_path_factory: pytest.TempPathFactory) -> SlurmCluster:
    """The cluster without accounting, shared by all tests and workers."""
    return _shared_cluster("bare", tmp_path_factory)


@pytest.fixture(scope="session")
def slurm_strict(tmp_path_factory: pytest.TempPathFactory) -> SlurmCluster:
    """The strict cluster, shared by all tests and workers: accounts, an ordinary user, no --mem, a late share."""
    return _shared_cluster("strict", tmp_path_factory)


@contextmanager
def own_clusters(factory: pytest.TempPathFactory) -> Iterator[Callable[..., SlurmCluster]]:
    """A maker of clusters that end with the context; its keywords are those of Options.

    `prepare` is called with the folder of the cluster before it starts: what is mounted there, all nodes see.
    """
    made: list[Path] = []

    def make(*, prepare: Callable[[Path], None] = lambda _: None, **options: Any) -> SlurmCluster:
        options["shared"] = (_temporary(factory), *options.get("shared", ()))
        made.append(folder := Path(tempfile.mkdtemp(prefix=f"ck-{os.environ[_RUN]}-own", dir=_BASE)))
        prepare(folder)
        try:
            return SlurmCluster(folder, Options(**options)).up()
        except ClusterError as error:
            pytest.fail(f"slurm: {error}", pytrace=False)

    try:
        yield make
    finally:
        with ThreadPoolExecutor(max(1, len(made))) as pool:
            list(pool.map(_remove, made))


@pytest.fixture
def slurm_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., SlurmCluster]]:
    """A maker of clusters of the test's own, to break; its keywords are those of Options."""
    with own_clusters(tmp_path_factory) as make:
        yield make
