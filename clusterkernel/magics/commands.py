"""Which magics there are. What they do is imported when one is used: loading must be quick."""

from __future__ import annotations

import argparse
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from IPython.core.magic_arguments import MagicArgumentParser

    from clusterkernel.magics.extension import ClusterKernel
    from clusterkernel.magics.options import Option

__all__ = ["COMMANDS", "Command", "Details", "details", "dispatch", "find", "parser_of", "run"]


class Command(NamedTuple):
    """A magic.

    Attributes
    ----------
    name : str
        Behind ``%cluster_``.
    module : str
        Where its `Details` are, in a mapping ``DETAILS`` by name.
    help : str
        Full sentences.
    cell : bool
        Whether it stands over a cell as well.
    """

    name: str
    module: str
    help: str
    cell: bool = False

    @property
    def magic(self) -> str:
        """Its name as a magic."""
        return f"cluster_{self.name}"


class Details(NamedTuple):
    """What a magic takes and does.

    Attributes
    ----------
    examples : tuple of str
        As a person types them.
    options : tuple of Option
        The flags and arguments.
    action : callable
        Does it, and gives the value of the line.
    """

    examples: tuple[str, ...]
    options: tuple[Option, ...]
    action: Callable[..., Any]


COMMANDS: Final = (
    Command(
        "train",
        "train",
        "Ship this cell to a cluster. The names that it reads travel with it, the kernel goes on at once, "
        "and the names behind -o are bound here when the job has ended.",
        cell=True,
    ),
    Command("jobs", "look", "List jobs as a DataFrame: all that live, and the last ones that ended."),
    Command("status", "look", "Show the cards of jobs; without an id a table of all that live."),
    Command("logs", "look", "Print what a job printed."),
    Command("metrics", "look", "A job's metrics as a DataFrame, also while it runs."),
    Command("wait", "manage", "Wait for jobs, and fail as they failed. An interrupt stops the wait, not the jobs."),
    Command("bind", "manage", "Bind names that a job saved, whatever their size; without names those behind its -o."),
    Command("cancel", "manage", "End jobs."),
    Command("rerun", "manage", "Send a job again, as it was or with changes."),
    Command("clean", "manage", "Show what the folders of ended jobs take; with --yes delete them."),
    Command("secret", "secrets", "Keep a secret for jobs in a file of yours: its value is asked for and never shown."),
    Command("doctor", "manage", "Look whether this machine is ready, and say what to mend."),
    Command("queue", "look", "The cluster's queue as a DataFrame."),
    Command("nodes", "look", "The cluster's nodes as a DataFrame."),
    Command("accounting", "look", "The accounting of your jobs on the cluster as a DataFrame."),
    Command(
        "convert",
        "convert",
        "Convert a batch script, cloud YAML, manifest or profile, and show what became of each of its fields.",
    ),
    Command("check", "convert", "Show as a DataFrame what will not work in a file, or not as meant."),
)


def find(name: str) -> Command | None:
    """The command of this name."""
    return next((command for command in COMMANDS if command.name == name), None)


def details(command: Command) -> Details:
    """What the command takes and does."""
    module = importlib.import_module(f"clusterkernel.magics.{command.module}")
    found: Details = module.DETAILS[command.name]
    return found


@functools.cache
def parser_of(command: Command) -> MagicArgumentParser:
    """The command's parser."""
    from clusterkernel.magics.options import make_parser

    about = details(command)
    return make_parser(command.magic, command.help, about.examples, about.options, cell=command.cell)


def run(kernel: ClusterKernel, command: Command, line: str, cell: str | None = None) -> Any:
    """Run a magic's line."""
    from clusterkernel.magics.line import split
    from clusterkernel.magics.options import parse

    about, names = details(command), kernel.shell.user_ns
    args: argparse.Namespace = parse(parser_of(command), about.options, split(line, names))
    _put_ids(args, about.options, names)
    return about.action(kernel, args, cell) if command.cell else about.action(kernel, args)


def _put_ids(args: argparse.Namespace, options: Sequence[Option], names: Mapping[str, Any]) -> None:
    """Where a job is asked for, a variable that holds one stands for its id."""
    from clusterkernel.magics.values import Values

    for option in options:
        given = getattr(args, option.dest)
        if option.values is Values.JOBS and given:
            listed = [given] if isinstance(given, str) else given
            ids = [_id_of(word, names) for text in listed for word in text.replace(",", " ").split() or [text]]
            setattr(args, option.dest, ids if isinstance(given, list) else " ".join(ids))


def _id_of(word: str, names: Mapping[str, Any]) -> str:
    if word.startswith("$"):
        raise UsageError(f"{word}: a magic's line takes expressions in braces. Write {{{word.strip('${}')}}}.")
    if not word.isidentifier() or word not in names:
        return word
    from clusterkernel.arrays import JobArray
    from clusterkernel.jobs import Job

    value = names[word]
    return value.id if isinstance(value, Job | JobArray) else word


def dispatch(kernel: ClusterKernel, line: str, cell: str | None = None) -> Any:
    """``%cluster jobs`` is ``%cluster_jobs``; over a cell, and before a flag, it is ``%%cluster_train``."""
    word, _, rest = line.strip().partition(" ")
    if cell is not None or word.startswith("-"):
        return run(kernel, COMMANDS[0], line, cell)
    if not word:
        print(_overview())
        return None
    command = find(word)
    if command is None:
        from clusterkernel.errors import nearest

        hint = nearest(word, [command.name for command in COMMANDS])
        raise UsageError(f"%cluster has no command {word!r}. {hint}")
    return run(kernel, command, rest, cell)


def _overview() -> str:
    width = max(len(command.magic) for command in COMMANDS) + 2
    lines = [f"{'%' * (1 + command.cell) + command.magic:<{width}}  {_first(command.help)}" for command in COMMANDS]
    return "\n".join([*lines, "A question mark behind a command, as in %cluster_jobs?, shows its options."])


def _first(text: str) -> str:
    return text.partition(". ")[0].rstrip(".") + "."
