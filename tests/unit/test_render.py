"""Cards and tables: pure text and HTML."""

from __future__ import annotations

import html.parser
import json
from typing import Any

import msgspec
import pytest

from clusterkernel import render
from clusterkernel.states import JobState
from clusterkernel.views import JobView, OutputView


def view(state: JobState = JobState.RUNNING, **more: Any) -> JobView:
    given = {"id": "12", "name": "digits", "backend": "slurm", "platform_id": "8123", "created": 1.7e9, **more}
    return JobView(state=state, **given)


class Page(html.parser.HTMLParser):
    """Checks that the tags nest, and keeps the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.seen if name == tag]


@pytest.mark.parametrize("state", list(JobState))
def test_a_state_is_a_symbol_and_a_word_in_every_form(state: JobState) -> None:
    bundle = render.bundle(view(state))
    symbol, word = render.state_text(state).split(" ", 1)
    assert f"{symbol} {word}" in bundle["text/plain"]
    assert word in Page(bundle["text/html"]).text
    assert bundle[render.MIME]["state"] == state.value


def test_the_html_is_a_table_that_a_screen_reader_can_read() -> None:
    page = Page(render.job_html(view(progress=(30, 100))))
    assert len(page.all("table")) == len(page.all("caption")) == 1
    assert {attrs["scope"] for attrs in page.all("th")} == {"row"}
    bar = next(attrs for attrs in page.all("div") if attrs.get("role") == "progressbar")
    assert (bar["aria-valuenow"], bar["aria-valuemax"]) == ("30", "100")
    assert not page.all("script")
    assert not page.all("style")


def test_what_comes_from_outside_is_escaped() -> None:
    evil = '<img src=x onerror="alert(1)">'
    made = view(
        JobState.FAILED,
        name=evil,
        reason=evil,
        error=evil,
        node=evil,
        counts=evil,
        tail=evil,
        latest={evil: 1.0},
        outputs={evil: OutputView(error=evil)},
        bind=(evil,),
    )
    for text in (render.job_html(made), render.table_html([made], title=evil)):
        assert not Page(text).all("img")
    text = render.array_bundle("12", {JobState.FAILED: 1}, [made], name=evil)["text/html"]
    assert not Page(text).all("img")


def test_names_tell_what_became_of_them() -> None:
    made = view(
        JobState.SUCCEEDED,
        bind=("model", "history", "lock", "never"),
        outputs={
            "model": OutputView(size=1_234_567),
            "history": OutputView(size=10),
            "lock": OutputView(error="TypeError: no"),
            "other": OutputView(size=3),
        },
    )
    text = render.job_text(made, render.Around(bound=("model",)))
    assert "model (bound)" in text
    assert "history (10 B)" in text
    assert "lock (not saved: TypeError: no)" in text
    assert "never (was never set)" in text
    assert "also saved: other" in text
    assert "%cluster_bind 12 history" in text
    assert "model (not there yet)" in render.job_text(view(bind=("model",)))


def test_a_failed_job_shows_its_error_and_the_end_of_its_output() -> None:
    tail = "\n".join(f"line {number}" for number in range(40))
    made = view(JobState.FAILED, error="ValueError: loss is nan", tail=tail, started=10.0, ended=14.0)
    text = render.job_text(made)
    assert "ValueError: loss is nan" in text
    assert "line 39" in text
    assert "line 31" not in text
    assert "ran 4s" in text
    page = Page(render.job_html(made))
    assert "open" in page.all("details")[0]
    assert "open" not in Page(render.job_html(view(tail=tail))).all("details")[0]


def test_output_is_shown_as_a_screen_would_at_last() -> None:
    lines = render.clean_lines(["\x1b[31mred\x1b[0m", "10%|#\r90%|#########", "a\tb", "x" * 5000, "", ""])
    assert lines[:3] == ["red", "90%|#########", "a   b"]
    assert len(lines) == 4
    assert len(lines[3]) < 400


def test_a_silent_job_is_said_to_be_silent_but_not_ended() -> None:
    text = render.job_text(view(stale_since=100.0), render.Around(now=161.0))
    assert "Running" in text
    assert "Nothing was heard of it for 61s" in text
    assert "Nothing was heard" not in render.job_text(view(JobState.SUCCEEDED, stale_since=100.0))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.23143, "0.2314"), (1e-5, "1e-05"), (3.0, "3"), (float("nan"), "nan"), (float("inf"), "inf"), (1e12, "1e+12")],
)
def test_metrics_have_four_digits(value: float, text: str) -> None:
    assert render.format_metric(value) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (256_000_000, "256 MB")])
def test_sizes(size: int, text: str) -> None:
    assert render.format_size(size) == text


def test_the_data_is_json_and_leaves_out_what_is_long() -> None:
    data = render.bundle(view(tail="secret " * 1000, traceback="long"))[render.MIME]
    assert "tail" not in data
    assert "traceback" not in data
    assert msgspec.convert(json.loads(json.dumps(data)), JobView).id == "12"


def test_a_table_has_only_columns_that_hold_something() -> None:
    text = render.table_text([view(platform_id=""), view(JobState.FAILED, error="ValueError: no")])
    assert text.splitlines()[0].split() == ["Job", "State", "Name", "Where", "Last"]
    page = Page(render.table_html([view()], title="Jobs"))
    assert {attrs["scope"] for attrs in page.all("th")} == {"row", "col"}


def test_an_array_counts_all_and_shows_some() -> None:
    counts = {JobState.RUNNING: 3, JobState.FAILED: 1, JobState.SUCCEEDED: 60}
    bundle = render.array_bundle("7", counts, [view(JobState.FAILED, id="7_3")], name="sweep")
    for text in (bundle["text/plain"], Page(bundle["text/html"]).text):
        assert "64 tasks: 3 running, 1 failed, 60 succeeded" in text
        assert "63 more are not shown" in text
        assert "7_3" in text
    assert bundle[render.MIME]["counts"] == {"RUNNING": 3, "FAILED": 1, "SUCCEEDED": 60}


# -- what did not come back --------------------------------------------------------


def test_a_name_that_did_not_come_stands_in_the_title() -> None:
    outputs = {"model": OutputView(error="model.lock: _thread.lock does not pickle"), "loss": OutputView(size=5)}
    card = view(JobState.SUCCEEDED, bind=("model", "loss", "never"), outputs=outputs)
    assert render.job_text(card).splitlines()[0] == "Job 12  ✓ Succeeded, but without model, never  digits"
    page = Page(render.job_html(card))
    assert "but without model, never" in page.text.split("digits")[0]
    assert "--jp-warn-color1" in page.all("div")[0]["style"]
    whole = msgspec.structs.replace(card, bind=("loss",))
    assert "without" not in render.job_text(whole) + render.job_html(whole)
    assert "--jp-success-color1" in Page(render.job_html(whole)).all("div")[0]["style"]
    many = msgspec.structs.replace(card, bind=tuple("abcde"))
    assert "but without a, b, c and 2 more" in render.job_text(many)


def test_no_output_is_offered_where_nothing_was_printed() -> None:
    assert "%cluster_logs" not in render.job_text(view(JobState.LAUNCH_FAILED))
    assert "%cluster_logs" not in render.job_html(view(JobState.LAUNCH_FAILED))


def test_the_output_of_the_rank_that_failed_is_one_command_away() -> None:
    assert "%cluster_logs 12 --rank 3" in render.job_text(view(JobState.FAILED, rank=3, log="/jobs/12/3"))
    assert "--rank" not in render.job_text(view(JobState.FAILED))
