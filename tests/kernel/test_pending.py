"""Names that are not there yet: who may touch them, when they come, and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.conftest import Kernel, gate

LATE = "model is not there yet: job 1 is "


@pytest.fixture
def held(kernel: Kernel, tmp_path: Path) -> tuple[Kernel, Callable[[], None]]:
    """A kernel in which job 1 has yet to deliver `model`, and what lets it."""
    wait, release = gate(tmp_path)
    kernel.good("def uses():\n    return model\n\nclass Uses:\n    def go(self): return self.inner()\n"
                "    def inner(self): return model\n\nsafe = lambda model: model\n"
                "attribute = lambda x: hasattr(x, 'a') and x.model\n"
                "import functools\npart = functools.partial(uses)\nuser = Uses()\nmodel = 'old'")  # fmt: skip
    kernel.good(f"%%cluster_train --as job -o model\n{wait}\nmodel = 42")
    return kernel, release


READS = [
    "print(model)",
    "x = [m for m in (model,)]",
    "model.predict()",
    "model += 1",
    "f'{model}'",
    "if True:\n    model",
    "uses()",
    "list(map(uses, ()))",
    "Uses().go()",
    "user.go()",
    "part()",
    "def again():\n    return uses()\nagain()",
    "%time model",
    "%timeit -n 1 model",
    "%%capture out\nmodel",
    "%%time\nmodel",
    "!echo {model}",
    "%%cluster_train\nprint(model)",
    "import asyncio\nawait asyncio.sleep(0)\nmodel",
]
HARMLESS = [
    "[model for model in range(3)]",
    "safe(3)",
    "attribute(job.record)",
    "def later():\n    return model",
    "%cluster_status 1",
    "%who",
    "%whos",
    "job.state",
    "!echo model",
    "len(globals()) > 0",
    "print('model')",
    "%cluster_jobs",
]


def test_a_cell_that_reads_the_name_is_refused_in_one_line(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, _ = held
    for code in READS:
        ran = kernel.run(f"touched = True\n{code}" if not code.startswith("%%") else code)
        assert not ran.ok, code
        assert LATE in ran.error, f"{code}: {ran.error}"
        assert "put %cluster_wait 1 in a cell before this one" in ran.error
        assert len(ran.error.strip().splitlines()) == 1, f"{code}: {ran.error}"
        assert ran.reply["ename"] == "PendingError"
    assert kernel.value("'touched' in globals()") is False, "no part of such a cell runs"


def test_a_cell_that_does_not_read_it_runs(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, _ = held
    for code in HARMLESS:
        ran = kernel.run(code)
        assert ran.ok, f"{code}: {ran.error}{ran.text}"


def test_run_all_stops_there(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, _ = held
    sent = [kernel.send(code) for code in ("before = 1", "print(model)", "after = 1")]
    replies = [kernel.collect(each).reply["status"] for each in sent]
    assert replies == ["ok", "error", "aborted"]


def test_what_slips_through_raises_all_the_same(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, _ = held
    kernel.good("box = [globals()['mo' + 'del']]")
    assert kernel.good("print(repr(box[0]))").text.startswith("<model: job 1 (")
    uses = (
        "box[0].fit", "box[0]()", "list(box[0])", "bool(box[0])", "box[0] + 1", "1 - box[0]", "box[0] == 1",
        "box[0][0]", "str(box[0])", "len(box[0])", "-box[0]", "box[0].x = 1", "float(box[0])", "1 in box[0]",
        "import pickle; pickle.dumps(box[0])", "import copy; copy.copy(box[0])", "box[0] @ box[0]",
        "import numpy; numpy.asarray(box[0])", "with box[0]: pass", "hasattr(box[0], 'fit')",
    )  # fmt: skip
    for code in uses:
        ran = kernel.run(code)
        assert not ran.ok, code
        assert LATE in ran.error, f"{code}: {ran.error}"


def test_the_name_comes_between_cells(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, release = held
    sent = kernel.send(
        "first = type(globals()['model']).__name__\nprint('begun', flush=True)\n"
        "import time\nwhile not job.done(): time.sleep(0.02)\n"
        "time.sleep(0.5)\nlast = type(globals()['model']).__name__"
    )
    queued = kernel.send("print('now', model)")
    kernel.until_text(sent, "begun")
    release()
    assert kernel.collect(sent).ok
    assert kernel.collect(queued).text == "now 42\n", "and is there for the next queued cell"
    assert kernel.value("(first, last)") == ("Pending", "Pending"), "no name changes within a cell"


def test_the_name_does_not_come_at_an_await(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, release = held
    sent = kernel.send(
        "import asyncio\nprint('begun', flush=True)\nawait job\nfor _ in range(20): await asyncio.sleep(0.02)\n"
        "last = type(globals()['model']).__name__"
    )
    kernel.until_text(sent, "begun")
    release()
    assert kernel.collect(sent).ok
    assert kernel.value("last") == "Pending"
    assert kernel.value("model") == 42


def test_an_idle_kernel_binds_by_itself(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, release = held
    release()
    kernel.until(lambda: any("model (bound)" in m["content"]["data"]["text/plain"] for m in kernel.updates), "the name")


def test_what_the_person_put_there_stays(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, release = held
    kernel.good("model = 'mine'")
    release()
    kernel.good("job.wait()")
    assert kernel.value("model") == "mine"
    card = kernel.good("%cluster_status 1").displays[0]["data"]["text/plain"]
    assert "model was not bound: it was assigned here meanwhile. %cluster_bind 1 model takes the job's." in card
    kernel.good("%cluster_bind 1")
    assert kernel.value("model") == 42


def test_a_deleted_placeholder_does_not_come_back(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, release = held
    kernel.good("del model")
    release()
    kernel.good("job.wait()")
    assert kernel.value("'model' in globals()") is False


@pytest.mark.parametrize("how", ["config", "environment"])
def test_a_cell_may_wait_in_place_of_being_refused(new_kernel: Callable[..., Kernel], tmp_path: Path, how: str) -> None:
    kernel = new_kernel(**({"CLUSTERKERNEL_ON_PENDING": "wait"} if how == "environment" else {}))
    if how == "config":
        kernel.good("%config ClusterKernel.on_pending = 'wait'")
    wait, release = gate(tmp_path)
    kernel.good(f"%%cluster_train -o model\n{wait}\nmodel = 42")
    sent = kernel.send("print(model)")
    release()
    assert kernel.collect(sent).text.splitlines()[-1] == "42"


def test_waiting_for_a_name_can_be_interrupted(held: tuple[Kernel, Callable[[], None]]) -> None:
    kernel, release = held
    kernel.good("%config ClusterKernel.on_pending = 'wait'")
    sent = kernel.send("model")
    kernel.until_text(sent, "Waiting for model of job 1")
    kernel.interrupt()
    ran = kernel.collect(sent)
    assert not ran.ok
    assert "Job 1 goes on" in ran.error
    release()
    assert kernel.good("model").result == "42"


def test_a_name_that_never_came_tells_why(kernel: Kernel) -> None:
    kernel.good("%%cluster_train --as job -o model\nimport threading\nmodel = threading.Lock()")
    kernel.good("job.wait()")
    ran = kernel.run("model")
    assert "could not be saved by job 1" in ran.error
    kernel.good("%%cluster_train --as job -o other\nother = 1\nraise ValueError('loss is nan')")
    kernel.good("job.wait()")
    ran = kernel.run("other")
    assert "ValueError: loss is nan" in ran.error
    assert len(ran.error.splitlines()) == 1


PAINT_FIRST = """
import threading
from clusterkernel.magics.cards import Cards
_told = Cards.delivered
def _late(self, *args, **more):
    painter = threading.Thread(target=self.flush)
    painter.start()
    painter.join()
    _told(self, *args, **more)
Cards.delivered = _late
"""


def test_a_card_that_is_painted_just_before_its_names_come_still_tells_of_them(
    held: tuple[Kernel, Callable[[], None]],
) -> None:
    kernel, release = held
    card = kernel.good("%cluster_status 1").displays[0]
    kernel.good(PAINT_FIRST)
    release()
    kernel.good("%cluster_wait 1")
    kernel.until(lambda: "model (bound)" in kernel.text_of(card), "the name")
    assert kernel.value("model") == 42


def test_what_is_large_is_bound_on_request(kernel: Kernel) -> None:
    kernel.good("%config ClusterKernel.bind_limit_mb = 1")
    card = kernel.good("%%cluster_train -o big --as job\nbig = b'x' * 2_000_000").displays[0]
    kernel.until(lambda: "not bound" in kernel.text_of(card), "the note")
    text = kernel.text_of(card)
    assert "2 MB" in text
    assert "%cluster_bind 1 big" in text
    assert "%cluster_bind 1 big" in kernel.run("len(big)").error
    kernel.good("%cluster_bind 1 big")
    assert kernel.value("len(big)") == 2_000_000
