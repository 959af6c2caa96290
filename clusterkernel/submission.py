"""Making jobs and finding them again."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterkernel import arrays, fields, index, lookup, paths, patience, secretstore, spec, views, watcher
from clusterkernel.backends import registry
from clusterkernel.errors import BackendUnavailable, ClusterKernelError, SpecError, UnknownJobError
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot, default_root
from clusterkernel.jobs import Job, of_folder
from clusterkernel.ledger import Ledger
from clusterkernel.records import JobRecord, PayloadSummary, identity
from clusterkernel.spec import JobSpec
from clusterkernel.states import JobState
from clusterkernel.submitter import Submitter
from clusterkernel.views import JobView

if TYPE_CHECKING:
    from clusterkernel.payload import Artefact

__all__ = ["attaching", "complete", "find_attachable", "rerun", "submit", "summaries"]

# Making a job takes this long at most, where a large value is captured.
_ATTACH_PATIENCE: Final = 60.0
# For a platform to remove what a job left there.
_CLEAR_PATIENCE: Final = 60.0


def complete(wanted: JobSpec, *, title: str = "", sending: bool = True) -> JobSpec:
    """The spec with what follows from where we are: the working folder and a name.

    What is only to be looked at (`sending` is False) may be for a platform that
    is not here.

    The backend refuses here what it surely refuses.
    """
    environment = wanted.environment
    here = paths.working_folder()
    workdir = str(here / paths.expand(environment.workdir, "--workdir")) if environment.workdir else str(here)
    environment = msgspec.structs.replace(environment, workdir=workdir)
    name = wanted.name or re.sub(r"[^\w.-]+", "-", title).strip("-.")[:40] or "job"
    wanted = msgspec.structs.replace(wanted, environment=environment, name=name)
    capabilities = registry.get(wanted.backend).capabilities
    if wanted.max_cost is not None and not capabilities.prices:
        raise SpecError(
            f"--max-cost = {wanted.max_cost:g}, but {wanted.backend} has no prices.",
            field="--max-cost",
            hint="Leave it out, and set --time.",
        )
    secretstore.refuse_in_script(wanted)
    secretstore.require(environment.secrets, environment=capabilities.keeps_secrets)
    try:
        registry.get(wanted.backend).check(wanted)
    except BackendUnavailable:
        if sending:
            raise
    return wanted


def submit(
    wanted: JobSpec,
    artefact: Artefact,
    *,
    tasks: int | None = None,
    attach_key: str = "",
    notebook: str = "",
    parent: str = "",
    root: JobRoot | None = None,
) -> Job | arrays.JobArray:
    """Make a job and send it. Returns at once; the sending goes on in a thread.

    Parameters
    ----------
    wanted : JobSpec
        What it needs.
    artefact : Artefact
        What it runs.
    tasks : int, optional
        Array tasks; without it the job is no array.
    attach_key, notebook, parent : str
        Kept in the record.
    root : JobRoot, optional
        Where its folder goes.

    Raises
    ------
    SpecError, BackendUnavailable, JobRootError
        Before anything is sent.
    """
    if tasks is not None:
        wanted = msgspec.structs.replace(wanted, array=spec.Array(size=tasks))
    from clusterkernel.payload import clear

    wanted = complete(wanted, title=artefact.title)
    clear.refuse_files(artefact.files)
    summary = PayloadSummary(
        kind=artefact.kind,
        title=artefact.title,
        source=artefact.source,
        outputs=tuple(artefact.outputs),
        bind=tuple(artefact.bind),
        inputs=dict(artefact.inputs_digest),
        sizes={captured.name: captured.size for captured in artefact.captured},
        changed=dict(artefact.changed),
    )

    def make(job_id: str, key: str) -> JobRecord:
        return JobRecord(
            id=job_id,
            key=key,
            name=wanted.name or "job",
            spec=wanted,
            payload=summary,
            tasks=tasks or 1,
            array=tasks is not None,
            attach_key=attach_key,
            notebook=notebook,
            parent=parent,
            secrets_file=str(secretstore.store_file()) if wanted.environment.secrets else "",
            **identity(),
        )

    folder = (root or _root()).create(make, artefact.write)
    return _send(folder)


@functools.cache
def _root_at(path: Path) -> JobRoot:
    # Kept, since it remembers the last number.
    return JobRoot(path)


def _root() -> JobRoot:
    return _root_at(default_root())


@functools.cache
def _submitter() -> Submitter:
    return Submitter()


# Its thread does not survive a fork.
os.register_at_fork(after_in_child=_submitter.cache_clear)


def _send(folder: JobFolder) -> Job | arrays.JobArray:
    made = arrays.JobArray(folder) if folder.record.array else of_folder(folder)
    _submitter().submit(folder)
    return made


def rerun(
    old: Job | arrays.JobArray, changes: Mapping[str, Any], wanted: Mapping[str, object]
) -> Job | arrays.JobArray:
    """Send a job's payload again, with other parameters or another spec; of a task of an array, that task alone."""
    from clusterkernel import payload

    record = old.record
    new_spec = fields.build(wanted, base=msgspec.structs.replace(record.spec, array=None))
    # What Python itself keeps beside modules is not taken along.
    old.folder.verify(*(path for path in old.folder.payload.rglob("*") if "__pycache__" not in path.parts))
    task = old.task if record.array and isinstance(old, Job) else None
    artefact = payload.reload(old.folder.payload, record.payload, changes, task=task)
    if "files" in wanted:
        from clusterkernel.payload import taken

        artefact = taken.with_files(artefact, new_spec.environment)
    same = not changes and not wanted and task is None
    made = submit(
        new_spec,
        artefact,
        tasks=record.tasks if task is None and record.array else None if task is None else 1,
        attach_key=record.attach_key if same else "",
        notebook=record.notebook,
        parent=old.id,
    )
    return made if task is None or isinstance(made, Job) else made[0]


