"""A real working day: Run All twice, a kernel that is killed, a lid that is closed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from clusterkernel import submission

from . import lab

pytestmark = pytest.mark.browser


@pytest.mark.timeout(300)
def test_run_all_twice_a_killed_kernel_and_a_reopened_notebook(tmp_path: Path) -> None:
    gate, slow = tmp_path / "gate", tmp_path / "slow"
    cells = [
        "%load_ext clusterkernel",
        "import os; print('kernel', os.getpid())",
        "%%cluster_train -o model\n"
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\nmodel = 42",
        f"while os.path.exists({str(slow)!r}): pass",
        "print('value', model)",
    ]
    lab.write_notebook(tmp_path / "day.ipynb", cells)
    server = lab.Server(tmp_path, dict(os.environ))
    try:
        with lab.browser() as browser:
            page = browser.new_page()
            notebook = lab.open_notebook(page, server, "day.ipynb")

            notebook.run_all()
            assert "%cluster_wait 1" in notebook.output(4), "the cell that needs the model did not run, and says so"
            notebook.run_all()
            assert "PendingError" in notebook.output(4)
            assert [view.id for view in submission.summaries()] == ["1"], "the second Run All attached"

            found = re.search(r"kernel (\d+)", notebook.output(1))
            assert found
            slow.touch()
            notebook.execute("notebook:run-all-cells")
            # All cells have reached this kernel: what is still on its way runs in the one that the server starts anew.
            notebook.expect_running(3)
            lab.kill(int(found[1]))
            slow.unlink()
            page.close()

            gate.touch()
            page = browser.new_page()
            notebook = lab.open_notebook(page, server, "day.ipynb")
            notebook.run_all()
            notebook.expect_output(4, "value 42")
            assert [view.id for view in submission.summaries()] == ["1"], "nothing was submitted again"
    finally:
        server.stop()
