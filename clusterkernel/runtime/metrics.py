"""What user code calls inside a job: ``ck.log(step=3, loss=0.2)`` and ``ck.progress(30, 100)``.

A record is one line of JSON, appended by one write to ``metrics.jsonl`` of the
process that the platform started. Threads, forks and the ranks under a launcher
may all write to that file: an append of one write stays whole.
"""

import logging
import math
import os
import sys
import time
from collections.abc import Mapping

from . import lean

__all__ = ["log", "progress"]

_quiet = logging.getLogger(__name__)
# Of how many names something is said: a loop may make up new ones for ever.
_PATIENCE = 20
_LARGEST = 1 << 63


def log(*metrics, step=None, epoch=None, **values):
    """Record metrics of this moment.

    Parameters
    ----------
    metrics : mapping, optional
        Names and numbers, as keywords are; ``"step"`` and ``"epoch"`` in it are what they say.
        A number in its place is the step.
    step : int, optional
        The step of training that they belong to.
    epoch : float, optional
        The epoch, fractions included.
    **values : number
        Anything that ``float()`` takes and that holds one number: Python's, NumPy's
        and PyTorch's (a tensor with one element). nan and inf are kept.

    Notes
    -----
    It ends no training: a value that is no number is left out, and a line on stderr
    says so, once for its name. A disk that is full costs the record. Outside a job it
    checks its arguments and does nothing else.
    """
    for given in metrics:
        if isinstance(given, Mapping):
            values = {**{str(name): value for name, value in given.items()}, **values}
            step = values.pop("step", None) if step is None else step
            epoch = values.pop("epoch", None) if epoch is None else epoch
        elif step is None:
            step = given
        else:
            _complain("log", "log(%s) has no name for it" % _shown(given))
    numbers = {}
    for name, value in values.items():
        number = value if type(value) is float else _number(name, value)
        if number is not None:
            numbers[name] = number
    if numbers or not values:
        step = None if step is None else _step(step)
        epoch = None if epoch is None else _number("epoch", epoch)
        _channel.write("log", {"step": step, "epoch": epoch, "values": numbers})


def progress(done, total, what=None):
    """Record how far the work is; the latest one counts.

    Parameters
    ----------
    done, total : number
        Units that are done, and units in all. What is no finite number is left out, as `log` does.
    what : str, optional
        What is being done, such as ``"training"``.
    """
    counts = []
    for name, value in (("done", done), ("total", total)):
        number = _number(name, value)
        if number is None:
            return
        if not math.isfinite(number):
            _complain(name, "%s=%s is no finite number" % (name, number))
            return
        counts.append(int(number) if number == int(number) else number)
    what = None if what is None else _shown(what, "%.200s")
    _channel.write("progress", {"done": counts[0], "total": counts[1], "what": what})


def _number(name, value):
    """The value as a float; None, and a word to the person, where it is not one number."""
    if isinstance(value, (str, bytes, bytearray)):
        return _complain(name, "%s=%s is text, not a number" % (name, _shown(value)))
    try:
        if not isinstance(value, (int, float)):
            # A tensor that takes part in autograd warns when it is turned into a number.
            value = getattr(value, "detach", lambda: value)()
            value = getattr(value, "item", lambda: value)()
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # an int beyond the floats
    except Exception as error:  # whatever the value's own code does; RuntimeError is a tensor with several elements
        kind = type(value).__name__
        why = _shown(error, "%.200s")
        mend = "pass a number, or a tensor's .item() or .mean()"
        return _complain(name, "%s of type %s is not one number (%s): %s" % (name, kind, why, mend))


def _step(step):
    number = step if type(step) is int else _number("step", step)
    if number is None:
        return None
    if not -_LARGEST <= number < _LARGEST or number != int(number):
        return _complain("step", "step=%s is not a whole number of 64 bits" % _shown(step))
    return int(number)


def _shown(value, form="%.40r"):
    try:
        return form % (value,)
    except Exception:  # a broken __repr__
        return type(value).__name__


def _complain(name, sentence):
    """Say what was left out, once for each name."""
    if name not in _told and len(_told) < _PATIENCE:
        _told.add(name)
        try:
            sys.stderr.write("clusterkernel: %s. It is left out of the metrics.\n" % " ".join(sentence.split()))
        except Exception:  # an object of the user's may do anything
            _quiet.debug("%s", sentence)


_told = set()  # type: set


class _Channel(object):
    """The file that records go to."""

    def __init__(self):
        self._open = (None, -1, 0)  # folder, descriptor of its metrics.jsonl, inode

    def write(self, source, fields):
        """Append one record."""
        folder = os.environ.get("CLUSTERKERNEL_OUT")
        if not folder:
            _quiet.debug("not within a job: %s %r", source, fields)
            return
        record = {"t": time.time(), "source": source, "rank": _rank()}
        record.update(fields)
        data = lean.dumps(record) + b"\n"
        try:
            descriptor = self._descriptor(folder)
            if os.write(descriptor, data) != len(data):
                os.write(descriptor, b"\n")  # keeps what follows apart from half a record
        except OSError as error:
            _quiet.debug("a record of metrics is lost: %s", error)

    def _descriptor(self, folder):
        name, descriptor, inode = self._open
        if name == folder:
            try:
                if os.fstat(descriptor).st_ino == inode:
                    return descriptor
            except OSError:
                pass
            # A process that made itself a daemon has closed it, or given its number to another file.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(os.path.join(folder, "metrics.jsonl"), flags, 0o600)
        # One of another folder stays open: another thread may be writing to it.
        self._open = (folder, descriptor, os.fstat(descriptor).st_ino)
        return descriptor


def _rank():
    for name in ("RANK", "CLUSTERKERNEL_RANK"):
        text = os.environ.get(name)
        if text and text.isdigit():
            return int(text)
    return 0


_channel = _Channel()
