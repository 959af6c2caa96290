"""What the user's code raised, in words."""

import os
import signal
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
# An exception may carry a whole array as text; the records are read again and again.
_LINE = 300
_MESSAGE = 10000
_TRACEBACK = 100000


def _short(text, limit):
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _end(text):
    # What was raised stands at the end.
    return text if len(text) <= _TRACEBACK else "...\n" + text[-_TRACEBACK:]


def say(text):
    """Write to the job's errors, also where the user's code closed or replaced `sys.stderr`."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


def one_line(error):
    """The first line of an exception's text."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # a broken __str__ is no reason to lose the report
        return "(its text cannot be had)"
    return _short(lines[0], _LINE) if lines else ""


def _ours(filename):
    folder = os.path.dirname(os.path.abspath(filename))
    return folder == _HERE or os.path.basename(folder) == "asyncio"


def trim(error):
    """Take our own frames off the start of the traceback."""
    tb = error.__traceback__
    while tb is not None and _ours(tb.tb_frame.f_code.co_filename):
        tb = tb.tb_next
    if tb is not None or error.__traceback__ is None:
        error.__traceback__ = tb
    while tb is not None and tb.tb_next is not None:
        if tb.tb_next.tb_next is None and _ours(tb.tb_next.tb_frame.f_code.co_filename):
            tb.tb_next = None  # the handler of the signal that ended it
            break
        tb = tb.tb_next
    return error


def text_of(error):
    """The traceback as text, as Python prints it, without our own frames."""
    import traceback  # not before: most runs need none

    trim(error)
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception as other:  # a broken __str__ or __repr__
        return "%s (its traceback cannot be shown: %s)\n" % (type(error).__name__, type(other).__name__)


def show(error):
    """Print the traceback where the job's errors go."""
    say(text_of(error))


def judge(error, received):
    """State, reason, exit code and error of a report, for what ended the user's code.

    Parameters
    ----------
    error : BaseException
    received : int or None
        The signal that came before.
    """
    if isinstance(error, SystemExit):
        code = error.code
        if code is None or code == 0:
            return {}
        if not isinstance(code, int):
            say("%s\n" % (code,))
            return {"state": "FAILED", "reason": one_line(code), "exit_code": 1}
        return {"state": "FAILED", "reason": "sys.exit(%d) was called." % code, "exit_code": code & 0xFF or 1}
    text = text_of(error)
    say(text)
    told = {"type": type(error).__name__, "message": _message(error), "traceback": _end(text)}
    if received is not None and isinstance(error, (KeyboardInterrupt, _terminated())):
        reason = "It was ended by %s (%d)." % (signal.Signals(received).name, received)
        return {"state": "CANCELLED", "reason": reason, "exit_code": 128 + received, "error": told}
    line = one_line(error)
    reason = "%s: %s" % (told["type"], line) if line else told["type"]
    return {"state": "FAILED", "reason": reason, "exit_code": 1, "error": told}


def _terminated():
    from .entry import Terminated

    return Terminated


def _message(error):
    try:
        return _short(str(error), _MESSAGE)
    except Exception:  # as above
        return ""
