"""``python -m clusterkernel convert`` and ``check``, for people outside a notebook."""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clusterkernel._version import __version__
from clusterkernel.errors import ClusterKernelError
from clusterkernel.formats.model import Format, How

if TYPE_CHECKING:
    from clusterkernel.formats.convert import Row

__all__ = ["main"]

ERROR: Final = 1
FOUND: Final = 3
_FORMATS: Final = ", ".join(item.value for item in Format)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; gives the exit status."""
    args = _parser().parse_args(_with_values(sys.argv[1:] if argv is None else argv))
    try:
        return int(args.run(args))
    except ClusterKernelError as error:
        sys.stderr.write(f"{error}\n")
        return ERROR
    except BrokenPipeError:
        sys.stderr.close()
        return ERROR


def _with_values(argv: Sequence[str]) -> list[str]:
    """The words with ``--sbatch --mem=8G`` as one: argparse takes a value with a dash for an option."""
    words = list(argv)
    while "--sbatch" in words[:-1]:
        at = words.index("--sbatch")
        words[at : at + 2] = [f"--sbatch={words[at + 1]}"]
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m clusterkernel", description="Take a training job from one platform to another."
    )
    parser.add_argument("--version", action="version", version=f"clusterkernel {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    convert = commands.add_parser(
        "convert",
        help="convert a script, cloud file, manifest or profile",
        description="Convert a file. The text goes to standard output or -o; the report, one line for each field "
        "of the source, goes to standard error.",
        epilog=f"Exit status: 0 nothing was dropped; {FOUND} something was; {ERROR} an error; 2 wrong usage.",
    )
    convert.add_argument("--to", required=True, metavar="FORMAT", help=_FORMATS)
    convert.add_argument("-o", "--output", metavar="FILE", help="write the text to this file")
    convert.add_argument("--force", action="store_true", help="write over a file that is there already")
    convert.add_argument("--quiet", action="store_true", help="no report")
    convert.set_defaults(run=_convert)
    check = commands.add_parser(
        "check",
        help="look for what will not work, or not as meant",
        description="Advice on a job before it is sent.",
        epilog=f"Exit status: 0 nothing found but hints; {FOUND} a warning or an error; {ERROR} the source is wrong.",
    )
    check.add_argument(
        "--backend",
        "--to",
        metavar="NAME",
        help="where it is to run (slurm, modal, kubernetes, ...); if not given, where the source runs",
    )
    check.set_defaults(run=_check)
    for command in (convert, check):
        command.add_argument("source", metavar="SOURCE", help="a file, or - for standard input")
        command.add_argument(
            "--from", dest="source_format", metavar="FORMAT", help="what the source is, where its text does not show it"
        )
        command.add_argument(
            "--set", dest="values", action="append", default=[], metavar="NAME=VALUE", help="value of a variable"
        )
        command.add_argument(
            "--sbatch", dest="options", default="", metavar="OPTIONS", help="sbatch's command line before the script"
        )
    return parser


def _values(args: argparse.Namespace) -> dict[str, str]:
    values = {}
    for pair in args.values:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ClusterKernelError("--set needs a name and a value.", hint="Write --set NUM_NODES=2.")
        values[name] = value
    return values


def _source(args: argparse.Namespace) -> str | Path:
    if args.source != "-":
        return Path(args.source)
    from clusterkernel.formats import sources

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "standard input")
        path.write_bytes(sys.stdin.buffer.read(sources.LARGEST + 1))
        text, _ = sources.load(path)
    return text if "\n" in text else text + "\n"


def _convert(args: argparse.Namespace) -> int:
    from clusterkernel.formats.convert import convert

    done = convert(_source(args), args.to, values=_values(args), source_format=args.source_format, options=args.options)
    if args.output:
        done.write(args.output, overwrite=args.force)
    else:
        sys.stdout.write(done.text)
        sys.stdout.flush()
    if not args.quiet:
        sys.stderr.write(_report(done.rows))
    return FOUND if done.dropped else 0


def _report(rows: Sequence[Row]) -> str:
    """One line for each field, what a person should look at first, and how many there are of each kind."""
    lines = []
    for how in reversed(How):
        for row in (row for row in rows if row.how is how):
            left, right = _words(row.source, row.value), _words(row.target, row.target_value)
            arrow = f"{left:<40} -> {right}" if left and right else left or right
            lines.append(f"{how.value:<8} {arrow}" + (f"  # {row.reason}" if how is not How.EXACT else ""))
    counts = [f"{count} {how.value}" for how in reversed(How) if (count := sum(row.how is how for row in rows))]
    return "\n".join([*lines, f"{len(rows)} fields: {', '.join(counts)}.", ""])


def _words(key: str, value: str) -> str:
    """A key and its value on one line; a command's value begins with it."""
    first = next(iter(value.splitlines()), "")
    text = first if first.startswith(key) else f"{key} {first}"
    return _cut(text.strip() + (" ..." if "\n" in value.strip() else ""))


def _check(args: argparse.Namespace) -> int:
    from clusterkernel.checks import advise

    found = advise(
        _source(args),
        values=_values(args),
        source_format=args.source_format,
        options=args.options,
        backend=args.backend,
    )
    for item in found:
        sys.stdout.write(f"{item.level.value:<8} {item.rule}: {item.message}\n")
        if item.fix:
            sys.stdout.write(textwrap.indent(f"{item.fix}\n", " " * 9))
    if not found:
        sys.stderr.write("Nothing found.\n")
    return FOUND if any(item.level.value != "info" for item in found) else 0


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


if __name__ == "__main__":
    sys.exit(main())
