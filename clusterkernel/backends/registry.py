"""Finds backends by name: those of this package, and those that others install.

A plug-in names a class in the entry point group ``clusterkernel.backends``.
Nothing is imported before it is asked for, and one that is broken hurts only
those who ask for it.
"""

from __future__ import annotations

import functools
import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from clusterkernel.backends.base import Backend
from clusterkernel.errors import BackendError, SpecError, nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["BUILT_IN", "GROUP", "get", "names"]

GROUP: Final = "clusterkernel.backends"
BUILT_IN: Final = MappingProxyType(
    {
        "local": "clusterkernel.backends.local:LocalBackend",
        "modal": "clusterkernel.backends.modal.backend:ModalBackend",
        "slurm": "clusterkernel.backends.slurm.backend:SlurmBackend",
    }
)


def _plugins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # brings the e-mail parser along: 20 ms that loading must not cost

    return {entry.name: entry for entry in entry_points(group=GROUP)}


def names() -> tuple[str, ...]:
    """The names of all backends, sorted; whether one can be used is what its `available` says."""
    return tuple(sorted({*BUILT_IN, *_plugins()}))


@functools.cache
def get(name: str) -> Backend:
    """The backend, one object for each in a process.

    Raises
    ------
    SpecError
        No backend has this name.
    BackendError
        It is a plug-in that cannot be loaded.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast(Backend, getattr(importlib.import_module(module), attribute)())
    entry = _plugins().get(name)
    if entry is None:
        hint = nearest(name, names())
        if name in ("kubernetes", "baseten"):
            hint = f"%cluster_convert and ck.convert write files for it: to={name!r}."
        raise SpecError(f"There is no backend {name!r}.", field="--backend", hint=hint)
    try:
        return cast(Backend, entry.load()())
    except Exception as error:  # another's code: whatever is wrong with it, the person who asked is told
        package = f" of {entry.dist.name}" if entry.dist is not None else ""
        raise BackendError(
            f"The backend {name!r}{package} cannot be loaded: {type(error).__name__}: {error}.",
            hint="Update or remove that package.",
        ) from error
