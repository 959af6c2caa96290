"""kill -9 of a real kernel, and of a Jupyter server with its kernel, in the midst of everything."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

from clusterkernel import lookup, submission
from clusterkernel.jobroot import JobRoot
from tests.backends.platforms import Platform
from tests.kernel.conftest import CEILING, REPOSITORY, Kernel
from tests.unit.making import until

from .plain import ran, release


def cell(platform: Platform, name: str, value: str, *flags: str) -> str:
    """A cell that leaves a mark, prints, waits for its gate and delivers a name."""
    folder = platform.shared
    limit = "--time 5m" if platform.backend == "slurm" else ""
    return (
        f"%%cluster_train --backend {platform.backend} {limit} -o {name} {' '.join(flags)}\n"
        f"import os, time\n"
        f"with open({str(folder / f'ran-{name}')!r}, 'a') as mark: mark.write('once\\n')\n"
        f"for n in range(100): print('{name} early', n, flush=True)\n"
        f"while not os.path.exists({str(folder / f'gate-{name}')!r}): time.sleep(0.02)\n"
        f"for n in range(100): print('{name} late', n)\n"
        f"{name} = {value}"
    )


def whole(name: str) -> list[str]:
    return [f"{name} {part} {n}" for part in ("early", "late") for n in range(100)]


NAMES = ("ended", "model", "later")


def begun(platform: Platform, run: Callable[[str], Any]) -> list[str]:
    """Three jobs: one that ends while the notebook lives no more, one that runs, one that waits. Gives their cells."""
    pending = ["--sbatch=--begin=now+1hour"] if platform.backend == "slurm" else []
    cells = [
        cell(platform, "ended", "[1]"), cell(platform, "model", "{'w': 2}"), cell(platform, "later", "3", *pending)
    ]  # fmt: skip
    for code in cells:
        run(code)
    until(lambda: ran(platform.shared, "ended") and ran(platform.shared, "model"), "two jobs to run")
    assert JobRoot().ids() == ["1", "2", "3"]
    return cells


def ended_meanwhile(platform: Platform, cluster: Any) -> None:
    """What happens while nobody looks."""
    release(platform.shared, "ended")
    folder = JobRoot().open("1")
    until(lambda: '"outcome"' in folder.events().read_text(), "the end of the first job")
    if cluster is not None:
        cluster.run("scontrol", "update", f"JobId={lookup.job('3').platform_id}", "StartTime=now")


def taken_up(platform: Platform, cells: list[str], run: Callable[[str], Any]) -> None:
    """Run All in the notebook that was opened again: everything is attached to, bound, and whole."""
    for number, code in enumerate(cells, 1):
        text = run(code)
        assert f"Attached to job {number}" in text, text
    assert JobRoot().ids() == ["1", "2", "3"], "nothing is submitted again"
    release(platform.shared, *NAMES)
    run("%cluster_wait 1 2 3")
    assert run("print([ended, model, later])").strip() == "[[1], {'w': 2}, 3]"
    for number, name in enumerate(NAMES, 1):
        assert run(f"%cluster_logs {number} -n 0").split("\n")[:200] == whole(name)
        assert ran(platform.shared, name) == 1
    assert [str(view.state) for view in submission.summaries()] == ["SUCCEEDED"] * 3


def told(greeting: str) -> bool:
    """Whether the line that loading prints says what ended and what lives."""
    return bool(re.search(r"\b1\W+SUCCEEDED\b.*\b2\b.*\b3 live", greeting))


def maybe_cluster(request: pytest.FixtureRequest, platform: Platform) -> Any:
    return request.getfixturevalue("slurm_cluster") if platform.backend == "slurm" else None


@pytest.fixture
def kernels(new_kernel: Callable[..., Kernel], platform: Platform) -> Callable[..., Kernel]:
    """Kernels that work in the platform's folder."""

    def start(**env: str) -> Kernel:
        kernel = new_kernel(load=False, **env)
        kernel.good(f"%cd -q {platform.shared}")
        return kernel

    return start


