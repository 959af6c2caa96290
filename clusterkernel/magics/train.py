"""``%%cluster_train``: the cell becomes a job."""

from __future__ import annotations

import argparse
import builtins
import hashlib
import json
import keyword
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from IPython.core.error import UsageError

from clusterkernel import paths, spec
from clusterkernel.errors import ResultFailed, SubmissionError
from clusterkernel.language import say, word
from clusterkernel.magics.commands import Details
from clusterkernel.magics.look import follow, tasks_of
from clusterkernel.magics.notebook import in_kernel, interactive, notebook_path
from clusterkernel.magics.options import Option, field_options
from clusterkernel.magics.values import Values
from clusterkernel.magics.waiting import WaitStopped, interruptible, wait_for
from clusterkernel.states import JobState

if TYPE_CHECKING:
    from clusterkernel.arrays import JobArray
    from clusterkernel.jobs import Job
    from clusterkernel.magics.extension import ClusterKernel
    from clusterkernel.payload import Artefact
    from clusterkernel.spec import JobSpec

__all__ = [
    "DETAILS",
    "finish",
    "follow_up",
    "known_fields",
    "names_of",
    "spec_of",
    "train",
]

# How long to look for a platform that says no at once.
_REFUSAL: Final = 2.0
# Flags that take one name.
_NAMES_LIKE: Final = {"--as": "job"}

_EXAMPLES: Final = (
    "%%cluster_train -o total\ntotal = sum(range(1_000_000))",
    "%%cluster_train --backend slurm --gpus-per-node h100:8 --time 4h -o model\nmodel = train(data)",
    "%%cluster_train --profile h100 --nodes 2 --launcher torchrun --as run\nmain()",
)
# All three run as they are, on any machine.
_RUNNABLE: Final = """\
Put one of these over a cell:

%%cluster_train -o total
total = sum(range(1_000_000))

%%cluster_train --time 10m --name wave -o history
import math
import clusterkernel as ck
history = []
for step in range(20):
    history.append(math.exp(-step / 5))
    ck.log(step=step, loss=history[-1])

%%cluster_train --dry-run --tasks-per-node 2 --time 4h
print("sends nothing: shows what would be sent")

%%cluster_train? lists all options."""


def _options() -> tuple[Option, ...]:
    """The magic's flags: those of the spec and its own."""
    cell = "the cell"
    own = (
        Option(
            ("-i", "--in"),
            "inputs",
            "Names whose values travel, at most 1 GiB together; by itself all that the cell reads. "
            "Functions, classes and modules that it reads travel all the same.",
            Values.NAMES,
            "NAMES",
            "words",
            cell,
        ),
        Option(
            ("-o", "--out"),
            "out",
            "Names that are bound here afterwards, up to 256 MB together; %cluster_bind takes more.",
            Values.NAMES,
            "NAMES",
            "words",
            cell,
        ),
        Option(("--as",), "as_name", "Name under which the Job is bound here.", Values.NAMES, "NAME", group=cell),
        Option(("--axolotl",), "axolotl", "The cell is an axolotl configuration (YAML).", Values.NONE, group=cell),
        Option(
            ("--wait",), "wait", "Wait for the end; an interrupt stops the wait, not the job.", Values.NONE, group=cell
        ),
        Option(
            ("--again",), "again", "Send it anew, even where a job of the same cell lives.", Values.NONE, group=cell
        ),
        Option(
            ("--dry-run",),
            "dry_run",
            "Show what would be sent, with all names and sizes, and send nothing.",
            Values.NONE,
            group=cell,
        ),
        Option(("--profile",), "profile", "Saved profile to start from.", Values.PROFILE, "h100", group="the run"),
    )
    return own + field_options()


