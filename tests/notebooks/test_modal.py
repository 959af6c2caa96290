"""The notebook that trains on Modal, from start to end: the real client, against the stand-in."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest
from nbformat import NotebookNode

from ..clusters.modal import ModalServer

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "modal.ipynb"
CEILING = 150


@pytest.fixture
def done(modal_server: ModalServer, tmp_path: Path) -> NotebookNode:
    """It runs in a kernel of its own, which inherits the stand-in's address."""
    made = nbformat.read(NOTEBOOK, as_version=4)
    return nbclient.execute(made, cwd=str(tmp_path), timeout=CEILING)


def shown(done: NotebookNode, cell_id: str) -> str:
    """All that a cell shows."""
    cell = next(cell for cell in done.cells if cell.id == cell_id)
    data = [text for out in cell.outputs for text in out.get("data", {}).values()]
    return "\n".join(map(str, [*(out.get("text", "") for out in cell.outputs), *data]))


def test_it_is_as_a_fresh_notebook_should_be() -> None:
    made = nbformat.read(NOTEBOOK, as_version=nbformat.NO_CONVERT)
    nbformat.validate(made)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


def test_it_runs_from_start_to_end(done: NotebookNode) -> None:
    for cell in done.cells:
        for out in cell.get("outputs", []):
            assert out.output_type != "error", cell.source
    assert 'gpu="T4"' in shown(done, "plan")
    assert "an estimate from list prices" in shown(done, "plan")
    assert "step 0: loss" in shown(done, "metrics")
    assert "loss" in shown(done, "metrics")
    slope, offset = (float(word) for word in shown(done, "values").strip("()\n").split(","))
    assert slope == pytest.approx(3, abs=0.3)
    assert offset == pytest.approx(-0.5, abs=0.1)
    assert shown(done, "many").count(",") == 2
    assert "Diverged loss is nan" in shown(done, "fail")
    assert "FAILED" in shown(done, "exit")
    assert "epoch 3" in shown(done, "volume")
    assert "CANCELLED" in shown(done, "cancel")
    assert "0.1" in shown(done, "cancel")
    assert "modal" in shown(done, "jobs")
