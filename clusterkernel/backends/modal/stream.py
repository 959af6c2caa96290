"""Brings back what a job writes: the pieces of its stream, put into the job folder (see `runtime.modalrun`).

How far it came is in ``modal.json`` in the folder, so that any kernel goes on
where another stopped. What is there twice is written twice, to the same place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from clusterkernel.backends.modal.client import library
from clusterkernel.errors import BackendError
from clusterkernel.files import locked, make_private, write_atomic
from clusterkernel.jobfolder import JobFolder
from clusterkernel.runtime.modalfiles import VOLUME
from clusterkernel.runtime.modalrun import CLAIMS
from clusterkernel.runtime.modalstream import stream_name

__all__ = ["Place", "Progress", "Stream"]

# A stream that is silent for so long is looked at for a container that came after.
_SILENT: Final = 5.0
_PATH: Final = re.compile(r"((events|out)/[0-9]+|batch)/[^/\0][^\0]*")


class Place(msgspec.Struct, kw_only=True):
    """How far the stream of one array task, or of one of its nodes, was read.

    Attributes
    ----------
    attempt, number : int
        The next piece.
    ended : bool
        The attempt's last piece was read.
    again : bool
        That said that another attempt follows.
    call : str
        The call that runs the task.
    state, reason : str
        How Modal said that the call ended; it forgets.
    """

    attempt: int = 0
    number: int = 0
    ended: bool = False
    again: bool = False
    call: str = ""
    state: str = ""
    reason: str = ""

    @property
    def begun(self) -> bool:
        """Whether a container has been heard."""
        return self.attempt > 0 or self.number > 0


class Progress(msgspec.Struct, kw_only=True):
    """How far a job's streams were read: ``modal.json``."""

    tasks: dict[str, Place] = {}
    cleared: bool = False

    def place(self, part: str) -> Place:
        """That of one part."""
        return self.tasks.setdefault(part, Place())


