"""The index of a job root: the ledger, brought up to date from the folders."""

from __future__ import annotations

import contextlib

from clusterkernel.errors import UnknownJobError, UnreadableJobError
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.ledger import Ledger

__all__ = ["live", "sync"]


def sync(root: JobRoot, ledger: Ledger) -> dict[str, bytes | None]:
    """Take in the jobs that the ledger lacks, drop those whose folder is gone.

    Returns
    -------
    dict
        As `Ledger.known` gives it. A job whose description cannot be read counts as one
        that lives, and is not taken in: it may be mended, or belong to a newer version.
    """
    known = ledger.known()
    there = set(root.ids())
    for job in there - known.keys():
        try:
            record = JobFolder(root.path / job).record
        except UnreadableJobError:
            known[job] = None
            continue
        except UnknownJobError:
            continue  # one that is being made, or the rest of one that never was
        ledger.add(job, record.attach_key)
        known[job] = None
    for job in known.keys() - there:
        ledger.forget(job)
        del known[job]
    return known


def live(root: JobRoot, ledger: Ledger) -> list[JobFolder]:
    """The folders of all jobs that have not ended, as far as the ledger knows, and that can be read."""
    found = []
    for job, ended in sync(root, ledger).items():
        if ended is None:
            folder = JobFolder(root.path / job)
            with contextlib.suppress(UnknownJobError):
                folder.record  # noqa: B018 - reading it is the check
                found.append(folder)
    return found
