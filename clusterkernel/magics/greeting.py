"""The line that ``%load_ext`` prints."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from clusterkernel import index, views
from clusterkernel.backends import registry
from clusterkernel.errors import ClusterKernelError
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot, default_root
from clusterkernel.language import plural, say
from clusterkernel.ledger import Ledger
from clusterkernel.views import JobView

__all__ = ["greeting"]

_MARK: Final = ".last-kernel"
# Looked for in place of importing the backend.
_COMMANDS: Final = MappingProxyType({"slurm": "sbatch"})
# Only the newest are looked at: loading must be quick, and %cluster_jobs lists all.
_NEWEST: Final = 30
_FEW: Final = 5


def greeting() -> str:
    """Which backends are here, and what became of jobs since the last kernel, as far as no kernel has shown it."""
    found = [name for name in registry.BUILT_IN if _found(name)]
    line = say("clusterkernel: {backends} found.", backends=_and(found))
    try:
        return line + _since_last(default_root())
    except (ClusterKernelError, OSError) as error:
        return f"{line} {say('The jobs cannot be read: {error}', error=error)}"


def _found(name: str) -> bool:
    if name in _COMMANDS:
        return shutil.which(_COMMANDS[name]) is not None
    if name == "modal":
        from clusterkernel.backends.modal import client

        return client.available().ok
    try:
        return registry.get(name).available().ok
    except (ClusterKernelError, ImportError):
        return False  # a broken plug-in; %cluster_doctor says what is wrong with it


def _since_last(root: Path) -> str:
    if not root.is_dir():
        return ""
    newest = _newest(JobRoot(root))
    if not newest:
        return ""
    mark = root / _MARK
    last = mark.stat().st_mtime if mark.exists() else 0.0
    mark.touch(mode=0o600)
    live = [view.id for view in newest if not view.state.terminal]
    ended = [
        f"{view.id} ({view.state})"
        for view in newest
        if view.state.terminal and (view.ended or 0.0) > last and not JobFolder(root / view.id).seen()
    ]
    lines = []
    if ended:
        lines.append(say("Ended since last time: {jobs}.", jobs=_few(ended)))
    if live:
        lines.append(plural("Job {jobs} lives.", "Jobs {jobs} live.", len(live), jobs=_few(live)))
    if lines:
        lines.append(say("%cluster_jobs lists all."))
    return "".join(f" {line}" for line in lines)


def _few(words: Sequence[str]) -> str:
    """The newest of them, and how many more there are."""
    if len(words) <= _FEW:
        return _and(words)
    return say("{words} and {count} more", words=", ".join(words[-_FEW:]), count=len(words) - _FEW)


def _newest(root: JobRoot) -> list[JobView]:
    with contextlib.closing(Ledger(root.path)) as ledger:
        known = index.sync(root, ledger)
    newest = [known[job] for job in sorted(known, key=int)[-_NEWEST:]]
    ended = [view for summary in newest if (view := views.of_bytes(summary)) is not None]
    if len(ended) == len(newest):
        return ended
    from clusterkernel import submission  # 25 ms: only where some job may live

    return submission.summaries(settle=0.0)[-_NEWEST:]


def _and(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return say("{words} and {last}", words=", ".join(words[:-1]), last=words[-1])
