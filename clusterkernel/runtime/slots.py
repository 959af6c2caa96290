"""The slots of this machine: so many tasks run at once over all jobs of a person, first come, first served.

Slots and places in the queue are locks on files of a folder on local disk:
they are free again when their holder dies, however it dies.
"""

import errno
import fcntl
import os
import time

from . import processes

# After so many seconds without a look for its slot, one that waits is passed over: it was stopped (SIGSTOP).
PATIENCE = 5.0
_PLACE = "wait-"


class Slots(object):
    """What one runner holds of them.

    Parameters
    ----------
    folder : str
        Folder of the slots.
    count : int
        How many there are.
    """

    def __init__(self, folder, count):
        self.folder = folder
        self.count = count
        self._place = None  # path of its place in the queue, and the descriptor that holds it
        self._lock = None

    def queue_up(self):
        """Take a place in the queue, behind all that are there."""
        self.leave()
        os.makedirs(self.folder, 0o700, exist_ok=True)  # folders of temporary files are swept
        name = "%020d-%d" % (time.time_ns(), os.getpid())
        new, place = os.path.join(self.folder, "new-" + name), os.path.join(self.folder, _PLACE + name)
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(new, place)  # locked when it is first seen: one that is not is of the dead
        self._place = place

    def leave(self):
        """Give up the place in the queue."""
        if self._lock is None:
            return
        try:
            os.unlink(self._place)
        except FileNotFoundError:
            pass
        self.let_go()

    def let_go(self):
        """In a fork: what it holds is its parent's alone."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = self._place = None

    def take(self, holder):
        """A slot's descriptor; None while there is none, or somebody came earlier.

        Parameters
        ----------
        holder : str
            For whom, as `holders` tells.
        """
        try:
            os.utime(self._place or "")
        except FileNotFoundError:
            self.queue_up()
        if self._ahead():
            return None
        for index in range(self.count):
            slot = _open(os.path.join(self.folder, "slot-%d" % index), os.O_RDWR | os.O_CREAT)
            if _locked(slot, fcntl.LOCK_EX):
                os.ftruncate(slot, 0)
                own = "%d %d %s" % (os.getpid(), processes.start_time(os.getpid()), holder)
                os.write(slot, own.encode("utf-8", "surrogateescape"))
                return slot
            os.close(slot)
        return None

    def _ahead(self):
        """Whether somebody who lives waits in front."""
        own = os.path.basename(self._place)
        for name in sorted(name for name in os.listdir(self.folder) if name.startswith(_PLACE) and name < own):
            path = os.path.join(self.folder, name)
            try:
                place = _open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                if _locked(place, fcntl.LOCK_SH):
                    os.unlink(path)
                elif time.time() - os.fstat(place).st_mtime < PATIENCE:
                    return True
            except FileNotFoundError:
                pass  # another one has swept it
            finally:
                os.close(place)
        return False


def give_back(slot):
    """Free a slot."""
    os.ftruncate(slot, 0)
    os.close(slot)


def holders(folder):
    """For whom the slots are held, by those who live."""
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if not name.startswith("slot-"):
            continue
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file:
                pid, start, holder = file.read().split(" ", 2)
            if processes.start_time(int(pid)) == int(start):
                found.append(holder)
        except (OSError, ValueError):
            continue  # free, or being taken
    return found


def _open(path, flags):
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _locked(number, how):
    try:
        fcntl.flock(number, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True