def train(kernel: ClusterKernel, args: argparse.Namespace, cell: str | None) -> Job | JobArray | None:
    """Send the cell, or attach to the job that runs it already."""
    if cell is None or not cell.strip():
        print(_RUNNABLE)
        return None
    inputs = None if args.inputs is None else names_of(args.inputs, "-i")
    out = names_of(args.out or (), "-o")
    as_name = names_of([args.as_name], "--as")[0] if args.as_name is not None else ""
    wanted = spec_of(vars(args), args.profile)
    if args.axolotl:
        from clusterkernel.payload import axolotl

        wanted = axolotl.with_launcher(wanted)
    artefact = _artefact(kernel, args, cell, wanted, inputs, out)
    if args.axolotl:
        from clusterkernel.backends import registry

        if not registry.get(wanted.backend).capabilities.shared_files:
            wanted = axolotl.with_side_files(wanted, artefact.source)
    if wanted.environment.files:
        from clusterkernel.payload import taken

        artefact = taken.with_files(artefact, wanted.environment)
    if args.dry_run:
        print(_dry_run(wanted, artefact))
        return None
    key = _attach_key(kernel, cell, wanted, inputs, out)
    from clusterkernel import submission

    with submission.attaching(key):
        made = None if args.again else _attached(kernel, key, artefact)
        if made is None:
            made = submission.submit(wanted, artefact, attach_key=key, notebook=notebook_path(kernel.shell))
            for note in artefact.notes:
                print(say("Note: {note}", note=note))
    return follow_up(kernel, made, as_name=as_name, wait=args.wait)


def follow_up(kernel: ClusterKernel, made: Job | JobArray, *, as_name: str = "", wait: bool = False) -> Job | JobArray:
    """What comes after a submission: its names, its card, and an immediate no."""
    jobs = tasks_of([made])
    interrupted = None
    try:
        settle(jobs[0])
    except WaitStopped as error:
        interrupted = error  # the job is there all the same
    if len(jobs) == 1:
        kernel.deliveries.expect(jobs[0], made.record.payload.bind)
    if as_name:
        kernel.shell.user_ns[as_name] = made
    if made.done():
        kernel.deliveries.collect()
    with interruptible(jobs):
        kernel.cards.show(made)
        if interrupted is not None:
            raise interrupted
        if wait:
            if len(jobs) == 1 and not in_kernel(kernel.shell):
                follow(jobs[0], "both", 0, 0)  # a terminal has no card that could show it
            wait_for(jobs)
    if wait:
        finish(kernel, jobs)
    return made


def finish(kernel: ClusterKernel, jobs: Sequence[Job]) -> None:
    """Take the names of jobs that have ended, show their last cards, and raise where one ended badly."""
    kernel.deliveries.collect()
    kernel.cards.flush()
    for job in jobs:
        if (error := job.exception()) is not None:
            raise error
        _check_bound(job)


def _check_bound(job: Job) -> None:
    """Say at once that a name which was asked for will not come."""
    outputs = job.summary(tail=0).outputs
    for name in job.record.payload.bind:
        why = outputs[name].error if name in outputs else "it was never set"
        if why:
            raise ResultFailed(
                f"{name} of job {job.id} does not come back: {why}.",
                job_id=job.id,
                hint=f"The rest is there: %cluster_status {job.id}.",
            )


def names_of(words: Sequence[str], flag: str) -> tuple[str, ...]:
    """The names in a flag's words, without repetition."""
    names = [name for word in words for name in word.replace(",", " ").split()]
    if not names and words and flag != "-i":  # `-i ""` takes no value along
        raise UsageError(f"{flag}: no name is given. Write {flag} model, or leave it out.")
    for name in names:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"{flag}: {name!r} is not a name. Write {flag} {_NAMES_LIKE.get(flag, 'model,history')}.")
        if flag != "-i" and hasattr(builtins, name):
            raise UsageError(
                f"{flag}: {name} is a builtin of Python, which every cell would lose. Give it another name."
            )
    return tuple(dict.fromkeys(names))


def spec_of(given: Mapping[str, Any], profile: str | None, base: JobSpec | None = None) -> JobSpec:
    """The spec of the flags in `given`, on top of a profile."""
    from clusterkernel import fields, profiles

    flags = {name: value for name, value in given.items() if value is not None and name in known_fields()}
    if base is not None and profile is None:
        return fields.build(flags, base=base)
    start = paths.working_folder()
    layer = profiles.load(profile, start=start) if profile is not None else profiles.default(start=start)
    origins = {name: origin for name, origin in layer.origins.items() if name not in flags}
    return fields.build(fields.merge(layer.values, flags), base=base, origins=origins)


def known_fields() -> set[str]:
    """What a flag may set in the spec."""
    from clusterkernel import fields

    return {*fields.FIELDS, *fields.PSEUDO}


