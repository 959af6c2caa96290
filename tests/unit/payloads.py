"""Runs payloads as the shipped runtime does: a supervisor in a process of its own, in a hand-made job folder."""

from __future__ import annotations

import functools
import json
import linecache
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import clusterkernel.runtime
from clusterkernel.payload import Artefact, cell, results


class Ran:
    """A payload that ran to its end."""

    def __init__(self, job: Path, process: subprocess.CompletedProcess[str], task: int = 0) -> None:
        self.job = job
        self.payload = job / "payload"
        self.out = job / "out" / "0" / f"{task}.0"
        self.code = process.returncode
        self.said = process.stderr
        self.stdout = _text(self.out / "stdout")
        self.stderr = _text(self.out / "stderr")

    @functools.cached_property
    def report(self) -> dict[str, Any]:
        path = self.out / "report.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def state(self) -> str | None:
        return self.report.get("state")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def lay_out(folder: Path, artefact: Artefact, **spec: Any) -> Path:
    """A job folder with this payload; gives the runtime's path beside it."""
    runtime = folder / "runtime"
    runtime.mkdir(parents=True)
    (runtime / "ckruntime").symlink_to(Path(clusterkernel.runtime.__path__[0]))
    (runtime / "shim" / "clusterkernel").mkdir(parents=True)
    (runtime / "shim" / "clusterkernel" / "__init__.py").write_text("from ckruntime.metrics import log, progress\n")
    (runtime / "__main__.py").write_text("from ckruntime.cli import main\n\nmain()\n")
    work = folder / "work"
    work.mkdir()
    job = folder / "job"
    for name in ("payload", "claims", "events/0", "out"):
        (job / name).mkdir(parents=True)
    artefact.write(job / "payload")
    spec.setdefault("environment", {"workdir": str(work)})
    record = {"id": "1", "spec": spec, "array": bool(artefact.body.get("array"))}
    (job / "job.json").write_text(json.dumps(record))
    return runtime


def command(folder: Path, *, python: str = sys.executable) -> list[str]:
    return [python, str(folder / "runtime" / "__main__.py"), "supervise", str(folder / "job")]


def environment(**extra: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "CLUSTERKERNEL_"))}
    return {**clean, "PYTHONDONTWRITEBYTECODE": "1", **extra}


def run(
    artefact: Artefact, folder: Path, *, task: int | None = None, env: dict[str, str] | None = None, **spec: Any
) -> Ran:
    if not (folder / "job").exists():
        lay_out(folder, artefact, **spec)
    extra = dict(env or {})
    if task is not None:
        extra.update(SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_JOB_ID="7")
    process = subprocess.run(
        command(folder), env=environment(**extra), capture_output=True, text=True, timeout=120, check=False
    )
    return Ran(folder / "job", process, task or 0)


class Notebook:
    """A kernel's namespace, in which cells run as in IPython: their source is known to linecache alone."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.number = 0

    def __getitem__(self, name: str) -> Any:
        return self.names[name]

    def run(self, source: str) -> None:
        self.number += 1
        text = textwrap.dedent(source)
        filename = f"/tmp/ipykernel_{os.getpid()}/{id(self)}{self.number}.py"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.names)

    def ship(self, source: str, folder: Path, **options: Any) -> Artefact:
        """The cell as an artefact; `folder` is the notebook's."""
        return cell.build(textwrap.dedent(source), self.names, modules_root=folder, **options)

    def train(self, source: str, folder: Path, *, env: dict[str, str] | None = None, **options: Any) -> Ran:
        """Run the cell as a job."""
        return run(self.ship(source, folder, **options), folder, env=env)

    def result(self, ran: Ran) -> Any:
        return results.load_result(ran.out, self.names, ran.payload)

    def output(self, ran: Ran, name: str) -> Any:
        return results.load_output(ran.out / "outputs" / f"{name}.pkl", self.names, ran.payload)

    def error(self, ran: Ran) -> BaseException | None:
        return results.load_error(ran.out, self.names, ran.payload)
