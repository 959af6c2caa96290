"""Digests are equal for equal values in any process, and absent where they could lie."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkernel.payload.digest import digest, digests

MADE = """
import collections, datetime, enum, functools, pathlib, sys
import numpy as np, pandas as pd
sys.path.insert(0, {root!r})
class Color(enum.Enum):
    RED = 1
class Plain:
    def __init__(self): self.words = {{"a", "b", "c"}}; self.more = {{"x": 1, "y": [2.5]}}
    def go(self): return 1
def function(x, *, k=("a",)): return x + len({{"p", "q"}})
loop = []
loop.append(loop)
frame = pd.DataFrame({{"a": [1, 2], "b": ["x", None], "c": pd.Categorical(["u", "v"])}}, index=["i", "j"])
values = [
    None, True, 1, 1.5, 1j, "text", b"bytes", bytearray(b"x"), range(3), ..., [1, (2,)], {{1, "a", None}},
    {{"b": 1, "a": {{"c"}}}}, frozenset("xyz"), collections.OrderedDict(a=1), collections.Counter("aab"),
    datetime.datetime(2020, 1, 2), pathlib.PurePosixPath("/x"), Color.RED, Color, Plain(), Plain, function, len,
    functools.partial(function, 1), Plain().go, loop, np, np.arange(6.0).reshape(2, 3)[:, ::2], np.float32(2),
    np.array(["a", None], dtype=object), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), frame, frame["b"],
    pd.date_range("2020", periods=3), pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]), pd.Timestamp("2020"),
]
from clusterkernel.payload.digest import digest
for value in values:
    print(type(value).__name__, digest(value))
"""


def test_same_in_every_process() -> None:
    script = MADE.format(root=str(Path(__file__).parents[2]))
    printed = {
        subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    lines = printed.pop().splitlines()
    assert not [line for line in lines if line.endswith("None")]
    assert len({line.rpartition(" ")[2] for line in lines}) == len(lines)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(JSON, JSON)
def test_equal_digests_mean_equal_values(a: object, b: object) -> None:
    assert (digest(a) == digest(b)) <= (a == b)


@given(st.dictionaries(st.text(), JSON), st.randoms())
def test_order_of_a_dictionary_does_not_count(value: dict[str, object], dice: random.Random) -> None:
    items = list(value.items())
    dice.shuffle(items)
    assert digest(dict(items)) == digest(value)


def test_types_count() -> None:
    alike = [1, 1.0, True, "1", b"1", [1], (1,), {1}, {1: 1}]
    assert len({digest(value) for value in alike}) == len(alike)


@pytest.mark.parametrize("value", [random.Random(1), iter([]), object(), [random.Random(1)], type("T", (int,), {})(3)])
def test_what_cannot_be_seen_through_has_none(value: object) -> None:
    assert digest(value) is None


def test_time_and_size_are_bounded() -> None:
    np = pytest.importorskip("numpy")
    assert digest(np.zeros(40_000_000)) is None
    started = time.monotonic()
    assert digest(list(range(3_000_000)), seconds=0.1) is None
    assert time.monotonic() - started < 5
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert digest(deep) is None


def test_several_values_share_the_time() -> None:
    slow = list(range(3_000_000))
    found = digests([("a", 1), ("b", slow), ("c", 2)], seconds=0.05)
    assert found == {"a": digest(1), "b": None, "c": None}
