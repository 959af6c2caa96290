"""What the value of a flag is, so that it can be completed."""

from __future__ import annotations

import enum

__all__ = ["Values"]


class Values(enum.Enum):
    """Kinds of values."""

    NONE = enum.auto()
    TEXT = enum.auto()
    FIELD = enum.auto()
    NAMES = enum.auto()
    PROFILE = enum.auto()
    BACKEND = enum.auto()
    STATE = enum.auto()
    JOBS = enum.auto()
    JOB_NAMES = enum.auto()
    FILE = enum.auto()
    SECRETS = enum.auto()
