"""The log parser against real captures, real tqdm and hostile bytes."""

import ast
import contextlib
import io
import itertools
import json
import math
import random
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tqdm import tqdm

from clusterkernel.runtime.logparse import LogParser

LOGS = Path(__file__).parent / "data" / "logs"
RUNTIME = Path(__file__).parents[2] / "clusterkernel" / "runtime"


def read(name):
    return (LOGS / name).read_bytes()


def pipes(name, *order):
    return [(stream, read(f"{name}.{stream}"), 0.0) for stream in order]


def arrivals():
    events = [json.loads(line) for line in read("train_torchrun_1p.events.jsonl").splitlines()]
    return [(event["fd"], event["data"].encode(), event["t"]) for event in events]


def only_dictionaries(chunks):
    """What a trainer prints that tells nothing of its settings."""
    kept = []
    for stream, data, now in chunks:
        if stream == "stdout":
            data = b"".join(line for line in data.splitlines(keepends=True) if line.startswith((b"{'", b"\n")))
        kept.append((stream, data, now))
    return kept


def cut(chunks, seed):
    """The same bytes in other chunks."""
    if seed is None:
        return chunks
    rng = random.Random(seed)
    pieces = []
    for stream, data, now in chunks:
        position = 0
        while position < len(data):
            size = rng.choice([1, 1, 2, 3, 7, 20, 100, 1000, 5000])
            pieces.append((stream, data[position : position + size], now))
            position += size
    return pieces


def parse(chunks, parser=None):
    parser = parser or LogParser()
    records = []
    now = 0.0
    for stream, data, now in chunks:
        records += parser.feed(data, stream, now)
    return records + parser.close(now)


def parsed(records):
    return [record for record in records if record["source"] == "parsed"]


def progress(records):
    return [(record["done"], record["total"]) for record in records if record["source"] == "progress"]


def truth(name, first=0):
    """What the checkpoint says was logged, from the evaluation at step `first` on."""
    history = json.loads(read(f"trainer_state_{name}.json"))["log_history"]
    start = next(i for i, entry in enumerate(history) if entry["step"] == first and "eval_loss" in entry)
    return history[start:]


def check_against(records, history):
    """Every entry of the history was found: its step, and each number to the digits printed."""
    rows = parsed(records)
    assert [row["rank"] for row in rows] == [0] * len(rows)
    summary = [row for row in rows if "train_runtime" in row["values"]]
    rows = [row for row in rows if "train_runtime" not in row["values"]]
    assert [row["step"] for row in summary] == [history[-1]["step"]]
    assert [(row["step"], "eval_loss" in row["values"]) for row in rows] == [
        (entry["step"], "eval_loss" in entry) for entry in history
    ]
    for row, entry in zip(rows, history, strict=True):
        expected = {name: value for name, value in entry.items() if name not in ("step", "epoch")}
        assert row["values"].keys() == expected.keys()
        for name, value in expected.items():
            assert row["values"][name] == pytest.approx(value, rel=5e-4, abs=1e-12), name
        assert row["epoch"] == pytest.approx(entry["epoch"], rel=5e-4)


WHOLE = {
    "as it came": arrivals,
    "terminal": lambda: pipes("train_torchrun_1p_pty", "stdout"),
    "stdout then stderr": lambda: pipes("train_torchrun_1p", "stdout", "stderr"),
    "stderr then stdout": lambda: pipes("train_torchrun_1p", "stderr", "stdout"),
    "stdout alone": lambda: pipes("train_torchrun_1p", "stdout"),
    "as it came, dictionaries only": lambda: only_dictionaries(arrivals()),
    "stdout then stderr, dictionaries only": lambda: only_dictionaries(pipes("train_torchrun_1p", "stdout", "stderr")),
    "stderr then stdout, dictionaries only": lambda: only_dictionaries(pipes("train_torchrun_1p", "stderr", "stdout")),
}
RESUMED = {
    "stdout then stderr": lambda: pipes("resume_auto_1p", "stdout", "stderr"),
    "stderr then stdout": lambda: pipes("resume_auto_1p", "stderr", "stdout"),
    "stdout alone": lambda: pipes("resume_auto_1p", "stdout"),
    "stdout then stderr, dictionaries only": lambda: only_dictionaries(pipes("resume_auto_1p", "stdout", "stderr")),
    "stderr then stdout, dictionaries only": lambda: only_dictionaries(pipes("resume_auto_1p", "stderr", "stdout")),
}


