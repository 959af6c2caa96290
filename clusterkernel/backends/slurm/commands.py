"""Runs Slurm's commands: the one seam through which this backend touches a cluster.

A transport that runs them on a login node over SSH would take the place of
`LocalTransport`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from clusterkernel.backends.slurm.environment import for_queries, for_sbatch
from clusterkernel.errors import BackendUnavailable

__all__ = ["Answer", "LocalTransport", "Transport", "unreachable"]

# While slurmctld is down its clients block for 19 s and more (MessageTimeout).
QUERY_TIMEOUT: Final = 5.0
_SILENT: Final = (
    "unable to contact slurm",
    "socket timed out",
    "connect failure",
    "connection refused",
    "connection timed out",
    "communication connection",
    "zero bytes were transmitted",
    "resource temporarily unavailable",
    "communications shutdown",
)


class Answer(msgspec.Struct, frozen=True):
    """What a command said.

    Attributes
    ----------
    code : int
        Exit code; negative is the signal that ended it.
    """

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether it did well."""
        return self.code == 0

    @property
    def complaint(self) -> str:
        """The line that says what went wrong."""
        text = self.err.strip() or self.out.strip() or f"exit code {self.code}"
        return text.splitlines()[-1].strip()


def unreachable(text: str) -> bool:
    """Whether a command's complaint means that the controller did not answer."""
    lowered = text.lower()
    return any(phrase in lowered for phrase in _SILENT)


class Transport(Protocol):
    """Where Slurm's commands run."""

    def which(self, name: str) -> str | None:
        """The command's path, or None where there is no such command."""
        ...

    def query(self, *argv: str, timeout: float = QUERY_TIMEOUT, text: str = "") -> Answer:
        """Run a command that asks something; `text` is its standard input.

        Raises
        ------
        BackendUnavailable
            There is no such command, or it did not answer in time.
        """
        ...

    def submission(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in the environment of submissions."""
        ...


class LocalTransport:
    """Runs commands on this machine."""

    def which(self, name: str) -> str | None:
        """The command's path, or None where there is no such command."""
        return shutil.which(name)

    def query(self, *argv: str, timeout: float = QUERY_TIMEOUT, text: str = "") -> Answer:
        """Run a command that asks something; its whole process group ends with the time."""
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE if text else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=for_queries(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            raise BackendUnavailable(
                f"{argv[0]} cannot be run: {error.strerror}.", hint="Open the notebook on a login node of the cluster."
            ) from error
        try:
            out, err = process.communicate(text or None, timeout)
        except subprocess.TimeoutExpired:
            raise BackendUnavailable(f"{argv[0]} did not answer within {timeout:g} s.") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return Answer(argv, process.returncode, out, err)

    def submission(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in the environment of submissions.

        Its error text comes on standard output, since submitit prints what it
        finds on the other, and an interrupt of the notebook does not reach it.
        The values on this line are those of a list without secrets. There is no
        limit of time: sbatch gives up by itself within about two minutes.
        """
        pairs = [f"{name}={value}" for name, value in for_sbatch(os.environ).items()]
        return ["env", "-i", *pairs, "setsid", "sh", "-c", 'exec "$@" 2>&1', "sh", *argv]
