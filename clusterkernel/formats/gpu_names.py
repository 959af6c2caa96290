"""What the platforms call GPUs.

Ours are lower case, as Slurm sites name them: ``h100``, ``a100-80gb``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["BASETEN", "KUBERNETES", "MODAL", "MODAL_MOST", "is_amd", "is_known", "plain"]

# Ours -> Modal's (its GPU guide). A100 alone means the one of 40 GB there.
MODAL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "t4": "T4",
        "l4": "L4",
        "a10": "A10",
        "a10g": "A10",
        "l40s": "L40S",
        "a100": "A100",
        "a100-40gb": "A100-40GB",
        "a100-80gb": "A100-80GB",
        "rtx-pro-6000": "RTX-PRO-6000",
        "h100": "H100",
        "h200": "H200",
        "b200": "B200",
        "b300": "B300",
    }
)
# GPUs of one container: 8, but
MODAL_MOST: Final[Mapping[str, int]] = MappingProxyType({"A10": 4})

# Ours -> those of truss 0.18.
BASETEN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "t4": "T4",
        "l4": "L4",
        "a10": "A10G",
        "a10g": "A10G",
        "v100": "V100",
        "a100": "A100",
        "a100-80gb": "A100",
        "a100-40gb": "A100_40GB",
        "h100": "H100",
        "h100-40gb": "H100_40GB",
        "h200": "H200",
        "b200": "B200",
        "b300": "B300",
        "gb300": "GB300",
        "l40s": "L40S",
        "rtx-pro-6000": "RTX_PRO_6000",
    }
)

# Ours -> values of the label nvidia.com/gpu.product, which NVIDIA's GPU feature discovery makes of the name that
# nvidia-smi prints, with dashes for its spaces.
KUBERNETES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "t4": ("Tesla-T4",),
        "v100": (
            "Tesla-V100-SXM2-16GB",
            "Tesla-V100-SXM2-32GB",
            "Tesla-V100-SXM3-32GB",
            "Tesla-V100-PCIE-16GB",
            "Tesla-V100-PCIE-32GB",
        ),
        "l4": ("NVIDIA-L4",),
        "l40": ("NVIDIA-L40",),
        "l40s": ("NVIDIA-L40S",),
        "a10": ("NVIDIA-A10",),
        "a10g": ("NVIDIA-A10G",),
        "a40": ("NVIDIA-A40",),
        "a100-40gb": ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"),
        "a100-80gb": ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"),
        "a100": (
            "NVIDIA-A100-SXM4-40GB",
            "NVIDIA-A100-SXM4-80GB",
            "NVIDIA-A100-PCIE-40GB",
            "NVIDIA-A100-80GB-PCIe",
        ),
        "h100": ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
        "h200": ("NVIDIA-H200", "NVIDIA-H200-NVL"),
        "gh200": ("NVIDIA-GH200-480GB", "NVIDIA-GH200-144G-HBM3e"),
        "b200": ("NVIDIA-B200",),
        "b300": ("NVIDIA-B300-SXM6-AC", "NVIDIA-B300"),
        "gb200": ("NVIDIA-GB200",),
        "gb300": ("NVIDIA-GB300",),
    }
)

_AMD: Final = re.compile(r"mi\d{2,3}[a-z]?")


def is_amd(kind: str | None) -> bool:
    """Whether this is one of AMD's."""
    return kind is not None and _AMD.fullmatch(kind) is not None


def is_known(kind: str) -> bool:
    """Whether this is our name of a type that some platform has."""
    return any(kind in names for names in (MODAL, BASETEN, KUBERNETES)) or is_amd(kind)


def plain(name: str) -> str:
    """Our name for one of a platform's: ``h100`` for NVIDIA-H100-80GB-HBM3 and nvidia-h100-80gb.

    Examples
    --------
    >>> plain("NVIDIA-A100-SXM4-80GB"), plain("nvidia-tesla-t4")
    ('a100-80gb', 't4')
    """
    text = name.lower().replace("_", "-")
    for prefix in ("nvidia-", "tesla-", "amd-instinct-", "amd-"):
        text = text.removeprefix(prefix)
    if text.startswith("a100") and (size := re.search(r"(40|80)gb", text)):
        return f"a100-{size[1]}gb"
    if text.startswith("rtx-"):
        return re.sub(r"-(blackwell|ada).*$", "", text)
    return text.partition("-")[0]
