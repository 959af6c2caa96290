"""What a job runs: a cell, a function or a command, made into files.

Each kind has a module whose ``build`` checks everything before anything is
sent and gives an `Artefact`; what comes back is read by `payload.results`.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import msgspec

from clusterkernel.files import make_private

if TYPE_CHECKING:
    from clusterkernel.records import PayloadSummary

__all__ = ["Artefact", "Captured", "Taken", "reload"]


class Captured(msgspec.Struct, frozen=True):
    """A value that is sent along.

    Attributes
    ----------
    name : str
        The variable or argument.
    kind : str
        ``function``, ``class``, ``module``, else the name of its type.
    size : int
        Bytes that it adds to what is sent.
    why : str
        What needs it: ``line 3``, ``used by train``.
    """

    name: str
    kind: str
    size: int
    why: str = ""


class Readable(Protocol):
    """Bytes that can be read from their start again."""

    def read(self, size: int = -1, /) -> bytes:
        """Read bytes."""

    def seek(self, position: int, /) -> int:
        """Go to a position."""


class Taken(Protocol):
    """Files that go along with a payload, such as local modules."""

    def write(self, folder: Path) -> None:
        """Lay the files into the payload's folder."""


class Artefact(msgspec.Struct, frozen=True, kw_only=True):
    """What a job runs, ready to be laid into its folder.

    Attributes
    ----------
    kind : str
        ``cell``, ``function`` or ``command``.
    title : str
        One line that a person knows it by.
    source : str
        The cell or command as text.
    captured : tuple of Captured
        What is sent along, with sizes.
    outputs : tuple of str
        Names that are saved.
    bind : tuple of str
        Names that are bound in the notebook by themselves.
    inputs_digest : mapping
        Captured name -> digest of its value, None where values cannot be compared.
    changed : mapping
        Parameters that a rerun set -> their values, for people.
    body : mapping
        What ``payload.json`` says beside kind and title.
    files : mapping
        Relative path -> content: text, bytes, an open file, or a path to copy.
    taken : tuple of Taken
        What else goes along.
    notes : tuple of str
        What a person should know of it, one sentence each.
    """

    kind: str
    title: str
    source: str = ""
    captured: tuple[Captured, ...] = ()
    outputs: tuple[str, ...] = ()
    bind: tuple[str, ...] = ()
    inputs_digest: Mapping[str, str | None] = {}
    changed: Mapping[str, str] = {}
    body: Mapping[str, Any] = {}
    files: Mapping[str, str | bytes | Path | Readable] = {}
    taken: tuple[Taken, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the values that are sent along."""
        return sum(captured.size for captured in self.captured)

    def write(self, folder: Path) -> None:
        """Write the payload's files into `folder`, which exists.

        Parameters
        ----------
        folder : Path
            The payload's folder in a job folder.
        """
        for name, content in self.files.items():
            target = folder / name
            make_private(target.parent)
            with _new(target) as file:
                if isinstance(content, Path):
                    with open(content, "rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                        # Programs stay programs.
                        os.fchmod(file.fileno(), 0o600 | (os.fstat(source.fileno()).st_mode & stat.S_IXUSR))
                elif isinstance(content, str):
                    file.write(content.encode())
                elif isinstance(content, bytes):
                    file.write(content)
                else:
                    content.seek(0)
                    shutil.copyfileobj(content, file, 1 << 20)
        for taken in self.taken:
            taken.write(folder)
        head = {"kind": self.kind, "title": self.title}
        with _new(folder / "payload.json") as file:
            file.write(msgspec.json.encode({**head, **self.body}))


def _new(path: Path) -> BinaryIO:
    """A file for its owner alone, whatever the umask."""
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def reload(
    payload_dir: Path, summary: PayloadSummary, changes: Mapping[str, Any], *, task: int | None = None
) -> Artefact:
    """The same payload again, with other parameters.

    Parameters
    ----------
    payload_dir : Path
        The payload's folder of the earlier job.
    summary : PayloadSummary
        What that job's record says of it.
    changes : mapping
        Captured names of a cell, keyword arguments of a function, dotted keys
        of an axolotl configuration.
    task : int, optional
        Of an array this task alone.

    Raises
    ------
    PayloadError
        It has no such parameter, or a value cannot be sent.
    """
    from clusterkernel.payload import again

    return again.build(payload_dir, summary, changes, task)