def same_run(records, history):
    # The terminal's capture is of a second run: the speeds differ, all else is the same.
    for entry in history:
        for name in [name for name in entry if re.search("per_sec|runtime", name)]:
            del entry[name]
    for row in parsed(records):
        if "train_runtime" not in row["values"]:
            for name in [name for name in row["values"] if re.search("per_sec|runtime", name)]:
                del row["values"][name]
    return records, history


@pytest.mark.parametrize("seed", [None, *range(8)])
@pytest.mark.parametrize("way", WHOLE)
def test_every_step_of_a_run(way, seed):
    records, history = parse(cut(WHOLE[way](), seed)), truth("ckpt20")
    check_against(*(same_run(records, history) if way == "terminal" else (records, history)))


@pytest.mark.parametrize("seed", [None, *range(8)])
@pytest.mark.parametrize("way", RESUMED)
def test_every_step_of_a_resumed_run(way, seed):
    # The evaluation before training is of step 20, though the bar still says 0.
    check_against(parse(cut(RESUMED[way](), seed)), truth("resumed_ckpt40", first=20))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_chunks_do_not_matter(data):
    way = data.draw(st.sampled_from(sorted(set(WHOLE) - {"as it came", "as it came, dictionaries only"})))
    whole = WHOLE[way]()
    ends = data.draw(st.lists(st.floats(0, 1), max_size=40))
    pieces = []
    for stream, text, now in whole:
        cuts = sorted({0, len(text), *(int(end * len(text)) for end in ends)})
        pieces += [(stream, text[a:b], now) for a, b in itertools.pairwise(cuts)]
    assert parsed(parse(pieces)) == parsed(parse(whole))


def test_stdout_without_settings_has_no_steps_but_those_of_epoch_0():
    rows = parsed(parse(only_dictionaries(pipes("train_torchrun_1p", "stdout"))))
    assert [row["step"] for row in rows] == [0] + [None] * 23
    assert rows[-2]["epoch"] == 0.2222


@pytest.mark.parametrize("order", [("stdout", "stderr"), ("stderr", "stdout")])
def test_a_run_that_was_ended(order):
    rows = parsed(parse(pipes("sig_SIGTERM_torchrun_1p", *order)))
    assert [row["step"] for row in rows] == list(range(26))
    assert rows[25]["values"]["loss"] == 4.569


@pytest.mark.parametrize("order", [("stdout", "stderr"), ("stderr", "stdout")])
def test_accelerate(order):
    check_steps = [row["step"] for row in parsed(parse(pipes("train_accelerate_1p", *order)))]
    assert check_steps == [0, *range(1, 11), 10, *range(11, 21), 20, 20]


@pytest.mark.parametrize("name", ["preprocess", "err_e1", "err_e3"])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_no_metrics_without_training(name, seed):
    # Tokenising, saving and loading have bars; the configuration has loss, epochs and learning rates in it.
    assert parse(cut(pipes(name, "stdout", "stderr"), seed)) == []


def test_progress_is_of_the_training_bar():
    shown = progress(parse(arrivals()))
    assert shown[0] == (0, 20)
    assert shown[-1] == (20, 20)
    assert {total for _, total in shown} == {20}  # neither 10 (evaluation) nor 21 and 1 (weights and shards)
    assert [done for done, _ in shown] == sorted(done for done, _ in shown)
    assert progress(parse(pipes("sig_SIGTERM_torchrun_1p", "stderr")))[-1] == (25, 300)


