"""A job's app: the text of the file that is deployed, and its import for the client to deploy it.

What is shown is what is sent. The file reads the same in the container, where
Modal imports it again: each object in it must be made there, too.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from clusterkernel.backends.modal import prices
from clusterkernel.backends.modal.options import Options
from clusterkernel.backends.modal.options import parse as parse_options
from clusterkernel.formats import gpu_names
from clusterkernel.formats.container.image import AXOLOTL, registry_name
from clusterkernel.formats.modal import function as modal_function
from clusterkernel.formats.modal import limits as modal_limits
from clusterkernel.formats.python_text import Source, call, literal
from clusterkernel.formats.reporting import Report
from clusterkernel.records import JobRecord
from clusterkernel.spec import JobSpec, describe

__all__ = ["FIRST", "FUNCTION", "MARGIN", "app_name", "first_time", "is_staged", "loaded", "text", "time_limit"]

FUNCTION: Final = "job"
#: Does the steps that need no GPU, and calls the other at its end.
FIRST: Final = "first"
#: Between our own end of a run, which leaves time to save, and Modal's, which does not.
MARGIN: Final = 60
_FIRST_TIME: Final = 10_800
_FIRST_MEMORY: Final = 32_768
_LEAST_MEMORY: Final = 128  # MiB, which Modal gives where none is asked for
_TAG: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")


def app_name(record: JobRecord) -> str:
    """The app's name: a person knows it by its beginning, and we by its end."""
    return f"{_readable(record)}-{record.id}-{record.key}"


def _readable(record: JobRecord) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", record.name).strip("-.")[:36] or "job"


