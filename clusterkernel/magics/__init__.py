"""The magics: ``%%cluster_train`` and the ``%cluster_...`` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from clusterkernel.magics.extension import ClusterKernel

__all__ = ["load", "unload"]


def _loaded(shell: InteractiveShell) -> ClusterKernel | None:
    """What is loaded in the shell; the shell's own list of configurable parts remembers it."""
    from clusterkernel.magics.extension import ClusterKernel

    return next((part for part in shell.configurables if isinstance(part, ClusterKernel)), None)


def load(shell: InteractiveShell) -> None:
    """Register the magics; what is there already stays."""
    from clusterkernel.magics.extension import ClusterKernel
    from clusterkernel.magics.greeting import greeting

    if _loaded(shell) is None:
        ClusterKernel(shell).install()
        print(greeting())


def unload(shell: InteractiveShell) -> None:
    """Take the magics, hooks and threads out. Jobs go on."""
    if (loaded := _loaded(shell)) is not None:
        loaded.remove()
