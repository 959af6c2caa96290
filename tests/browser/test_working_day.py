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
    gate = tmp_path / "gate"
    cells = [
        "%load_ext clusterkernel",
        "import os; print('kernel', os.getpid())",
        "%%cluster_train -o model\n"
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\nmodel = 42",
        "print('value', model)",
    ]
    lab.write_notebook(tmp_path / "day.ipynb", cells)
    server = lab.Server(tmp_path, dict(os.environ))
    try:
        with lab.browser() as browser:
            page = browser.new_page()
            notebook = lab.open_notebook(page, server, "day.ipynb")

            notebook.run_all()
            assert "%cluster_wait 1" in notebook.output(3), "the cell that needs the model did not run, and says so"
            notebook.run_all()
            assert "PendingError" in notebook.output(3)
            assert [view.id for view in submission.summaries()] == ["1"], "the second Run All attached"

            found = re.search(r"kernel (\d+)", notebook.output(1))
            assert found
            lab.kill(int(found[1]))  # at rest: what is queued then may run in the kernel that the server starts anew
            page.close()

            gate.touch()
            page = browser.new_page()
            notebook = lab.open_notebook(page, server, "day.ipynb")
            notebook.run_all()
            notebook.expect_output(3, "value 42")
            assert [view.id for view in submission.summaries()] == ["1"], "nothing was submitted again"
    finally:
        server.stop()
