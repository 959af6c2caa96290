"""Runs a payload in a process of its own: what surrounds the user's code, and the report at its end.

The process is a fork of the supervisor, or a rank under a launcher. It leaves
``result.pkl``, ``error.pkl``, ``outputs/NAME.pkl`` and, last, ``report.json``.
"""

import atexit
import builtins
import os
import sys
import time
import types

from . import failures, payloadfile, private, savers, verdict
from .context import write_json
from .lean import signal

_MAIN = "__main__"
# By hand: a handler must not import what knows the names.
_ENDING = {signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP", signal.SIGINT: "SIGINT"}


class Terminated(BaseException):
    """The job is being ended; raised once, wherever the user's code is."""


class Signals(object):
    """What a signal does: while the payload is loaded and runs it raises, later it leaves little time.

    A second one never breaks off the saving.
    """

    def __init__(self):
        self.received = None
        self.raises = True
        self.deadline = None  # a savers.Deadline, once saving has begun

    def install(self):
        """Take over the signals that end a job; those for checkpoints are left to the user's code and end nothing."""
        for signum in _ENDING:
            signal.signal(signum, self._end)
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(signum, _ignore)
        os.register_at_fork(after_in_child=self._let_go)

    def _let_go(self):
        """A fork of the user's has nothing to save: what ends the job ends it, as the workers of a pool expect."""
        self.deadline = None
        for signum in _ENDING:
            if signal.getsignal(signum) == self._end:
                signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)

    def _end(self, signum, frame):
        first, self.received = self.received is None, signum
        if self.raises and first:
            raise KeyboardInterrupt() if signum == signal.SIGINT else Terminated(_ENDING[signum])
        if self.deadline is not None:
            self.deadline.hurry()


def _ignore(*_):
    # Not SIG_IGN, which programs that are started would inherit.
    pass


class LaunchFailed(Exception):
    """The payload could not be brought to its first line."""


def run(context):
    """Run the payload.

    Parameters
    ----------
    context : Context

    Returns
    -------
    int
        The exit code.
    """
    signals = Signals()
    own = os.getpid()
    program, value, error, through = None, None, None, None
    try:
        try:
            signals.install()
            prepare(context)
            program = load(context)
            value = program.run()
        finally:
            signals.raises = False
            through = time.monotonic()
    except BaseException as raised:  # all that user code may raise becomes the report
        error = raised
    if os.getpid() != own:
        _end_fork(error)
    if program is None and not issubclass(type(error), (Terminated, KeyboardInterrupt)):
        return _report_launch(context, error)
    report = _finish(context, program, signals, value, error)
    report["through"] = through
    if os.getpid() != own:  # while something was pickled
        os._exit(0)
    write_json(os.path.join(context.out_dir, "report.json"), report)
    _wind_up()
    return report["exit_code"]


def _end_fork(error):
    """A fork of the user's code has come to the code's end: it leaves as that of a script does, and reports nothing."""
    code = 0
    if error is not None:
        code = failures.judge(error, None).get("exit_code", 0)
    _wind_up()
    os._exit(code)


