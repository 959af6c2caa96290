"""A share whose head sees late what the nodes write, as on a cluster with its homes on NFS.

    python lagged_share.py REAL VIEW --lag SECONDS --pid FILE

REAL is an ordinary folder, which the nodes use directly. VIEW is the head's mount of the same folder, a FUSE file
system served by this process: what the head writes goes through at once, what a node did is seen SECONDS later.

As on real NFS:

- A file, folder, link, new size, replacement by rename or removal that a node made is not seen by the head until
  the lag is over, neither by opening, nor by testing for it, nor in a listing; until then the head sees what was
  there before (a replaced file can still be read). Appends and renames arrive in their order, and a file is never
  seen half renamed.
- What the head writes is in the nodes' folder when its write returns.
- mkdir, O_EXCL and link(2) are decided in the one real folder: atomic among the nodes and between nodes and head,
  so the head can get EEXIST for a name that it does not see yet.
- Locks (flock, fcntl) hold among the head's processes, but not between head and nodes (NFS without a lock daemon).

Not as on real NFS:

- The lag is a fixed time after each change. A real client caches from when it asked (names that were not found,
  sizes and listings, for 3 to 60 s) and refreshes a file's size and data when it is opened. Here opening does not
  help, and what the head never asked for is late, too; but nothing is late for longer than the lag.
- A node overwriting a file in place at the same length is seen at once; only names, sizes and times are late.
- Changes that a node makes faster than 0.1 s apart are seen in steps of that length.
- No "stale file handle" errors, no clocks that differ, no root squashing.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import resource
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if not __package__:  # run as a script: give it the package that it lies in
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    __package__ = Path(__file__).resolve().parent.name

from . import fusewire as wire
from .fusewire import Channel, Op, Request
from .late_view import Inode, View

TICK = 0.1
_KEEP = os.O_ACCMODE | os.O_APPEND | os.O_TRUNC | os.O_EXCL
_libc = ctypes.CDLL(None)


@contextmanager
def _as(request: Request) -> Iterator[None]:
    """Make files as the caller: owner, group and the folder's set-group-id as the kernel does them."""
    _libc.setfsgid(request.gid)
    _libc.setfsuid(request.uid)
    try:
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)


