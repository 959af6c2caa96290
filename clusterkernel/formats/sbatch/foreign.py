"""``#PBS`` and ``#BSUB`` lines, which sbatch reads as well, as options of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from clusterkernel.errors import FormatError

__all__ = ["bsub", "pbs"]

#: Option of sbatch, its value, the key as written, the line.
Translated = tuple[str, str | None, str, int]
_PBS_VALUED: Final = frozenset("aAcCejJklmMNopqrStuvW")
_PBS_FLAGS: Final = frozenset("hIVz")
_PBS_SAME: Final = {
    "a": "begin",
    "A": "account",
    "e": "error",
    "J": "array",
    "t": "array",
    "M": "mail-user",
    "N": "job-name",
    "o": "output",
    "p": "nice",
    "q": "partition",
    "v": "export",
}
_PBS_MAIL: Final = {"a": "FAIL", "b": "BEGIN", "e": "END", "n": "NONE"}
_BSUB_VALUED: Final = {
    "c": "chdir",
    "e": "error",
    "J": "job-name",
    "m": "nodelist",
    "M": "mem-per-cpu",
    "n": "ntasks",
    "o": "output",
    "q": "partition",
    "W": "time",
}
# What is named in a list of resources, but means nothing to sbatch.
_KEY: Final = re.compile(r"([A-Za-z_]+)=(.*)", re.DOTALL)


def _short_options(
    words: Sequence[tuple[str, int]], valued: frozenset[str], flags: frozenset[str], name: str, magic: str
) -> Iterator[tuple[str, str | None, int]]:
    at = 0
    while at < len(words):
        word, line = words[at]
        at += 1
        if len(word) < 2 or not word.startswith("-") or word.startswith("--"):
            raise FormatError(f"{name}, line {line}: {word[:60]!r} is no option of {magic}.", hint="Mend that line.")
        place = 1
        while place < len(word):
            letter, rest = word[place], word[place + 1 :]
            place += 1
            if letter in flags:
                yield letter, None, line
            elif letter in valued:
                if not rest:
                    if at == len(words):
                        raise FormatError(f"{name}, line {line}: -{letter} has no value.", hint="Mend that line.")
                    rest, at = words[at][0], at + 1
                yield letter, rest, line
                break
            else:
                raise FormatError(
                    f"{name}, line {line}: -{letter} is no option of {magic} that sbatch knows.",
                    hint="sbatch refuses the script; with --ignore-pbs it leaves such lines alone.",
                )


def pbs(words: Sequence[tuple[str, int]], name: str) -> Iterator[Translated]:
    """Options of ``#PBS`` lines; those that sbatch reads and ignores have an empty name."""
    for letter, value, line in _short_options(words, _PBS_VALUED, _PBS_FLAGS, name, "#PBS"):
        key = f"-{letter}"
        if letter == "h":
            yield "hold", None, key, line
        elif letter == "l":
            yield from _resources(value or "", line, name)
        elif letter == "m":
            yield "mail-type", ",".join(_PBS_MAIL.get(char, char) for char in value or ""), key, line
        elif letter == "W" and (value or "").lower().startswith("depend="):
            yield "dependency", (value or "")[7:], key, line
        elif letter in ("e", "o") and (value or "").lower() == "none":
            yield _PBS_SAME[letter], "/dev/null", key, line
        elif letter in _PBS_SAME:
            yield _PBS_SAME[letter], value, key, line
        else:
            yield "", value, key, line


def _resources(text: str, line: int, name: str) -> Iterator[Translated]:
    """``-l nodes=2:ppn=4:gpus=2,walltime=1:00:00,mem=4gb``."""
    for part in text.split(","):
        match = _KEY.fullmatch(part)
        key, value = (match[1].lower(), match[2]) if match else (part, "")
        shown = f"-l {key}"
        if key == "nodes":
            yield from _nodes(value, line, shown)
        elif key in ("walltime", "cput", "pcput"):
            yield "time", value, shown, line
        elif key in ("mem", "pmem", "vmem", "pvmem"):
            if key == "mem":
                yield "mem", value.removesuffix("b").removesuffix("B"), shown, line
            else:
                yield "", value, shown, line
        elif key == "file":
            yield "tmp", value.removesuffix("b").removesuffix("B"), shown, line
        elif key == "nice":
            yield "nice", value, shown, line
        elif key == "naccelerators" or (key == "accelerator" and value.lower() == "true"):
            yield "gres", f"gpu:{value if key == 'naccelerators' else 1}", shown, line
        elif key == "select":
            raise FormatError(
                f"{name}, line {line}: -l select is PBS Pro's, which sbatch reads in part only.",
                hint="Write #SBATCH --nodes, --ntasks-per-node, --cpus-per-task and --mem instead.",
            )
        else:
            yield "", value, shown, line


def _nodes(value: str, line: int, key: str) -> Iterator[Translated]:
    nodes = each = gpus = 0
    hosts: list[str] = []
    for part in re.split("[:+]", value):
        if match := re.fullmatch(r"ppn=(\d{1,6})", part):
            each += int(match[1])
        elif match := re.fullmatch(r"gpus=(\d{1,6})", part):
            gpus = int(match[1])
        elif part.isdecimal() and len(part) <= 6:
            nodes += int(part)
        elif part:
            hosts.append(part)
    if nodes:
        yield "nodes", str(nodes), key, line
    if each:
        yield "ntasks", str(each * (nodes or 1)), f"{key} (ppn)", line
    if gpus:
        yield "gres", f"gpu:{gpus}", f"{key} (gpus)", line
    if hosts:
        yield "nodelist", ",".join(hosts), f"{key} (names)", line


def bsub(words: Sequence[tuple[str, int]], name: str) -> Iterator[Translated]:
    """Options of ``#BSUB`` lines."""
    for letter, value, line in _short_options(words, frozenset(_BSUB_VALUED), frozenset("x"), name, "#BSUB"):
        key = f"-{letter}"
        if value is None:
            yield "exclusive", None, key, line
        elif letter == "n":
            yield "ntasks", value.rpartition(",")[2], key, line
        elif letter == "M":
            # sbatch takes LSF's KiB for what they are.
            yield "mem-per-cpu", f"{value}K" if value.isdecimal() else value, key, line
        elif letter == "m":
            yield "nodelist", ",".join(value.split()), key, line
        elif letter in "eo" and value.lower() == "none":
            yield _BSUB_VALUED[letter], "/dev/null", key, line
        else:
            yield _BSUB_VALUED[letter], value, key, line
