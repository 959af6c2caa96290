"""What is known of a job, as text, as HTML and as data. Pure: nothing is read, nothing is sent.

The HTML stands alone: no script, no style sheet. A saved notebook, GitHub and
nbconvert show it as JupyterLab does. Colours come from JupyterLab's theme where there
is one, and a state is always a word and a symbol beside its colour.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from clusterkernel.states import JobState
from clusterkernel.units import format_duration
from clusterkernel.views import JobView

__all__ = ["MIME", "Around", "array_bundle", "bundle", "job_html", "job_text", "table_html", "table_text"]

MIME: Final = "application/vnd.clusterkernel.job.v1+json"
TAIL_LINES: Final = 20
LINE_LENGTH: Final = 300
ARRAY_ROWS: Final = 12


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


_BRAND: Final = ("--jp-brand-color1", "#1e88e5")
_GOOD: Final = ("--jp-success-color1", "#43a047")
_BAD: Final = ("--jp-error-color1", "#e53935")
_WARN: Final = ("--jp-warn-color1", "#fb8c00")
_QUIET: Final = ("--jp-ui-font-color2", "#757575")
_LOOK: Final[Mapping[JobState, tuple[str, str, tuple[str, str]]]] = {
    JobState.SUBMITTING: ("↑", "Submitting", _QUIET),
    JobState.QUEUED: ("○", "Queued", _QUIET),
    JobState.HELD: ("‖", "Held", _WARN),
    JobState.STARTING: ("◔", "Starting", _BRAND),
    JobState.RUNNING: ("▶", "Running", _BRAND),
    JobState.REQUEUED: ("↻", "Queued again", _WARN),
    JobState.FINISHING: ("◕", "Finishing", _BRAND),
    JobState.SUCCEEDED: ("✓", "Succeeded", _GOOD),
    JobState.FAILED: ("✗", "Failed", _BAD),
    JobState.DIED: ("✗", "Died", _BAD),
    JobState.OUT_OF_MEMORY: ("✗", "Out of memory", _BAD),
    JobState.TIMED_OUT: ("✗", "Timed out", _BAD),
    JobState.CANCELLED: ("■", "Cancelled", _WARN),
    JobState.NODE_LOST: ("✗", "Node lost", _BAD),
    JobState.LAUNCH_FAILED: ("✗", "Launch failed", _BAD),
    JobState.RESULT_FAILED: ("!", "Result failed", _BAD),
    JobState.LOST: ("?", "Lost", _BAD),
}


def state_text(state: JobState) -> str:
    """Symbol and word: ``▶ Running``."""
    symbol, word, _ = _LOOK[state]
    return f"{symbol} {word}"


_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def clean_lines(lines: Sequence[str], limit: int = TAIL_LINES) -> list[str]:
    """Output as a screen would show it at last: no colours, a redrawn line once, bounded."""
    shown = []
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    for line in lines[-limit:]:
        # A bar redraws its line: what stands behind the last carriage return is seen.
        last = line.rstrip("\r\n")[-20 * LINE_LENGTH :].rpartition("\r")[2]
        text = _CONTROL.sub("", _ANSI.sub("", last)).expandtabs(4)
        shown.append(text if len(text) <= LINE_LENGTH else text[:LINE_LENGTH] + " …")
    return shown


def format_size(size: int) -> str:
    """Bytes as a person reads them: ``512 B``, ``1.2 kB``, ``3.4 MB``."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def format_metric(value: float) -> str:
    """A metric with four digits: ``0.2314``, ``1e-04``, ``1200``."""
    if value == int(value) and abs(value) < 1e6 if value == value and abs(value) != float("inf") else False:
        return f"{int(value)}"
    return f"{value:.4g}"


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _where(view: JobView) -> str:
    text = view.backend
    if view.platform_id and view.backend != "local":  # there it is a process
        text += f" {view.platform_id}"
    if view.node and view.node != "localhost":
        text += f" on {view.node}"
    return text


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


