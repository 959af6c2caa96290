"""Files that the person takes along: copied into the payload at submission, as they are then.

The job finds them below ``$CLUSTERKERNEL_FILES``, by their path from the working
folder, those of elsewhere by their name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from clusterkernel.errors import SpecError
from clusterkernel.paths import expand, working_folder
from clusterkernel.payload import Artefact, Captured
from clusterkernel.payload.packing import size_text
from clusterkernel.spec import Environment

__all__ = ["FOLDER", "with_files"]

#: Where they lie in the payload.
FOLDER: Final = "files"
LIMIT: Final = 1 << 30
_FLAG: Final = "--files"


def with_files(artefact: Artefact, environment: Environment) -> Artefact:
    """The payload with the files that the spec names, in the place of those that it may have.

    Raises
    ------
    SpecError
        One is not there, cannot be read, or all are too large.
    """
    workdir = expand(environment.workdir, "--workdir") if environment.workdir else working_folder()
    found: dict[str, Path] = {}
    digests: dict[str, str] = {}
    captured: list[Captured] = []
    left = LIMIT
    for name in environment.files:
        source = workdir / expand(name, _FLAG)
        if not source.exists():
            comma = r"; a comma in a name as '\,'" * ("," in name or len(environment.files) > 1)
            hint = f"Write its path from the working folder{comma}."
            raise SpecError(f"{_FLAG}: {name} is not in {workdir}.", field=_FLAG, hint=hint)
        target = _target(source, workdir)
        total, size = hashlib.sha256(), 0
        for path, relative in _below(source, target):
            if relative in found and found[relative] != path:
                raise SpecError(
                    f"{_FLAG}: {path} and {found[relative]} would both be {relative} in the job.",
                    field=_FLAG,
                    hint="Rename one of them.",
                )
            found[relative] = path
            count, digest = _read(path, left - size)
            size += count
            total.update(f"{relative}\0{count}\0".encode("utf-8", "surrogateescape") + digest)
        left -= size
        digests[f"{_FLAG} {target}"] = total.hexdigest()  # a variable may be called like it
        captured.append(Captured(target, "folder" if source.is_dir() else "file", size, _FLAG))
    kept = {name: content for name, content in artefact.files.items() if not name.startswith(f"{FOLDER}/")}
    return msgspec.structs.replace(
        artefact,
        captured=(*artefact.captured, *captured),
        inputs_digest={**artefact.inputs_digest, **digests},
        files={**kept, **{f"{FOLDER}/{name}": path for name, path in found.items()}},
    )


def _target(source: Path, workdir: Path) -> str:
    """Where it lies among the job's files."""
    path, around = Path(os.path.abspath(source)), Path(os.path.abspath(workdir))
    return str(path.relative_to(around)) if path != around and path.is_relative_to(around) else path.name


def _below(source: Path, target: str) -> Iterator[tuple[Path, str]]:
    """A file itself, or those of a folder and of what is linked there, without hidden folders and Python's caches.

    Raises
    ------
    SpecError
        A pipe, a socket, a link that leads nowhere or in a circle: nothing is left out without a word.
    """
    if not source.is_dir():
        yield _regular(source), target
        return
    above: dict[str, tuple[str, ...]] = {}
    for around, folders, names in os.walk(source, followlinks=True):
        here = os.path.realpath(around)
        way = (*above.get(os.path.dirname(around), ()), here)
        if here in way[:-1]:
            raise SpecError(f"{_FLAG}: {around} leads back to {here}.", field=_FLAG, hint="Remove that link.")
        above[around] = way
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            path = _regular(Path(around) / name)
            yield path, str(Path(target) / path.relative_to(source))


def _regular(path: Path) -> Path:
    if not path.is_file():
        what = "leads nowhere" if path.is_symlink() and not path.exists() else "is no regular file"
        raise SpecError(f"{_FLAG}: {path} {what}.", field=_FLAG, hint="Remove it, or name the files singly.")
    return path


def _read(path: Path, limit: int) -> tuple[int, bytes]:
    """A file's size and digest."""
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                size += len(block)
                if size > limit:
                    raise SpecError(
                        f"{_FLAG} would take more than {size_text(LIMIT)} along ({path} is among it).",
                        field=_FLAG,
                        hint="Leave out what lies where the job sees it itself, and give its path to the code.",
                    )
                digest.update(block)
    except OSError as error:
        raise SpecError(
            f"{_FLAG}: {path} cannot be read: {error.strerror}.", field=_FLAG, hint="Mend its permissions."
        ) from None
    return size, digest.digest()
