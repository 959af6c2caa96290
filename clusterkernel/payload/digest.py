"""Digests of values: equal for equal values, in any process.

Hashes of pickled bytes are no key (a set gave four hashes in four processes).
"""

from __future__ import annotations


def digest(value: object) -> str | None:
    return None
