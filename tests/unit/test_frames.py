"""Records -> pandas: columns and dtypes never vary."""

import datetime as dt
import json
import math
import subprocess
import sys

import pandas as pd
import pytest

from clusterkernel.frames import jobs_frame, joined, metrics_frame, read_records, usage_frame
from clusterkernel.states import JobState
from clusterkernel.views import JobView

METRICS = {
    "time": "datetime64[ns, UTC]", "step": "Int64", "epoch": "float64", "rank": "Int64", "source": "string",
    "loss": "float64", "eval_loss": "float64", "learning_rate": "float64", "grad_norm": "float64",
}  # fmt: skip
USAGE = {
    "time": "datetime64[ns, UTC]", "rank": "Int64", "host": "string", "cpu_percent": "float64", "memory_mib": "float64",
    "gpu_util_percent": "float64", "gpu_memory_mib": "float64", "gpu_power_w": "float64", "gpu_count": "Int64",
}  # fmt: skip
JOBS = {
    "id": "string", "name": "string", "state": "string", "backend": "string", "platform_id": "string",
    "created": "datetime64[ns, UTC]", "started": "datetime64[ns, UTC]", "ended": "datetime64[ns, UTC]",
    "runtime": "timedelta64[ns]", "nodes": "Int64", "gpus": "Int64", "tags": "string", "reason": "string",
}  # fmt: skip
START = 1_700_000_000.0


def check(table, dtypes):
    assert list(table.columns)[: len(dtypes)] == list(dtypes)
    for name, dtype in dtypes.items():
        assert table[name].dtype == dtype, name
    assert isinstance(table.index, pd.RangeIndex)
    assert table.index.start == 0
    return table


def logged(t, step=None, epoch=None, rank=0, source="log", **values):
    return {"t": START + t, "source": source, "rank": rank, "step": step, "epoch": epoch, "values": values}


def used(t, rank=0, gpus=(), **more):
    return {
        "t": START + t,
        "rank": rank,
        "host": "n1",
        "cpu_percent": 50.0,
        "rss_mib": 10.0,
        "gpus": list(gpus),
        **more,
    }


def gpu(index, util, memory=100.0, power=200.0):
    return {
        "index": index, "util_percent": util, "memory_mib": memory, "memory_total_mib": 8e4, "power_w": power,
    }  # fmt: skip


# -- reading ----------------------------------------------------------------------------


