"""What the head sees of a folder that the nodes change: everything of others `lag` seconds late, its own at once.

The model behind lagged_share.py, free of the FUSE protocol. Each name and each file has a short history of what it
was; the head is shown the entry of `lag` seconds ago. A change is dated by the file's change time (ctime), which
nobody can set and which writing, renaming and linking move.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from bisect import bisect_right
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
EVER = float("-inf")


class History(Generic[T]):
    """The values that one thing had, each with the time (seconds since the epoch) at which it got it."""

    __slots__ = ("times", "values")

    def __init__(self, value: T) -> None:
        self.times = [EVER]
        self.values = [value]

    def note(self, when: float, value: T) -> None:
        """Add a value; times never run backwards."""
        if value != self.values[-1]:
            self.times.append(max(when, self.times[-1]))
            self.values.append(value)

    def at(self, when: float) -> T:
        """The value at a time; what lies before it is forgotten."""
        last = bisect_right(self.times, when) - 1
        if last > 0:
            del self.times[:last], self.values[:last]
        return self.values[0]


class Inode:
    """A real file, held open by its identity, and the (size, time of change) pairs that it had.

    One that nobody asks for any more is *parked*: its descriptor is closed, its history kept.
    """

    def __init__(self, fd: int, number: int, st: os.stat_result) -> None:
        self.fd = fd
        self.number = number
        self.key = (st.st_dev, st.st_ino)
        self.lookups = 0
        self.shape = History((st.st_size, st.st_mtime_ns))

    def __del__(self) -> None:
        self.park()

    def park(self) -> None:
        """Close the descriptor; looking at the file's name opens it again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @property
    def path(self) -> str:
        """A path to this very file, whatever its names are now; it works for a removed one, too."""
        return f"/proc/self/fd/{self.fd}"

    def note(self, st: os.stat_result) -> None:
        """Take in what the file is now."""
        self.shape.note(st.st_ctime, (st.st_size, st.st_mtime_ns))

    def own(self) -> None:
        """The head changed it: it sees all of it."""
        st = os.stat(self.fd)
        self.shape = History((st.st_size, st.st_mtime_ns))

    def hide(self) -> None:
        """Nothing of it was there before: its content has an age, too."""
        st = os.stat(self.fd)
        self.shape = History((0, st.st_mtime_ns))
        self.note(st)


class View:
    """The head's view of a real folder.

    Parameters
    ----------
    real : str
        The folder.
    lag : float
        Seconds.
    """

    def __init__(self, real: str, lag: float) -> None:
        self.lag = lag
        self._began = time.time()  # what is there already is not late
        self._known: WeakValueDictionary[tuple[int, int], Inode] = WeakValueDictionary()
        self._count = 0
        self._names: dict[Inode, dict[str, History[Inode | None]]] = {}
        self._watched: dict[tuple[Inode, str], float] = {}
        # number 1, which is the kernel's name for the root of a FUSE file system
        self.root = self._inode(os.open(real, os.O_PATH | os.O_DIRECTORY))

    def look(self, parent: Inode, name: str) -> Inode | None:
        """What the head sees under a name."""
        now = time.time()
        self._watched[parent, name] = now
        return self._sample(parent, name).at(now - self.lag)

    def shape(self, inode: Inode) -> tuple[os.stat_result, int, int]:
        """A file's real attributes, and the size and mtime (ns) that the head sees."""
        st = os.stat(inode.fd)
        inode.note(st)
        return (st, *inode.shape.at(time.time() - self.lag))

    def listing(self, folder: Inode) -> list[tuple[str, Inode]]:
        """The names that the head sees in a folder."""
        names = set(os.listdir(folder.path)) | set(self._names.get(folder, ()))
        seen = ((name, self.look(folder, name)) for name in sorted(names))
        return [(name, inode) for name, inode in seen if inode is not None]

    def own(self, parent: Inode, name: str) -> Inode | None:
        """The head changed a name: it sees it, and the file under it, as they are."""
        current = self._current(parent, name, None)
        self._names.setdefault(parent, {})[name] = History(current)
        self._watched[parent, name] = time.time()
        if current is not None:
            current.own()
        parent.own()
        return current

    def made(self, parent: Inode, name: str) -> Inode:
        """The file that the head has just made."""
        inode = self.own(parent, name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return inode

    def tick(self) -> None:
        """Look at what the head asked for lately, so that the steps of a steady change are known."""
        now = time.time()
        for (parent, name), asked in list(self._watched.items()):
            if now - asked <= 4 * self.lag + 10:
                if parent.fd >= 0:
                    self._sample(parent, name)
                continue
            del self._watched[parent, name]
            history = self._names[parent][name]
            history.at(now)
            inode = history.values[-1]
            if inode is None:
                del self._names[parent][name]
                if not self._names[parent]:
                    del self._names[parent]
            elif inode.lookups <= 0:
                inode.park()

    def _inode(self, fd: int) -> Inode:
        """The one object of a real file; takes the descriptor over."""
        st = os.stat(fd)
        have = self._known.get((st.st_dev, st.st_ino))
        if have is not None:
            if have.fd < 0:
                have.fd = fd
            else:
                os.close(fd)
            return have
        self._count += 1
        new = Inode(fd, self._count, st)
        self._known[new.key] = new
        return new

    def _current(self, parent: Inode, name: str, last: Inode | None) -> Inode | None:
        """What a name is now; quick when it still is `last`."""
        try:
            st = os.stat(name, dir_fd=parent.fd, follow_symlinks=False)
            if last is not None and last.fd >= 0 and (st.st_dev, st.st_ino) == last.key:
                last.note(st)
                return last
            return self._inode(os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent.fd))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _sample(self, parent: Inode, name: str) -> History[Inode | None]:
        """Bring a name's history up to date."""
        names = self._names.setdefault(parent, {})
        history = names.get(name)
        current = self._current(parent, name, None if history is None else history.values[-1])
        if history is not None and current is history.values[-1]:
            return history
        now = time.time()
        changed = now if current is None else os.stat(current.fd).st_ctime
        if history is None:
            # First look. Linking and renaming move the change time, so where it is old the name is old, too.
            fresh = current is not None and changed > max(now - self.lag, self._began)
            history = names[name] = History(None if fresh else current)
            if fresh and current is not None and stat.S_ISREG(os.stat(current.fd).st_mode) and not current.lookups:
                current.hide()
        history.note(changed, current)
        return history
