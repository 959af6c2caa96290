"""Loads truss configurations with truss's own loader and prints what they hold, as JSON lines. Run by a Python
that has truss.
"""

from __future__ import annotations

import json
import pathlib
import sys


def main(paths: list[str]) -> None:
    """Load each file and tell."""
    from truss_train import loader

    for path in paths:
        with loader.import_training_project(pathlib.Path(path)) as project:
            job = project.job.model_dump()
            print(json.dumps({"name": project.name, "job": job}, default=str))
        sys.modules.pop(pathlib.Path(path).stem, None)


if __name__ == "__main__":
    main(sys.argv[1:])
