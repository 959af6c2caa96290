"""Starting and ending trees of processes on Linux."""

import os
import time

from .lean import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Seconds to wait for a process to go that was killed.
_KILL_PATIENCE = 5.0


def _prctl(option, value):
    arguments = (option, value, 0, 0, 0)
    try:
        import _ctypes  # by itself: `ctypes` costs each task 2 ms more

        _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"), arguments)
    except (ImportError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(*arguments)


def become_subreaper():
    """Orphans below this process become its children (prctl(2)), so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent):
    """This process is killed when `parent`, its parent, ends, however that happens."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the call


def hear_of_parent():
    """This process gets a SIGCHLD when its parent ends, however that happens.

    Returns
    -------
    int
        The parent's pid: once `os.getppid` says another, it has ended.
    """
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCHLD)
    return parent


def age(pid):
    """For how many seconds `pid` has been running; None: no such process."""
    began = start_time(pid)
    if began is None:
        return None
    with open("/proc/uptime") as file:
        return float(file.read().split()[0]) - float(began) / os.sysconf("SC_CLK_TCK")


def children(pid):
    """Pids of the children of `pid`, those of its threads too."""
    found = []  # type: list
    base = "/proc/%d/task" % pid
    try:
        threads = os.listdir(base)
    except (IOError, OSError):
        return found
    for thread in threads:
        try:
            with open("%s/%s/children" % (base, thread)) as file:
                found += [int(word) for word in file.read().split()]
        except (IOError, OSError):
            continue  # this thread ended meanwhile
    return found


def descendants(pid):
    """Pids of all processes below `pid`."""
    found, queue = [], [pid]
    while queue:
        for child in children(queue.pop()):
            found.append(child)
            queue.append(child)
    return found


def start_time(pid):
    """When `pid` started, in clock ticks since boot; with the pid it names a process for good.

    None where there is no such process, or a zombie.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (IOError, OSError, IndexError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def send(pids, signum):
    """Send a signal to each of `pids` that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except OSError:
            pass


def reap():
    """Collect ended children without waiting: pid -> wait status."""
    ended = {}  # type: dict
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except OSError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def end_all_below(pid, grace):
    """End every process below `pid`: SIGTERM, and after `grace` seconds SIGKILL.

    Returns
    -------
    int
        How many were still there.

    Notes
    -----
    What a driver or a dead file server holds cannot be killed, nor can another
    user's process: these are given up after some seconds.
    """
    left = descendants(pid)
    if not left:
        return 0
    count = len(left)
    send(left, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while left and time.monotonic() < deadline:
        reap()
        left = descendants(pid)
        if left:
            time.sleep(0.02)
    deadline = time.monotonic() + _KILL_PATIENCE
    while left and time.monotonic() < deadline:  # a process may fork between the look and the kill
        send(left, signal.SIGKILL)
        reap()
        time.sleep(0.01)
        left = descendants(pid)
    return count


def oom_kills():
    """How many processes the kernel killed in our memory cgroup for want of memory; None if it cannot be read."""
    try:
        with open("/proc/self/cgroup") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except (IOError, OSError):
        return None
    total = None
    for _, names, path in groups:
        if names == "":
            name = "/sys/fs/cgroup%s/memory.events" % path
        elif "memory" in names.split(","):
            name = "/sys/fs/cgroup/memory%s/memory.oom_control" % path
        else:
            continue
        try:
            with open(name) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        total = (total or 0) + int(line.split()[1])
        except (IOError, OSError, ValueError):
            continue
    return total
