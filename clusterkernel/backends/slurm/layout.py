"""Where this backend keeps things in a job's folder, and what the batch shell left there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import msgspec

from clusterkernel.jobfolder import JobFolder

__all__ = ["ShellRecord", "batch_log", "last_line", "logs", "ran", "script", "shell_record", "started"]

_TAIL: Final = 4096


class ShellRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the batch shell wrote at its end (see `clusterkernel.formats.sbatch.writer`)."""

    phase: str
    exit_code: int
    platform_id: str
    host: str = ""
    reason: str = ""
    t: float = 0.0


def logs(folder: JobFolder) -> Path:
    """Folder of the batch shells' own output: what is printed before the supervisor starts, and Slurm's messages."""
    return folder.path / "batch"


def batch_log(folder: JobFolder, platform_id: str) -> Path:
    """The batch shell's output; `platform_id` is ``8123`` or, in an array, ``8123_4``."""
    return logs(folder) / f"{platform_id}.log"


def script(folder: JobFolder, first: int = 0) -> Path:
    """The text that was sent; an array that was split has one for each part."""
    return folder.script if first == 0 else folder.path / f"script.{first}.sh"


def shell_record(folder: JobFolder, attempt: int, task: int, platform_id: str) -> ShellRecord | None:
    """The batch shell's last record, to be looked up only once Slurm says that the job ended."""
    path = folder.path / "events" / str(attempt) / f"{task}.shell.jsonl"
    try:
        data = path.read_bytes()
    except OSError:
        return None
    for line in reversed(data.splitlines()):
        try:
            record = msgspec.convert(json.loads(line), ShellRecord)
        except (ValueError, msgspec.ValidationError):
            continue
        if record.platform_id == platform_id:
            return record
    return None


def started(folder: JobFolder, attempt: int, task: int) -> bool:
    """Whether a supervisor of the task has written anything that is visible here."""
    try:
        with open(folder.events(attempt, task), "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def ran(folder: JobFolder, task: int, platform_id: str) -> bool:
    """Whether the task came to a node, as far as what it left there is visible here."""
    return started(folder, 0, task) or shell_record(folder, 0, task, platform_id) is not None


def last_line(path: Path) -> str:
    """The last line of a log that says something, at most 200 characters of it."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    said = ("".join(char for char in line if char.isprintable()).strip() for line in reversed(text.splitlines()))
    return next(filter(None, said), "")[:200]
