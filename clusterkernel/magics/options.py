"""Flags as data: the parser, the help and the completion of a magic are made from one table."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from clusterkernel.errors import nearest
from clusterkernel.fields import FIELDS, Field
from clusterkernel.magics.values import Values

__all__ = ["BACKEND", "IDS", "ONE", "Option", "Values", "field_options", "make_parser", "parse"]


class Option(NamedTuple):
    """One flag or argument of a magic.

    Attributes
    ----------
    flags : tuple of str
        As written; one word without a dash for an argument by position.
    dest : str
        Where the parsed value goes.
    help : str
        One line.
    values : Values
        What its value is.
    metavar : str
        How the value is called in the help.
    many : str
        ``""`` for one value, ``"append"`` for a flag that may be repeated,
        ``"words"`` for several words behind one flag or argument, ``"?"`` for
        an argument that may be left out, ``"switch"`` for yes or no with yes
        as what the bare flag means.
    group : str
        Heading in the help.
    choices : tuple of str
        Fixed values, for completion.
    """

    flags: tuple[str, ...]
    dest: str
    help: str
    values: Values = Values.TEXT
    metavar: str = ""
    many: str = ""
    group: str = ""
    choices: tuple[str, ...] = ()


ONE: Final = Option(("ID",), "ID", "A job: 12, or 12_3 for task 3 of an array.", Values.JOBS, "ID")
IDS: Final = Option(("IDS",), "IDS", "Jobs: 12 13.", Values.JOBS, "ID", "words")
BACKEND: Final = Option(("--backend",), "backend", "Only this backend.", Values.BACKEND, "slurm")

_PATHS: Final = frozenset({"files", "interpreter", "workdir"})
_HEADINGS: Final = {
    "": "the run",
    "resources": "what each node brings",
    "schedule": "where and when",
    "recovery": "after a failure",
    "environment": "what the code finds",
    "storage": "storage",
}


def field_options() -> tuple[Option, ...]:
    """The flags of every field of the spec, and those that stand beside them."""
    options = [_field_option(field) for field in FIELDS.values()]
    options.append(
        Option(
            ("--gpus",),
            "gpus",
            "GPUs of the whole job, as in Slurm; must divide by the nodes.",
            metavar="16",
            group=_HEADINGS["resources"],
        )
    )
    options.append(
        Option(
            ("--sbatch",),
            "sbatch",
            'Options that go to sbatch as they are: --sbatch "--nodelist=gpu1". May be repeated.',
            metavar="OPTIONS",
            many="append",
            group=_HEADINGS["schedule"],
        )
    )
    options.append(
        Option(
            ("--modal",),
            "modal",
            'What only Modal has: --modal "--pip=torch --gpu=A100-80GB:8 --secret=wandb". May be repeated.',
            metavar="OPTIONS",
            many="append",
            group=_HEADINGS["schedule"],
        )
    )
    return tuple(options)


def _field_option(field: Field) -> Option:
    heading = _HEADINGS.get(field.group, field.group)
    if field.unit == "switch":
        return Option((field.flag,), field.name, field.help, many="switch", group=heading, choices=("yes", "no"))
    text = field.help + (" May be repeated." if field.repeats else "")
    values = Values.BACKEND if field.name == "backend" else Values.FILE if field.name in _PATHS else Values.FIELD
    return Option(
        (field.flag,),
        field.name,
        text,
        values,
        metavar=shlex.quote(field.example) if " " in field.example else field.example or "TEXT",
        many="append" if field.repeats else "",
        group=heading,
        choices=field.choices,
    )


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that fits a notebook's pager."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=100)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, prefix="Usage: ")


class _Parser(MagicArgumentParser):
    """A parser whose errors are one line with the mend."""

    def error(self, message: str) -> Any:
        raise UsageError(f"%{self.prog}: {message}. %{self.prog}? shows all options.")


class _Once(argparse.Action):
    """A flag that makes no sense twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} is given twice")
        setattr(namespace, self.dest, values)


