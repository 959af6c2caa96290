"""What a job in a container of Modal's writes, sent back in pieces through a Dict (see `modalrun`)."""

import os
import sys
import time

from . import lean
from .modalfiles import VOLUME

# Of one piece, in bytes.
PIECE = 1 << 20
# A file that is larger goes over the volume.
LARGE = 4 << 20
# Written bit by bit; all other files are sent once they are complete.
_STREAMS = ("stdout", "stderr", "order", "metrics.jsonl", "usage.jsonl")
_LAST = b'"outcome"'


def stream_name(key):
    """The Dict of a job's pieces."""
    return "clusterkernel-" + key


def _show(data, stream):
    try:
        stream.write(data.decode("utf-8", "replace"))
        stream.flush()
    except (OSError, ValueError):
        pass


class Stream(object):
    """Sends what a job writes to its folder."""

    def __init__(self, modal, key, part, attempt, job_dir):
        self._dict = modal.Dict.from_name(stream_name(key), create_if_missing=True)
        self._modal, self._key, self._job_dir = modal, key, job_dir
        self._name = "%s/%d" % (part, attempt)
        self._number = 0
        self._sent = {}
        self._piece, self._size = [], 0

    def send(self, last=False, outcome=None):
        """Send what is new; at the `last` time all files, and that it was."""
        # What the records tell of must come before them: they are read first, and sent last.
        records = [(path, self._new(path, hold=not last)) for path in self._paths("events") if path.endswith(".jsonl")]
        for path in self._paths("batch"):
            self._add_new(path, sys.stderr)
        for path in self._paths("out"):
            name = os.path.basename(path)
            if name in _STREAMS:
                self._add_new(path, getattr(sys, name, None))
            elif last:
                self._add_file(path)
        for path, parts in records:
            for data in parts:
                self._add(path, data)
        if last:
            self._piece.append(("end", 0, lean.dumps({"retry": bool(outcome.get("retry"))})))
        if self._piece:
            self._flush()

    def _paths(self, folder):
        found = []
        for above, _, names in os.walk(os.path.join(self._job_dir, folder)):
            found += [os.path.relpath(os.path.join(above, name), self._job_dir) for name in names]
        return sorted(path for path in found if not path.endswith(".tmp"))

    def _new(self, path, hold=False):
        """What was appended to a file, in parts; with `hold` up to the record of an end."""
        parts = []  # type: list
        with open(os.path.join(self._job_dir, path), "rb") as file:
            file.seek(self._sent.get(path, 0))
            while True:
                data = file.read(PIECE)
                if hold and _LAST in data:
                    data = data[: data.rfind(b"\n", 0, data.find(_LAST)) + 1]
                if not data:
                    return parts
                parts.append(data)
                if hold:
                    return parts

    def _add_new(self, path, shown):
        for data in self._new(path):
            self._add(path, data)
            if shown is not None:  # so that Modal's own log has it, too
                _show(data, shown)

    def _add(self, path, data):
        offset = self._sent.get(path, 0)
        self._sent[path] = offset + len(data)
        self._piece.append((path, offset, data))
        self._size += len(data)
        if self._size >= PIECE:
            self._flush()

    def _add_file(self, path):
        whole = os.path.join(self._job_dir, path)
        if os.path.islink(whole) or not os.path.isfile(whole):
            return
        if os.path.getsize(whole) <= LARGE:
            with open(whole, "rb") as file:
                self._add(path, file.read())
            return
        place = "%s/%s" % (self._key, path)
        with self._modal.Volume.from_name(VOLUME).batch_upload(force=True) as batch:
            batch.put_file(whole, "/" + place)
        self._piece.append((path, None, place))

    def _flush(self):
        """One piece; a service that is away is waited for: the job goes on meanwhile."""
        pause = 1.0
        while True:
            try:
                self._dict.put("%s/%d" % (self._name, self._number), self._piece)
                break
            except self._modal.exception.Error as error:
                print("What the job wrote cannot be sent yet: %s" % error, file=sys.stderr)
                time.sleep(pause)
                pause = min(2 * pause, 30.0)
        self._number += 1
        self._piece, self._size = [], 0
