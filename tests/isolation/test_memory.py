"""What a kernel pays for its jobs: a thousand that have ended, and a large result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterkernel import fields
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, PayloadSummary, Submission, identity
from clusterkernel.runtime.events import EventLog
from tests.backends.platforms import Platform

JOBS = 1000
# Sizes in kB, as the system counts them.
_TOOLS = """
import gc, json, os, re, sys

def of_status(name):
    return int(re.search(name + r":\\s*(\\d+)", open("/proc/self/status").read())[1])

def resident():
    gc.collect()
    return of_status("VmRSS")

def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
"""


def kernel(code: str, *arguments: str) -> Any:
    """What a process of its own prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", _TOOLS + code, *arguments], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- many jobs -----------------------------------------------------------------------------------

SOURCE = "\n".join(f"layer_{n} = build(model, width={n}, depth={n + 1})" for n in range(40))
ENDS = [
    {"state": "SUCCEEDED", "reason": "", "exit_code": 0, "result": "ok",
     "outputs": {"model": {"size": 9, "type": "dict"}, "history": {"size": 9, "type": "list"}}},
    {"state": "FAILED", "reason": "ValueError: no", "exit_code": 1, "result": "none",
     "error": {"type": "ValueError", "message": "no", "traceback": "Traceback\n" + "  File 'x', line 3\n" * 20}},
]  # fmt: skip


def ended_job(root: JobRoot, number: int) -> str:
    """A job folder as a job leaves it."""
    spec = fields.build({"backend": "local", "time": "4h", "name": f"try-{number}", "env": {"N": str(number)}})

    def record(job_id: str, key: str) -> JobRecord:
        summary = PayloadSummary(
            kind="cell", title=SOURCE.splitlines()[0], source=SOURCE, outputs=("model", "history"), bind=("model",),
            inputs={"model": "digest" * 5, "build": None}, sizes={"model": 3000, "build": 200},
        )  # fmt: skip
        return JobRecord(id=job_id, key=key, name=f"try-{number}", spec=spec, payload=summary, **identity())

    def payload(folder: Path) -> None:
        (folder / "payload.json").write_bytes(msgspec.json.encode({"kind": "cell", "title": "layer"}))

    folder = root.create(record, payload)
    folder.write_submission(Submission(platform_ids=(("host:1:1", 0, 1),)))
    log = EventLog(str(folder.events()))
    log.write("started", pid=1, host="node", platform_id="host:1:1", attempt=0, task=0, rank=0, world=1)
    log.write("running")
    for _ in range(30):
        log.write("heartbeat")
    log.write("outcome", **ENDS[number % 2])
    log.close()
    folder.out().mkdir(parents=True, mode=0o700)
    (folder.out() / "stdout").write_text("a line of its output\n" * 100)
    record_of = {"t": 1.7e9, "source": "log", "rank": 0, "values": {"loss": 1.0}}
    lines = [json.dumps({**record_of, "step": step}) + "\n" for step in range(50)]
    (folder.out() / "metrics.jsonl").write_text("".join(lines))
    return folder.id


LIST_AND_HOLD = """
import clusterkernel as ck
from clusterkernel import submission
from clusterkernel.render import table_html

count = int(sys.argv[1])
ck.jobs(), ck.job("1").summary(), table_html([ck.job("1").summary()], title="")  # what is imported and built once
os.environ["CLUSTERKERNEL_JOB_ROOT"] = sys.argv[2]
before = resident()
frame = ck.jobs()
held = [ck.job(str(n + 1)) for n in range(count)]
views = submission.summaries()
states = {str(job.state) for job in held} | {str(view.state) for view in views}
again = ck.jobs()
assert len(frame) == len(views) == len(again) == count
after = resident()
print(json.dumps({"kB": after - before, "states": sorted(states)}))
"""


def test_a_thousand_ended_jobs_cost_little(tmp_path: Path) -> None:
    ended_job(JobRoot(), 0)
    root = JobRoot(tmp_path / "jobs")
    ids = [ended_job(root, number) for number in range(JOBS)]
    assert ids[-1] == str(JOBS)
    first = kernel(LIST_AND_HOLD, str(JOBS), str(root.path))
    assert first["states"] == ["FAILED", "SUCCEEDED"]
    assert first["kB"] < 20_000
    # Now the ledger has them all.
    later = kernel(LIST_AND_HOLD, str(JOBS), str(root.path))
    assert later["states"] == first["states"]
    assert later["kB"] < 20_000
    print(first, later)


# -- a large result ----------------------------------------------------------------------------------


def make(kind: str, size: int) -> Any:
    import numpy as np

    if kind == "bytes":
        return b"x" * size
    if kind == "array":
        return np.ones(size // 8)
    if kind == "model":
        return {f"layer {n}": np.ones(size // 80, dtype="float64") for n in range(10)}
    import pandas as pd

    return pd.DataFrame(np.ones((size // 80, 10)))


LOAD = """
import clusterkernel as ck
import numpy, pandas

job = ck.job("1")
job.wait(0)
ck.job("2").result()  # what is imported and built once
before = resident()
forget_peak()
value = job.result()
again = job.result()
outcome = {"same": value is again, "peak": of_status("VmHWM") - before, "held": resident() - before}
del value, again, job
gc.collect()
print(json.dumps({**outcome, "left": resident() - before}))
"""


@pytest.mark.parametrize("kind", ["bytes", "array", "model", "frame"])
@pytest.mark.parametrize("mib", [200, pytest.param(1024, marks=pytest.mark.full)])
def test_a_large_result_is_held_once(local: Platform, kind: str, mib: int) -> None:
    executor = local.executor()
    large, small = executor.submit(make, kind, mib << 20), executor.submit(make, kind, 8000)
    for job in (large, small):
        assert job.wait(200).value == "SUCCEEDED", job.reason
    seen = kernel(LOAD)
    print(seen)
    assert seen["same"]
    assert 0.95 * (mib << 10) < seen["held"] < 1.1 * (mib << 10)
    assert seen["peak"] < 1.3 * (mib << 10)
    assert seen["left"] < 0.1 * (mib << 10), "and it goes with the job"
