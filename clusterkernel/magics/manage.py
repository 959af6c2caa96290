"""The magics that do something: wait, bind, cancel, rerun, clean, and the doctor."""

from __future__ import annotations

import argparse
import ast
import inspect
import keyword
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from IPython.core.error import UsageError

from clusterkernel import units
from clusterkernel.errors import BackendError, BackendUnavailable, ClusterKernelError, nearest
from clusterkernel.language import plural, say
from clusterkernel.magics import train
from clusterkernel.magics.commands import Details
from clusterkernel.magics.look import jobs_of, one_job, single, tasks_of
from clusterkernel.magics.options import IDS, ONE, Option, field_options
from clusterkernel.magics.values import Values
from clusterkernel.magics.waiting import interruptible, wait_for
from clusterkernel.render import format_size

if TYPE_CHECKING:
    from clusterkernel.magics.extension import ClusterKernel
    from clusterkernel.views import JobView

__all__ = ["DETAILS"]


def _some(words: list[str], magic: str) -> list[str]:
    if not words:
        raise UsageError(f"%cluster_{magic} needs a job: %cluster_{magic} 12. %cluster_jobs lists all.")
    return words


def wait(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_wait``."""
    timeout = units.parse_duration(args.timeout, field="--timeout") if args.timeout else None
    made = jobs_of(_some(args.IDS, "wait"))
    jobs = tasks_of(made)
    with interruptible(jobs):
        for job in made:
            kernel.cards.show(job)
        if not wait_for(jobs, timeout=timeout):
            live = ", ".join(f"{job.id} ({job.state})" for job in jobs if not job.done())
            raise ClusterKernelError(f"Still there after {args.timeout}: {live}.", hint="They go on.")
    train.finish(kernel, jobs)


def bind(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_bind``."""
    job = single(one_job(args.ID), "%cluster_bind")
    names = [name for word in args.NAMES for name in word.replace(",", " ").split()]
    if not job.state.terminal:
        raise ClusterKernelError(f"Job {job.id} is {job.state}.", hint=f"%cluster_wait {job.id} waits for it.")
    outputs = job.outputs
    names = names or list(job.record.payload.bind)
    if not names:
        saved = f"Name some that it saved: {', '.join(outputs)}." if outputs else "It saved no others."
        raise UsageError(f"Job {job.id} has no -o names. {saved}")
    view = job.summary()
    for name in names:
        if name not in view.outputs:
            hint = nearest(name, outputs) or f"%cluster_status {job.id} tells how it ended."
            raise ClusterKernelError(f"Job {job.id} saved no {name!r}.", hint=hint)
    values = {name: outputs[name] for name in names}
    kernel.shell.user_ns.update(values)
    job.folder.write_delivered(tuple(names))
    kernel.cards.delivered(job, bound=tuple(names), note="")
    print(say("Bound {names} from job {id}.", names=", ".join(names), id=job.id))


def cancel(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_cancel``."""
    for job in jobs_of(_some(args.IDS, "cancel")):
        if job.state.terminal:
            print(say("Job {id} has ended already: {state}.", id=job.id, state=job.state))
        else:
            try:
                job.cancel()
            except BackendUnavailable as error:  # the request stands; the others are asked all the same
                print(error)
            else:
                print(say("Job {id} is asked to end.", id=job.id))


def rerun(kernel: ClusterKernel, args: argparse.Namespace) -> Any:
    """``%cluster_rerun``."""
    from clusterkernel import submission

    old = one_job(args.ID)
    as_name = train.names_of([args.as_name], "--as")[0] if args.as_name is not None else ""
    wanted = {name: value for name, value in vars(args).items() if value is not None and name in train.known_fields()}
    made = submission.rerun(old, _changes(args.set or []), wanted)
    return train.follow_up(kernel, made, as_name=as_name, wait=bool(args.wait))


def _changes(items: list[str]) -> dict[str, Any]:
    """``lr=1e-4`` as a name and a Python value; what is no literal is text."""
    changes = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.strip() or keyword.iskeyword(name):
            raise UsageError(f"--set {item!r} names no value. Write --set lr=1e-4.")
        try:
            changes[name.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            changes[name.strip()] = text
    return changes


def doctor(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_doctor``."""
    from clusterkernel.backends import registry

    for name in [args.backend] if args.backend else registry.names():
        backend = registry.get(name)
        about = backend.available()
        print(f"{name}: {about.detail}")
        if not about.ok:
            print("  " + (say("Mend: {fix}", fix=about.fix) if about.fix else say("It cannot be used here.")))
            continue
        for check in _checks(backend, args):
            print(f"  {'✓' if check.ok else '✗'} {check.name}: {check.detail}")
            if not check.ok and check.fix:
                print("      " + say("Mend: {fix}", fix=check.fix))


def _checks(backend: Any, args: argparse.Namespace) -> Any:
    """A backend's checks; those that run a job on a node only where they are asked for."""
    if args.deep and "deep" in inspect.signature(backend.doctor).parameters:
        flags = {name: value for name, value in vars(args).items() if name != "backend"}
        return backend.doctor(deep=True, spec=train.spec_of({**flags, "backend": backend.name}, args.profile))
    return backend.doctor()


def clean(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_clean``."""
    from clusterkernel import submission
    from clusterkernel.jobroot import JobRoot

    views = submission.summaries()
    if args.IDS:
        wanted = {job.id for job in jobs_of(args.IDS)}
        views = [view for view in views if view.id in wanted]
        if live := [view.id for view in views if not view.state.terminal]:
            raise ClusterKernelError(f"Job {live[0]} has not ended.", hint=f"%cluster_cancel {live[0]} ends it first.")
    views = [view for view in views if view.state.terminal and view.backend]  # what cannot be read may still run
    if args.older:
        limit = time.time() - units.parse_duration(args.older, field="--older")
        views = [view for view in views if (view.ended or view.created or 0) < limit]
    if not views:
        print(say("There is nothing to delete: no job that ended matches."))
        return
    root = JobRoot()
    sizes = {view.id: root.open(view.id).size() for view in views}
    if args.yes:
        _delete(views, sizes)
        return
    print("\n".join(_listing(views, sizes)))
    total = format_size(sum(sizes.values()))
    print(say("In all {size} in {folder}. Nothing was deleted; add --yes for that.", size=total, folder=root.path))


def _delete(views: list[JobView], sizes: dict[str, int]) -> None:
    """Delete jobs, and say what of them: one whose platform keeps something, and is away, stays."""
    from clusterkernel import submission

    kept: dict[str, BackendError] = {}
    away: dict[str, BackendError] = {}
    removed: dict[str, list[Sequence[str]]] = {}
    for view in views:
        try:
            if view.backend in away:
                raise away[view.backend]
            if what := submission.remove(view.id):
                removed.setdefault(view.backend, []).append(what)
        except BackendError as error:
            kept[view.id] = away[view.backend] = error
    free = format_size(sum(size for job, size in sizes.items() if job not in kept))
    count = len(views) - len(kept)
    if count:
        print(
            plural("Deleted {count} job; {size} are free.", "Deleted {count} jobs; {size} are free.", count, size=free)
        )
    for backend, each in removed.items():
        kinds = ", ".join(dict.fromkeys(kind for what in each for kind in what))
        print(
            plural(
                "Removed from {backend} what {count} job had left there: {kinds}.",
                "Removed from {backend} what {count} jobs had left there: {kinds}.",
                len(each),
                backend=backend,
                kinds=kinds,
            )
        )
    for job, why in kept.items():
        print(say("Job {id} is kept: {why}", id=job, why=why))


def _listing(views: list[JobView], sizes: dict[str, int]) -> list[str]:
    largest = sorted(views, key=lambda view: -sizes[view.id])
    shown = [
        f"{view.id:>6}  {format_size(sizes[view.id]):>8}  {view.state:<14}  {view.name or view.title}"
        for view in largest[:30]
    ]
    rest = largest[30:]
    return shown + ([f"and {len(rest)} smaller ones"] if rest else [])


DETAILS: Final = {
    "wait": Details(
        ("%cluster_wait 12", "%cluster_wait 12 13 --timeout 10m"),
        (IDS, Option(("--timeout",), "timeout", "Longest wait.", metavar="10m")),
        wait,
    ),
    "bind": Details(
        ("%cluster_bind 12", "%cluster_bind 12 model history"),
        (ONE, Option(("NAMES",), "NAMES", "Names that it saved.", Values.JOB_NAMES, "NAME", "words")),
        bind,
    ),
    "cancel": Details(("%cluster_cancel 12", "%cluster_cancel 12_3 13"), (IDS,), cancel),
    "rerun": Details(
        ("%cluster_rerun 12", "%cluster_rerun 12 --set lr=1e-4 --time 8h"),
        (
            ONE,
            Option(
                ("--set",),
                "set",
                "A captured name, keyword argument or axolotl key, changed. May be repeated.",
                metavar="NAME=VALUE",
                many="append",
            ),
            Option(("--as",), "as_name", "Name under which the new Job is bound here.", Values.NAMES, "NAME"),
            Option(("--wait",), "wait", "Wait for the end.", Values.NONE),
            *field_options(),
        ),
        rerun,
    ),
    "doctor": Details(
        ("%cluster_doctor", "%cluster_doctor --backend slurm --deep --partition gpu"),
        (
            Option(("--deep",), "deep", "Also run a job of seconds, which proves folder and Python.", Values.NONE),
            Option(("--profile",), "profile", "Saved profile for that job.", Values.PROFILE, "h100"),
            *field_options(),
        ),
        doctor,
    ),
    "clean": Details(
        ("%cluster_clean", "%cluster_clean --older 30d --yes", "%cluster_clean 12 13 --yes"),
        (
            IDS,
            Option(("--older",), "older", "Only jobs that ended longer ago.", metavar="30d"),
            Option(("--yes",), "yes", "Delete them.", Values.NONE),
        ),
        clean,
    ),
}
