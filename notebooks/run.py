"""Run a notebook from start to end and print the tables that it made.

    python notebooks/run.py notebooks/quickstart.ipynb

The notebook itself is not changed; the copy with its outputs, plots included, goes to ``build/``.
"""

from __future__ import annotations

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


def main(argv: list[str]) -> int:
    """The command line."""
    source = Path(argv[1])
    copy = Path("build") / f"{source.stem}.executed.ipynb"
    copy.parent.mkdir(exist_ok=True)
    notebook = nbformat.read(source, as_version=4)
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
