"""``python -m tests.bench``: the overheads, each beside a floor or a peer in the same run.

Absolute seconds tell of this machine; the ratios are what is promised.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.clusters.cluster import Options, SlurmCluster

from . import convert, deaths, notebook, slurm
from .rows import Row, load

ROWS: dict[str, Callable[[Path], Row | deaths.Table]] = {
    "load": notebook.load_extension,
    "submit": slurm.submit,
    "result": slurm.result,
    "array": slurm.array,
    "deaths": deaths.deaths,
    "convert": convert.one,
    "convert-many": convert.many,
}
# Those that need no cluster, or have their own.
ALONE = {"load", "deaths", "convert", "convert-many"}


def main() -> int:
    """Run the rows that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="which rows; default: all")
    wanted = parser.parse_args().rows or list(ROWS)
    print(f"clusterkernel bench: {load()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ck-bench-") as name:
        folder = Path(name)
        os.environ["CLUSTERKERNEL_LOCAL_DIR"] = str(folder / "local")
        cluster = None
        if set(wanted) - ALONE:
            cluster = SlurmCluster(folder / "cluster", Options()).up()
            os.environ.update(cluster.env)
            os.environ["CLUSTERKERNEL_JOB_ROOT"] = str(cluster.shared / "jobs")
            os.chdir(cluster.shared)
        try:
            for row in wanted:
                print("\n" + ROWS[row](folder if cluster is None else cluster.shared).text(), flush=True)
        finally:
            os.chdir("/")
            if cluster is not None:
                cluster.down()
    print(f"\nafterwards: {load()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
