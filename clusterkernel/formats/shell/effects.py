"""What a text that only a shell understands may set and read: rather too much than too little."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from clusterkernel.formats.shell.values import names_in

__all__ = ["mentions", "reads", "sets", "spawns_nothing"]

_ASSIGNED: Final = re.compile(
    r"(?<![\w$.{/-])([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(?:\+\+|--|[-+*/%&|^]?=(?![=~]))", re.ASCII
)
_CALCULATED: Final = re.compile(r"\(\((.*?)\)\)|\blet\s+([^;&|\n]*)", re.DOTALL)
_IN_CALCULATION: Final = re.compile(
    r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%&|^]?=(?!=))|(?:\+\+|--)\s*([A-Za-z_]\w*)", re.ASCII
)
_COUNTED: Final = re.compile(r"\b(?:for|select)\s+([A-Za-z_]\w*)", re.ASCII)
_FILLED: Final = re.compile(r"\b(?:read|readarray|mapfile|unset|getopts|printf\s+-v|wait\s+-p)\s+([^;&|<>\n]*)")
_DEFAULT: Final = re.compile(r"\$\{([A-Za-z_]\w*):?=", re.ASCII)
_ARGUMENTS: Final = re.compile(r"\bset\s+(?:-\w+\s+)*--|\bshift\b")
_NAME: Final = re.compile(r"\b[A-Za-z_]\w*\b", re.ASCII)
_INDIRECT: Final = re.compile(r"\$\{[#!]([A-Za-z_]\w*)", re.ASCII)
_BARE: Final = re.compile(
    r"\(\(|\$\[|\blet\b|\[\[.*?-(?:eq|ne|lt|le|gt|ge|v)\b|\bdeclare\s+-p\b|\bexport\b|\w\[[A-Za-z_]"
)
_SUBSTITUTED: Final = re.compile(r"(?:\$\((?!\()|`)\s*([^\s)`]*)")
#: Commands that take no notice of the environment, and leave it as it is.
_QUIET: Final = frozenset(
    ": [ [[ awk basename cat cd chmod cp cut date df dirname du echo export false find free grep head hostname let ln "
    "ls mkdir mktemp mv nproc nvidia-smi paste printf pwd read readlink realpath rm rmdir scontrol sed seq set shopt "
    "sleep sort tail tar tee test touch tr trap true type ulimit umask uname unset unzip wait wc whoami".split()
)


def sets(text: str) -> list[str]:
    """The variables that a text may set, each once; the script's arguments by their numbers."""
    found = _ASSIGNED.findall(text) + _COUNTED.findall(text) + _DEFAULT.findall(text)
    for one, other in _CALCULATED.findall(text):
        found += [before or behind for before, behind in _IN_CALCULATION.findall(one or other)]
    for words in _FILLED.findall(text):
        found += _NAME.findall(words)
    if re.search(r"\b(read|readarray|mapfile|getopts)\b", text):
        found += ["REPLY", "MAPFILE", "OPTARG", "OPTIND"]
    if _ARGUMENTS.search(text):
        found += [str(number) for number in range(1, 100)]
    return list(dict.fromkeys(found))


def reads(text: str, among: Collection[str]) -> list[str]:
    """Those of `among` that a text may read."""
    if "${!" in text:
        return list(among)  # the name stands in a value
    found = {*names_in(text), *_INDIRECT.findall(text)}
    if _BARE.search(text):
        found.update(_NAME.findall(text))
    return [name for name in among if name in found]


def mentions(text: str) -> set[str]:
    """All that may be the name of a variable."""
    return set(_NAME.findall(text))


def spawns_nothing(command: str, text: str) -> bool:
    """Whether neither a command nor what is substituted in it sets, or looks at, the environment."""
    return command in _QUIET and all(called in _QUIET for called in _SUBSTITUTED.findall(text))