def test_records_are_those_of_the_contract():
    for record in parse(arrivals()):
        shape = {"t", "source", "rank"}
        shape |= {"done", "total", "what"} if record["source"] == "progress" else {"step", "epoch", "values"}
        assert record.keys() == shape
        json.dumps(record)


# -- a live run -------------------------------------------------------------------

LINE = "{'loss': '%.4g', 'grad_norm': '1', 'learning_rate': '0.001', 'epoch': '%.4g'}\n"


def clear_and_redraw(n, total):
    return f"\r{' ' * 46}\r\r {100 * n // total:2d}%|#####     | {n}/{total} [00:00<00:08,  2.14it/s]".encode()


def test_a_slow_run_is_logged_within_two_seconds():
    parser = LogParser()
    late = []
    for step in range(1, 6):
        now = 1.7e9 + 100.0 * step
        records = parser.feed(LINE.encode() % (1 / step, step / 90), "stdout", now)
        records += parser.feed(clear_and_redraw(step, 300), "stderr", now + 0.001)
        while not parsed(records):
            assert parser.due is not None
            now = parser.due
            records += parser.tick(now)
        (row,) = parsed(records)
        assert row["step"] == step
        assert row["t"] == 1.7e9 + 100.0 * step
        late.append(now - row["t"])
    assert late[0] <= 2.0  # one pair alone might be chance: it waits for a second one
    assert late[1:] == [0.0] * 4


def test_one_stream_waits_for_the_next_frame_only():
    parser = LogParser()
    assert parsed(parser.feed(b"\r  0%|          | 0/300 [00:00<?, ?it/s]", "stdout", 1.0)) == []
    assert parsed(parser.feed(b"\r          \r" + LINE.encode() % (2.5, 7 / 90), "stdout", 2.0)) == []
    (row,) = parsed(parser.feed(b"\r  2%|          | 7/300 [00:00<00:08,  2.14it/s]", "stdout", 2.0))
    assert (row["step"], row["values"]["loss"]) == (7, 2.5)


def test_without_anything_else_the_step_is_left_out_in_time():
    parser = LogParser()
    assert parser.feed(LINE.encode() % (2.5, 0.5), "stdout", 10.0) == []
    assert parser.tick(11.0) == []
    assert parser.due <= 12.0
    (row,) = parser.tick(parser.due)
    assert row == {
        "t": 10.0, "source": "parsed", "rank": 0, "step": None, "epoch": 0.5,
        "values": {"loss": 2.5, "grad_norm": 1.0, "learning_rate": 0.001},
    }  # fmt: skip
    assert parser.due is None


def test_resuming_slowly_knows_the_step_of_the_first_evaluation():
    parser = LogParser()
    parser.feed(b"Using auto-resume functionality to resume from checkpoint at out/checkpoint-20\n", "stdout", 1.0)
    parser.feed(b"\r  0%|          | 0/40 [00:00<?, ?it/s]", "stderr", 2.0)
    records = parser.feed(b"{'eval_loss': '4.7', 'eval_runtime': '0.2', 'epoch': '0.2222'}\n", "stdout", 3.0)
    assert [row["step"] for row in parsed(records)] == [20]


# -- runs made with tqdm itself -----------------------------------------------------


class Recorder(io.TextIOBase):
    encoding = "utf-8"

    def __init__(self, stream, chunks):
        self.stream, self.chunks = stream, chunks

    def write(self, text):
        self.chunks.append((self.stream, text.encode(), 0.0))
        return len(text)


PRINTED = {
    "four digits": lambda value: value if isinstance(value, int) else f"{value:.4g}",
    "two decimals": lambda value: round(value, 2),
    "all digits": lambda value: value,
}


