"""Reads what squeue, scontrol and sacct print about jobs.

Each gives rows that name a job by the id of its array (its own where it is
none) and the indices of the tasks that the row stands for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from clusterkernel.backends.slurm.states import Record

__all__ = [
    "COMMENT",
    "SACCT",
    "SEPARATOR",
    "SQUEUE",
    "Row",
    "comment",
    "expand",
    "read_comment",
    "read_sacct",
    "read_scontrol",
    "read_squeue",
]

# No name or path of a job holds it.
SEPARATOR: Final = "\x1f"
SQUEUE: Final = SEPARATOR.join(("%A", "%F", "%K", "%T", "%r", "%N", "%k", "%o"))
SACCT: Final = "JobID,State,ExitCode,DerivedExitCode,NodeList,JobName"
COMMENT: Final = "clusterkernel"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an answer.

    Attributes
    ----------
    job : str
        Id of the array, or of the job where it is none.
    tasks : tuple of int or None
        Indices within the array, None for a job that is no array.
    comment, command, name : str
        By which a job of ours is known; empty where not told.
    """

    job: str
    tasks: tuple[int, ...] | None
    record: Record
    comment: str = ""
    command: str = ""
    name: str = ""


def comment(key: str, first: int, count: int) -> str:
    """The comment of a job: its key, and which array tasks it holds."""
    return f"{COMMENT}:{key}:{first}:{count}"


def read_comment(text: str) -> tuple[str, int, int] | None:
    """Key, first task and count, or None where the comment is not ours."""
    match = re.fullmatch(rf"{COMMENT}:([0-9a-z]+):(\d+):(\d+)", text.strip())
    return (match[1], int(match[2]), int(match[3])) if match else None


def expand(text: str) -> tuple[int, ...] | None:
    """The indices of an array expression: ``[3-6,8-12:2%4]`` gives 3 4 5 6 8 10 12.

    None for anything that is no such expression, one that was cut with ``...`` too.
    """
    body = text.strip().strip("[]").partition("%")[0]
    found: list[int] = []
    for part in body.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, last + 1, int(match[3] or 1) or 1)
    return tuple(found)


def _null(text: str) -> str:
    return "" if text.strip() in ("(null)", "N/A", "None assigned", "None", "n/a") else text.strip()


def read_squeue(text: str) -> Iterator[Row]:
    """Rows of ``squeue -h -t all -o SQUEUE``. Lines that are none of its own are passed over."""
    for line in text.split("\n"):
        fields = line.split(SEPARATOR, 7)
        if len(fields) != 8 or not fields[0].isdigit() or not fields[1].isdigit():
            continue
        _, job, index, state, reason, node, note, command = fields
        tasks = None if index == "N/A" else expand(index)
        if tasks is None and index != "N/A":
            continue
        record = Record(state=state, reason=reason, node=_null(node))
        yield Row(job=job, tasks=tasks, record=record, comment=_null(note), command=_null(command))


_JOB: Final = re.compile(r"JobId=(\d+) (?:ArrayJobId=(\d+) ArrayTaskId=(\S+) )?(?:ArrayTaskThrottle=\S+ )?JobName=")

# A value that may hold blanks ends where the next field begins.
_WORDS: Final = r".*?(?= [A-Z][A-Za-z:/]*=|\s*$)"


def read_scontrol(text: str, names: Callable[[str], str]) -> Iterator[Row]:
    """Rows of ``scontrol -d -o show job``.

    Parameters
    ----------
    text : str
        One job a line.
    names : callable
        The name of the job with an id: what is written in it is not read as a field.
    """
    for line in text.split("\n"):
        match = _JOB.match(line)
        if match is None:
            continue
        job = match[2] or match[1]
        name = names(job)
        rest = line[match.end() :]
        rest = rest[len(name) :] if name and rest.startswith(name) else rest
        tasks = None if match[2] is None else expand(match[3])
        if tasks is None and match[2] is not None:
            continue

        def field(key: str, end: str = r"\S+", rest: str = rest) -> str:
            found = re.search(rf" {key}=({end})", rest)
            return _null(found[1]) if found else ""

        restarts = field("Restarts", r"\d+")
        record = Record(
            state=field("JobState"),
            reason=field("Reason", _WORDS),
            exit_code=field("ExitCode"),
            derived=field("DerivedExitCode"),
            restarts=int(restarts) if restarts else None,
            node=field("NodeList"),
        )
        yield Row(
            job=job,
            tasks=tasks,
            record=record,
            comment=field("Comment", _WORDS),
            command=field("Command", _WORDS),
            name=name if rest != line[match.end() :] else "",
        )


def read_sacct(text: str) -> Iterator[Row]:
    """Rows of ``sacct -X -n -P --delimiter=SEPARATOR -o SACCT``."""
    for line in text.split("\n"):
        fields = line.split(SEPARATOR, 5)
        if len(fields) != 6:
            continue
        job_id, state, exit_code, derived, node, name = fields
        job, _, index = job_id.partition("_")
        if not job.isdigit():
            continue
        tasks = expand(index) if index else None
        if index and tasks is None:
            continue
        record = Record(state=state, exit_code=exit_code, derived=derived, node=_null(node))
        yield Row(job=job, tasks=tasks, record=record, name=name)
