"""Which step a dictionary of metrics belongs to, when it does not say.

transformers prints ``{'loss': ..., 'epoch': '0.2333'}`` on stdout and draws a bar
``21/40`` on stderr. Each write clears the bar, writes, and draws it again with the
true step, so redraws and dictionaries come in the same order, though their streams
are read at different times. Three things tell the step, and each checks the others:

- on one merged stream, the frame right after the dictionary;
- on two streams, the redraw of the same rank in order;
- ``step = epoch * steps per epoch``, once a few pairs have told the latter. It alone
  places an evaluation before a resumed training, whose bar still says 0.

A dictionary that nothing places yet waits up to `PATIENCE` and is then logged with
the best that is known, or with no step at all: never with a guess.
"""

import itertools
import math
from collections import deque

from .logbars import TrainingBar

__all__ = ["PATIENCE", "Steps"]

PATIENCE = 1.5
# A redraw comes within a moment of its dictionary; an older one belonged to another text.
_FRESH = 1.0
_MOST_PENDING = 1000
_MOST_MARKS = 4096


class _Dictionary(object):
    """A dictionary and what is known of its step."""

    __slots__ = ("epoch", "kind", "mark", "placed", "range", "step", "stream", "t", "values")

    def __init__(self, logged, stream, now):
        self.values = logged.values
        self.step = logged.step
        self.epoch = logged.epoch
        self.range = logged.epoch_range
        self.kind = logged.kind
        self.stream = stream
        self.t = now
        self.mark = None  # what the bar said
        self.placed = False  # whether it was logged, with `step`

    @property
    def started(self):
        """Whether its epoch shows that steps were taken."""
        return self.range is not None and self.range[0] > 0


