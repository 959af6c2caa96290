"""Runs a payload in a process of its own: what surrounds the user's code, and the report at its end.

The process is a fork of the supervisor, or a rank under a launcher. It leaves
``result.pkl``, ``error.pkl``, ``outputs/NAME.pkl`` and, last, ``report.json``.
"""

import builtins
import os
import signal
import sys
import types

from . import failures, payloadfile, private, savers
from .context import write_json

_MAIN = "__main__"


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
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(signum, self._end)
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(signum, _ignore)
        if hasattr(os, "register_at_fork"):
            # The workers of a pool are ended by SIGTERM, and have nothing to save.
            os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))

    def _end(self, signum, frame):
        first, self.received = self.received is None, signum
        if self.raises and first:
            raise KeyboardInterrupt() if signum == signal.SIGINT else Terminated(signal.Signals(signum).name)
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
    program, value, error = None, None, None
    try:
        try:
            signals.install()
            prepare(context)
            program = load(context)
            value = program.run()
        finally:
            signals.raises = False
    except BaseException as raised:  # all that user code may raise becomes the report
        error = raised
    if program is None and not isinstance(error, (Terminated, KeyboardInterrupt)):
        return _report_launch(context, error)
    report = _finish(context, program, signals, value, error)
    code = report["exit_code"]
    write_json(os.path.join(context.out_dir, "report.json"), report)
    _wind_up()
    return code


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
    from importlib.util import find_spec

    if find_spec("clusterkernel") is None:
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
    pickles = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".pkl")]
    root = os.path.dirname(context.job_dir)
    why = private.first_trouble([root, context.job_dir, folder, os.path.join(folder, "modules")] + pickles)
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
        report.update(failures.judge(error, signals.received))
    if program is None:
        return report
    with deadline:
        if report["state"] == "FAILED" and isinstance(error, Exception):
            savers.save_error(error, os.path.join(context.out_dir, "error.pkl"), program, deadline)
        if error is None and value is not None:
            _, why = savers.save(value, os.path.join(context.out_dir, "result.pkl"), program, "result", deadline)
            report["result"] = "failed" if why else "ok"
            if why:
                reason = "The result could not be saved: %s." % why
                report.update(state="RESULT_FAILED", reason=reason, exit_code=1)
                failures.say(reason + "\n")
        if payloadfile.global_rank(context) == 0:
            report["outputs"] = savers.save_outputs(program, os.path.join(context.out_dir, "outputs"), deadline)
    return report


def _report_launch(context, error):
    """It was not the user's code that failed, but what came before it."""
    if isinstance(error, LaunchFailed):
        reason = str(error)
        failures.say(reason + "\n")
    else:
        name = ""
        if isinstance(error, payloadfile.LoadFailed):
            name, error = " (needed by %s)" % error, error.__cause__
        reason = "%s: %s on %s%s" % (type(error).__name__, failures.one_line(error), os.uname().nodename, name)
        failures.show(error)
    report = {"state": "LAUNCH_FAILED", "reason": reason, "exit_code": 1, "error": None, "result": "none"}
    report["outputs"] = {}
    write_json(os.path.join(context.out_dir, "report.json"), report)
    return 1


def _wind_up():
    """What Python does at its end, and a fork that leaves by ``os._exit`` does not."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    try:
        import threading

        getattr(threading, "_shutdown", lambda: None)()
        import atexit

        getattr(atexit, "_run_exitfuncs", lambda: None)()
    except BaseException as error:  # the report is written: a late complaint is shown and changes nothing
        failures.show(error)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
