"""How a job on Modal is: what its stream brings, and what its calls say."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from clusterkernel.backends.base import Observation
from clusterkernel.backends.modal import app
from clusterkernel.backends.modal.client import connect, library, speaking
from clusterkernel.backends.modal.options import parse
from clusterkernel.backends.modal.startup import Startup
from clusterkernel.backends.modal.stream import Place, Stream
from clusterkernel.backends.modal.submit import stream_of
from clusterkernel.errors import BackendError
from clusterkernel.jobfolder import WITHDRAWN, JobFolder
from clusterkernel.records import Submission
from clusterkernel.runtime import events
from clusterkernel.runtime.modalrun import part_name
from clusterkernel.states import JobState

__all__ = ["Poller"]

_AT_ONCE: Final = 16
_MEMORY: Final = re.compile(r"\b(oom|out[ -]of[ -]memory|memory (limit|eviction))\b", re.IGNORECASE)
# An entry of a Dict "will expire after 7 days of inactivity" (the client's documentation of Dict).
_FORGOTTEN: Final = "Modal no longer has the call: it keeps results for 7 days."
_UNREAD: Final = "It ended, but Modal no longer has what it wrote: that is kept for 7 days."


class Poller:
    """Asks about one job.

    Parameters
    ----------
    folder : JobFolder
        The job.
    """

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._stream: Stream = stream_of(folder)
        environment = parse(folder.record.spec.extra.get("modal", ())).environment or None
        self._startup = Startup(folder, app.app_name(folder.record), connect(), environment)

    def poll(self) -> tuple[Sequence[Observation], bool]:
        """What is known of each array task, and whether all have ended."""
        submission = self._folder.submission()
        if submission is None:
            return [], False
        calls = {first: call for call, first, _ in reversed(submission.platform_ids)}
        nodes, over = self._folder.record.spec.resources.nodes, len(calls) == self._folder.record.tasks
        with speaking(f"Job {self._folder.id} cannot be asked about"), self._stream.progress() as progress:
            every = {
                task: {name: progress.place(name) for name in map(functools.partial(part_name, task), range(nodes))}
                for task in sorted(calls)
            }
            with ThreadPoolExecutor(min(_AT_ONCE, len(calls))) as pool:
                seen = list(pool.map(lambda task: self._task(task, calls[task], every[task]), every))
            if all(one.state is JobState.QUEUED for one in seen):
                seen = self._untaken(seen, {task: every[task][str(task)] for task in every})
            over = over and all(_ended(parts) or _failed(parts[str(task)]) for task, parts in every.items())
            if over and not progress.cleared:
                progress.cleared = True
                with contextlib.suppress(BackendError, library().exception.Error, OSError):
                    self._stream.clear(app.app_name(self._folder.record))
        return seen, over

    def _task(self, task: int, call: str, parts: Mapping[str, Place]) -> Observation:
        place = parts[str(task)]
        if _failed(place):
            return _told(task, place)
        place.call = place.call or call
        came = self._read(parts, over=bool(place.state))
        if came and not self._folder.holder(task):
            self._hold(task, place, self._stream.holder(task))
        if _ended(parts):
            return Observation(task=task, state=JobState.FINISHING, restarts=place.attempt)
        if place.state:
            return _told(task, place)
        if came:  # it lives
            return Observation(task=task, state=JobState.RUNNING, restarts=place.attempt)
        try:
            said = self._ask(task, place)
        except library().exception.NotFoundError:
            return Observation(task=task, state=None, reason=_FORGOTTEN, restarts=place.attempt)
        if said:
            self._read(parts, over=True)  # what came between the two questions
            if said == JobState.SUCCEEDED.value and len(parts) == 1 and not _ended(parts):
                _note(place, JobState.LOST, _UNREAD)
            return _told(task, place)
        state = JobState.RUNNING if place.begun else JobState.QUEUED
        return Observation(task=task, state=state, restarts=place.attempt)

    def _untaken(self, seen: list[Observation], places: Mapping[int, Place]) -> list[Observation]:
        """A job that no container has taken: it waits, or its containers end before they do."""

        def taken() -> bool:
            return any(self._stream.holder(task) not in ("", WITHDRAWN) for task in places)

        if (said := self._startup.failed()) and not taken():
            return self._give_up(places, said)
        word = self._startup.waits(taken)
        return [msgspec.structs.replace(one, reason=word) for one in seen]

    def _give_up(self, places: Mapping[int, Place], said: str) -> list[Observation]:
        """End a job whose containers end before they take it."""
        for place in places.values():
            _note(place, JobState.LAUNCH_FAILED, f"Its containers end before they take the job: {said[:300]}")
            with contextlib.suppress(library().exception.NotFoundError):
                library().FunctionCall.from_id(place.call, client=connect()).cancel()
        self._startup.keep(next(iter(places.values())).call)
        return [_told(task, place) for task, place in places.items()]

    def _read(self, parts: Mapping[str, Place], *, over: bool) -> bool:
        """Read what came; of several nodes the head's call may end before another has said its last word."""
        (_, head), came = next(iter(parts.items())), False
        for name, place in reversed(list(parts.items())):  # what the others wrote of an attempt before the head goes on
            came |= self._stream.read(name, place, over=over)
        for place in parts.values():
            self._stream.follow(place, head)
        return came

    def _ask(self, task: int, place: Place) -> str:
        """Ask Modal for the call's end, and note it; empty where it goes on."""
        wrong = library().exception
        try:
            value = library().FunctionCall.from_id(place.call, client=connect()).get(timeout=0)
        except wrong.OutputExpiredError:
            _note(place, JobState.LOST, _FORGOTTEN)
        except wrong.FunctionTimeoutError as error:
            _note(place, JobState.TIMED_OUT, f"Modal ended it for its time limit: {_line(error)}")
        except TimeoutError:
            return ""  # the builtin one: it goes on
        except wrong.InternalFailure as error:
            # "lost inputs or worker preemption", says the client of what the server calls so
            _note(place, JobState.NODE_LOST, f"Modal lost its container, or took its machine: {_line(error)}")
        except wrong.RemoteError as error:
            if self._is_cancelled(task):
                _note(place, JobState.CANCELLED, "It was cancelled.")
            else:
                text = f"Modal ended its container: {_line(error)}".rstrip(":. ") + "."
                # The server knows ends for want of memory; of them the client hands on the text alone.
                self._note_end(place, text, JobState.OUT_OF_MEMORY if _MEMORY.search(text) else JobState.DIED)
        except (wrong.AuthError, wrong.ConnectionError, wrong.ServiceError, wrong.InternalError, wrong.ClientClosed):
            raise
        except wrong.NotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 - what the function raised, of whatever type
            self._note_end(place, f"{type(error).__name__}: {_line(error)}", JobState.FAILED)
        else:
            self._returned(task, place, value)
        return place.state

    def _note_end(self, place: Place, reason: str, state: JobState = JobState.DIED) -> None:
        """Note a bad end; of containers that never took the job the log tells the rest."""
        if place.begun:
            _note(place, state, reason)
        else:
            _note(place, JobState.LAUNCH_FAILED, f"Its containers end before they take the job: {reason}")
            self._startup.keep(place.call)

    def _returned(self, task: int, place: Place, value: Any) -> None:
        about = value if isinstance(value, dict) else {}
        holder = about.get("holder")
        if isinstance(then := about.get("next"), str) and holder == place.call:
            # A first step is done, and its container has called what does the rest.
            place.call = then
            self._folder.add_submission(Submission(platform_ids=((then, task, 1),)), first=True)
            if self._is_cancelled(task):
                library().FunctionCall.from_id(then, client=connect()).cancel()
        elif holder == place.call or not isinstance(holder, str):
            _note(place, JobState.SUCCEEDED, "")
        elif holder.startswith("fc-"):
            # Two copies were sent, and this is the one that was turned away.
            self._hold(task, place, holder)
        else:
            _note(place, JobState.CANCELLED, "It was taken back before it started.")

    def _hold(self, task: int, place: Place, holder: str) -> None:
        """Keep which copy of the job runs: the one that is asked about from now on."""
        if holder in ("", WITHDRAWN):
            return
        if holder != place.call:
            self._folder.add_submission(Submission(platform_ids=((holder, task, 1),)), first=True)
            place.call = holder
        events.claim(str(self._folder.path / "claims" / str(task)), holder)

    def _is_cancelled(self, task: int) -> bool:
        asked = self._folder.cancel_request()
        return asked is not None and (not asked or task in asked)


def _failed(place: Place) -> bool:
    """Whether Modal said that the call ended otherwise than by itself."""
    return place.state not in ("", JobState.SUCCEEDED.value)


def _ended(parts: Mapping[str, Place]) -> bool:
    """Whether all that ran has said its last word."""
    return all(place.ended and not place.again for place in parts.values())


def _note(place: Place, state: JobState, reason: str) -> None:
    place.state, place.reason = state.value, reason


def _told(task: int, place: Place) -> Observation:
    return Observation(task=task, state=JobState(place.state), reason=place.reason, restarts=place.attempt)


def _line(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return said[-1][:300] if said else ""