def prepare(context):
    """Make the process what a script's would be: folder, path, arguments, streams."""
    # The old ones were made for what the descriptors were before the fork: a file that could be sought in.
    sys.stdout = sys.__stdout__ = open(1, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # type: ignore[misc]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
    workdir = context.spec.get("environment", {}).get("workdir") or os.getcwd()
    try:
        os.chdir(workdir)
    except OSError as error:
        raise LaunchFailed(
            "The working folder %s cannot be used on %s: %s." % (workdir, os.uname().nodename, error.strerror)
        ) from error
    payload_dir = os.path.join(context.job_dir, "payload")
    root = context.runtime_root
    rest = [entry for entry in sys.path if entry and os.path.abspath(entry) != root]
    sys.path[:] = [os.path.join(payload_dir, "modules"), workdir] + [entry for entry in rest if entry != workdir]
    if not any(finder.find_spec("clusterkernel", None) for finder in sys.meta_path):
        sys.path += [os.path.join(root, "shim"), root]
    main_file = os.path.join(payload_dir, "main.py")
    sys.argv = [main_file]
    # Spawned workers import the main module's file, which finds the runtime through this.
    os.environ["CLUSTERKERNEL_RUNTIME"] = root
    _fresh_main(main_file)
    if not hasattr(builtins, "display"):
        vars(builtins)["display"] = _display


def _display(*objects, **_):
    """IPython's ``display``, as far as a log can show it."""
    for value in objects:
        print(repr(value))


def _fresh_main(main_file):
    module = types.ModuleType(_MAIN)
    module.__file__ = main_file
    vars(module)["__builtins__"] = builtins
    sys.modules[_MAIN] = module
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = module


def load(context):
    """The program that the payload holds."""
    folder = os.path.join(context.job_dir, "payload")
    files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
    root = os.path.dirname(context.job_dir)
    why = private.first_trouble([root, context.job_dir, folder] + files)
    if why:
        raise LaunchFailed("%s, so nothing in it is loaded." % why)
    told, here = context.payload.get("python"), "%d.%d" % sys.version_info[:2]
    if told not in (None, here):
        raise LaunchFailed(
            "It was sent from Python %s, and %s has Python %s (%s)." % (told, os.uname().nodename, here, sys.executable)
        )
    if context.payload["kind"] == "cell":
        from .cellrun import Cell

        return Cell(context)
    from .callrun import Call

    return Call(context)


def _finish(context, program, signals, value, error):
    """Save what there is to save; the report."""
    deadline = signals.deadline = savers.Deadline(quick=signals.received is not None)
    report = {"state": "SUCCEEDED", "reason": "", "exit_code": 0, "error": None, "result": "none", "outputs": {}}
    if error is not None:
        try:
            report.update(failures.judge(error, signals.received))
        except BaseException:  # as below; the user's code may have changed whatever module that uses
            report.update(state="FAILED", reason=failures.name_of(error), exit_code=1)
    if program is None:
        return report
    try:
        with deadline:
            _save(context, program, deadline, value, error, report)
    except BaseException as other:  # a report that lacks something is better than none
        failures.show(other)
    return report


def _save(context, program, deadline, value, error, report):
    if report["state"] == "FAILED" and issubclass(type(error), Exception):
        savers.save_error(error, os.path.join(context.out_dir, "error.pkl"), program, deadline)
    if error is None and value is not None:
        _, why = savers.save(value, os.path.join(context.out_dir, "result.pkl"), program, "result", deadline)
        report["result"] = "failed" if why else "ok"
        if why:
            reason = "The result could not be saved: %s." % why
            report.update(state="RESULT_FAILED", reason=reason, exit_code=1)
            failures.say(reason + "\n")
    if context.global_rank == 0:
        savers.save_outputs(program, os.path.join(context.out_dir, "outputs"), deadline, report["outputs"])


def _report_launch(context, error):
    """It was not the user's code that failed, but what came before it."""
    if type(error) is LaunchFailed:
        reason = str(error)
        failures.say(reason + "\n")
    else:
        name = ""
        if type(error) is payloadfile.LoadFailed:
            name, error = " (needed by %s)" % error, error.__cause__
        reason = "%s: %s on %s%s" % (failures.name_of(error), failures.one_line(error), os.uname().nodename, name)
        failures.show(error)
    report = {"state": "LAUNCH_FAILED", "reason": verdict.short(reason), "exit_code": 1, "error": None}
    report.update(result="none", outputs={})
    write_json(os.path.join(context.out_dir, "report.json"), report)
    return 1


def _wind_up():
    """What Python does at its end, and a fork that leaves by ``os._exit`` does not."""
    for signum in _ENDING:
        signal.signal(signum, signal.SIG_DFL)
    # Threads that were started without that module are waited for by nobody.
    for module, name in ((sys.modules.get("threading"), "_shutdown"), (atexit, "_run_exitfuncs")):
        try:
            getattr(module, name, lambda: None)()
        except BaseException as error:  # the report is written: a late complaint is shown and changes nothing
            failures.show(error)
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        try:
            getattr(sys, name).flush()
        except BaseException:  # it may be an object of the user's, closed, None, or gone
            pass
