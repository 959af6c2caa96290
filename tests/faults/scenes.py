"""Scenes: what a test has to watch for long. Those of a module run side by side, each in a place of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.clusters.cluster import SlurmCluster

from .kernels import Place

__all__ = ["Scenes"]


class _Scene(NamedTuple):
    play: Callable[[Place], None]
    options: dict[str, Any] | None
    full: bool


class Scenes:
    """The scenes of a module.

    Parameters
    ----------
    name : str
        Of the module, for the folders.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._scenes: dict[str, _Scene] = {}

    def scene(
        self, *, own: dict[str, Any] | None = None, full: bool = False
    ) -> Callable[[Callable[[Place], None]], Callable[[Place], None]]:
        """Register a scene; `own`: on a cluster of its own, with these options."""

        def keep(play: Callable[[Place], None]) -> Callable[[Place], None]:
            self._scenes[play.__name__] = _Scene(play, own, full)
            return play

        return keep

    @property
    def parameters(self) -> list[Any]:
        """One parameter for each scene, for a test that takes its `name`."""
        return [
            pytest.param(name, marks=[pytest.mark.full] if scene.full else []) for name, scene in self._scenes.items()
        ]

    @contextmanager
    def begun(
        self, request: pytest.FixtureRequest, cluster: SlurmCluster, make: Callable[..., SlurmCluster]
    ) -> Iterator[dict[str, Future[None]]]:
        """All scenes that a test of the module asks for; they end with the context."""
        wanted = [
            item.callspec.params["name"]
            for item in request.session.items
            if isinstance(item, pytest.Function)
            and item.module is request.module
            and "name" in getattr(getattr(item, "callspec", None), "params", {})
        ]
        places: list[Place] = []

        def play(name: str) -> None:
            scene = self._scenes[name]
            where = cluster if scene.options is None else make(**scene.options)
            place = Place(where, f"{self._name}-{name}-{time.monotonic_ns()}", cluster)
            places.append(place)
            try:
                scene.play(place)
            finally:
                place.close()

        with ThreadPoolExecutor(max(1, len(wanted))) as pool:
            try:
                yield {name: pool.submit(play, name) for name in wanted}
            finally:
                for place in places:
                    place.close()
