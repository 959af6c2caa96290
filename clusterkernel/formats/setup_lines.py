"""Setup lines within a script of ours: the first command of theirs that fails ends it before the job's own code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

__all__ = ["guarded", "reason"]

# By a trap, since lines may be parts of one `if` or `for`. What a file that a line sources does inside counts
# only by that file's own exit code: a ~/.bashrc tests for much that is not there.
_GUARD: Final = """trap 'ck_code=$?; [ ${#BASH_SOURCE[@]} -gt 1 ] || ck_failed "$ck_code" "$BASH_COMMAND"' ERR"""
_SHELL: Final = re.compile(r"^\S*: line \d+: ")


def guarded(lines: Sequence[str]) -> list[str]:
    """The lines, with the shell function ``ck_failed CODE COMMAND`` called where a command of theirs fails.

    As for ``set -e``, what stands in a condition, or before ``||`` or ``&&``, may fail.
    """
    return [_GUARD, *(line.rstrip("\n") for line in lines), "trap - ERR"] if lines else []


def reason(told: str, said: str) -> str:
    """Why a job did not come to its code: what the script tells, and the last line that was printed."""
    said = _SHELL.sub("", said).rstrip(".")
    text = f"{told.rstrip('.')}: {said}." if said else told
    return f"{text} Put || true behind it where that does no harm." if " failed with " in told else text
