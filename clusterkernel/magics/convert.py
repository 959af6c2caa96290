"""``%cluster_convert`` and ``%cluster_check``: files of other platforms, with what becomes of each field."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from IPython.core.error import UsageError

from clusterkernel.formats.model import Format
from clusterkernel.language import say
from clusterkernel.magics.commands import Details
from clusterkernel.magics.options import Option
from clusterkernel.magics.values import Values

if TYPE_CHECKING:
    import pandas as pd

    from clusterkernel.magics.extension import ClusterKernel

__all__ = ["DETAILS"]

_FORMATS: Final = tuple(item.value for item in Format)
_SOURCE: Final = Option(("SOURCE",), "SOURCE", "A script, cloud YAML, manifest or profile.", Values.FILE, "FILE")
_FROM: Final = Option(
    ("--from",), "source_format", "What the source is, where that cannot be seen.", metavar="slurm", choices=_FORMATS
)
_SET: Final = Option(("--set",), "set", "Value of a variable. May be repeated.", metavar="NAME=VALUE", many="append")
_SBATCH: Final = Option(
    ("--sbatch",), "sbatch", "sbatch's command line before the script.", metavar="OPTIONS", many="append"
)


def _given(args: argparse.Namespace) -> dict[str, Any]:
    values = {}
    for pair in args.set or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UsageError("--set needs a name and a value. Write --set NUM_NODES=2.")
        values[name] = value
    return {"values": values, "source_format": args.source_format, "options": " ".join(args.sbatch or [])}


def convert(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_convert``."""
    from pathlib import Path

    from clusterkernel.formats.convert import convert as run

    if not args.to:
        raise UsageError(f"%cluster_convert needs --to. Known: {', '.join(_FORMATS)}.")
    if args.bind and not args.bind.isidentifier():
        raise UsageError(f"--as {args.bind} is no name.")
    done = run(Path(args.SOURCE), args.to, **_given(args))
    if args.output:
        print(say("{path} is written.", path=done.write(args.output, overwrite=bool(args.force))))
    else:
        print(done.text)
    if args.bind:
        kernel.shell.user_ns[args.bind] = done
    return done.report


def check(kernel: ClusterKernel, args: argparse.Namespace) -> pd.DataFrame:
    """``%cluster_check``."""
    from pathlib import Path

    from clusterkernel.checks import check as run

    return run(Path(args.SOURCE), backend=args.backend, **_given(args))


DETAILS: Final = {
    "convert": Details(
        (
            "%cluster_convert train.slurm --to kubernetes --set NUM_NODES=2 --output train.yaml",
            "%cluster_convert modal.yaml --to slurm --as done",
        ),
        (
            _SOURCE,
            Option(("--to",), "to", "The format that is wanted.", metavar="kubernetes", choices=_FORMATS),
            Option(("-o", "--output"), "output", "Write the text to this file.", Values.FILE, "FILE"),
            Option(("--force",), "force", "Write over a file that is there already.", Values.NONE),
            Option(("--as",), "bind", "Bind the Conversion to this name.", metavar="NAME"),
            _FROM,
            _SET,
            _SBATCH,
        ),
        convert,
    ),
    "check": Details(
        ("%cluster_check train.slurm", "%cluster_check modal.yaml --backend slurm"),
        (
            _SOURCE,
            Option(
                ("--backend", "--to"), "backend", "Where it is to run; by itself where the source runs.", Values.BACKEND
            ),
            _FROM,
            _SET,
            _SBATCH,
        ),
        check,
    ),
}
