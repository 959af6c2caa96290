"""IPython in a terminal: the same magics, as plain text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kernel.conftest import CEILING, REPOSITORY


def session(folder: Path, *cells: str) -> str:
    """What a person sees who types these cells."""
    program = (
        "import sys\n"
        "from IPython.terminal.interactiveshell import TerminalInteractiveShell\n"
        "shell = TerminalInteractiveShell.instance(simple_prompt=True, colors='NoColor')\n"
        "for cell in sys.argv[1:]:\n"
        "    shell.run_cell(cell, store_history=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, "%load_ext clusterkernel", *cells],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=CEILING,
        check=True,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def test_a_cell_runs_and_its_name_comes_back(tmp_path: Path) -> None:
    text = session(tmp_path, "%%cluster_train -o total --as job\ntotal = 42", "_ = job.wait()", "print('total', total)")
    assert text.count("Job 1  ") == 1, "the card is shown once"
    assert "total 42" in text


def test_waiting_prints_the_output(tmp_path: Path) -> None:
    text = session(tmp_path, "%%cluster_train --wait -o x\nprint('in the job')\nx = 1", "print('x is', x)")
    assert "in the job\nJob 1: SUCCEEDED\n" in text
    assert "x is 1" in text


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    text = session(tmp_path, "%%cluster_train -o x\nimport time\ntime.sleep(3)\nx = 1", "print(x)", "%cluster_cancel 1")
    assert "PendingError: x is not there yet: job 1 is" in text
    assert "asked to end" in text


def test_help_is_in_the_terminal_too(tmp_path: Path) -> None:
    assert "Usage: %cluster_logs ID [options]" in session(tmp_path, "%cluster_logs?")
