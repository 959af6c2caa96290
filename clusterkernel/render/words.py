"""How states, sizes, metrics and output are written, and the pieces of HTML that cards and tables share."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from clusterkernel.language import say, word
from clusterkernel.states import JobState
from clusterkernel.views import JobView

MIME: Final = "application/vnd.clusterkernel.job.v1+json"
TAIL_LINES: Final = 20
LINE_LENGTH: Final = 300

#: A property of JupyterLab's theme and the colour where there is none.
BRAND: Final = ("--jp-brand-color1", "#1e88e5")
GOOD: Final = ("--jp-success-color1", "#43a047")
BAD: Final = ("--jp-error-color1", "#e53935")
WARN: Final = ("--jp-warn-color1", "#fb8c00")
QUIET: Final = ("--jp-ui-font-color2", "#757575")
LOOK: Final[Mapping[JobState, tuple[str, str, tuple[str, str]]]] = {
    JobState.SUBMITTING: ("↑", "Submitting", QUIET),
    JobState.QUEUED: ("○", "Queued", QUIET),
    JobState.HELD: ("‖", "Held", WARN),
    JobState.STARTING: ("◔", "Starting", BRAND),
    JobState.RUNNING: ("▶", "Running", BRAND),
    JobState.REQUEUED: ("↻", "Queued again", WARN),
    JobState.FINISHING: ("◕", "Finishing", BRAND),
    JobState.SUCCEEDED: ("✓", "Succeeded", GOOD),
    JobState.FAILED: ("✗", "Failed", BAD),
    JobState.DIED: ("✗", "Died", BAD),
    JobState.OUT_OF_MEMORY: ("✗", "Out of memory", BAD),
    JobState.TIMED_OUT: ("✗", "Timed out", BAD),
    JobState.CANCELLED: ("■", "Cancelled", WARN),
    JobState.NODE_LOST: ("✗", "Node lost", BAD),
    JobState.LAUNCH_FAILED: ("✗", "Launch failed", BAD),
    JobState.RESULT_FAILED: ("!", "Result failed", BAD),
    JobState.LOST: ("?", "Lost", BAD),
}


def state_text(state: JobState) -> str:
    """Symbol and word: ``▶ Running``."""
    symbol, name, _ = LOOK[state]
    return f"{symbol} {word(name)}"


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


def when(moment: float) -> str:
    """A moment in the time of this place."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def where(view: JobView) -> str:
    """Where a job runs."""
    text = view.backend
    if view.platform_id and view.backend != "local":  # there it is a process
        text += f" {view.platform_id}"
    if view.node and view.node != "localhost":
        text = say("{platform} on {node}", platform=text, node=view.node)
    return text


def headline(view: JobView) -> str:
    """The one metric to show where there is room for one."""
    names = sorted(view.latest, key=lambda name: ("loss" not in name, name in ("step", "epoch")))
    return f"{names[0]} {format_metric(view.latest[names[0]])}" if names else ""


def progress_text(done: float, total: float) -> str:
    """``30 of 100 (30 %)``."""
    return say("{done:g} of {total:g} ({percent:.0f} %)", done=done, total=total, percent=100 * done / total)


def progress(view: JobView) -> tuple[float, float] | None:
    """Done and total, where that makes sense."""
    if view.progress is None or not view.progress[1] > 0:
        return None
    done, total = view.progress
    return min(max(done, 0), total), total


def runtime(view: JobView, now: float | None) -> float | None:
    """Seconds that it ran, or has run: the job's clock and ours, so only to be shown."""
    if view.runtime is not None or view.state.terminal or view.started is None or now is None:
        return view.runtime
    return max(0.0, now - view.started)


def color(named: tuple[str, str]) -> str:
    """A colour of the theme as CSS."""
    return f"var({named[0]}, {named[1]})"


FONT: Final = "font-family:var(--jp-ui-font-family, system-ui, sans-serif);font-size:var(--jp-ui-font-size1, 13px)"
CODE: Final = "font-family:var(--jp-code-font-family, monospace);font-size:var(--jp-code-font-size, 12px)"
LINE: Final = "var(--jp-border-color2, rgba(128, 128, 128, 0.35))"
SOFT: Final = "color:var(--jp-ui-font-color2, inherit)"
CELL: Final = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;border:none;background:transparent"
TABLE: Final = "border-collapse:collapse;border:none;margin:0;table-layout:auto;width:auto;color:inherit;" + FONT


def bar(done: float, total: float, parts: Sequence[tuple[float, tuple[str, str]]]) -> str:
    """A bar of coloured parts, and the numbers behind it."""
    # Boxes and not <progress>: its colours cannot be set without a style sheet.
    boxes = "".join(
        f'<div style="float:left;width:{100 * size / total:.4g}%;height:8px;background:{color(look)}"></div>'
        for size, look in parts
        if size
    )
    return (
        f'<div role="progressbar" aria-label="{word("Progress")}" aria-valuemin="0" aria-valuemax="{total:g}" '
        f'aria-valuenow="{done:g}" style="display:inline-block;vertical-align:middle;width:16em;max-width:60%;'
        f'height:8px;border-radius:4px;overflow:hidden;background:{LINE}">{boxes}</div>'
        f'<span style="margin-left:8px">{progress_text(done, total)}</span>'
    )


def pill(state: JobState) -> str:
    """A state as a coloured symbol and word."""
    symbol, name, look = LOOK[state]
    return (
        f'<span style="color:{color(look)};font-weight:600;white-space:nowrap">'
        f'<span aria-hidden="true">{symbol}</span> {word(name)}</span>'
    )


def frame(look: tuple[str, str], inner: str) -> str:
    """The box around a card."""
    return (
        f'<div style="{FONT};color:var(--jp-ui-font-color1, inherit);line-height:1.5;max-width:56em;'
        f"margin:4px 0;padding:8px 12px;border:1px solid {LINE};border-left:4px solid {color(look)};"
        f'border-radius:4px">{inner}</div>'
    )


def caption(parts: str) -> str:
    """A table's caption."""
    return (
        '<caption style="caption-side:top;text-align:left;padding:0 0 4px 0;color:inherit;'
        f'font-size:1.05em;white-space:normal">{parts}</caption>'
    )


def commands(lines: Sequence[str]) -> str:
    """Lines that can be typed."""
    style = f"{CODE};background:transparent;color:inherit;padding:0;margin-right:1.5em;white-space:nowrap"
    return " ".join(f'<code style="{style}">{html.escape(command)}</code>' for command in lines)


def data(view: JobView) -> Any:
    """A job for who draws it."""
    # What is long is fetched by who draws it; it need not lie in the notebook's file.
    return msgspec.to_builtins(msgspec.structs.replace(view, tail="", traceback=""))