def test_read_from_where_it_stopped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"t": 1}\n{"t": 2}\n{"t":')
    records, offset = read_records(path)
    assert (records, offset) == ([{"t": 1}, {"t": 2}], 18)
    assert read_records(path, offset) == ([], 18)
    with path.open("ab") as file:
        file.write(b' 3, "x": NaN}\nno json\n[1]\n\xff\xfe\n{"t": 4}\n')
    records, offset = read_records(str(path), offset)
    assert [record["t"] for record in records] == [3, 4]
    assert math.isnan(records[0]["x"])
    assert offset == path.stat().st_size


def test_read_what_is_not_there(tmp_path):
    assert read_records(tmp_path / "none", 5) == ([], 5)


def test_read_a_file_that_became_shorter(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"t": 1}\n')
    assert read_records(path, 500) == ([{"t": 1}], 9)


def test_read_a_hole_that_nfs_has_not_filled(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"t": 1}\n{"t"\0\0\0\0\n\0\0\0}\n')
    assert read_records(path) == ([{"t": 1}], 9)


def test_read_every_prefix(tmp_path):
    path = tmp_path / "metrics.jsonl"
    data = "".join(json.dumps(logged(n, n, loss=n / 2)) + "\n" for n in range(3)).encode()
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        first, offset = read_records(path)
        path.write_bytes(data)
        second, _ = read_records(path, offset)
        assert [record["step"] for record in first + second] == [0, 1, 2]


# -- metrics ----------------------------------------------------------------------------


def test_empty_tables_have_all_columns():
    assert list(check(metrics_frame([]), METRICS).columns) == list(METRICS)
    assert list(check(usage_frame([]), USAGE).columns) == list(USAGE)
    assert list(check(jobs_frame([]), JOBS).columns) == list(JOBS)
    table = joined(metrics_frame([]), usage_frame([]))
    assert list(table.columns) == [*list(METRICS)[1:], *(name for name in USAGE if name not in ("time", "rank"))]
    for name, dtype in (METRICS | USAGE).items():
        if name != "time":
            assert table[name].dtype == dtype, name
    assert table.index.dtype == "datetime64[ns, UTC]"


def test_metrics():
    records = [
        logged(2.0, 2, 0.2, loss=0.4, accuracy=0.9, f1=0.1),
        {"t": START, "source": "progress", "rank": 0, "done": 1, "total": 2, "what": None},
        logged(1.0, 1, 0.1, source="parsed", loss=math.nan, learning_rate=1e-3),
        logged(3.0, rank=1, bleu=30, eval_loss=math.inf),
    ]
    table = check(metrics_frame(records), METRICS)
    assert list(table.columns) == [*METRICS, "accuracy", "f1", "bleu"]
    assert table["step"].tolist() == [1, 2, pd.NA]
    assert table["source"].tolist() == ["parsed", "log", "log"]
    assert table["rank"].tolist() == [0, 0, 1]
    assert table["loss"].fillna(-1).tolist() == [-1, 0.4, -1]
    assert table["eval_loss"].tolist()[2] == math.inf
    assert table["bleu"].dtype == "float64"
    assert table["time"].iloc[0] == pd.Timestamp(START + 1.0, unit="s", tz="UTC")


def test_metrics_of_one_moment_keep_their_order():
    table = metrics_frame([logged(0, step, loss=step) for step in (3, 1, 2)])
    assert table["step"].tolist() == [3, 1, 2]


def test_a_metric_called_like_a_column_gets_an_underscore():
    table = check(metrics_frame([logged(0, 1) | {"values": {"time": 0.5, "rank": 3, "loss": 1}}]), METRICS)
    assert table["time_"].tolist() == [0.5]
    assert table["rank_"].tolist() == [3.0]
    assert table["rank"].tolist() == [0]


@pytest.mark.parametrize(
    "bad",
    [
        {}, {"t": "x", "values": {}}, {"t": 1, "values": 3}, {"t": None, "values": {}}, {"t": True, "values": {}},
        {"t": math.nan, "values": {}}, {"t": 1e300, "values": {"loss": 1}},
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_passed_over(bad):
    table = check(metrics_frame([bad, logged(0, 1, loss=0.5)]), METRICS)
    assert table["loss"].tolist() == [0.5]


def test_values_that_are_no_numbers_are_missing():
    table = check(metrics_frame([logged(0, "x", "y", loss="much", other=10**400) | {"rank": None}]), METRICS)
    assert table.isna().iloc[0][["step", "epoch", "rank", "loss"]].all()
    assert table["other"].tolist() == [math.inf]


# -- usage ------------------------------------------------------------------------------


def test_usage():
    records = [
        used(5, gpus=[gpu(0, 50.0), gpu(1, 100.0, 300.0, None)]),
        used(0, cpu_percent=None),
        used(4, cpu_percent=None, rss_mib=None),  # of a process that had just ended
        used(9, gpus=[gpu(0, None, None, None)]),
        {"t": "bad"},
    ]
    table = check(usage_frame(records), USAGE)
    assert table["gpu_count"].tolist() == [0, 2, 1]
    assert table["gpu_util_percent"].fillna(-1).tolist() == [-1, 75.0, -1]
    assert table["gpu_memory_mib"].fillna(-1).tolist() == [-1, 400.0, -1]
    assert table["gpu_power_w"].fillna(-1).tolist() == [-1, 200.0, -1]
    assert table["cpu_percent"].fillna(-1).tolist() == [-1, 50.0, 50.0]
    assert table["host"].tolist() == ["n1"] * 3


def test_metrics_beside_usage():
    metrics = metrics_frame([logged(t, t, loss=1 / (t + 1)) for t in (1, 6, 200)])
    usage = usage_frame([used(t, gpus=[gpu(0, 10.0 * t)]) for t in (0, 5, 10)])
    table = joined(metrics, usage)
    assert table["step"].tolist() == [1, 6, 200]
    assert table["gpu_util_percent"].fillna(-1).tolist() == [0.0, 50.0, -1]
    assert table.index.name == "time"
    assert table["rank"].tolist() == [0, 0, 0]
    for name, dtype in (METRICS | USAGE).items():
        if name != "time":
            assert table[name].dtype == dtype, name


def test_a_rank_takes_the_samples_of_its_process():
    metrics = metrics_frame([logged(1, 1, rank=rank, loss=rank) for rank in (0, 1, 7)])
    usage = usage_frame([used(1, rank=0, cpu_percent=10.0), used(1, rank=1, cpu_percent=20.0)])
    assert joined(metrics, usage)["cpu_percent"].tolist() == [10.0, 20.0, 10.0]


def test_metrics_without_usage():
    table = joined(metrics_frame([logged(1, 1, loss=0.5)]), usage_frame([]))
    assert table["loss"].tolist() == [0.5]
    assert table["gpu_count"].isna().all()


# -- jobs -------------------------------------------------------------------------------


def test_jobs():
    rows = [
        JobView(
            id="12", name="mnist", state=JobState.RUNNING, backend="slurm", platform_id="8123", created=START,
            started=START + 10, nodes=2, gpus=16,
        ),
        {
            "id": "3_1", "name": "sweep", "state": "FAILED", "backend": "local", "created": START, "started": START + 1,
            "ended": dt.datetime.fromtimestamp(START + 3.5, dt.timezone.utc), "reason": "ValueError: x",
        },
        JobView(id="13", name="next", state=JobState.QUEUED, backend="slurm", created=START),
    ]  # fmt: skip
    table = check(jobs_frame(rows, now=START + 40), JOBS)
    assert table["id"].tolist() == ["12", "3_1", "13"]
    assert table["state"].tolist() == ["RUNNING", "FAILED", "QUEUED"]
    assert table["runtime"].tolist() == [pd.Timedelta(seconds=30), pd.Timedelta(seconds=2.5), pd.NaT]
    assert table["gpus"].tolist() == [16, 0, 0]
    assert table["nodes"].tolist() == [2, 1, 1]
    assert table["reason"].tolist() == ["", "ValueError: x", ""]
    assert table["ended"].isna().tolist() == [True, False, True]


def test_jobs_of_clocks_that_disagree():
    table = jobs_frame([{"id": "1", "state": "SUCCEEDED", "started": START, "ended": START - 5}])
    assert table["runtime"].tolist() == [pd.Timedelta(0)]


def test_pandas_is_not_imported_with_the_module():
    code = "import sys, clusterkernel.frames; print('pandas' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
