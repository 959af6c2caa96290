"""ck.log and ck.progress: what user code calls inside a job."""

import json
import math
import multiprocessing
import os
import subprocess
import sys
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest

from clusterkernel.runtime import metrics


@pytest.fixture
def out(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("CLUSTERKERNEL_") or name == "RANK"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLUSTERKERNEL_OUT", str(tmp_path))
    metrics._told.clear()
    return tmp_path


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_record(out):
    metrics.log(step=3, epoch=0.5, loss=0.25, acc=1)
    (record,) = records(out)
    assert record.pop("t") > 1.6e9
    assert record == {"source": "log", "rank": 0, "step": 3, "epoch": 0.5, "values": {"loss": 0.25, "acc": 1.0}}


def test_metrics_may_come_in_a_mapping(out):
    """As wandb and MLflow take them."""
    metrics.log({"loss": 0.25, "step": 3, "epoch": 0.5})
    metrics.log({"loss": 0.5}, step=4, acc=1)
    metrics.log(5, loss=0.75)
    metrics.log(metrics=2, loss=1)
    found = [(each["step"], each["epoch"], each["values"]) for each in records(out)]
    assert found == [
        (3, 0.5, {"loss": 0.25}),
        (4, None, {"loss": 0.5, "acc": 1.0}),
        (5, None, {"loss": 0.75}),
        (None, None, {"metrics": 2.0, "loss": 1.0}),
    ]


def test_step_and_epoch_may_be_left_out(out):
    metrics.log(loss=1)
    assert records(out)[0]["step"] is records(out)[0]["epoch"] is None


class Tensor:
    """A tensor of torch's that takes part in autograd: turning it into a number warns unless it is detached."""

    def __init__(self, *values, detached=False):
        self.values, self.detached = values, detached

    def detach(self):
        return Tensor(*self.values, detached=True)

    def item(self):
        assert self.detached
        if len(self.values) != 1:
            raise RuntimeError(f"a Tensor with {len(self.values)} elements cannot be converted to Scalar")
        return self.values[0]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (2, 2.0), (True, 1.0), (0.5, 0.5), (np.float32(0.5), 0.5), (np.float64(0.5), 0.5), (np.int64(7), 7.0),
        (np.array(0.5), 0.5), (np.array([[0.5]]), 0.5), (np.bool_(True), 1.0), (Tensor(0.5), 0.5),
        (Decimal("0.5"), 0.5), (Fraction(1, 2), 0.5), (math.inf, math.inf), (-math.inf, -math.inf),
        (10**400, math.inf), (-(10**400), -math.inf),
    ],
)  # fmt: skip
def test_numbers(out, value, number):
    metrics.log(loss=value)
    assert records(out)[0]["values"] == {"loss": number}


def test_nan(out):
    metrics.log(loss=float("nan"), other=np.float32("nan"))
    assert all(math.isnan(value) for value in records(out)[0]["values"].values())


class Rude:
    """A value whose own code raises whatever it is asked."""

    def __repr__(self):
        raise ValueError

    __float__ = item = __str__ = __repr__


@pytest.mark.parametrize("value", ["0.5", b"1", None, [0.5], {}, np.zeros(3), Tensor(1, 2), 1j, object(), Rude()])
def test_what_is_no_number_is_left_out_and_named_once(out, capfd, value):
    for step in (1, 2):
        metrics.log(step=step, loss=0.5, val_loss=value)
    assert [record["values"] for record in records(out)] == [{"loss": 0.5}, {"loss": 0.5}]
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("clusterkernel: val_loss")
    assert "number" in line


def test_where_nothing_is_left_there_is_no_record(out):
    metrics.log(step=1, loss="much")
    assert not (out / "metrics.jsonl").exists()


@pytest.mark.parametrize("step", [3.5, "x", math.nan, math.inf, [1], {"loss": 1}, 10**400, 2**63])
def test_a_step_is_whole(out, capfd, step):
    metrics.log(step=step, loss=0.5)
    assert [(record["step"], record["values"]) for record in records(out)] == [(None, {"loss": 0.5})]
    assert capfd.readouterr().err.startswith("clusterkernel: step")


def test_complaints_end(out, capfd):
    for number in range(100):
        metrics.log(**{f"loss_{number}": "x"})
    assert 0 < len(capfd.readouterr().err.splitlines()) < 50


def test_a_name_with_half_a_surrogate_pair_is_readable_by_everybody(out):
    metrics.log(**{"lo\ud800ss": 1})
    metrics.progress(1, 2, "\udfff")
    found = [msgspec.json.decode(line) for line in (out / "metrics.jsonl").read_bytes().splitlines()]
    assert (found[0]["values"], found[1]["what"]) == ({"lo?ss": 1.0}, "?")


@pytest.mark.parametrize("step", [3, 3.0, np.int32(3), np.array(3), Tensor(3)])
def test_step_like(out, step):
    metrics.log(step=step)
    assert records(out)[0]["step"] == 3
    assert type(records(out)[0]["step"]) is int