def time_limit(spec: JobSpec) -> int:
    """Seconds after which the supervisor ends an attempt, so that outputs are saved before Modal's own limit."""
    longest = modal_limits.LONGEST
    if (bought := prices.affordable(spec)) is not None:
        longest = min(longest, bought // spec.recovery.attempts)
    return min(spec.schedule.time or longest, longest - MARGIN)


def is_staged(record: JobRecord, steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a first step is done before the job asks for GPUs, which it does not need: an axolotl run's."""
    return is_axolotl(record) and record.spec.gpus > 0 and any(step.get("once") for step in steps)


def is_axolotl(record: JobRecord) -> bool:
    """Whether it runs an axolotl configuration."""
    return record.payload.kind == "command" and record.payload.title.startswith("axolotl ")


def text(record: JobRecord, runtime: str, *, staged: bool = False) -> str:
    """The file.

    Parameters
    ----------
    record : JobRecord
        The job.
    runtime : str
        Where what runs inside a job lies on this machine.
    staged : bool
        Whether a first step is a function of its own, without GPUs.
    """
    spec = record.spec
    options = parse_options(spec.extra.get("modal", ()))
    parts = [
        f'"""Job {record.id}, {_readable(record)}: {_about(spec)}. Written by clusterkernel."""',
        "import modal",
        f"app = {_app(record)}",
        f"image = {_image(record, options, runtime)}",
        f"VOLUMES = {literal(_volumes(spec, options))}",
        _secrets(spec, options),
        "\n@" + call("app.function", _arguments(spec, options)),
    ]
    if (nodes := spec.resources.nodes) > 1:  # GPUs of several nodes talk by RDMA
        parts[-1] += f"\n@modal.clustered(size={nodes}, rdma=True)"
    more = ", after=True" * staged + f", nodes={nodes}" * (nodes > 1)
    written = "\n\n".join(parts) + "\n" + _function(FUNCTION, record, time_limit(spec), more)
    if staged:
        then = f", then=({literal(app_name(record))}, {literal(FUNCTION)})"
        first = "\n\n@" + call("app.function", _first_arguments(spec, options))
        written += first + "\n" + _function(FIRST, record, first_time(spec), then)
    return written


def _about(spec: JobSpec) -> str:
    """What it is, with the time that it gets."""
    schedule = msgspec.structs.replace(spec.schedule, time=time_limit(spec))
    return describe(msgspec.structs.replace(spec, schedule=schedule))


def _function(name: str, record: JobRecord, limit: int, more: str) -> str:
    doc = _about(record.spec) if name == FUNCTION else "What needs no GPU, before the rest"
    arguments = f"{literal(record.key)}, task, {limit}, volumes, {prices.affordable(record.spec)}{more}"
    return (
        f"def {name}(task: int) -> dict:\n"
        f'    """{doc}."""\n'
        "    from ckruntime import modalrun\n\n"
        "    volumes = list(VOLUMES.values())\n"
        f"    return modalrun.run({arguments})\n"
    )


def _app(record: JobRecord) -> str:
    tags = {"clusterkernel": record.id, **{tag: "true" for tag in record.spec.tags if _TAG.fullmatch(tag)}}
    return f"modal.App({literal(app_name(record))}, tags={literal(tags)})"


def _image(record: JobRecord, options: Options, runtime: str) -> str:
    asked = record.spec.environment.image
    if asked is None and is_axolotl(record):
        asked = AXOLOTL
    if asked is None:
        minor = f"{sys.version_info.major}.{sys.version_info.minor}"
        lines = [f"modal.Image.debian_slim(python_version={literal(minor)})"]
    else:
        lines = [f"modal.Image.from_registry({literal(registry_name(asked))})"]
    if options.apt:
        lines.append(f".apt_install({', '.join(map(literal, options.apt))})")
    if options.dockerfile:
        lines.append(f".dockerfile_commands({literal(list(options.dockerfile))})")
    packages = list(options.pip)
    if record.payload.kind != "command":
        import cloudpickle

        packages.insert(0, f"cloudpickle=={cloudpickle.__version__}")
    if packages:
        lines.append(f".pip_install({', '.join(map(literal, packages))})")
    lines.append(f'.add_local_dir({literal(runtime)}, "/root", ignore=["**/__pycache__", "**/__pycache__/**"])')
    return "(\n    " + "\n    ".join(lines) + "\n)"


def _volumes(spec: JobSpec, options: Options) -> dict[str, object]:
    create = ", create_if_missing=True" if options.create_volumes else ""
    return {
        volume.place: Source(f"modal.Volume.from_name({literal(volume.name)}{create})")
        for volume in spec.storage.volumes
    }


def _secrets(spec: JobSpec, options: Options) -> str:
    """Values are read from the person's own store, or environment, where the file is deployed; it holds names alone."""
    made: list[object] = [Source(f"modal.Secret.from_name({literal(name)})") for name in options.secret]
    lines = []
    if names := list(spec.environment.secrets):
        lines = [
            "own = {}",
            "if modal.is_local():",
            "    from clusterkernel import secretstore",
            "",
            f"    own = secretstore.values({literal(names)}, environment=True)",
        ]
        made.append(Source("modal.Secret.from_dict(own)"))
    return "\n".join([*lines, f"SECRETS = {literal(made)}"])


def _arguments(spec: JobSpec, options: Options) -> dict[str, object]:
    """The keywords of ``app.function``."""
    made = modal_function.arguments(spec, Report())
    made.pop("env", None)  # the supervisor sets it, as everywhere
    if options.gpu:  # a10g is Modal's A10: each kind is tried once
        made["gpu"] = list(dict.fromkeys([*filter(None, [made.get("gpu")]), *map(_spelled, options.gpu)]))
    if options.cpu_limit is not None:
        made["cpu"] = (made.get("cpu", 0.125), options.cpu_limit)
    if options.cloud:
        made["cloud"] = options.cloud
    if spec.max_cost is not None and (held := prices.memory_limit(spec)) is not None:
        made["memory"] = (spec.resources.memory or min(_LEAST_MEMORY, held), held)
    made["timeout"] = time_limit(spec) + MARGIN
    if spec.schedule.region and "," in spec.schedule.region:
        made["region"] = [part.strip() for part in spec.schedule.region.split(",")]
    made["single_use_containers"] = True
    return made


def _first_arguments(spec: JobSpec, options: Options) -> dict[str, object]:
    """The keywords of the function of a first step: what axolotl's own cloud module gives it, and less memory."""
    made = _arguments(spec, options)
    made.pop("gpu", None)
    stage = prices.stage(spec)
    made["cpu"] = float(stage.cpus_per_task or 8)
    made["memory"] = stage.memory or _FIRST_MEMORY
    if spec.max_cost is not None:  # both are paid for as they are used
        made |= {"cpu": (made["cpu"], made["cpu"]), "memory": (made["memory"], made["memory"])}
    made["timeout"] = first_time(spec) + MARGIN
    return made


def first_time(spec: JobSpec) -> int:
    """Seconds after which the steps without GPUs are ended."""
    return min(prices.stage(spec).time or _FIRST_TIME, time_limit(spec))


def _spelled(gpu: str) -> str:
    name, _, count = gpu.partition(":")
    mark = name[-1:] if name[-1:] in "!+" else ""
    many = f":{int(count)}" if int(count or 1) > 1 else ""  # as the first choice is spelled
    return gpu_names.MODAL[name.rstrip("!+").lower()] + mark + many


@contextmanager
def loaded(path: Path, key: str) -> Iterator[Any]:
    """The file as a module, for as long as the client looks it up by its name.

    Parameters
    ----------
    path : Path
        The file.
    key : str
        The job's key: two jobs may be sent at once.
    """
    name = f"_clusterkernel_app_{key}"
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Not by the loader, which would leave bytecode in the job's folder.
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
        yield module
    finally:
        del sys.modules[name]
