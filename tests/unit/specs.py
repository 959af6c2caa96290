"""Specs and programs that hypothesis makes."""

from __future__ import annotations

import string

import msgspec
from hypothesis import strategies as st

from clusterkernel import fields
from clusterkernel.formats.model import Mount, Program, Runs, Step
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

__all__ = ["kept", "kinds", "programs", "specs"]

WORDS = st.text(string.ascii_letters + string.digits + "-_. ", min_size=1, max_size=20).filter(str.strip).map(str.strip)
NAMES = st.from_regex(r"[A-Z][A-Z0-9_]{0,12}", fullmatch=True).filter(lambda name: not name.startswith("SLURM"))
# Nothing that has the form of a key, nor a name that says so: readers take them for secrets.
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30)
PATHS = st.from_regex(r"/[a-z]{1,8}(/[a-z0-9_]{1,8}){0,2}", fullmatch=True)
SIZES = st.integers(1, 1 << 22)
GPUS = st.builds(
    GpuRequest,
    count=st.integers(1, 8),
    type=st.sampled_from([None, "h100", "a100", "a100-80gb", "l40s", "t4", "mi300x", "gtx1080"]),
)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    return st.none() | strategy


NODES = st.integers(1, 4)
IMAGES = ["pytorch/pytorch:latest", "nvcr.io#nvidia/pytorch:24.01", "/x/y.sqsh"]
SETUP = ["module load cuda", "source env.sh", "ulimit -n 4096"]


def kinds(spec: JobSpec) -> st.SearchStrategy[JobSpec]:
    """The spec as each kind of object that a manifest can have for it."""
    fitting = ["", "kind=Job", "kind=TrainJob", "kind=TrainJob"] if spec.array is None else [""]
    return st.sampled_from(fitting).map(
        lambda kind: msgspec.structs.replace(spec, extra={"kubernetes": (kind,)} if kind else {})
    )


@st.composite
def specs(draw: st.DrawFn, *, nodes: st.SearchStrategy = NODES) -> JobSpec:
    """A spec of any fields; memory limits are above requests, and no name is a secret and a variable."""
    memory = draw(maybe(SIZES))
    secrets = draw(st.lists(NAMES.map(lambda name: f"{name}_TOKEN"), max_size=2, unique=True))
    env = draw(st.dictionaries(NAMES.filter(lambda name: not name.endswith(("TOKEN", "SECRET"))), TEXTS, max_size=3))
    volumes = draw(st.lists(st.tuples(WORDS, PATHS), max_size=2, unique_by=(lambda v: v[0], lambda v: v[1])))
    count = draw(nodes)
    return JobSpec(
        name=draw(maybe(WORDS)),
        launcher=draw(st.sampled_from(Launcher)),
        parallelism=draw(maybe(st.integers(1, 8))),
        max_cost=draw(maybe(st.integers(1, 100).map(float))),
        tags=tuple(draw(st.lists(WORDS, max_size=2, unique=True))),
        resources=Resources(
            nodes=count,
            gpus_per_node=draw(maybe(GPUS)),
            tasks_per_node=draw(maybe(st.integers(1, 8))),
            cpus_per_task=draw(maybe(st.integers(1, 64))),
            memory=memory,
            memory_limit=draw(maybe(SIZES.map(lambda size: size + (memory or 0)))),
        ),
        schedule=Schedule(
            time=draw(maybe(st.integers(60, 400_000))),
            partition=draw(maybe(WORDS)),
            account=draw(maybe(WORDS)),
            qos=draw(maybe(WORDS)),
            priority=draw(maybe(st.sampled_from(["TOP", "100", "high-priority"]))),
            constraint=draw(maybe(st.sampled_from(["ib", "ib&h100", "pool=train", "a=b&c", "[rack1|rack2]"]))),
            exclusive=draw(st.booleans()),
            network=draw(maybe(st.just("ib"))),
            region=draw(maybe(st.sampled_from(["us-east", "eu-west-1"]))),
            zone=draw(maybe(st.sampled_from(["us-east-1a", "b c"]))),
            reservation=draw(maybe(WORDS)),
            dependency=draw(maybe(st.just("afterok:12"))),
        ),
        recovery=Recovery(
            attempts=draw(st.integers(1, 12)),
            backoff=draw(maybe(st.integers(1, 600))),
            requeue=draw(st.sampled_from([None, True, False])),
            checkpoint_signal=draw(maybe(st.sampled_from(["USR1@120", "TERM@60", "USR2"]))),
        ),
        environment=Environment(
            env=env,
            secrets=tuple(name for name in secrets if name not in env),
            image=draw(maybe(st.sampled_from(IMAGES))),
            setup=tuple(draw(st.lists(st.sampled_from(SETUP), max_size=2))),
            interpreter=draw(maybe(st.just("/opt/venv/bin/python"))),
            workdir=draw(maybe(PATHS | st.just("~/project"))),
            files=tuple(draw(st.lists(st.sampled_from(["data.csv", "/etc/hosts", "src"]), max_size=2, unique=True))),
        ),
        storage=Storage(
            volumes=tuple(Volume(name=name, mount=mount) for name, mount in volumes),
            ephemeral_disk=draw(maybe(SIZES)),
            shm=draw(maybe(SIZES)),
        ),
        stages=draw(
            st.sampled_from([(), (Stage(name="preprocess", cpus_per_task=4, memory=8192, time=3600),)]),
        ),
        array=draw(maybe(st.builds(Array, size=st.integers(2, 20)))) if count == 1 else None,
        extra={"slurm": ("--mail-type=END",)} if draw(st.booleans()) else {},
    )


PROGRAMS = (
    Program(steps=(Step(name="run", shell="python train.py --lr 1e-4"),)),
    Program(
        config="train.yaml",
        steps=(
            Step(name="preprocess", shell="axolotl preprocess train.yaml", runs=Runs.HEAD),
            Step(name="train", shell="axolotl train train.yaml", runs=Runs.NODES, launched=True),
        ),
    ),
    Program(
        steps=(
            Step(name="prepare", shell="python get.py\npython more.py $SLURM_JOB_ID", runs=Runs.HEAD),
            Step(
                name="run",
                shell='train.py --out "$OUT"',
                runs=Runs.NODES,
                launched=True,
                launcher_args=("--max-restarts=3",),
            ),
        ),
        mounts=(Mount("/scratch", "/scratch"), Mount("/etc/x", "/x", "ro")),
        options={"slurm": ("--output=log",)},
    ),
)


def programs() -> st.SearchStrategy[Program]:
    """A program of one step or of several."""
    return st.sampled_from(PROGRAMS)


def kept(spec: JobSpec, program: Program) -> dict[str, str]:
    """All that a spec and a program say, by the names of the report."""
    return dict(said(spec, program))


def without(spec: JobSpec, **values: object) -> JobSpec:
    """The spec with fields replaced, by their flat names."""
    for name, value in values.items():
        group = fields.FIELDS[name].group
        inner = msgspec.structs.replace(getattr(spec, group) if group else spec, **{name: value})
        spec = msgspec.structs.replace(spec, **{group: inner}) if group else inner
    return spec
