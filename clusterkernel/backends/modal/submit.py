"""Sends jobs to Modal: payload, app, and one call for each array task."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from clusterkernel.backends.modal import app, build, prices, rates
from clusterkernel.backends.modal.client import connect, library, speaking
from clusterkernel.backends.modal.options import parse
from clusterkernel.backends.modal.stream import Stream
from clusterkernel.errors import SpecError, SubmissionError
from clusterkernel.files import write_atomic
from clusterkernel.jobfolder import WITHDRAWN, JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, Submission
from clusterkernel.runtime.modalfiles import VOLUME, pack
from clusterkernel.runtime.modalrun import CLAIMS, claim
from clusterkernel.spec import JobSpec

__all__ = ["cancel", "clear", "find", "refuse_image", "submit", "text", "withdraw"]

#: The most that a payload may have, packed. Ours, not Modal's: what is larger belongs on a volume.
LARGEST: Final = 4 << 30
_AT_ONCE: Final = 8
_RATES_PATIENCE: Final = 10.0
_OLDEST: Final = (3, 10)  # Python that runs us
# ``py3.11``, ``python-3.11``, ``python311``, and the tags of images that are called python: of ``pytorch:2.3.9`` and
# ``-cu12.4`` it is not the Python.
_PYTHON: Final = re.compile(
    r"(?<![a-z])py(?:thon)?[:_-]?(?:(2)\.?(7)|(3)\.([0-9]{1,2})|(3)([5-9]|1[0-9]))(?![0-9])"
    r"|(?:^|/)python:(?:[a-z0-9]+-)*(3)\.([0-9]{1,2})(?![0-9])",
    re.IGNORECASE,
)


def refuse_image(record: JobRecord) -> None:
    """Refuse an image whose name says that it has another Python than the one that pickled the payload.

    Raises
    ------
    SpecError
        It does.
    """
    image = record.spec.environment.image
    if image is None or record.payload.kind == "command":
        return
    told, here = _python(image), sys.version_info[:2]
    if told is not None and told != here:
        there, ours = (".".join(map(str, version)) for version in (told, here))
        other = f", or a kernel with Python {there}" if told >= _OLDEST else ""
        raise SpecError(
            f"--image = {image} has Python {there}, and this notebook {ours}: cells and functions need the same.",
            field="--image",
            hint=f"Choose an image with Python {ours}{other}.",
        )


def _python(image: str) -> tuple[int, int] | None:
    """The Python that an image's name tells of; the tag has the last word."""
    told = None
    for match in _PYTHON.finditer(image):
        major, minor = filter(None, match.groups())
        told = int(major), int(minor)
    return told


def stream_of(folder: JobFolder) -> Stream:
    """The streams of a job."""
    return Stream(folder, connect(), parse(folder.record.spec.extra.get("modal", ())).environment)


def submit(folder: JobFolder) -> Submission:
    """Send what of the job is not sent yet.

    A second copy of a call whose answer got lost is turned away by the claims.

    Raises
    ------
    SubmissionError
        Modal refused it.
    BackendUnavailable
        Modal did not answer: it may have taken the job, or not.
    """
    record = folder.record
    refuse_image(record)
    environment = parse(record.spec.extra.get("modal", ())).environment or None
    known = folder.submission()
    sent = {first: call for call, first, _ in known.platform_ids} if known else {}
    runtime = str(JobRoot(folder.path.parent).runtime())
    rates.ask(_RATES_PATIENCE)
    prices.affordable(record.spec)  # by today's rates it may buy too little
    source = text(folder, runtime)
    path = folder.path / "modal_job.py"
    for file in (path, folder.script):
        write_atomic(file, source.encode("utf-8", "surrogateescape"))
    with speaking("The job could not be sent"):
        client = connect()
        _refuse_missing(record.spec, client, environment)
        _upload(folder, client, environment)
        with app.loaded(path, record.key) as module:
            with build.kept(folder.launch_log()):
                module.app.deploy(client=client, environment_name=environment)
            function = getattr(module, app.FIRST if hasattr(module, app.FIRST) else app.FUNCTION)
            todo = [task for task in range(record.tasks) if task not in sent]
            with ThreadPoolExecutor(min(_AT_ONCE, len(todo) or 1)) as pool:
                calls = list(pool.map(lambda task: str(function.spawn(task).object_id), todo))
    sent.update(zip(todo, calls, strict=True))
    return Submission(platform_ids=tuple((call, task, 1) for task, call in sorted(sent.items())))


