"""Tables of jobs, and the card of an array."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from clusterkernel.language import say, word
from clusterkernel.render.words import (
    BAD,
    BRAND,
    CELL,
    GOOD,
    LOOK,
    MIME,
    SOFT,
    TABLE,
    bar,
    caption,
    commands,
    data,
    frame,
    headline,
    pill,
    progress,
    runtime,
    state_text,
    where,
)
from clusterkernel.states import JobState
from clusterkernel.units import format_duration
from clusterkernel.views import JobView

_COLUMNS: Final = ("Job", "State", "Name", "Where", "Ran", "Progress", "Last")


def _cells(view: JobView, now: float | None) -> tuple[str, ...]:
    ran = runtime(view, now)
    done = progress(view)
    return (
        view.id,
        state_text(view.state),
        (view.name or view.title)[:40],
        where(view),
        format_duration(int(ran)) if ran is not None else "",
        f"{100 * done[0] / done[1]:.0f} %" if done else "",
        view.error[:80] if view.error and view.state.terminal else headline(view),
    )


def _grid(views: Sequence[JobView], now: float | None) -> tuple[list[int], list[tuple[str, ...]]]:
    """The columns that hold something, and the cells of each job."""
    rows = [_cells(view, now) for view in views]
    return [column for column in range(len(_COLUMNS)) if column < 2 or any(row[column] for row in rows)], rows


def table_text(views: Sequence[JobView], *, now: float | None = None) -> str:
    """Jobs, a line each."""
    columns, cells = _grid(views, now)
    rows = [[row[column] for column in columns] for row in [[word(name) for name in _COLUMNS], *cells]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def table_html(views: Sequence[JobView], *, title: str, now: float | None = None) -> str:
    """Jobs as a table, a row each."""
    columns, grid = _grid(views, now)
    style = f"{CELL};font-weight:600;{SOFT}"
    head = "".join(f'<th scope="col" style="{style}">{html.escape(word(_COLUMNS[column]))}</th>' for column in columns)
    body = []
    for view, cells in zip(views, grid, strict=True):
        row = f'<th scope="row" style="{CELL};font-weight:600">{html.escape(cells[0])}</th>'
        row += f'<td style="{CELL}">{pill(view.state)}</td>'
        row += "".join(f'<td style="{CELL}">{html.escape(cells[column])}</td>' for column in columns[2:])
        body.append(f'<tr style="background:transparent">{row}</tr>')
    return (
        f'<table style="{TABLE}">{caption(html.escape(title))}'
        f'<thead><tr style="background:transparent">{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    )


def attention(state: JobState) -> int:
    """In which order tasks are shown: what went wrong first, then what runs."""
    if state.terminal:
        return 2 if state is JobState.SUCCEEDED else 0
    return 1 if state in {JobState.RUNNING, JobState.FINISHING, JobState.STARTING} else 3


def array_bundle(
    array_id: str,
    counts: Mapping[JobState, int],
    shown: Sequence[JobView],
    *,
    name: str = "",
    now: float | None = None,
) -> dict[str, Any]:
    """The card of an array.

    Parameters
    ----------
    array_id, name : str
        Which.
    counts : mapping
        How many tasks are in each state.
    shown : sequence of JobView
        The tasks that most need a look.
    now : float, optional
        Unix time, seconds.
    """
    listed = [msgspec.structs.replace(view, name="", title="") for view in shown]  # all have the array's
    total = sum(counts.values())
    ended = sum(count for state, count in counts.items() if state.terminal)
    bad = any(state.terminal and state is not JobState.SUCCEEDED for state in counts)
    parts = [(counts.get(JobState.SUCCEEDED, 0), GOOD), (ended - counts.get(JobState.SUCCEEDED, 0), BAD)]
    look = BAD if bad else GOOD if ended == total else BRAND
    told = ", ".join(f"{count} {word(LOOK[state][1]).lower()}" for state, count in counts.items())
    summary = say("{total} tasks: {states}", total=total, states=told)
    rest = say("{count} more are not shown", count=total - len(shown)) if len(shown) < total else ""
    lines = [f"%cluster_status {array_id}", f"%cluster_metrics {array_id}"]
    failed = [view.id for view in shown if view.log and view.state.terminal and view.state is not JobState.SUCCEEDED]
    lines += [f"%cluster_logs {failed[0]}"] if failed else []
    if ended < total:
        lines.append(f"%cluster_cancel {array_id}")
    title = say("Array {id}", id=array_id) + (f"  {name}" if name else "")
    text = "\n".join(filter(None, [f"{title}  {summary}", table_text(listed, now=now), rest, "   ".join(lines)]))
    inner = [
        f'<div style="font-size:1.05em"><strong>{html.escape(title)}</strong> &nbsp;{html.escape(summary)}</div>',
        f"<div>{bar(ended, total, parts)}</div>" if total else "",
        table_html(listed, title=f"{word('Tasks')}{rest and f' ({rest})'}", now=now),
        f'<div style="margin-top:4px">{commands(lines)}</div>',
    ]
    about = {"id": array_id, "name": name, "counts": {state.value: count for state, count in counts.items()}}
    return {
        "text/plain": text,
        "text/html": frame(look, "".join(inner)),
        MIME: {**about, "tasks": [data(view) for view in shown]},
    }
