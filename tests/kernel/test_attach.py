"""Running a cell again: attached while the job lives or was never taken, anew otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.conftest import Kernel, gate
from tests.unit.making import until


def jobs(own_folders: Path) -> int:
    return len(list((own_folders / "jobs").glob("[0-9]*")))


def test_a_cell_attaches_while_its_job_lives(kernel: Kernel, tmp_path: Path, own_folders: Path) -> None:
    wait, release = gate(tmp_path)
    cell = f"%%cluster_train -o x\n{wait}\nx = base"
    kernel.good("base = 1")
    kernel.good(cell)
    again = kernel.good(cell)
    assert "Attached to job 1" in again.text
    assert "--again" in again.text
    assert len(again.displays) == 1
    kernel.good("base = 2")
    other = kernel.good(cell)
    assert "Attached to job 1" in other.text
    assert "other values of: base" in other.text
    assert jobs(own_folders) == 1
    kernel.good(cell.replace("-o x", "-o x --time 1h"))
    kernel.good(cell.replace("-o x", "-o x --again"))
    assert jobs(own_folders) == 3
    release()
    kernel.good("%cluster_wait 1 2 3")
    assert kernel.value("x") == 2


def test_a_value_that_cannot_be_compared_is_named(kernel: Kernel, tmp_path: Path) -> None:
    wait, release = gate(tmp_path)
    kernel.good("class Odd:\n    def __init__(self): self.me = {object(): self}\nodd = Odd()")
    cell = f"%%cluster_train\n{wait}\nodd"
    kernel.good(cell)
    text = kernel.good(cell).text
    release()
    assert "Attached to job 1" in text
    assert "odd" in text


def test_what_was_taken_is_sent_anew(kernel: Kernel, own_folders: Path) -> None:
    for _ in range(2):
        kernel.good("%%cluster_train --as job -o x\nx = 1")
        kernel.good("job.wait()")
        assert kernel.value("x") == 1
    kernel.good("%%cluster_train --as job\n'no names'")
    kernel.good("job.wait()")
    kernel.good("%%cluster_train --as job\n'no names'")
    assert jobs(own_folders) == 4


def test_what_no_cell_has_used_is_taken_again_also_after_the_kernel_died(
    new_kernel: Callable[..., Kernel], own_folders: Path
) -> None:
    cell = "%%cluster_train -o model other\nmodel = base\nother = 1"
    first = new_kernel()
    first.good("base = 42")
    first.good(cell)
    first.good("%cluster_wait 1")
    first.good("print('of another matter')")
    assert "nothing has used what it made" in first.good(cell).text
    first.kill()
    second = new_kernel()
    second.good("base = 42")
    assert "Attached to job 1" in second.good(cell).text
    assert second.value("model") == 42
    assert jobs(own_folders) == 1
    second.good(cell)
    assert jobs(own_folders) == 2, "it was used: whoever runs the cell again wants it done again"
    second.good("%cluster_wait 2")
    second.good("base = 43")
    assert "Attached" not in second.good(cell).text, "the job that ended was asked for something else"
    second.good("%cluster_wait 3")
    assert second.value("model") == 43


def test_with_nobody_there_what_has_come_is_taken(
    new_kernel: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch, own_folders: Path
) -> None:
    monkeypatch.setenv("CLUSTERKERNEL_INTERACTIVE", "0")
    for number in (1, 2):  # as a scheduler runs a notebook, each night
        one = new_kernel()
        one.good("%%cluster_train -o model\nmodel = 42")
        one.good(f"%cluster_wait {number}")
        one.good("pass")
        one.kill()
    assert jobs(own_folders) == 2


def test_a_failed_job_is_sent_anew(kernel: Kernel, own_folders: Path) -> None:
    for _ in range(2):
        kernel.good("%%cluster_train --as job -o x\nx = 1\n1 / 0")
        kernel.good("job.wait()")
    assert jobs(own_folders) == 2


def test_a_reopened_notebook_takes_up_a_live_job(
    new_kernel: Callable[..., Kernel], tmp_path: Path, own_folders: Path
) -> None:
    wait, release = gate(tmp_path)
    cell = f"%%cluster_train -o model\n{wait}\nmodel = 42"
    first = new_kernel()
    first.good(cell)
    first.kill()
    second = new_kernel(load=False)
    assert "Job 1 lives" in second.good("%load_ext clusterkernel").text
    assert "Attached to job 1" in second.good(cell).text
    assert "is not there yet" in second.run("model").error
    release()
    second.good("%cluster_wait 1")
    assert second.value("model") == 42
    assert jobs(own_folders) == 1


def test_a_reopened_notebook_takes_what_ended_meanwhile(
    new_kernel: Callable[..., Kernel], tmp_path: Path, own_folders: Path
) -> None:
    wait, release = gate(tmp_path)
    cell = f"%%cluster_train -o model\n{wait}\nmodel = 42"
    first = new_kernel()
    first.good(cell)
    first.kill()
    release()
    between = new_kernel()
    between.good("%cluster_wait 1")
    third = new_kernel(load=False)
    third.good("%load_ext clusterkernel")
    cards = third.good(cell)
    assert "Attached to job 1" in cards.text
    assert third.value("model") == 42
    assert jobs(own_folders) == 1
    third.good(cell)
    assert jobs(own_folders) == 2, "what was taken once is run anew"


def test_the_greeting_tells_what_ended_unseen(
    new_kernel: Callable[..., Kernel], tmp_path: Path, own_folders: Path
) -> None:
    wait, release = gate(tmp_path)
    first = new_kernel()
    first.good("%%cluster_train --as seen\n1 / 0")
    first.good("seen.wait()")
    first.good("%unload_ext clusterkernel")
    assert "Ended" not in first.good("%load_ext clusterkernel").text, "its end was shown here"
    first.good(f"%%cluster_train --as job\n{wait}\n1 / 0")
    first.kill()
    release()
    events = (own_folders / "jobs" / "2").rglob
    until(lambda: any('"outcome"' in path.read_text() for path in events("*.jsonl")), "its end")
    text = new_kernel(load=False).good("%load_ext clusterkernel").text
    assert "Ended since last time: 2 (FAILED)." in text
    assert len(text.strip().splitlines()) == 1
    assert "FAILED" not in new_kernel(load=False).good("%load_ext clusterkernel").text
