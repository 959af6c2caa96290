"""axolotl's own schema of its configurations, asked of the axolotl that is installed.

``axolotl config-schema`` prints one, but not in all versions with the names
under which people know the keys (``model_type`` is missing where the full
schema cannot be made). So its classes are looked at, by its own Python, and
the answer is kept for each version: importing axolotl takes ten seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

__all__ = ["find", "load"]

_TIMEOUT: Final = 120.0
# Runs in axolotl's Python; prints a JSON schema of the names alone.
_PROBE: Final = r"""
import json, sys, typing
from pydantic import BaseModel
from axolotl.utils.schemas.config import AxolotlInputConfig as root
defs, todo = {}, [root]

def models(kind):
    if isinstance(kind, type):
        if issubclass(kind, BaseModel):
            return [kind], False
        return [], issubclass(kind, dict)
    found, free = [], kind is typing.Any
    if typing.get_origin(kind) is dict:
        return [], True
    for part in typing.get_args(kind):
        more, any_key = models(part)
        found, free = found + more, free or any_key
    return found, free

def names(name, field):
    yield name
    for alias in (field.alias, field.validation_alias):
        for one in getattr(alias, "choices", [alias]):
            if isinstance(one, str):
                yield one

while todo:
    model = todo.pop()
    if model.__qualname__ in defs:
        continue
    properties = {}
    defs[model.__qualname__] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": model.model_config.get("extra") == "allow",
    }
    for name, field in model.model_fields.items():
        found, free = models(field.annotation)
        todo += found
        parts = [{"$ref": "#/$defs/" + one.__qualname__} for one in found]
        parts += [{"type": "object"}] if free else []
        for known in names(name, field):
            properties[known] = {"anyOf": parts, "items": {"anyOf": parts}} if parts else {}
json.dump({"$ref": "#/$defs/" + root.__qualname__, "$defs": defs}, sys.__stdout__)
"""


def find(interpreter: str | None = None) -> Path | None:
    """A Python that has axolotl: the given one, our own, or that of the command on PATH."""
    command = shutil.which("axolotl")
    candidates = [interpreter, sys.executable, str(Path(command).parent / "python") if command else None]
    for candidate in candidates:
        if candidate is not None:
            python = Path(os.path.expanduser(candidate))
            if python.exists() and _installed(python) is not None:
                return python
    return None


def _installed(python: Path) -> Path | None:
    """Where the package's metadata lie, looked at without running it: its version is in the name."""
    root = python.absolute().parent.parent
    found = sorted(root.glob("lib/python3*/*-packages/axolotl-*.dist-info"))
    return found[-1] if found else None


def load(python: Path, *, cached_only: bool = False) -> Mapping[str, Any] | None:
    """The schema of the axolotl of this Python; None where it cannot be had.

    Parameters
    ----------
    python : Path
        As `find` gives it.
    cached_only : bool
        Do not run it, which takes some ten seconds.
    """
    metadata = _installed(python)
    if metadata is None:
        return None
    key = hashlib.sha256(f"{metadata}\0{metadata.stat().st_mtime_ns}\0{_PROBE}".encode()).hexdigest()[:16]
    kept = _folder() / f"{metadata.name.removesuffix('.dist-info')}-{key}.json"
    with contextlib.suppress(OSError, ValueError):
        schema = json.loads(kept.read_bytes())
        if isinstance(schema, dict):
            return schema
    if cached_only:
        return None
    schema = _ask(python)
    if schema is not None:
        _keep(kept, schema)
    return schema


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "clusterkernel"


def _ask(python: Path) -> dict[str, Any] | None:
    quiet = {**os.environ, "AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            [str(python), "-W", "ignore", "-c", _PROBE],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            env=quiet,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    start = done.stdout.find(b'{"$ref"')  # behind what its imports print
    if done.returncode or start < 0:
        return None
    try:
        schema = json.loads(done.stdout[start:])
    except ValueError:
        return None
    return schema if isinstance(schema, dict) else None


def _keep(path: Path, schema: Mapping[str, Any]) -> None:
    """Write it whole or not at all; a home that cannot be written to is no error."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(schema, file)
        os.replace(name, path)
