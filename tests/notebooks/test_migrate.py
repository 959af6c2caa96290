"""The notebook that takes a script and a cloud file anywhere, from start to end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nbclient
import nbformat
import pytest
import yaml
from nbformat import NotebookNode

REPOSITORY = Path(__file__).parents[2]
MIGRATE = REPOSITORY / "notebooks" / "migrate.ipynb"
CEILING = 120
KEY = "0123456789abcdef0123456789abcdef01234567"

# Told by the kernel after the last cell.
REPORT = """
import json

script_needs = needs(script, values=values)
print("REPORT", json.dumps({
    "same": [needs(folder / name) == script_needs for name in ("train-job.yaml", "train-back.slurm")],
    "columns": list(ck.convert(script, "kubernetes", values=values).report.columns),
    "rows": [int(everywhere(script, values=values)[0].sum().sum()), int(everywhere(cloud)[0].sum().sum())],
    "reasons": bool((reports[reports["how"] == "dropped"]["reason"] != "").all()),
}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("migrate")


@pytest.fixture(scope="module")
def done(folder: Path) -> NotebookNode:
    made = nbformat.read(MIGRATE, as_version=4)
    made.cells.append(nbformat.v4.new_code_cell(REPORT))
    return nbclient.execute(made, cwd=str(folder), timeout=CEILING)


def outputs(done: NotebookNode, cell_id: str) -> str:
    """All that a cell shows, as text and as HTML."""
    cell = next(cell for cell in done.cells if cell.id == cell_id)
    shown = [out.get("data", {}) for out in cell.outputs]
    texts = [out.get("text", "") for out in cell.outputs]
    return "\n".join([*texts, *(str(text) for data in shown for text in data.values())])


def test_it_is_as_a_fresh_notebook_should_be() -> None:
    made = nbformat.read(MIGRATE, as_version=nbformat.NO_CONVERT)
    nbformat.validate(made)
    code = [cell for cell in made.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


def test_it_runs_and_shows_tables(done: NotebookNode) -> None:
    for cell in done.cells:
        for out in cell.get("outputs", []):
            assert out.output_type != "error", cell.source
            assert out.get("name") != "stderr", out.text
    for name in ("check", "kubernetes", "everywhere", "dropped", "back", "modal", "modal-everywhere", "modal-report"):
        assert "<table" in outputs(done, name), name
    assert "no value for $NUM_NODES (line 3)" in outputs(done, "script")
    assert "directive-variable" in outputs(done, "check")
    assert "restart_policy (line 13) has no effect" in outputs(done, "modal")
    assert "exit status: 3" in outputs(done, "command")


def test_the_key_is_shown_nowhere(done: NotebookNode, folder: Path) -> None:
    assert all(KEY not in str(cell.get("outputs", "")) for cell in done.cells)
    written = [path for path in (folder / "build" / "migrate").iterdir() if path.name != "train.slurm"]
    assert len(written) == 17
    assert all(KEY not in path.read_text() for path in written)


def test_there_and_back_the_needs_are_the_same(done: NotebookNode) -> None:
    told = json.loads(done.cells[-1].outputs[-1].text.partition("REPORT ")[2])
    assert told["same"] == [True, True]
    assert told["columns"] == ["source", "value", "target", "target_value", "how", "reason"]
    assert told["reasons"]
    assert all(rows > 100 for rows in told["rows"])


def test_what_it_writes_is_what_it_says(done: NotebookNode, folder: Path) -> None:
    made = folder / "build" / "migrate"
    for name in ("train-job.slurm", "train-back.slurm", "modal-job.slurm"):
        assert subprocess.run(["bash", "-n", made / name], check=False).returncode == 0
    for source in ("train", "modal"):
        [job] = yaml.safe_load_all((made / f"{source}-job.yaml").read_text())
        assert job["kind"] == {"train": "JobSet", "modal": "Job"}[source]
        for name in ("app.py", "config.py"):
            compile((made / f"{source}-{name}").read_text(), name, "exec")
        assert yaml.safe_load((made / f"{source}-modal.yaml").read_text())["gpu_count"] == 8
