"""What is written down about a job: the one schema of the files in its folder."""

from __future__ import annotations

import getpass
import os
import time
from typing import Any, Final

import msgspec

from clusterkernel.runtime.processes import start_time
from clusterkernel.spec import JobSpec
from clusterkernel.states import JobState

__all__ = ["End", "JobRecord", "PayloadSummary", "Submission", "identity", "user"]

SCHEMA: Final = 1


class PayloadSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job runs, for people and for comparing; the payload itself lies beside it.

    Attributes
    ----------
    kind : str
        ``cell``, ``function`` or ``command``.
    title : str
        One line that a person knows it by.
    source : str
        The cell or command as text.
    outputs : tuple of str
        Names that are saved.
    bind : tuple of str
        Names that are bound in the notebook by themselves.
    inputs : dict
        Captured name -> digest of its value, None where values cannot be compared.
    sizes : dict
        Captured name -> bytes.
    changed : dict
        Parameters that a rerun set -> their values, for people.
    """

    kind: str
    title: str = ""
    source: str = ""
    outputs: tuple[str, ...] = ()
    bind: tuple[str, ...] = ()
    inputs: dict[str, str | None] = {}
    sizes: dict[str, int] = {}
    changed: dict[str, str] = {}


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a job when it is made; never changes.

    Attributes
    ----------
    id : str
        Our id, ``"12"``.
    key : str
        A random word that stands in the platform's name or comment of the job,
        by which a submission whose answer got lost is found again.
    created : float
        Unix time, seconds, of the submitting host.
    tasks : int
        Array tasks; 1 where there is no array.
    array : bool
        Whether it is an array.
    attach_key : str
        Equal for the same cell, source and spec.
    notebook : str
        Path of the notebook, where it is known.
    parent : str
        The job that this one is a rerun of.
    submitter : str
        ``host:pid:start`` of the process that sends it.
    secrets_file : str
        Where the job finds the values of the secrets that it names.
    """

    id: str
    key: str
    name: str
    created: float
    host: str
    user: str
    spec: JobSpec
    payload: PayloadSummary
    tasks: int = 1
    array: bool = False
    attach_key: str = ""
    notebook: str = ""
    parent: str = ""
    submitter: str = ""
    secrets_file: str = ""
    schema: int = SCHEMA


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """The platform's answer to a submission.

    Attributes
    ----------
    platform_ids : tuple of (str, int, int)
        The platform's id with the first array task it holds and how many: one
        entry, several where an array had to be split.
    """

    platform_ids: tuple[tuple[str, int, int], ...]
    cluster: str = ""

    @property
    def platform_id(self) -> str:
        """The first of the platform's ids."""
        return self.platform_ids[0][0]


class End(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an array task ended, where the platform had to tell."""

    state: JobState
    reason: str = ""
    exit_code: int | None = None
    signum: int | None = None
    time: float = 0.0


def user() -> str:
    """Who we are: the login name, else the number (containers run under ids that have no name)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        return str(os.geteuid())


def identity() -> dict[str, Any]:
    """Who submits, and from where."""
    host = os.uname().nodename
    return {
        "host": host,
        "user": user(),
        "created": time.time(),
        "submitter": f"{host}:{os.getpid()}:{start_time(os.getpid())}",
    }
