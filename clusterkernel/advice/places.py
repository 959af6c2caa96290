"""Where files are, and whether they are still there afterwards."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from clusterkernel.advice.base import Advice, Case, Level, rule

# Places that are a node's own, on most clusters.
_LOCAL: Final = re.compile(
    r"(/tmp|/var/tmp|/dev/shm|/local|/localscratch|/local_scratch|/lscratch|/scratch/local|/mnt/local|/mnt/nvme\d*"
    r"|\$\{?(SLURM_)?TMPDIR\b[^/]*)(/|$)"
)
_OUTPUT: Final = re.compile(r"--output[_-]dir[= ]+(\"[^\"]+\"|'[^']+'|\S+)")
_EXPORT: Final = re.compile(r"^\s*(?:export\s+)?([A-Z][A-Z0-9_]*)=(\"[^\"]*\"|'[^']*'|\S*)")
_CACHES: Final = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_DATASETS_CACHE")
_CLOUDS: Final = frozenset({"modal", "kubernetes"})


def _is_local(path: str) -> bool:
    return _LOCAL.match(path) is not None


def _mounts(case: Case) -> list[str]:
    mounts = [volume.mount for volume in case.spec.storage.volumes] + [mount.target for mount in case.program.mounts]
    return [posixpath.normpath(mount) for mount in mounts]


def _kept(case: Case, path: str) -> bool:
    """Whether a path of a container lies on a volume; what cannot be told counts as kept."""
    if path.startswith(("$", "~")):
        return True
    workdir = case.spec.environment.workdir or "/"
    whole = posixpath.normpath(posixpath.join(workdir if workdir.startswith("/") else "/", path))
    return any(whole == mount or whole.startswith(f"{mount}/") for mount in _mounts(case))


def _outputs(case: Case) -> Iterator[tuple[str, str]]:
    """Where the program writes to, with the field that says so."""
    given = False
    for field, line in case.lines():
        for match in _OUTPUT.finditer(line):
            given = True
            yield field, match[1].strip("\"'")
    if not given and case.config is not None and isinstance(path := case.config.get("output_dir"), str):
        yield "output_dir", path


def _variables(case: Case) -> Mapping[str, tuple[str, str]]:
    """Variable -> its value and the field that sets it."""
    found = {name: (value, f"env.{name}") for name, value in case.env.items()}
    for number, line in enumerate(case.spec.environment.setup):
        if match := _EXPORT.match(line):
            found.setdefault(match[1], (match[2].strip("\"'"), f"setup.{number}"))
    return found


@rule("output-dir")
def output_dir(case: Case) -> Iterator[Advice]:
    """Results that are written to a node's own disk, or beside all volumes."""
    for field, path in _outputs(case):
        if case.spec.backend == "slurm" and _is_local(path):
            what = "each node keeps a part of the checkpoints" if case.nodes > 1 else "it is cleaned after the job"
            yield Advice(
                level=Level.WARNING,
                rule="output-dir",
                field=field,
                message=f"output_dir = {path} is a node's own disk: {what}.",
                fix="Write to a folder that all nodes share.",
            )
        elif case.spec.backend in _CLOUDS and _mounts(case) and not _kept(case, path):
            yield Advice(
                level=Level.WARNING,
                rule="output-dir",
                field=field,
                message=f"output_dir = {path} lies on no volume: it is gone when the job ends.",
                fix=f"Write below {_mounts(case)[0]}.",
            )
        elif case.spec.backend == "baseten" and path.startswith("/") and not _kept(case, path):
            yield Advice(
                level=Level.WARNING,
                rule="output-dir",
                field=field,
                message=f"output_dir = {path} is gone when the job ends: Baseten keeps what is in $BT_CHECKPOINT_DIR.",
                fix="Write to $BT_CHECKPOINT_DIR.",
            )


@rule("nothing-kept")
def nothing_kept(case: Case) -> Iterator[Advice]:
    """A container that has no volume: all that it writes is gone."""
    if case.spec.backend not in _CLOUDS or not case.program.steps or _mounts(case):
        return
    yield Advice(
        level=Level.WARNING,
        rule="nothing-kept",
        field="volumes",
        message="The job has no volume: what it writes is gone when it ends, checkpoints too.",
        fix="Add --volumes NAME:/data, and write below /data.",
    )


@rule("hf-cache")
def hf_cache(case: Case) -> Iterator[Advice]:
    """Models and data sets of the Hugging Face Hub that each node, or each run, downloads anew."""
    variables = _variables(case)
    cloud = case.spec.backend in _CLOUDS
    told = False
    for name in _CACHES:
        if name not in variables:
            continue
        path, field = variables[name]
        if case.spec.backend == "slurm" and _is_local(path):
            told = True
            yield Advice(
                level=Level.WARNING if case.nodes > 1 else Level.INFO,
                rule="hf-cache",
                field=field,
                message=f"{name} = {path} is a node's own disk: every node and every job downloads the model anew.",
                fix="Set it to a folder that all nodes share and that has room, outside the home folder's quota.",
            )
        elif cloud and _mounts(case) and not _kept(case, path):
            told = True
            yield Advice(
                level=Level.WARNING,
                rule="hf-cache",
                field=field,
                message=f"{name} = {path} lies on no volume: every run downloads the model anew.",
                fix=f"Set it below {_mounts(case)[0]}.",
                change=_set_env(name, posixpath.join(_mounts(case)[0], "huggingface")),
            )
    if cloud and case.axolotl and _mounts(case) and not told and not any(name in variables for name in _CACHES):
        place = posixpath.join(_mounts(case)[0], "huggingface")
        yield Advice(
            level=Level.INFO,
            rule="hf-cache",
            field="env.HF_HOME",
            message="HF_HOME is not set: every run downloads the model anew.",
            fix=f"Add --env HF_HOME={place}.",
            change=_set_env("HF_HOME", place),
        )
    home, hub = variables.get("HF_HOME"), variables.get("HF_HUB_CACHE")
    if home and hub and home[0] == hub[0]:
        yield Advice(
            level=Level.INFO,
            rule="hf-cache",
            field=hub[1],
            message="HF_HOME and HF_HUB_CACHE are the same folder: the hub's files are looked for one folder too high.",
            fix="Leave HF_HUB_CACHE out: it is the folder hub below HF_HOME.",
        )


def _set_env(name: str, value: str) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        environment = case.spec.environment
        environment = msgspec.structs.replace(environment, env={**environment.env, name: value})
        return msgspec.structs.replace(case, spec=msgspec.structs.replace(case.spec, environment=environment))

    return change