def _progress(view: JobView) -> tuple[float, float, int] | None:
    if view.progress is None or not view.progress[1] > 0:
        return None
    done, total = view.progress
    done = min(max(done, 0), total)
    return done, total, round(100 * done / total)


def _runtime(view: JobView, now: float | None) -> float | None:
    """Seconds that it ran, or has run: the job's clock and ours, so only to be shown."""
    if view.runtime is not None or view.state.terminal or view.started is None or now is None:
        return view.runtime
    return max(0.0, now - view.started)


def _facts(view: JobView, around: Around) -> list[tuple[str, str]]:
    """The rows that text and HTML share."""
    rows = [("Where", _where(view)), ("Asked for", view.counts)]
    times = f"submitted {_when(view.created)}" if view.created else ""
    if (runtime := _runtime(view, around.now)) is not None:
        verb = "ran" if view.state.terminal else "running for"
        times += f"{', ' if times else ''}{verb} {format_duration(int(runtime))}"
    rows.append(("Time", times))
    rows.append(("Metrics", _metrics(view)))
    rows.append(("Names", _names(view, around)))
    if view.stale_since is not None and not view.state.terminal:
        since = f" for {format_duration(max(int(around.now - view.stale_since), 0))}" if around.now is not None else ""
        rows.append(("Silent", f"Nothing was heard of it{since}; the platform still lists it."))
    rows.append(("Reason", view.reason if view.reason != view.error else ""))
    rows.append(("Error", view.error))
    rows.append(("Note", around.note))
    return [(name, text) for name, text in rows if text]


def _next(view: JobView, around: Around) -> list[str]:
    """The commands that make sense now."""
    if not view.state.terminal:
        return [f"%cluster_logs {view.id} -f", f"%cluster_cancel {view.id}"]
    commands = [f"%cluster_logs {view.id}"]
    saved = {name for name, output in view.outputs.items() if not output.error}
    missing = [name for name in view.bind if name in saved and name not in around.bound]
    if missing:
        commands.append(f"%cluster_bind {view.id} {' '.join(missing)}")
    if view.state is not JobState.SUCCEEDED:
        commands.append(f"%cluster_rerun {view.id}")
    return commands


def job_text(view: JobView, around: Around = _NOTHING) -> str:
    """The card as plain text."""
    title = view.name or view.title
    lines = [f"Job {view.id}  {state_text(view.state)}" + (f"  {title}" if title else "")]
    rows = _facts(view, around)
    if progress := _progress(view):
        rows.insert(3 if len(rows) > 2 else len(rows), ("Progress", "{:g} of {:g} ({} %)".format(*progress)))
    lines += [f"  {name + ':':<11}{text}" for name, text in rows]
    lines.append(f"  {'Next:':<11}{'   '.join(_next(view, around))}")
    if view.state.terminal and view.state is not JobState.SUCCEEDED and (tail := clean_lines(view.tail.split("\n"), 8)):
        lines += ["  Last lines of its output:", *[f"    {line}" for line in tail]]
    return "\n".join(lines)


def _color(look: tuple[str, str]) -> str:
    return f"var({look[0]}, {look[1]})"


_FONT: Final = "font-family:var(--jp-ui-font-family, system-ui, sans-serif);font-size:var(--jp-ui-font-size1, 13px)"
_CODE: Final = "font-family:var(--jp-code-font-family, monospace);font-size:var(--jp-code-font-size, 12px)"
_LINE: Final = "var(--jp-border-color2, rgba(128, 128, 128, 0.35))"
_SOFT: Final = "color:var(--jp-ui-font-color2, inherit)"
_CELL: Final = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;border:none;background:transparent"
_TABLE: Final = "border-collapse:collapse;border:none;margin:0;table-layout:auto;width:auto;color:inherit;" + _FONT


