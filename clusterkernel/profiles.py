"""Profiles: named sets of fields, in TOML, in layers, remembering where each value came from.

A site's file, then the user's, then the project's: the later wins, field by
field. ``[profiles.default]`` is where every run starts.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from clusterkernel import fields, paths
from clusterkernel.errors import ProfileError, nearest, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Profile", "default", "load", "names", "sources"]

SITE = Path("/etc/clusterkernel/profiles.toml")
PROJECT = ".clusterkernel.toml"


class Profile(msgspec.Struct, frozen=True):
    """A profile as merged from its layers.

    Attributes
    ----------
    name : str
    values : dict
        Field -> value as `fields.build` reads it.
    origins : dict
        Field -> ``gpus_per_node in /home/me/.config/...``.
    """

    name: str
    values: dict[str, Any]
    origins: dict[str, str]


def user_file() -> Path:
    """``$CLUSTERKERNEL_PROFILES``, else ``~/.config/clusterkernel/profiles.toml``."""
    if given := os.environ.get("CLUSTERKERNEL_PROFILES"):
        return paths.expand(given, "CLUSTERKERNEL_PROFILES")
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "clusterkernel" / "profiles.toml"


def sources(start: Path | None = None) -> list[Path]:
    """The files that are read, the weakest first, whether they exist or not."""
    project = _project(start)
    return [SITE, user_file(), *([project] if project else [])]


def _project(start: Path | None) -> Path | None:
    """The project's file, looked for upward.

    Raises
    ------
    ProfileError
        Anybody could have put it there: its setup lines would run as the person.
    """
    try:
        start = (start or Path.cwd()).absolute()
    except OSError:
        return None  # the working folder was removed
    for folder in (start, *start.parents):
        path = folder / PROJECT
        try:
            about, around = path.stat(), folder.stat()
        except OSError:
            continue
        if not stat.S_ISREG(about.st_mode):
            continue
        if around.st_mode & stat.S_IWOTH and about.st_uid not in (os.geteuid(), 0):
            raise ProfileError(
                f"{path} belongs to another user, in a folder that everybody can write to.",
                hint="Work in a folder of yours, or copy the file.",
            )
        return path
    return None


def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}.", hint="Mend or move the file.") from error
    try:
        tables = tomllib.loads(text.decode()).get("profiles", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: {error}.", hint="Mend the file: it is TOML.") from None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ProfileError(f"{path}: profiles must be tables.", hint="Write [profiles.NAME] above its fields.")
    return tables


def names(start: Path | None = None) -> list[str]:
    """All profiles that can be loaded."""
    return sorted({name for path in sources(start) for name in _read(path)})


def load(name: str, *, start: Path | None = None) -> Profile:
    """A profile on top of the default one.

    Raises
    ------
    ProfileError
        No file has it, a file cannot be read, or it names an unknown field.
    """
    if not isinstance(name, str):
        raise ProfileError(f"profile = {shown(name)} is not a name.", hint="Write it in quotes.")
    profile, found = _merge(name, start)
    if not found:
        known = [each for each in names(start) if each != "default"]
        where = f"Write it into {user_file()}." if not known else nearest(name, known)
        raise ProfileError(f"There is no profile {shown(name)}.", hint=where)
    return profile


def default(*, start: Path | None = None) -> Profile:
    """The profile where every run starts; empty where no file has one."""
    return _merge("default", start)[0]


def _merge(name: str, start: Path | None) -> tuple[Profile, bool]:
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    found = False
    layers = [(path, _read(path)) for path in sources(start)]
    for wanted in ("default", name) if name != "default" else ("default",):
        for path, tables in layers:
            if wanted not in tables:
                continue
            found = found or wanted == name
            for field, value in tables[wanted].items():
                if field not in fields.FIELDS and field not in fields.PSEUDO:
                    raise ProfileError(
                        f"{path}: profile {wanted} has the unknown field {field!r}.",
                        hint=nearest(field, [*fields.FIELDS, *fields.PSEUDO]),
                    )
                values[field] = value
                origins[field] = f"{field} in profile {wanted} of {path}"
    return Profile(name, values, origins), found
