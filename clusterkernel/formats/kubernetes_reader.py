"""x"""

from __future__ import annotations


def read(): ...
