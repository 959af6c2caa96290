"""The keys of axolotl's cloud YAML, and who reads them.

From axolotl 0.18: there is no schema, and what is unknown is ignored without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = [
    "BASETEN",
    "BASETEN_GPU",
    "CORES",
    "DEFAULTS",
    "IGNORED",
    "KNOWN",
    "MODAL",
    "MODAL_GPUS",
    "RELEASES",
    "UNKNOWN",
]

#: Read by the Modal provider.
MODAL: Final = frozenset(
    "provider volumes secrets env branch docker_tag dockerfile_commands gpu gpu_count memory memory_preprocess timeout "
    "timeout_preprocess".split()
)
#: Read by the Baseten provider.
BASETEN: Final = frozenset("provider project_name secrets gpu gpu_count node_count".split())
KNOWN: Final = frozenset({*MODAL, *BASETEN, "spawn"})
#: What each takes where the file says nothing.
DEFAULTS: Final[Mapping[str, int]] = MappingProxyType(
    {"gpu_count": 1, "memory": 128, "timeout": 86400, "timeout_preprocess": 10800}
)
#: Cores of a training on Modal, whatever is asked for.
CORES: Final = 16
#: GPUs that the Modal provider takes; all others are an error of its own.
MODAL_GPUS: Final = ("l40s", "a100", "a100-40gb", "a100-80gb", "a10", "a10g", "h100", "t4", "l4")
#: The GPU that the Baseten provider takes, whatever is asked for.
BASETEN_GPU: Final = "h100"
#: Images that ``docker_tag`` picks from.
RELEASES: Final = "axolotlai/axolotl:"
#: Keys that one of the two providers reads and the other does not: why.
IGNORED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "node_count": "axolotl runs on one node on Modal.",
        "project_name": "axolotl never reads it on Modal.",
        "memory": "axolotl does not pass it on to Baseten.",
        "memory_preprocess": "axolotl has no separate preprocessing on Baseten.",
        "timeout": "axolotl sets no time limit on Baseten.",
        "timeout_preprocess": "axolotl has no separate preprocessing on Baseten.",
        "volumes": "axolotl mounts no volumes on Baseten.",
        "env": "axolotl passes no variables on to Baseten.",
        "branch": "axolotl's image is fixed on Baseten.",
        "docker_tag": "axolotl's image is fixed on Baseten.",
        "dockerfile_commands": "axolotl's image is fixed on Baseten.",
        "spawn": "axolotl reads it for lm_eval only.",
    }
)
#: What people write that axolotl has never read, and where it is said instead.
UNKNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "restart_policy": "--attempts says how often a run may start.",
        "retries": "--attempts says how often a run may start.",
        "cpu": "--cpus-per-task says it for the other formats.",
        "cpu_count": "--cpus-per-task says it for the other formats.",
        "num_nodes": "On Baseten it is node_count.",
        "nodes": "On Baseten it is node_count.",
        "region": "--region says it for the other formats.",
        "gpus": "It is gpu and gpu_count.",
        "image": "docker_tag picks one of axolotl's images.",
        "priority": "--priority says it for the other formats.",
    }
)
