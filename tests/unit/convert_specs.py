"""Specs and programs made by hypothesis, and what two of them have in common."""

from __future__ import annotations

import string
from typing import Any

import msgspec
from hypothesis import strategies as st

from clusterkernel.formats import secrets
from clusterkernel.formats.model import Program, Runs, Step
from clusterkernel.formats.reporting import said
from clusterkernel.spec import (
    Array,
    Environment,
    JobSpec,
    Launcher,
    Recovery,
    Resources,
    Schedule,
    Stage,
    Storage,
    Volume,
)
from clusterkernel.units import GpuRequest

WORD = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=12).filter(lambda text: text[0].isalpha())
# No name that says a secret: each format takes those by their names.
NAME = (
    st.text(string.ascii_uppercase + "_", min_size=3, max_size=12)
    .map(lambda text: "V_" + text)
    .filter(lambda name: not secrets.is_name(name))
)
# What a shell, YAML, TOML and Python could each trip over.
VALUE = st.text(string.ascii_letters + string.digits + " -_./:,=+@%#'\"$\\!*?{}[]()&|;<>~^é", max_size=20)
LINE = st.sampled_from(
    [
        "module load cuda/12.4",
        "source /opt/venv/bin/activate",
        "pip install -U deepspeed",
        "mkdir -p out",
        "ulimit -n 65535",
        "echo 'two words' \"$HOME\"",
    ]
)
GPUS = st.builds(
    GpuRequest,
    count=st.integers(1, 8),
    type=st.sampled_from([None, "h100", "a100-80gb", "l40s"]),
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


RESOURCES = st.builds(
    Resources,
    nodes=st.integers(1, 8),
    gpus_per_node=maybe(GPUS),
    tasks_per_node=maybe(st.integers(1, 8)),
    cpus_per_task=maybe(st.integers(1, 64)),
    memory=maybe(st.one_of(st.integers(1, 1024).map(lambda gib: gib * 1024), st.integers(600, 600_000))),
)
SCHEDULE = st.builds(
    Schedule,
    time=maybe(st.one_of(st.integers(1, 24).map(lambda hours: hours * 3600), st.integers(60, 86_400))),
    partition=maybe(WORD),
    account=maybe(WORD),
    qos=maybe(WORD),
    priority=maybe(st.sampled_from(["100", "TOP", "high"])),
    constraint=maybe(st.sampled_from(["ib", "ib&h100", "[rack1|rack2]"])),
    exclusive=st.booleans(),
    network=maybe(st.just("ib")),
    region=maybe(st.just("us-east")),
    zone=maybe(st.just("us-east-1a")),
    reservation=maybe(WORD),
    dependency=maybe(st.sampled_from(["afterok:12", "singleton"])),
)
RECOVERY = st.builds(
    Recovery,
    attempts=st.integers(1, 5),
    backoff=maybe(st.integers(1, 50)),
    requeue=st.sampled_from([None, True]),
    checkpoint_signal=maybe(st.sampled_from(["USR1@120", "TERM@60"])),
)
ENVIRONMENT = st.builds(
    Environment,
    env=st.dictionaries(NAME, VALUE, max_size=3),
    secrets=st.lists(st.sampled_from(["HF_TOKEN", "WANDB_API_KEY"]), unique=True, max_size=2).map(tuple),
    image=maybe(st.sampled_from(["axolotlai/axolotl:main-latest", "nvcr.io/nvidia/pytorch:25.01-py3"])),
    setup=st.lists(LINE, unique=True, max_size=3).map(tuple),
    workdir=maybe(st.sampled_from(["/data/run", "~/project"])),
)
STORAGE = st.builds(
    Storage,
    volumes=st.lists(
        st.builds(Volume, name=WORD, mount=WORD.map(lambda word: f"/mnt/{word}")),
        unique_by=(lambda volume: volume.name, lambda volume: volume.mount),
        max_size=2,
    ).map(tuple),
    ephemeral_disk=maybe(st.integers(1, 500).map(lambda gib: gib * 1024)),
    shm=maybe(st.integers(1, 64).map(lambda gib: gib * 1024)),
)


@st.composite
def jobs(draw: st.DrawFn, *, axolotl: bool | None = None) -> tuple[JobSpec, Program]:
    """A spec and a program that fit together."""
    kinds = ["axolotl", "torchrun", "accelerate", "plain"] if axolotl is None else ["axolotl"] if axolotl else ["none"]
    kind = draw(st.sampled_from(kinds))
    resources = draw(RESOURCES)
    launcher = Launcher.NONE
    steps: tuple[Step, ...] = ()
    config = ""
    stages: tuple[Stage, ...] = ()
    if kind == "axolotl":
        launcher, config = Launcher.TORCHRUN, "train.yaml"
        steps = (Step(name="train", shell="axolotl train train.yaml", runs=Runs.NODES, launched=True),)
        if draw(st.booleans()):
            steps = (Step(name="preprocess", shell="axolotl preprocess train.yaml", runs=Runs.HEAD), *steps)
            if draw(st.booleans()):
                stages = (Stage(name="preprocess", memory=draw(st.integers(1, 64)) * 1024, time=3600),)
    elif kind in ("torchrun", "accelerate"):
        launcher = Launcher(kind)
        args = ("--max_restarts=2",) if kind == "torchrun" and draw(st.booleans()) else ()
        shell = draw(st.sampled_from(["train.py --lr 1e-4", "-m package.train --note 'two words'"]))
        steps = (Step(name="run", shell=shell, runs=Runs.NODES, launched=True, launcher_args=args),)
    elif kind == "plain":
        runs = draw(st.sampled_from([Runs.RANKS, Runs.HEAD]))
        steps = (Step(name="run", shell="python train.py --lr 1e-4", runs=runs),)
    array = draw(maybe(st.builds(Array, size=st.integers(2, 50)))) if kind == "plain" else None
    spec = JobSpec(
        backend="slurm",
        name=draw(maybe(WORD)),
        launcher=launcher,
        parallelism=draw(maybe(st.integers(1, 8))) if array else None,
        resources=resources,
        schedule=draw(SCHEDULE),
        recovery=draw(RECOVERY),
        environment=draw(ENVIRONMENT),
        storage=draw(STORAGE),
        stages=stages,
        array=array,
    )
    return spec, Program(steps=steps, config=config)


def held(spec: JobSpec, program: Program) -> dict[str, str]:
    """All that a spec and a program say, by the names of fields; ranks as a number, whoever says it."""
    ranks = msgspec.structs.replace(spec.resources, tasks_per_node=spec.ranks_per_node)
    found = dict(said(msgspec.structs.replace(spec, resources=ranks), program))
    return {field: value for field, value in found.items() if not field.startswith("program.options")}


def same(field: str, before: dict[str, str], after: dict[str, str]) -> bool:
    """Whether a field is the same in both; items without a name of their own may have moved."""
    group, _, last = field.rpartition(".")
    if last.isdecimal():
        return before[field] in [value for other, value in after.items() if other.rpartition(".")[0] == group]
    return before[field] == after.get(field)
