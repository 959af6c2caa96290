"""Clusters to break, and the table of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clusters.cluster import SlurmCluster
from tests.clusters.fixtures import own_clusters

MEASURED = "seconds until the end was known"


@pytest.fixture(scope="module")
def slurm_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., SlurmCluster]]:
    """As `slurm_own`, for all tests of a module."""
    with own_clusters(tmp_path_factory) as make:
        yield make


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the measured times, one line a death and one column a platform."""
    rows: dict[str, dict[str, float]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == MEASURED and report.when == "call":
                    case, kind, seconds = value
                    rows.setdefault(case, {})[kind] = seconds
    if not rows:
        return
    kinds = [kind for kind in ("on", "off", "purged", "local") if any(kind in row for row in rows.values())]
    terminalreporter.section(f"{MEASURED} (accounting on, off, purged; local backend)")
    terminalreporter.write_line(f"{'':26}" + "".join(f"{kind:>9}" for kind in kinds))
    for case, row in rows.items():
        cells = (f"{row[kind]:9.2f}" if kind in row else f"{'':9}" for kind in kinds)
        terminalreporter.write_line(f"{case:26}" + "".join(cells))
