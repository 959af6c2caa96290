"""The line that ``%load_ext`` prints."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from clusterkernel import index
from clusterkernel.backends import registry
from clusterkernel.errors import ClusterKernelError
from clusterkernel.jobroot import JobRoot, default_root
from clusterkernel.ledger import Ledger
from clusterkernel.views import JobView

__all__ = ["greeting"]

_MARK: Final = ".last-kernel"
# Looked for in place of importing the backend.
_COMMANDS: Final = MappingProxyType({"slurm": "sbatch"})
# Only the newest are looked at: loading must be quick, and %cluster_jobs lists all.
_NEWEST: Final = 30


def greeting() -> str:
    """Which backends are here, and what became of jobs since the last kernel."""
    found = [name for name in registry.BUILT_IN if _found(name)]
    line = f"clusterkernel: {_and(found)} found."
    try:
        return line + _since_last(default_root())
    except (ClusterKernelError, OSError) as error:
        return f"{line} The jobs cannot be read: {error}"


def _found(name: str) -> bool:
    if name in _COMMANDS:
        return shutil.which(_COMMANDS[name]) is not None
    try:
        return registry.get(name).available().ok
    except (ClusterKernelError, ImportError):
        return False  # a broken plug-in; %cluster_doctor says what is wrong with it


def _since_last(root: Path) -> str:
    if not root.is_dir():
        return ""
    views = _newest(JobRoot(root))
    if not views:
        return ""
    mark = root / _MARK
    last = mark.stat().st_mtime if mark.exists() else 0.0
    mark.touch(mode=0o600)
    live = [view.id for view in views if not view.state.terminal]
    ended = [f"{view.id} ({view.state})" for view in views if view.state.terminal and (view.ended or 0.0) > last]
    line = ""
    if ended:
        line += f" Ended since last time: {_and(ended[-5:])}"
        line += f", and {len(ended) - 5} more." if len(ended) > 5 else "."
    if live:
        line += f" Job{'s' * (len(live) > 1)} {_and(live[-5:])}{' and more' * (len(live) > 5)} "
        line += "live." if len(live) > 1 else "lives."
    return line + " %cluster_jobs lists all." * bool(line)


def _newest(root: JobRoot) -> list[JobView]:
    with contextlib.closing(Ledger(root.path)) as ledger:
        known = index.sync(root, ledger)
    newest = [known[job] for job in sorted(known, key=int)[-_NEWEST:]]
    ended = [msgspec.json.decode(summary, type=JobView) for summary in newest if summary]
    if len(ended) == len(newest):
        return ended
    from clusterkernel import submission  # 25 ms: only where some job may live

    return submission.summaries(settle=0.0)[-_NEWEST:]


def _and(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1] if words else ""
