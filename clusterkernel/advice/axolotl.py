"""axolotl: its data beforehand, and keys that it drops without a word."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from clusterkernel.advice.base import Advice, Case, Level, rule
from clusterkernel.formats.model import Program, Runs, Step

_SKIPPED: Final = ("skip_prepare_dataset", "streaming")


def _is(step: Step, command: str) -> bool:
    return step.shell.split()[:2] == ["axolotl", command]


@rule("preprocess-missing")
def preprocess_missing(case: Case) -> Iterator[Advice]:
    """Training with axolotl that prepares its data on all GPUs, as a part of it."""
    steps = case.program.steps
    train = next((number for number, step in enumerate(steps) if _is(step, "train")), None)
    if train is None or any(_is(step, "preprocess") for step in steps[:train]):
        return
    config = case.config or {}
    if any(config.get(key) for key in _SKIPPED) or (config.get("pretraining_dataset") and not config.get("datasets")):
        return
    ranks = case.nodes * case.spec.ranks_per_node
    why = f"{ranks} ranks wait meanwhile, and after 30 minutes give up" if ranks > 1 else "the GPU waits meanwhile"
    yield Advice(
        level=Level.WARNING if ranks > 1 else Level.INFO,
        rule="preprocess-missing",
        field=f"program.steps.{train}",
        message=f"The data are prepared within the training: {why}.",
        fix="Run axolotl preprocess before it, once.",
        change=_insert(train),
    )


def _insert(number: int) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        steps = list(case.program.steps)
        words = steps[number].shell.split()
        shell = " ".join(["axolotl", "preprocess", *words[2:3]])
        steps.insert(number, Step(name="preprocess", shell=shell, runs=Runs.HEAD))
        return msgspec.structs.replace(case, program=_with(case.program, steps))

    return change


@rule("preprocess-repeated")
def preprocess_repeated(case: Case) -> Iterator[Advice]:
    """A preprocess step of axolotl that every node, or every rank, does again."""
    for number, step in enumerate(case.program.steps):
        times = {Runs.HEAD: 1, Runs.NODES: case.nodes, Runs.RANKS: case.nodes * case.spec.ranks_per_node}[step.runs]
        if not _is(step, "preprocess") or times == 1:
            continue
        yield Advice(
            level=Level.WARNING,
            rule="preprocess-repeated",
            field=f"program.steps.{number}",
            message=f"axolotl preprocess runs {times} times, one after another behind a lock: it never takes what "
            "another one prepared.",
            fix="Run it once where the nodes share files: srun -N1 -n1 axolotl preprocess.",
            change=_once(number),
        )


def _once(number: int) -> Callable[[Case], Case]:
    def change(case: Case) -> Case:
        steps = list(case.program.steps)
        steps[number] = msgspec.structs.replace(steps[number], runs=Runs.HEAD)
        return msgspec.structs.replace(case, program=_with(case.program, steps))

    return change


def _with(program: Program, steps: list[Step]) -> Program:
    return msgspec.structs.replace(program, steps=tuple(steps))


# -- keys ---------------------------------------------------------------------------


@rule("axolotl-key")
def axolotl_key(case: Case) -> Iterator[Advice]:
    """A key of a configuration that axolotl does not know, and drops without a word."""
    if case.config is None or case.schema is None:
        return
    plugins = bool(case.config.get("plugins"))
    for path, key, known in unknown(case.config, case.schema):
        near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.9 if plugins else 0.7)
        if plugins and not near:
            continue  # a plug-in brings keys of its own
        yield Advice(
            level=Level.WARNING,
            rule="axolotl-key",
            field=path,
            message=f"axolotl has no key {path}: it drops it without a word, and trains with its default.",
            fix=f"Did you mean {near[0]}?" if near else "Leave it out.",
        )


def unknown(config: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, str, set[str]]]:
    """Keys of a configuration that its JSON schema does not know.

    Parameters
    ----------
    config : mapping
        The configuration.
    schema : mapping
        axolotl's own (`clusterkernel.advice.axolotl_schema`).

    Yields
    ------
    path, key : str
        Dotted, and its last part.
    known : set of str
        The keys that are known there.
    """
    yield from _walk(config, [schema], schema, "")


def _walk(value: Any, parts: list[Any], root: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, set[str]]]:
    shapes = [shape for part in parts for shape in _shapes(part, root)]
    if isinstance(value, Mapping):
        objects = [shape for shape in shapes if "properties" in shape]
        # Where one of the shapes takes any key, nothing can be said.
        if not objects or any(shape.get("type") == "object" and "properties" not in shape for shape in shapes):
            return
        known = {name for shape in objects for name in _names(shape)}
        for key, below in value.items():
            where = f"{path}.{key}" if path else str(key)
            if path == "fsdp_config" and str(key).startswith("fsdp_"):
                continue  # axolotl takes this beginning off, and passes on what it does not know
            if key not in known:
                if not any(shape.get("additionalProperties") for shape in objects):
                    yield where, str(key), known
                continue
            inner = [shape["properties"][key] for shape in objects if key in shape["properties"]]
            yield from _walk(below, inner, root, where)
    elif isinstance(value, list):
        inner = [shape["items"] for shape in shapes if isinstance(shape.get("items"), Mapping)]
        for number, below in enumerate(value):
            yield from _walk(below, inner, root, f"{path}.{number}")


def _shapes(part: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The shapes that a part of a schema may have, references followed."""
    if not isinstance(part, Mapping) or depth > 20:
        return
    if isinstance(ref := part.get("$ref"), str) and ref.startswith("#/"):
        place: Any = root
        for name in ref[2:].split("/"):
            place = place.get(name, {}) if isinstance(place, Mapping) else {}
        yield from _shapes(place, root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in part.get(key, ()):
            yield from _shapes(choice, root, depth + 1)
    yield part


def _names(shape: Mapping[str, Any]) -> set[str]:
    """The keys of a shape, aliases too."""
    names = set(shape["properties"])
    for name, below in shape["properties"].items():
        if isinstance(below, Mapping) and isinstance(below.get("alias"), str):
            names.add(below["alias"])
        names.add(name)
    return names
