"""An axolotl configuration: preprocess once, then train.

The configuration travels as ``config.yml`` in the payload, with overrides folded
in (axolotl's own command line drops them in some of its ways). The commands run
in the working folder, and relative paths in the configuration mean files there,
as they do for ``axolotl train`` typed by hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from clusterkernel.errors import PayloadError, SpecError, shown
from clusterkernel.paths import expand, working_folder
from clusterkernel.payload import Artefact, clear, yamltext
from clusterkernel.runtime.pickling import peek
from clusterkernel.spec import JobSpec, Launcher

if TYPE_CHECKING:
    from clusterkernel.records import PayloadSummary

__all__ = ["CONFIG", "build", "reload", "with_launcher", "with_side_files"]

#: Where the commands find the configuration: the supervisor puts the payload's folder in.
CONFIG: Final = "{payload}/config.yml"
#: Stands for torchrun's own arguments, which are known inside the job only.
TORCHRUN: Final = "{torchrun}"
_PREPARED: Final = "last_run_prepared"
# axolotl's own default.
_OUTPUT: Final = "./model-out"
# The keys under which axolotl takes what it trains on.
_DATA: Final = ("datasets", "pretraining_dataset")
_DATA_FILE: Final = re.compile(r"\.(jsonl?|csv|tsv|parquet|arrow|txt|text|ya?ml|gz|zst|zip)$")
_SECRET: Final = re.compile(
    r"(^|_)(api_?key|secret|secret_key|password|passwd|access_key|(hf|hub|auth|access|api|bearer)_token)$", re.I
)


def build(
    config: Path | str,
    *,
    overrides: Mapping[str, Any] | None = None,
    launcher: Launcher | str = Launcher.NONE,
    workdir: Path | None = None,
) -> Artefact:
    """A configuration as a payload.

    Parameters
    ----------
    config : Path or str
        The YAML file, or the YAML text itself.
    overrides : mapping, optional
        Dotted keys (``trl.beta``, ``datasets.0.path``) and the values that they get.
    launcher : Launcher
        What starts the ranks: ``torchrun`` (also for ``none``), or on one node ``accelerate``.
    workdir : Path, optional
        The folder that relative paths are looked up in; by itself the working folder.

    Raises
    ------
    PayloadError
        The file cannot be read, is no YAML, lacks a base model or data, holds a secret, or an
        override does not fit.
    SpecError
        axolotl does not start with this launcher.
    """
    if not isinstance(overrides or {}, Mapping):
        raise PayloadError(f"overrides = {shown(overrides)} names no keys.", hint='Write {"learning_rate": 1e-4}.')
    launched = _launcher(Launcher(launcher))
    text, where = _text(config)
    clear.refuse_text(text, where)
    document, notes = yamltext.load(text, where)
    if not isinstance(document, dict):
        kind = "empty" if document is None else f"of type {type(document).__name__}"
        raise PayloadError(f"{where} has no keys and values: it is {kind}.", hint="It starts with base_model: NAME.")
    changed = _copy(document)
    clear.refuse_values((overrides or {}).items())
    for key, value in (overrides or {}).items():
        _set(changed, key, value)
    _check(changed, where)
    steps = _steps(changed, launched)
    if steps[0]["name"] == "preprocess" and not changed.get("dataset_prepared_path"):
        # axolotl's own default, spelled out: some versions look for what was prepared only where it is set.
        changed["dataset_prepared_path"] = _PREPARED
        notes.append(f"dataset_prepared_path was not set; {_PREPARED} in the working folder is used.")
    notes += _paths(changed, workdir or working_folder())
    shipped = _written(text, document, changed)
    return Artefact(
        kind="command",
        title=_title(changed),
        source=shipped,
        body={"steps": steps, "output_dir": str(changed.get("output_dir") or _OUTPUT)},
        files={"config.yml": shipped},
        notes=tuple(notes),
    )


def reload(payload_dir: Path, summary: PayloadSummary, changes: Mapping[str, Any]) -> Artefact:
    """The configuration of an earlier job with other values.

    Parameters
    ----------
    payload_dir : Path
        The payload's folder of the earlier job.
    summary : PayloadSummary
        What that job's record says of it.
    changes : mapping
        Dotted keys and the values that they get.

    Raises
    ------
    PayloadError
        A change does not fit.
    """
    about = msgspec.json.decode((payload_dir / "payload.json").read_bytes())
    argv = about["steps"][-1]["argv"]
    launcher = argv[argv.index("--launcher") + 1]
    text = (payload_dir / "config.yml").read_text(encoding="utf-8")
    return build(text, overrides=changes, launcher=launcher)


def with_launcher(spec: JobSpec) -> JobSpec:
    """The spec with the launcher that an axolotl run needs: torchrun where none is asked for.

    Raises
    ------
    SpecError
        axolotl does not start with this launcher on so many nodes.
    """
    launcher = _launcher(spec.launcher)
    if launcher is Launcher.ACCELERATE and spec.resources.nodes > 1:
        raise SpecError(
            f"axolotl with --launcher accelerate runs on one node, and {spec.resources.nodes} are asked for.",
            field="--launcher",
            hint="Use --launcher torchrun.",
        )
    return spec if launcher is spec.launcher else msgspec.structs.replace(spec, launcher=launcher)


def _launcher(asked: Launcher) -> Launcher:
    if asked is Launcher.DEEPSPEED:
        raise SpecError(
            "axolotl is not started by --launcher deepspeed.",
            field="--launcher",
            hint="Use torchrun, and name the DeepSpeed file in the configuration: deepspeed: FILE.json.",
        )
    return Launcher.TORCHRUN if asked is Launcher.NONE else asked


def _text(config: Path | str) -> tuple[str, str]:
    """The YAML text, and what errors call it."""
    if isinstance(config, str):
        return config, "The axolotl configuration"
    where = str(config)
    try:
        with open(expand(config, "config"), "rb") as file:
            data = file.read(yamltext.SIZE_LIMIT + 1)
        return data.decode("utf-8-sig"), where
    except OSError as error:
        raise PayloadError(
            f"The axolotl configuration {where} cannot be read: {error.strerror}.", hint="Give the path of a YAML file."
        ) from None
    except UnicodeDecodeError as error:
        raise PayloadError(
            f"{where} is no text: byte {error.start} is not UTF-8.", hint="Is it the right file?"
        ) from None


# -- overrides --------------------------------------------------------------------


def _copy(value: Any) -> Any:
    """A copy that shares nothing within itself, as aliases do."""
    if isinstance(value, dict):
        return {key: _copy(part) for key, part in value.items()}
    return [_copy(part) for part in value] if isinstance(value, list) else value


def _set(document: dict[Any, Any], dotted: str, value: Any) -> None:
    """Set one dotted key; mappings on the way are made, lists are not grown."""
    if not all(dotted.split(".")):
        raise PayloadError(f"{dotted!r} is no key of a configuration.", hint="Write it as learning_rate or trl.beta.")
    plain = _plain(value, dotted)
    if dotted in document:
        document[dotted] = plain
        return
    parts = dotted.split(".")
    place: Any = document
    for number, part in enumerate(parts):
        way, last = ".".join(parts[:number]), number == len(parts) - 1
        if isinstance(place, list):
            index = _index(part, place, way, dotted)
            place[index] = plain if last else {} if place[index] is None else place[index]
            place = place[index]
        elif isinstance(place, dict):
            if last:
                place[part] = plain
            elif place.get(part) is None:
                place[part] = {}
            place = place[part]
        else:
            raise PayloadError(
                f"{dotted} cannot be set: {way} is {_short(place)}, which has nothing below it.",
                hint=f"Set {way} itself.",
            )


def _index(part: str, items: Sequence[Any], way: str, dotted: str) -> int:
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    known = f"0 to {len(items) - 1}" if len(items) > 1 else "0" if items else "none, it is empty"
    raise PayloadError(
        f"{dotted} cannot be set: {way} is a list, and {part} is no item of it.", hint=f"Items: {known}."
    )


def _plain(value: Any, key: str) -> Any:
    """A value as YAML knows it, of the same type."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # an enum of texts says its name otherwise
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(part, f"{key}.{name}") for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part, f"{key}.{number}") for number, part in enumerate(value)]
    if callable(peek(value, "item")) and peek(value, "ndim") == 0:  # a number of NumPy
        return _plain(value.item(), key)
    raise PayloadError(
        f"{key} cannot be set to {_short(value)}: a configuration holds no {type(value).__name__}.",
        hint="Give it text, a number, true or false, a list or a mapping.",
    )


