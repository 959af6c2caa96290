"""Job folders, and processes that work on them, for tests below the backends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from clusterkernel import fields, spec
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, PayloadSummary, identity
from clusterkernel.runtime import events

__all__ = ["CEILING", "NASTY", "Forked", "as_nobody", "job", "python", "record", "records", "runtime", "until"]

# How long an event may take on a busy machine before the test has failed.
CEILING = 60.0
# What a folder may be called, and what careless code makes of it.
NASTY = [
    "a b",
    'it\'s "quoted"',
    "50%u %j %%",
    "two\nlines",
    "üñï-日本-🚀",
    "; touch owned; $(touch owned) `touch owned`",
    "-rf",
    "back\\slash",
]


def record(job_id: str, key: str, *, tasks: int | None = None, **wanted: Any) -> JobRecord:
    """A record of a command job; `wanted` are fields of the spec as people write them."""
    built = fields.build(wanted)
    if tasks is not None:
        built = msgspec.structs.replace(built, array=spec.Array(size=tasks))
    return JobRecord(
        id=job_id,
        key=key,
        name="try",
        spec=built,
        payload=PayloadSummary(kind="command", title="try"),
        tasks=tasks or 1,
        array=tasks is not None,
        **identity(),
    )


def job(root: JobRoot, *argv: str, steps: list[dict[str, Any]] | None = None, **wanted: Any) -> JobFolder:
    """A job folder whose payload is a command (`argv`, else `steps`)."""
    body: dict[str, Any] = {"kind": "command", "title": "try"}
    body.update({"steps": steps} if steps else {"argv": list(argv)})

    def payload(folder: Path) -> None:
        (folder / "payload.json").write_bytes(msgspec.json.encode(body))

    return root.create(lambda job_id, key: record(job_id, key, **wanted), payload)


def python(code: str, *arguments: str, **about: Any) -> subprocess.Popen[str]:
    """A Python of its own that runs `code`; it can be written to and read from."""
    about = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, **about}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], **about)


def until(true: Callable[[], Any], what: str = "it") -> Any:
    """Wait for an event that nothing tells us of: look often, with a ceiling."""
    deadline = time.monotonic() + CEILING
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what} did not come within {CEILING:g} s"
        time.sleep(0.01)
    return found


class Forked:
    """A fork of this process that does one thing.

    Parameters
    ----------
    call : callable
        What it does.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        read_end, write_end = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child does nothing but the call
            self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(read_end)
                os.write(write_end, str(call()).encode())
            except BaseException as error:
                os.write(write_end, repr(error).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        self._pipe = os.fdopen(read_end)

    def said(self) -> str:
        """What the call gave, as text, once it is through."""
        with self._pipe as pipe:
            text = pipe.read()
        os.waitpid(self.pid, 0)
        return text

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)
        self.said()


def as_nobody(call: Callable[[], object]) -> str:
    """What `call` gives, as text, in a process without root's rights."""

    def drop() -> object:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return call()

    return Forked(drop).said()


def runtime(*arguments: str, constants: Mapping[str, float] = {}, **about: Any) -> subprocess.Popen[str]:
    """A part of the runtime as a job starts it; `constants` are the supervisor's, so that a test need not wait."""
    code = (
        "import json, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from ckruntime import cli, supervisor\n"
        "vars(supervisor).update(json.loads(sys.argv[2]))\n"
        "cli.main(sys.argv[3:])\n"
    )
    where = str(JobRoot().runtime())
    environment = {**os.environ, "SLURM_JOB_ID": "77", **about.pop("env", {})}
    about = {"stderr": subprocess.PIPE, "env": environment, **about}
    return python(code, where, msgspec.json.encode(dict(constants)).decode(), *arguments, **about)


def records(
    folder: JobFolder, kind: str = "", *, task: int = 0, rank: int = 0, attempt: int = 0
) -> list[dict[str, Any]]:
    """What a process's supervisor wrote down, of one kind where it is named."""
    found = events.read(str(folder.events(attempt, task, rank)))
    return [record for record in found if kind in ("", record["kind"])]
