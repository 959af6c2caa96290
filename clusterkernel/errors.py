"""What can go wrong, as one tree.

::

    ClusterKernelError                       every error of ours: one line, a code, a hint
    ├── SpecError (ValueError)               a field, flag or profile key is wrong
    │   └── UnitError                        a size, duration or GPU request cannot be read
    ├── ProfileError (ValueError)            a profile or its file is wrong
    ├── FormatError (ValueError)             a script, manifest or app cannot be read, or no other platform has its like
    ├── PayloadError                         the cell or function cannot be shipped
    ├── JobRootError (OSError)               the folder of the jobs cannot be used
    ├── UnknownJobError (LookupError)        no job has this id
    │   └── UnreadableJobError               its description is damaged, or of a newer version
    ├── UnknownOutputError (KeyError)        a job saved no such name
    ├── PendingError (NameError)             a name that a job has yet to deliver was used
    ├── BackendError                         the platform said no
    │   ├── BackendUnavailable               it is not here, or does not answer
    │   │   └── LimitReached                 it takes no more jobs at present
    │   └── SubmissionError                  it refused the job
    └── JobError (RuntimeError)              a job ended otherwise than well
        ├── JobFailed                        the user's code raised or exited non-zero
        ├── JobDied                          killed or crashed
        ├── JobOutOfMemory
        ├── JobTimedOut (TimeoutError)
        ├── JobCancelled (concurrent.futures.CancelledError)
        ├── NodeLost
        ├── LaunchFailed                     it never reached the user's code
        ├── ResultFailed                     it ran, but its result could not be brought back
        └── JobLost                          the platform no longer knows it
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "ClusterKernelError",
    "FormatError",
    "JobCancelled",
    "JobDied",
    "JobError",
    "JobFailed",
    "JobLost",
    "JobOutOfMemory",
    "JobRootError",
    "JobTimedOut",
    "LaunchFailed",
    "LimitReached",
    "NodeLost",
    "PayloadError",
    "PendingError",
    "ProfileError",
    "ResultFailed",
    "SpecError",
    "SubmissionError",
    "UnitError",
    "UnknownJobError",
    "UnknownOutputError",
    "UnreadableJobError",
    "nearest",
]


class ClusterKernelError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    message : str
        What was wrong and where, in one line.
    hint : str, optional
        The mend, in one line.
    """

    code = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.__dict__.copy())

    def _render_traceback_(self, *_: object, **__: object) -> list[str]:
        # IPython honours this: a person sees one line, not our frames.
        return [f"{type(self).__name__}: {self}"]


def _rebuild(cls: type[ClusterKernelError], message: str, state: dict[str, object]) -> ClusterKernelError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class SpecError(ClusterKernelError, ValueError):
    """A field, flag or key of a job's description is wrong.

    Parameters
    ----------
    message : str
        What was wrong.
    field : str, optional
        The field as the person wrote it (``--nodes``, ``time``).
    hint : str, optional
        The mend.
    """

    code = "spec"

    def __init__(self, message: str, *, field: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field


class UnitError(SpecError):
    """A size, duration or GPU request cannot be read."""

    code = "unit"


class ProfileError(ClusterKernelError, ValueError):
    """A profile, or the file it should be in, is wrong."""

    code = "profile"


class FormatError(ClusterKernelError, ValueError):
    """A script, manifest or app cannot be read, or holds what no other platform has.

    The message begins with the file and its line: ``train.slurm, line 7: ...``.
    """

    code = "format"


class PayloadError(ClusterKernelError):
    """The cell, function or command cannot be shipped."""

    code = "payload"


class JobRootError(ClusterKernelError, OSError):
    """The folder that holds the job folders cannot be used."""

    code = "job-root"


class UnknownJobError(ClusterKernelError, LookupError):
    """No job has this id."""

    code = "unknown-job"


class UnreadableJobError(UnknownJobError):
    """There is such a job, but what describes it is damaged, or was written by a newer version."""

    code = "unreadable-job"


class UnknownOutputError(ClusterKernelError, KeyError):
    """The job saved no name like this."""

    code = "unknown-output"


class PendingError(ClusterKernelError, NameError):
    """A name that a running job has yet to deliver was used."""

    code = "pending"


class BackendError(ClusterKernelError):
    """The platform said no."""

    code = "backend"


class BackendUnavailable(BackendError):
    """The platform is not here, or does not answer."""

    code = "unavailable"


class LimitReached(BackendUnavailable):
    """The platform takes no more jobs of this user at present."""

    code = "limit"


class SubmissionError(BackendError):
    """The platform refused the job."""

    code = "submission"


class JobError(ClusterKernelError, RuntimeError):
    """A job ended otherwise than well.

    Parameters
    ----------
    message : str
        The reason, in one line.
    job_id : str
        Our id of the job (``12``, ``12_3``).
    log_tail : str
        The last lines that the job printed.
    remote_traceback : str
        The traceback as text, where the user's code raised.
    """

    code = "job"

    def __init__(
        self,
        message: str,
        *,
        job_id: str = "",
        log_tail: str = "",
        remote_traceback: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id
        self.log_tail = log_tail
        self.remote_traceback = remote_traceback

    def _render_traceback_(self, *_: object, **__: object) -> list[str]:
        lines = [f"{type(self).__name__}: {self}"]
        if text := self.remote_traceback or self.log_tail:
            lines += ["", *text.rstrip().splitlines()]
        return lines


class JobFailed(JobError):
    """The user's code raised, or its command exited non-zero."""

    code = "failed"


class JobDied(JobError):
    """The process was killed or crashed."""

    code = "died"


class JobOutOfMemory(JobError):
    """The job used more memory than it had asked for."""

    code = "out-of-memory"


class JobTimedOut(JobError, TimeoutError):
    """The job reached its time limit."""

    code = "timed-out"


class JobCancelled(JobError, concurrent.futures.CancelledError):
    """The job was cancelled."""

    code = "cancelled"


class NodeLost(JobError):
    """A node of the job went down."""

    code = "node-lost"


class LaunchFailed(JobError):
    """The job never reached the user's code."""

    code = "launch-failed"


class ResultFailed(JobError):
    """The code ran to its end, but its result could not be brought back."""

    code = "result-failed"


class JobLost(JobError):
    """The platform no longer knows the job, and it left no outcome."""

    code = "lost"


# Of a value in an error.
_LONGEST = 60


def shown(value: object) -> str:
    """A value as an error names it: text in quotes, cut where it is long; a value's own code may raise."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or lists them all.

    Examples
    --------
    >>> nearest("slrum", ["local", "slurm"])
    'Did you mean slurm?'
    """
    import difflib  # only where something is wrong: it costs 3 ms

    words = sorted(known)
    if close := difflib.get_close_matches(str(word), words, n=1, cutoff=0.6):
        return f"Did you mean {close[0]}?"
    return f"Known: {', '.join(words)}." if words else ""
