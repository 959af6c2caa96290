"""How Kubernetes writes names, sizes and variables."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Final

__all__ = [
    "dns_label",
    "escape",
    "is_dns_label",
    "is_label_key",
    "is_label_value",
    "is_subdomain",
    "quantity",
    "read_memory",
    "read_quantity",
    "unescape",
    "write_memory",
]

_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_QUANTITY: Final = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(m|[kMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?", re.ASCII)
_FACTORS: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", start=1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)},
}
_MIB: Final = 1 << 20


# -- names ------------------------------------------------------------------------


def dns_label(name: str, *, most: int = 63, empty: str = "job") -> str:
    """The nearest name that all kinds of objects may have (RFC 1035 label: a Service's is the strictest).

    Examples
    --------
    >>> dns_label("Llama SFT_v2")
    'llama-sft-v2'
    """
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if text[:1].isdigit():
        text = f"{empty}-{text}"
    return text[:most].rstrip("-") or empty


def is_dns_label(name: str, *, most: int = 63) -> bool:
    """Whether an object may have this name."""
    return len(name) <= most and _LABEL.fullmatch(name) is not None


def is_subdomain(name: str) -> bool:
    """Whether a class, a claim or a secret may have this name (RFC 1123 subdomain)."""
    return 0 < len(name) <= 253 and _SUBDOMAIN.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether a label may have this value."""
    return len(text) <= 63 and _VALUE.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether this is a label's key, with or without its prefix."""
    prefix, slash, name = text.rpartition("/")
    return bool(name) and is_label_value(name) and (not slash or is_subdomain(prefix))


# -- sizes ------------------------------------------------------------------------


def read_quantity(text: str) -> Decimal | None:
    """A quantity (``64Gi``, ``500m``, ``1e3``) as a number; None where it is none."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        return None
    number, unit = match.groups()
    try:
        if unit and unit[0] in "eE" and len(unit) > 1:
            return Decimal(number + unit)
        return Decimal(number) * _FACTORS[unit or ""]
    except InvalidOperation:
        return None


def quantity(number: int) -> str:
    """A count."""
    return str(number)


def read_memory(text: str) -> tuple[int, bool] | None:
    """MiB, rounded up, and whether that is the very size; None where it is none."""
    size = read_quantity(text)
    if size is None or size <= 0:
        return None
    mib = math.ceil(size / _MIB)
    return mib, size == mib * _MIB


def write_memory(mib: int) -> str:
    """MiB as Kubernetes takes them: ``512Gi``, ``800Mi``."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


# -- variables --------------------------------------------------------------------


def escape(text: str) -> str:
    """Text that Kubernetes leaves as it is: in commands and values it expands ``$(NAME)`` and reads ``$$`` as ``$``."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def unescape(text: str) -> str:
    """What a command or value means, where all variables in it are the container's own."""
    return text.replace("$$", "$")