def _bar(done: float, total: float, percent: int, color: tuple[str, str]) -> str:
    # Two boxes and not <progress>: its colours cannot be set without a style sheet.
    return (
        f'<div role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="{total:g}" '
        f'aria-valuenow="{done:g}" style="display:inline-block;vertical-align:middle;width:16em;max-width:60%;'
        f'height:8px;border-radius:4px;overflow:hidden;background:{_LINE}">'
        f'<div style="width:{percent}%;height:8px;background:{_color(color)}"></div></div>'
        f'<span style="margin-left:8px">{done:g} of {total:g} ({percent} %)</span>'
    )


def _pill(state: JobState) -> str:
    symbol, word, look = _LOOK[state]
    return (
        f'<span style="color:{_color(look)};font-weight:600;white-space:nowrap">'
        f'<span aria-hidden="true">{symbol}</span> {word}</span>'
    )


def _log(view: JobView) -> str:
    tail = clean_lines(view.tail.split("\n"))
    if not tail:
        return ""
    bad = view.state.terminal and view.state is not JobState.SUCCEEDED
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    # The last line stands in the summary: an update closes what was opened.
    hint = (
        "" if bad else f': <code style="{_CODE};background:transparent;color:inherit">{html.escape(last[:100])}</code>'
    )
    body = html.escape("\n".join(tail))
    return (
        f'<details{" open" if bad else ""} style="margin-top:6px">'
        f'<summary style="cursor:pointer;{_SOFT};overflow:hidden;text-overflow:ellipsis;white-space:nowrap">'
        f"Last lines of its output{hint}</summary>"
        f'<pre style="margin:4px 0 0 0;padding:6px 8px;max-height:20em;overflow:auto;white-space:pre-wrap;'
        f"overflow-wrap:anywhere;color:inherit;background:var(--jp-layout-color2, rgba(128, 128, 128, 0.12));"
        f'{_CODE}">{body}</pre></details>'
    )


def _frame(look: tuple[str, str], inner: str) -> str:
    return (
        f'<div style="{_FONT};color:var(--jp-ui-font-color1, inherit);line-height:1.5;max-width:56em;'
        f"margin:4px 0;padding:8px 12px;border:1px solid {_LINE};border-left:4px solid {_color(look)};"
        f'border-radius:4px">{inner}</div>'
    )


def _caption(parts: str) -> str:
    return (
        '<caption style="caption-side:top;text-align:left;padding:0 0 4px 0;color:inherit;'
        f'font-size:1.05em;white-space:normal">{parts}</caption>'
    )


def _row(name: str, cell: str, style: str = "") -> str:
    return (
        f'<tr style="background:transparent"><th scope="row" style="{_CELL};font-weight:normal;{_SOFT};'
        f'white-space:nowrap">{html.escape(name)}</th>'
        f'<td style="{_CELL};overflow-wrap:anywhere;{style}">{cell}</td></tr>'
    )


def _commands(commands: Sequence[str]) -> str:
    style = f"{_CODE};background:transparent;color:inherit;padding:0;margin-right:1.5em;white-space:nowrap"
    return " ".join(f'<code style="{style}">{html.escape(command)}</code>' for command in commands)


def job_html(view: JobView, around: Around = _NOTHING) -> str:
    """The card as HTML."""
    look = _LOOK[view.state][2]
    title = view.name or view.title
    head = f"<strong>Job {html.escape(view.id)}</strong> &nbsp;{_pill(view.state)}"
    if title:
        head += f' &nbsp;<span style="{_SOFT}">{html.escape(title[:120])}</span>'
    rows = []
    for name, text in _facts(view, around):
        loud = f"color:{_color(_BAD)}" if name == "Error" else f"color:{_color(_WARN)}" if name == "Silent" else ""
        rows.append((name, _row(name, html.escape(text), loud)))
    if progress := _progress(view):
        at = next((i for i, (name, _) in enumerate(rows) if name not in {"Where", "Asked for", "Time"}), len(rows))
        rows.insert(at, ("Progress", _row("Progress", _bar(*progress, look))))
    rows.append(("Next", _row("Next", _commands(_next(view, around)))))
    table = f'<table style="{_TABLE}">{_caption(head)}<tbody>{"".join(row for _, row in rows)}</tbody></table>'
    return _frame(look, table + _log(view))


