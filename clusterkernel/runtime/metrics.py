"""What user code calls inside a job: ``ck.log(step=3, loss=0.2)`` and ``ck.progress(30, 100)``.

A record is one line of JSON, appended by one write to ``metrics.jsonl`` of the
process that the platform started. Threads, forks and the ranks under a launcher
may all write to that file: an append of one write stays whole.
"""

import json
import logging
import math
import os
import time

__all__ = ["log", "progress"]

_quiet = logging.getLogger(__name__)
_encode = json.JSONEncoder(check_circular=False).encode


def log(step=None, epoch=None, **values):
    """Record metrics of this moment.

    Parameters
    ----------
    step : int, optional
        The step of training that they belong to.
    epoch : float, optional
        The epoch, fractions included.
    **values : number
        Anything that ``float()`` takes and that holds one number: Python's, NumPy's
        and PyTorch's (a tensor with one element). nan and inf are kept.

    Raises
    ------
    TypeError
        A value is no number.

    Notes
    -----
    Outside a job it checks its arguments and does nothing else. A disk that is full
    costs the record, never the training.
    """
    numbers = {}
    for name, value in values.items():
        numbers[name] = value if type(value) is float else _number(name, value)
    if step is not None:
        step = _step(step)
    if epoch is not None:
        epoch = _number("epoch", epoch)
    _channel.write("log", {"step": step, "epoch": epoch, "values": numbers})


def progress(done, total, what=None):
    """Record how far the work is; the latest one counts.

    Parameters
    ----------
    done, total : number
        Units that are done, and units in all.
    what : str, optional
        What is being done, such as ``"training"``.

    Raises
    ------
    TypeError
        `done` or `total` is no number.
    """
    counts = []
    for name, value in (("done", done), ("total", total)):
        number = _number(name, value)
        counts.append(int(number) if math.isfinite(number) and number == int(number) else number)
    _channel.write("progress", {"done": counts[0], "total": counts[1], "what": None if what is None else str(what)})


def _number(name, value):
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError("%s=%.40r is text, not a number: log takes numbers, such as %s=0.5." % (name, value, name))
    try:
        if not isinstance(value, (int, float)):
            # A tensor that takes part in autograd warns when it is turned into a number.
            value = getattr(value, "detach", lambda: value)()
            value = getattr(value, "item", lambda: value)()
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # an int beyond the floats
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor with several elements
        raise TypeError(
            "%s of type %s is not one number (%s): pass a number, or a tensor's .item() or .mean()."
            % (name, type(value).__name__, error)
        ) from None


def _step(step):
    if type(step) is int:
        return step
    number = _number("step", step)
    if not math.isfinite(number) or number != int(number):
        raise TypeError("step=%.40r is not a whole number." % (step,))
    return int(number)


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
        data = (_encode(record) + "\n").encode("utf-8")
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
