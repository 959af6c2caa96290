"""Progress bars: what a frame of tqdm's says, and which bar is the training's."""

import re

from .loglines import IGNORED, NUMBER

__all__ = ["BAR_END", "Bar", "TrainingBar", "find_bars"]

# `desc:  25%|##5   | 5/20 [00:00<00:01, 10.81it/s, loss=0.5]`
BAR_END = rb"\d{1,15}/\d{1,15} \[[\d:]{1,12}<[^\]\r\n]{0,1000}\]"
_BAR = re.compile(
    r"(?P<percent>\d{1,3})%(?:\|[^|\r\n]{0,1000}\|)?\s{0,3}(?P<n>\d{1,15})/(?P<total>\d{1,15})"
    r" \[(?P<elapsed>[\d:]{1,12})<(?P<rest>[^\]\r\n]{0,1000})\]"
)
_RATE = re.compile(r"\s*(?:\?|[\d.]+[kMG]?)\s?(?:(?P<unit>[A-Za-z]+)/s|s/(?P<per>[A-Za-z]+))\s*$")
_POSTFIX = re.compile(r"(?P<name>[A-Za-z][\w@./-]{0,80})\s{0,3}[=:]\s{0,3}(?P<number>" + NUMBER + r")%?\s*(?=,|$)")


class Bar(object):
    """One frame of a progress bar."""

    __slots__ = ("desc", "elapsed", "end", "n", "start", "total", "unit", "values")

    def __init__(self, desc, n, total):
        self.desc = desc
        self.n = n
        self.total = total
        self.elapsed = 0  # seconds
        self.unit = ""  # what it counts: `it`, `examples`
        self.values = {}  # the numbers that it shows
        self.start = self.end = 0  # where it stands in the text


def find_bars(text):
    """All frames of tqdm's bars in a text, in order."""
    bars = []
    position = 0
    for match in _BAR.finditer(text):
        before = text[position : match.start()].rstrip()
        desc = before[:-1].strip() if before.endswith(":") else ""
        bar = Bar(desc, int(match.group("n")), int(match.group("total")))
        for part in match.group("elapsed").split(":"):
            bar.elapsed = bar.elapsed * 60 + int(part or 0)
        rest = match.group("rest").split(",", 2)
        rate = _RATE.match(rest[1]) if len(rest) > 1 else None
        bar.unit = (rate.group("unit") or rate.group("per")) if rate else ""
        after = ",".join(rest[2 if rate else 1 :])
        for pair in _POSTFIX.finditer(after):
            if pair.group("name") not in IGNORED:
                bar.values[pair.group("name")] = float(pair.group("number"))
        bar.start, bar.end = match.span()
        if bar.desc:
            bar.start -= len(text[position : match.start()])
        bars.append(bar)
        position = match.end()
    return bars


class TrainingBar(object):
    """Tells the bar of the training from the others.

    It has no description (``Map:``, ``Loading weights:``, ``Tokenizing Prompts:``
    do), counts iterations (not ``examples/s`` or bytes), and was there before the
    bars of evaluation, which are nested in it and come and go while it stands. A
    later bar takes its place only when a training's dictionary comes after that bar
    has moved and the first has ended. ``max_steps``, where it was printed, decides.
    """

    def __init__(self):
        self.total = None
        self.n = 0
        self.generation = 0  # counts the bars that were the training's
        self.hint = None
        self.closed = False
        self._elapsed = 0
        self._nested = None  # n of a nested bar that has the same total
        self._other = None  # the newest frame of another one since our own last

    def frame(self, bar, nested, redrawn=False):
        """Whether a frame is of the training bar.

        Parameters
        ----------
        bar : Bar
        nested : bool
            Drawn a line below another bar (it follows a line feed).
        redrawn : bool
            The first since all bars were cleared.
        """
        if bar.desc or bar.unit != "it" or bar.total == 0:
            return False
        if self.total is None or (bar.total == self.hint != self.total):
            self._adopt(bar.total, bar.n, bar.elapsed)
            return True
        if bar.total != self.total:
            self._other = bar
            return False
        if bar.n < self.n or bar.elapsed < self._elapsed or (nested and not redrawn and bar.n == self.n == 0):
            if self.closed or (not nested and bar.n == 0 and self.n == self.total):
                self._adopt(bar.total, bar.n, bar.elapsed)
                return True
            if nested:
                self._nested = bar.n
            return False
        if self._nested is not None and nested and bar.n >= self._nested:
            self._nested = bar.n
            return False
        if bar.n > self.n:
            self._nested = None  # training goes on when the evaluation is over
        self.n, self._elapsed = bar.n, bar.elapsed
        self._other = None
        return True

    def confirm(self, first):
        """A training's dictionary came, its `first` or not: does another bar go with it? True on a change."""
        other = self._other
        if other is None or not (self.closed or (self.n == self.total and (first or other.n > 0))):
            return False
        self._adopt(other.total, other.n, other.elapsed)
        return True

    def _adopt(self, total, n, elapsed):
        self.total, self.n, self._elapsed = total, n, elapsed
        self.generation += 1
        self.closed = False
        self._nested = None
        self._other = None
