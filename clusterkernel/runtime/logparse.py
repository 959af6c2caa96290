r"""Metrics out of what a job prints, as it prints it.

>>> parser = LogParser()
>>> parser.feed(b"step 10 loss 0.25\n", "stdout", now=0.0)
[{'t': 0.0, 'source': 'parsed', 'rank': 0, 'step': 10, 'epoch': None, 'values': {'loss': 0.25}}]

It runs in the supervisor, between the payload's pipes and their files, so that it
must cost nothing while nothing of interest is printed: a chunk is first searched
for a few words at the speed of memory, and only lines that hold one are read.
What a line says is in `loglines`, `logbars` and `logprints`, which step a
dictionary belongs to in `logsteps`.
"""

import re

__all__ = ["LogParser"]

# A line (or what stands between two carriage returns) that is longer is no metric.
_LONGEST = 1 << 15
_LONGEST_PRINT = 2000
_SLICE = 1 << 16
# How much of what came before a bar tells how it was drawn.
_CONTEXT = 32
# Every line of interest has one of these in it.
_WORDS = (b"loss", b"epoch", b"step", b"it/s", b"s/it", b"iter", b"acc", b"checkpoint-")
# Longest time between two records of a bar that shows its metrics, or of a print that overwrites itself.
_SHOWN_EVERY = 0.5
_PROGRESS_EVERY = 1.0
# A print or setting worth a closer look.
_PLACED = (
    rb"(?:step|epoch|iter(?:ation)?)(?:\([a-z]{1,9}\))?\s{0,4}[:=#]?\s{0,4}[\[(]?\s{0,6}\d|^\W{0,16}\[\s{0,6}\d"
    rb"|_steps['\"]?\s?[:=]|steps (?:set at|=)|global step|checkpoint-"
)
_EVALUATES = r"(?i)\b(?:val|valid\w*|eval\w*|test\w*|sanity|predict\w*|infer\w*)\b"
_EPOCH_BAR = r"(?i)\bepoch\s?[:=#]?\s?[\[(]?(\d{1,9})\b"


class _Stream(object):
    """What is kept of one stream between two chunks."""

    __slots__ = ("before", "done", "keras_epoch", "name", "skipping", "tail")

    def __init__(self, name):
        self.name = name
        self.tail = bytearray()  # the line that has not ended
        self.done = 0  # how much of the tail was read already
        self.before = b"\n"  # the last bytes before the tail
        self.skipping = False  # within a line that is too long
        self.keras_epoch = None


