"""What Modal's resources cost: the workspace's own rates where Modal tells them, else list prices.

The list is that of Modal's page on pricing as others transcribed it on
2026-07-01. Of the rates the client's protocol says only that those of compute
are for a unit and hour; their names are documented nowhere. So a name is taken
for what it surely means, and a rate only where it is near the list price: else
its unit is another one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from clusterkernel import patience
from clusterkernel.backends.modal import client as modal_client

__all__ = ["CPU", "DATED", "LISTED", "MEMORY", "Rates", "ask", "known", "read"]

DATED: Final = "2026-07-01"
CPU: Final = "CPU"
MEMORY: Final = "memory"
# Dollars an hour: of one GPU, one physical core, one GiB.
_LISTED: Final = {
    name: 3600 * price
    for name, price in {
        "B300": 0.001736,
        "B200": 0.001736,
        "H200": 0.001261,
        "H100": 0.001097,
        "RTX-PRO-6000": 0.000842,
        "A100-80GB": 0.000694,
        "A100": 0.000583,
        "A100-40GB": 0.000583,
        "L40S": 0.000542,
        "A10": 0.000306,
        "L4": 0.000222,
        "T4": 0.000164,
        CPU: 0.0000131,
        MEMORY: 0.00000222,
    }.items()
}
# Words of a rate's name that say nothing of what it is for, and other names of what it is for.
_IDLE: Final = frozenset("COMPUTE COST DOLLARS GPU HOUR HOURLY HOURS HR NVIDIA PER PRICE PRICING RATE USD".split())
_ALIKE: Final = MappingProxyType(
    {
        "CPU": CPU, "CPUS": CPU, "CPUCORE": CPU, "CPUCORES": CPU, "CORE": CPU, "CORES": CPU, "PHYSICALCORE": CPU,
        "MEMORY": MEMORY, "MEM": MEMORY, "RAM": MEMORY, "MEMORYGIB": MEMORY, "MEMORYGB": MEMORY, "MEMGIB": MEMORY,
        "GIB": MEMORY, "A10G": "A10", "RTX6000": "RTX-PRO-6000", "RTX6000PRO": "RTX-PRO-6000",
    }
)  # fmt: skip
# The unit of a rate that differs more from the list price is another one.
_NEAR: Final = 3.0
# Seconds for which an answer holds; and one that did not come.
_FRESH, _PAUSE = 3600.0, 60.0


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Dollars an hour.

    Attributes
    ----------
    prices : Mapping of str to float
        By Modal's names of GPUs, `CPU` (a core) and `MEMORY` (a GiB).
    own : frozenset of str
        Which of them Modal told for this workspace.
    """

    prices: Mapping[str, float]
    own: frozenset[str] = frozenset()

    def source(self, used: Iterable[str]) -> str:
        """Which prices those are, for the names that were used."""
        listed = sorted(set(used) - self.own)
        if not set(used) & self.own:
            return f"list prices of {DATED}"
        rest = f" and, for {', '.join(listed)}, list prices of {DATED}" if listed else ""
        return f"your workspace's rates of today{rest}"


LISTED: Final = Rates(prices=MappingProxyType(_LISTED))
# By process, server and account: until when the answer holds, and what it was.
_ANSWERS: dict[tuple[object, ...], tuple[float, Rates]] = {}


def _which() -> tuple[object, ...]:
    names = ("MODAL_SERVER_URL", "MODAL_TOKEN_ID", "MODAL_PROFILE")
    return (os.getpid(), *(os.environ.get(name) for name in names))


def known() -> Rates:
    """What was last told; asks nobody."""
    return _ANSWERS.get(_which(), (0.0, LISTED))[1]


def ask(seconds: float) -> Rates:
    """What holds now, as far as Modal tells it within so many seconds; never raises."""
    which = _which()
    if _ANSWERS.get(which, (0.0,))[0] > time.monotonic() or not modal_client.available().ok:
        return known()

    def fetch() -> None:
        before = known()
        _ANSWERS[which] = time.monotonic() + _PAUSE, before  # who asks meanwhile need not ask again
        told = read(_told())
        _ANSWERS[which] = time.monotonic() + _FRESH, told

    try:
        patience.within(seconds, fetch)
    except Exception:  # noqa: BLE001 - an estimate is no reason to fail, whatever the client raises
        return known()
    return known()


def _told() -> dict[str, Any]:
    workspace = modal_client.library().Workspace.from_context(client=modal_client.connect())
    return dict(workspace.billing.rates().items())


def read(told: Mapping[str, Any]) -> Rates:
    """The rates of which it is sure what they mean; the list prices in the place of all others."""
    names = {re.sub("[^A-Z0-9]", "", name.upper()): name for name in _LISTED}
    prices: dict[str, float] = {}
    for key, value in told.items():
        words = [word for word in re.split("[^A-Z0-9]+", str(key).upper()) if word not in _IDLE]
        plain = "".join(words)
        name = names.get(plain) or _ALIKE.get(plain)
        try:
            price = float(value)
        except (TypeError, ValueError):
            continue
        if name is not None and _LISTED[name] / _NEAR <= price <= _LISTED[name] * _NEAR:
            prices[name] = max(price, prices.get(name, 0.0))
    for one, other in (("A100", "A100-40GB"), ("A100-40GB", "A100")):
        if one not in prices and other in prices:
            prices[one] = prices[other]
    return Rates(prices=MappingProxyType({**_LISTED, **prices}), own=frozenset(prices))
