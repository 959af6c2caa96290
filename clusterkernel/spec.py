"""What a run needs: the one schema.

Flags, form fields, profile keys and the JSON schema are made from the fields
below, so that they cannot differ. The leaves have one flat name space: the
profile key ``gpus_per_node``, the flag ``--gpus-per-node`` and the attribute
``spec.resources.gpus_per_node`` are the same field.

Counts are per node, memory is MiB per node, times are seconds.
"""

from __future__ import annotations

import enum
import posixpath
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from clusterkernel.units import GpuRequest, format_duration, format_memory

__all__ = [
    "Array",
    "Environment",
    "JobSpec",
    "Launcher",
    "Recovery",
    "Resources",
    "Schedule",
    "Stage",
    "Storage",
    "Volume",
]


def _meta(help: str, example: str = "", *, unit: str = "text", flag: bool = True, **limits: Any) -> Meta:
    """A field's one-line help, an example as a person writes it, and how its text is read."""
    return Meta(
        description=help,
        examples=[example] if example else None,
        extra={"unit": unit, "flag": flag},
        **limits,
    )


class Launcher(str, enum.Enum):
    """What starts the ranks of a node."""

    NONE = "none"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"


class _Group(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group of fields of `JobSpec`. A field of a newer version is passed over when a record is read."""


class Resources(_Group, frozen=True):
    """What each node brings."""

    nodes: Annotated[int, _meta("Number of nodes.", "2", unit="count", ge=1, le=100_000)] = 1
    gpus_per_node: Annotated[
        GpuRequest | None, _meta("GPUs of each node, with or without the type.", "h100:8", unit="gpus")
    ] = None
    tasks_per_node: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        _meta("Ranks of each node; by itself one for each GPU, else one.", "8", unit="count"),
    ] = None
    cpus_per_task: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None, _meta("CPU cores of each rank.", "16", unit="count")
    ] = None
    memory: Annotated[Annotated[int, Meta(ge=1)] | None, _meta("Memory of each node.", "512G", unit="memory")] = None
    memory_limit: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _meta("Memory at which a node's part is ended, where the platform knows two numbers.", "600G", unit="memory"),
    ] = None


class Schedule(_Group, frozen=True):
    """Where and when it may run."""

    time: Annotated[Annotated[int, Meta(ge=1)] | None, _meta("Time limit of the run.", "4h", unit="time")] = None
    partition: Annotated[str | None, _meta("Partition (queue) to run in.", "gpu")] = None
    account: Annotated[str | None, _meta("Account that is charged.", "research")] = None
    qos: Annotated[str | None, _meta("Quality of service.", "normal")] = None
    priority: Annotated[str | None, _meta("Priority, where the platform lets you set one.", "high")] = None
    constraint: Annotated[str | None, _meta("Features that the nodes must have.", "ib")] = None
    exclusive: Annotated[bool, _meta("Whole nodes, shared with nobody.", unit="switch")] = False
    network: Annotated[str | None, _meta("Network asked for, as the platform spells it.", "ib")] = None
    region: Annotated[str | None, _meta("Region of a cloud.", "us-east")] = None
    zone: Annotated[str | None, _meta("Zone of a cloud's region.", "us-east-1a")] = None
    reservation: Annotated[str | None, _meta("Reservation to run in.", "course")] = None
    dependency: Annotated[str | None, _meta("Jobs to wait for, as the platform spells it.", "afterok:8123")] = None


class Recovery(_Group, frozen=True):
    """What happens after a failure or a pre-emption."""

    attempts: Annotated[int, _meta("How often the run may start in all.", "3", unit="count", ge=1, le=100)] = 1
    backoff: Annotated[
        Annotated[int, Meta(ge=1)] | None, _meta("Pause before another attempt.", "30s", unit="time")
    ] = None
    requeue: Annotated[bool | None, _meta("Queue again after a lost node or a pre-emption.", unit="switch")] = None
    checkpoint_signal: Annotated[
        str | None, _meta("Signal sent before the time limit, with how long before.", "USR1@120")
    ] = None


class Environment(_Group, frozen=True):
    """What the code finds around it."""

    env: Annotated[dict[str, str], _meta("Environment variables.", "NCCL_DEBUG=INFO", unit="pairs")] = {}
    secrets: Annotated[tuple[str, ...], _meta("Secrets, by name.", "HF_TOKEN", unit="names")] = ()
    image: Annotated[str | None, _meta("Container image.", "pytorch/pytorch:latest")] = None
    setup: Annotated[
        tuple[str, ...],
        _meta("Shell line to run before the code; one that fails ends the job.", "module load cuda/12.4", unit="lines"),
    ] = ()
    interpreter: Annotated[
        str | None, _meta("Python on the nodes; by itself the notebook's.", "/opt/venv/bin/python")
    ] = None
    workdir: Annotated[str | None, _meta("Working folder; by itself the notebook's.", "~/project")] = None
    files: Annotated[
        tuple[str, ...],
        _meta("File or folder to take along, as it is now: it lies in $CLUSTERKERNEL_FILES.", "data.csv", unit="names"),
    ] = ()


class Volume(_Group, frozen=True):
    """A named store of a cloud and where the job sees it."""

    name: str
    mount: str

    @property
    def place(self) -> str:
        """The mount point, spelled in the one way that all its spellings have in common."""
        return "/" + posixpath.normpath(self.mount).lstrip("/")


class Storage(_Group, frozen=True):
    """What the job keeps files on."""

    volumes: Annotated[
        tuple[Volume, ...], _meta("Volume of a cloud and its mount point.", "data:/data", unit="volumes")
    ] = ()
    ephemeral_disk: Annotated[
        Annotated[int, Meta(ge=1)] | None, _meta("Scratch disk of each node.", "500G", unit="memory")
    ] = None
    shm: Annotated[
        Annotated[int, Meta(ge=1)] | None, _meta("Size of /dev/shm in a container.", "64G", unit="memory")
    ] = None


class Stage(_Group, frozen=True):
    """A step that comes before the run, with needs of its own."""

    name: str
    cpus_per_task: int | None = None
    memory: int | None = None
    time: int | None = None


class Array(_Group, frozen=True):
    """One logical job of many tasks."""

    size: Annotated[int, Meta(ge=1)]


class JobSpec(_Group, frozen=True):
    """The description of one run, complete and independent of any platform."""

    backend: Annotated[str, _meta("Where to run.", "slurm")] = "local"
    name: Annotated[str | None, _meta("The platform's name of the job.", "llama-sft")] = None
    launcher: Annotated[Launcher, _meta("What starts the ranks of a node.", "torchrun", unit="choice")] = Launcher.NONE
    parallelism: Annotated[
        Annotated[int, Meta(ge=1)] | None, _meta("Array tasks that run at once.", "8", unit="count")
    ] = None
    max_cost: Annotated[
        Annotated[float, Meta(gt=0)] | None, _meta("Most that the run may cost, in dollars.", "20", unit="number")
    ] = None
    tags: Annotated[tuple[str, ...], _meta("Tag to find the job by.", "sweep-3", unit="names")] = ()
    resources: Resources = Resources()
    schedule: Schedule = Schedule()
    recovery: Recovery = Recovery()
    # Of its own: its dict can be changed, frozen or not.
    environment: Environment = msgspec.field(default_factory=Environment)
    storage: Storage = Storage()
    stages: tuple[Stage, ...] = ()
    array: Array | None = None
    extra: dict[str, tuple[str, ...]] = {}

    @property
    def ranks_per_node(self) -> int:
        """Ranks of each node: asked for, else one for each GPU, else one."""
        gpus = self.resources.gpus_per_node
        return self.resources.tasks_per_node or (gpus.count if gpus else 1)

    @property
    def tasks_per_node(self) -> int:
        """Processes that the platform itself starts on each node: one launcher, or every rank."""
        return 1 if self.launcher is not Launcher.NONE else self.ranks_per_node

    @property
    def processes(self) -> int:
        """Processes that the platform itself starts, over all nodes."""
        return self.resources.nodes * self.tasks_per_node

    @property
    def gpus(self) -> int:
        """GPUs of the whole job."""
        gpus = self.resources.gpus_per_node
        return self.resources.nodes * gpus.count if gpus else 0


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")


def to_json(spec: JobSpec) -> bytes:
    """The spec as JSON, the same bytes for equal specs."""
    return _ENCODER.encode(spec)


def from_json(data: bytes) -> JobSpec:
    """The spec that `to_json` wrote.

    Raises
    ------
    msgspec.ValidationError
        The data is not a spec.
    """
    return msgspec.json.decode(data, type=JobSpec)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a spec."""
    return msgspec.json.schema(JobSpec)


def describe(spec: JobSpec) -> str:
    """The counts, their products and the limits: ``2 nodes x 8 H100 = 16 GPUs, 16 ranks, at most 4h``."""
    nodes = spec.resources.nodes
    head = f"{nodes} node{'s' if nodes > 1 else ''}"
    if gpus := spec.resources.gpus_per_node:
        total = nodes * gpus.count
        kind = gpus.type.upper() if gpus.type else ("GPUs" if gpus.count > 1 else "GPU")
        text = f"{head} x {gpus.count} {kind} = {total} GPU{'s' if total > 1 else ''}"
    else:
        text = head
    ranks = nodes * spec.ranks_per_node
    if ranks == spec.gpus and ranks > 1:
        text += f", {ranks} ranks"
    elif ranks != (spec.gpus or 1):
        text += f", {nodes} x {spec.ranks_per_node} = {ranks} rank{'s' if ranks > 1 else ''}"
    if cpus := spec.resources.cpus_per_task:
        product = f"{ranks} x {cpus} = " if ranks > 1 else ""
        text += f", {product}{ranks * cpus} CPU{'s' if ranks * cpus > 1 else ''}"
    if memory := spec.resources.memory:
        text += f", {format_memory(memory)}" + (" on each" if nodes > 1 else "")
    if spec.array:
        text += f", {spec.array.size} array task{'s' if spec.array.size > 1 else ''}"
    if spec.schedule.time:
        text += f", at most {format_duration(spec.schedule.time)}"
    return text
