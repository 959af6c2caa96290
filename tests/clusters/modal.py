"""Pytest fixtures of the Modal stand-in, and how a test talks to it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ModalServer", "modal_server"]

REPOSITORY = Path(__file__).parents[2]


class ModalServer:
    """A stand-in that runs, in a process of its own.

    Parameters
    ----------
    folder : Path
        What it stores, its containers' files, and the trace of its calls.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clusters.modal_server", str(folder)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            pytest.fail("The Modal stand-in did not start: see the output above.", pytrace=False)
        about = json.loads(line)
        self._control = about.pop("control")
        self.env = {
            "MODAL_SERVER_URL": about["url"],
            "MODAL_TOKEN_ID": about["token_id"],
            "MODAL_TOKEN_SECRET": about["token_secret"],
            "MODAL_CONFIG_PATH": "/dev/null",
        }

    def ask(self, **wanted: Any) -> dict[str, Any]:
        """Ask for a fault, and what the server has (see `modal_server.ModalServer._control`)."""
        request = urllib.request.Request(
            self._control, json.dumps(wanted).encode(), {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def fail(self, *rules: dict[str, Any]) -> None:
        """Let calls fail as these rules say; without any, let them do well."""
        self.ask(rules=list(rules))

    def calls(self) -> list[str]:
        """The calls that came so far."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def unknown(self) -> list[str]:
        """The calls that it does not know."""
        path = self.folder / "unknown"
        return path.read_text().splitlines() if path.exists() else []

    def crashes(self) -> int:
        """How many containers ended before they took an input."""
        return int(self.ask()["crashes"])

    def stop(self) -> None:
        """End it and its containers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="session")
def _modal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    server = ModalServer(tmp_path_factory.mktemp("modal-server"))
    yield server
    server.stop()


@pytest.fixture
def modal_server(_modal_server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModalServer]:
    """The stand-in that all tests of a worker share; a call that it did not know fails the test."""
    for name, value in _modal_server.env.items():
        monkeypatch.setenv(name, value)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    before = len(_modal_server.unknown())
    yield _modal_server
    _modal_server.fail()
    assert _modal_server.unknown()[before:] == []
