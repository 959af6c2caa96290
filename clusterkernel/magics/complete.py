"""Tab on a magic's line: its options and their values."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, Final

from clusterkernel.errors import ClusterKernelError
from clusterkernel.magics import commands
from clusterkernel.magics.values import Values
from clusterkernel.states import JobState

if TYPE_CHECKING:
    from clusterkernel.magics.extension import ClusterKernel
    from clusterkernel.magics.options import Option

__all__ = ["LiveValues", "completions"]

_LINE: Final = re.compile(r"^(?:[\w.]+\s*=\s*|\s*)(%{1,2})(ck|cluster|cluster_\w+)\s(.*)$")
# A person waits for Tab; a controller that is asked often is not amused.
_PATIENCE: Final = 1.0
_KEEP: Final = 60.0


def completions(kernel: ClusterKernel, before: str, full_text: str) -> tuple[list[str] | None, str]:
    """What may follow.

    Parameters
    ----------
    kernel : ClusterKernel
        Whose namespace.
    before : str
        The line up to the cursor.
    full_text : str
        The whole cell.

    Returns
    -------
    tuple of (list of str or None, str)
        The words, and the part before the cursor that they replace; None where others know better: on a line
        that is not ours, and for files.
    """
    match = _LINE.match(before)
    if match is None:
        return None, ""
    percent, magic, rest = match.groups()
    fragment = re.split(r"\s", rest)[-1]
    words = rest[: len(rest) - len(fragment)].split()
    if magic in ("ck", "cluster") and percent == "%":
        if not words and not fragment.startswith("-"):
            return _starting([command.name for command in commands.COMMANDS], fragment), fragment
        name = "train" if (words or [fragment])[0].startswith("-") else words[0]
        words = words[1:] if words and words[0] == name else words
    else:
        name = "train" if magic in ("ck", "cluster") else magic.removeprefix("cluster_")
    command = commands.find(name)
    if command is None:
        return [], ""
    options = commands.details(command).options
    flags = {flag: option for option in options for flag in option.flags if flag.startswith("-")}
    if fragment.startswith("-") and "=" not in fragment:
        given = {flags[word].dest for word in words if word in flags and not flags[word].many}
        return _starting([flag for flag, option in flags.items() if option.dest not in given], fragment), fragment
    option = _option_for(words, fragment, flags, options)
    if option is None:
        return [], ""
    if option.values is Values.FILE:
        return None, ""
    part = fragment.rpartition("=")[2] if fragment.startswith("--") else fragment
    if option.many in ("append", "words"):
        part = part.rpartition(",")[2]
    found = _values(kernel, option, words, full_text, kernel.live_values)
    return _starting(found, part), part


def _starting(words: Iterable[str], start: str) -> list[str]:
    return [word for word in words if word.startswith(start)]


def _option_for(
    words: Sequence[str], fragment: str, flags: dict[str, Option], options: Sequence[Option]
) -> Option | None:
    """The option that takes the word at the cursor."""
    if fragment.startswith("--"):
        return flags.get(fragment.partition("=")[0])
    if words and (option := flags.get(words[-1])) is not None and option.values is not Values.NONE:
        return option
    # Behind `-o a b`, and among the arguments that have no flag.
    for word in reversed(words):
        if word in flags:
            if flags[word].many == "words":
                return flags[word]
            break
    taken = sum(1 for at, word in enumerate(words) if word not in flags and not _is_value(words, at, flags))
    plain = [option for option in options if not option.flags[0].startswith("-")]
    if not plain:
        return None
    at = min(taken, len(plain) - 1)
    return plain[at] if taken < len(plain) or plain[at].many == "words" else None


def _is_value(words: Sequence[str], at: int, flags: dict[str, Option]) -> bool:
    option = flags.get(words[at - 1]) if at else None
    return option is not None and option.values is not Values.NONE and option.many in ("", "append")


def _values(kernel: ClusterKernel, option: Option, words: Sequence[str], full_text: str, live: LiveValues) -> list[str]:
    # Half a cell is no program, a file may be broken, a platform away: then Tab offers nothing.
    with contextlib.suppress(ClusterKernelError, SyntaxError, OSError):
        match option.values:
            case Values.BACKEND:
                from clusterkernel.backends import registry

                return list(registry.names())
            case Values.PROFILE:
                from clusterkernel import profiles

                return profiles.names()
            case Values.STATE:
                return [state.value for state in JobState]
            case Values.JOBS:
                return _job_ids()
            case Values.JOB_NAMES:
                return _saved_names(words)
            case Values.NAMES:
                return _cell_names(kernel, option, full_text)
            case Values.SECRETS if not words:
                return ["set", "list", "forget"]
            case Values.SECRETS:
                return _secrets()
            case Values.FIELD if option.dest == "secrets":
                return _secrets()
            case Values.FIELD | Values.TEXT if option.choices:
                return list(option.choices)
            case Values.FIELD:
                return live.values(_backend_of(words), option.dest)
    return []


def _job_ids() -> list[str]:
    """The newest first."""
    from clusterkernel.jobroot import default_root

    with os.scandir(default_root()) as entries:
        names = [entry.name for entry in entries if entry.name.isascii() and entry.name.isdigit()]
    return sorted(names, key=lambda name: (len(name), name), reverse=True)[:50]


def _secrets() -> list[str]:
    from clusterkernel import secretstore

    return secretstore.names()


def _saved_names(words: Sequence[str]) -> list[str]:
    from clusterkernel.magics.look import one_job

    return [name for name in one_job(words[0]).summary().outputs if name not in words] if words else []


def _cell_names(kernel: ClusterKernel, option: Option, full_text: str) -> list[str]:
    """For -o what the cell sets, for -i what it reads and the notebook has."""
    from clusterkernel.magics.reach import assigned, read

    body = full_text.partition("\n")[2]
    space = {name for name in kernel.shell.user_ns if not name.startswith("_")}
    if option.dest == "out":
        return sorted(assigned(body))
    return sorted(space & set(read(body))) if option.dest == "inputs" else sorted(space)


def _backend_of(words: Sequence[str]) -> str:
    given = dict(itertools.pairwise(words))
    if "--backend" in given:
        return given["--backend"]
    from clusterkernel import profiles

    layer = profiles.load(given["--profile"]) if "--profile" in given else profiles.default()
    return str(layer.values.get("backend", "local"))


class LiveValues:
    """What a platform offers for a field, asked at most once a minute and never waited for long."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], tuple[float, Future[list[str]]]] = {}

    def values(self, backend: str, field: str) -> list[str]:
        """The values of a field; nothing where the platform does not answer in time."""
        now = time.monotonic()
        at, answer = self._asked.get((backend, field), (-_KEEP, None))
        if answer is None or now - at >= _KEEP:
            answer = Future()
            self._asked[backend, field] = (now, answer)
            threading.Thread(target=_ask, args=(backend, field, answer), daemon=True).start()
        try:
            return answer.result(_PATIENCE)
        except FutureTimeout:
            return []


def _ask(backend: str, field: str, answer: Future[list[str]]) -> None:
    try:
        answer.set_result(sorted(_offered(backend, field)))
    except (ClusterKernelError, OSError) as error:
        answer.set_exception(error)


def _offered(name: str, field: str) -> set[str]:
    """What the platform has, or what the person's own jobs asked for."""
    from clusterkernel.backends import registry

    backend: Any = registry.get(name)
    if field in ("partition", "constraint", "gpus_per_node") and hasattr(backend, "nodes"):
        nodes = backend.nodes()
        match field:
            case "partition":
                return {node["partition"] for node in nodes}
            case "constraint":
                return {feature for node in nodes for feature in node["features"].split(",") if feature}
            case _:
                return {f"{node['gpu_type'] or ''}:{node['gpus']}".lstrip(":") for node in nodes if node["gpus"]}
    if field in ("account", "qos") and hasattr(backend, "accounting"):
        return {job[field] for job in backend.accounting() if job[field]}
    return set()
