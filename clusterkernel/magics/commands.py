"""The line magics: each a name, a help, examples, options and what it does."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from clusterkernel.errors import nearest
from clusterkernel.magics import look, manage, train
from clusterkernel.magics.line import split
from clusterkernel.magics.options import Option, Values, field_options, make_parser, parse

if TYPE_CHECKING:
    from clusterkernel.magics.extension import ClusterKernel

__all__ = ["COMMANDS", "Command", "dispatch", "find", "run"]


class Command(NamedTuple):
    """A magic.

    Attributes
    ----------
    name : str
        Behind ``%cluster_``.
    help : str
        Full sentences.
    examples : tuple of str
        As a person types them.
    options : callable
        Gives the flags and arguments.
    action : callable
        Does it, and gives the value of the line.
    cell : bool
        Whether it stands over a cell as well.
    """

    name: str
    help: str
    examples: tuple[str, ...]
    options: Callable[[], tuple[Option, ...]]
    action: Callable[..., Any]
    cell: bool = False

    @property
    def magic(self) -> str:
        """Its name as a magic."""
        return f"cluster_{self.name}"


def _options(*options: Option) -> Callable[[], tuple[Option, ...]]:
    return lambda: options


_ONE: Final = Option(("ID",), "ID", "A job: 12, or 12_3 for task 3 of an array.", Values.JOBS, "ID")
_IDS: Final = Option(("IDS",), "IDS", "Jobs: 12 13.", Values.JOBS, "ID", "words")
_RANK: Final = Option(("--rank",), "rank", "Process whose output is shown.", metavar="0")
_TIMEOUT: Final = Option(("--timeout",), "timeout", "Longest wait.", metavar="10m")
_BACKEND: Final = Option(("--backend",), "backend", "Only this backend.", Values.BACKEND, "slurm")


def _rerun_options() -> tuple[Option, ...]:
    own = (
        _ONE,
        Option(
            ("--set",), "set", "A captured name, keyword argument or axolotl key, changed. May be repeated.",
            metavar="NAME=VALUE", many="append",
        ),
        Option(("--as",), "as_name", "Name under which the new Job is bound here.", Values.NAMES, "NAME"),
        Option(("--wait",), "wait", "Wait for the end.", Values.NONE),
    )
    return own + field_options()


COMMANDS: Final = (
    Command("train", train.DESCRIPTION, train.EXAMPLES, train.options, train.train, cell=True),
    Command(
        "jobs",
        "List jobs as a DataFrame: all that live, and the last ones that ended.",
        ("%cluster_jobs", "%cluster_jobs --all --state FAILED"),
        _options(
            Option(("-a", "--all"), "all", "All jobs there are.", Values.NONE),
            Option(("--state",), "state", "Only those in this state.", Values.STATE, "RUNNING"),
        ),
        look.jobs,
    ),
    Command(
        "status",
        "Show the cards of jobs; without an id a table of all that live.",
        ("%cluster_status", "%cluster_status 12"),
        _options(_IDS),
        look.status,
    ),
    Command(
        "logs",
        "Print what a job printed.",
        ("%cluster_logs 12", "%cluster_logs 12 -f", "%cluster_logs 12 -n 50 --stderr --rank 1"),
        _options(
            _ONE,
            Option(("-f", "--follow"), "follow", "Go on until the job ends; an interrupt stops it.", Values.NONE),
            Option(("-n", "--lines"), "lines", "So many lines from the end; 0 for all.", metavar="200"),
            Option(("--stderr",), "stderr", "Only what went to stderr.", Values.NONE),
            _RANK,
        ),
        look.logs,
    ),
    Command(
        "metrics",
        "A job's metrics as a DataFrame, also while it runs.",
        ("%cluster_metrics 12",),
        _options(_ONE),
        look.metrics,
    ),
    Command(
        "wait",
        "Wait for jobs, and fail as they failed. An interrupt stops the wait, not the jobs.",
        ("%cluster_wait 12", "%cluster_wait 12 13 --timeout 10m"),
        _options(_IDS, _TIMEOUT),
        manage.wait,
    ),
    Command(
        "bind",
        "Bind names that a job saved; without names those behind its -o.",
        ("%cluster_bind 12", "%cluster_bind 12 model history"),
        _options(_ONE, Option(("NAMES",), "NAMES", "Names that it saved.", Values.JOB_NAMES, "NAME", "words")),
        manage.bind,
    ),
    Command(
        "cancel",
        "End jobs.",
        ("%cluster_cancel 12", "%cluster_cancel 12_3 13"),
        _options(_IDS),
        manage.cancel,
    ),
    Command(
        "rerun",
        "Send a job again, as it was or with changes.",
        ("%cluster_rerun 12", "%cluster_rerun 12 --set lr=1e-4 --time 8h"),
        _rerun_options,
        manage.rerun,
    ),
    Command(
        "doctor",
        "Look whether this machine is ready, and say what to mend.",
        ("%cluster_doctor", "%cluster_doctor --backend slurm"),
        _options(_BACKEND),
        manage.doctor,
    ),
    Command(
        "clean",
        "Show what the folders of ended jobs take; with --yes delete them.",
        ("%cluster_clean", "%cluster_clean --older 30d --yes", "%cluster_clean 12 13 --yes"),
        _options(
            _IDS,
            Option(("--older",), "older", "Only jobs that ended longer ago.", metavar="30d"),
            Option(("--yes",), "yes", "Delete them.", Values.NONE),
        ),
        manage.clean,
    ),
    Command(
        "queue",
        "The cluster's queue as a DataFrame.",
        ("%cluster_queue",),
        _options(_BACKEND),
        look.queue,
    ),
    Command("nodes", "The cluster's nodes as a DataFrame.", ("%cluster_nodes",), _options(_BACKEND), look.nodes),
    Command(
        "accounting",
        "The accounting of your jobs on the cluster as a DataFrame.",
        ("%cluster_accounting",),
        _options(_BACKEND),
        look.accounting,
    ),
)


def find(name: str) -> Command | None:
    """The command of this name."""
    return next((command for command in COMMANDS if command.name == name), None)


@functools.cache
def parser_of(name: str) -> tuple[MagicArgumentParser, tuple[Option, ...]]:
    """A command's parser and options."""
    command = find(name)
    assert command is not None
    options = command.options()
    return make_parser(command.magic, command.help, command.examples, options, cell=command.cell), options


