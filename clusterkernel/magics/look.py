"""The magics that show something: jobs, cards, output, metrics, the cluster."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from IPython.core.error import UsageError

from clusterkernel import logs as output
from clusterkernel.errors import nearest
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


def one_job(word: str) -> Job | JobArray:
    """The job with this id."""
    from clusterkernel.lookup import job

    return job(word)


def jobs_of(words: Sequence[str]) -> list[Job | JobArray]:
    """The jobs with these ids; commas may stand between them."""
    return [one_job(word) for text in words for word in text.replace(",", " ").split()]


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
    if word is None:
        return default
    if not word.isdigit():
        raise UsageError(f"{flag} = {word!r} is not a whole number. Write {flag} {default}.")
    return int(word)


def jobs(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_jobs``."""
    from clusterkernel import frames, submission

    word = (args.state or "").upper()
    if word and word not in JobState.__members__:
        raise UsageError(f"--state = {args.state!r} is not a state. {nearest(word, JobState.__members__)}")
    views = [view for view in submission.summaries() if not word or view.state is JobState[word]]
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
        print("No job lives. %cluster_jobs lists those that ended.")
        return
    now = time.time()
    html = render.table_html(views, title="Jobs that live", now=now)
    publish({"text/plain": render.table_text(views, now=now), "text/html": html})


def logs(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_logs``."""
    stream = "stderr" if args.stderr else "both"
    rank = number(args.rank, "--rank", 0)
    lines = number(args.lines, "-n", _LINES)
    job = single(one_job(args.ID), "%cluster_logs")
    if args.follow:
        follow(job, stream, rank, lines)
        return
    text = job.logs(lines or None, stream=stream, rank=rank)
    if text:
        print(text)
    else:
        print(f"Job {job.id} ({job.state}) printed nothing{' to stderr' if args.stderr else ''} so far.")
    if lines and (note := _left_out(text, lines, output.size(job.out(rank), stream), asked=args.lines is not None)):
        print(f"{note} All of it lies in {job.out(rank)}; %cluster_logs {job.id} -n 0 prints it.")


def _left_out(text: str, lines: int, size: int, *, asked: bool) -> str:
    """What a person should know of a log of `size` bytes that was shown in part."""
    from clusterkernel.render import format_size

    shown = text.count("\n") + 1
    if size > output.TAIL_BYTES and (shown < lines or len(text) > output.TAIL_BYTES // 2):
        return f"This is the end of {format_size(size)}."
    return f"These are the last {lines} lines." if shown >= lines and not asked else ""


def follow(job: Job, stream: str, rank: int, lines: int) -> None:
    """Print on this thread until the job ends."""
    budget, skipped, at = float(_BURST), 0, time.monotonic()
    with interruptible([job]):
        for chunk in job.follow(stream, rank, tail=lines * 200 if lines else None):
            now = time.monotonic()
            budget, at = min(_BURST, budget + (now - at) * _RATE), now
            if len(chunk) > budget:
                skipped += len(chunk)
                continue
            if skipped:
                print(f"\n[{skipped} characters were left out; the whole output lies in {job.folder.path}]")
                skipped = 0
            budget -= len(chunk)
            sys.stdout.write(chunk)
            sys.stdout.flush()
    if skipped:
        print(f"\n[{skipped} characters were left out; the whole output lies in {job.folder.path}]")
    print(f"Job {job.id}: {job.state}{': ' * bool(job.reason)}{job.reason}")


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
        ("%cluster_jobs", "%cluster_jobs --all --state FAILED"),
        (
            Option(("-a", "--all"), "all", "All jobs there are.", Values.NONE),
            Option(("--state",), "state", "Only those in this state.", Values.STATE, "RUNNING"),
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
        ),
        logs,
    ),
    "metrics": Details(("%cluster_metrics 12",), (ONE,), metrics),
    "queue": Details(("%cluster_queue",), (BACKEND,), queue),
    "nodes": Details(("%cluster_nodes",), (BACKEND,), nodes),
    "accounting": Details(("%cluster_accounting",), (BACKEND,), accounting),
}