def test_a_killed_kernel(platform: Platform, kernels: Callable[..., Kernel], request: pytest.FixtureRequest) -> None:
    first = kernels()
    first.good("%load_ext clusterkernel")
    cells = begun(platform, first.good)
    follow = first.send("%cluster_logs 2 -f")
    first.until_text(follow, "model early")
    first.kill()
    ended_meanwhile(platform, maybe_cluster(request, platform))
    second = kernels()
    greeting = second.good("%load_ext clusterkernel").text
    assert told(greeting)
    assert second.value("list(get_ipython().run_line_magic('cluster_jobs', '')['id'])") == ["1", "2", "3"]
    assert second.value("get_ipython().run_line_magic('cluster_jobs', '')['state'].tolist()[:2]") == [
        "SUCCEEDED", "RUNNING"
    ]  # fmt: skip
    taken_up(platform, cells, lambda code: second.good(code).text)
    assert second.strays == []


# -- a Jupyter server ---------------------------------------------------------------------------------------


class Server:
    """A Jupyter server of the test's own, spoken to as JupyterLab does: REST, and a web socket for a kernel."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.token = secrets.token_hex(16)
        self.notebooks: list[Notebook] = []
        command = [
            *(sys.executable, "-m", "jupyter_server", "--no-browser", "--ServerApp.ip=127.0.0.1", "--port=0"),
            *(f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={folder}", "--allow-root"),
        ]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        with open(log, "a") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=env)
        about = Path(os.environ["JUPYTER_RUNTIME_DIR"]) / f"jpserver-{self.process.pid}.json"
        until(lambda: about.exists() and about.read_text().strip().endswith("}"), f"a Jupyter server ({log})")
        self.url = str(json.loads(about.read_text())["url"])
        until(self._answers, "an answer of it")

    def _answers(self) -> bool:
        try:
            return bool(self.ask("status"))
        except urllib.error.URLError:  # it wrote its address down before it listened
            return False

    def ask(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}api/{path}", data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {self.token}", "Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=CEILING) as answer:
            return json.loads(answer.read())

    def open(self, notebook: str) -> Notebook:
        """Open a notebook as a person does: its kernel is started, or the one that is there is taken."""
        body = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
        self.notebooks.append(Notebook(self, self.ask("sessions", body)["kernel"]["id"]))
        return self.notebooks[-1]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(CEILING)


class Notebook:
    """A notebook's kernel, through its server."""

    def __init__(self, server: Server, kernel: str) -> None:
        url = server.url.replace("http", "ws", 1)
        self.socket = websocket.create_connection(
            f"{url}api/kernels/{kernel}/channels?token={server.token}", timeout=CEILING, suppress_origin=True
        )
        self.session = uuid.uuid4().hex
        self.pid = int(self.run("import os; print(os.getpid())"))

    def run(self, code: str) -> str:
        """What a cell prints; it must do well."""
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": "execute_request", "session": self.session, "username": ""}
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        message = {
            "header": {**header, "version": "5.3"}, "parent_header": {}, "metadata": {}, "content": content,
            "channel": "shell", "buffers": [],
        }  # fmt: skip
        self.socket.send(json.dumps(message))
        text, status, idle = "", "", False
        deadline = time.monotonic() + CEILING
        while not (status and idle):
            assert time.monotonic() < deadline, code
            said = json.loads(self.socket.recv())
            if said["parent_header"].get("msg_id") != number:
                continue
            if said["msg_type"] == "stream":
                text += said["content"]["text"]
            elif said["msg_type"] == "execute_reply":
                status = said["content"]["status"]
                assert status == "ok", said["content"]
            elif said["msg_type"] == "status":
                idle = said["content"]["execution_state"] == "idle"
        return text

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def servers(tmp_path: Path, platform: Platform) -> Iterator[Callable[[], Server]]:
    made: list[Server] = []

    def start() -> Server:
        made.append(Server(platform.shared, tmp_path / "server.log"))
        return made[-1]

    yield start
    for server in made:
        for notebook in server.notebooks:
            notebook.socket.close()
        if server.process.poll() is None:
            server.process.terminate()
            server.process.wait(CEILING)


def test_a_killed_server_with_its_kernel(
    platform: Platform, servers: Callable[[], Server], request: pytest.FixtureRequest
) -> None:
    empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (platform.shared / "train.ipynb").write_text(json.dumps(empty))
    server = servers()
    notebook = server.open("train.ipynb")
    notebook.run("%load_ext clusterkernel")
    cells = begun(platform, notebook.run)
    server.kill()
    notebook.kill()
    ended_meanwhile(platform, maybe_cluster(request, platform))
    again = servers().open("train.ipynb")
    assert again.pid != notebook.pid
    assert told(again.run("%load_ext clusterkernel"))
    taken_up(platform, cells, again.run)
