"""Stands in front of Slurm's real commands: counts their calls and, where a test asks for it, has them fail."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["COMMANDS", "Call", "Wrapper"]

COMMANDS = ("squeue", "sacct", "scontrol", "sbatch", "scancel")
# What the controller keeps of a job that ended; a purged one it does not.
_ENDED = "BOOT_FAIL|CANCELLED|COMPLETED|DEADLINE|FAILED|NODE_FAIL|OUT_OF_MEMORY|PREEMPTED|TIMEOUT"

_SCRIPT = r"""#!/bin/bash
# In front of {real}: notes each call, and does what faults/{name} says.
base={base}
real={real}
printf '%s\t%s\t%s\n' "$EPOCHREALTIME" "$PPID" "${{*//[$'\n\t']/ }}" >>"$base/calls/{name}"
mode=
[ -e "$base/faults/{name}" ] && read -r mode text <"$base/faults/{name}"
if [ -d "$base/faults/{name}.left" ]; then
    taken=
    for token in "$base/faults/{name}.left"/*; do
        rm "$token" 2>/dev/null && taken=1 && break
    done
    [ "$taken" ] || mode=
fi
case $mode in
fail)  # it complains
    echo "$text" >&2
    exit 1 ;;
empty)  # it answers well, and says nothing
    exit 0 ;;
hang)
    exec sleep 1000 ;;
fewer)  # it answers in part
    "$real" "$@" | head -n "$text"
    exit 0 ;;
slow)
    sleep "$text" ;;
deaf)  # it does what it was told, and its answer is lost
    "$real" "$@" >/dev/null 2>&1
    echo "$text" >&2
    exit 1 ;;
lacks)  # an older one, without this option
    case " $* " in *" $text"*)
        echo "{name}: unrecognized option '$text'" >&2
        exit 1 ;;
    esac ;;
forget)  # it knows nothing of jobs that have ended
    case {name} in
    squeue)
        "$real" "$@" | awk -F '\037' '$4 !~ /^({ended})$/'
        exit "${{PIPESTATUS[0]}}" ;;
    scontrol)
        "$real" "$@" | awk '/ JobState=({ended}) / {{
            print "slurm_load_jobs error: Invalid job id specified" >"/dev/stderr"; next }} {{ print }}'
        exit "${{PIPESTATUS[0]}}" ;;
    sacct)
        exit 0 ;;
    esac ;;
esac
exec "$real" "$@"
"""


class Call(NamedTuple):
    """One call of a command."""

    at: float
    parent: int
    arguments: str


class Wrapper:
    """A folder of commands to be put first on PATH.

    Parameters
    ----------
    folder : Path
        Where they and their notes lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("bin", "calls", "faults"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            real = shutil.which(name)
            assert real is not None, f"{name} is not installed"
            path = folder / "bin" / name
            text = _SCRIPT.format(name=name, real=real, base=shlex.quote(str(folder)), ended=_ENDED)
            path.write_text(text)
            path.chmod(0o755)

    @property
    def path(self) -> str:
        """PATH with these commands first."""
        return f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def set(self, command: str, mode: str, text: str = "", *, times: int | None = None) -> None:
        """Have a command fail from now on, or so many times."""
        self.clear(command)
        if times is not None:
            left = self.folder / "faults" / f"{command}.left"
            left.mkdir()
            for number in range(times):
                (left / str(number)).touch()
        new = self.folder / "faults" / f".{command}"
        new.write_text(f"{mode} {text}\n")
        new.rename(self.folder / "faults" / command)

    def clear(self, *commands: str) -> None:
        """Let commands work again; all of them, where none is named."""
        for command in commands or COMMANDS:
            (self.folder / "faults" / command).unlink(missing_ok=True)
            shutil.rmtree(self.folder / "faults" / f"{command}.left", ignore_errors=True)

    def calls(self, command: str) -> list[Call]:
        """The calls so far, in their order."""
        try:
            text = (self.folder / "calls" / command).read_text()
        except FileNotFoundError:
            return []
        rows = (line.split("\t", 2) for line in text.splitlines())
        return sorted(Call(float(at), int(parent), arguments) for at, parent, arguments in rows)
