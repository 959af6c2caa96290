"""Kernels as processes of their own, which a test tells what to do and kills; and the place where they work."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.clusters.cluster import SlurmCluster

from .wrapper import Wrapper

__all__ = ["CEILING", "Kernel", "Place", "until"]

CEILING = 60.0
_ROOT = Path(__file__).resolve().parents[2]
# Runs what it is told in __main__, as a notebook does, and answers with the value of the last expression.
_SERVER = r"""
import ast, json, sys, traceback
talk = sys.stdout
sys.stdout = sys.stderr
import __main__
space = vars(__main__)
for line in sys.stdin:
    try:
        tree = ast.parse(json.loads(line))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), space)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space) if last else None
        answer = {"value": value}
    except BaseException:
        answer = {"error": traceback.format_exc()}
    talk.write(json.dumps(answer, default=str) + "\n")
    talk.flush()
"""
# What every kernel knows.
_CELL = """
import os, time
import clusterkernel as ck
from clusterkernel import lookup, submission
from pathlib import Path

def wait(name, value=None):
    # Says that it is here, and ends when the file is there.
    import os, time
    from pathlib import Path
    print("here", flush=True)
    with open(name + ".ran", "a") as file:
        file.write("ran\\n")
    while not Path(name).exists():
        time.sleep(0.05)
    return value

def supervisor(job):
    from clusterkernel.runtime import events
    return next(record["pid"] for record in events.read(job.folder.events()) if record["kind"] == "started")

def runs(job):
    return job.state.value == "RUNNING" and "here" in job.logs()
"""


def until(true: Callable[[], Any], what: str, ceiling: float = CEILING) -> Any:
    """Wait for an event that nothing tells us of."""
    deadline = time.monotonic() + ceiling
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not come within {ceiling:g} s"
        time.sleep(0.05)
    return found


class Kernel:
    """A process with the product in it.

    Parameters
    ----------
    folder : Path
        Its working folder.
    env : mapping
        What its environment has beside ours.
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._log = folder / f"kernel-{time.monotonic_ns()}.log"
        self._ending = threading.Lock()
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", _SERVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(_ROOT), **env},
            )
        self.do(_CELL)

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, code: str) -> Any:
        """Run code; the value of its last expression."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the kernel ended: {self._log.read_text()[-2000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def until(self, expression: str, ceiling: float = CEILING) -> Any:
        """Wait until an expression is true there."""
        deadline = time.monotonic() + ceiling
        while not (value := self.do(expression)):
            assert time.monotonic() < deadline, f"{expression} is not true after {ceiling:g} s; {self.jobs()}"
            time.sleep(0.05)
        return value

    def jobs(self) -> Any:
        """All jobs that it knows: id, state and reason."""
        return self.do("[(view.id, str(view.state), view.reason) for view in submission.summaries(settle=0)]")

    def kill(self) -> None:
        """As a crash does."""
        with self._ending:  # a scene and its fixture may do so at once
            if self._process.returncode is None:
                self._process.kill()
                self._process.communicate()

    def close(self) -> None:
        """End it, whatever it does."""
        self.kill()


class Place:
    """A folder on a cluster's share with a job root in it, and Slurm's commands under our hands.

    Parameters
    ----------
    cluster : SlurmCluster
    name : str
        Of the folder.
    neighbour : SlurmCluster, optional
        Another cluster.
    """

    def __init__(self, cluster: SlurmCluster, name: str, neighbour: SlurmCluster | None = None) -> None:
        self.cluster = cluster
        self.neighbour = neighbour or cluster
        self.folder = cluster.shared / name
        self.folder.mkdir(mode=0o700)
        self.wrapper = Wrapper(self.folder / "wrapper")
        self.kernels: list[Kernel] = []
        self.env = {
            **cluster.env,
            "PATH": self.wrapper.path,
            "CLUSTERKERNEL_JOB_ROOT": str(self.folder / "jobs"),
            "CLUSTERKERNEL_LOCAL_DIR": str(self.folder / "local"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
        }

    def kernel(self, **env: str) -> Kernel:
        """A new kernel here."""
        made = Kernel(self.folder, {**self.env, **env})
        self.kernels.append(made)
        return made

    def slurm(self, *argv: str, check: bool = True) -> str:
        """One of Slurm's commands, past the wrapper."""
        return self.cluster.run(f"/usr/bin/{argv[0]}", *argv[1:], check=check)

    def listed(self, name: str) -> list[str]:
        """The ids of Slurm's jobs of this name that are in this folder."""
        lines = self.slurm("squeue", "-h", "-t", "all", "-n", name, "-o", "%F %o").splitlines()
        return sorted({line.split()[0] for line in lines if f" {self.folder}/" in line})

    def ran(self, name: str) -> int:
        """How often the code of a job that waits for the file `name` has run."""
        try:
            return (self.folder / f"{name}.ran").read_text().count("ran\n")
        except FileNotFoundError:
            return 0

    def polls(self, more: int, ceiling: float = CEILING) -> None:
        """Wait for so many more calls of squeue to begin."""
        seen = len(self.wrapper.calls("squeue"))
        until(lambda: len(self.wrapper.calls("squeue")) >= seen + more, f"{more} more calls of squeue", ceiling)

    def close(self) -> None:
        """End the kernels and their jobs."""
        for kernel in self.kernels:
            kernel.close()
        with contextlib.suppress(OSError):
            ids = [
                item[0]
                for path in (self.folder / "jobs").glob("*/submission.json")
                for item in json.loads(path.read_bytes() or b"{}").get("platform_ids", ())
                if str(item[0]).isdigit()
            ]
            if ids:
                self.slurm("scancel", *ids, check=False)