def test_progress(out):
    metrics.progress(np.int64(30), 100)
    metrics.progress(0.5, 1.5, "epochs ✓")
    assert [{key: record[key] for key in ("source", "done", "total", "what")} for record in records(out)] == [
        {"source": "progress", "done": 30, "total": 100, "what": None},
        {"source": "progress", "done": 0.5, "total": 1.5, "what": "epochs ✓"},
    ]


@pytest.mark.parametrize(("done", "total"), [(1, "many"), (math.nan, 2), (1, math.inf), (None, 3)])
def test_a_progress_of_no_numbers_is_left_out(out, capfd, done, total):
    metrics.progress(done, total)
    assert not (out / "metrics.jsonl").exists()
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_outside_a_job_it_does_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("CLUSTERKERNEL_OUT", raising=False)
    monkeypatch.chdir(tmp_path)
    metrics.log(step=1, loss=0.5)
    metrics.progress(1, 2)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    metrics._told.clear()
    metrics.log(loss="much")  # found before it is sent
    assert (
        capfd.readouterr().err == "clusterkernel: loss='much' is text, not a number. It is left out of the metrics.\n"
    )


@pytest.mark.parametrize("folder", ["gone", "file/below"])
def test_a_folder_that_cannot_be_written_costs_the_record_only(tmp_path, monkeypatch, capfd, folder):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CLUSTERKERNEL_OUT", str(tmp_path / folder))
    metrics.log(loss=0.5)
    assert capfd.readouterr() == ("", "")


def test_a_full_disk_costs_the_record_only(out):
    (out / "metrics.jsonl").symlink_to("/dev/full")
    metrics.log(loss=0.5)


def test_rank(out, monkeypatch):
    monkeypatch.setenv("CLUSTERKERNEL_RANK", "2")
    metrics.log(loss=1)
    monkeypatch.setenv("RANK", "5")  # what torchrun sets wins; and it may be set after the first record
    metrics.log(loss=1)
    monkeypatch.setenv("RANK", "none")
    metrics.log(loss=1)
    assert [record["rank"] for record in records(out)] == [2, 5, 2]


def test_another_job_has_another_file(out, monkeypatch, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    metrics.log(loss=1)
    monkeypatch.setenv("CLUSTERKERNEL_OUT", str(other))
    metrics.log(loss=2)
    monkeypatch.setenv("CLUSTERKERNEL_OUT", str(out))
    metrics.log(loss=3)
    assert [record["values"]["loss"] for record in records(out)] == [1, 3]
    assert [record["values"]["loss"] for record in records(other)] == [2]


def test_threads_and_forks_append_whole_records(out):
    metrics.log(loss=0)  # the file is open before the forks

    def work(name):
        for step in range(300):
            metrics.log(step=step, **{name: float(step), "padding" * 30: 1.0})

    fork = multiprocessing.get_context("fork")
    workers = [fork.Process(target=work, args=(f"process{number}",)) for number in range(3)]
    for worker in workers:
        worker.start()
    workers += [threading.Thread(target=work, args=(f"thread{number}",)) for number in range(3)]
    for worker in workers[3:]:
        worker.start()
    for worker in workers:
        worker.join()
    found = records(out)
    assert len(found) == 1 + 6 * 300
    for number in range(3):
        for name in (f"process{number}", f"thread{number}"):
            assert [record["step"] for record in found if name in record["values"]] == list(range(300))


def test_a_number_that_was_given_to_another_file_is_not_written_to(out, tmp_path_factory):
    metrics.log(loss=1)
    descriptor = metrics._channel._open[1]
    stranger = tmp_path_factory.mktemp("stranger") / "file"
    stranger.write_bytes(b"")
    replacement = os.open(stranger, os.O_RDWR)
    os.dup2(replacement, descriptor)
    metrics.log(loss=2)
    os.close(replacement)
    assert stranger.read_bytes() == b""
    assert [record["values"]["loss"] for record in records(out)] == [1, 2]
    os.close(descriptor)


def test_half_a_record_does_not_spoil_the_next(out, monkeypatch):
    real = os.write

    def short(descriptor, data):
        return real(descriptor, data[:10] if len(data) > 10 else data)

    monkeypatch.setattr(metrics.os, "write", short)
    metrics.log(loss=1)
    monkeypatch.setattr(metrics.os, "write", real)
    metrics.log(loss=2)
    assert json.loads((out / "metrics.jsonl").read_text().splitlines()[1])["values"] == {"loss": 2.0}


def test_it_is_light():
    code = (
        "import sys; sys.path.append(sys.argv[1]); from runtime import metrics; metrics.log(loss=1)\n"
        "print([name for name in ('numpy', 'torch', 'pandas', 'cloudpickle') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", code, str(Path(metrics.__file__).parent.parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "[]"
