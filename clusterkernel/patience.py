"""Waiting for a platform that may hang, so that the person can go on and an interrupt comes through."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["within"]

_Result = TypeVar("_Result")


def within(seconds: float, call: Callable[[], _Result]) -> _Result:
    """What `call` gives; it runs in a thread of its own.

    Raises
    ------
    TimeoutError
        It is not through yet. It goes on, and nobody hears how it ends.
    """
    outcome: concurrent.futures.Future[_Result] = concurrent.futures.Future()

    def run() -> None:
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller raises it
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    threading.Thread(target=run, name="clusterkernel-patience", daemon=True).start()
    concurrent.futures.wait([outcome], timeout=seconds)
    if not outcome.done():
        raise TimeoutError
    return outcome.result()