class Stream:
    """The streams of one job.

    Parameters
    ----------
    folder : JobFolder
        Where what comes is put.
    client : modal.Client
        The connection.
    environment : str
        Modal's environment; empty for the usual one.
    """

    def __init__(self, folder: JobFolder, client: Any, environment: str) -> None:
        self.folder = folder
        self._client = client
        self._environment = environment or None
        self._heard: dict[str, float] = {}
        self._pieces: Any = None

    @property
    def _file(self) -> Path:
        return self.folder.path / "modal.json"

    @contextlib.contextmanager
    def progress(self) -> Iterator[Progress]:
        """What was read so far, kept from other kernels until the block ends, and then written down."""
        with locked(self.folder.path / ".modal.lock", patience=30.0):
            try:
                known = msgspec.json.decode(self._file.read_bytes(), type=Progress)
            except (FileNotFoundError, msgspec.DecodeError):
                known = Progress()
            before = msgspec.json.encode(known)
            try:
                yield known
            finally:
                if (after := msgspec.json.encode(known)) != before:
                    write_atomic(self._file, after)

    def named(self, name: str) -> Any:
        """A Dict."""
        return library().Dict.from_name(name, environment_name=self._environment, client=self._client)

    def holder(self, task: int) -> str:
        """The call that holds the right to run a task; empty where none does."""
        try:
            return str(self.named(CLAIMS).get(f"{self.folder.record.key}/{task}", ""))
        except library().exception.NotFoundError:
            return ""  # no job has ever run

    def read(self, part: str, place: Place, *, over: bool = False) -> bool:
        """Read what there is of a part. Whether something came.

        A container that is taken away says nothing at its end: another may go
        on where this stream is silent, or the call is `over`. Of several nodes
        the head is looked at, and the others follow it (see `follow`).
        """
        came = False
        while (piece := self._piece(part, place)) is not None:
            came = True
            self._heard[part] = time.monotonic()
            last = self._apply(piece)
            place.number += 1
            if last is not None:
                place.ended, place.again = True, bool(last.get("retry"))
        silent = time.monotonic() - self._heard.setdefault(part, time.monotonic()) >= _SILENT
        unsure = not place.ended and (over or (silent and place.begun))
        if "." not in part and (unsure or (place.again and not came)):
            self._heard[part] = time.monotonic()
            if self._follows(part, place.attempt + 1):
                place.attempt, place.number = place.attempt + 1, 0
                place.ended = place.again = False
                return self.read(part, place, over=over)
        return came

    @staticmethod
    def follow(place: Place, head: Place) -> None:
        """Let a node's place be at the head's attempt."""
        if place.attempt < head.attempt:
            place.attempt, place.number, place.ended, place.again = head.attempt, 0, False, False

    def _piece(self, part: str, place: Place) -> Any:
        if place.ended:
            return None
        try:
            if self._pieces is None:
                pieces = self.named(stream_name(self.folder.record.key))
                pieces.hydrate(self._client)
                self._pieces = pieces
            return self._pieces.get(f"{part}/{place.attempt}/{place.number}")
        except library().exception.NotFoundError:
            self._pieces = None
            return None  # no container has started yet

    def _follows(self, part: str, attempt: int) -> bool:
        return bool(self.named(CLAIMS).contains(f"{self.folder.record.key}/{part}/{attempt}"))

    def _apply(self, piece: Any) -> dict[str, Any] | None:
        """Write a piece; what the last one of an attempt says, where it is that."""
        last: dict[str, Any] | None = None
        for path, offset, data in piece:
            if path == "end":
                last = json.loads(data)
                continue
            target = self._target(str(path))
            if offset is None:
                self._download(str(data), target)
                continue
            # What setup lines print has no file of its own for each attempt.
            anew = os.O_TRUNC if offset == 0 and path.startswith("batch/") else 0
            file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | anew, 0o600)
            try:
                while data:
                    written = os.pwrite(file, data, offset)
                    data, offset = data[written:], offset + written
            finally:
                os.close(file)
        return last

    def _target(self, path: str) -> Path:
        """Where a file of the job goes: into its own folders, whatever a container says."""
        if not _PATH.fullmatch(path) or ".." in path.split("/"):
            raise BackendError(f"The container of job {self.folder.id} wrote to {path!r}, outside of its folders.")
        target = self.folder.path / path
        make_private(target.parent)
        return target

    def _download(self, place: str, target: Path) -> None:
        volume = library().Volume.from_name(VOLUME, environment_name=self._environment, client=self._client)
        temporary = target.with_name(f".{target.name}.part")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            volume.read_file_into_fileobj(place, file)
        os.replace(temporary, target)

    def clear(self, app: str) -> list[str]:
        """Remove at Modal what the job no longer needs; what that was. All of it bears the job's own key.

        Its claims stay, so that no late copy of it can run.
        """
        modal = library()
        key, place = self.folder.record.key, {"environment_name": self._environment, "client": self._client}

        def stop_begun() -> None:
            """A sender that was killed leaves an app that is not deployed: it has no name, and is described by it."""
            if not hasattr(modal.Environment, "apps"):  # of a client that cannot list them
                raise modal.exception.NotFoundError
            made = modal.Environment
            where = made.from_name(self._environment, client=self._client) if self._environment else None
            listed = (where or made.from_context(client=self._client)).apps.list()
            begun = [one for one in listed if one.name is None and one.description == app]
            for one in begun:
                one.stop(client=self._client)
            if not begun:
                raise modal.exception.NotFoundError

        def remove_files() -> None:
            modal.Volume.from_name(VOLUME, **place).remove_file(key, recursive=True)

        steps: dict[str, Callable[[], object]] = {
            "app": lambda: modal.App.lookup(app, **place).stop(client=self._client),
            "unfinished app": stop_begun,
            "files": remove_files,
            "Dict": lambda: modal.Dict.objects.delete(stream_name(key), **place),
        }
        removed = []
        for what, remove in steps.items():
            with contextlib.suppress(modal.exception.NotFoundError, FileNotFoundError):
                remove()
                removed.append(what)
        return removed
