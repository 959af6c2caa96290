"""The options of what launches a training: their names, and which of them take a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.formats.sbatch.options import SHORT
from clusterkernel.formats.sbatch.table import LONG, PLUGIN, Takes, canonical
from clusterkernel.formats.shell.pieces import Word

__all__ = ["ACCELERATE", "CONTAINER", "DEEPSPEED", "MPIRUN", "SRUN", "TORCHRUN", "Option", "Table", "split"]


class Option(msgspec.Struct, frozen=True):
    """One option of a launcher.

    Attributes
    ----------
    name : str
        Its long name, with dashes for underscores and without those in front.
    value : Word or None
        None for a switch.
    words : tuple of str
        As bash reads it.
    """

    name: str
    value: Word | None
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """Its value, or what stands for it."""
        return "" if self.value is None else self.value.text


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """What a program's options look like.

    Attributes
    ----------
    flags : frozenset of str
        Long options without a value; all others that begin with two dashes have one.
    short : mapping
        Letter -> long name.
    known : frozenset of str
        All long names, where a beginning of one may stand for it; else empty.
    attached : frozenset of str
        Options that have a value only behind an equals sign.
    single : bool
        Whether one dash may begin a long name.
    """

    flags: frozenset[str]
    short: Mapping[str, str] = {}
    known: frozenset[str] = frozenset()
    attached: frozenset[str] = frozenset()
    single: bool = False

    def name_of(self, text: str) -> str:
        """The long name that a text stands for."""
        name = text.replace("_", "-")
        if name in self.known or not self.known:
            return name
        begun = [known for known in self.known if known.startswith(name)]
        return begun[0] if len(begun) == 1 else name


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


TORCHRUN: Final = Table(
    flags=_names("standalone module no-python run-path use-env virtual-local-rank help"),
    short={"m": "module", "r": "redirects", "t": "tee", "h": "help"},
    known=_names(
        "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone max-restarts monitor-interval "
        "start-method event-log-handler role module no-python run-path log-dir redirects tee local-ranks-filter "
        "node-rank master-addr master-port local-addr logs-specs numa-binding signals-to-handle use-env "
        "virtual-local-rank duplicate-stdout-filters duplicate-stderr-filters help"
    ),
    single=True,
)
ACCELERATE: Final = Table(
    flags=_names(
        "cpu multi-gpu tpu use-mps-device use-deepspeed use-fsdp use-megatron-lm use-parallelism-config use-xpu ipex "
        "debug quiet module no-python tpu-use-cluster tpu-use-sudo enable-cpu-affinity help"
    ),
    short={"m": "module", "q": "quiet", "h": "help"},
)
DEEPSPEED: Final = Table(
    flags=_names(
        "module no-python no-local-rank no-ssh no-ssh-check force-multi save-pid elastic-training bind-cores-to-rank "
        "help"
    ),
    short={"H": "hostfile", "i": "include", "e": "exclude", "h": "help"},
)
MPIRUN: Final = Table(
    flags=_names("allow-run-as-root oversubscribe tag-output display-map report-bindings verbose quiet"),
    short={"n": "np", "N": "npernode", "x": "x", "H": "host", "v": "verbose", "q": "quiet"},
    single=True,
)
CONTAINER: Final = Table(
    flags=_names(
        "nv rocm nvccli cleanenv contain containall writable-tmpfs no-home ipc pid net userns writable fakeroot "
        "no-init no-privs keep-privs compat vm unsquash disable-cache no-eval no-umask no-https uts underlay sharens "
        "allow-setuid verbose debug quiet silent nocolor"
    ),
    short={
        "B": "bind",
        "C": "containall",
        "H": "home",
        "S": "scratch",
        "W": "workdir",
        "c": "contain",
        "d": "debug",
        "e": "cleanenv",
        "f": "fakeroot",
        "i": "ipc",
        "n": "net",
        "o": "overlay",
        "p": "pid",
        "q": "quiet",
        "s": "silent",
        "u": "userns",
        "v": "verbose",
        "w": "writable",
    },
)
_SRUN_SHORT: Final = {
    **{letter: canonical(letter) for letter in SHORT},
    "E": "preserve-env",
    "K": "kill-on-bad-exit",
    "T": "threads",
    "W": "wait",
    "X": "disable-status",
    "Z": "no-allocate",
    "l": "label",
    "r": "relative",
    "u": "unbuffered",
}
_SRUN_FLAGS: Final = _names(
    "label unbuffered overlap exact multi-prog no-allocate disable-status preserve-env pty quit-on-interrupt "
    "send-libs whole interactive async external"
) | {name for table in (LONG, PLUGIN) for name, takes in table.items() if takes is Takes.NOTHING and name != "wait"}
_SRUN_ATTACHED: Final = _names("bcast compress kill-on-bad-exit resv-ports x11 send-libs pty") | {
    name for name, takes in LONG.items() if takes is Takes.MAYBE
}
SRUN: Final = Table(flags=_SRUN_FLAGS, short=_SRUN_SHORT, attached=_SRUN_ATTACHED)


def split(words: Sequence[Word], table: Table) -> tuple[list[Option], list[Word]]:
    """A program's own options, and what comes behind them.

    Parameters
    ----------
    words : sequence of Word
        Behind the program's name.
    table : Table
        Its options.
    """
    found: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        text = word.text.removeprefix('"') if word.value is None else word.text
        if text == "--":
            return found, list(words[at + 1 :])
        if not text.startswith("-") or text == "-":
            break
        at += 1
        long = text.startswith("--") or (table.single and len(text) > 2 and text[1] not in table.short)
        if long or (table.single and len(text) > 2):
            name, equals, value = text.lstrip("-").partition("=")
            name = table.name_of(name)
            if equals:
                found.append(Option(name, _rest(word, value), (word.shell,)))
            elif name in table.flags or name in table.attached or at == len(words):
                found.append(Option(name, None, (word.shell,)))
            else:
                found.append(Option(name, words[at], (word.shell, words[at].shell)))
                at += 1
            continue
        place = 1
        while place < len(text):
            name, rest = table.short.get(text[place], text[place]), text[place + 1 :]
            place += 1
            if name in table.flags:
                found.append(Option(name, None, (f"-{text[place - 1]}",)))
            elif rest or name in table.attached or at == len(words):
                value = rest.removeprefix("=") if name == "bind" else rest
                found.append(Option(name, Word(value, value) if rest else None, (f"-{text[place - 1 :]}",)))
                break
            else:
                found.append(Option(name, words[at], (f"-{text[place - 1]}", words[at].shell)))
                at += 1
                break
    return found, list(words[at:])


def _rest(word: Word, value: str) -> Word:
    """What stands behind the equals sign of a word."""
    if word.value is not None:
        return Word(value, value)
    quoted = word.shell.startswith('"') and word.shell.endswith('"') and not value.startswith('"')
    return Word(f'"{value}' if quoted else value, None, word.inner.partition("=")[2])
