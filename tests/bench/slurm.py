"""What sending through us costs, beside raw sbatch and submitit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import clusterkernel as ck

from .rows import Row, alternate, timed

# What any tool that ships a call must do: a batch script, Python, cloudpickle, a file that appears whole.
_FLOOR = """#!/bin/bash
#SBATCH --output=/dev/null
{python} -c 'import cloudpickle, os
with open("{out}.part", "wb") as file:
    cloudpickle.dump(1, file)
os.rename("{out}.part", "{out}")'
"""
TASKS = 1000


def _sbatch(*arguments: str) -> str:
    done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _script(folder: Path, text: str) -> str:
    path = folder / f"floor-{time.monotonic_ns()}.sh"
    path.write_text(text)
    return str(path)


def _submitit(folder: Path, **more: Any) -> Any:
    import submitit

    executor = submitit.AutoExecutor(folder=folder / "submitit", cluster="slurm")
    executor.update_parameters(timeout_min=5, **more)
    return executor


def submit(folder: Path) -> Row:
    """Until the platform's id is known: `Executor.submit` returns earlier, and so is timed apart."""
    # All are held: a job that starts would take the processor from whoever submits next.
    executor = ck.Executor("slurm", time="5m", sbatch="--hold")
    peer = _submitit(folder, slurm_additional_parameters={"hold": True})
    script = _script(folder, "#!/bin/bash\n#SBATCH --output=/dev/null\ntrue\n")
    returned = []

    def ours() -> float:
        began = time.perf_counter()
        job = executor.submit(int)
        returned.append(time.perf_counter() - began)
        while job.folder.submission() is None:
            time.sleep(0.0005)
        return time.perf_counter() - began

    values = alternate(
        20,
        ours=ours,
        sbatch=lambda: timed(lambda: _sbatch("--hold", script)),
        submitit=lambda: timed(lambda: peer.submit(int)),
    )
    subprocess.run(["scancel", "--user", str(os.geteuid())], check=True)
    executor.shutdown()
    return Row(
        name="ex.submit() on Slurm, until the platform's id is known",
        unit="ms",
        ours=values["ours"],
        beside={"raw sbatch": values["sbatch"], "submitit": values["submitit"]},
        limit=lambda others: 3 * others["raw sbatch"],
        limit_text="3 times raw sbatch",
        notes=[f"the call itself returned after {sorted(returned)[len(returned) // 2] * 1000:.1f} ms"],
    )


def result(folder: Path) -> Row:
    """From the call of submit to the value."""
    executor, peer = ck.Executor("slurm", time="5m"), _submitit(folder)
    executor.submit(int).result(60)

    def floor() -> float:
        out = folder / f"floor-{time.monotonic_ns()}"
        script = _script(folder, _FLOOR.format(python=sys.executable, out=out))
        began = time.perf_counter()
        _sbatch(script)
        while not out.exists():
            time.sleep(0.005)
        return time.perf_counter() - began

    values = alternate(
        10,
        ours=lambda: timed(lambda: executor.submit(int).result(60)),
        floor=floor,
        submitit=lambda: timed(lambda: peer.submit(int).result()),
    )
    return Row(
        name="submit to result on Slurm",
        unit="ms",
        ours=values["ours"],
        beside={"floor: sbatch, python, cloudpickle to a file": values["floor"], "submitit": values["submitit"]},
        limit=lambda others: others["floor: sbatch, python, cloudpickle to a file"] + 0.3,
        limit_text="the floor + 300 ms",
    )


def array(folder: Path) -> Row:
    """1,000 tasks as one array, beside a raw array of ``python -c pass``."""
    executor = ck.Executor("slurm", time="5m", parallelism=32)
    sent: list[float] = []
    chunked: list[float] = []

    def ours() -> float:
        began = time.perf_counter()
        jobs = executor.map_jobs(abs, range(TASKS))
        while jobs.folder.submission() is None:
            time.sleep(0.001)
        sent.append(time.perf_counter() - began)
        assert jobs.results(900) == list(range(TASKS))
        return time.perf_counter() - began

    def in_chunks() -> float:
        began = time.perf_counter()
        assert executor.map_jobs(abs, range(TASKS), chunksize=25).results(900) == list(range(TASKS))
        return time.perf_counter() - began

    def raw() -> float:
        script = _script(folder, f"#!/bin/bash\n#SBATCH --output=/dev/null\n{sys.executable} -c pass\n")
        began = time.perf_counter()
        number = _sbatch(f"--array=0-{TASKS - 1}%32", script)
        while subprocess.run(
            ["squeue", "-h", "-j", number], capture_output=True, text=True, check=False
        ).stdout.strip():
            time.sleep(0.2)
        return time.perf_counter() - began

    values = alternate(1, ours=ours, raw=raw)
    chunked.append(in_chunks())
    return Row(
        name=f"map_jobs of {TASKS:,}, all results",
        unit="s",
        ours=values["ours"],
        beside={"raw array of python -c pass": values["raw"]},
        limit=lambda others: 1.5 * others["raw array of python -c pass"],
        limit_text="1.5 times the raw array",
        notes=[f"sent after {sent[0]:.2f} s (at most 1 s)", f"with chunksize=25: {chunked[0]:.1f} s"],
    )
