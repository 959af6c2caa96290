"""The payload of an earlier job once more, with other parameters."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterkernel.errors import PayloadError, nearest, shown
from clusterkernel.payload import Artefact, Captured, clear
from clusterkernel.payload.digest import digests
from clusterkernel.payload.packing import Packer, kind_of, main_namespace, python_version
from clusterkernel.runtime.pickling import peek

if TYPE_CHECKING:
    from clusterkernel.records import PayloadSummary

__all__ = ["build"]

_CHANGES: Final = "changes-*.pkl"


def build(payload_dir: Path, summary: PayloadSummary, changes: Mapping[str, Any], task: int | None = None) -> Artefact:
    """The same payload, byte for byte, with `changes` laid over it; of an array, `task` alone where it is given.

    Raises
    ------
    PayloadError
        It has no such parameter, or a value cannot be sent.
    """
    if not isinstance(changes, Mapping):
        raise PayloadError(f"changes = {shown(changes)} names no parameters.", hint='Write {"lr": 1e-4}.')
    about: dict[str, Any] = msgspec.json.decode((payload_dir / "payload.json").read_bytes())
    files: dict[str, Any] = {
        str(path.relative_to(payload_dir)): path
        for path in sorted(payload_dir.rglob("*"))
        if path.is_file() and path != payload_dir / "payload.json" and "__pycache__" not in path.parts
    }
    if task is not None:
        about, files = _one_task(about, files, task)
    captured = [Captured(name, "", size) for name, size in summary.sizes.items()]
    inputs = dict(summary.inputs)
    if changes:
        check = {"cell": _check_cell, "function": _check_function}.get(summary.kind)
        if check is None:
            return _of_command(payload_dir, summary, changes)
        check(about, changes)
        number = 1 + sum(1 for _ in payload_dir.glob(_CHANGES))
        files[f"changes-{number}.pkl"] = _pickled(changes, about)
        captured = [one for one in captured if one.name not in changes]
        captured += [Captured(name, kind_of(value), 0, "changed") for name, value in changes.items()]
        inputs.update(digests(changes.items()))
    return Artefact(
        kind=summary.kind,
        title=summary.title,
        source=summary.source,
        captured=tuple(captured),
        outputs=summary.outputs,
        bind=summary.bind,
        inputs_digest=inputs,
        changed={**summary.changed, **{name: shown(value) for name, value in changes.items()}},
        body={name: value for name, value in about.items() if name not in ("kind", "title")},
        files=files,
    )


def _one_task(about: Mapping[str, Any], files: Mapping[str, Any], task: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """An array's payload with the items of one task."""
    first, end = struct.unpack_from("<2Q", files["items.idx"].read_bytes(), 8 * task)
    with open(files["items.pkl"], "rb") as stream:
        stream.seek(first)
        items = stream.read(end - first)
    one = {**about, "labels": about["labels"][task : task + 1]} if "labels" in about else dict(about)
    return one, {**files, "items.pkl": items, "items.idx": struct.pack("<2Q", 0, end - first)}


def _check_cell(about: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    known = about["captured"]
    for name in changes:
        if name in known:
            continue
        if name in about["outputs"]:
            raise PayloadError(
                f"{name} cannot be changed: the cell itself assigns it.",
                hint="Assign it in the notebook, and let the cell read it.",
            )
        raise PayloadError(f"The cell took no {name} from the notebook.", hint=nearest(name, known))


def _check_function(about: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    known = list(dict.fromkeys([*about["positional"], *about["keywords"], *about["accepted"]]))
    for name in changes:
        if name not in known and not about["any_keyword"]:
            raise PayloadError(f"{about['title']} has no parameter {name}.", hint=nearest(name, known))
        if about.get("array") and name in about["accepted"][:1]:
            raise PayloadError(
                f"{name} cannot be changed: each task has an item of its own for it.", hint="Send a new array."
            )


def _pickled(changes: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
    if about.get("python") not in (None, python_version()):
        raise PayloadError(
            f"The job was sent from Python {about['python']}, and this is {python_version()}: nothing can be changed.",
            hint="Run the cell anew.",
        )
    clear.refuse_values((f"parameter {name}", value) for name, value in changes.items())
    namespace = main_namespace()
    packer = Packer(namespace)
    for name, value in changes.items():
        if peek(type(value), "__clusterkernel_pending__", False):
            raise PayloadError(f"{name} is not there yet: {value!r}.", hint="Wait for that job with %cluster_wait.")
        packer.add(name, value, "parameter")
    buffer = io.BytesIO()
    packer.new_pickler(buffer).dump(dict(changes))
    return buffer.getvalue()


def _of_command(payload_dir: Path, summary: PayloadSummary, changes: Mapping[str, Any]) -> Artefact:
    if not (payload_dir / "config.yml").is_file():
        raise PayloadError(
            f"A command has no parameters; {', '.join(changes)} cannot be set.", hint="Send the command anew."
        )
    from clusterkernel.payload import axolotl

    return axolotl.reload(payload_dir, summary, changes)