def text(folder: JobFolder, runtime: str) -> str:
    """The app of a job; `runtime` is where what runs inside it lies."""
    about = msgspec.json.decode((folder.payload / "payload.json").read_bytes())
    return app.text(folder.record, runtime, staged=app.is_staged(folder.record, about.get("steps") or ()))


def _refuse_missing(spec: JobSpec, client: Any, environment: str | None) -> None:
    """Refuse what the app names and Modal lacks, which the client calls "not found", of whatever kind it is."""
    modal, options = library(), parse(spec.extra.get("modal", ()))
    named = [] if options.create_volumes else [volume.name for volume in spec.storage.volumes]
    make = '--modal "--create-volumes=true" makes it.'
    kinds = [("volume", modal.Volume, dict.fromkeys(named), make)]
    kinds.append(("secret", modal.Secret, dict.fromkeys(options.secret), "`modal secret list` shows those that are."))
    for kind, made, names, hint in kinds:
        for name in names:
            try:
                made.from_name(name, environment_name=environment).hydrate(client)
            except modal.exception.NotFoundError:
                raise SubmissionError(f"Modal has no {kind} {name} in your workspace.", hint=hint) from None


def _upload(folder: JobFolder, client: Any, environment: str | None) -> None:
    volume = library().Volume.from_name(
        VOLUME, create_if_missing=True, version=2, environment_name=environment, client=client
    )
    with tempfile.TemporaryFile() as archive:
        pack(str(folder.path), archive)
        if (size := archive.tell()) > LARGEST:
            raise SubmissionError(
                f"The payload of job {folder.id} has {size >> 20} MiB packed, and {LARGEST >> 20} MiB is the most.",
                hint="Keep the data on a volume: --volumes NAME:/data.",
            )
        archive.seek(0)
        with volume.batch_upload(force=True) as batch:
            batch.put_file(archive, f"/{folder.record.key}/payload.tar.gz")


def find(folder: JobFolder) -> Submission | None:
    """The calls that have claimed the job's tasks. Of one that waits nothing is known: sent again, one of them runs."""
    with speaking(f"Job {folder.id} cannot be looked for"):
        stream = stream_of(folder)
        holders = [(stream.holder(task), task, 1) for task in range(folder.record.tasks)]
    found = tuple(held for held in holders if held[0] not in ("", WITHDRAWN))
    return Submission(platform_ids=found) if found else None


def clear(folder: JobFolder) -> list[str]:
    """Remove at Modal what an ended job left there; what that was."""
    with speaking(f"What job {folder.id} left there cannot be removed"):
        stream = stream_of(folder)
        with stream.progress() as progress:
            removed = [] if progress.cleared else stream.clear(app.app_name(folder.record))
            progress.cleared = True
        return removed


def withdraw(folder: JobFolder, task: int) -> str:
    """Take the right to run a task, so that no copy of it can from now on; who holds it."""
    environment = parse(folder.record.spec.extra.get("modal", ())).environment or None
    with speaking(f"Job {folder.id} cannot be taken back"):
        claims = library().Dict.from_name(
            CLAIMS, create_if_missing=True, environment_name=environment, client=connect()
        )
        return str(claim(claims, f"{folder.record.key}/{task}", WITHDRAWN))


def cancel(folder: JobFolder, tasks: Sequence[int] | None = None) -> None:
    """Tell Modal to end the job, or these array tasks: the calls that we know, and copies that nobody told us of."""
    submission = folder.submission()
    known = submission.platform_ids if submission else ()

    def end(task: int) -> None:
        calls = {call for call, first, _ in known if first == task}
        calls.add(withdraw(folder, task))
        with speaking(f"Job {folder.id} could not be cancelled"):
            for call in calls - {WITHDRAWN}:
                with contextlib.suppress(library().exception.NotFoundError):  # it ended long ago
                    library().FunctionCall.from_id(call, client=connect()).cancel()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(end, range(folder.record.tasks) if tasks is None else tasks))