def transformers(
    printed, batches=90, accumulate=1, epochs=1, max_steps=None, start=0, every=1, first=False, eval_every=10, eval_n=10
):  # fmt: skip
    """What transformers' ProgressCallback writes with tqdm: (chunks, true steps)."""
    chunks, steps = [], []
    per_epoch = math.ceil(batches / accumulate)
    total = max_steps or per_epoch * epochs

    def epoch(step):
        whole, rest = divmod(step, per_epoch)
        return whole + min(rest * accumulate, batches) / batches

    with (
        contextlib.redirect_stdout(Recorder("stdout", chunks)),
        contextlib.redirect_stderr(Recorder("stderr", chunks)),
    ):
        bar = tqdm(total=total, dynamic_ncols=False)

        def log(step, values):
            values = {**values, "number": len(steps), "epoch": PRINTED[printed](epoch(step)) if step else 0}
            steps.append(step)
            tqdm.write(str(values), file=sys.stdout)

        def evaluate(step):
            inner = tqdm(total=eval_n, leave=False)
            for _ in range(eval_n):
                inner.update(1)
            log(step, {"eval_loss": 1.5})
            inner.close()

        evaluate(start)
        shown = 0
        for step in range(start + 1, total + 1):
            bar.update(step - shown)
            shown = step
            if step % every == 0 or (first and step == 1):
                log(step, {"loss": 2.5, "learning_rate": 1e-4})
            if eval_every and step % eval_every == 0:
                evaluate(step)
        log(total, {"train_runtime": 1.0, "train_loss": 1.0})
        bar.close()
    return chunks, steps


def late(chunks, seed, most):
    """Each stream in its order, but read up to `most` chunks later than it was written."""
    rng = random.Random(seed)
    ready = {"stdout": 0.0, "stderr": 0.0}
    keyed = []
    for number, (stream, data, now) in enumerate(chunks):
        ready[stream] = max(ready[stream], number + rng.uniform(0, most))
        keyed.append((ready[stream], number, (stream, data, now)))
    return [item for *_, item in sorted(keyed)]