class Steps(object):
    """Places dictionaries on steps.

    Parameters
    ----------
    emit : callable
        ``emit(t, step, epoch, values)`` is called for each dictionary, once.
    """

    def __init__(self, emit):
        self.bar = TrainingBar()
        self._emit = emit
        self._pending: deque = deque()  # not logged yet
        self._every_hint = None
        self._accumulated = None
        self._resumed = None
        self._bar_stream = None
        self._redraws: set = set()  # streams whose bars were cleared and the training's not drawn since
        self._other_redraws: set = set()  # the same of any other bar
        self._other_marks: tuple = (None, deque())
        self._news = False  # whether anything came since the last look
        self._reset()

    def _reset(self):
        # One of these two is empty once they have been matched.
        self._marks: deque = deque(maxlen=_MOST_MARKS)  # (step, time) of redraws that no dictionary has taken
        self._open: deque = deque(maxlen=_MOST_MARKS)  # dictionaries, logged or not, whose redraw has not come
        self._slope = None  # steps per epoch lie between these
        self._curved = False  # epochs are no multiple of steps: only the bar tells
        self._last = None  # the last one placed
        self._trained = []  # the last few steps that training logged
        self._misses = 0
        self._any_train = False
        self._ordered = True  # whether no redraw and no dictionary was forgotten

    @property
    def due(self):
        """When the oldest one that waits must be logged; None where none waits."""
        return self._pending[0].t + PATIENCE if self._pending else None

    def hint(self, name, number):
        """Take note of a setting that the trainer has printed."""
        self._news = True
        if name == "max_steps" and number > 0:
            self.bar.hint = number
        elif name == "logging_steps" and number > 0:
            self._every_hint = number
        elif name == "gradient_accumulation_steps":
            self._accumulated = number
        elif name == "resumed":
            self._resumed = number

    def cleared(self, stream):
        """All bars on a stream were cleared; what comes next redraws them."""
        self._redraws.add(stream)
        self._other_redraws.add(stream)

    def frame(self, bar, stream, nested, now):
        """A frame of a bar was drawn. True where it is the training's.

        Parameters
        ----------
        bar : logbars.Bar
        stream : str
        nested : bool
            It is drawn a line below another bar.
        now : float
        """
        before = self.bar.generation
        redrawn = stream in self._redraws
        if not self.bar.frame(bar, nested, redrawn):
            if stream in self._other_redraws and bar.unit == "it" and not bar.desc:
                # Should it turn out to be the next training's.
                self._other_redraws.discard(stream)
                if self._other_marks[0] != bar.total:
                    self._other_marks = (bar.total, deque(maxlen=_MOST_MARKS))
                self._other_marks[1].append((bar.n, now))
            return False
        self._redraws.discard(stream)
        if before and self.bar.generation != before:
            self._another_training(now)
        self._bar_stream = stream
        merged = False
        for one in self._pending:
            if one.stream == stream:
                merged = True
                if one.mark is None:
                    one.mark = bar.n
        self._news = self._news or merged or redrawn
        if merged:
            self._marks.clear()
        elif redrawn:
            self._forget(now)
            self._ordered = self._ordered and len(self._marks) < _MOST_MARKS
            self._marks.append((bar.n, now))
        return True

    def add(self, logged, stream, now):
        """A dictionary was printed."""
        one = _Dictionary(logged, stream, now)
        self._news = True
        if one.kind == "train":
            last = self._last
            if self.bar.confirm(not self._any_train):
                self._another_training(now)
                total, marks = self._other_marks
                if total == self.bar.total:
                    self._marks = marks
            elif last and last.range and one.range and one.range[1] < last.range[0]:
                self._another_training(now)
            self._any_train = True
        self._forget(now)
        self._pending.append(one)
        if one.stream != self._bar_stream and one.step is None:
            self._ordered = self._ordered and len(self._open) < _MOST_MARKS
            self._open.append(one)
        if one.kind == "final":
            self.bar.closed = True
        if len(self._pending) > _MOST_PENDING:
            self.settle(now)
            while len(self._pending) > _MOST_PENDING // 2:
                one = self._pending.popleft()
                self._place(one, self._guess(one))

    def _forget(self, now):
        """Drop redraws that no dictionary has come for."""
        if not self._open:
            while self._marks and self._marks[0][1] < now - _FRESH:
                self._marks.popleft()
            self._ordered = self._ordered or not self._marks

    def settle(self, now, final=False):
        """Log all that can be placed, and what has waited long enough."""
        if not (self._news or self._late(now) or final):
            return
        self._news = False
        progress = True
        while progress and self._pending:
            if self._slope is None and not self._curved:
                self._fit(final or self._late(now))
            progress = False
            for one in list(self._pending):
                self._match()
                step = self._find(one)
                if step is not None:
                    self._pending.remove(one)
                    if step == one.mark or self._whole() or (one.range and one.range[1] < 1):
                        self._learn(step, one.range)
                    self._place(one, step)
                    progress = True
        self._match()
        while self._pending and (final or self._late(now)):
            one = self._pending.popleft()
            self._place(one, self._guess(one))

    def _late(self, now):
        # A clock that was set back must not hold a dictionary for ever; `due` is a rounded sum.
        return bool(self._pending) and abs(now - self._pending[0].t) >= PATIENCE - 1e-3

    # -- one dictionary -------------------------------------------------------

    def _find(self, one):
        """The step of a dictionary, or None while it is not known."""
        if one.step is not None:
            return one.step
        if one.range is not None and one.range[1] == 0:
            return 0
        if one.mark is not None and not (one.mark == 0 and one.started):
            return one.mark
        if self._curved:
            return None
        low, high = self._steps_at(one.range)
        return low if low == high else None

    def _guess(self, one):
        """The step of a dictionary that cannot wait any longer, or None."""
        last = self._last
        low, high = self._steps_at(one.range, loose=True)
        if low is None:
            return last.step if one.kind == "final" and one.range is None and last else None
        if low == high:
            return low
        if one.kind == "train":
            expected = self._expected()
            return expected if expected is not None and low <= expected <= high else None
        if last is not None and last.epoch == one.epoch:
            return last.step
        return None

    def _expected(self):
        """The step that training logs next, by its interval."""
        trained = self._trained
        every = self._every_hint
        if len(trained) >= 3 and trained[-1] - trained[-2] == trained[-2] - trained[-3]:
            every = trained[-1] - trained[-2]
        return trained[-1] - trained[-1] % every + every if every and trained else None

    def _place(self, one, step):
        one.step = step
        one.placed = True
        if step is not None:
            if self._last is None or self._last.step <= step:
                self._last = one
            if one.kind == "train":
                self._trained = self._trained[-3:] + [step]
        self._emit(one.t, step, one.epoch, one.values)

    def _another_training(self, now):
        self.settle(now, final=True)
        self._resumed = None
        self._reset()

    # -- redraws ----------------------------------------------------------------

    def _match(self):
        """Give the redraws that came to the dictionaries that were printed, in order."""
        while self._marks and self._open and self._ordered:
            n = self._marks[0][0]
            one = self._open[0]
            if one.stream == self._bar_stream:
                self._open.popleft()
                continue
            if one.placed and one.step is not None:
                low = high = one.step
            else:
                if self._slope is None and not self._curved:
                    return
                low, high = self._steps_at(one.range)
                after = [two.step for two in itertools.islice(self._open, 9) if two.placed and two.step is not None]
                if after:
                    high = min(after + ([] if high is None else [high]))
            if n == 0 and one.started:
                self._marks.popleft()
                self._open.popleft()
            elif low is not None and n < low:
                self._marks.popleft()  # of another text
                self._miss()
            elif high is not None and n > high:
                self._open.popleft()  # its own never came
                self._miss()
            else:
                self._marks.popleft()
                self._open.popleft()
                self._misses = 0
                if one.placed:
                    self._learn(n, one.range)
                else:
                    one.mark = n

    def _miss(self):
        self._misses += 1
        if self._misses >= 3:
            # What was thought of steps per epoch does not hold.
            self._misses = 0
            self._slope = None
            self._open = deque((one for one in self._open if not one.placed), maxlen=_MOST_MARKS)

    # -- steps per epoch --------------------------------------------------------

    def _learn(self, step, bounds):
        """Narrow the steps per epoch by a pair that is sure."""
        if step <= 0 or bounds is None or bounds[0] <= 0 or self._curved:
            return
        pair = (step, bounds)
        slope = _narrow([pair])
        if self._slope is not None:
            slope = (max(slope[0], self._slope[0]), min(slope[1], self._slope[1]))
            if slope[0] > slope[1]:
                self._curved = True
        self._slope = slope

    def _whole(self, loose=False):
        """Steps per epoch where they are a whole number without doubt (or `loose`, likely), else None."""
        if self._slope is None:
            return None
        low, high = self._slope
        whole = math.ceil(low)
        near = high - low < 0.05 or self._accumulated == 1 or (loose and high - low < 2e-3 * high)
        return whole if near and whole == math.floor(high) else None

    def _steps_at(self, bounds, loose=False):
        """Between which steps an epoch lies: (low, high), or (None, None)."""
        if self._slope is None or self._curved or bounds is None:
            return None, None
        low, high = self._slope
        whole = self._whole(loose)
        if whole:
            low = high = float(whole)
        first = math.ceil(bounds[0] * low - 1e-6)
        last = math.floor(bounds[1] * high + 1e-6)
        if not whole and bounds[1] >= 1:
            # Where the last step of an epoch takes fewer batches, an epoch has a whole number of steps after all.
            epochs = math.floor(bounds[1])
            part = epochs * math.ceil(high) + (bounds[1] - epochs) * high
            last = max(last, math.floor(part + 1e-6))
        return (first, last) if first <= last else (None, None)

    def _fit(self, force):
        """Find the steps per epoch from what waits."""
        first = self._pending[0]
        if first.started and self._last is None and self._resumed and first.kind != "train":
            self._slope = _narrow([(self._resumed, first.range)])
            return
        ones = [one for one in self._open if one.range is not None][:8]
        marks = [mark[0] for mark in self._marks] if self._ordered else []
        for offset in range(min(3, len(marks))):
            pairs = list(zip(marks[offset:], ones))
            if any(n != one.step for n, one in pairs if one.step is not None):
                continue
            told = [(n, one.range) for n, one in pairs if n > 0 and one.started]
            steps = len({n for n, _ in told})
            slope = _narrow(told)
            if slope is not None or not told:
                if steps < (1 if force else 2):
                    break
                if offset and steps < 3:
                    continue
                # The first redraws were for other texts.
                for _ in range(offset):
                    self._marks.popleft()
                self._slope = slope
                return
        else:
            # Nothing fits: epochs here are no multiple of steps, and only the order tells.
            if len({n for n in marks[: len(ones)] if n > 0}) >= (1 if force else 3):
                self._curved = True
                return
        self._fit_by_interval(force)

    def _fit_by_interval(self, force):
        """From how far apart training's dictionaries are, where the interval was printed."""
        every = self._every_hint
        if not every:
            return
        ranges = [one.range for one in self._pending if one.kind == "train" and one.range is not None][:8]
        slope = None
        if len(ranges) >= (2 if every == 1 else 3):
            # With logging_first_step the first of them stands apart.
            told = ranges if every == 1 else ranges[1:]
            slope = (0.0, math.inf)
            for apart, bounds in enumerate(told[1:], 1):
                least, most = bounds[0] - told[0][1], bounds[1] - told[0][0]
                if most <= 0:
                    return
                steps = every * apart
                slope = (max(slope[0], steps / most), min(slope[1], steps / least if least > 0 else math.inf))
            if slope[0] > slope[1] or slope[1] == math.inf:
                return
        elif force and every == 1 and len(ranges) == 1 and self._last is None and not self._resumed:
            slope = _narrow([(1, ranges[0])])
        self._slope = slope


def _narrow(pairs):
    """Between which values steps per epoch lie for all pairs (step, (epoch, epoch)), or None."""
    low, high = 0.0, math.inf
    for n, (least, most) in pairs:
        low = max(low, n / most)
        high = min(high, n / least if least > 0 else math.inf)
    return (low, high) if pairs and low <= high < math.inf else None
