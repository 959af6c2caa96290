"""The kernel's FUSE protocol, as far as the late share needs it: messages in, replies out, and the mount.

Layouts and numbers are those of the kernel's public header ``uapi/linux/fuse.h``, protocol 7.31. Only the standard
library is used, so the share runs wherever the kernel has /dev/fuse and lets root mount.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from enum import IntEnum
from typing import NamedTuple

_HEADER = struct.Struct("<IIQQIIII")
_REPLY = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_MAX_WRITE = 128 * 1024
AUTO_INVAL_DATA = 1 << 12
BIG_WRITES = 1 << 5

GETATTR = struct.Struct("<IIQ")
SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
MKNOD = struct.Struct("<IIII")
MKDIR = struct.Struct("<II")
CREATE = struct.Struct("<IIII")
OPEN = struct.Struct("<II")
READ = struct.Struct("<QQIIQII")
WRITE = READ
RELEASE = struct.Struct("<QIIQ")
U64 = struct.Struct("<Q")
FORGET_ONE = struct.Struct("<QQ")


class Op(IntEnum):
    """The requests that the share answers; every other one gets ENOSYS, which the kernel understands."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


class Request(NamedTuple):
    """One message of the kernel."""

    op: int
    unique: int
    node: int
    uid: int
    gid: int
    body: memoryview

    def names(self, skip: int = 0) -> list[str]:
        """The zero-ended names behind the first `skip` bytes."""
        return [os.fsdecode(part) for part in bytes(self.body[skip:]).split(b"\0")[:-1]]


def attributes(st: os.stat_result, size: int, mtime_ns: int) -> bytes:
    """The 88 bytes of a file's attributes, with a size and a time of change of our own."""
    ns = 1_000_000_000
    atime, mtime, ctime = st.st_atime_ns, mtime_ns, st.st_ctime_ns
    return _ATTR.pack(
        *(st.st_ino, size, (size + 511) // 512, atime // ns, mtime // ns, ctime // ns),
        *(atime % ns, mtime % ns, ctime % ns, st.st_mode, st.st_nlink, st.st_uid, st.st_gid, 0, st.st_blksize, 0),
    )


def entry(node: int, attr: bytes) -> bytes:
    """A name's answer; the kernel may keep nothing of it, for the lag is decided by the share alone."""
    return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attr


def attr_out(attr: bytes) -> bytes:
    """A file's attributes, not to be kept by the kernel."""
    return struct.pack("<QII", 0, 0, 0) + attr


def opened(handle: int) -> bytes:
    """A file handle; the kernel drops the pages that it holds of the file."""
    return struct.pack("<QIi", handle, 0, 0)


def dirent(ino: int, offset: int, name: str, mode: int) -> bytes:
    """One line of a folder's listing."""
    raw = os.fsencode(name)
    return struct.pack("<QQII", ino, offset, len(raw), stat.S_IFMT(mode) >> 12) + raw + b"\0" * (-len(raw) % 8)


def statfs(st: os.statvfs_result) -> bytes:
    """The file system's sizes."""
    return struct.pack(
        *("<QQQQQIIII24x", st.f_blocks, st.f_bfree, st.f_bavail, st.f_files, st.f_ffree),
        *(st.f_bsize, st.f_namemax, st.f_frsize, 0),
    )


class Channel:
    """An open /dev/fuse, mounted at a folder.

    Raises
    ------
    OSError
        When the kernel has no FUSE or refuses the mount.
    """

    def __init__(self, folder: str) -> None:
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self._buffer = bytearray(_MAX_WRITE + 65536)
        libc = ctypes.CDLL(None, use_errno=True)
        nosuid_nodev = 2 | 4
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
        if libc.mount(b"clusterkernel-late", os.fsencode(folder), b"fuse", nosuid_nodev, options.encode()) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), folder)

    def receive(self) -> Request | None:
        """The kernel's next message, or None where there is nothing to do.

        Raises
        ------
        EOFError
            When the share was unmounted.
        """
        try:
            size = os.readv(self.fd, [self._buffer])
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                return None
            if error.errno == errno.ENODEV:
                raise EOFError from error
            raise
        _, op, unique, node, uid, gid, _, _ = _HEADER.unpack_from(self._buffer)
        request = Request(op, unique, node, uid, gid, memoryview(self._buffer)[_HEADER.size : size])
        if op == Op.INIT:
            self._greet(request)
            return None
        return request

    def reply(self, request: Request, payload: bytes = b"", error: int = 0) -> None:
        """Answer a message; `error` is a positive errno."""
        data = b"" if error else payload
        try:
            os.write(self.fd, _REPLY.pack(_REPLY.size + len(data), -error, request.unique) + data)
        except OSError as problem:
            if problem.errno != errno.ENOENT:  # the caller was interrupted and does not want the answer any more
                raise

    def _greet(self, request: Request) -> None:
        _, minor, readahead, flags = struct.unpack_from("<IIII", request.body)
        flags &= AUTO_INVAL_DATA | BIG_WRITES
        out = struct.pack("<IIIIHHII", 7, min(minor, 31), readahead, flags, 12, 9, _MAX_WRITE, 1)
        self.reply(request, out.ljust(64, b"\0"))
