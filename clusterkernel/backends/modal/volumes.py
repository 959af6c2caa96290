"""The files on a volume of Modal's, such as checkpoints: what is there, and how to get it.

>>> from clusterkernel.backends.modal import volumes
>>> volumes.files("checkpoints")  # doctest: +SKIP
>>> volumes.download("checkpoints", "step-100", "here")  # doctest: +SKIP
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from clusterkernel import patience
from clusterkernel.backends.modal.client import connect, library, speaking
from clusterkernel.errors import BackendError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["download", "files"]

# In threads of their own: the client warns of calls from a notebook's, where an event loop runs.
_PATIENCE: Final = 120.0
_DAY: Final = 86_400.0


def _entries(name: str, path: str) -> list[Any]:
    modal = library()
    with speaking(f"The volume {name} cannot be read"):
        found = modal.Volume.from_name(name, client=connect()).listdir(path, recursive=True)
    return [entry for entry in found if entry.type == modal.volume.FileEntryType.FILE]


def files(name: str, path: str = "/") -> pd.DataFrame:
    """The files on a volume.

    Parameters
    ----------
    name : str
        The volume.
    path : str
        A folder on it.

    Returns
    -------
    pandas.DataFrame
        ``path``, ``size`` (bytes) and ``changed`` (UTC).

    Raises
    ------
    BackendError
        There is no such volume or folder, or Modal does not answer.
    """
    import pandas as pd

    rows = [
        {"path": entry.path, "size": entry.size, "changed": datetime.fromtimestamp(entry.mtime, timezone.utc)}
        for entry in patience.within(_PATIENCE, lambda: _entries(name, path))
    ]
    return pd.DataFrame(rows, columns=["path", "size", "changed"])


def download(
    name: str, path: str, folder: str | os.PathLike[str] = ".", *, show: Callable[[str], object] | None = None
) -> list[Path]:
    """Bring a file, or all files below a folder, from a volume.

    Parameters
    ----------
    name : str
        The volume.
    path : str
        A file or folder on it.
    folder : path
        Where the files go, under their own paths. One that is complete already is not brought again.
    show : callable, optional
        Gets the progress as a line of text; by itself it is written to stderr, over and over.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    BackendError
        There is no such volume or file, or Modal does not answer.
    """
    tell = show or _to_stderr
    made = patience.within(_DAY, lambda: _download(name, path, Path(folder).absolute(), tell))
    if show is None:
        sys.stderr.write("\n")
    return made


def _download(name: str, path: str, around: Path, tell: Callable[[str], object]) -> list[Path]:
    wanted = _entries(name, path)
    total, done = sum(entry.size for entry in wanted), 0
    made: list[Path] = []

    def advance(advance: int = 0, **_: object) -> None:
        nonlocal done
        done += advance
        tell(_bar(done, total))

    with speaking(f"{path} cannot be brought from the volume {name}"):
        volume = library().Volume.from_name(name, client=connect())
        for entry in wanted:
            target = around / entry.path.lstrip("/")
            if not target.resolve().is_relative_to(around.resolve()):
                raise BackendError(f"The volume {name} has a file {entry.path!r}, which would leave {around}.")
            made.append(target)
            if target.is_file() and target.stat().st_size == entry.size:
                advance(entry.size)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.part")
            with open(part, "wb") as file:
                volume.read_file_into_fileobj(entry.path, file, progress_cb=advance)
            os.replace(part, target)
    return made


def _bar(done: int, total: int) -> str:
    share = done / total if total else 1.0
    full = int(30 * share)
    return f"[{'#' * full}{'.' * (30 - full)}] {share:4.0%} of {total / 1e6:.1f} MB"


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"\r{line}")
    sys.stderr.flush()
