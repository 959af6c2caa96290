"""What a backend is: the one seam between a job and a platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from clusterkernel.records import Submission
from clusterkernel.spec import JobSpec
from clusterkernel.states import JobState

if TYPE_CHECKING:
    from clusterkernel.jobfolder import JobFolder

__all__ = ["Availability", "Backend", "Capabilities", "Check", "Observation", "Plan", "Submission"]


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a platform can do, so that nobody asks by name.

    Attributes
    ----------
    fence : bool
        A second copy of a job is turned away before user code.
    shared_files : bool
        The job writes into our job folder; else its records travel in the log stream.
    arrays, cancel, requeue, accounting : bool
        Whether the platform knows these.
    verdict : bool
        The platform tells why a job was ended from outside (a limit, a cancel, a node).
    prices : bool
        It has prices, so that a run's cost can be limited.
    keeps_secrets : bool
        It is given the values when the job is sent, and keeps them for it: they may come from the notebook's
        environment, too.
    poll_every : float
        Seconds between two questions, over all kernels of a user on a host.
    """

    fence: bool = True
    shared_files: bool = True
    arrays: bool = True
    cancel: bool = True
    requeue: bool = False
    accounting: bool = False
    verdict: bool = True
    prices: bool = False
    keeps_secrets: bool = False
    poll_every: float = 5.0


class Availability(msgspec.Struct, frozen=True):
    """Whether a backend can be used here: one line for a person, and the mend."""

    ok: bool
    detail: str
    fix: str = ""


class Check(msgspec.Struct, frozen=True):
    """One line of the doctor."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be sent.

    Attributes
    ----------
    text : str
        The script, manifest or app.
    language : str
        For highlighting: ``bash``, ``yaml``, ``python``.
    notes : tuple of str
        What a person should know of it, in full sentences.
    """

    text: str
    language: str = "bash"
    notes: tuple[str, ...] = ()


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What the platform says of one array task (0 where there is no array).

    `state` is its own view: that of a job whose code failed is FAILED or DIED
    as far as the platform can tell. ``None`` means that it answered well and
    does not know the task; it was asked so many `times` for it.
    """

    task: int
    state: JobState | None
    reason: str = ""
    restarts: int = 0
    node: str = ""
    exit_code: int | None = None
    signum: int | None = None
    times: int = 1


class Backend(Protocol):
    """A platform. Methods may block and are never called on the kernel's thread
    except `available`, `plan` and `check`; they raise `BackendError`.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    def available(self) -> Availability:
        """Whether it can be used here; quick, and never raises."""
        ...

    def check(self, spec: JobSpec) -> None:
        """Refuse, by a `SpecError`, what the platform surely refuses."""
        ...

    def plan(self, spec: JobSpec, folder: JobFolder | None = None, *, launch: str = "") -> Plan:
        """The text that `submit` sends; without a folder a stand-in path shows where it would lie."""
        ...

    def submit(self, folder: JobFolder) -> Submission:
        """Send it. The folder holds all that the job needs before this is called."""
        ...

    def find(self, folder: JobFolder) -> Submission | None:
        """The job's submission whose answer was lost, by the job's key."""
        ...

    def poll(self, folders: Sequence[JobFolder]) -> Mapping[str, Sequence[Observation]]:
        """One batched question about many jobs: our id -> what is known.

        A job left out was not answered for: nothing follows from that.
        """
        ...

    def cancel(self, folder: JobFolder, tasks: Sequence[int] | None = None) -> None:
        """Ask the platform to end the job, or these array tasks of it."""
        ...

    def doctor(self) -> Sequence[Check]:
        """What must hold for this backend to work, looked at one by one."""
        ...
