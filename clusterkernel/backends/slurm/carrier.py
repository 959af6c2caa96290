"""submitit, as far as it carries our jobs: it sends the script and reads the id.

submitit is imported with the first submission (0.1 s). What is overridden here
are private methods of its: a test looks at them over the versions we allow.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["Refused", "Sent", "executor_class", "send"]


class Sent(msgspec.Struct, frozen=True):
    """What sbatch answered: the id, the cluster where it names one, and all that it said."""

    job: str
    cluster: str
    said: str


class Refused(Exception):
    """sbatch did not answer with an id.

    Parameters
    ----------
    said : str
        Everything that it printed.
    code : int
        Its exit code.
    """

    def __init__(self, said: str, code: int) -> None:
        super().__init__(said)
        self.said = said
        self.code = code


@functools.cache
def executor_class() -> type[Any]:
    """The one subclass of submitit's `SlurmExecutor`, made when it is first needed."""
    from submitit.core.utils import FailedSubmissionError
    from submitit.slurm.slurm import SlurmExecutor, SlurmJob

    class CarriedJob(SlurmJob[Any]):  # type: ignore[misc, unused-ignore]
        """A job that submitit's own watcher does not follow: we do."""

        def _register_in_watcher(self) -> None:
            pass

    class ScriptExecutor(SlurmExecutor):  # type: ignore[misc, unused-ignore]
        """Sends a text of ours, with a supervisor of ours in it.

        Its own throttle, time-out signal, requeue handling and wckey take no part.
        """

        job_class = CarriedJob

        def __init__(
            self,
            folder: str,
            launch: Sequence[str],
            compose: Callable[[Sequence[str]], str],
            argv: Sequence[str],
        ) -> None:
            super().__init__(folder)
            self._throttling = 0.0
            self._launch = launch
            self._compose = compose
            self._argv = list(argv)
            self.said = ""

        @property
        def _submitit_command_str(self) -> str:
            return shlex.join(self._launch)

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            return self._compose(shlex.split(command))

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return self._argv  # it names our own copy, which stays

        def _get_job_id_from_submission_command(self, string: bytes | str) -> str:  # type: ignore[override, unused-ignore]
            self.said = string if isinstance(string, str) else string.decode("utf-8", "replace")
            match = _SUBMITTED.search(self.said)
            if match is None:
                raise FailedSubmissionError(self.said)
            return match[1]

        def carry(self) -> str:
            """Send it.

            Returns
            -------
            str
                The platform's id.
            """
            return str(self._submit_command(self._submitit_command_str).job_id)

    return ScriptExecutor


_SUBMITTED = re.compile(r"^Submitted batch job (\d+)(?: on cluster (\S+))?\s*$", re.MULTILINE)


def send(launch: Sequence[str], compose: Callable[[Sequence[str]], str], argv: Sequence[str]) -> Sent:
    """Send one script.

    Parameters
    ----------
    launch : sequence of str
        The supervisor's command line.
    compose : callable
        Gives the script's text for it, and has written it to where `argv` finds it.
    argv : sequence of str
        The command that submits. Its errors come on standard output.

    Raises
    ------
    Refused
        No id came back.
    """
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    # submitit's own copy of the text: on this host's disk, and gone afterwards.
    with tempfile.TemporaryDirectory(prefix="clusterkernel-") as folder:
        executor = executor_class()(folder, launch, compose, argv)
        try:
            job = executor.carry()
        except FailedJobError as error:
            cause = error.__cause__
            if not isinstance(cause, subprocess.CalledProcessError):
                raise
            raise Refused(str(cause.output or cause.stderr or ""), cause.returncode) from None
        except FailedSubmissionError as error:
            raise Refused(str(error), 0) from None
    match = _SUBMITTED.search(executor.said)
    return Sent(job, (match[2] or "") if match else "", executor.said)
