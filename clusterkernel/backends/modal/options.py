"""What a spec has no field for and Modal knows: ``extra["modal"]``, given with ``--modal``.

::

    --pip=torch==2.9.1        a package of the image; may be repeated, as --apt= and --dockerfile= may
    --gpu=A100-80GB:8         another GPU, to be taken where the first is not free; may be repeated
    --secret=wandb            a secret that Modal keeps under this name; may be repeated
    --create-volumes=true     make a volume that is not there
    --cpu-limit=16            cores at which the container is held back
    --environment=main        Modal's environment
    --cloud=aws               a cloud provider
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from clusterkernel.errors import SpecError, nearest
from clusterkernel.formats import gpu_names
from clusterkernel.formats.modal import limits

__all__ = ["Options", "parse"]

_GPU: Final = re.compile(r"([A-Za-z0-9-]+)([!+]?)(?::([0-9]{1,3}))?")
# Of these the older generation may be insisted on, or the newer taken (Modal's GPU guide).
_MARKED: Final = {"H100!", "B200+"}
# Two of our names may be one of Modal's.
_GPU_HINT: Final = (
    f"Write one of {', '.join(dict.fromkeys(gpu_names.MODAL.values()))}, and at most {limits.HOST} "
    f"({', '.join(f'{most} {name}' for name, most in gpu_names.MODAL_MOST.items())})."
)


def _is_gpu(text: str) -> bool:
    match = _GPU.fullmatch(text)
    if match is None or match[1].lower() not in gpu_names.MODAL:
        return False
    name = gpu_names.MODAL[match[1].lower()]
    if match[2] and name + match[2] not in _MARKED:
        return False
    return 1 <= int(match[3] or 1) <= gpu_names.MODAL_MOST.get(name, limits.HOST)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) is not None and float(text) > 0


_SINGLE: Final[Mapping[str, Callable[[str], bool]]] = {
    "cpu-limit": _is_number,
    "environment": limits.is_name,
    "cloud": str.isidentifier,
    "create-volumes": {"true", "false"}.__contains__,
}
_SEVERAL: Final[Mapping[str, Callable[[str], bool]]] = {
    "pip": bool,
    "apt": bool,
    "dockerfile": bool,
    "gpu": _is_gpu,
    "secret": limits.is_name,
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options, read."""

    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    dockerfile: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()
    cpu_limit: float | None = None
    environment: str = ""
    cloud: str = ""
    create_volumes: bool = False


def parse(options: Iterable[str]) -> Options:
    """Read the options.

    Raises
    ------
    SpecError
        One that Modal has no place for, or whose value it surely refuses.
    """
    several: dict[str, list[str]] = {}
    single: dict[str, str] = {}
    for option in options:
        key, equals, value = option.removeprefix("--").partition("=")
        known = {**_SINGLE, **_SEVERAL}
        if key not in known:
            raise _error(option, "is no option of Modal's", nearest(key, known) or "Write --pip=PACKAGE.")
        if not equals or not known[key](value):
            raise _error(
                option, f"has a value that is no {key}", _GPU_HINT if key == "gpu" else f"Write --{key}=VALUE."
            )
        if key in _SEVERAL:
            several.setdefault(key, []).append(value)
        else:
            single[key] = value
    return Options(
        **{key: tuple(values) for key, values in several.items()},
        cpu_limit=float(single["cpu-limit"]) if "cpu-limit" in single else None,
        environment=single.get("environment", ""),
        cloud=single.get("cloud", ""),
        create_volumes=single.get("create-volumes") == "true",
    )


def _error(option: str, what: str, hint: str) -> SpecError:
    return SpecError(f'--modal "{option}" {what}.', field="--modal", hint=hint)
