"""The environments that Slurm's commands, and jobs on this machine, run in.

What sbatch sees it stores: in the controller's state, and where
``AccountingStoreFlags=job_env`` is set in the database too. So it sees only
names from a list, and a job finds its secrets in another way. Queries see all
but what would change their output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["for_local", "for_queries", "for_sbatch", "which_cluster"]

# Names that a job inherits from the kernel. Anything else is said with --env.
KEPT: Final = frozenset(
    """
    PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM SLURM_CONF
    LD_LIBRARY_PATH LIBRARY_PATH CPATH PKG_CONFIG_PATH MANPATH PYTHONPATH
    VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV CONDA_EXE CONDA_PYTHON_EXE CONDA_SHLVL CONDA_ENVS_PATH
    MAMBA_EXE MAMBA_ROOT_PREFIX PYENV_ROOT PYENV_VERSION
    MODULEPATH MODULESHOME MODULES_CMD LOADEDMODULES _LMFILES_ BASH_ENV
    CUDA_HOME CUDA_PATH ROCM_PATH SCRATCH WORK
    HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE TORCH_HOME TRITON_CACHE_DIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME
    SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
    CLUSTERKERNEL_JOB_ROOT CLUSTERKERNEL_PROFILES CLUSTERKERNEL_SECRETS
    """.split()
)
KEPT_PREFIXES: Final = ("LC_", "LMOD_", "BASH_FUNC_module", "BASH_FUNC_ml%%", "BASH_FUNC_ml(")
_PROXY: Final = frozenset({"http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy"})
_SECRET: Final = re.compile(r"TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL", re.IGNORECASE)
# A job that submits must not pass on what Slurm, or an MPI, told it about itself.
_SLURM: Final = re.compile(r"(SLURM|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SACCT|SACCTMGR|SCONTROL|SCANCEL|PMI|PMIX)[0-9]*_")


# What a launcher tells the ranks of a job, and what our own supervisor tells its payload.
_RANK: Final = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?RANK$|(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE$|ROLE_NAME$|MASTER_(ADDR|PORT)$|TORCHELASTIC_"
    r"|OMPI_COMM_|CLUSTERKERNEL_(JOB|JOB_DIR|OUT|TASK|RANK|WORLD|ATTEMPT|PLATFORM_ID|RENDEZVOUS|RUNTIME)$"
)


def for_local(environ: Mapping[str, str]) -> dict[str, str]:
    """What a job on this machine inherits: all but what an outer job was told of itself."""
    return {
        name: value
        for name, value in environ.items()
        if name == "SLURM_CONF" or not (_SLURM.match(name) or _RANK.match(name))
    }


def for_sbatch(environ: Mapping[str, str]) -> dict[str, str]:
    """What a submission, and so the job, inherits of `environ`."""
    kept = {}
    for name, value in environ.items():
        if name in KEPT or name.startswith(KEPT_PREFIXES):
            if not _SECRET.search(name):
                kept[name] = value
        elif name.lower() in _PROXY and "@" not in value:  # else it holds a password
            kept[name] = value
    return kept


def which_cluster(environ: Mapping[str, str]) -> str:
    """Which configuration Slurm's commands read, as far as the environment tells."""
    return f"conf:{environ.get('SLURM_CONF', '')}"


def for_queries(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what changes the output of Slurm's commands.

    English messages, times as Unix seconds, and array ranges that are not cut
    after 64 characters.
    """
    kept = {name: value for name, value in environ.items() if name == "SLURM_CONF" or not _SLURM.match(name)}
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
