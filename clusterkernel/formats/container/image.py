"""The image of a job that a platform has to pull."""

from __future__ import annotations

from typing import Final

from clusterkernel.formats.model import Program
from clusterkernel.formats.reporting import Report
from clusterkernel.spec import JobSpec

__all__ = ["image_of"]

AXOLOTL: Final = "axolotlai/axolotl:main-latest"
GENERAL: Final = "pytorch/pytorch:latest"
_FILES: Final = (".sif", ".sqsh", ".squashfs", ".simg")


def image_of(spec: JobSpec, program: Program, report: Report, *, key: str = "image") -> str:
    """The image's name in a registry, told to `report`.

    Slurm's containers may name an image as pyxis does (``nvcr.io#nvidia/pytorch``),
    with apptainer's scheme (``docker://``), or be a file of the cluster, which no
    other platform can reach: then a common image stands for it.
    """
    axolotl = bool(program.config) or any(step.axolotl for step in program.steps)
    common = AXOLOTL if axolotl else GENERAL
    asked = spec.environment.image
    if asked is None:
        report.assumed("image", key, common, "A container needs an image, and none is named.")
        return common
    if asked.startswith(("/", "./", "../", "~")) or asked.endswith(_FILES):
        why = f"{asked} is a file of the cluster: push it to a registry; until then a common image stands for it."
        report.changed("image", key, common, why)
        return common
    name = asked
    for scheme in ("docker://", "oras://", "dockerd://"):
        name = name.removeprefix(scheme)
    name = name.replace("#", "/", 1)
    if name == asked:
        report.exact("image", key, name)
    else:
        report.changed("image", key, name, "It is the same image, as a registry names it.")
    return name