def bundle(view: JobView, around: Around = _NOTHING) -> dict[str, Any]:
    """The card in its three forms, by MIME type."""
    return {"text/plain": job_text(view, around), "text/html": job_html(view, around), MIME: _data(view)}


def _data(view: JobView) -> Any:
    # What is long is fetched by who draws it; it need not lie in the notebook's file.
    return msgspec.to_builtins(msgspec.structs.replace(view, tail="", traceback=""))


_COLUMNS: Final = ("Job", "State", "Name", "Where", "Ran", "Progress", "Last")


def _cells(view: JobView, now: float | None) -> tuple[str, ...]:
    runtime = _runtime(view, now)
    progress = _progress(view)
    latest = next((f"{name} {format_metric(value)}" for name, value in view.latest.items()), "")
    return (
        view.id,
        state_text(view.state),
        (view.name or view.title)[:40],
        _where(view),
        format_duration(int(runtime)) if runtime is not None else "",
        f"{progress[2]} %" if progress else "",
        view.error[:80] if view.error and view.state.terminal else latest,
    )


def _grid(views: Sequence[JobView], now: float | None) -> tuple[list[int], list[tuple[str, ...]]]:
    """The columns that hold something, and the cells of each job."""
    rows = [_cells(view, now) for view in views]
    return [column for column in range(len(_COLUMNS)) if column < 2 or any(row[column] for row in rows)], rows


def table_text(views: Sequence[JobView], *, now: float | None = None) -> str:
    """Jobs, a line each."""
    columns, cells = _grid(views, now)
    rows = [[row[column] for column in columns] for row in [_COLUMNS, *cells]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def table_html(views: Sequence[JobView], *, caption: str, now: float | None = None) -> str:
    """Jobs as a table, a row each."""
    columns, grid = _grid(views, now)
    style = f"{_CELL};font-weight:600;{_SOFT}"
    head = "".join(f'<th scope="col" style="{style}">{_COLUMNS[column]}</th>' for column in columns)
    body = []
    for view, cells in zip(views, grid, strict=True):
        row = f'<th scope="row" style="{_CELL};font-weight:600">{html.escape(cells[0])}</th>'
        row += f'<td style="{_CELL}">{_pill(view.state)}</td>'
        row += "".join(f'<td style="{_CELL}">{html.escape(cells[column])}</td>' for column in columns[2:])
        body.append(f'<tr style="background:transparent">{row}</tr>')
    return (
        f'<table style="{_TABLE}">{_caption(html.escape(caption))}'
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
    total = sum(counts.values())
    ended = sum(count for state, count in counts.items() if state.terminal)
    bad = any(state.terminal and state is not JobState.SUCCEEDED for state in counts)
    look = _BAD if bad else _GOOD if ended == total else _BRAND
    summary = f"{total} tasks: " + ", ".join(f"{count} {_LOOK[state][1].lower()}" for state, count in counts.items())
    rest = f"{total - len(shown)} more are not shown" if len(shown) < total else ""
    commands = [f"%cluster_status {array_id}", f"%cluster_metrics {array_id}"]
    if ended < total:
        commands.append(f"%cluster_cancel {array_id}")
    title = f"Array {array_id}" + (f"  {name}" if name else "")
    text = "\n".join(filter(None, [f"{title}  {summary}", table_text(shown, now=now), rest, "   ".join(commands)]))
    parts = [
        f'<div style="font-size:1.05em"><strong>{html.escape(title)}</strong> &nbsp;{html.escape(summary)}</div>',
        f"<div>{_bar(ended, total, round(100 * ended / total), look)}</div>" if total else "",
        table_html(shown, caption=f"Tasks{rest and f' ({rest})'}", now=now),
        f'<div style="margin-top:4px">{_commands(commands)}</div>',
    ]
    data = {"id": array_id, "name": name, "counts": {state.value: count for state, count in counts.items()}}
    return {
        "text/plain": text,
        "text/html": _frame(look, "".join(parts)),
        MIME: {**data, "tasks": [_data(view) for view in shown]},
    }
