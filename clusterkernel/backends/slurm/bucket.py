"""Keeps a flood of submissions from the controller: bursts pass, what lasts is slowed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["TokenBucket"]


class TokenBucket:
    """A token bucket for the threads of one process.

    Parameters
    ----------
    burst : int
        How many pass at once.
    rate : float
        How many a second pass after that.
    clock, sleep : callable
        Time, in seconds.
    """

    def __init__(
        self,
        burst: int,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._burst = burst
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._at = clock()

    def take(self) -> float:
        """Wait for one's turn.

        Returns
        -------
        float
            Seconds waited.
        """
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1  # a debt is a place in the queue
            wait = max(0.0, -self._tokens / self._rate)
        if wait:
            self._sleep(wait)
        return wait
