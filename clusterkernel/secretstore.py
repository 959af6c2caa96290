"""The user's own store of secrets: one file, mode 0600, outside every job folder.

A job is given names; its supervisor reads the values when it starts the
payload. Nothing else of ours writes a value down or passes it on.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from clusterkernel.errors import SpecError, nearest
from clusterkernel.jobfolder import write_atomic

__all__ = ["forget", "names", "require", "save", "store_file"]


def store_file() -> Path:
    """``$CLUSTERKERNEL_SECRETS``, else ``~/.clusterkernel/secrets.json``; the nodes must see it."""
    if given := os.environ.get("CLUSTERKERNEL_SECRETS"):
        return Path(given).expanduser().absolute()
    return Path.home() / ".clusterkernel" / "secrets.json"


def _read() -> dict[str, str]:
    path = store_file()
    try:
        about = os.stat(path)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise SpecError(f"{path} can be read by others.", field="--secrets", hint=f"chmod 600 {path}")
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise SpecError(f"{path} is damaged.", field="--secrets", hint="Remove it and set the secrets again.") from None
    return {str(name): str(value) for name, value in values.items()}


def names() -> list[str]:
    """The names of all secrets."""
    return sorted(_read())


def save(name: str, value: str) -> None:
    """Keep a secret.

    Raises
    ------
    SpecError
        The name is not that of an environment variable, or the value is empty.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise SpecError(f"{name!r} is not a variable's name.", field="--secrets", hint="Write it as HF_TOKEN.")
    if not value or "\0" in value:
        raise SpecError(f"The secret {name} has no value.", field="--secrets", hint="Give it one.")
    values = {**_read(), name: value}
    _write(values)


def forget(name: str) -> bool:
    """Delete a secret. False where there was none."""
    values = _read()
    if values.pop(name, None) is None:
        return False
    _write(values)
    return True


def _write(values: dict[str, str]) -> None:
    path = store_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, json.dumps(values).encode())


def require(wanted: Iterable[str]) -> None:
    """Refuse a job that asks for a secret which the store lacks."""
    known = _read()
    for name in wanted:
        if name not in known:
            raise SpecError(
                f"There is no secret {name}.",
                field="--secrets",
                hint=nearest(name, known) if known else f"%cluster_secret set {name} keeps it.",
            )
