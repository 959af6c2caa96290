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

import math
from collections import deque

__all__ = ["PATIENCE", "EpochSteps", "Steps", "TrainingBar"]

PATIENCE = 1.5
# A redraw comes within a moment of its dictionary; an older one belonged to another text.
_FRESH = 1.0
_PROGRESS_EVERY = 1.0
_MOST_PENDING = 500
_MOST_MARKS = 4096


class _Pending(object):
    """A dictionary whose step is being looked for."""

    __slots__ = ("epoch", "kind", "mark", "range", "step", "stream", "t", "values")

    def __init__(self, logged, stream, now):
        self.values = logged.values
        self.step = logged.step
        self.epoch = logged.epoch
        self.range = logged.epoch_range
        self.kind = logged.kind
        self.stream = stream
        self.t = now
        self.mark = None

    @property
    def started(self):
        """Whether its epoch shows that steps were taken."""
        return self.range is not None and self.range[0] > 0


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
        self._others = {}  # total -> (n, elapsed) of the frames since our own last
        self._evaluations = set()

    def frame(self, bar, nested):
        """Whether a frame is of the training bar.

        Parameters
        ----------
        bar : loglines.Bar
        nested : bool
            Drawn a line below another bar (it follows a line feed).
        """
        if bar.desc or bar.unit != "it" or bar.total == 0:
            return False
        if self.total is None or (bar.total == self.hint != self.total):
            self._adopt(bar.total, bar.n, bar.elapsed)
            return True
        if bar.total != self.total:
            if not self.closed:
                self._evaluations.add(bar.total)
            self._others[bar.total] = (bar.n, bar.elapsed)
            if len(self._others) > 64:
                self._others.clear()
            return False
        if bar.n < self.n or bar.elapsed < self._elapsed:
            if self.closed or (not nested and bar.n == 0 and self.n == self.total):
                self._adopt(bar.total, bar.n, bar.elapsed)
                return True
            if nested:
                self._nested = bar.n
            return False
        if self._nested is not None and nested and bar.n >= self._nested:
            self._nested = bar.n
            return False
        self.n, self._elapsed = bar.n, bar.elapsed
        self._others.clear()
        return True

    def confirm(self):
        """A training's dictionary came: does another bar go with it? True on a change."""
        if self.total is None or not (self.closed or self.n == self.total):
            return False
        for total, (n, elapsed) in self._others.items():
            if n > 0 and not (self.closed and total in self._evaluations):
                self._adopt(total, n, elapsed)
                return True
        return False

    def _adopt(self, total, n, elapsed):
        self.total, self.n, self._elapsed = total, n, elapsed
        self.generation += 1
        self.closed = False
        self._nested = None
        self._others.clear()


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
        self._pending = deque()
        self._every_hint = None
        self._resumed = None
        self._reset()

    def _reset(self):
        self._marks = deque(maxlen=_MOST_MARKS)  # (step, time) of redraws that no dictionary has taken
        self._owed = deque(maxlen=64)  # dictionaries that were placed before their redraw came
        self._slope = None  # steps per epoch lie between these
        self._last = None  # (step, epoch, whether of training) of the last one placed
        self._trained = []  # the last few steps that training logged
        self._misses = 0

    @property
    def due(self):
        """When the oldest one that waits must be logged; None where none waits."""
        return self._pending[0].t + PATIENCE if self._pending else None

    def hint(self, name, number):
        """Take note of a setting that the trainer has printed."""
        if name == "max_steps" and number > 0:
            self.bar.hint = number
        elif name == "logging_steps" and number > 0:
            self._every_hint = number
        elif name == "resumed":
            self._resumed = number

    def frame(self, bar, stream, nested, redrawn, now):
        """A frame of a bar was drawn. True where it is the training's."""
        before = self.bar.generation
        if not self.bar.frame(bar, nested):
            return False
        if before and self.bar.generation != before:
            self._another_training(now)
        waiting = [one for one in self._pending if one.stream == stream and one.mark is None]
        if waiting:
            for one in waiting:
                one.mark = bar.n
        elif redrawn:
            self._redraw(bar.n, now)
        return True

    def _redraw(self, n, now):
        while self._owed and self._owed[0][0] < n:
            self._owed.popleft()
            self._misses += 1
        if self._owed and self._owed[0][0] == n:
            self._misses = 0
            self._learn(n, self._owed.popleft()[1])
        elif self._last is None or n > self._last[0]:
            self._marks.append((n, now))
        elif self._owed:
            self._misses += 1
        if self._misses >= 3:
            # What was thought of steps per epoch does not hold.
            self._slope, self._misses = None, 0
            self._owed.clear()

    def add(self, logged, stream, now):
        """A dictionary was printed."""
        one = _Pending(logged, stream, now)
        if one.kind == "train":
            if self.bar.confirm():
                self._another_training(now)
            elif self._last and self._last[1] is not None and one.range and one.range[1] < self._last[1] * 0.999:
                self._another_training(now)
        if not self._pending:
            while self._marks and self._marks[0][1] < now - _FRESH:
                self._marks.popleft()
        self._pending.append(one)
        if one.kind == "final":
            self.bar.closed = True
        if len(self._pending) > _MOST_PENDING:
            self.settle(now)
            while len(self._pending) > _MOST_PENDING // 2:
                one = self._pending.popleft()
                self._place(one, self._guess(one), False)

    def settle(self, now, final=False):
        """Log all that can be placed, and what has waited long enough."""
        if not self._pending:
            return
        progress = True
        while progress and self._pending:
            if self._slope is None:
                self._fit(final or abs(now - self._pending[0].t) >= PATIENCE)
            progress = False
            for one in list(self._pending):
                step, by_mark = self._find(one)
                if step is not None:
                    self._pending.remove(one)
                    self._place(one, step, by_mark)
                    progress = True
        while self._pending and (final or abs(now - self._pending[0].t) >= PATIENCE):
            one = self._pending.popleft()
            self._place(one, self._guess(one), False)

    # -- one dictionary -------------------------------------------------------

    def _find(self, one):
        """The step of a dictionary and whether a bar told it; (None, False) while unknown."""
        if one.step is not None:
            return one.step, False
        if one.range is not None and one.range[1] == 0:
            return 0, False
        if one.mark is not None and not (one.mark == 0 and one.started):
            return one.mark, True
        low, high = self._steps_at(one.range)
        if low is not None and low == high:
            return low, False
        if one.mark is not None:
            return None, False
        if one.range is not None and self._slope is None:
            return None, False
        low = max(low or 0, self._last[0] if self._last else 0)
        while self._marks and self._marks[0][0] < low:
            self._marks.popleft()
        if not self._marks:
            return None, False
        expected = self._expected()
        for n, _ in self._marks:
            if n == expected and one.kind == "train" and (high is None or n <= high):
                return n, True
        n = self._marks[0][0]
        if high is None or n <= high:
            return n, True
        return None, False

    def _guess(self, one):
        """The step of a dictionary that cannot wait any longer, or None."""
        low, high = self._steps_at(one.range)
        if low is None:
            return self._last[0] if one.kind == "final" and one.range is None and self._last else None
        if one.kind == "train":
            expected = self._expected()
            return expected if expected is not None and low <= expected <= high else None
        if self._last is not None and self._last[1] == one.epoch:
            return self._last[0]
        return None

    def _expected(self):
        """The step that training logs next, by its interval."""
        trained = self._trained
        every = self._every_hint
        if len(trained) >= 3 and trained[-1] - trained[-2] == trained[-2] - trained[-3]:
            every = trained[-1] - trained[-2]
        return trained[-1] - trained[-1] % every + every if every and trained else None

    def _place(self, one, step, by_mark):
        if step is not None:
            if by_mark:
                self._learn(step, one.range)
            if one.mark is None and one.step is None:
                self._take_mark(one, step)
            self._last = (step, one.epoch, one.kind == "train")
            if one.kind == "train":
                self._trained = self._trained[-3:] + [step]
        self._emit(one.t, step, one.epoch, one.values)

    def _take_mark(self, one, step):
        while self._marks and self._marks[0][0] < step:
            self._marks.popleft()
        if self._marks and self._marks[0][0] == step:
            self._marks.popleft()
        elif self.bar.total is not None:
            self._owed.append((step, one.range))

    def _another_training(self, now):
        self.settle(now, final=True)
        self._resumed = None
        self._reset()

    # -- steps per epoch --------------------------------------------------------

    def _learn(self, step, bounds):
        """Narrow the steps per epoch by a pair that is sure."""
        if step <= 0 or bounds is None or bounds[0] <= 0:
            return
        low, high = step / bounds[1], step / bounds[0]
        if self._slope is not None and max(low, self._slope[0]) <= min(high, self._slope[1]):
            low, high = max(low, self._slope[0]), min(high, self._slope[1])
        self._slope = (low, high)

    def _steps_at(self, bounds):
        """Between which steps an epoch lies: (low, high), or (None, None)."""
        if self._slope is None or bounds is None:
            return None, None
        low, high = self._slope
        whole = math.ceil(low)
        if whole == math.floor(high) and high - low < 2e-3 * high:
            low = high = float(whole)
        first = math.ceil(bounds[0] * low - 1e-6)
        last = math.floor(bounds[1] * high + 1e-6)
        if low != whole and bounds[1] >= 1:
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
            if self._slope is not None:
                return
        ones = [one for one in self._pending if one.range is not None and one.mark is None and one.step is None][:8]
        marks = [n for n, _ in self._marks]
        for offset in range(min(3, len(marks))):
            pairs = list(zip(marks[offset:], (one.range for one in ones)))
            told = [pair for pair in pairs if pair[0] > 0 and pair[1][0] > 0]
            if len({pair[0] for pair in told}) < (1 if force else 2):
                continue
            if any(n > 0 and bounds[1] == 0 for n, bounds in pairs):
                continue
            slope = _narrow(told)
            if slope is None:
                continue
            self._slope = slope
            for (n, _), one in zip(pairs, ones):
                one.mark = n
            for _ in range(offset + len(pairs)):
                self._marks.popleft()
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
            for one, two in zip(told, told[1:]):
                least, most = two[0] - one[1], two[1] - one[0]
                if most <= 0:
                    return
                slope = (max(slope[0], every / most), min(slope[1], every / least if least > 0 else math.inf))
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


class EpochSteps(object):
    """Counts steps over epochs where a line tells only those within its epoch.

    Epochs count from 0 (Lightning) or from 1, by the first that is seen. ``Epoch
    [2/5], Step [150/600]`` may go on counting: it does where the step has grown
    over the change of epoch.
    """

    def __init__(self):
        self._base = None
        self._last = None
        self._goes_on = False

    def step(self, epoch, n, total, may_go_on):
        """The step since the start of the training."""
        if self._base is None:
            self._base = 1 if epoch == 1 else 0
        elif epoch == 0:
            self._base = 0
        if self._last is not None and self._last[0] != epoch:
            self._goes_on = may_go_on and self._last[1] < n and self._last[2] == total
        self._last = (epoch, n, total)
        return n if self._goes_on else int(epoch - self._base) * total + n

