"""Whether a job's containers end before they take it, as where its image lacks what they need.

Modal starts such containers again and again, and the call waits. Some ends it
makes the call's own in time (what the function's file raised, says its
client); of others only the app's log tells. Of those that print nothing
nobody tells: they look as a job does that waits for GPUs, which is all that is
said of it then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from clusterkernel.backends.modal.client import library
from clusterkernel.files import make_private, write_atomic
from clusterkernel.jobfolder import JobFolder

__all__ = ["Startup", "ended"]

# So many containers must have ended, with none that took the job.
_ENOUGH: Final = 3
# Seconds after a container's last line until others go on printing and it surely has ended: it takes the job at once.
_QUIET: Final = 30.0
# Seconds until the log is first looked at, and the longest time between two looks.
_FIRST, _LONGEST = 5.0, 30.0
_ENTRIES: Final = 200
# Seconds after which a person is told that a job waits for long.
_LONG: Final = 300.0
_WAITS: Final = (
    "No container has taken it yet: Modal may have none free of what it asks for, or they end before they say a word. "
    "Modal's page of the app {app} tells which; %cluster_cancel {job} ends it."
)


class Startup:
    """Looks at the log of a job's app while no container has taken the job.

    Parameters
    ----------
    folder : JobFolder
        The job.
    app : str
        Its app's name.
    client : modal.Client
        The connection.
    environment : str, optional
        Modal's environment.
    """

    def __init__(self, folder: JobFolder, app: str, client: Any, environment: str | None) -> None:
        self._folder, self._app, self._client, self._environment = folder, app, client, environment
        self._pause = _FIRST
        now = time.monotonic()
        self._due, self._due_word, self._word = now + self._pause, now + _LONG, ""

    def failed(self) -> str:
        """The last line of containers that ended too early; empty where nothing says that, or it is too soon."""
        if time.monotonic() < self._due:
            return ""
        last, lines = self._log()
        self._pause = min(self._pause * 1.5, _LONGEST)
        self._due = time.monotonic() + self._pause
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return said if ended(last) >= _ENOUGH else ""

    def waits(self, taken: Callable[[], bool]) -> str:
        """What a person should know of a job that is not `taken` by any container; empty where it is too soon."""
        if time.monotonic() >= self._due_word:
            self._due_word = time.monotonic() + _LONGEST
            self._word = "" if taken() else _WAITS.format(app=self._app, job=self._folder.id)
        return self._word

    def keep(self, call: str) -> None:
        """Keep what the containers printed where `Job.logs` looks for it."""
        _, lines = self._log()
        if lines:
            path = self._folder.launch_log(call)
            make_private(path.parent)
            write_atomic(path, "\n".join([*lines, ""]).encode("utf-8", "surrogateescape"))

    def _log(self) -> tuple[dict[str, float], list[str]]:
        """When each container last wrote to the app's log, and that log's last lines."""
        modal = library()
        last: dict[str, float] = {}
        said: list[str] = []
        with contextlib.suppress(modal.exception.NotFoundError):  # the app is stopped
            app = modal.App.lookup(self._app, client=self._client, environment_name=self._environment)
            for entry in app.logs.tail(_ENTRIES):
                last.update((one, entry.timestamp.timestamp()) for one in entry.context_ids if one.startswith("ta-"))
                said.append(entry.message)
        return last, "".join(said).splitlines()


def ended(last: Mapping[str, float]) -> int:
    """How many containers have ended, by when each last wrote: of many that start together all may yet print."""
    return sum(max(last.values()) - when >= _QUIET for when in last.values()) if last else 0