def make_parser(
    name: str, description: str, examples: Sequence[str], options: Iterable[Option], *, cell: bool = False
) -> MagicArgumentParser:
    """The parser of a magic.

    Parameters
    ----------
    name : str
        Without the percent sign.
    description : str
        Full sentences.
    examples : sequence of str
        Lines, or cells, that can be run as they are.
    options : iterable of Option
        The flags and arguments.
    cell : bool
        Whether it stands over a cell.
    """
    shown = "\n\n".join("    " + example.replace("\n", "\n    ") for example in examples)
    options = list(options)
    plain = [_usage(option) for option in options if not option.flags[0].startswith("-")]
    usage = " ".join([f"%{'%' * cell}{name}", *plain, "[options]" * (len(plain) < len(options))])
    parser = _Parser(  # type: ignore[no-untyped-call]
        prog=name,
        usage=usage.rstrip().replace("%", "%%"),
        description=f"{description}\n\nExamples:\n\n{shown}\n",
        formatter_class=_Formatter,
    )
    parser.allow_abbrev = False
    groups: dict[str, Any] = {}
    for option in options:
        target: Any = parser
        if option.group:
            target = groups.get(option.group) or groups.setdefault(
                option.group, parser.add_argument_group(option.group)
            )
        target.add_argument(*option.flags, **_keywords(option))
    return parser


def _usage(option: Option) -> str:
    word = option.metavar or option.flags[0]
    return f"[{word}]" if option.many == "?" else f"[{word} ...]" if option.many == "words" else word


def _keywords(option: Option) -> dict[str, Any]:
    named = option.flags[0].startswith("-")
    words: dict[str, Any] = {"help": option.help.replace("%", "%%")}
    if named:
        words["dest"] = option.dest
    if option.values is Values.NONE:
        return {**words, "action": "store_true", "default": None}
    if option.many == "switch":
        return {**words, "nargs": "?", "const": "true", "metavar": "yes|no", "action": _Once}
    if option.metavar:
        words["metavar"] = option.metavar.replace("%", "%%")
    if option.many == "append":
        words["action"] = "append"
    elif option.many == "words":
        words |= {"nargs": "+", "action": "extend"} if named else {"nargs": "*"}
    elif option.many == "?":
        words["nargs"] = "?"
    elif named:
        words["action"] = _Once
    return words


def parse(parser: MagicArgumentParser, options: Sequence[Option], words: Sequence[str]) -> argparse.Namespace:
    """The parsed words.

    Raises
    ------
    UsageError
        One line: an unknown flag with the nearest known one, a missing or superfluous value.
    """
    flags = {flag: option for option in options for flag in option.flags if flag.startswith("-")}
    parsed, rest = parser.parse_known_args(_joined(words, flags))
    if rest:
        first = rest[0]
        if first.startswith("-"):
            flag = first.partition("=")[0]
            raise UsageError(f"%{parser.prog} has no option {flag}. {_suggest(parser.prog, flag, flags)}")
        raise UsageError(
            f"%{parser.prog} does not know what to do with {first!r}. A value with spaces goes into quotes; "
            f"%{parser.prog}? shows all options."
        )
    return parsed


def _suggest(name: str, flag: str, flags: Iterable[str]) -> str:
    hint = nearest(flag, flags)
    return hint if hint.startswith("Did") else f"%{name}? shows all options."


def _joined(words: Sequence[str], flags: dict[str, Option]) -> list[str]:
    """Flags that take one value joined with it: argparse would take ``--opt`` in ``--sbatch --opt`` for a flag."""
    joined: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        option = flags.get(word)
        single = option is not None and option.values is not Values.NONE and option.many in ("", "append")
        if single and at + 1 < len(words) and words[at + 1] not in flags:
            joined.append(f"{word}={words[at + 1]}")
            at += 2
        else:
            joined.append(word)
            at += 1
    return joined
