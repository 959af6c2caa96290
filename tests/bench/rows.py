"""Measuring and printing: medians beside a floor or a peer of the same run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Row:
    """One thing that is measured, ours beside others.

    `limit` is the most that ours may be, as a function of the others' medians.
    """

    name: str
    unit: str
    ours: list[float]
    beside: dict[str, list[float]]
    limit: Callable[[dict[str, float]], float]
    limit_text: str
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The row as lines, with whether the limit holds."""
        mine = statistics.median(self.ours)
        others = {name: statistics.median(values) for name, values in self.beside.items()}
        allowed = self.limit(others)
        verdict = "within" if mine <= allowed else "OVER"
        lines = [f"{self.name}", f"    ours {_show(mine, self.ours, self.unit)}   {verdict} {self.limit_text}"]
        lines += [
            f"    {name} {_show(value, self.beside[name], self.unit)}   ours / this = {mine / value:.2f}"
            for name, value in others.items()
            if value
        ]
        return "\n".join(lines + [f"    {note}" for note in self.notes])


def _show(median: float, values: list[float], unit: str) -> str:
    scale = 1000 if unit == "ms" else 1
    low, high = min(values) * scale, max(values) * scale
    return f"{median * scale:.1f} {unit} (of {len(values)}: {low:.1f} to {high:.1f})"


def timed(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def alternate(count: int, **calls: Callable[[], float]) -> dict[str, list[float]]:
    """Each call `count` times, in turn, so that the machine's moods hit all alike; each gives seconds."""
    values: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            values[name].append(call())
    return values


def load() -> str:
    """The machine's load, which belongs to any number of seconds."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