def run(kernel: ClusterKernel, command: Command, line: str, cell: str | None = None) -> Any:
    """Run a magic's line."""
    parser, options = parser_of(command.name)
    args: argparse.Namespace = parse(parser, options, split(line, kernel.shell.user_ns))
    return command.action(kernel, args, cell) if command.cell else command.action(kernel, args)


def dispatch(kernel: ClusterKernel, line: str, cell: str | None = None) -> Any:
    """``%cluster jobs`` is ``%cluster_jobs``; over a cell, and before a flag, it is ``%%cluster_train``."""
    word, _, rest = line.strip().partition(" ")
    if cell is not None or word.startswith("-"):
        command, rest = COMMANDS[0], line
    elif not word:
        print(_overview())
        return None
    else:
        found = find(word)
        if found is None:
            raise UsageError(
                f"%cluster has no command {word!r}. {nearest(word, [command.name for command in COMMANDS])}"
            )
        command = found
    return run(kernel, command, rest, cell)


def _overview() -> str:
    width = max(len(command.magic) for command in COMMANDS) + 2
    lines = [f"{'%' * (1 + command.cell) + command.magic:<{width}}  {_first(command.help)}" for command in COMMANDS]
    return "\n".join([*lines, "A question mark behind a command, as in %cluster_jobs?, shows its options."])


def _first(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."


def helps(names: Sequence[str]) -> dict[str, str]:
    """Command -> its full help."""
    return {name: parser_of(name)[0].format_help() for name in names}
