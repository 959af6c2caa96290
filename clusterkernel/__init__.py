"""Train on any cluster from a notebook cell.

>>> import clusterkernel as ck
>>> with ck.Executor("local") as ex:  # or "slurm"
...     job = ex.submit(pow, 2, 10)
>>> job.result()
1024

In a notebook: ``%load_ext clusterkernel``, then ``%%cluster_train?``.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, Final

from clusterkernel._version import __version__

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from clusterkernel.arrays import JobArray as JobArray
    from clusterkernel.checks import check as check
    from clusterkernel.errors import ClusterKernelError as ClusterKernelError
    from clusterkernel.executor import Executor as Executor
    from clusterkernel.executor import plan as plan
    from clusterkernel.formats.convert import convert as convert
    from clusterkernel.jobs import Job as Job
    from clusterkernel.lookup import job as job
    from clusterkernel.runtime.metrics import log as log
    from clusterkernel.runtime.metrics import progress as progress
    from clusterkernel.spec import JobSpec as JobSpec
    from clusterkernel.states import JobState as JobState
    from clusterkernel.tables import accounting as accounting
    from clusterkernel.tables import jobs as jobs
    from clusterkernel.tables import nodes as nodes
    from clusterkernel.tables import queue as queue

# Public name -> the module that has it. They are looked up at first use: importing this package must cost nothing,
# since it happens in every kernel that loads the extension and in every job that calls `log`.
_LAZY: Final = {
    "ClusterKernelError": "clusterkernel.errors",
    "Executor": "clusterkernel.executor",
    "Job": "clusterkernel.jobs",
    "JobArray": "clusterkernel.arrays",
    "JobSpec": "clusterkernel.spec",
    "JobState": "clusterkernel.states",
    "accounting": "clusterkernel.tables",
    "check": "clusterkernel.checks",
    "convert": "clusterkernel.formats.convert",
    "job": "clusterkernel.lookup",
    "jobs": "clusterkernel.tables",
    "log": "clusterkernel.runtime.metrics",
    "nodes": "clusterkernel.tables",
    "plan": "clusterkernel.executor",
    "progress": "clusterkernel.runtime.metrics",
    "queue": "clusterkernel.tables",
}

__all__ = [
    "ClusterKernelError",
    "Executor",
    "Job",
    "JobArray",
    "JobSpec",
    "JobState",
    "__version__",
    "accounting",
    "check",
    "convert",
    "job",
    "jobs",
    "log",
    "nodes",
    "plan",
    "progress",
    "queue",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)  # for Tab: neither our modules nor what this file imports


class _Package(types.ModuleType):
    """This package, in which a public name wins over a submodule of the same name (``jobs``)."""

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds each submodule to its package; `ck.jobs()` would be gone after the first import.
        if not (name in _LAZY and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics (``%load_ext clusterkernel``)."""
    from clusterkernel import magics

    magics.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Take the magics back (``%unload_ext clusterkernel``)."""
    from clusterkernel import magics

    magics.unload(shell)
