"""Sizes, durations and GPU requests: read as people write them, refused in one line otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkernel import units
from clusterkernel.errors import UnitError
from clusterkernel.units import GpuRequest

# The machine may be busy: how long an example takes is no failure.
examples = settings(deadline=None)
YEAR = 366 * 86400
PARSERS: list[Callable[..., Any]] = [units.parse_memory, units.parse_duration, units.parse_gpus]


def refusal(parse: Callable[..., Any], text: str, *, field: str = "--field") -> UnitError:
    with pytest.raises(UnitError) as caught:
        parse(text, field=field)
    error = caught.value
    assert "\n" not in str(error)
    assert "\r" not in str(error)
    assert field in str(error), "the line names the field"
    assert error.field == field
    assert error.hint.startswith("Write "), "the line has a mend"
    return error


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("512G", 524288),
        ("512GB", 524288),
        ("512GiB", 524288),
        ("512gib", 524288),
        ("512 G", 524288),
        (" 64G ", 65536),
        ("1.5T", 1572864),
        ("800M", 800),
        ("800MiB", 800),
        ("1K", 1),
        ("1500K", 2),
        ("0.5M", 1),
    ],
)
def test_memory_is_read(text: str, mib: int) -> None:
    assert units.parse_memory(text) == mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4h", 14400),
        ("90m", 5400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
        ("1w", 604800),
        ("90s", 90),
        ("1-00:00:00", 86400),
        ("1-12:30", 131400),
        ("04:00:00", 14400),
        ("100:00:00", 360000),
        ("00:00:01", 1),
        ("2 days", 172800),
        ("4hours", 14400),
        ("10min", 600),
        ("30 Seconds", 30),
        ("0.5h", 1800),
        ("1.1h", 3960),
        ("0.2s", 1),
        ("366d", YEAR),
    ],
)
def test_a_duration_is_read(text: str, seconds: int) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("8", GpuRequest(8)),
        ("h100:8", GpuRequest(8, "h100")),
        ("H100:8", GpuRequest(8, "h100")),
        ("8xh100", GpuRequest(8, "h100")),
        ("8 x H100", GpuRequest(8, "h100")),
        ("h100", GpuRequest(1, "h100")),
        ("a100-80gb:4", GpuRequest(4, "a100-80gb")),
        ("0", None),
    ],
)
def test_gpus_are_read(text: str, request_: GpuRequest | None) -> None:
    assert units.parse_gpus(text) == request_


@pytest.mark.parametrize("text", ["64", "64.5", "0", "-1", "+4", "1e3", "9" * 5000])
@pytest.mark.parametrize("parse", [units.parse_memory, units.parse_duration])
def test_a_bare_number_is_refused(parse: Callable[..., int], text: str) -> None:
    error = refusal(parse, text)
    assert "has no unit" in str(error)
    assert len(str(error)) < 200


@pytest.mark.parametrize(("parse", "mend"), [(units.parse_memory, "64G"), (units.parse_duration, "64h")])
def test_the_mend_of_a_bare_number_can_be_written(parse: Callable[..., int], mend: str) -> None:
    assert mend in refusal(parse, "64").hint
    assert parse(mend) > 0


@pytest.mark.parametrize("text", ["1:30", "90:00", "4:5"])
def test_a_clock_that_reads_two_ways_is_refused(text: str) -> None:
    hint = refusal(units.parse_duration, text).hint
    assert f"{text}:00" in hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "h",
        "four hours",
        "4x",
        "4h30",
        "4h!",
        "-4h",
        "0h",
        "0s",
        "367d",
        "1-00:60:00",
        "01:60:00",
        "01:00:60",
        "1::00",
        "500ms",
        "3months",
        "3 mo",
        "4hm",
        "9" * 30 + "h",
        "9" * 400 + "-00:00:00",
        "4h\n30x",
        "٤h!",
        "5ſ",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    refusal(units.parse_duration, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "G",
        "64X",
        "-64G",
        "0G",
        "0.0M",
        "64GG",
        "64 GB ram",
        "64Gibi",
        "1,5T",
        "9" * 30 + "T",
        "9" * 5000 + "G",
        "٤G",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    refusal(units.parse_memory, text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "1.5", "8:h100", "h100:", "h100:0", "0xh100", "8x", ":8", "h100:8:2", "2000", "9" * 5000),
        *("True", "none", "gpu", "h 100", "²", "h100\n:8"),
    ],
)
def test_what_is_no_gpu_request_is_refused(text: str) -> None:
    refusal(units.parse_gpus, text)


def test_a_total_of_gpus_may_be_larger_than_a_node() -> None:
    assert units.parse_gpus("h100:4096", most=1 << 20) == GpuRequest(4096, "h100")
    with pytest.raises(UnitError, match="1048576"):
        units.parse_gpus("9999999", most=1 << 20)


@examples
@given(st.text(max_size=40))
@pytest.mark.parametrize("parse", PARSERS)
def test_any_text_is_read_or_refused_in_one_line(parse: Callable[..., Any], text: str) -> None:
    try:
        value = parse(text, field="--field")
    except UnitError as refused:
        line, hint = str(refused), refused.hint
        value = 1
    else:
        line, hint = "read", "none needed"
    assert len(line.splitlines()) == 1
    assert hint
    assert value is None or isinstance(value, GpuRequest) or value >= 1


@examples
@given(st.integers(min_value=1, max_value=1 << 40))
def test_memory_is_the_same_after_a_round_trip(mib: int) -> None:
    assert units.parse_memory(units.format_memory(mib)) == mib
    written = units.slurm_memory(mib)
    assert written[:-1].isdigit()
    assert units.parse_memory(written) == mib


@examples
@given(st.integers(min_value=1, max_value=YEAR))
def test_a_duration_is_the_same_after_a_round_trip(seconds: int) -> None:
    assert units.parse_duration(units.format_duration(seconds)) == seconds
    assert units.parse_duration(units.format_duration(seconds).replace(" ", "")) == seconds
    assert units.parse_duration(units.slurm_time(seconds)) == seconds


@examples
@given(st.decimals(min_value="0.001", max_value="8000", places=3))
def test_a_fraction_is_rounded_up(hours: Any) -> None:
    assert units.parse_duration(f"{hours}h") == math.ceil(hours * 3600)


@examples
@given(st.builds(GpuRequest, st.integers(1, 1024), st.sampled_from([None, "h100", "a100-80gb", "gtx1080.ti"])))
def test_gpus_are_the_same_after_a_round_trip(request: GpuRequest) -> None:
    assert units.parse_gpus(str(request)) == request


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59, "59s"), (119, "119s"), (120, "2m"), (3600, "1h"), (14400, "4h"), (93600, "1d 2h"), (93661, "1d 2h 1m 1s")],
)
def test_a_duration_is_written_for_people(seconds: int, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("mib", "text"),
    [(800, "800M"), (65536, "64G"), (1572864, "1.5T"), (1025, "1025M"), (1234567 * 1024, "1234567G")],
)
def test_memory_is_written_for_people(mib: int, text: str) -> None:
    assert units.format_memory(mib) == text


def test_slurm_gets_whole_numbers() -> None:
    assert units.slurm_memory(1572864) == "1536G"
    assert units.slurm_memory(2 << 20) == "2T"
    assert units.slurm_time(90) == "0-00:01:30"
    assert units.slurm_time(100 * 3600) == "4-04:00:00"


# -- whole numbers -----------------------------------------------------------------


@pytest.mark.parametrize(("given", "number"), [("0", 0), (" 12 ", 12), (7, 7), ("+3", 3), (True, None), ("²", None)])
def test_a_count_is_a_whole_number_in_plain_digits(given: object, number: int | None) -> None:
    if number is None:
        with pytest.raises(UnitError, match=r"--rank = .* is not a whole number"):
            units.parse_count(given, field="--rank")
    else:
        assert units.parse_count(given, field="--rank") == number


@pytest.mark.parametrize("given", ["-1", 0, 10**5000, "9" * 19, "٣", 1.0, None], ids=lambda given: type(given).__name__)
def test_other_counts_are_refused_in_one_line(given: object) -> None:
    with pytest.raises(UnitError) as caught:
        units.parse_count(given, field="chunksize", least=1)
    assert str(caught.value).endswith("Write 1 or more.")
    assert len(str(caught.value)) < 150
