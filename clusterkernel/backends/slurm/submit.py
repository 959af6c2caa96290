"""Sends jobs, and finds those whose answer was lost."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from clusterkernel.backends.slurm import carrier, layout
from clusterkernel.backends.slurm.bucket import TokenBucket
from clusterkernel.backends.slurm.commands import Transport, unreachable
from clusterkernel.backends.slurm.environment import which_cluster
from clusterkernel.backends.slurm.poll import owns
from clusterkernel.backends.slurm.records import SEPARATOR, SQUEUE, comment, read_comment, read_squeue
from clusterkernel.backends.slurm.refusals import refusal, waits
from clusterkernel.errors import BackendUnavailable, ClusterKernelError, LimitReached
from clusterkernel.files import write_atomic
from clusterkernel.formats.sbatch import writer as sbatch
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, Submission

__all__ = ["Submitter", "launch_line", "script_text"]

BURST: Final = 100
RATE: Final = 20.0
_WAITS: Final = "Others of yours have to end first."


def launch_line(interpreter: str | None, runtime: str, folder: str) -> list[str]:
    """The supervisor's command line."""
    python = os.path.expanduser(interpreter) if interpreter else sys.executable
    # The file and not the folder, for which Python would import some modules to look into it: 5 ms a task.
    return [python, "-u", f"{runtime}/__main__.py", "supervise", folder]


def script_text(
    record: JobRecord,
    folder: str,
    launch: Sequence[str],
    runtime: str,
    part: sbatch.ArrayPart | None,
    *,
    after: str | None = None,
) -> str:
    """The text of one script; `part` is None where the job is no array."""
    first, count = (part.first, part.count) if part else (0, 1)
    return sbatch.write(
        record.spec,
        job_name=record.name,
        comment=comment(record.key, first, count),
        log_path=sbatch.log_pattern(f"{folder}/batch", array=part is not None),
        events=f"{folder}/events",
        launch=launch,
        meet=[launch[0], runtime, "rendezvous"],
        array=part,
        after=after,
    )


