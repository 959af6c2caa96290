"""The card of one job."""

from __future__ import annotations

import html
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from clusterkernel.render.words import (
    BAD,
    CELL,
    CODE,
    LOOK,
    MIME,
    SOFT,
    TABLE,
    WARN,
    bar,
    caption,
    clean_lines,
    color,
    commands,
    data,
    format_metric,
    format_size,
    frame,
    pill,
    progress,
    runtime,
    state_text,
    when,
    where,
)
from clusterkernel.states import JobState
from clusterkernel.units import format_duration
from clusterkernel.views import JobView


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What the notebook adds to a job's card.

    Attributes
    ----------
    now : float or None
        Unix time, seconds: for how long a job runs, or is silent.
    bound : tuple of str
        Names that were bound here.
    note : str
        What a person should know beside that, in a sentence.
    """

    now: float | None = None
    bound: tuple[str, ...] = ()
    note: str = ""


_NOTHING: Final = Around()


def _names(view: JobView, around: Around) -> str:
    """The names that come back, each with what became of it."""
    parts = []
    for name in view.bind:
        output = view.outputs.get(name)
        if name in around.bound:
            parts.append(f"{name} (bound)")
        elif output and output.error:
            parts.append(f"{name} (not saved: {output.error})")
        elif output:
            parts.append(f"{name} ({format_size(output.size)})")
        elif view.state.terminal:
            parts.append(f"{name} (was never set)")
        else:
            parts.append(f"{name} (not there yet)")
    others = [name for name in view.outputs if name not in view.bind]
    if others and view.state.terminal:
        shown = ", ".join(others[:6]) + (f" and {len(others) - 6} more" if len(others) > 6 else "")
        parts.append(f"also saved: {shown}")
    return ", ".join(parts)


def _metrics(view: JobView) -> str:
    shown = [f"{name} {format_metric(value)}" for name, value in list(view.latest.items())[:6]]
    return ", ".join(shown)


def _facts(view: JobView, around: Around) -> list[tuple[str, str]]:
    """The rows that text and HTML share."""
    rows = [("Where", where(view)), ("Asked for", view.counts)]
    times = f"submitted {when(view.created)}" if view.created else ""
    if (ran := runtime(view, around.now)) is not None:
        verb = "ran" if view.state.terminal else "running for"
        times += f"{', ' if times else ''}{verb} {format_duration(int(ran))}"
    rows.append(("Time", times))
    rows.append(("Metrics", _metrics(view)))
    rows.append(("Names", _names(view, around)))
    if view.stale_since is not None and not view.state.terminal:
        since = f" for {format_duration(max(int(around.now - view.stale_since), 0))}" if around.now is not None else ""
        rows.append(("Silent", f"Nothing was heard of it{since}; the platform still lists it."))
    rows.append(("Reason", view.reason if view.reason != view.error else ""))
    rows.append(("Error", view.error))
    rows.append(("Output", view.log))
    rows.append(("Note", around.note))
    return [(name, text) for name, text in rows if text]


def _next(view: JobView, around: Around) -> list[str]:
    """The commands that make sense now."""
    if not view.state.terminal:
        return [f"%cluster_logs {view.id} -f", f"%cluster_cancel {view.id}"]
    lines = [f"%cluster_logs {view.id}"]
    saved = {name for name, output in view.outputs.items() if not output.error}
    missing = [name for name in view.bind if name in saved and name not in around.bound]
    if missing:
        lines.append(f"%cluster_bind {view.id} {' '.join(missing)}")
    if view.state is not JobState.SUCCEEDED:
        lines.append(f"%cluster_rerun {view.id}")
    return lines


def _progress_row(rows: Sequence[tuple[str, str]]) -> int:
    return sum(name in {"Where", "Asked for", "Time"} for name, _ in rows)


def job_text(view: JobView, around: Around = _NOTHING) -> str:
    """The card as plain text."""
    title = view.name or view.title
    lines = [f"Job {view.id}  {state_text(view.state)}" + (f"  {title}" if title else "")]
    rows = _facts(view, around)
    if done := progress(view):
        text = f"{done[0]:g} of {done[1]:g} ({100 * done[0] / done[1]:.0f} %)"
        rows.insert(_progress_row(rows), ("Progress", text))
    lines += [f"  {name + ':':<11}{text}" for name, text in rows]
    lines.append(f"  {'Next:':<11}{'   '.join(_next(view, around))}")
    if view.state.terminal and view.state is not JobState.SUCCEEDED and (tail := clean_lines(view.tail.split("\n"), 8)):
        lines += ["  Last lines of its output:", *[f"    {line}" for line in tail]]
    return "\n".join(lines)


def _log(view: JobView) -> str:
    tail = clean_lines(view.tail.split("\n"))
    if not tail:
        return ""
    bad = view.state.terminal and view.state is not JobState.SUCCEEDED
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    # The last line stands in the summary: an update closes what was opened.
    hint = (
        "" if bad else f': <code style="{CODE};background:transparent;color:inherit">{html.escape(last[:100])}</code>'
    )
    body = html.escape("\n".join(tail))
    return (
        f'<details{" open" if bad else ""} style="margin-top:6px">'
        f'<summary style="cursor:pointer;{SOFT};overflow:hidden;text-overflow:ellipsis;white-space:nowrap">'
        f"Last lines of its output{hint}</summary>"
        f'<pre style="margin:4px 0 0 0;padding:6px 8px;max-height:20em;overflow:auto;white-space:pre-wrap;'
        f"overflow-wrap:anywhere;color:inherit;background:var(--jp-layout-color2, rgba(128, 128, 128, 0.12));"
        f'{CODE}">{body}</pre></details>'
    )


def _row(name: str, cell: str, style: str = "") -> str:
    return (
        f'<tr style="background:transparent"><th scope="row" style="{CELL};font-weight:normal;{SOFT};'
        f'white-space:nowrap">{html.escape(name)}</th>'
        f'<td style="{CELL};overflow-wrap:anywhere;{style}">{cell}</td></tr>'
    )


_LOUD: Final = MappingProxyType({"Error": BAD, "Silent": WARN})


def job_html(view: JobView, around: Around = _NOTHING) -> str:
    """The card as HTML."""
    look = LOOK[view.state][2]
    title = view.name or view.title
    head = f"<strong>Job {html.escape(view.id)}</strong> &nbsp;{pill(view.state)}"
    if title:
        head += f' &nbsp;<span style="{SOFT}">{html.escape(title[:120])}</span>'
    rows = []
    for name, text in _facts(view, around):
        loud = _LOUD.get(name)
        if name == "Names" and any(view.outputs[one].error for one in view.bind if one in view.outputs):
            loud = WARN
        rows.append((name, _row(name, html.escape(text), f"color:{color(loud)}" if loud else "")))
    if done := progress(view):
        rows.insert(_progress_row(rows), ("Progress", _row("Progress", bar(*done, [(done[0], look)]))))
    rows.append(("Next", _row("Next", commands(_next(view, around)))))
    table = f'<table style="{TABLE}">{caption(head)}<tbody>{"".join(row for _, row in rows)}</tbody></table>'
    return frame(look, table + _log(view))


def bundle(view: JobView, around: Around = _NOTHING) -> dict[str, Any]:
    """The card in its three forms, by MIME type."""
    return {"text/plain": job_text(view, around), "text/html": job_html(view, around), MIME: data(view)}
