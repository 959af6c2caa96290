"""The way to Modal's own client, which is imported when it is first needed, never on the kernel's thread."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from clusterkernel.backends.base import Availability
from clusterkernel.errors import BackendUnavailable, LimitReached, SubmissionError

__all__ = ["available", "connect", "library", "speaking", "swallowing_proxy"]

OLDEST: Final = (1, 6)
_INSTALL: Final = "pip install 'clusterkernel[modal]'"
_TOKEN: Final = "Run `modal token new` in a terminal, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET."
_LOOPBACK: Final = {"127.0.0.1", "localhost", "::1"}


def _config() -> Path:
    return Path(os.environ.get("MODAL_CONFIG_PATH") or Path.home() / ".modal.toml")


def _has_token() -> bool:
    """Whether there is something that looks like one; whether it is good, only Modal can say."""
    if os.environ.get("MODAL_TOKEN_ID") and os.environ.get("MODAL_TOKEN_SECRET"):
        return True
    try:
        return "token_id" in _config().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def swallowing_proxy() -> str:
    """The variable of a proxy that would take what is meant for this machine; empty where there is none.

    The client hands even the loopback's address to a proxy, and hangs (measured with 1.6.4).
    """
    host = urlsplit(os.environ.get("MODAL_SERVER_URL", "")).hostname
    if host not in _LOOPBACK or os.environ.get("MODAL_DISABLE_API_PROXY") in ("1", "true"):
        return ""
    around = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    if "*" in around or host in [item.strip() for item in around.split(",")]:
        return ""
    names = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
    return next((name for name in names if os.environ.get(name)), "")


def available() -> Availability:
    """Whether the client, a token and a way to the server are here; imports nothing of the client."""
    if importlib.util.find_spec("modal") is None:
        return Availability(False, "the package modal is not installed", _INSTALL)
    if not _has_token():
        return Availability(False, "no token of Modal's", _TOKEN)
    if proxy := swallowing_proxy():
        host = urlsplit(os.environ["MODAL_SERVER_URL"]).hostname
        return Availability(False, f"{proxy} takes what is meant for {host}", f"Set NO_PROXY={host}.")
    return Availability(True, os.environ.get("MODAL_SERVER_URL") or "Modal")


@functools.cache
def library() -> Any:
    """The module ``modal``.

    Raises
    ------
    BackendUnavailable
        It is not installed, cannot be imported, or is too old.
    """
    ours = "modal" not in sys.modules
    try:
        modal = importlib.import_module("modal")
    except ImportError as error:
        raise BackendUnavailable(f"The package modal cannot be imported: {error}.", hint=_INSTALL) from None
    version = str(getattr(modal, "__version__", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise BackendUnavailable(f"The package modal is {version}, and 1.6 or later is needed.", hint=_INSTALL)
    if ours and "MODAL_LOGLEVEL" not in os.environ:
        # Its warnings, of calls that are tried again, would come from threads, into any cell.
        logging.getLogger("modal-client").setLevel(logging.ERROR)
    return modal


_CLIENTS: dict[tuple[object, ...], Any] = {}


def connect() -> Any:
    """The client for the token and server that hold now; one for each in a process.

    Raises
    ------
    BackendUnavailable
        There is no token.
    """
    modal = library()
    config = modal.config.config
    token, secret = config.get("token_id"), config.get("token_secret")
    if not token or not secret:
        raise BackendUnavailable("There is no token of Modal's.", hint=_TOKEN)
    which = (os.getpid(), config.get("server_url"), token, secret)
    client = _CLIENTS.get(which)
    if client is None or client.is_closed():
        # Not `Client.from_env`, which is the same for a whole process whatever its environment says by now.
        client = _CLIENTS[which] = modal.Client.from_credentials(token, secret)
    return client


@contextlib.contextmanager
def speaking(what: str) -> Iterator[None]:
    """Turn what the client raises into our errors; `what` was tried, as in ``The job could not be sent``."""
    modal = library()
    wrong = modal.exception
    try:
        yield
    except wrong.AuthError as error:
        raise SubmissionError(f"{what}: Modal does not accept the token ({_line(error)}).", hint=_TOKEN) from error
    except wrong.PermissionDeniedError as error:
        raise SubmissionError(f"{what}: {_line(error)}.", hint="Ask the owner of the workspace.") from error
    except wrong.ResourceExhaustedError as error:
        raise LimitReached(f"{what}: {_line(error)}.") from error
    except (wrong.ConnectionError, wrong.ServiceError, wrong.InternalError, wrong.ClientClosed, OSError) as error:
        why = f"{what}: Modal does not answer ({_line(error)})."
        raise BackendUnavailable(why, hint="It is asked again.") from error
    except wrong.Error as error:
        raise SubmissionError(f"{what}: {_line(error)}.") from error


def _line(error: BaseException) -> str:
    """The last line of what the client says, or its name."""
    said = str(error).strip().splitlines()
    return said[-1].rstrip(".") if said else type(error).__name__
