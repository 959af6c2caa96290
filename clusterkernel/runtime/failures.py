"""What the user's code raised, in words."""

import os
import sys

from .payloadfile import with_cells
from .verdict import by_signal, short

_HERE = os.path.dirname(os.path.abspath(__file__))
# An exception may carry a whole array as text.
_NAME = 100
_MESSAGE = 10000
_TRACEBACK = 100000
_NO_TEXT = "(its text cannot be had)"


def _end(text):
    # What was raised stands at the end.
    if len(text) <= _TRACEBACK:
        return text
    return "... (the whole of it is in the job's log)\n" + text[-_TRACEBACK:]


def say(text):
    """Write to the job's errors, also where the user's code closed or replaced `sys.stderr`."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except BaseException:  # an object of the user's may do anything
        os.write(2, text.encode("utf-8", "backslashreplace"))


def text_of(value):
    """What `str` gives, whatever the value's own code does."""
    try:
        return str(value)
    except BaseException:  # a broken __str__ is no reason to lose the report
        return _NO_TEXT


def name_of(value):
    """The name of the value's type."""
    return short(type.__dict__["__name__"].__get__(type(value)), _NAME)


def one_line(error):
    """The first line of an exception's text."""
    lines = text_of(error)[:_MESSAGE].strip().splitlines()
    return short(lines[0]) if lines else ""


def _ours(filename):
    folder = os.path.dirname(os.path.abspath(filename))
    return folder == _HERE or os.path.basename(folder) == "asyncio"


def trim(error):
    """Take our own frames off the start of the traceback.

    Returns
    -------
    traceback or None
    """
    # Past what the exception's class makes of its attributes: a frozen dataclass lets none be set.
    slot = BaseException.__dict__["__traceback__"]
    first = tb = slot.__get__(error)
    while tb is not None and _ours(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    if tb is not None or first is None:
        slot.__set__(error, tb)
    first = slot.__get__(error)
    while tb is not None and tb.tb_next is not None:
        if tb.tb_next.tb_next is None and _ours(tb.tb_next.tb_frame.f_code.co_filename):
            tb.tb_next = None  # the handler of the signal that ended it
            break
        tb = tb.tb_next
    return first


def traceback_of(error):
    """The traceback as text, as Python prints it, without our own frames."""
    import traceback  # not before: most runs need none

    tb = trim(error)
    try:
        return with_cells("".join(traceback.format_exception(type(error), error, tb)))
    except BaseException:  # a broken __repr__, __cause__ or __notes__
        lines = traceback.format_tb(tb) + ["%s: %s\n" % (name_of(error), text_of(error))]
        return with_cells("Traceback (most recent call last):\n" + "".join(lines))


def show(error):
    """Print the traceback where the job's errors go."""
    say(traceback_of(error))


def judge(error, received):
    """State, reason, exit code and error of a report, for what ended the user's code.

    Parameters
    ----------
    error : BaseException
    received : int or None
        The signal that came before.
    """
    # By its type: `isinstance` asks for `__class__`, which may be a property of the user's.
    kind = type(error)
    if issubclass(kind, SystemExit):
        return _of_exit(SystemExit.__dict__["code"].__get__(error))
    text = traceback_of(error)
    ended = received is not None and issubclass(kind, (KeyboardInterrupt, _terminated()))
    # Who ended the job knows why: where the code was then is kept in the report.
    say(by_signal(received) + "\n" if ended else text)
    name = name_of(error)
    told = {"type": name, "message": short(text_of(error), _MESSAGE), "traceback": _end(text)}
    if ended:
        return {"state": "CANCELLED", "reason": by_signal(received), "exit_code": 128 + received, "error": told}
    line = one_line(error)
    reason = "%s: %s" % (name, line) if line else name
    return {"state": "FAILED", "reason": reason, "exit_code": 1, "error": told}


def _of_exit(code):
    if code is None:
        return {}
    if not issubclass(type(code), int):
        say(text_of(code) + "\n")
        return {"state": "FAILED", "reason": one_line(code), "exit_code": 1}
    number = int.__index__(code)
    if number == 0:
        return {}
    return {
        "state": "FAILED",
        "reason": short("sys.exit(%s) was called." % text_of(number)),
        "exit_code": number & 0xFF or 1,
    }


def _terminated():
    from .entry import Terminated

    return Terminated
