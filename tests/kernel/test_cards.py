"""Cards in real kernels: how often they change, what they bear, and the card of an array."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

from clusterkernel.render import MIME
from tests.kernel.conftest import Kernel, gate


def moment(message: dict[str, Any]) -> float:
    date = message["header"]["date"]
    assert isinstance(date, datetime.datetime)
    return date.timestamp()


def test_a_busy_job_updates_its_card_at_most_twice_a_second(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import time, clusterkernel as ck\n"
        "def go():\n"
        "    for step in range(150):\n"
        "        ck.log(step=step, loss=1 / (step + 1)); ck.progress(step, 150)\n"
        "        print('step', step, flush=True); time.sleep(0.02)\n"
    )
    card = kernel.good("%%cluster_train\nfrom busy import go\ngo()").displays[0]
    kernel.until(lambda: "Succeeded" in kernel.text_of(card), "the end")
    mine = card["transient"]["display_id"]
    times = [moment(m) for m in kernel.updates if m["content"]["transient"]["display_id"] == mine]
    assert len(times) >= 3, "it is live"
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) > 0.4, gaps
    texts = [update["data"]["text/plain"] for update in kernel.updates_of(card)]
    assert any("loss" in text and "of 150" in text for text in texts)
    assert "step 149" in kernel.updates_of(card)[-1]["data"]["text/html"]


def test_a_flood_of_output_stays_out_of_the_notebook(kernel: Kernel, tmp_path: Path) -> None:
    card = kernel.good(
        "%%cluster_train --as job\n"
        "import sys\n"
        "for _ in range(20): sys.stdout.write('x' * 1_000_000)\n"
        "print()\n"
        "for i in range(200_000): print('line', i)\n"
    ).displays[0]
    ran = kernel.good("%cluster_logs 1 -f")
    assert len(ran.text) < 3_000_000
    assert "were left out" in ran.text
    kernel.until(lambda: "Succeeded" in kernel.text_of(card), "the end")
    assert all(len(update["data"]["text/html"]) < 20_000 for update in kernel.updates_of(card))
    assert "line 199999" in [card, *kernel.updates_of(card)][-1]["data"]["text/html"]
    tail = kernel.good("%cluster_logs 1 -n 5").text
    assert tail.split() == [word for number in range(199_995, 200_000) for word in ("line", str(number))]


def test_an_array_has_one_card_for_all_its_tasks(kernel: Kernel, tmp_path: Path) -> None:
    wait, release = gate(tmp_path)
    kernel.good(
        "from clusterkernel import Executor\n"
        "def work(item):\n"
        + "".join(f"    {line}\n" for line in wait.splitlines())
        + "    if item == 3: raise ValueError('three')\n    return item\n"
        "array = Executor('local', name='sweep').map_jobs(work, range(4))"
    )
    ran = kernel.good("array")
    assert len(ran.displays) == 1
    assert ran.result is None
    card = ran.displays[0]
    assert card["data"]["text/plain"].startswith("Array 1  sweep  4 tasks: ")
    release()
    kernel.until(lambda: "4 tasks: 1 failed, 3 succeeded" in kernel.text_of(card), "the end")
    text = kernel.text_of(card)
    assert "1_3  ✗ Failed" in text
    assert "ValueError: three" in text
    data = [card, *kernel.updates_of(card)][-1]["data"][MIME]
    assert data["counts"] == {"FAILED": 1, "SUCCEEDED": 3}
    assert "Failed" in kernel.good("%cluster_status 1_3").displays[0]["data"]["text/plain"]
    assert "name one of its tasks" in kernel.run("%cluster_logs 1").text


def test_many_ended_cards_leave_nothing_behind(kernel: Kernel) -> None:
    for _ in range(3):
        kernel.good("%%cluster_train --again --wait -o x\nx = 1")
    kernel.good("cards = get_ipython().configurables[-1].cards; names = get_ipython().configurables[-1].deliveries")
    state = "[len(cards._live), cards._thread is None, len(names._waiting), len(names._ended)]"
    kernel.until(lambda: kernel.value(state) == [0, True, 0, 0], "rest")