class Submitter:
    """Sends jobs and finds them again; for all threads of a process.

    Parameters
    ----------
    transport : Transport
        Runs the commands.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._bucket = TokenBucket(BURST, RATE)
        self._lock = threading.Lock()
        self._largest: int | None = None

    def submit(self, folder: JobFolder) -> Submission:
        """Send what of the job is not sent yet.

        A job that was tried before is looked for by its key first. An array
        may come back in part, where a limit of submitted jobs was reached: then
        the counts of its ids do not add up to the record's tasks, and another
        call sends the rest.

        Raises
        ------
        SubmissionError
            Slurm refused it.
        LimitReached
            Slurm takes none of it before others have ended.
        BackendUnavailable
            Slurm did not answer: it may have taken the job, or not.
        """
        sent: list[tuple[str, int, int]] = []
        cluster = which_cluster(os.environ)
        if _was_tried(folder) and (found := self.find(folder)) is not None:
            sent, cluster = list(found.platform_ids), found.cluster
        layout.logs(folder).mkdir(mode=0o700, exist_ok=True)
        todo = self._parts(folder.record, sent)
        while todo:
            part = todo.pop(0)
            first = part.first if part else 0
            # Of an array whose tasks must not all run at once, one part follows the other.
            chained = first > 0 and part is not None and part.parallelism is not None
            after = f"afterany:{_id_before(sent, first)}" if chained else None
            try:
                answer = self._send(folder, part, after)
            except carrier.Refused as refused:
                if not waits(refused.said):
                    raise self._error(folder, refused) from None
                if part is not None and part.count > 1:  # less of it may fit
                    todo[:0] = _halves(part)
                    continue
                if sent:
                    break
                error = self._error(folder, refused)
                raise LimitReached(f"{error.message} {_WAITS}") from None
            sent.append((answer.job, first, part.count if part else 1))
            cluster = answer.cluster or cluster
        sent.sort(key=lambda item: item[1])
        return Submission(platform_ids=tuple(sent), cluster=cluster)

    def _parts(self, record: JobRecord, sent: Sequence[tuple[str, int, int]]) -> list[sbatch.ArrayPart | None]:
        """What is not sent yet, in pieces that Slurm takes."""
        if not record.array:
            return [] if sent else [None]
        most, limit = self._max_array(), record.spec.parallelism
        parts: list[sbatch.ArrayPart | None] = []
        start = 0
        for first, count in [*sorted((first, count) for _, first, count in sent), (record.tasks, 0)]:
            parts += [sbatch.ArrayPart(at, min(most, first - at), limit) for at in range(start, first, most)]
            start = max(start, first + count)
        return parts

    def _max_array(self) -> int:
        """The most tasks of one array: an index must be below MaxArraySize."""
        with self._lock:
            if self._largest is None:
                answer = self._transport.query("scontrol", "show", "config")
                if not answer.ok:
                    raise BackendUnavailable(f"Slurm does not answer: {answer.complaint}.", hint="It is tried again.")
                pairs = (line.partition("=") for line in answer.out.splitlines())
                values = {name.strip(): value.strip() for name, _, value in pairs}
                size = values.get("MaxArraySize", "")
                self._largest = max(1, int(size)) if size.isdigit() else 1001  # Slurm's default
            return self._largest

    def _send(self, folder: JobFolder, part: sbatch.ArrayPart | None, after: str | None) -> carrier.Sent:
        record, path = folder.record, layout.script(folder, part.first if part else 0)

        runtime = str(JobRoot(folder.path.parent).runtime())

        def compose(launch: Sequence[str]) -> str:
            text = script_text(record, str(folder.path), launch, runtime, part, after=after)
            write_atomic(path, text.encode("utf-8", "surrogateescape"))
            return ascii(text)  # for submitit's copy, which it writes in the encoding of the locale; ours is sent

        launch = launch_line(record.spec.environment.interpreter, runtime, str(folder.path))
        self._bucket.take()
        sent = carrier.send(launch, compose, self._transport.submission(["sbatch", str(path)]))
        if len(said := sent.said.strip().splitlines()) > 1:  # what the site's plug-ins had to say
            write_atomic(layout.logs(folder) / "sbatch.log", "\n".join([*said, ""]).encode())
        return sent

    def _error(self, folder: JobFolder, refused: carrier.Refused) -> ClusterKernelError:
        said = refused.said.strip()
        # Killed, silent, or content without an id that we can read: it may have sent the job.
        if refused.code <= 0 or unreachable(said):
            line = (
                said.splitlines()[-1].removeprefix("sbatch: error: ").rstrip(".")
                if said
                else "sbatch ended without a word"
            )
            return BackendUnavailable(
                f"Slurm did not answer: {line}.", hint="Whether it took the job is looked up by its key."
            )
        if refused.code == 127 and "sbatch" in said:
            return BackendUnavailable(
                "sbatch is not on PATH.", hint="Open the notebook on a login node of the cluster."
            )
        return refusal(said, folder.record.spec, self._transport)

    # -- looking for what was sent ----------------------------------------------------

    def find(self, folder: JobFolder) -> Submission | None:
        """As `Backend.find`: by the key in the comment, or by the script's path.

        Raises
        ------
        BackendUnavailable
            The controller did not answer: nothing follows.
        """
        answer = self._transport.query("squeue", "-h", "-t", "all", "-u", str(os.geteuid()), "-o", SQUEUE)
        if not answer.ok:
            raise BackendUnavailable(f"Slurm did not answer: {answer.complaint}.", hint="It is asked again.")
        found: dict[str, tuple[int, int]] = {}
        for row in read_squeue(answer.out):
            if (row.comment or row.command) and owns(folder, row):
                held = read_comment(row.comment) or _held(folder, row.command)
                if held is not None:
                    found[row.job] = held[1:]
        if sum(count for _, count in found.values()) < folder.record.tasks:
            found |= self._find_accounted(folder)
        if not found:
            return None
        ids = sorted(((job, *span) for job, span in found.items()), key=lambda item: (item[1], int(item[0])))
        return Submission(platform_ids=tuple(ids), cluster=which_cluster(os.environ))

    def _find_accounted(self, folder: JobFolder) -> dict[str, tuple[int, int]]:
        """In the database, which may lack comments; without one the controller's answer stands."""
        since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(folder.record.created - 3600))
        argv = ["sacct", "-X", "-n", "-P", f"--delimiter={SEPARATOR}", "-S", since, "-u", str(os.geteuid())]
        try:
            answer = self._transport.query(*argv, "-o", "JobID,Comment,SubmitLine", timeout=10.0)
            if not answer.ok and "field" in answer.err.lower():  # before 21.08 there was no SubmitLine
                answer = self._transport.query(*argv, "-o", "JobID,Comment", timeout=10.0)
        except BackendUnavailable:
            return {}
        found: dict[str, tuple[int, int]] = {}
        for line in answer.out.split("\n") if answer.ok else ():
            job, _, rest = line.partition(SEPARATOR)
            note, _, command = rest.partition(SEPARATOR)
            job = job.partition("_")[0]
            held = read_comment(note) or _held(folder, command.removeprefix("sbatch "))
            if job.isdigit() and held is not None and held[0] == folder.record.key:
                found[job] = held[1:]
        return found


def _halves(part: sbatch.ArrayPart) -> list[sbatch.ArrayPart | None]:
    half = part.count // 2
    low = sbatch.ArrayPart(part.first, half, part.parallelism)
    return [low, sbatch.ArrayPart(part.first + half, part.count - half, part.parallelism)]


def _was_tried(folder: JobFolder) -> bool:
    try:
        os.close(os.open(layout.script(folder), os.O_RDONLY))
    except FileNotFoundError:
        return False
    return True


def _id_before(sent: Sequence[tuple[str, int, int]], first: int) -> str:
    return max((item for item in sent if item[1] < first), key=lambda item: item[1])[0]


def _held(folder: JobFolder, command: str) -> tuple[str, int, int] | None:
    """Which tasks the job holds that was started from one of our scripts, by that script's own comment."""
    path = command.strip()
    if not path.startswith(f"{folder.path}/script."):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("#SBATCH --comment="):
                    return read_comment(line.partition("=")[2].strip().strip("'"))
    except OSError:
        return None
    return None
