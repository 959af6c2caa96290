"""Run a notebook from start to end and print the tables that it made.

    python notebooks/run.py notebooks/quickstart.ipynb [--backend slurm]

The notebook itself is not changed; the copy with its outputs, plots included, goes to ``build/``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets.config import Config

CELL_LIMIT = 600  # seconds; no cell of ours takes one minute


def tables(notebook: NotebookNode) -> list[str]:
    """The DataFrames that the cells showed, as text."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output.data for output in outputs if output.output_type in ("display_data", "execute_result")]
    return [data["text/plain"] for data in shown if 'class="dataframe"' in data.get("text/html", "")]


def with_parameters(notebook: NotebookNode, **values: object) -> None:
    """Set names behind the cell that is tagged ``parameters``, as papermill does."""
    tags = [cell.metadata.get("tags", []) for cell in notebook.cells]
    at = next(i for i, found in enumerate(tags) if "parameters" in found)
    lines = [f"{name} = {value!r}" for name, value in values.items()]
    cell = nbformat.v4.new_code_cell("\n".join(lines), metadata={"tags": ["injected-parameters"]})
    notebook.cells.insert(at + 1, cell)


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog=argv[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--backend", help="where its jobs run, in place of what the notebook says")
    args = parser.parse_args(argv[1:])
    source: Path = args.notebook
    copy = Path("build") / f"{source.stem}.executed.ipynb"
    copy.parent.mkdir(exist_ok=True)
    notebook = nbformat.read(source, as_version=4)
    if args.backend:
        with_parameters(notebook, backend=args.backend)
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT,
        kernel_name="python3",
        resources={"metadata": {"path": str(source.parent)}},
        # on a shared login node others could listen to what goes over the loopback device
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),
    )
    print(f"Running {source} ...", flush=True)
    began = time.monotonic()
    try:
        asyncio.run(client.async_execute())
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        print(f"{error}\n{source} did not run to its end; what it shows until there is in {copy}.", file=sys.stderr)
        return 1
    finally:
        nbformat.write(notebook, copy)
    found = tables(notebook)
    print("\n\n".join(found))
    print(
        f"\n{source} ran from start to end in {time.monotonic() - began:.0f} s. Its tables ({len(found)}) are above, "
        f"its plots in {copy}.\nOpen it in JupyterLab with: make lab"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
