"""The Modal stand-in itself: it fails loudly, and hears only who knows the token."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from modal_proto.api_grpc import ModalClientBase

from .clusters import modal_apps, modal_calls, modal_store
from .clusters.modal import ModalServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModalServer]:
    made = ModalServer(tmp_path_factory.mktemp("stand-in"))
    yield made
    made.stop()


def client(server: ModalServer, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run some lines under the real client."""
    return subprocess.run(
        [sys.executable, "-c", f"import modal\n{code}"],
        env={"PATH": "/usr/bin:/bin", "NO_PROXY": "127.0.0.1", **server.env, **env},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_it_listens_on_the_loopback_device_only(server: ModalServer) -> None:
    port = urlsplit(server.env["MODAL_SERVER_URL"]).port
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert [place for place in listening if place.endswith(f":{port:04X}")] != []
    assert all(place.startswith("0100007F:") for place in listening if place.endswith(f":{port:04X}"))


def test_a_call_that_it_does_not_know_fails_loudly(server: ModalServer) -> None:
    done = client(server, "modal.Queue.from_name('q', create_if_missing=True).hydrate()")
    assert done.returncode != 0
    assert "does not know QueueGetOrCreate" in done.stderr
    assert "QueueGetOrCreate" in server.unknown()


def test_another_token_is_not_heard(server: ModalServer) -> None:
    line = "modal.Dict.from_name('d', create_if_missing=True).hydrate()"
    assert client(server, line).returncode == 0
    done = client(server, line, MODAL_TOKEN_SECRET="as-wrong")
    assert "AuthError" in done.stderr
    assert client(server, line, MODAL_TOKEN_ID="", MODAL_TOKEN_SECRET="").returncode != 0


def test_each_call_that_it_knows_cites_a_fact_or_a_document() -> None:
    handlers = {
        name: value.__doc__ or ""
        for part in (modal_apps.Apps, modal_calls.Calls, modal_store.Store)
        for name, value in vars(part).items()
        if name in ModalClientBase.__abstractmethods__
    }
    assert len(handlers) > 40
    source = re.compile(r"facts, (section|pitfall)|\[[0-9]+\]|the client's `|guide|the protocol")
    assert [name for name, doc in handlers.items() if not source.search(doc)] == []


def test_only_the_first_of_two_puts_wins(server: ModalServer) -> None:
    code = (
        "d = modal.Dict.from_name('race', create_if_missing=True)\n"
        "print(d.put('k', 1, skip_if_exists=True), d.put('k', 2, skip_if_exists=True), d.get('k'))"
    )
    assert client(server, code).stdout.split() == ["True", "False", "1"]
