"""The magics that show something: jobs, cards, output, metrics, the cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from IPython.core.error import UsageError

from clusterkernel import logs as output
from clusterkernel import units
from clusterkernel.errors import nearest
from clusterkernel.language import say
from clusterkernel.magics.cards import publish
from clusterkernel.magics.commands import Details
from clusterkernel.magics.options import BACKEND, IDS, ONE, Option
from clusterkernel.magics.values import Values
from clusterkernel.magics.waiting import interruptible
from clusterkernel.states import JobState

if TYPE_CHECKING:
    import pandas as pd

    from clusterkernel.arrays import JobArray
    from clusterkernel.jobs import Job
    from clusterkernel.magics.extension import ClusterKernel

__all__ = ["DETAILS", "follow", "jobs_of", "one_job", "single", "tasks_of"]

_RECENT: Final = 20
_LINES: Final = 200
# What a followed log may print: a notebook that gets a million lines a minute stops to answer.
_BURST: Final = 1 << 20
_RATE: Final = 1 << 17
# In these a job that has printed something may print more at any moment.
_GOING: Final = frozenset({JobState.RUNNING, JobState.FINISHING, *(state for state in JobState if state.terminal)})


def one_job(word: str) -> Job | JobArray:
    """The job with this id."""
    from clusterkernel.lookup import job

    return job(word)


def jobs_of(words: Sequence[str]) -> list[Job | JobArray]:
    """The jobs with these ids; commas may stand between them."""
    ids = [word for text in words for word in text.replace(",", " ").split()]
    if not ids:
        raise UsageError("No job is named. Write its number, such as 12; %cluster_jobs lists all.")
    return [one_job(word) for word in ids]


def single(made: Job | JobArray, flag: str) -> Job:
    """The job, where one task has to be named."""
    if isinstance(made, Sequence):
        raise UsageError(f"Job {made.id} is an array of {len(made)}; name one of its tasks: {flag} {made.id}_0")
    return made


def tasks_of(made: Sequence[Job | JobArray]) -> list[Job]:
    """The jobs, with the tasks of each array in its place."""
    return [job for one in made for job in (one if isinstance(one, Sequence) else [one])]


def number(word: str | None, flag: str, default: int) -> int:
    """A count from a flag."""
    return default if word is None else units.parse_count(word, field=flag)


def jobs(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_jobs``."""
    from clusterkernel import frames, submission

    word = (args.state or "").upper()
    if word and word not in JobState.__members__:
        raise UsageError(f"--state = {args.state!r} is not a state. {nearest(word, JobState.__members__)}")
    views = [
        view
        for view in submission.summaries()
        if (not word or view.state is JobState[word]) and (not args.tag or args.tag in view.tags)
    ]
    if not args.all:
        last = {view.id for view in [view for view in views if view.state.terminal][-_RECENT:]}
        views = [view for view in views if not view.state.terminal or view.id in last]
    return frames.jobs_frame(views)


