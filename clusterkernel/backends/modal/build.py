"""What the build of a job's image prints, kept in the job folder while it is built."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterkernel.backends.modal.client import library
from clusterkernel.errors import SubmissionError
from clusterkernel.files import make_private

__all__ = ["kept"]

_HINT = "%cluster_logs shows what its build printed."


@contextlib.contextmanager
def kept(log: Path) -> Iterator[None]:
    """Keep what images print that are built within the block.

    The client hands it to its manager of output, of which a process has one. One
    that the person has switched on (``modal.enable_output``) is left in its place.

    Parameters
    ----------
    log : Path
        Where it goes.

    Raises
    ------
    SubmissionError
        An image cannot be built.
    """
    wrong = library().exception
    log.unlink(missing_ok=True)  # of an earlier try
    try:
        with _written(log):
            yield
    except wrong.RemoteError as error:  # nothing else runs remotely here
        heading, *said = str(error).strip().splitlines()
        last = said[-1] if "exception" in heading and said else _last_line(log) or heading
        raise SubmissionError(f"The image cannot be built: {last.strip().rstrip('.')}.", hint=_HINT) from error


@contextlib.contextmanager
def _written(log: Path) -> Iterator[None]:
    manager = library().output.OutputManager
    silent = manager.get()
    if silent.is_enabled or not hasattr(manager, "_set"):
        yield
        return

    class Writer(type(silent)):  # type: ignore[misc]
        async def put_streaming_log(self, log_entry: Any, prefix: str = "") -> None:
            _append(log, log_entry.data)

    manager._set(ours := Writer())
    try:
        yield
    finally:
        if manager.get() is ours:
            manager._set(silent)


def _append(log: Path, text: str) -> None:
    make_private(log.parent)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as file:
        file.write(text.encode("utf-8", "replace"))


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line[:300] for line in reversed(lines) if line.strip()), "")