def _artefact(
    kernel: ClusterKernel,
    args: argparse.Namespace,
    cell: str,
    wanted: JobSpec,
    inputs: tuple[str, ...] | None,
    out: tuple[str, ...],
) -> Artefact:
    shell = kernel.shell
    if args.axolotl:
        if inputs is not None or out:
            raise UsageError("--axolotl takes neither -i nor -o: its cell is a configuration and holds no names.")
        from clusterkernel.payload import axolotl

        return axolotl.build(cell, launcher=wanted.launcher)
    from clusterkernel.magics.reach import reach
    from clusterkernel.payload import cell as cells

    if (error := kernel.guard.missing([*reach(cell, shell.user_ns), *(inputs or ())])) is not None:
        raise error
    return cells.build(
        cell,
        shell.user_ns,
        inputs=inputs,
        bind=out,
        filename=f"Cell In[{len(shell.user_ns.get('In', ())) - 1}]",
        first_line=2,
        modules_root=paths.working_folder(),
    )


def _attach_key(
    kernel: ClusterKernel, cell: str, wanted: JobSpec, inputs: tuple[str, ...] | None, out: tuple[str, ...]
) -> str:
    where = notebook_path(kernel.shell) or str(paths.working_folder())
    parts = [where, cell, spec.to_json(wanted).decode(), inputs, out]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _attached(kernel: ClusterKernel, key: str, artefact: Artefact) -> Job | JobArray | None:
    """The job that this cell attaches to."""
    from clusterkernel import submission

    job = submission.find_attachable(key)
    if job is None:
        return None
    before = job.record.payload.inputs
    now = artefact.inputs_digest
    other = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    unsure = sorted(name for name in now if now[name] is None and before.get(name) is None)
    if (other or unsure) and not interactive(kernel.shell):
        return None  # nobody is there to read the line below
    if other and job.state.terminal:
        return None  # it is asked for something else now
    moment = time.strftime("%H:%M:%S", time.localtime(job.record.created))
    if other:
        does = say("has other values of: {names} ({state})", names=", ".join(other), state=job.state)
    elif job.state.terminal:
        does = say("did this, and nothing has used what it made")
    else:
        does = say("does this already ({state})", state=job.state)
    text = say("Attached to job {id}, sent at {moment}, which {does};", id=job.id, moment=moment, does=does)
    print(f"{text} {say('--again sends it anew.')}")
    if unsure:
        print(say("Whether these are the same values cannot be told: {names}.", names=", ".join(unsure)))
    return job


def settle(job: Job) -> None:
    """See whether the platform refuses at once, so that Run All stops here.

    Raises
    ------
    SubmissionError
        It does.
    """
    moved = threading.Event()

    def tell(_: Job) -> None:
        moved.set()

    job.add_state_callback(tell)
    end = time.monotonic() + _REFUSAL
    try:
        with interruptible([job]):
            while job.state is JobState.SUBMITTING and (left := end - time.monotonic()) > 0:
                moved.wait(min(left, 0.1))
                moved.clear()
    finally:
        job.remove_state_callback(tell)
    if job.state.terminal and (why := job.folder.refused()):
        raise SubmissionError(f"Job {job.id}: {why}")


def _dry_run(wanted: JobSpec, artefact: Artefact) -> str:
    from clusterkernel import checks, submission
    from clusterkernel.executor import plan
    from clusterkernel.render import format_size

    made = plan(submission.complete(wanted, title=artefact.title, sending=False), artefact)
    rows = [("Backend", wanted.backend), ("Counts", spec.describe(wanted))]
    if artefact.captured:
        total = format_size(sum(item.size for item in artefact.captured))
        rows.append(("Travels", say("{size} in all", size=total)))
        width = max(len(item.name) for item in artefact.captured)
        for item in sorted(artefact.captured, key=lambda item: -item.size):
            rows.append(("", f"{item.name:<{width}}  {format_size(item.size):>8}  {item.kind}  {item.why}".rstrip()))
    else:
        rows.append(("Travels", say("no names of this notebook")))
    saved = [name for name in artefact.outputs if name not in artefact.bind]
    rows.append(("Bound", ", ".join(artefact.bind) or say("nothing (see -o)")))
    if saved:
        rows.append(("Saved", ", ".join(saved)))
    rows += [("Note", note) for note in (*made.notes, *artefact.notes)]
    rows += [("Advice", f"{item.message} {item.fix}") for item in checks.of_payload(wanted, artefact.files)]
    lines = [f"{word(name) + ':' * bool(name):<9} {text}" for name, text in rows]
    return "\n".join([say("Nothing was sent."), "", *lines, "", made.text.rstrip()])


DETAILS: Final = {"train": Details(_EXAMPLES, _options(), train)}
