"""What the kernel can tell about the notebook it runs for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = ["in_kernel", "interactive", "notebook_path"]


def kernel_of(shell: InteractiveShell) -> Any:
    """The Jupyter kernel around the shell, None in a terminal."""
    return getattr(shell, "kernel", None)


def in_kernel(shell: InteractiveShell) -> bool:
    """Whether displays can be updated."""
    return kernel_of(shell) is not None


def interactive(shell: InteractiveShell) -> bool:
    """Whether a person sits before it.

    Papermill, nbconvert, nbclient and jupyter-scheduler do not allow stdin.
    ``CLUSTERKERNEL_INTERACTIVE=0|1`` overrides.
    """
    if (word := os.environ.get("CLUSTERKERNEL_INTERACTIVE", "")) in ("0", "1"):
        return word == "1"
    kernel = kernel_of(shell)
    return kernel is None or bool(getattr(kernel, "_allow_stdin", True))


def notebook_path(shell: InteractiveShell) -> str:
    """The notebook's file where the front end tells it, else nothing.

    Jupyter's server puts it into the kernel's environment, VS Code into the namespace.
    """
    return os.environ.get("JPY_SESSION_NAME") or str(shell.user_ns.get("__vsc_ipynb_file__", ""))
