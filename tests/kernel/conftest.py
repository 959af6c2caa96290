"""Real kernels, of both ipykernel lines, driven as a front end drives them."""

from __future__ import annotations

import fcntl
import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

REPOSITORY = Path(__file__).parents[2]
CEILING = 60.0


@pytest.fixture(scope="session")
def ipykernel6() -> str:
    """A folder with ipykernel 6, to stand before the environment's own on a kernel's path."""
    target = Path(sys.prefix) / "ipykernel6"
    with open(Path(sys.prefix) / "ipykernel6.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / "ipykernel").is_dir():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
            subprocess.run([*command, "ipykernel>=6.29,<7", "nest-asyncio"], check=True)
    return str(target)


_GATES: list[Path] = []


def gate(folder: Path) -> tuple[str, Callable[[], None]]:
    """Code that waits, in the job, and what lets it go on; the end of the test does."""
    path = folder / f"gate-{time.monotonic_ns()}"
    _GATES.append(path)
    code = f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.02)"
    return code, path.touch


@dataclass
class Ran:
    """What came of one cell."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.reply["status"] == "ok"

    @property
    def text(self) -> str:
        return "".join(m["content"]["text"] for m in self.messages if m["msg_type"] == "stream")

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] == "display_data"]

    @property
    def result(self) -> str | None:
        found = [m["content"]["data"] for m in self.messages if m["msg_type"] == "execute_result"]
        return found[0]["text/plain"] if found else None

    @property
    def error(self) -> str:
        """What a person sees of the error, without colours."""
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(self.reply.get("traceback", [])))


class Kernel:
    """A running kernel and its front end."""

    def __init__(self, env: dict[str, str], cwd: Path) -> None:
        for attempt in range(3):  # a port that its manager found free may be another's by the time it is taken
            self.manager = KernelManager(kernel_name="python3")
            self.manager.start_kernel(env=env, cwd=str(cwd))
            self.client = self.manager.blocking_client()
            self.client.start_channels()
            try:
                self.client.wait_for_ready(timeout=CEILING)
                break
            except RuntimeError:
                if attempt == 2 or self.manager.is_alive():
                    raise
                self.client.stop_channels()
                self.manager.cleanup_resources()
        self.updates: list[dict[str, Any]] = []
        self.strays: list[dict[str, Any]] = []
        self._early: dict[str, list[dict[str, Any]]] = {}

    def send(self, code: str, *, allow_stdin: bool = True) -> str:
        """Queue a cell, as Run All does."""
        return self.client.execute(code, allow_stdin=allow_stdin, stop_on_error=True)

    def collect(self, message_id: str) -> Ran:
        """Everything up to the end of a queued cell."""
        messages = self._early.pop(message_id, [])
        while True:
            message = self.client.get_iopub_msg(timeout=CEILING)
            mine = message["parent_header"].get("msg_id") == message_id
            if message["msg_type"] == "update_display_data":
                self.updates.append(message)
            elif message["msg_type"] == "status":
                if mine and message["content"]["execution_state"] == "idle":
                    break
            elif mine:
                messages.append(message)
            elif message["msg_type"] != "execute_input":
                self.strays.append(message)
        while True:
            reply = self.client.get_shell_msg(timeout=CEILING)
            if reply["parent_header"].get("msg_id") == message_id:
                return Ran(reply["content"], messages)

    def run(self, code: str, *, allow_stdin: bool = True) -> Ran:
        """Run a cell."""
        return self.collect(self.send(code, allow_stdin=allow_stdin))

    def good(self, code: str) -> Ran:
        """Run a cell that must do well."""
        ran = self.run(code)
        assert ran.ok, "\n".join((ran.text + ran.error).splitlines()[-3:])
        return ran

    def value(self, expression: str) -> Any:
        """The value of an expression, as the kernel's own repr reads back."""
        import ast

        ran = self.good(f"print(repr({expression}))")
        return ast.literal_eval(ran.text.strip().splitlines()[-1])

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Read updates until `condition` holds."""
        end = time.monotonic() + CEILING
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"{what} did not come.")
            try:
                message = self.client.get_iopub_msg(timeout=0.5)
            except queue.Empty:
                continue
            if message["msg_type"] == "update_display_data":
                self.updates.append(message)
            elif message["msg_type"] not in ("status", "execute_input"):
                self.strays.append(message)

    def text_of(self, display: dict[str, Any]) -> str:
        """A display as it now stands, as text."""
        return str([display, *self.updates_of(display)][-1]["data"]["text/plain"])

    def until_text(self, message_id: str, text: str) -> None:
        """Read a running cell's messages until it has printed `text`."""
        self._until_own(message_id, lambda m: m["msg_type"] == "stream" and text in m["content"]["text"])

    def until_display(self, message_id: str) -> None:
        """Read a running cell's messages until it has displayed something."""
        self._until_own(message_id, lambda m: m["msg_type"] == "display_data")

    def _until_own(self, message_id: str, wanted: Callable[[dict[str, Any]], bool]) -> None:
        while True:
            message = self.client.get_iopub_msg(timeout=CEILING)
            if message["msg_type"] == "update_display_data":
                self.updates.append(message)
            elif message["parent_header"].get("msg_id") == message_id:
                assert message["content"].get("execution_state") != "idle", "The cell has ended."
                self._early.setdefault(message_id, []).append(message)
                if wanted(message):
                    return

    def updates_of(self, display: dict[str, Any]) -> list[dict[str, Any]]:
        """The later forms of a display."""
        wanted = display["transient"]["display_id"]
        return [m["content"] for m in self.updates if m["content"]["transient"]["display_id"] == wanted]

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def kill(self) -> None:
        """End it as kill -9 does, and its children not."""
        pid = self.manager.provisioner.pid  # type: ignore[union-attr]
        os.kill(pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(params=["ipykernel7", "ipykernel6"])
def new_kernel(request: pytest.FixtureRequest, own_folders: Path, tmp_path: Path) -> Iterator[Callable[..., Kernel]]:
    """Starts kernels in one folder with one job root; the extension is loaded in each."""
    path = [str(REPOSITORY)]
    if request.param == "ipykernel6":
        path.insert(0, request.getfixturevalue("ipykernel6"))
    kernels: list[Kernel] = []

    def start(load: bool = True, **env: str) -> Kernel:
        kernel = Kernel({**os.environ, "PYTHONPATH": os.pathsep.join(path), **env}, tmp_path)
        kernels.append(kernel)
        if load:
            kernel.good("%load_ext clusterkernel")
        return kernel

    yield start
    for kernel in kernels:
        kernel.close()
    while _GATES:
        _GATES.pop().touch()


@pytest.fixture
def kernel(new_kernel: Callable[..., Kernel]) -> Kernel:
    """A kernel with the extension."""
    return new_kernel()