WAYS = {
    "in order": lambda chunks: chunks,
    "one stream": lambda chunks: [("stdout", data, now) for _, data, now in chunks],
    "stderr first": lambda chunks: sorted(chunks, key=lambda chunk: chunk[0]),
    "stdout first": lambda chunks: sorted(chunks, key=lambda chunk: chunk[0], reverse=True),
    "a little late": lambda chunks: late(chunks, 1, 3),
    "later": lambda chunks: late(chunks, 2, 20),
}
RUNS = {
    "plain": {},
    "an evaluation as long as the training": {"eval_n": 90},
    "several epochs": {"batches": 100, "epochs": 3, "eval_every": 50},
    "more steps than the epoch's digits tell": {"batches": 7003, "every": 10, "eval_every": 500},
    "an odd number of batches for each step": {"batches": 10, "accumulate": 4, "epochs": 5, "eval_every": 0},
    "the same, longer": {"batches": 1001, "accumulate": 4, "epochs": 3, "every": 5, "eval_every": 50},
    "the first step too": {"batches": 500, "epochs": 2, "every": 10, "first": True, "eval_every": 100},
    "resumed": {"max_steps": 40, "start": 20},
    "resumed late": {"batches": 1000, "max_steps": 2600, "start": 2500},
    "resumed later": {"batches": 9000, "max_steps": 12600, "start": 12500, "every": 5},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("printed", PRINTED)
@pytest.mark.parametrize("run", RUNS)
def test_steps_of_any_run(run, printed, way):
    chunks, steps = transformers(printed, **RUNS[run])
    rows = parsed(parse(WAYS[way](chunks)))
    found = {int(row["values"]["number"]): row["step"] for row in rows}
    assert len(rows) == len(found) == len(steps)
    missing = [number for number, step in found.items() if step is None]
    # A step is never wrong. The first evaluation of a resumed run may not be told by so few digits.
    assert [(number, step) for number, step in enumerate(steps) if found[number] not in (step, None)] == []
    assert missing == [] or (RUNS[run].get("start") and missing == [0])


def test_two_trainings_in_one_process():
    first, steps = transformers("four digits")
    second, more = transformers("four digits", batches=33, epochs=2)
    third, most = transformers("four digits", batches=66)  # as many steps as the second
    for way in ("in order", "one stream", "a little late"):
        rows = parsed(parse(WAYS[way](first + second + third)))
        assert sorted(row["step"] for row in rows) == sorted(steps + more + most)


def test_an_evaluation_before_and_after_training():
    def evaluation(total):
        frames = b"".join(
            b"\r%3d%%|###       | %d/%d [00:00<00:00, 9.00it/s]" % (n * 100 // total, n, total)
            for n in range(total + 1)
        )
        return [("stderr", frames + b"\n", 0.0)]

    chunks, steps = transformers("four digits")
    records = parse(evaluation(17) + chunks + evaluation(23))
    assert [row["step"] for row in parsed(records)] == steps
    assert progress(records)[-1] == (90, 90)


# -- what else is printed -------------------------------------------------------------


def one(line, stream="stdout"):
    data = line if isinstance(line, bytes) else line.encode()
    rows = parsed(parse([(stream, data + b"\n", 0.0)]))
    assert len(rows) == 1, rows
    return rows[0]["step"], rows[0]["epoch"], rows[0]["values"]


@pytest.mark.parametrize(
    ("line", "step", "epoch", "values"),
    [
        ("step 10 loss 0.25", 10, None, {"loss": 0.25}),
        ("epoch=3 loss=0.5 acc: 0.9", None, 3.0, {"loss": 0.5, "acc": 0.9}),
        ("Step: 5 | loss: 0.2", 5, None, {"loss": 0.2}),
        ("[100/500] loss=0.75", 100, None, {"loss": 0.75}),
        ("Epoch 2/10 - loss: 0.3 - acc: 0.8", None, 2.0, {"loss": 0.3, "acc": 0.8}),
        ('{"step": 3, "loss": 0.2}', 3, None, {"loss": 0.2}),
        ('{"step": 3, "loss": NaN, "lr": 1e-05}', 3, None, {"loss": math.nan, "lr": 1e-5}),
        ('{"global_step": 9, "epoch": 1.5, "train": {"loss": 0.3}}', 9, 1.5, {"train/loss": 0.3}),
        ("{'loss': tensor(0.5, device='cuda:0'), 'f1': np.float64(0.5), 'step': 8}", 8, None, {"loss": 0.5, "f1": 0.5}),
        ("loss': '5.799', 'ppl': '3.5', 'step': 9}it]", 9, None, {"loss": 5.799, "ppl": 3.5}),
        ("oss': '5.799', 'ppl': '3.5', 'step': 9}", 9, None, {"loss": 5.799, "ppl": 3.5}),
        ("\x1b[32mINFO\x1b[0m {'loss': 'nan', 'ppl': 'inf', 'step': 4}", 4, None, {"loss": math.nan, "ppl": math.inf}),
        (" 3%|3 | 3/100 [00:12<06:28,  4.00s/it]{'loss': 1.5, 'step': 3}", 3, None, {"loss": 1.5}),
        ("step 0: train loss 4.2874, val loss 4.2823", 0, None, {"train_loss": 4.2874, "val_loss": 4.2823}),
        ("iter 10: loss 3.2345, time 123.45ms, mfu 12.30%", 10, None, {"loss": 3.2345, "mfu": 12.3}),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300000", None, 1.0, {"loss": 2.3}),
        ("Epoch: [0][  10/5005]\tLoss 6.9e+00 (7.0e+00)\tAcc@1   0.50 (  0.12)", 10, 0.0, {"loss": 6.9, "acc@1": 0.5}),
        ("Epoch [1/5], Step [100/600], Loss: 0.5123", 100, 1.0, {"loss": 0.5123}),
        ("mmengine - INFO - Iter(train) [  50/800]  lr: 1.0e-02  loss: 1.5", 50, None, {"lr": 0.01, "loss": 1.5}),
        ("2024-05-01 10:00:00,123 - INFO - trainer - step 10 loss 0.25", 10, None, {"loss": 0.25}),
        ("[2026-11-30 09:49:12,342] [INFO] [axolotl.core] [RANK:0] step: 5 loss: 0.2", 5, None, {"loss": 0.2}),
        ("epoch 001 | loss 5.2 | ppl 36.75 | wps 1000 | lr 0.5", None, 1.0, {"loss": 5.2, "ppl": 36.75, "lr": 0.5}),
        ("step=13, loss=inf, lr=1e-05", 13, None, {"loss": math.inf, "lr": 1e-5}),
        ("Iteration 1000, loss = 0.69314718", 1000, None, {"loss": 0.69314718}),
        ("global_step: 400, reward: 1.25, kl: -0.02", 400, None, {"reward": 1.25, "kl": -0.02}),
    ],
)  # fmt: skip
def test_prints(line, step, epoch, values):
    found = one(line)
    assert found[:2] == (step, epoch)
    assert found[2] == pytest.approx(values, nan_ok=True)


NOTHING = [
    "Epoch 00003: val_loss improved from 0.50 to 0.40, saving model to ckpt-03.hdf5",
    '  "learning_rate": 0.001,',
    '  "max_steps": 20,',
    '    "reward_num_workers": 1,',
    "Traceback (most recent call last):",
    '  File "/home/user/train.py", line 10, in step',
    "    loss = criterion(step, 0.5)  # epoch 3",
    '    assert loss == 0.5, "step 3"',
    "ValueError: loss is nan at step 3",
    "RuntimeError: step 3: loss = 0.5 is too low",
    "2024-01-01 10:00:00 step complete",
    "Using torch 2.1.0 with loss scaling 1.0",
    "At step 3 of the tutorial we saw that the loss was 0.5 and then it dropped",
    "At step 3 of this long tutorial we see loss: 0.5 once again",
    "Downloading model.safetensors:  12%|#2        | 123M/1.02G [00:01<00:09, 95.3MB/s]",
    "Downloading shards:  50%|#####     | 1/2 [00:01<00:01,  1.00s/it]",
    "Map: 100%|##########| 200/200 [00:00<00:00, 662.75 examples/s]",
    "  Num Epochs = 3",
    "  Total optimization steps = 1,000",
    "{'epoch': 10, 'lr': 0.1, 'seed': 42, 'model': 'resnet'}",
    "{'loss': 'mse', 'step': 3}",
    "{'loss_scale': 1.0, 'step': 3}",
    "TrainingArguments(learning_rate=0.1, epoch=3, logging_steps=10)",
    'config: {"epoch": 3, "learning_rate": 0.1, "batch_size": 8}',
    "[2026-11-30 09:49:11,865] [INFO] [axolotl.train] Saving model checkpoint to ./out/checkpoint-10",
    "step 3",
    "loss: 0.5",
    "epoch 3 of 10 took 12.5 s",
    "W1130 09:51:36.539000 5969 torch/elastic/agent/server.py:123] step 5 error: 3.0 sending signal to closing process",
    "https://example.org/step 3?loss=0.5",
]


@pytest.mark.parametrize("line", NOTHING)
def test_no_metrics(line):
    assert parse([("stdout", line.encode() + b"\n", 0.0)]) == []


def test_the_pytorch_tutorial_counts_over_epochs():
    lines = b"".join(
        b"Epoch [%d/3], Step [%d/600], Loss: 0.5\n" % (epoch, n) for epoch in (1, 2, 3) for n in range(100, 601, 100)
    )
    assert [row["step"] for row in parsed(parse([("stdout", lines, 0.0)]))] == list(range(100, 1801, 100))


def test_a_step_that_goes_on_over_epochs_is_left_alone():
    lines = b"".join(
        b"Epoch [%d/3], Step [%d/1800], Loss: 0.5\n" % (1 + (n - 1) // 600, n) for n in range(100, 1801, 100)
    )
    assert [row["step"] for row in parsed(parse([("stdout", lines, 0.0)]))] == list(range(100, 1801, 100))


def lightning(epoch, n, shown):
    return f"\rEpoch {epoch}: {2 * n:3d}%|###       | {n}/50 [00:01<00:00, 33.31it/s, v_num=0, {shown}]".encode()


def test_lightning():
    chunks, now = [], 0.0
    for epoch in range(3):
        for n in range(51):
            now += 0.1
            chunks.append(("stderr", lightning(epoch, n, f"train_loss={1 / (1 + 50 * epoch + n):.3f}"), now))
        chunks.append(
            ("stderr", b"\rValidation DataLoader 0:  50%|##   | 5/10 [00:00<00:00, 9.0it/s, val_loss=9]", now)
        )
        chunks.append(("stderr", lightning(epoch, 50, f"train_loss={1 / (51 + 50 * epoch):.3f}, val_loss=0.5"), now))
    records = parse(chunks)
    rows = parsed(records)
    ends = [(row["step"], row["epoch"], row["values"]) for row in rows if row["step"] % 50 == 0]
    assert ends == [
        (50, 0.0, {"train_loss": 0.02}), (50, 0.0, {"val_loss": 0.5}),
        (100, 1.0, {"train_loss": 0.01}), (100, 1.0, {"val_loss": 0.5}),
        (150, 2.0, {"train_loss": 0.007}), (150, 2.0, {"val_loss": 0.5}),
    ]  # fmt: skip
    steps = [row["step"] for row in rows]
    assert steps == sorted(steps)
    assert 20 < len(rows) < 50  # now and then, not each of 150 frames
    assert {name for row in rows for name in row["values"]} == {"train_loss", "val_loss"}
    assert progress(records)[-1] == (50, 50)


def test_a_bar_with_metrics_and_no_epoch():
    frames = b"".join(
        b"\rtrain: %3d%%|#  | %d/100 [00:01<00:00, 3.3it/s, loss=0.5%d, acc=0.9]" % (n, n, n) for n in (5, 100)
    )
    assert [(row["step"], row["values"]) for row in parsed(parse([("stderr", frames, 0.0)]))] == [
        (5, {"loss": 0.55, "acc": 0.9}),
        (100, {"loss": 0.5100, "acc": 0.9}),
    ]


def test_keras():
    text = (
        "Epoch 1/2\n\r 1/50 [..............................] - ETA: 5s - loss: 2.3 - accuracy: 0.1\b\b\b"
        "\r50/50 [==============================] - 1s 3ms/step - loss: 1.5 - accuracy: 0.5"
        "\r50/50 [==============================] - 1s 4ms/step - loss: 1.5 - accuracy: 0.5 - val_loss: 1.2\n"
        "Epoch 2/2\n\x1b[1m50/50\x1b[0m \x1b[32m━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m0s\x1b[0m 2ms/step"
        " - accuracy: 0.8 - loss: 0.3\n"
        "10/10 [==============================] - 0s 1ms/step - loss: 0.9 - accuracy: 0.5\n"  # evaluate(), of no epoch
    )
    rows = parsed(parse([("stdout", text.encode(), 0.0)]))
    assert [(row["step"], row["epoch"], row["values"]) for row in rows] == [
        (50, 1.0, {"loss": 1.5, "accuracy": 0.5, "val_loss": 1.2}),
        (100, 2.0, {"accuracy": 0.8, "loss": 0.3}),
    ]


def test_a_print_that_overwrites_itself_is_logged_now_and_then():
    chunks = [("stdout", b"\rstep %d loss %.4f" % (n, 1 / n), n / 1000) for n in range(1, 2001)]
    rows = parsed(parse(chunks))
    assert 4 <= len(rows) <= 7
    assert rows[-1]["step"] == 2000


def test_ranks_are_those_asked_for():
    (row,) = parse([("stdout", b"step 1 loss 0.5\n", 7.0)], LogParser(rank=3))
    assert row == {"t": 7.0, "source": "parsed", "rank": 3, "step": 1, "epoch": None, "values": {"loss": 0.5}}


# -- bounds ---------------------------------------------------------------------------

PIECES = [
    b"\r", b"\n", b"\r\n", b"\x1b[A", b"\x1b", b"\xff\xfe", "█".encode(), b"    ", b"{", b"}", b"'loss': '1.5'", b", ",
    b"'epoch': '0.5'", b"'epoch': 0.01", b"'epoch': '1e300'", b"'step': 1e300", b"step 3 loss 0.5", b"Epoch 2/10",
    b" 50%|##  | 5/10 [00:00<00:01, 3.0it/s]", b" 50%|##  | 5/10 [00:00<00:01, 3.0it/s, loss=1e999]", b"\r     \r\r",
    b"0%| | 0/0 [::<]", b"'train_runtime': 1}", b"max_steps=7", b"logging_steps: 1", b"resume checkpoint-3", b"9" * 50,
    b'{"a": {"loss": 1}, "step": 1}', b"Epoch [1/2], Step [3/4], loss: nan", b"50/50 [==] - 1s 1ms/step - loss: 1",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(PIECES), st.binary(max_size=40)),
            st.sampled_from(["stdout", "stderr", "else"]),
            st.floats(-5, 5),
        ),
        max_size=60,
    )
)
def test_no_bytes_raise(chunks):
    now = 1000.0
    parser = LogParser()
    records = []
    for data, stream, later in chunks:
        now += later
        records += parser.feed(data, stream, now)
    for record in records + parser.close(now):
        assert record["source"] in ("parsed", "progress")
        assert all(isinstance(value, float) for value in record.get("values", {}).values())
        assert isinstance(record.get("step"), (int, type(None)))
        json.dumps(record)


