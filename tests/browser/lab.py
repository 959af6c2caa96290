"""A real JupyterLab in a real Chromium, driven as a person drives it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Page, expect, sync_playwright

CEILING = 60_000  # milliseconds, Playwright's unit
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """Debian's browser; Playwright's own cannot be fetched everywhere."""
    found = shutil.which("chromium")
    if found is None:
        pytest.fail("No chromium here. Install it: apt-get install chromium", pytrace=False)
    return found


class Server:
    """One JupyterLab server of the test's own."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.token = secrets.token_hex(16)
        config = Path(env["JUPYTER_CONFIG_DIR"]) / "labconfig"
        config.mkdir(parents=True, exist_ok=True)
        quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
        (config / "default_setting_overrides.json").write_text(json.dumps(quiet))
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--port=0"),
            *(f"--IdentityProvider.token={self.token}", f"--ServerApp.root_dir={folder}"),
            *("--LabApp.expose_app_in_browser=True", "--ServerApp.allow_root=True"),
        ]
        self.log = folder / "lab.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)
        self.url = self._address(Path(env["JUPYTER_RUNTIME_DIR"]))

    def _address(self, runtime: Path) -> str:
        """What the server wrote down once it listened."""
        path = runtime / f"jpserver-{self.process.pid}.json"
        while self.process.poll() is None:
            try:
                return str(json.loads(path.read_text())["url"])
            except (FileNotFoundError, json.JSONDecodeError):
                pass
        pytest.fail(f"JupyterLab did not start: {self.log.read_text()[-2000:]}", pytrace=False)

    def stop(self) -> None:
        """End it and its kernels."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Notebook:
    """A notebook that is open in a page."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def execute(self, command: str) -> None:
        """One of JupyterLab's own commands, as its menus run them."""
        self.page.evaluate("command => { void window.jupyterapp.commands.execute(command); }", command)

    def run_all(self) -> None:
        """Run all cells, and wait until the kernel is idle again."""
        before = self.page.evaluate(_EXECUTIONS)
        self.execute("notebook:run-all-cells")
        self.page.wait_for_function(f"before => ({_EXECUTIONS}) !== before && ({_IDLE})", arg=before, timeout=CEILING)

    def expect_running(self, cell: int) -> None:
        """Wait until the kernel is at a cell, and those before it are done."""
        prompts = f"{_PANEL}.content.widgets.map(w => w.promptNode?.textContent || '')"
        states = f"{_PANEL}.content.widgets.map(w => w.model.executionState)"
        busy = f"{_PANEL}.sessionContext.session?.kernel?.status === 'busy'"
        self.page.wait_for_function(
            f"cell => ({busy}) && ({prompts}).slice(0, cell).every(text => !text.includes('*'))"
            f" && ({states})[cell] === 'running'",
            arg=cell,
            timeout=CEILING,
        )

    def output(self, cell: int) -> str:
        """A cell's output as text."""
        area = self.page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".jp-Cell-outputArea")
        return area.inner_text()

    def expect_output(self, cell: int, text: str) -> None:
        """Wait until a cell's output holds a text."""
        area = self.page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".jp-Cell-outputArea")
        expect(area).to_contain_text(text, timeout=CEILING)


_PANEL = "window.jupyterapp.shell.currentWidget"
# Execution counts of all cells: another text once something ran.
_EXECUTIONS = f"JSON.stringify({_PANEL}.content.widgets.map(w => [w.promptNode?.textContent, w.model.executionCount]))"
_IDLE = (
    f"{_PANEL}.sessionContext.session?.kernel?.status === 'idle'"
    f" && {_PANEL}.content.widgets.every(w => w.model.executionState !== 'running')"
    f" && {_PANEL}.content.widgets.every(w => !(w.promptNode?.textContent || '').includes('*'))"
)


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """A notebook of code cells, none of which has run."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=list(_FLAGS))
        try:
            yield running
        finally:
            running.close()


def open_notebook(page: Page, server: Server, name: str) -> Notebook:
    """Open a notebook by its address, and wait for its kernel."""
    page.goto(f"{server.url}lab/tree/{name}?token={server.token}&reset", timeout=CEILING)
    page.wait_for_function(
        f"window.jupyterapp && {_PANEL}?.sessionContext?.isReady && {_IDLE}", timeout=CEILING, polling=100
    )
    return Notebook(page)


def kill(pid: int) -> None:
    """End a process as a crash does."""
    os.kill(pid, signal.SIGKILL)
