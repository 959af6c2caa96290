"""Files that are to be read: bounded, as text, and what they are."""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clusterkernel.errors import ClusterKernelError, FormatError, nearest
from clusterkernel.formats import secrets
from clusterkernel.formats.cloud.keys import KNOWN
from clusterkernel.formats.model import Format, Parsed
from clusterkernel.paths import expand

__all__ = ["LARGEST", "detect", "format_of", "load", "read"]

#: Bytes that are read; Slurm's own limit for a script is 4 MiB.
LARGEST: Final = 1 << 20
_READERS: Final[Mapping[Format, str]] = {
    Format.SLURM: "sbatch.reader",
    Format.MODAL_YAML: "cloud.reader",
    Format.BASETEN_YAML: "cloud.reader",
    Format.KUBERNETES: "kubernetes.reader",
    Format.PROFILE: "profile_toml",
}
_ALIASES: Final = {
    "sbatch": Format.SLURM,
    "k8s": Format.KUBERNETES,
    "manifest": Format.KUBERNETES,
    "modal-app": Format.MODAL,
    "truss": Format.BASETEN,
    "modal.yaml": Format.MODAL_YAML,
    "baseten.yaml": Format.BASETEN_YAML,
    "toml": Format.PROFILE,
}
_CLOUD: Final = re.compile(rf"^(?:{'|'.join(sorted(KNOWN))})\s*:", re.MULTILINE)
_MANIFEST: Final = re.compile(r"^\s*(?:- )?[\"']?(?:apiVersion|kind)[\"']?\s*:", re.MULTILINE)
_PROVIDER: Final = re.compile(r"^provider\s*:\s*[\"']?baseten\b", re.MULTILINE)
_PROFILES: Final = re.compile(r"^\s*\[\s*profiles\s*[.\]]", re.MULTILINE)


def format_of(name: str | Format, *, writable: bool = False) -> Format:
    """The format of a name.

    Raises
    ------
    FormatError
        There is none, or it can only be written.
    """
    if isinstance(name, Format):
        found: Format | None = name
    else:
        word = str(name).strip().lower().replace("_", "-")
        found = _ALIASES.get(word) or next((item for item in Format if item.value == word), None)
    if found is None:
        known = [item.value for item in Format if writable or item in _READERS]
        raise FormatError(f"There is no format {str(name)[:40]!r}.", hint=nearest(str(name)[:40], known))
    if not writable and found not in _READERS:
        raise FormatError(
            f"{found.value} can be written and not read: it is a program.",
            hint=f"Known: {', '.join(item.value for item in _READERS)}.",
        )
    return found


def load(source: str | os.PathLike[str]) -> tuple[str, str]:
    """The text of a file, or the text that was given; and what errors call it.

    Raises
    ------
    FormatError
        There is no such file, it is too large, or no text.
    """
    if isinstance(source, str) and ("\n" in source or source.startswith("#!")):
        if len(source) > LARGEST:
            raise FormatError(f"The text has {len(source) >> 20} MiB, and at most {LARGEST >> 20} are read.")
        return source, "The text"
    if not isinstance(source, str | os.PathLike):
        raise FormatError(f"The source is of type {type(source).__name__}.", hint="Give a path, or the text itself.")
    path = expand(os.fsdecode(source), "source")
    shown = path.name or str(path)
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
        if regular:
            with open(path, "rb") as file:
                data = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it has a NUL character"
        raise FormatError(
            f"{str(path)[:200]!r} cannot be read: {reason}.", hint="Give a path, or the text itself (of several lines)."
        ) from None
    if not regular:
        raise FormatError(f"{path} is no file.", hint="Give the path of a script, a YAML file or a profile.")
    if len(data) > LARGEST:
        raise FormatError(f"{shown} has more than {LARGEST >> 20} MiB.", hint="Is it the right file?")
    return _decoded(data, shown), shown


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{name}, line {line}: byte {error.start} is no text in UTF-8.", hint="Is it the right file?"
        ) from None


def detect(text: str, name: str) -> Format:
    """What a text is.

    Raises
    ------
    FormatError
        That cannot be told.
    """
    head = text[:65536]
    suffix = os.path.splitext(name)[1].lower()
    if head.startswith("#!") or re.search(r"^#(SBATCH|PBS|BSUB)\b", head, re.MULTILINE):
        return Format.SLURM
    if suffix == ".py":
        raise FormatError(
            f"{name} is a Python program, which is not read.", hint="Convert the file that it was written from."
        )
    if suffix in (".slurm", ".sbatch", ".sh", ".job"):
        return Format.SLURM
    if _PROFILES.search(head):
        return Format.PROFILE
    if _MANIFEST.search(head):
        return Format.KUBERNETES
    if _PROVIDER.search(head):
        return Format.BASETEN_YAML
    if _CLOUD.search(head):
        return Format.MODAL_YAML
    known = ", ".join(item.value for item in _READERS)
    if not text.strip():
        raise FormatError(f"{name} is empty.", hint="Give a script, a manifest, a cloud YAML or a profile.")
    raise FormatError(
        f"{name}: what it is cannot be told.", hint=f'Say it: source_format="slurm", --from slurm. Known: {known}.'
    )


def read(
    text: str,
    name: str,
    *,
    values: Mapping[str, object] | None = None,
    source_format: str | Format | None = None,
    options: str | Sequence[str] = (),
) -> Parsed:
    """Read a text of any format.

    Raises
    ------
    FormatError
        It is none of those that can be read.
    """
    found = format_of(source_format) if source_format is not None else detect(text, name)
    if options and found is not Format.SLURM:
        raise FormatError(f"{name} is no batch script: options are sbatch's.", hint="Leave them out.")
    if found is not Format.SLURM:
        text = text.removeprefix("\ufeff")
    module: Any = importlib.import_module(f"clusterkernel.formats.{_READERS[found]}")
    if not isinstance(values or {}, Mapping):
        raise FormatError(f"values = {str(values)[:40]!r} names no variables.", hint="Write values={'NUM_NODES': 2}.")
    given = {str(key): str(value) for key, value in (values or {}).items()}
    more = {"options": options} if found is Format.SLURM else {}
    try:
        parsed: Parsed = module.read(text, name=name, values=given, **more)
    except ClusterKernelError as error:
        error.message, error.hint = secrets.quiet(error.message), secrets.shown(error.hint)
        error.args = (error.message,)
        raise
    return parsed