@contextlib.contextmanager
def attaching(attach_key: str, root: JobRoot | None = None) -> Iterator[None]:
    """Keep other kernels of this host from making a job of the same cell between `find_attachable` and `submit`."""
    root = root or _root()
    with contextlib.closing(Ledger(root.path)) as ledger:
        # Few locks for all keys: their files stay. A holder that was stopped must not keep a person from sending.
        with ledger.turn(f"attach-{attach_key[:1]}", patience=_ATTACH_PATIENCE):
            yield


def find_attachable(attach_key: str, root: JobRoot | None = None) -> Job | arrays.JobArray | None:
    """The newest job of the same cell, source and spec that lives, or that did well and was never delivered."""
    root = root or _root()
    with contextlib.closing(Ledger(root.path)) as ledger:
        index.sync(root, ledger)
        same = ledger.same(attach_key)
    for job_id in same:
        try:
            found = lookup.job(job_id, root=root)
        except (ClusterKernelError, OSError):
            continue  # damaged: it must not keep the cell from running
        if not found.state.terminal or (found.state is JobState.SUCCEEDED and not found.folder.delivered()):
            return found
        return None
    return None


def summaries(root: JobRoot | None = None, *, settle: float = 1.0) -> list[JobView]:
    """All jobs, newest last; ended ones from the ledger where it has them.

    Parameters
    ----------
    root : JobRoot, optional
        Where they lie.
    settle : float
        Seconds to wait at most for the platform's word on live jobs that this
        process did not watch before.

    Returns
    -------
    list of JobView
        One that cannot be read has no backend and says why in its reason.
    """
    root = root or _root()
    with contextlib.closing(Ledger(root.path)) as ledger:
        known = index.sync(root, ledger)
        kept = {job: views.of_bytes(summary) for job, summary in known.items()}
        found: dict[str, Job | arrays.JobArray] = {}
        for job in [job for job, view in kept.items() if view is None]:
            try:
                found[job] = lookup.job(job, root=root)
            except (ClusterKernelError, OSError) as error:
                kept[job] = _unreadable(root, job, error)
        silent = watcher.watcher(root).settle([job for job in found if not found[job].state.terminal], settle)
        for job, one in found.items():
            try:
                kept[job] = view = one.summary()
            except (ClusterKernelError, OSError) as error:
                kept[job] = _unreadable(root, job, error)
                continue
            if view.backend in silent and not view.reason:
                kept[job] = msgspec.structs.replace(view, reason=f"{view.backend} has not answered yet.")
            if one.state.terminal:
                ledger.end(job, msgspec.json.encode(msgspec.structs.replace(view, tail="")))
    return [view for _, view in sorted(kept.items(), key=lambda item: int(item[0])) if view is not None]


def _unreadable(root: JobRoot, job_id: str, error: Exception) -> JobView | None:
    """What stands in a list for a job that cannot be read: it must hide no other. None where it is gone."""
    folder = root.path / job_id
    if not JobFolder(folder).is_there():
        return None
    return JobView(id=job_id, name="", state=JobState.LOST, backend="", reason=str(error), folder=str(folder))


def remove(job_id: str, root: JobRoot | None = None) -> Sequence[str]:
    """Delete an ended job's folder, and what it left on its platform.

    Returns
    -------
    sequence of str
        What was removed on the platform.

    Raises
    ------
    BackendError
        That cannot be removed: the folder, which knows of it, is kept.
    """
    root = root or _root()
    folder = root.open(job_id)
    found = lookup.job(job_id, root=root)
    if not found.state.terminal:
        raise UnknownJobError(f"Job {job_id} is {found.state}.", hint=f"%cluster_cancel {job_id} ends it first.")
    removed: Sequence[str] = ()
    backend = folder.record.spec.backend
    clear = getattr(registry.get(backend), "clear", None)
    if clear is not None:
        try:
            removed = patience.within(_CLEAR_PATIENCE, lambda: clear(folder))
        except TimeoutError:
            raise BackendUnavailable(f"{backend} does not answer within {_CLEAR_PATIENCE:g} s.") from None
    root.remove(folder)
    with contextlib.closing(Ledger(root.path)) as ledger:
        ledger.forget(job_id)
    return removed