class LogParser(object):
    """Reads metrics from the output of one process.

    Parameters
    ----------
    rank : int
        Stands in the records.

    Notes
    -----
    transformers and axolotl (dictionaries and bars, on one stream or two, any
    chunks), Lightning and tqdm bars with metrics, Keras, JSON lines, and prints
    that name a step or epoch and a measure. A record appears at once, or where its
    step must be looked for within 2 s of the caller's clock: `due` says when
    `tick` is wanted if nothing more is printed. Memory is bounded, no input raises.
    """

    def __init__(self, rank=0):
        self._rank = rank
        self._streams = {}
        self._records = []
        self._steps = None  # once a line of interest has come
        self._epochs = None
        self._advanced = None  # (time, done, total, what) of the last progress given out
        self._progress = None  # the same of the newest, where it was not
        self._shown = None  # (time, epoch, step, values) of the last one given out
        self._held = None  # the same of one that came less than _SHOWN_EVERY after it
        self._held_from = None

    @property
    def due(self):
        """The time of `now` at which `tick` has something to log, or None."""
        times = []
        if self._steps is not None and self._steps.due is not None:
            times.append(self._steps.due)
        if self._held is not None:
            times.append(self._shown[0] + _SHOWN_EVERY)
        if self._progress is not None:
            times.append(self._advanced[0] + _PROGRESS_EVERY)
        return min(times) if times else None

    def feed(self, data, stream, now):
        """Take what was printed.

        Parameters
        ----------
        data : bytes
            Cut anywhere.
        stream : str
            "stdout" or "stderr"; "stdout" for a terminal, where they are one.
        now : float
            Seconds since the epoch.

        Returns
        -------
        list of dict
            Records of metrics and progress that are now certain.
        """
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _Stream(stream)
        for start in range(0, len(data), _SLICE):
            self._take(state, data[start : start + _SLICE], now)
        return self.tick(now)

    def tick(self, now):
        """Records that have waited long enough; call it at `due`, or each second."""
        if self._steps is not None:
            self._steps.settle(now)
            if self._held is not None and abs(now - self._shown[0]) >= _SHOWN_EVERY - 1e-3:
                self._release()
            if self._progress is not None and abs(now - self._advanced[0]) >= _PROGRESS_EVERY - 1e-3:
                self._give_progress()
        records, self._records = self._records, []
        return records

    def close(self, now):
        """The output has ended: the rest of the records."""
        for state in self._streams.values():
            if state.tail and not state.skipping:
                self._block(state, bytes(state.tail) + b"\n", now)
                state.tail = bytearray()
        if self._steps is not None:
            self._steps.settle(now, final=True)
            self._release()
            self._give_progress()
        records, self._records = self._records, []
        return records

    # -- bytes to lines ---------------------------------------------------------

    def _take(self, state, data, now):
        if state.skipping:
            ends = [end for end in (data.find(b"\n"), data.find(b"\r")) if end >= 0]
            if not ends:
                return
            data = data[min(ends) :]
            state.skipping = False
        if state.tail.endswith(b"\r"):
            data = b"\r" + data
            del state.tail[-1]
        # A return at the very end may be half of a line feed.
        limit = len(data) - 1 if data.endswith(b"\r") else len(data)
        end = max(data.rfind(b"\n", 0, limit), data.rfind(b"\r", 0, limit)) + 1
        if end:
            self._block(state, bytes(state.tail) + data[:end], now)
            state.tail = bytearray(data[end:])
        else:
            state.tail += data
        if len(state.tail) > _LONGEST:
            state.tail, state.done, state.skipping = bytearray(), 0, True
            state.before = b"?"
        elif b"]" in data[end:] and len(state.tail) < 4096:
            self._peek(state, now)

    def _block(self, state, block, now):
        """Read whole lines. The first `done` bytes were read when they came."""
        done, state.done = state.done, 0
        lowered = block.lower()
        if any(word in lowered for word in _WORDS):
            if self._steps is None:
                self._begin()
            before = state.before
            position = done
            while True:
                match = self._candidate.search(lowered, position)
                if match is None:
                    break
                start = max(block.rfind(b"\n", 0, match.start()), block.rfind(b"\r", 0, match.start()), done - 1) + 1
                ends = [end for end in (block.find(b"\n", start), block.find(b"\r", start)) if end >= 0]
                position = min(ends)
                if position - start <= _LONGEST:
                    whole = block[position : position + 1] == b"\n" or block[position : position + 2] == b"\r\n"
                    context = (before + block[max(0, start - _CONTEXT) : start])[-_CONTEXT:]
                    self._line(state, block[start:position], context, whole, now)
        state.before = (state.before + block[-_CONTEXT:])[-_CONTEXT:]

    def _peek(self, state, now):
        """Read a frame of a bar before the line ends: it does only at the next frame."""
        lowered = bytes(state.tail[state.done :]).lower()
        if b"/s" not in lowered and b"s/it" not in lowered and b"loss" not in lowered and b"acc" not in lowered:
            return
        if self._steps is None:
            self._begin()
        matches = list(self._bar_end.finditer(state.tail, state.done))
        if matches:
            end = matches[-1].end()
            context = state.before if state.done == 0 else bytes(state.tail[max(0, state.done - _CONTEXT) : state.done])
            self._line(state, bytes(state.tail[state.done : end]), context, False, now)
            state.done = end

    def _begin(self):
        # Imported with the first line of interest: many a short task prints none.
        from . import logbars, loglines, logprints, logsteps

        self._lines, self._bars, self._prints = loglines, logbars, logprints
        self._steps = logsteps.Steps(self._parsed)
        self._epochs = logprints.EpochSteps()
        self._candidate = re.compile(b"|".join(re.escape(word) for word in _WORDS))
        self._bar_end = re.compile(logbars.BAR_END)
        self._placed = re.compile(_PLACED)
        self._evaluates = re.compile(_EVALUATES)
        self._epoch_bar = re.compile(_EPOCH_BAR)

    # -- lines to records ---------------------------------------------------------

    def _line(self, state, data, context, whole, now):
        """Read one line, or what stands between two carriage returns.

        `context` is what came before it, `whole` whether a line feed ends it.
        """
        text = data.decode("utf-8", "replace")
        if not text.isprintable():
            text = self._lines.clean(text)
        items = [(bar.start, bar) for bar in self._bars.find_bars(text)] if "%" in text else []
        if ":" in text and ("'" in text or '"' in text):
            items += [(logged.start, logged) for logged in self._lines.read_dict(text)]
        items.sort(key=lambda item: item[0])
        for _, item in items:
            if isinstance(item, self._bars.Bar):
                self._bar(state, item, context, whole, now)
                context = b"?"
            else:
                self._steps.add(item, state.name, now)
        if items:
            text = text[max(item.end for _, item in items) :]
        lowered = data.lower()
        if len(text) > _LONGEST_PRINT or not text or text.isspace():
            return
        if not (self._placed.search(lowered) or (state.keras_epoch is not None and whole)):
            return
        hint = self._prints.read_hint(text)
        if hint is not None:
            self._steps.hint(*hint)
        epoch = self._prints.read_keras_epoch(text)
        if epoch is not None:
            state.keras_epoch = epoch
            return
        logged = self._prints.read_plain(text, state.keras_epoch if whole else None)
        if logged is not None:
            state.keras_epoch = None
            step = logged.step
            if logged.total is not None:
                step = self._epochs.step(logged.epoch, step, logged.total, True)
            self._show((now, logged.epoch, step, logged.values), state.name, whole)

    def _bar(self, state, bar, context, whole, now):
        context = context.replace(b"\x1b[A", b"")
        # tqdm.write clears all bars, writes, and draws them all again, in any order; a bar that moves is drawn over.
        if context.endswith((b" \r\r", b" \r\n\r")):
            self._steps.cleared(state.name)
        if bar.values and any(self._lines.is_metric(name) for name in bar.values):
            if not self._evaluates.search(bar.desc) and bar.n > 0:
                epoch = self._epoch_bar.search(bar.desc)
                step = bar.n
                if epoch:
                    step = self._epochs.step(int(epoch.group(1)), bar.n, bar.total, False)
                self._advance(now, bar.n, bar.total, bar.desc or None)
                number = float(epoch.group(1)) if epoch else None
                self._show((now, number, step, bar.values), bar.desc + "%", whole or bar.n == bar.total)
            return
        # One that is drawn below another is moved to by a line feed, which does not end a text.
        nested = context.endswith((b"]\n\r", b"]\r\n\r", b" \r\n\r", b"\n\n\r", b"\n\r\n\r"))
        if self._steps.frame(bar, state.name, nested, now):
            self._advance(now, bar.n, bar.total, None)

    def _advance(self, now, done, total, what):
        """Log how far the training is, at most once in `_PROGRESS_EVERY`."""
        self._progress = (now, done, total, what)
        last = self._advanced
        if last is None or done == total or last[2] != total or not 0 <= now - last[0] < _PROGRESS_EVERY:
            self._give_progress()

    def _give_progress(self):
        newest, last = self._progress, self._advanced
        self._progress = None
        if newest is not None and (last is None or last[1:] != newest[1:]):
            self._advanced = newest
            t, done, total, what = newest
            self._records.append(
                {"t": t, "source": "progress", "rank": self._rank, "done": done, "total": total, "what": what}
            )

    def _parsed(self, t, step, epoch, values):
        self._records.append(
            {"t": t, "source": "parsed", "rank": self._rank, "step": step, "epoch": epoch, "values": values}
        )

    def _show(self, record, origin, certain):
        """Log what is shown again and again: at the end of each round, else now and then."""
        if self._held_from != origin:
            self._release()
        shown = self._shown
        if not certain and shown is not None and 0 <= record[0] - shown[0] < _SHOWN_EVERY:
            self._held, self._held_from = record, origin
            return
        self._held = None
        self._give(*record)

    def _release(self):
        held, self._held = self._held, None
        if held is not None:
            self._give(*held)

    def _give(self, t, epoch, step, values):
        shown = self._shown
        self._shown = (t, epoch, step, values)
        if shown is not None and shown[1:3] == (epoch, step) and step is not None:
            # The same step is drawn again when something has been added, such as the loss of a validation.
            values = {name: value for name, value in values.items() if shown[3].get(name) != value}
            self._shown = (t, epoch, step, dict(shown[3], **values))
        if values:
            self._parsed(t, step, epoch, values)