def _written(text: str, document: dict[Any, Any], wanted: dict[Any, Any]) -> str:
    """The YAML to send: the person's own text as far as it says the same."""
    if wanted == document:
        return text
    added = {key: value for key, value in wanted.items() if key not in document}
    if {key: wanted[key] for key in wanted if key in document} == document:
        longer = f"{text.rstrip()}\n{yamltext.dump(added)}"
        try:
            if yamltext.load(longer, "")[0] == wanted:
                return longer
        except PayloadError:
            pass  # it is written in braces, or ends with a mark
    return yamltext.dump(wanted)


# -- checks -----------------------------------------------------------------------


def _check(document: Mapping[Any, Any], where: str) -> None:
    model = document.get("base_model")
    if not isinstance(model, str) or not model.strip():
        said = "has no base_model" if model is None else f"has the base_model {_short(model)}"
        raise PayloadError(f"{where} {said}.", hint="Add a line such as base_model: NousResearch/Llama-3.2-1B.")
    given = [key for key in _DATA if document.get(key)]
    if not given:
        raise PayloadError(f"{where} has no datasets.", hint="Add datasets: with at least one - path: NAME.")
    if not isinstance(document.get("datasets") or [], list):
        raise PayloadError(
            f"{where} has datasets that are no list: {_short(document['datasets'])}.",
            hint="Start each dataset with a dash: - path: NAME.",
        )
    for key, value in _leaves(document):
        if isinstance(value, str) and value and _SECRET.search(key.rpartition(".")[2]):
            raise PayloadError(
                f"{where} holds a secret in {key}, which would lie readable in the job's folder.",
                hint="Take it out, and name an environment variable that holds it with --secrets.",
            )


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(part, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{key}.{number}")
    else:
        yield key, value


def _paths(document: Mapping[Any, Any], workdir: Path) -> Iterator[str]:
    """What looks like a file or folder and is not there."""
    models = [(key, document.get(key)) for key in ("base_model", "lora_model_dir", "resume_from_checkpoint")]
    for key, path in [*models, *_side_files(document)]:
        if isinstance(path, str) and (key == "deepspeed" or _looks_local(path)):
            place = expand(path, "The configuration")
            if not (workdir / place).exists():
                yield f"{key} names {path}, which is not there{'' if place.is_absolute() else f' in {workdir}'}."


def _side_files(document: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Where the configuration may name files of data or settings: key and value."""
    yield "deepspeed", document.get("deepspeed")
    for section in (*_DATA, "test_datasets"):
        value = document.get(section)
        for number, dataset in enumerate(value if isinstance(value, list) else []):
            if isinstance(dataset, Mapping):
                yield f"{section}.{number}.path", dataset.get("path")


def with_side_files(spec: JobSpec, config: str) -> JobSpec:
    """The spec with the files of the working folder that a configuration names, where the job will not see that folder.

    What is elsewhere, such as below ``/``, is meant to be there for the job, too.
    """
    document, _ = yamltext.load(config, "The axolotl configuration")
    given = spec.environment.workdir
    workdir = expand(given, "--workdir") if given else working_folder()
    found = dict.fromkeys(spec.environment.files)
    for _, path in _side_files(document):
        if isinstance(path, str) and not Path(path).is_absolute() and not path.startswith("~"):
            place = Path(os.path.abspath(workdir / path))
            if place.exists() and place.is_relative_to(os.path.abspath(workdir)) and place != workdir:
                found[path] = None
    environment = msgspec.structs.replace(spec.environment, files=tuple(found))
    return msgspec.structs.replace(spec, environment=environment)


def _looks_local(path: str) -> bool:
    if "://" in path:
        return False
    return path.startswith((".", "/", "~")) or _DATA_FILE.search(path) is not None


# -- what runs ----------------------------------------------------------------------


def _steps(document: Mapping[Any, Any], launcher: Launcher) -> list[dict[str, Any]]:
    train = ["axolotl", "train", CONFIG, "--launcher", launcher.value]
    if launcher is Launcher.TORCHRUN:
        train += ["--", TORCHRUN]
    steps: list[dict[str, Any]] = [{"name": "train", "argv": train}]
    streamed = document.get("streaming") or document.get("pretraining_dataset")
    if not (document.get("skip_prepare_dataset") or streamed):
        steps.insert(0, {"name": "preprocess", "argv": ["axolotl", "preprocess", CONFIG], "once": True})
    return steps


def _title(document: Mapping[Any, Any]) -> str:
    how = document.get("rl") or document.get("adapter") or "train"
    return _short(f"axolotl {how if isinstance(how, str) else 'train'}: {document['base_model']}")


def _short(value: object) -> str:
    line = " ".join((value if isinstance(value, str) else repr(value)).split())
    return line if len(line) <= 80 else line[:77] + "..."
