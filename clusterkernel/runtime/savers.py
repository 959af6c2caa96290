"""Saving what a payload made: each value in a file of its own, whole or not at all."""

import os
import sys
import time
import types

from . import failures, pickling, verdict
from .lean import signal

LIMIT = 1 << 30
TIME = 600.0
# After a signal: the supervisor waits 25 s before it kills, Slurm 30 s.
QUICK = 12.0
_LATE = "the time for saving was over"


class TooLong(Exception):
    """The time for saving is over."""


class Deadline(object):
    """The time that all saving may take; as a context manager it also breaks off code that hangs.

    Parameters
    ----------
    quick : bool
        Whether the job is being ended.
    """

    def __init__(self, quick=False):
        self.end = time.monotonic() + (QUICK if quick else TIME)
        self._armed = False

    def hurry(self):
        """The job is being ended: finish soon."""
        self.end = min(self.end, time.monotonic() + QUICK)
        self._arm()

    def check(self):
        """Raise `TooLong` once the time is over."""
        if time.monotonic() >= self.end:
            raise TooLong(_LATE)

    def _arm(self):
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, max(0.05, self.end - time.monotonic()), 1.0)

    def __enter__(self):
        self._before = signal.signal(signal.SIGALRM, self._over)
        self._armed = True
        self._arm()
        return self

    def __exit__(self, *_):
        self._armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)

    def _over(self, *_):
        if self._armed:
            raise TooLong(_LATE)


class _Sink(pickling.Counter):
    def __init__(self, file, deadline, limit=None):
        pickling.Counter.__init__(self, file, limit)
        self._deadline = deadline

    def write(self, data):
        if self._deadline is not None:
            self._deadline.check()
        return pickling.Counter.write(self, data)


class _NeedsMore(Exception):
    pass


class _PlainPickler(pickling.Pickler):
    """For values without anything of the notebook's in them: saves the import of cloudpickle."""

    def reducer_override(self, obj):
        kind = type(obj)
        if issubclass(kind, (type, types.FunctionType, types.ModuleType, BaseException)):
            module = sys.modules.get(getattr(obj, "__module__", None) or "")
            name = getattr(obj, "__qualname__", "")
            if module is None or module.__name__ in ("__main__", "__mp_main__"):
                raise _NeedsMore()
            if pickling.look_up(vars(module), name) is not obj:
                raise _NeedsMore()
        return NotImplemented


def save(value, path, program, name, deadline=None, limit=None):
    """Pickle a value into a file.

    Parameters
    ----------
    value : object
    path : str
    program : Call or Cell
        Its namespace and loader say what the notebook knows already.
    name : str
        What the person calls it.
    deadline : Deadline, optional
    limit : int, optional
        Most bytes.

    Returns
    -------
    size : int or None
    why : str or None
        What was wrong, where it could not be saved.
    """
    temporary = "%s.%s.%d.tmp" % (path, os.uname().nodename, os.getpid())
    pickler = None
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            if not _save_plain(value, _Sink(file, deadline, limit)):
                file.seek(0)
                file.truncate()
                pickler = _cloud_pickler(_Sink(file, deadline, limit), program)
                pickler.dump(value)
            size = file.tell()
        os.replace(temporary, path)
        return size, None
    except TooLong:
        why = _LATE
    except pickling.TooLarge:
        why = "it is larger than %d MiB; name it with -o to save it" % (limit >> 20)
    except OSError as error:
        why = "%s: %s" % (path, error.strerror or failures.one_line(error))
    except ImportError as error:
        why = "%s on %s" % (failures.one_line(error), os.uname().nodename)
    except BaseException as error:  # the code of the value's own type may raise anything
        why = "%s does not pickle" % _culprit(error, pickler, value, name)
    try:
        os.unlink(temporary)
    except OSError:
        pass
    return None, verdict.short(why)


def _culprit(error, pickler, value, name):
    from . import culprit  # not before: most values pickle

    try:
        return culprit.describe(error, pickler, value, name)
    except TooLong:
        raise
    except BaseException:  # as above, where it is looked at
        return "%s: %s" % (name, failures.name_of(error))


def _save_plain(value, sink):
    if "cloudpickle" in sys.modules or sys.version_info < (3, 8):
        return False
    try:
        _PlainPickler(sink, -1).dump(value)
        return True
    except (TooLong, pickling.TooLarge, OSError):
        raise
    except BaseException:  # cloudpickle tries again, and its complaint counts
        return False


def _cloud_pickler(sink, program):
    from .cloud import Pickler

    known = program.loader.known
    return Pickler(
        sink, program.namespace, by_reference=lambda key: key in known, named=program.named, keys=program.keys
    )


def save_error(error, path, program, deadline):
    """Keep an exception for the notebook to raise; where it does not pickle, its text has to do."""
    try:
        with open(os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            _cloud_pickler(_Sink(file, deadline), program).dump(error)
        os.replace(path + ".tmp", path)
    except BaseException:  # as above: best effort
        try:
            os.unlink(path + ".tmp")
        except OSError:
            pass


def save_outputs(program, folder, deadline, outputs):
    """Save every name that the payload says is an output.

    Parameters
    ----------
    program : Call or Cell
    folder : str
    deadline : Deadline
    outputs : dict
        Gets, for each name, size, type and error.
    """
    for name in program.outputs:
        value = program.namespace.get(name, types)  # modules are not saved, nor is what is not there
        if issubclass(type(value), types.ModuleType):
            continue
        if not os.path.isdir(folder):
            os.makedirs(folder, 0o700, exist_ok=True)
        limit = None if name in program.bind else LIMIT
        about = outputs[name] = {"size": None, "type": failures.name_of(value), "error": _LATE}
        try:
            size, why = save(value, os.path.join(folder, name + ".pkl"), program, name, deadline, limit)
            about.update(size=size, error=why)
        except TooLong:  # it came while another error was looked at
            continue
