"""Runs a batch script in bash, on stand-ins for the programs that it calls, and tells which calls it makes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

__all__ = ["PROGRAMS", "Ran", "run", "stand_ins"]

PROGRAMS = "python torchrun accelerate deepspeed axolotl mpirun conda numactl prog".split()
#: Variables that the calls are shown with.
SHOWN = "A B MOD OVERRIDE OMP_NUM_THREADS CUDA_VISIBLE_DEVICES".split()
#: A job of one node, as Slurm tells it.
JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_GPUS_ON_NODE": "8",
}
_CALLED = f"""#!/bin/bash
printf -v call '%s' "${{0##*/}}"
printf -v words ' [%s]' "$@"
for name in {" ".join(SHOWN)}; do [ -z "${{!name}}" ] || words+=" $name=${{!name}}"; done
printf '%s\\n' "$call$words in ${{PWD##*/}}"
[ ! -p /dev/stdin ] && [ ! -f /dev/stdin ] || {{ read -r line; printf 'reads %s\\n' "$line"; }}
[[ " $FAILS " != *" $1 "* ]] || exit 3
"""
# Its options are its own affair, but for those that change what a rank sees.
_SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
    case $1 in
        -l|--label) printf 'srun --label\n' ;;
        --gpus-per-task=*|--cpu-bind=*|--container-*|--export=NONE) printf 'srun %s\\n' "$1" ;;
        -n|-N|-c) shift ;;
    esac
    shift
done
exec "$@"
"""
_APPTAINER = """#!/bin/bash
shift
while [[ $1 == -* ]]; do
    case $1 in
        --nv) ;;
        *) printf 'apptainer %s %s\\n' "$1" "$2"; shift ;;
    esac
    shift
done
printf 'inside %s\\n' "$1"
shift
exec "$@"
"""
_SCONTROL = """#!/bin/bash
if [ "$2" = hostnames ]; then printf 'n1\\nn2\\n'; else echo "NodeAddr=10.0.0.1 "; fi
"""
_MODULE = """module() { if [ "$1" = load ]; then export MOD="$MOD:$2" OVERRIDE=module; fi; }
export -f module
cd "$1" && exec bash $2 script
"""


class Ran(msgspec.Struct, frozen=True):
    """What a script did.

    Attributes
    ----------
    calls : list of str
        What it printed, which are the calls, and what it prints itself.
    status : int
        Its exit status.
    files : list of str
        What it left in its folder.
    """

    calls: list[str]
    status: int
    files: list[str]


def stand_ins(folder: Path) -> Path:
    """Put the programs to a folder."""
    texts = {**dict.fromkeys(PROGRAMS, _CALLED), "srun": _SRUN, "apptainer": _APPTAINER, "scontrol": _SCONTROL}
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run(text: str, programs: Path, folder: Path, environ: Mapping[str, str] = {}) -> Ran:
    """Run a script in a folder of its own, by the shell that its first line names."""
    folder.mkdir()
    (folder / "work").mkdir()
    (folder / "work" / "settings.sh").write_text("export OVERRIDE=settings\n")
    (folder / "work" / "input.txt").write_text("line\n")
    (folder / "work" / "script").write_text(text)
    flags = " ".join(text.split("\n", 1)[0].split()[1:])
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", _MODULE, "bash", str(folder / "work"), flags],
        env={"PATH": path, "HOME": str(folder), "SLURM_SUBMIT_DIR": str(folder / "work"), **JOB, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    files = sorted(path.name for path in (folder / "work").iterdir() if path.name != "script")
    return Ran(done.stdout.splitlines(), done.returncode, files)
