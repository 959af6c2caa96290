"""What a job prints stays where it belongs, and however much it is, the notebook goes on."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from clusterkernel import logs, lookup
from clusterkernel.runtime import events
from tests.kernel.conftest import Kernel, Ran, gate

# What is printed, in bytes or lines.
LINE = 50_000_000
LINES = 1_000_000
SHOWN = 300_000  # bytes of a cell's text, or of a card, that are still bounded


def outputs(ran: Ran) -> list[tuple[str, str]]:
    """What a cell shows, in its order."""
    found = []
    for message in ran.messages:
        content = message["content"]
        if message["msg_type"] == "stream":
            found.append((content["name"], content["text"]))
        elif message["msg_type"] in ("display_data", "execute_result"):
            found.append((message["msg_type"], content["data"]["text/plain"]))
        elif message["msg_type"] not in ("execute_input", "error"):
            found.append((message["msg_type"], ""))
    return found


SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
BUSY = """
import clusterkernel as ck, sys, time
for step in range(600):
    print('job says', step, flush=True)
    print('job warns', step, file=sys.stderr, flush=True)
    ck.log(step=step, loss=1 / (step + 1))
    if os.path.exists({!r}): break
    time.sleep(0.01)
"""


def test_nothing_lands_in_another_cell(kernel: Kernel, tmp_path: Path) -> None:
    """While jobs print, log, end, fail, are cancelled and deliver; in cells of every kind."""
    wait, release = gate(tmp_path)
    stop = tmp_path / "stop"
    cards = [
        kernel.good(f"%%cluster_train --as busy -o x\nimport os\n{BUSY.format(str(stop))}\nx = 1").displays,
        kernel.good(f"%%cluster_train --as failing\n{wait}\nraise ValueError('not here')").displays,
        kernel.good(f"%%cluster_train --as dying\n{wait}\nos.abort()").displays,
        kernel.good("%%cluster_train --as cancelled\nimport time\ntime.sleep(600)").displays,
    ]
    kernel.good(
        "from clusterkernel import Executor\n"
        "array = Executor('local', name='sweep').map_jobs(lambda item: print(item) or item, range(4))\n"
        "import warnings, logging, threading, asyncio, time\n"
        "busy.add_state_callback(lambda job: 1 / 0)"
    )
    cells = {
        "pass": [],
        "print('mine')": [("stream", "mine\n")],
        SPIN.format(1.0): [],
        "for _ in range(30): time.sleep(0.03)": [],
        "for _ in range(30): await asyncio.sleep(0.03)": [],
        "cancelled.cancel(); time.sleep(0.5)": [],
        "t = threading.Thread(target=time.sleep, args=(0.5,)); t.start(); t.join()": [],
        "array.wait(); None": [],
        "print('end')": [("stream", "end\n")],
    }
    for number, (code, expected) in enumerate(cells.items()):
        if number == 3:
            release()
        if number == 5:
            stop.touch()
        ran = kernel.good(code)
        assert [(kind if kind != "stdout" else "stream", text) for kind, text in outputs(ran)] == expected, code
    ran = kernel.run("failing.result()")
    assert [kind for kind, _ in outputs(ran)] == []
    assert ran.reply["ename"] == "ValueError"
    for (card,), state in zip(cards, ("Succeeded", "Failed", "Died", "Cancelled"), strict=True):
        kernel.until(lambda card=card, state=state: state in kernel.text_of(card), state)
    assert kernel.strays == []
    assert kernel.value("x") == 1


def test_trouble_in_the_background_prints_nowhere(kernel: Kernel, own_folders: Path, tmp_path: Path) -> None:
    """The ledger's folder is closed to us, a job's folder is removed: a card shows what a thread meets, if at all."""
    wait, release = gate(tmp_path)
    kernel.good(f"%%cluster_train --as first\n{wait}")
    kernel.good("%%cluster_train --as second\nprint(5, flush=True)\nimport time\ntime.sleep(600)")
    kernel.good("import time\nwhile not second.logs(): time.sleep(0.05)")
    (own_folders / "local").chmod(0o755)
    spin = SPIN.format(2.0)
    assert outputs(kernel.good(spin)) == []
    kernel.good("second.cancel(); second.wait()")
    kernel.good("import shutil; shutil.rmtree(second.folder.path)")
    release()
    assert outputs(kernel.good(f"first.wait()\n{spin}")) == []
    (own_folders / "local").chmod(0o700)
    assert kernel.value("str(first.state)") == "SUCCEEDED"
    assert kernel.strays == []


FLOODS = {
    "lines": f"import sys\nfor n in range({LINES}): sys.stdout.write('a line of it %d\\n' % n)",
    "line": f"import sys\nfor _ in range(50): sys.stdout.write('x' * {LINE // 50})\nprint()",
    "bar": f"import sys\nfor n in range({LINES}): sys.stdout.write('\\r%d of {LINES}' % n)\nprint()",
    "errors": f"import sys\nfor n in range({LINES // 4}): print('b', n); print('a line of it', n, file=sys.stderr)",
}


def peak(pid: int) -> int:
    """The most memory that a process has had, MiB."""
    return int(re.findall(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) >> 10


@pytest.mark.parametrize(
    "flood", [pytest.param(name, marks=[pytest.mark.full] * (name in ("bar", "errors"))) for name in FLOODS]
)
def test_a_flood_does_not_hang_the_notebook(kernel: Kernel, tmp_path: Path, flood: str) -> None:
    wait, release = gate(tmp_path)
    kernel.good("%cluster_jobs")  # pandas, so that it is not counted
    memory = "__import__('re').search(r'VmRSS:\\s*(\\d+)', open('/proc/self/status').read())[1]"
    before = int(kernel.value(memory))
    # On the stream that was the last: what came through the two pipes at once has no order.
    end = f"print('the very end', flush=True, file=sys.{'stderr' if flood == 'errors' else 'stdout'})"
    card = kernel.good(f"%%cluster_train --as job\n{FLOODS[flood]}\n{end}\n{wait}").displays[0]
    slowest = 0.0
    deadline = time.monotonic() + 240
    while "the very end" not in kernel.value("job.logs(1)"):
        began = time.monotonic()
        kernel.good("1 + 1")
        slowest = max(slowest, time.monotonic() - began)
        assert time.monotonic() < deadline
    assert slowest < 5.0
    kernel.until(
        lambda: any("the very end" in update["data"]["text/html"] for update in kernel.updates_of(card)),
        "the tail on the card",
    )

    job: Any = lookup.job("1")
    out = job.out()
    total = logs.size(out)
    assert total > 5_000_000
    pids = [record["pid"] for record in events.read(job.folder.events()) if record["kind"] == "started"]
    assert peak(pids[0]) < 60, "what the supervisor takes does not grow with what passes through it"

    shown = kernel.good("%cluster_logs 1").text
    assert "the very end" in shown
    assert len(shown) < SHOWN
    assert f"All of it lies in {out}; %cluster_logs 1 -n 0 prints it." in shown
    if flood == "line":
        assert "This is the end of 47.7 MB" in shown or "This is the end of 50" in shown
    few = kernel.good("%cluster_logs 1 -n 2").text
    assert len(few) < SHOWN
    assert ("This is the end of" in few) == (flood == "line"), "two whole lines were asked for and came"
    follow = kernel.send("%cluster_logs 1 -f")
    kernel.until_text(follow, "the very end")
    kernel.interrupt()
    followed = kernel.collect(follow)
    assert len(followed.text) < 2_000_000
    assert "Job 1 goes on" in followed.error
    after = int(kernel.value(memory))
    assert after - before < 60 << 10, "kB"

    release()
    kernel.until(lambda: "Succeeded" in kernel.text_of(card), "the end")
    forms = [display["data"] for display in [card, *kernel.updates_of(card)]]
    assert all(len(str(form)) < 40_000 for form in forms)
    assert f"Output:    {out}" in forms[-1]["text/plain"]
    assert str(out) in forms[-1]["text/html"]
    assert logs.size(out) == total
    assert "the very end" in kernel.value("job.logs(3)")


def test_a_failure_behind_a_flood_shows_a_bounded_tail(kernel: Kernel) -> None:
    ran = kernel.run(f"%%cluster_train --wait\n{FLOODS['line']}\nimport os; os._exit(3)")
    assert ran.reply["ename"] == "JobDied"
    assert len(ran.error) < SHOWN
    assert len(str(ran.displays) + str(kernel.updates)) < 20 * 40_000


def test_all_of_it_can_be_had(kernel: Kernel) -> None:
    kernel.good(f"%%cluster_train --wait --as job\n{FLOODS['lines']}")
    whole = kernel.value("[len(job.logs().splitlines()), job.logs().splitlines()[-1]]")
    assert whole == [LINES, f"a line of it {LINES - 1}"]
    seen = kernel.value("sum(len(chunk) for chunk in job.follow())")
    job: Any = lookup.job("1")
    assert seen == logs.size(job.out())


def test_the_logs_of_a_job_that_is_followed_are_whole(kernel: Kernel, tmp_path: Path) -> None:
    """Interrupted in the midst, followed again: nothing is lost or said twice, and no cell gets another's."""
    wait, release = gate(tmp_path)
    kernel.good(f"%%cluster_train --as job\nfor n in range(100): print('first', n, flush=True)\n{wait}\nprint('last')")
    sent = kernel.send("%cluster_logs 1 -f -n 0")
    kernel.until_text(sent, "first 99")
    kernel.interrupt()
    assert not kernel.collect(sent).ok
    assert outputs(kernel.good("print('mine')")) == [("stdout", "mine\n")]
    sent = kernel.send("%cluster_logs 1 -f -n 0")
    release()
    ran = kernel.collect(sent)
    assert ran.text.splitlines()[:101] == [f"first {n}" for n in range(100)] + ["last"]
    assert kernel.strays == []
