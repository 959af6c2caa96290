"""The card of one job."""

from __future__ import annotations

import html
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from clusterkernel.language import say, word
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
    progress_text,
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


def _missing(view: JobView) -> list[str]:
    """Names that were asked for and did not come, though the code ran to its end."""
    if view.state is not JobState.SUCCEEDED:
        return []
    return [name for name in view.bind if name not in view.outputs or view.outputs[name].error]


def _without(view: JobView) -> str:
    """What the title adds where names are missing."""
    names = _missing(view)
    return say("but without {names}", names=_some(names, 3)) if names else ""


def _some(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:most])
    return say("{names} and {count} more", names=shown, count=len(names) - most) if len(names) > most else shown


def _names(view: JobView, around: Around) -> str:
    """The names that come back, each with what became of it."""
    parts = []
    for name in view.bind:
        output = view.outputs.get(name)
        if name in around.bound:
            parts.append(say("{name} (bound)", name=name))
        elif output and output.error:
            parts.append(say("{name} (not saved: {why})", name=name, why=output.error))
        elif output:
            parts.append(f"{name} ({format_size(output.size)})")
        elif view.state.terminal:
            parts.append(say("{name} (was never set)", name=name))
        else:
            parts.append(say("{name} (not there yet)", name=name))
    others = [name for name in view.outputs if name not in view.bind] if view.state.terminal else []
    if saved := [name for name in others if not view.outputs[name].error]:
        parts.append(say("also saved: {names}", names=_some(saved, 6)))
    if failed := [name for name in others if view.outputs[name].error]:
        parts.append(say("not saved: {names}", names=_some(failed, 6)))
    return ", ".join(parts)


def _metrics(view: JobView) -> str:
    shown = [f"{name} {format_metric(value)}" for name, value in list(view.latest.items())[:6]]
    return ", ".join(shown)


def _facts(view: JobView, around: Around) -> list[tuple[str, str]]:
    """The rows that text and HTML share."""
    rows = [("Where", where(view)), ("Asked for", view.counts)]
    rows.append(("Changed", ", ".join(f"{name} = {value}" for name, value in view.changed.items())))
    times = [say("submitted {moment}", moment=when(view.created))] if view.created else []
    if (ran := runtime(view, around.now)) is not None:
        lasted = format_duration(int(ran))
        times.append(say("ran {time}", time=lasted) if view.state.terminal else say("running for {time}", time=lasted))
    rows.append(("Time", ", ".join(times)))
    rows.append(("Metrics", _metrics(view)))
    rows.append(("Names", _names(view, around)))
    if view.stale_since is not None and not view.state.terminal:
        text = say("Nothing was heard of it; the platform still lists it.")
        if around.now is not None:
            silent = format_duration(max(int(around.now - view.stale_since), 0))
            text = say("Nothing was heard of it for {time}; the platform still lists it.", time=silent)
        rows.append(("Silent", text))
    rows.append(("Reason", view.reason if view.reason != view.error else ""))
    rows.append(("Error", view.error))
    rows.append(("Output", view.log))
    rows.append(("Note", around.note))
    return [(name, text) for name, text in rows if text]


def _next(view: JobView, around: Around) -> list[str]:
    """The commands that make sense now."""
    if not view.state.terminal:
        return [f"%cluster_logs {view.id} -f", f"%cluster_cancel {view.id}"]
    lines = (
        [f"%cluster_logs {view.id}" + (f" --rank {view.rank}" if view.rank else "")] if view.log or view.tail else []
    )
    saved = {name for name, output in view.outputs.items() if not output.error}
    missing = [name for name in view.bind if name in saved and name not in around.bound]
    if missing:
        lines.append(f"%cluster_bind {view.id} {' '.join(missing)}")
    if view.state is not JobState.SUCCEEDED:
        lines.append(f"%cluster_rerun {view.id}")
    return lines


def _progress_row(rows: Sequence[tuple[str, str]]) -> int:
    return sum(name in {"Where", "Asked for", "Changed", "Time"} for name, _ in rows)


def job_text(view: JobView, around: Around = _NOTHING) -> str:
    """The card as plain text."""
    title = view.name or view.title
    without = _without(view)
    state = ", ".join(filter(None, [state_text(view.state), without]))
    lines = ["  ".join(filter(None, [say("Job {id}", id=view.id), state, title]))]
    rows = _facts(view, around)
    if done := progress(view):
        rows.insert(_progress_row(rows), ("Progress", progress_text(*done)))
    if lines_next := _next(view, around):
        rows.append(("Next", "   ".join(lines_next)))
    lines += [f"  {word(name) + ':':<11}{text}" for name, text in rows]
    if view.state.terminal and view.state is not JobState.SUCCEEDED and (tail := clean_lines(view.tail.split("\n"), 8)):
        lines += [f"  {say('Last lines of its output')}:", *[f"    {line}" for line in tail]]
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
        f"{say('Last lines of its output')}{hint}</summary>"
        f'<pre style="margin:4px 0 0 0;padding:6px 8px;max-height:20em;overflow:auto;white-space:pre-wrap;'
        f"overflow-wrap:anywhere;color:inherit;background:var(--jp-layout-color2, rgba(128, 128, 128, 0.12));"
        f'{CODE}">{body}</pre></details>'
    )


def _row(name: str, cell: str, style: str = "") -> str:
    return (
        f'<tr style="background:transparent"><th scope="row" style="{CELL};font-weight:normal;{SOFT};'
        f'white-space:nowrap">{html.escape(word(name))}</th>'
        f'<td style="{CELL};overflow-wrap:anywhere;{style}">{cell}</td></tr>'
    )


_LOUD: Final = MappingProxyType({"Error": BAD, "Silent": WARN})


def job_html(view: JobView, around: Around = _NOTHING) -> str:
    """The card as HTML."""
    without = _without(view)
    look = WARN if without else LOOK[view.state][2]
    title = view.name or view.title
    head = f"<strong>{html.escape(say('Job {id}', id=view.id))}</strong> &nbsp;{pill(view.state)}"
    if without:
        head += f' <strong style="color:{color(WARN)}">{html.escape(without)}</strong>'
    if title:
        head += f' &nbsp;<span style="{SOFT}">{html.escape(title[:120])}</span>'
    rows = []
    for name, text in _facts(view, around):
        loud = _LOUD.get(name)
        if name == "Names" and without:
            loud = WARN
        rows.append((name, _row(name, html.escape(text), f"color:{color(loud)}" if loud else "")))
    if done := progress(view):
        rows.insert(_progress_row(rows), ("Progress", _row("Progress", bar(*done, [(done[0], look)]))))
    if lines_next := _next(view, around):
        rows.append(("Next", _row("Next", commands(lines_next))))
    table = f'<table style="{TABLE}">{caption(head)}<tbody>{"".join(row for _, row in rows)}</tbody></table>'
    return frame(look, table + _log(view))


def bundle(view: JobView, around: Around = _NOTHING) -> dict[str, Any]:
    """The card in its three forms, by MIME type."""
    return {"text/plain": job_text(view, around), "text/html": job_html(view, around), MIME: data(view)}