def kept(parser):
    """Bytes that a parser holds back."""
    return sum(len(state.tail) + len(state.before) for state in parser._streams.values())


def test_a_line_without_end_is_not_kept():
    parser = LogParser()
    for word in (b"x", b"step 3 loss 0.5 "):
        piece = word * ((1 << 20) // len(word))
        for _ in range(50):
            assert parser.feed(piece, "stdout", 0.0) == []
            assert kept(parser) < 1 << 17
    (row,) = parsed(parser.feed(b"\nstep 4 loss 0.25\n", "stdout", 0.0))
    assert row["step"] == 4


def test_dictionaries_that_nothing_places_are_not_kept():
    parser = LogParser()
    records = parser.feed(b"".join(LINE.encode() % (1.0, n / 1e5) for n in range(1, 20001)), "stdout", 0.0)
    assert len(records) > 18000
    assert len(records + parser.close(0.0)) == 20000


def test_junk_imports_nothing_and_reads_no_line(monkeypatch):
    parser = LogParser()
    monkeypatch.setattr(parser, "_line", None)
    words = b"the quick brown fox jumps over 12 lazy dogs: [x] 3.5 {'a': 1} - ok\n"
    assert parser.feed(words * 200_000, "stdout", 0.0) == []
    assert parser._steps is None


@pytest.mark.parametrize(
    "path", sorted(RUNTIME.glob("log*.py")) + [RUNTIME / "metrics.py", RUNTIME / "usage.py"], ids=lambda path: path.name
)
def test_runs_on_an_old_python(path):
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 6))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(alias.name in sys.stdlib_module_names for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 1 or str(node.module).partition(".")[0] in sys.stdlib_module_names
            assert node.module != "__future__"
