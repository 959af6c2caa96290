"""What loading costs a notebook."""

from __future__ import annotations

import compileall
import subprocess
import sys
from pathlib import Path

import clusterkernel

from .rows import Row, alternate

_BARE = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
began = time.perf_counter()
{what}
print(time.perf_counter() - began)
"""


def _measure(what: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _BARE.format(what=what)], capture_output=True, text=True, check=True, timeout=60
    )
    return float(done.stdout.split()[-1])


def load_extension(_: Path) -> Row:
    """``%load_ext clusterkernel`` in a fresh IPython, beside one that loads nothing."""
    # As pip leaves it; an editable install compiles what it runs, and nothing where no bytecode is written.
    compileall.compile_dir(str(Path(clusterkernel.__file__).parent), quiet=1)
    values = alternate(
        9,
        ours=lambda: _measure("shell.run_line_magic('load_ext', 'clusterkernel')"),
        bare=lambda: _measure("shell.run_cell('None')"),
    )
    return Row(
        name="%load_ext clusterkernel, over bare IPython",
        unit="ms",
        ours=values["ours"],
        beside={"a cell that does nothing": values["bare"]},
        limit=lambda others: 0.060 + others["a cell that does nothing"],
        limit_text="60 ms over bare IPython",
    )
