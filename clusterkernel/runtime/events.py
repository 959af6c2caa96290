"""The records of a supervisor, and the fence between copies of a job.

One file for each process of a task and attempt, one JSON object a line, one
writer. A reader takes whole lines only, so that a torn write costs its line.
"""

import os
import time

from . import lean
from .context import read_json


class EventLog(object):
    """Appends records to one file.

    Parameters
    ----------
    path : str
        Made, with its folder, where it is not there (an attempt after the first).
    """

    def __init__(self, path):
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            os.makedirs(folder, 0o700, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._file).st_size
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"

    def write(self, kind, **fields):
        """Append one record. A disk that is full costs the record, not the job."""
        record = {"t": time.time(), "kind": kind}
        record.update(fields)
        line = lean.dumps(record) + b"\n"
        if self._torn:
            line = b"\n" + line  # else the half of a line before it would take it along
        try:
            written = os.write(self._file, line)
            flush(self._file)
        except OSError:
            return False
        self._torn = written < len(line)
        return not self._torn

    def close(self):
        """Close the file."""
        os.close(self._file)


def flush(file):
    """Let other hosts see what was written.

    An NFS client keeps it for up to 30 s, but not past a close, and the end of
    a copy is one. Elsewhere that costs nothing, other than fsync.
    """
    os.close(os.dup(file))


def read(path):
    """All whole, readable records of a file; none where there is no file."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except (IOError, OSError):
        return []
    return parse(data)[0]


def parse(data):
    """Records of the whole lines in `data`, and how many bytes these take."""
    end = data.rfind(b"\n") + 1
    records = []
    for line in data[:end].splitlines():
        try:
            record = lean.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "kind" in record:
            records.append(record)
    return records, end


def claim(path, platform_id):
    """Take the right to run, once for all copies.

    Parameters
    ----------
    path : str
        The claim's file.
    platform_id : str
        The platform's id of this copy.

    Returns
    -------
    str
        The id that holds the claim: ours, or that of the copy that was first.

    Notes
    -----
    ``link`` is atomic on NFS too, and the file has its content from the first
    moment. A link whose answer got lost fails when sent again, although it was
    made: then the file holds our own id.
    """
    body = lean.dumps({"platform_id": platform_id, "host": os.uname().nodename, "time": time.time()})
    # Containers may all be process 1 of a host of the same name.
    temporary = "%s.%s.%d.%s.tmp" % (path, os.uname().nodename, os.getpid(), os.urandom(4).hex())
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(body)
        os.link(temporary, path)
        return platform_id
    except FileExistsError:
        try:
            return read_json(path)["platform_id"]
        except (ValueError, TypeError, KeyError):
            return "unreadable"  # somebody holds it
    finally:
        try:
            os.unlink(temporary)
        except OSError:
            pass  # it could not be made
