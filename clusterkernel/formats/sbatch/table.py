"""sbatch's options: which there are, and which take a value.

Those of 22.05.8, which was asked for each of them; newer ones from its man page.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from clusterkernel.formats.sbatch.options import ALIASES, SHORT

__all__ = ["ENVIRONMENT", "LONG", "NEWER", "PLUGIN", "SHORT_FLAGS", "Takes", "canonical"]


class Takes(enum.Enum):
    """Whether an option takes a value."""

    VALUE = "value"
    MAYBE = "maybe"  # only behind an equals sign
    NOTHING = "nothing"


_VALUE: Final = """
account acctg-freq array batch bb bbf begin chdir cluster cluster-constraint clusters comment constraint container
core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error
exclude export export-file extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task
gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind
mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition power prefer priority profile qos
reservation signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp uid
wait-all-nodes wckey wrap
"""
_MAYBE: Final = "exclusive get-user-env nice no-kill propagate"
_NOTHING: Final = """
contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot requeue spread-job
test-only usage use-min-nodes verbose version wait
"""

LONG: Final[Mapping[str, Takes]] = MappingProxyType(
    {
        **dict.fromkeys(_VALUE.split(), Takes.VALUE),
        **dict.fromkeys(_MAYBE.split(), Takes.MAYBE),
        **dict.fromkeys(_NOTHING.split(), Takes.NOTHING),
    }
)
#: Options of later versions; sbatch 22.05 refuses them.
NEWER: Final[Mapping[str, Takes]] = MappingProxyType(
    {
        **dict.fromkeys(
            "container-id extra oom-kill-step resv-ports segment tres-bind tres-per-task x11".split(), Takes.VALUE
        ),
        **dict.fromkeys("consolidate-segments spread-segments stepmgr".split(), Takes.NOTHING),
    }
)
#: What pyxis adds where a site has it; also to srun.
PLUGIN: Final[Mapping[str, Takes]] = MappingProxyType(
    {
        **dict.fromkeys(
            "container-image container-mounts container-workdir container-name container-save container-env".split(),
            Takes.VALUE,
        ),
        **dict.fromkeys(
            "container-mount-home no-container-mount-home container-remap-root no-container-remap-root "
            "container-entrypoint no-container-entrypoint container-writable container-readonly".split(),
            Takes.NOTHING,
        ),
    }
)
#: Short options without a value; `k` takes one that is attached.
SHORT_FLAGS: Final = frozenset("HIOQVWhksv")
#: Variables that stand for options; what is here overrides the script (sbatch's man page, INPUT ENVIRONMENT VARIABLES).
ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "SBATCH_ACCOUNT": "account",
        "SBATCH_ACCTG_FREQ": "acctg-freq",
        "SBATCH_ARRAY_INX": "array",
        "SBATCH_BATCH": "batch",
        "SBATCH_CLUSTERS": "clusters",
        "SBATCH_CONSTRAINT": "constraint",
        "SBATCH_CORE_SPEC": "core-spec",
        "SBATCH_CPUS_PER_GPU": "cpus-per-gpu",
        "SBATCH_DELAY_BOOT": "delay-boot",
        "SBATCH_DISTRIBUTION": "distribution",
        "SBATCH_ERROR": "error",
        "SBATCH_EXCLUSIVE": "exclusive",
        "SBATCH_EXPORT": "export",
        "SBATCH_GPUS": "gpus",
        "SBATCH_GPUS_PER_NODE": "gpus-per-node",
        "SBATCH_GPUS_PER_TASK": "gpus-per-task",
        "SBATCH_GRES": "gres",
        "SBATCH_GRES_FLAGS": "gres-flags",
        "SBATCH_HINT": "hint",
        "SBATCH_INPUT": "input",
        "SBATCH_JOB_NAME": "job-name",
        "SBATCH_MEM_PER_CPU": "mem-per-cpu",
        "SBATCH_MEM_PER_GPU": "mem-per-gpu",
        "SBATCH_MEM_PER_NODE": "mem",
        "SBATCH_NETWORK": "network",
        "SBATCH_NO_KILL": "no-kill",
        "SBATCH_NO_REQUEUE": "no-requeue",
        "SBATCH_OPEN_MODE": "open-mode",
        "SBATCH_OUTPUT": "output",
        "SBATCH_OVERCOMMIT": "overcommit",
        "SBATCH_PARTITION": "partition",
        "SBATCH_PROFILE": "profile",
        "SBATCH_QOS": "qos",
        "SBATCH_REQUEUE": "requeue",
        "SBATCH_RESERVATION": "reservation",
        "SBATCH_SIGNAL": "signal",
        "SBATCH_SPREAD_JOB": "spread-job",
        "SBATCH_THREAD_SPEC": "thread-spec",
        "SBATCH_THREADS_PER_CORE": "threads-per-core",
        "SBATCH_TIMELIMIT": "time",
        "SBATCH_USE_MIN_NODES": "use-min-nodes",
        "SBATCH_WCKEY": "wckey",
    }
)
_SAME: Final = {**ALIASES, "cluster": "clusters"}


def canonical(name: str) -> str:
    """An option's own name, for its aliases and single letters."""
    if len(name) == 1:
        name = SHORT.get(name, name)
    return _SAME.get(name, name)