def status(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_status``."""
    from clusterkernel import render, submission

    if args.IDS:
        for job in jobs_of(args.IDS):
            kernel.cards.show(job)
        return
    views = [view for view in submission.summaries() if not view.state.terminal]
    if not views:
        print(say("No job lives. %cluster_jobs lists those that ended."))
        return
    now = time.time()
    html = render.table_html(views, title=say("Jobs that live"), now=now)
    publish({"text/plain": render.table_text(views, now=now), "text/html": html})


def logs(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_logs``."""
    stream = "stderr" if args.stderr else "both"
    rank = number(args.rank, "--rank", 0)
    lines = number(args.lines, "-n", _LINES)
    job = single(one_job(args.ID), "%cluster_logs")
    attempt = None if args.attempt is None else units.parse_count(args.attempt, field="--attempt")
    if args.follow and attempt is not None:
        raise UsageError("--follow and --attempt exclude each other: an earlier attempt has ended.")
    if args.follow:
        follow(job, stream, rank, lines)
        return
    text = job.logs(lines or None, stream=stream, rank=rank, attempt=attempt)
    if text:
        print(text)
    else:
        places = {"id": job.id, "state": job.state}
        match bool(args.stderr), job.state.terminal:
            case True, True:
                print(say("Job {id} ({state}) printed nothing to stderr.", **places))
            case True, False:
                print(say("Job {id} ({state}) printed nothing to stderr so far.", **places))
            case False, True:
                print(say("Job {id} ({state}) printed nothing.", **places))
            case _:
                print(say("Job {id} ({state}) printed nothing so far.", **places))
    out = job.out(rank, attempt)
    if lines and (note := _left_out(text, lines, output.size(out, stream), asked=args.lines is not None)):
        whole = say("All of it lies in {folder}; %cluster_logs {id} -n 0 prints it.", folder=out, id=job.id)
        print(f"{note} {whole}")
    if attempt is None and (last := job.truth.attempt):
        print(say("This is attempt {last}; --attempt shows those before: 0 to {before}.", last=last, before=last - 1))


def _left_out(text: str, lines: int, size: int, *, asked: bool) -> str:
    """What a person should know of a log of `size` bytes that was shown in part."""
    from clusterkernel.render import format_size

    shown = text.count("\n") + 1
    if size > output.TAIL_BYTES and (shown < lines or len(text) > output.TAIL_BYTES // 2):
        return say("This is the end of {size}.", size=format_size(size))
    return say("These are the last {count} lines.", count=lines) if shown >= lines and not asked else ""


def follow(job: Job, stream: str, rank: int, lines: int) -> None:
    """Print on this thread until the job ends; while it waits, where it stands."""
    budget, skipped, at = float(_BURST), 0, time.monotonic()
    begun, before, told = False, "", ""
    with interruptible([job]):
        for chunk in job.follow(stream, rank, tail=lines * 200 if lines else None, pauses=True):
            if not chunk:
                stands = "" if begun and job.state in _GOING else _standing(job)
                if stands == before and stands not in ("", told):  # what holds for a moment only is no news
                    told = stands
                    print(say("{stands}; waiting for its first line, interrupt to stop.", stands=stands), flush=True)
                before = stands
                continue
            begun = True
            now = time.monotonic()
            budget, at = min(_BURST, budget + (now - at) * _RATE), now
            if len(chunk) > budget:
                skipped += len(chunk)
                continue
            if skipped:
                print(_skipped(skipped, job))
                skipped = 0
            budget -= len(chunk)
            sys.stdout.write(chunk)
            sys.stdout.flush()
    if skipped:
        print(_skipped(skipped, job))
    print(say("Job {id}: {state}", id=job.id, state=": ".join(filter(None, [job.state, job.reason]))))


def _standing(job: Job) -> str:
    """The state and its reason, as the beginning of a sentence."""
    state = ": ".join(filter(None, [str(job.state), job.reason.rstrip(".")]))
    return say("Job {id} is {state}", id=job.id, state=state)


def _skipped(count: int, job: Job) -> str:
    return "\n" + say(
        "[{count} characters were left out; the whole output lies in {folder}]", count=count, folder=job.folder.path
    )


def metrics(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_metrics``."""
    return one_job(args.ID).metrics()


def queue(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_queue``."""
    from clusterkernel import tables

    return tables.queue(args.backend)


def nodes(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_nodes``."""
    from clusterkernel import tables

    return tables.nodes(args.backend)


def accounting(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_accounting``."""
    from clusterkernel import tables

    return tables.accounting(args.backend)


DETAILS: Final = {
    "jobs": Details(
        ("%cluster_jobs", "%cluster_jobs --all --state FAILED", "%cluster_jobs --tag sweep-3"),
        (
            Option(("-a", "--all"), "all", "All jobs there are.", Values.NONE),
            Option(("--state",), "state", "Only those in this state.", Values.STATE, "RUNNING"),
            Option(("--tag",), "tag", "Only those that were sent with this tag (--tags).", Values.TEXT, "sweep-3"),
        ),
        jobs,
    ),
    "status": Details(("%cluster_status", "%cluster_status 12"), (IDS,), status),
    "logs": Details(
        ("%cluster_logs 12", "%cluster_logs 12 -f", "%cluster_logs 12 -n 50 --stderr --rank 1"),
        (
            ONE,
            Option(("-f", "--follow"), "follow", "Go on until the job ends; an interrupt stops it.", Values.NONE),
            Option(("-n", "--lines"), "lines", "So many lines from the end; 0 for all.", metavar="200"),
            Option(("--stderr",), "stderr", "Only what went to stderr.", Values.NONE),
            Option(("--rank",), "rank", "Process whose output is shown.", metavar="0"),
            Option(("--attempt",), "attempt", "Start whose output is shown; by itself the last.", metavar="0"),
        ),
        logs,
    ),
    "metrics": Details(("%cluster_metrics 12",), (ONE,), metrics),
    "queue": Details(("%cluster_queue",), (BACKEND,), queue),
    "nodes": Details(("%cluster_nodes",), (BACKEND,), nodes),
    "accounting": Details(("%cluster_accounting",), (BACKEND,), accounting),
}
