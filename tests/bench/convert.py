"""What a conversion takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clusterkernel.formats.convert import convert

from .rows import Row, alternate, timed


def script(number: int = 0) -> str:
    """A batch script of 100 lines, as people write them."""
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=train-{number}",
        "#SBATCH --nodes=2 --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=h100:8",
        "#SBATCH --cpus-per-task=96   # all cores",
        "#SBATCH --mem=512G --time=1-00:00:00",
        "#SBATCH --partition=gpu",
        "#SBATCH --output=%x-%j.out",
        "",
        "module load cuda/12.4",
        "source ~/venv/bin/activate",
        "cd ~/project",
        *(f"export NCCL_OPTION_{index}={index}" for index in range(20)),
        *(f"VALUE_{index}=/data/part-{index}" for index in range(20)),
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        "if [ ! -d out ]; then",
        "    mkdir -p out",
        "fi",
        *(f"# what line {index} is about" for index in range(20)),
        'LAUNCHER="torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_backend c10d \\',
        '    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT"',
        "srun $LAUNCHER train.py \\",
        *(f"    --part-{index} $VALUE_{index} \\" for index in range(20)),
        "    --epochs 3 2>&1 | tee log.txt",
        'echo "done $(date)"',
    ]
    lines[8:8] = [""] * (100 - len(lines))
    return "\n".join(lines) + "\n"


def one(folder: Path) -> Row:
    """A script of 100 lines: read and written as a script again, and as a manifest."""
    text = script()
    path = folder / "bash.sh"
    path.write_text(text)
    convert(text, "slurm"), convert(text, "kubernetes")  # what is imported once is not counted
    values = alternate(
        50,
        ours=lambda: timed(lambda: convert(text, "slurm")),
        manifest=lambda: timed(lambda: convert(text, "kubernetes")),
        bash=lambda: timed(lambda: subprocess.run(["bash", "-n", path], check=True)),
    )
    return Row(
        name="read and convert a script of 100 lines",
        unit="ms",
        ours=values["ours"],
        beside={"to a manifest": values["manifest"], "bash -n, which only parses": values["bash"]},
        limit=lambda _: 0.005,
        limit_text="5 ms",
    )


def many(folder: Path) -> Row:
    """1,000 files, each with the report's rows."""
    paths = []
    for number in range(1000):
        paths.append(folder / f"train-{number}.slurm")
        paths[-1].write_text(script(number))

    def run() -> None:
        for path in paths:
            assert convert(path, "slurm").rows

    values = alternate(3, ours=lambda: timed(run), read=lambda: timed(lambda: [path.read_text() for path in paths]))
    return Row(
        name="read and convert 1,000 files of 100 lines",
        unit="s",
        ours=values["ours"],
        beside={"only reading the files": values["read"]},
        limit=lambda _: 3.0,
        limit_text="3 s",
    )
