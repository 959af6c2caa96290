"""The user's own store of secrets: one file, mode 0600, outside every job folder.

A job is given names; its supervisor reads the values when it starts the
payload. Nothing else of ours writes a value down or passes it on. What the
user's own code does with a value, such as printing it, is the user's business.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from clusterkernel import fields
from clusterkernel.errors import SpecError, nearest
from clusterkernel.files import make_private, write_atomic
from clusterkernel.paths import expand
from clusterkernel.spec import JobSpec

__all__ = ["forget", "names", "refuse_in_script", "require", "save", "store_file", "values"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A value that stands there itself: not what another variable, a command or a file gives, and not nothing.
_ASSIGNED: Final = re.compile(r"""(?<![\w$.-])([A-Za-z_]\w*)=(?!["']?[$`<])(?!["']{2})([^\s;&|]+)""")
_PASSWORD: Final = re.compile(r"PASSW(?:OR)?D$", re.IGNORECASE)
_PATH: Final = re.compile(r"[\"']?[~/.]")


def store_file() -> Path:
    """``$CLUSTERKERNEL_SECRETS``, else ``~/.clusterkernel/secrets.json``; the nodes must see it."""
    if given := os.environ.get("CLUSTERKERNEL_SECRETS"):
        return expand(given, "CLUSTERKERNEL_SECRETS").absolute()
    return Path.home() / ".clusterkernel" / "secrets.json"


def _read() -> dict[str, str]:
    path = store_file()
    try:
        _check_folder(path.parent)
        with open(path, "rb") as file:
            about, data = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SpecError(
            f"{path} cannot be read: {error.strerror}.", field="--secrets", hint="Set CLUSTERKERNEL_SECRETS to another."
        ) from error
    if about.st_uid != os.geteuid():
        raise SpecError(
            f"{path} belongs to another user.",
            field="--secrets",
            hint="Remove it, or set CLUSTERKERNEL_SECRETS to a file of yours.",
        )
    if stat.S_IMODE(about.st_mode) & 0o077:
        raise SpecError(
            f"{path} is open to other users.", field="--secrets", hint=f"chmod 600 {shlex.quote(str(path))}"
        )
    try:
        return msgspec.json.decode(data, type=dict[str, str])
    except msgspec.DecodeError:
        raise SpecError(f"{path} is damaged.", field="--secrets", hint="Remove it and set the secrets again.") from None


def _check_folder(folder: Path) -> None:
    """Refuse a folder in which another user could put a file in the place of ours."""
    about = os.stat(folder)
    open_to_all = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX
    if about.st_uid not in (os.geteuid(), 0) or open_to_all:
        raise SpecError(
            f"Another user can write to {folder}, where the secrets lie.",
            field="--secrets",
            hint=f"chmod go-w {shlex.quote(str(folder))}, or set CLUSTERKERNEL_SECRETS to a file elsewhere.",
        )


def names() -> list[str]:
    """The names of all secrets."""
    return sorted(_read())


def save(name: str, value: str) -> None:
    """Keep a secret.

    Raises
    ------
    SpecError
        The name is not that of an environment variable, the value is empty, or
        the store cannot be used.
    """
    if not _NAME.fullmatch(name):
        # What stands behind an equals sign may be the value.
        shown = name.partition("=")[0][:60]
        raise SpecError(f"{shown!r} is not a variable's name.", field="--secrets", hint="Write it as HF_TOKEN.")
    if not value or "\0" in value:
        raise SpecError(f"The secret {name} has no value.", field="--secrets", hint="Give it one.")
    _write({**_read(), name: str(value)})  # a subclass of `str` would not be written


def forget(name: str) -> bool:
    """Delete a secret. False where there was none."""
    values = _read()
    if values.pop(name, None) is None:
        return False
    _write(values)
    return True


def _write(values: dict[str, str]) -> None:
    path = store_file()
    try:
        make_private(path.parent)
        _check_folder(path.parent)
        write_atomic(path, msgspec.json.encode(values))
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written: {error.strerror}.",
            field="--secrets",
            hint="Set CLUSTERKERNEL_SECRETS to a file that can.",
        ) from error


def require(wanted: Iterable[str], *, environment: bool = False) -> None:
    """Refuse a job that asks for a secret which the store lacks.

    Parameters
    ----------
    wanted : iterable of str
        Their names.
    environment : bool
        Whether this process's environment is looked at, too.

    Raises
    ------
    SpecError
        It does, or the store cannot be used.
    """
    values(wanted, environment=environment)


def values(wanted: Iterable[str], *, environment: bool = False) -> dict[str, str]:
    """The values of these secrets, for a platform that keeps them for the job.

    Parameters
    ----------
    wanted : iterable of str
        Their names.
    environment : bool
        Whether one that the store lacks may come from this process's environment.

    Raises
    ------
    SpecError
        There is no such secret, or the store cannot be used.
    """
    if not (wanted := list(wanted)):
        return {}
    kept = _read()
    known = {**{name: os.environ[name] for name in wanted if environment and os.environ.get(name)}, **kept}
    for name in wanted:
        if name not in known:
            near = f"{nearest(name, kept)} " if kept else ""
            other = f", or set {name} in this notebook's environment" if environment else ""
            hint = f"{near}%cluster_secret set {name} keeps it{other}."
            raise SpecError(f"There is no secret {name}.", field="--secrets", hint=hint)
    return {name: known[name] for name in wanted}


def refuse_in_script(spec: JobSpec, *, python: bool = False) -> None:
    """Refuse a secret that would stand in the job's script.

    Parameters
    ----------
    spec : JobSpec
        Of the job.
    python : bool
        Whether the person named its fields as keyword arguments, and not as flags.

    Raises
    ------
    SpecError
        A variable, or an assignment in a setup line or an option for sbatch, has a name that secrets have, and a
        value; or any value has the form of a key.
    """

    def label(name: str) -> str:
        return name if python else fields.FIELDS[name].flag if name in fields.FIELDS else f"--{name}"

    given = [(label("env"), name, value) for name, value in spec.environment.env.items()]
    lines = [("setup", line) for line in spec.environment.setup]
    flags = {key: name for name, key in fields.OPTIONS.items()}
    lines += [(flags.get(key, key), option) for key, options in spec.extra.items() for option in options]
    for field, line in lines:
        given += [(label(field), name, value) for name, value in _ASSIGNED.findall(line)]
        given.append((label(field), "", line))
    others = fields.flatten(spec).items()
    given += [
        (label(field), "", text) for field, text in others if field not in ("env", "secrets", "setup", *fields.OPTIONS)
    ]
    from clusterkernel.formats import secrets

    for where, name, value in given:
        telling = (secrets.is_name(name) or _PASSWORD.search(name)) and value and not _PATH.match(value)
        own = secrets.of_environment(value)
        if telling or own or secrets.is_value(value):
            name = own or name or secrets.name_for(value)
            raise SpecError(
                f"{where} would write {name} into the job's script, which lies in its folder and which Slurm stores.",
                field=where,
                hint=f"Keep it with %cluster_secret set {name}, and ask for it with --secrets {name}.",
            )
