"""The image of a job that a platform has to pull."""

from __future__ import annotations

import re
from typing import Final

from clusterkernel.errors import SpecError, shown
from clusterkernel.formats.model import Program
from clusterkernel.formats.reporting import Report
from clusterkernel.spec import JobSpec

__all__ = ["image_of", "is_file", "registry_name"]

AXOLOTL: Final = "axolotlai/axolotl:main-latest"
GENERAL: Final = "pytorch/pytorch:latest"
_FILES: Final = (".sif", ".sqsh", ".squashfs", ".simg")
# As registries read a name: [host[:port]/]path[:tag][@digest].
_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_NAME: Final = re.compile(
    rf"(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[\w+.-]+:[0-9A-Fa-f]{{32,}})?",
    re.ASCII,
)


def is_file(image: str) -> bool:
    """Whether it is a file of the cluster, which no registry has."""
    return image.startswith(("/", "./", "../", "~")) or image.endswith(_FILES)


def registry_name(image: str) -> str:
    """The image's name in a registry: pyxis writes ``nvcr.io#nvidia/pytorch``, apptainer has a scheme before it.

    Raises
    ------
    SpecError
        No registry knows such names.
    """
    name = image
    for scheme in ("docker://", "oras://", "dockerd://"):
        name = name.removeprefix(scheme)
    name = name.replace("#", "/", 1)
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"--image = {shown(image)} is no name of an image.",
            field="--image",
            hint="Write it as team/image:tag: small letters, digits, dots, dashes and underscores.",
        )
    return name


def image_of(spec: JobSpec, program: Program, report: Report, *, key: str = "image") -> str:
    """The image's name in a registry, told to `report`.

    Slurm's containers may be a file of the cluster, which no other platform can
    reach: then a common image stands for it.

    Raises
    ------
    SpecError
        No registry knows such names.
    """
    axolotl = bool(program.config) or any(step.axolotl for step in program.steps)
    common = AXOLOTL if axolotl else GENERAL
    asked = spec.environment.image
    if asked is None:
        report.assumed("image", key, common, "A container needs an image, and none is named.")
        return common
    if is_file(asked):
        why = f"{asked} is a file of the cluster: push it to a registry; until then a common image stands for it."
        report.changed("image", key, common, why)
        return common
    if (name := registry_name(asked)) == asked:
        report.exact("image", key, name)
    else:
        report.changed("image", key, name, "It is the same image, as a registry names it.")
    return name
