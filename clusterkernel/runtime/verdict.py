"""How a payload ended: from its own report, else from how its process did."""

import os

from . import lean

# A signal to a whole group may reach its processes one after another.
SIGNAL_LAG = 0.05
_LINE = 300


def short(text, limit=_LINE):
    """The text, or its beginning: records are read again and again."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def outcome(state, reason, exit_code=None, signum=None, **rest):
    """The fields of an outcome record."""
    record = {"state": state, "reason": reason, "exit_code": exit_code, "signum": signum}
    record.update(rest)
    return record


def by_signal(signum):
    """A signal in words."""
    import signal  # not before: it brings `enum`

    try:
        name = signal.Signals(signum).name
    except ValueError:
        name = "signal"
    return "It was ended by %s (%d)." % (name, signum)


def judge(status, report, command, timed_out=False, ended_by=None, out_of_memory=False, told_to_end=None):
    """The outcome record.

    Parameters
    ----------
    status : int
        The wait status of the payload's process.
    report : dict or None
        What the payload said itself.
    command : str
        The program of a command, which reports by its exit code alone; empty for a payload of ours.
    timed_out : bool
        Whether we ended it for its time limit.
    ended_by : int or None
        The signal that we were sent to end it; why is for the platform to tell.
    out_of_memory : bool
        Whether the kernel killed a process of ours for want of memory.
    told_to_end : float or None
        When we first told the payload to end (`time.monotonic`).
    """
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    rest = {}
    if report is not None:
        report.setdefault("exit_code", code)
        report["signum"] = signum
        rest = {key: report[key] for key in ("error", "result", "outputs") if key in report}
        through = report.pop("through", None)
        # Code that hears a signal and returns in peace has not done what it was to do.
        in_time = told_to_end is None or through is None or through < told_to_end - SIGNAL_LAG
        if in_time and (code == 0 if report["state"] == "SUCCEEDED" else report["state"] in _BY_ITSELF):
            return report
    if timed_out:
        return outcome("TIMED_OUT", "It reached its time limit.", code, signum, **rest)
    if ended_by:
        return outcome("CANCELLED", by_signal(ended_by), code, signum or ended_by, **rest)
    if report is not None and report["state"] != "SUCCEEDED":
        return report
    if out_of_memory and code != 0:
        reason = "A process of it was killed: the memory that it may use was full."
        return outcome("OUT_OF_MEMORY", reason, code, signum, **rest)
    if signum is not None:
        return outcome("DIED", by_signal(signum), code, signum, **rest)
    if command:
        return _of_command(code, os.path.basename(command))
    reason = "The process ended with exit code %d before it could say how it went." % code
    return outcome("DIED", reason, code, signum, **rest)


def _of_command(code, program):
    if code == 0:
        return outcome("SUCCEEDED", "", 0, result="none")
    called = "A command" if program in ("bash", "sh", "env") else program  # those say it of what they start
    if code == 127:
        return outcome(
            "LAUNCH_FAILED", "%s was not found there (exit code 127): install it, or name its path." % called, code
        )
    if code == 126:
        return outcome("LAUNCH_FAILED", "%s could not be started (exit code 126)." % called, code)
    if 128 < code <= 128 + 64:  # a shell's way to say that what it ran was killed; sys.exit(-1) is 255
        return outcome("DIED", by_signal(code - 128), code, code - 128)
    return outcome("FAILED", "Exit code %d." % code, code)


def disk_is_full(folder):
    """Whether nothing more can be written there."""
    try:
        return os.statvfs(folder).f_bavail == 0
    except OSError:
        return False


def read_report(process_dir):
    """What the payload's process, or the ranks under its launcher, said of how it went.

    Returns
    -------
    dict or None
        A rank that failed speaks for all; success takes all of them, and the last one's time counts.
    """
    try:
        ranks = [name for name in os.listdir(process_dir) if name.startswith("rank-") and name[5:].isdecimal()]
    except OSError:
        ranks = []
    ranks.sort(key=lambda name: int(name[5:]))
    reports = []
    for folder in [process_dir] + [os.path.join(process_dir, name) for name in ranks]:
        report = _read(os.path.join(folder, "report.json"))
        if report is not None:
            reports.append(report)
    bad = [report for report in reports if report["state"] != "SUCCEEDED"]
    if bad:
        return bad[0]
    if not reports or len(reports) < len(ranks):
        return None
    times = [report["through"] for report in reports if report.get("through") is not None]
    return dict(reports[0], through=max(times)) if times else reports[0]


def _read(path):
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except (IOError, OSError):
        return None
    try:
        report = lean.loads(data) if len(data) <= _MOST else None
    except ValueError:
        report = None
    whole = isinstance(report, dict) and all(isinstance(report.get(key), kind) for key, kind in _FIELDS)
    if whole and all(isinstance(about, dict) for about in report["outputs"].values()):
        return report
    return outcome("DIED", "What it said of its end is damaged: %s." % path)


_BY_ITSELF = ("FAILED", "RESULT_FAILED", "LAUNCH_FAILED")
# Of a report, which is written in one step: but a file system may damage it, and so may the user's code.
_MOST = 1 << 26
_NONE = type(None)
_FIELDS = (
    ("state", str), ("reason", str), ("exit_code", (int, _NONE)), ("error", (dict, _NONE)),
    ("result", str), ("outputs", dict), ("through", (float, int, _NONE)),
)  # fmt: skip
