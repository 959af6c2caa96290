"""The contract suite once more, on the strict cluster, as the ordinary user that it belongs to.

There accounts are mandatory, ``--mem`` is refused, and the head sees late what
a node wrote.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

SUITE = Path(__file__).with_name("test_contract.py")


@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_contract_on_the_strict_cluster(slurm_strict: Any) -> None:
    """Run it in processes of that user; its report is shown where it fails."""
    shared = slurm_strict.home / "contract"
    slurm_strict.run_as_user(["mkdir", "-m", "700", "-p", str(shared)])
    done = slurm_strict.run_as_user(
        [
            *(sys.executable, "-m", "pytest", str(SUITE), "-q", "-p", "no:cacheprovider", "--timeout=300"),
            *("--rootdir", str(SUITE.parents[2]), "-n", "4", f"--basetemp={shared / 'tmp'}"),
        ],
        env={
            "CLUSTERKERNEL_TEST_PLATFORM": str(shared),
            "CLUSTERKERNEL_TEST_SLURM_CONF": slurm_strict.env["SLURM_CONF"],
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd=SUITE.parents[2],
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
