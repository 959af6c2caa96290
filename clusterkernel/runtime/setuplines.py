"""Setup lines within a script of ours: the first command of theirs that fails ends it before the job's own code."""

import re

# By a trap, since lines may be parts of one `if` or `for`. What a file that a line sources does inside counts
# only by that file's own exit code: a ~/.bashrc tests for much that is not there.
_GUARD = """trap 'ck_code=$?; [ ${#BASH_SOURCE[@]} -gt 1 ] || ck_failed "$ck_code" "$BASH_COMMAND"' ERR"""
_SHELL = re.compile(r"^\S*: line \d+: ")
# The last word of a script that came no further, behind all that its setup lines printed.
_TELL = [
    "ck_told='A setup line ended the script'",
    """trap 'printf "%s with exit code %d.\\n" "$ck_told" "$?" >&2' EXIT""",
    'ck_failed() { ck_told="The setup line $2 failed"; exit "$1"; }',
]
_TOLD = re.compile(r"(A setup line ended the script|The setup line .* failed) with exit code \d+\.", re.DOTALL)


def guarded(lines):
    """The lines, with the shell function ``ck_failed CODE COMMAND`` called where a command of theirs fails.

    As for ``set -e``, what stands in a condition, or before ``||`` or ``&&``, may fail.

    Parameters
    ----------
    lines : sequence of str
        The setup lines.

    Returns
    -------
    list of str
        Lines of a script for bash.
    """
    return [_GUARD] + [line.rstrip("\n") for line in lines] + ["trap - ERR"] if lines else []


def telling(lines):
    """The lines, `guarded`; the last line that the script prints says which of them ended it (see `told`)."""
    return _TELL + guarded(lines) + ["trap - EXIT"] if lines else []


def told(printed):
    """Why a script with `telling` lines ended, from the lines that it printed; empty where it came past them."""
    said = [line for line in printed if line.strip()]
    if not said or not _TOLD.fullmatch(said[-1]):
        return ""
    return reason(said[-1], said[-2] if len(said) > 1 else "")


def reason(told, said):
    """Why a job did not come to its code: what the script tells, and the last line that was printed."""
    said = _SHELL.sub("", said).rstrip(".")
    text = "%s: %s." % (told.rstrip("."), said) if said else told
    return text + " Put || true behind it where that does no harm." if " failed with " in told else text
