"""JSON without the `json` module: it reads and writes the same."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterkernel.runtime import lean

VALUES = [
    None, True, 0, -1, 2**70, 0.5, 1e300, "", "a", [], {}, [[1, "x"], {"a": None}],
    'quotes " and \\ and \n \t \x00', "üñï 日本 \U0001f600 \u2028", {"ü": [1.5, {"k": "v"}]},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_it_reads_and_writes_what_json_does(value: Any) -> None:
    assert json.loads(lean.dumps(value)) == msgspec.json.decode(lean.dumps(value)) == value
    for text in (json.dumps(value), json.dumps(value, indent=1) + "\n", json.dumps(value, ensure_ascii=False)):
        assert lean.loads(text.encode()) == value


def test_numbers_beyond_json() -> None:
    assert lean.loads(b"[Infinity, -Infinity]") == [math.inf, -math.inf]
    assert math.isnan(lean.loads(b"NaN"))
    assert json.loads(lean.dumps(math.inf)) == math.inf


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc80\ud800"])
def test_half_a_surrogate_pair_is_a_question_mark(text: str) -> None:
    wanted = text.encode("utf-8", "replace").decode()
    assert msgspec.json.decode(lean.dumps({text: text})) == {wanted: wanted}
    assert lean.loads(json.dumps({text: text}).encode()) == {wanted: wanted}


@pytest.mark.parametrize(
    "data", [b"", b"  ", b"{", b"1 2", b"nul", b'{"a" 1}', b"\xff", b"[" * 200_000, b"9" * 5000, b"'a'"]
)
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        lean.loads(data)


def test_what_json_cannot_say_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="set is beyond JSON"):
        lean.dumps({"a": {1}})


def test_another_python_has_the_modules_themselves() -> None:
    read, write = lean._by_json()
    assert read(write({"ü": [1, 0.5, None]})) == {"ü": [1, 0.5, None]}


def test_it_brings_no_more_than_it_says() -> None:
    # -S: what the machine's own start-up files import is not our doing.
    code = "import sys, lean; lean.loads(lean.dumps([1])); print(*sys.modules)"
    folder = str(Path(lean.__file__).parent)
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()).isdisjoint({"json", "re", "enum", "signal", "pickle"})
