"""``%cluster_secret``: values that are typed, or come from the environment, and are never shown."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from IPython.core.error import StdinNotImplementedError, UsageError

from clusterkernel import secretstore
from clusterkernel.errors import SpecError, nearest
from clusterkernel.language import say
from clusterkernel.magics.commands import Details
from clusterkernel.magics.notebook import in_kernel
from clusterkernel.magics.options import Option
from clusterkernel.magics.values import Values

if TYPE_CHECKING:
    from clusterkernel.magics.extension import ClusterKernel

__all__ = ["DETAILS"]

_ACTIONS: Final = ("set", "list", "forget")
_HOW: Final = "Write %cluster_secret set HF_TOKEN, %cluster_secret list, or %cluster_secret forget HF_TOKEN."


def secret(kernel: ClusterKernel, args: argparse.Namespace) -> None:
    """``%cluster_secret``."""
    action, *words = args.WORDS or ["list"]
    if action not in _ACTIONS:
        # What stands here in the place of an action may be a value: it is not repeated.
        raise UsageError(f"%cluster_secret takes one of {', '.join(_ACTIONS)} first. {_HOW}")
    if action == "list":
        if words:
            raise UsageError("%cluster_secret list takes nothing more.")
        show()
        return
    if not words:
        raise UsageError(f"%cluster_secret {action} needs a name. {_HOW}")
    name, *more = words
    if action == "set" and (more or "=" in name):
        name = name.partition("=")[0]
        raise UsageError(
            f"The value of {name} does not belong into a cell, whose text is kept: %cluster_secret set {name} asks "
            "for it. Take it out of this cell, and have a new one made where it was issued."
        )
    if action == "set":
        keep(kernel, name, args.from_env)
        return
    for each in words:
        if not secretstore.forget(each):
            raise UsageError(f"There is no secret {each!r}. {nearest(each, secretstore.names())}".rstrip())
        print(say("Forgot {name}. A job that has yet to start and asks for it will not start.", name=each))


def show() -> None:
    """Print the names."""
    names = secretstore.names()
    if not names:
        print(say("There are no secrets. %cluster_secret set HF_TOKEN asks for the value of one and keeps it."))
        return
    print("\n".join(names))
    path = secretstore.store_file()
    print(say("They lie in {path}. A job gets those that it asks for: --secrets {name}.", path=path, name=names[0]))


def keep(kernel: ClusterKernel, name: str, variable: str | None) -> None:
    """Take the value from a variable, or ask for it, and keep it."""
    if variable is not None:
        value = os.environ.get(variable, "")
        if not value:
            raise UsageError(f"--from-env {variable}: the kernel's environment has no such variable, or it is empty.")
    else:
        value = _asked(kernel, name)
    secretstore.save(name, value.strip())
    path = secretstore.store_file()
    print(say("{name} is kept in {path}. A job gets it that asks for it: --secrets {name}.", name=name, path=path))


def _asked(kernel: ClusterKernel, name: str) -> str:
    """The value as typed, without an echo; in a script the next line of its standard input."""
    if not in_kernel(kernel.shell) and not sys.stdin.isatty():
        return sys.stdin.readline()
    try:
        return getpass.getpass(f"{name}: ")
    except StdinNotImplementedError:
        raise SpecError(
            f"Nobody is here to type the value of {name}.",
            field="--secrets",
            hint=f"Set it in a notebook, or put it into a variable and write --from-env {name}.",
        ) from None


DETAILS: Final = MappingProxyType(
    {
        "secret": Details(
            (
                "%cluster_secret set HF_TOKEN",
                "%cluster_secret set HF_TOKEN --from-env HF_TOKEN",
                "%cluster_secret list",
                "%cluster_secret forget HF_TOKEN",
            ),
            (
                Option(
                    ("WORDS",),
                    "WORDS",
                    "What to do (set, list, forget), and a name.",
                    Values.SECRETS,
                    "ACTION NAME",
                    "words",
                ),
                Option(
                    ("--from-env",),
                    "from_env",
                    "Take the value from this variable of the kernel's environment.",
                    metavar="VARIABLE",
                ),
            ),
            secret,
        )
    }
)
