"""Folders and files as the person names them."""

from __future__ import annotations

import os
from pathlib import Path

from clusterkernel.errors import SpecError

__all__ = ["expand", "working_folder"]


def expand(path: str | os.PathLike[str], label: str) -> Path:
    """The path with ``~`` and ``~user`` put in.

    Parameters
    ----------
    path : path
        As it was written.
    label : str
        How the person named it, for the error.

    Raises
    ------
    SpecError
        There is no such user.
    """
    found = Path(path)
    try:
        return found.expanduser()
    except RuntimeError:
        raise SpecError(
            f"{label} = {os.fspath(path)}: there is no user {found.parts[0][1:]!r} here.",
            field=label,
            hint="Write the whole path.",
        ) from None


def working_folder() -> Path:
    """The folder that this process works in.

    Raises
    ------
    SpecError
        It was deleted, or its name is no text that a record could hold.
    """
    try:
        found = Path.cwd()
    except OSError as error:
        raise SpecError(
            f"The working folder is gone: {error.strerror}.",
            field="--workdir",
            hint="Go to one that is there with os.chdir, or %cd.",
        ) from None
    try:
        str(found).encode()
    except UnicodeEncodeError:
        raise SpecError(
            f"The name of the working folder {str(found)!r} is not UTF-8.",
            field="--workdir",
            hint="Rename it, or go to another with os.chdir, or %cd.",
        ) from None
    return found
