"""A process that holds jobs as a kernel does, without Jupyter around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.unit.making import CEILING

__all__ = ["MARK", "PlainKernel", "held", "ran", "release"]

#: Seconds; less than a test may take.
HANGS = 200
ROOT = Path(__file__).resolve().parents[2]
# What jobs do: each leaves a mark when it runs, so that one that runs twice is seen, and waits for its gate.
MARK = """
def work(folder, name, value=None, lines=50):
    import os, time
    with open(os.path.join(folder, "ran-" + name), "a") as file:
        file.write("once\\n")
    for number in range(lines):
        print(name, "early", number, flush=True)
    while not os.path.exists(os.path.join(folder, "gate-" + name)):
        time.sleep(0.02)
    for number in range(lines):
        print(name, "late", number)
    if value == "raise":
        raise LookupError(name)
    return value
"""
_START = f"""
import faulthandler, os, signal, sys, threading, time
faulthandler.dump_traceback_later({HANGS}, exit=True)  # one that hangs tells where
sys.path.insert(0, {str(ROOT)!r})
import clusterkernel as ck
from clusterkernel import submission, lookup
folder, backend, fields = os.environ["TEST_FOLDER"], os.environ["TEST_BACKEND"], eval(os.environ["TEST_FIELDS"])

def executor(**more):
    return ck.Executor(backend, **{{**fields, **more}})

def say(*words):
    print(*words, flush=True)
"""


class PlainKernel:
    """One process.

    Parameters
    ----------
    code : str
        What it runs; `executor`, `work`, `folder`, `say` and the package stand there already. Then it waits.
    """

    def __init__(self, code: str, *arguments: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{_START}{MARK}{code}\nsay('ready')\nsys.stdin.read()", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors += list(self.process.stderr)

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._reader.join(10)  # it has said all, and that is being read
        assert line, "".join(self.errors) or f"it ended: {self.process.poll()}"
        return line.rstrip("\n")

    def until(self, line: str) -> list[str]:
        """Read until it prints this line; what came before."""
        before = []
        while (said := self.line()) != line:
            before.append(said)
        return before

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(CEILING)

    def interrupt(self) -> None:
        """Ctrl-C at its terminal: all of its process group get the signal."""
        os.killpg(self.process.pid, signal.SIGINT)

    def close(self) -> None:
        self.kill()
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def held(folder: Path, backend: str, fields: dict[str, Any]) -> dict[str, str]:
    """The environment by which a plain kernel knows where it is."""
    return {"TEST_FOLDER": str(folder), "TEST_BACKEND": backend, "TEST_FIELDS": repr(fields)}


def release(folder: Path, *names: str) -> None:
    """Let jobs go on."""
    for name in names:
        (folder / f"gate-{name}").touch()


def ran(folder: Path, name: str) -> int:
    """How often a job's code was started."""
    try:
        return (folder / f"ran-{name}").read_text().count("once")
    except FileNotFoundError:
        return 0
