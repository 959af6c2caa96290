"""The Modal backend: what the rest of the package sees of this folder."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any, ClassVar, Final

from clusterkernel import patience
from clusterkernel.backends.base import Availability, Capabilities, Check, Observation, Plan
from clusterkernel.backends.modal import app, checks, rates, submit
from clusterkernel.backends.modal import client as modal_client
from clusterkernel.backends.modal.poll import Poller
from clusterkernel.errors import BackendError, BackendUnavailable
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, PayloadSummary, Submission
from clusterkernel.spec import JobSpec

__all__ = ["ModalBackend"]

_AT_ONCE: Final = 8
# A question about many jobs is answered without those that take longer: large results come in the background.
_PATIENCE: Final = 20.0
_DOCTOR_PATIENCE: Final = 20.0
# A plan is wanted at once, and list prices are not bad.
_RATES_PATIENCE: Final = 2.0


class ModalBackend:
    """Modal, with the token that the person's client has."""

    name: ClassVar[str] = "modal"
    capabilities: ClassVar[Capabilities] = Capabilities(
        shared_files=False, requeue=True, verdict=True, prices=True, keeps_secrets=True, poll_every=1.0
    )

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        """Have no threads yet: they do not survive a fork."""
        self._pollers: dict[str, Poller] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    @property
    def lane(self) -> str:
        """Names the server and account that are asked: kernels with the same ones share the answers."""
        told = [os.environ.get(name, "") for name in ("MODAL_SERVER_URL", "MODAL_TOKEN_ID", "MODAL_PROFILE")]
        return f"modal-{hashlib.sha256('|'.join(told).encode()).hexdigest()[:8]}"

    def available(self) -> Availability:
        """Whether the client and a token are here; asks nobody."""
        return modal_client.available()

    def check(self, spec: JobSpec) -> None:
        """Refuse what Modal surely refuses or cannot mean: its client checks little.

        Raises
        ------
        SpecError
            A field.
        BackendUnavailable
            There is no client, or no token.
        """
        checks.check(spec)
        here = self.available()
        if not here.ok:
            raise BackendUnavailable(f"Modal cannot be used here: {here.detail}.", hint=here.fix)

    def plan(self, spec: JobSpec, folder: JobFolder | None = None, *, launch: str = "") -> Plan:
        """The app that `submit` deploys."""
        if folder is None:
            return self.plan_of(spec, "cell", "", ())
        checks.check(spec)
        text = submit.text(folder, str(JobRoot(folder.path.parent).runtime()))
        return Plan(text=text, language="python", notes=checks.notes(spec))

    def plan_of(self, spec: JobSpec, kind: str, title: str, steps: Sequence[Mapping[str, Any]]) -> Plan:
        """The app for a payload that is not written yet: a first step may be a function of its own."""
        rates.ask(_RATES_PATIENCE)
        checks.check(spec)
        record = _stand_in(spec, PayloadSummary(kind=kind, title=title))
        text = app.text(record, "RUNTIME", staged=app.is_staged(record, steps))
        return Plan(text=text, language="python", notes=checks.notes(spec))

    def submit(self, folder: JobFolder) -> Submission:
        """Send the job, or what of it is not sent yet (see `submit.submit`)."""
        checks.check(folder.record.spec)
        return submit.submit(folder)

    def find(self, folder: JobFolder) -> Submission | None:
        """The calls that have claimed the job."""
        return submit.find(folder)

    def withdraw(self, folder: JobFolder, task: int) -> str:
        """Take the right to run a task, where the job folder's own claims are not seen."""
        return submit.withdraw(folder, task)

    def clear(self, folder: JobFolder) -> Sequence[str]:
        """Remove at Modal what an ended job left there; what that was."""
        return submit.clear(folder)

    def poll(self, folders: Sequence[JobFolder]) -> Mapping[str, Sequence[Observation]]:
        """Bring back what the jobs wrote, and how they are. A job that takes long is left out until it is done."""
        modal_client.connect()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="clusterkernel-modal")
            wanted = [folder for folder in folders if str(folder.path) not in self._busy]
            self._busy.update(str(folder.path) for folder in wanted)
            started = {folder.id: self._pool.submit(self._ask, folder) for folder in wanted}
        done, _ = wait_for(started.values(), timeout=_PATIENCE)
        answers, wrong = {}, None
        for job, future in started.items():
            if future in done:
                try:
                    answers[job] = future.result()
                except (BackendError, OSError) as error:
                    wrong = error
        if wrong is not None and not answers:
            raise wrong
        return answers

    def _ask(self, folder: JobFolder) -> Sequence[Observation]:
        path = str(folder.path)
        try:
            with self._lock:
                poller = self._pollers.setdefault(path, Poller(folder))
            done = True  # where it fails, too: the next one has a connection of its own
            try:
                seen, done = poller.poll()
            finally:
                if done:
                    with self._lock:
                        self._pollers.pop(path, None)
            return seen
        finally:
            with self._lock:
                self._busy.discard(path)

    def cancel(self, folder: JobFolder, tasks: Sequence[int] | None = None) -> None:
        """Ask Modal to end the job, or these array tasks of it.

        Raises
        ------
        BackendError
            Modal refused, or did not answer.
        """
        submit.cancel(folder, tasks)

    def doctor(self) -> Sequence[Check]:
        """Client, token, and whether Modal answers."""
        here = self.available()
        checks_ = [Check("Modal's client and token", here.ok, here.detail, here.fix)]
        if here.ok:
            try:
                version = patience.within(_DOCTOR_PATIENCE, _hello)
                checks_.append(Check("Modal answers", True, f"modal {version}"))
            except TimeoutError:
                checks_.append(Check("Modal answers", False, f"not within {_DOCTOR_PATIENCE:g} s", "Try again."))
            except BackendError as error:
                checks_.append(Check("Modal answers", False, error.message, error.hint))
        return checks_


def _hello() -> str:
    with modal_client.speaking("Modal was asked"):
        modal_client.connect().hello()
    return str(modal_client.library().__version__)


def _stand_in(spec: JobSpec, payload: PayloadSummary) -> JobRecord:
    """A record for a job that is only shown."""
    return JobRecord(
        id="N",
        key="KEY",
        name=spec.name or "job",
        created=0.0,
        host="",
        user="",
        spec=spec,
        payload=payload,
        tasks=spec.array.size if spec.array else 1,
        array=spec.array is not None,
    )
