"""Finding jobs by id."""

from __future__ import annotations

import re
from typing import Final

from clusterkernel.arrays import JobArray
from clusterkernel.errors import UnknownJobError, shown
from clusterkernel.jobroot import JobRoot
from clusterkernel.jobs import Job, of_folder

__all__ = ["job"]

_TASK: Final = re.compile(r"[0-9]{1,9}")


def job(job_id: str | int, *, root: JobRoot | None = None) -> Job | JobArray:
    """The job with this id: ``12``, ``"12_3"``, or a platform's, ``"slurm:8123_4"``.

    Raises
    ------
    UnknownJobError
        There is none.
    """
    root = root or JobRoot()
    text = (job_id if isinstance(job_id, str) else shown(job_id)).strip()
    if ":" in text and not text[0].isdecimal():
        return _by_platform_id(text, root)
    number, _, task = text.partition("_")
    folder = root.open(number)
    if not folder.record.array:
        if task:
            raise UnknownJobError(f"Job {number} is no array.", hint=f"Write {number}.")
        return of_folder(folder)
    if not task:
        return JobArray(folder)
    if not _TASK.fullmatch(task) or int(task) >= folder.record.tasks:
        raise UnknownJobError(
            f"Job {number} has no task {task!r}.", hint=f"It has {number}_0 to {number}_{folder.record.tasks - 1}."
        )
    return of_folder(folder, int(task))


def _by_platform_id(text: str, root: JobRoot) -> Job | JobArray:
    backend, _, wanted = text.partition(":")
    for folder in root.folders():
        submission = folder.submission() if folder.record.spec.backend == backend else None
        for base, first, count in submission.platform_ids if submission else ():
            if wanted == base:
                return job(folder.id, root=root)
            number = wanted.removeprefix(f"{base}_")
            if number != wanted and _TASK.fullmatch(number) and int(number) < count and folder.record.array:
                return of_folder(folder, first + int(number))
    raise UnknownJobError(f"No job of ours is {text!r}.", hint="%cluster_jobs lists all.")
