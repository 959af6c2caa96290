"""Nobody sits before it: nbclient and papermill wait for names, and fail as the job failed."""

from __future__ import annotations

import os
from pathlib import Path

import nbclient
import nbformat
import papermill
import pytest
from nbclient.exceptions import CellExecutionError
from papermill.exceptions import PapermillExecutionError

from tests.kernel.conftest import REPOSITORY


def notebook(*cells: str) -> nbformat.NotebookNode:
    made = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "", "language": "python"}}
    )
    made.cells = [nbformat.v4.new_code_cell(cell) for cell in ("%load_ext clusterkernel", *cells)]
    return made


@pytest.fixture(autouse=True)
def product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))


TRAIN = "%%cluster_train -o model\nimport time\ntime.sleep(0.5)\nmodel = {'loss': 0.25}"
FAIL = "%%cluster_train -o model\nmodel = 1\nraise ValueError('loss is nan')"


def texts(cell: nbformat.NotebookNode) -> str:
    return "".join(out.get("text", "") + str(out.get("data", {}).get("text/plain", "")) for out in cell.outputs)


def test_nbclient_waits_for_the_name(tmp_path: Path) -> None:
    made = notebook(TRAIN, "print(model['loss'])")
    nbclient.execute(made, cwd=str(tmp_path))
    assert texts(made.cells[2]).endswith("0.25\n")
    assert "Succeeded" in texts(made.cells[1]), "the card of the first cell is the last word on it"
    assert len(made.cells[1].outputs) == 1


def test_nbclient_fails_with_the_jobs_error(tmp_path: Path) -> None:
    made = notebook(FAIL, "print(model)")
    with pytest.raises(CellExecutionError) as caught:
        nbclient.execute(made, cwd=str(tmp_path))
    assert caught.value.ename == "ValueError"
    assert "loss is nan" in str(caught.value)


def test_a_person_can_be_said_to_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERKERNEL_INTERACTIVE", "1")
    made = notebook(TRAIN, "print(model['loss'])")
    with pytest.raises(CellExecutionError) as caught:
        nbclient.execute(made, cwd=str(tmp_path))
    assert caught.value.ename == "PendingError"


@pytest.mark.filterwarnings("default")
def test_papermill_waits_and_fails_alike(tmp_path: Path) -> None:
    for name, cell in (("good", TRAIN), ("bad", FAIL)):
        nbformat.write(notebook(cell, "print(model['loss'])"), tmp_path / f"{name}.ipynb")
    done = papermill.execute_notebook(
        str(tmp_path / "good.ipynb"), str(tmp_path / "out.ipynb"), cwd=str(tmp_path), progress_bar=False
    )
    assert texts(done.cells[2]).endswith("0.25\n")
    with pytest.raises(PapermillExecutionError) as caught:
        papermill.execute_notebook(
            str(tmp_path / "bad.ipynb"), str(tmp_path / "out2.ipynb"), cwd=str(tmp_path), progress_bar=False
        )
    assert caught.value.ename == "ValueError"
    assert caught.value.evalue == "loss is nan"


def test_other_inputs_are_never_taken_for_the_same(tmp_path: Path, own_folders: Path) -> None:
    # Two runs of one notebook with other parameters, while the job of the first lives.
    slow = TRAIN.replace("0.5", "20").replace("0.25", "rate")
    nbclient.execute(notebook("rate = 1", slow), cwd=str(tmp_path))
    nbclient.execute(notebook("rate = 2", slow), cwd=str(tmp_path))
    assert len(list((own_folders / "jobs").glob("[0-9]*"))) == 2