class LateShare:
    """Answers the kernel for the head's view; one message at a time."""

    def __init__(self, view: View, channel: Channel) -> None:
        self.view = view
        self.channel = channel
        self.inodes = {view.root.number: view.root}
        self.handles: dict[int, tuple[int, Inode]] = {}
        self.listings: dict[int, list[tuple[str, Inode]]] = {}
        self.last_handle = 0
        self.answers: dict[int, Callable[[Request], bytes]] = {
            Op.LOOKUP: self.lookup,
            Op.GETATTR: self.getattr,
            Op.SETATTR: self.setattr,
            Op.READLINK: lambda r: os.fsencode(os.readlink("", dir_fd=self.inodes[r.node].fd)),
            Op.SYMLINK: self.symlink,
            Op.MKNOD: self.mknod,
            Op.MKDIR: self.mkdir,
            Op.UNLINK: self.unlink,
            Op.RMDIR: self.rmdir,
            Op.RENAME: self.rename,
            Op.LINK: self.link,
            Op.OPEN: self.open,
            Op.READ: self.read,
            Op.WRITE: self.write,
            Op.STATFS: lambda r: wire.statfs(os.fstatvfs(view.root.fd)),
            Op.RELEASE: self.release,
            Op.FSYNC: lambda r: b"",
            Op.OPENDIR: self.opendir,
            Op.READDIR: self.readdir,
            Op.RELEASEDIR: self.release,
            Op.FSYNCDIR: lambda r: b"",
            Op.CREATE: self.create,
        }

    def serve(self) -> None:
        """Answer until the share is unmounted."""
        poll = select.poll()
        poll.register(self.channel.fd, select.POLLIN)
        pause, due = TICK, time.monotonic() + TICK
        while True:
            if poll.poll(max(0.0, due - time.monotonic()) * 1000):
                try:
                    request = self.channel.receive()
                except EOFError:
                    return
                if request is not None:
                    self.answer(request)
            began = time.monotonic()
            if began >= due:
                self.view.tick()
                due = (ended := time.monotonic()) + max(pause, 10 * (ended - began))

    def answer(self, request: Request) -> None:
        """Answer one message."""
        if request.op == Op.FORGET:
            self.forget(request.node, *wire.U64.unpack_from(request.body))
        elif request.op == Op.BATCH_FORGET:
            for number, count in wire.FORGET_ONE.iter_unpack(request.body[8:]):
                self.forget(number, count)
        elif request.op not in (Op.INTERRUPT, Op.DESTROY):
            try:
                answer = self.answers.get(request.op)
                if answer is None:
                    raise OSError(errno.ENOSYS, "not served")
                payload = answer(request)
            except OSError as error:
                self.channel.reply(request, error=error.errno or errno.EIO)
            else:
                self.channel.reply(request, payload)

    # -- names -------------------------------------------------------------------------------------------------

    def attributes(self, inode: Inode) -> bytes:
        """The attributes that the head sees."""
        st, size, mtime = self.view.shape(inode)
        return wire.attributes(st, size, mtime)

    def entry(self, inode: Inode) -> bytes:
        """A name's answer; the kernel holds the inode until it forgets it."""
        attributes = self.attributes(inode)
        inode.lookups += 1
        self.inodes[inode.number] = inode
        return wire.entry(inode.number, attributes)

    def forget(self, number: int, count: int) -> None:
        """The kernel dropped an inode."""
        inode = self.inodes.get(number)
        if inode is not None and inode is not self.view.root:
            inode.lookups -= count
            if inode.lookups <= 0:
                del self.inodes[number]

    def lookup(self, r: Request) -> bytes:
        """Find a name."""
        inode = self.view.look(self.inodes[r.node], r.names()[0])
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "not there, or not seen yet")
        return self.entry(inode)

    def getattr(self, r: Request) -> bytes:
        """Give a file's attributes."""
        return wire.attr_out(self.attributes(self.inodes[r.node]))

    def setattr(self, r: Request) -> bytes:
        """Change mode, owner, size or times; the bits that say which are the header's FATTR_*."""
        inode = self.inodes[r.node]
        given = wire.SETATTR.unpack_from(r.body)
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = given
        if valid & 1:
            os.chmod(inode.path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(inode.path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(inode.path, size)
        if valid & 0x1B0:
            st, now = os.stat(inode.fd), time.time_ns()
            read = atime * 10**9 + atime_ns if valid & 16 else st.st_atime_ns
            changed = mtime * 10**9 + mtime_ns if valid & 32 else st.st_mtime_ns
            os.utime(inode.path, ns=(now if valid & 128 else read, now if valid & 256 else changed))
        inode.own()
        return self.getattr(r)

    def symlink(self, r: Request) -> bytes:
        """Make a symbolic link."""
        parent, (name, target) = self.inodes[r.node], r.names()
        with _as(r):
            os.symlink(target, name, dir_fd=parent.fd)
        return self.entry(self.view.made(parent, name))

    def mknod(self, r: Request) -> bytes:
        """Make a file or a pipe."""
        parent, name = self.inodes[r.node], r.names(wire.MKNOD.size)[0]
        mode, device, _, _ = wire.MKNOD.unpack_from(r.body)
        with _as(r):
            os.mknod(name, mode, device, dir_fd=parent.fd)
        return self.entry(self.view.made(parent, name))

    def mkdir(self, r: Request) -> bytes:
        """Make a folder."""
        parent, name = self.inodes[r.node], r.names(wire.MKDIR.size)[0]
        with _as(r):
            os.mkdir(name, wire.MKDIR.unpack_from(r.body)[0], dir_fd=parent.fd)
        return self.entry(self.view.made(parent, name))

    def unlink(self, r: Request) -> bytes:
        """Remove a name."""
        parent, name = self.inodes[r.node], r.names()[0]
        os.unlink(name, dir_fd=parent.fd)
        self.view.own(parent, name)
        return b""

    def rmdir(self, r: Request) -> bytes:
        """Remove a folder; ENOTEMPTY also for what the head does not see yet."""
        parent, name = self.inodes[r.node], r.names()[0]
        os.rmdir(name, dir_fd=parent.fd)
        self.view.own(parent, name)
        return b""

    def rename(self, r: Request) -> bytes:
        """Give a file another name, replacing what was there."""
        old, new = r.names(wire.U64.size)
        source, target = self.inodes[r.node], self.inodes[wire.U64.unpack_from(r.body)[0]]
        os.rename(old, new, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        self.view.own(source, old)
        self.view.own(target, new)
        return b""

    def link(self, r: Request) -> bytes:
        """Give a file one more name; EEXIST where a node was first."""
        parent, name = self.inodes[r.node], r.names(wire.U64.size)[0]
        inode = self.inodes[wire.U64.unpack_from(r.body)[0]]
        os.link(inode.path, name, dst_dir_fd=parent.fd, follow_symlinks=True)
        return self.entry(self.view.made(parent, name))

    # -- contents ----------------------------------------------------------------------------------------------

    def handle(self, fd: int, inode: Inode) -> bytes:
        """The answer to an open."""
        self.last_handle += 1
        self.handles[self.last_handle] = (fd, inode)
        return wire.opened(self.last_handle)

    def open(self, r: Request) -> bytes:
        """Open a file that the head sees."""
        inode = self.inodes[r.node]
        flags = wire.OPEN.unpack_from(r.body)[0] & _KEEP & ~os.O_EXCL
        return self.handle(os.open(inode.path, flags), inode)

    def create(self, r: Request) -> bytes:
        """Make a file and open it; EEXIST with O_EXCL where a node was first."""
        parent, name = self.inodes[r.node], r.names(wire.CREATE.size)[0]
        flags, mode, _, _ = wire.CREATE.unpack_from(r.body)
        with _as(r):
            fd = os.open(name, flags & _KEEP | os.O_CREAT | os.O_NOFOLLOW, mode, dir_fd=parent.fd)
        inode = self.view.made(parent, name)
        return self.entry(inode) + self.handle(fd, inode)

    def read(self, r: Request) -> bytes:
        """Read, up to the size that the head sees."""
        number, offset, size, *_ = wire.READ.unpack_from(r.body)
        fd, inode = self.handles[number]
        seen = self.view.shape(inode)[1]
        return os.pread(fd, max(0, min(size, seen - offset)), offset)

    def write(self, r: Request) -> bytes:
        """Write through."""
        number, offset, size, *_ = wire.WRITE.unpack_from(r.body)
        fd, inode = self.handles[number]
        done = os.pwrite(fd, r.body[wire.WRITE.size :][:size], offset)
        inode.own()
        return wire.OPEN.pack(done, 0)

    def release(self, r: Request) -> bytes:
        """Close a file or a folder."""
        number = wire.RELEASE.unpack_from(r.body)[0]
        self.listings.pop(number, None)
        fd, _ = self.handles.pop(number)
        if fd >= 0:
            os.close(fd)
        return b""

    def opendir(self, r: Request) -> bytes:
        """Open a folder."""
        return self.handle(-1, self.inodes[r.node])

    def readdir(self, r: Request) -> bytes:
        """List a folder; a listing stays as it was when it was begun."""
        number, offset, size, *_ = wire.READ.unpack_from(r.body)
        folder = self.handles[number][1]
        if offset == 0:
            self.listings[number] = [(".", folder), ("..", folder), *self.view.listing(folder)]
        out = bytearray()
        for index, (name, inode) in enumerate(self.listings[number][offset:], offset + 1):
            line = wire.dirent(inode.key[1], index, name, os.stat(inode.fd).st_mode)
            if len(out) + len(line) > size:
                break
            out += line
        return bytes(out)


def main() -> None:
    """Mount and serve until unmounted; the pid file appears once the view can be used."""
    parser = argparse.ArgumentParser(description="Serve a folder late.")
    parser.add_argument("real")
    parser.add_argument("view")
    parser.add_argument("--lag", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--pid", type=Path, required=True, metavar="FILE")
    given = parser.parse_args()
    os.umask(0)
    # every file that the head looked at lately is held open, so that its identity lasts
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    try:
        share = LateShare(View(given.real, given.lag), Channel(given.view))
    except OSError as error:
        sys.exit(f"fatal: the late share needs /dev/fuse and the right to mount: {error}")
    new = given.pid.with_suffix(".new")
    new.write_text(f"{os.getpid()}\n")
    new.replace(given.pid)
    share.serve()


if __name__ == "__main__":
    main()
