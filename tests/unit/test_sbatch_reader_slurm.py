"""The real sbatch as the judge: of our grammar, and of every script that we write."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from clusterkernel.errors import ClusterKernelError
from clusterkernel.formats import convert as converting
from clusterkernel.formats.convert import convert
from clusterkernel.formats.model import Format, Program
from clusterkernel.formats.sbatch import script as sbatch_script
from clusterkernel.spec import JobSpec
from tests.clusters.cluster import SlurmCluster
from tests.unit.convert_specs import jobs
from tests.unit.sbatch_lines import CASES, FILES, LAYERS, Case

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

DATA = Path(__file__).parent / "data" / "convert"
# What differs between two submissions of the same.
ITS_OWN = {
    "JobId",
    "ArrayJobId",
    "SubmitTime",
    "EligibleTime",
    "AccrueTime",
    "StartTime",
    "EndTime",
    "LastSchedEval",
    "Deadline",
}


class Judge:
    """Submits scripts, held, and tells what slurmctld holds of them."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SBATCH_", "SLURM_"))}
        self._environ = {**kept, **cluster.env}

    def held(
        self, data: bytes, words: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> dict[str, str] | None:
        """The fields of the job; None where sbatch refuses it."""
        path = self._folder / "job.sh"
        path.write_bytes(data)
        env = {**self._environ, **(environ or {})}
        done = subprocess.run(
            ["sbatch", "--hold", "--parsable", *words, path.name],
            cwd=self._folder,
            env=env,
            capture_output=True,
            check=False,
            timeout=60,
        )
        if done.returncode:
            return None
        number = re.search(rb"(\d+)(?:;\S*)?\s*$", done.stdout)
        assert number is not None, done.stdout
        job = number[1].decode()
        shown = subprocess.run(["scontrol", "show", "job", "-o", job], env=env, capture_output=True, check=True)
        subprocess.run(["scancel", job], env=env, check=True, capture_output=True)
        line = shown.stdout.decode(errors="replace").splitlines()[0]
        found = dict(re.findall(r"(\S+?)=(.*?)(?=\s\S+?=|$)", line))
        return {name: value.replace(job, "JOB") for name, value in found.items() if name not in ITS_OWN}


@pytest.fixture
def judge(slurm_cluster: SlurmCluster, tmp_path: Path) -> Judge:
    return Judge(slurm_cluster, tmp_path)


def script(lines: str) -> bytes:
    return f"#!/bin/bash\n{lines}\nhostname\n".encode()


# -- the grammar --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cases", [CASES[first : first + 20] for first in range(0, len(CASES), 20)], ids=lambda cases: cases[0].lines
)
def test_the_table_is_what_the_real_sbatch_does(judge: Judge, cases: list[Case]) -> None:
    for case in cases:
        if "container" in case.lines:
            continue  # this cluster has no pyxis
        held = judge.held(script(case.lines))
        assert (held is not None) == case.taken, case.lines
        for name, value in case.holds.items():
            assert held is not None
            assert value in held[name], (case.lines, name, held[name])


def test_files_that_sbatch_does_not_look_at(judge: Judge) -> None:
    for data, taken in FILES:
        assert (judge.held(data) is not None) == taken, data


def test_the_environment_and_the_command_line_count_over_the_script(judge: Judge) -> None:
    for lines, words, environ, holds in LAYERS:
        held = judge.held(script(lines), words, environ)
        assert held is not None, lines
        for name, value in holds.items():
            assert value in held[name], (lines, words, environ)


# -- what we write ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cases", [CASES[first : first + 20] for first in range(0, len(CASES), 20)], ids=lambda cases: cases[0].lines
)
def test_slurm_holds_the_same_of_what_we_write(judge: Judge, cases: list[Case]) -> None:
    for case in cases:
        if not case.taken or "container" in case.lines:
            continue
        source = script(case.lines)
        written = convert(source.decode(), "slurm")
        assert judge.held(written.text.encode()) == judge.held(source), written.text


SCRIPTS = {
    "torchrun": """#!/bin/bash
#SBATCH --job-name=a-b --partition=gpu   # two on a line
#SBATCH -N2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:h100:8
#SBATCH --cpus-per-task=32
#SBATCH --time 4:00:00
#SBATCH --exclusive
#SBATCH --output=%x-%j.out
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append --requeue
set -euo pipefail
module load cuda || true
export NCCL_DEBUG=INFO
trap 'touch stop' USR1
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_backend c10d \\
    --rdzv_endpoint $MASTER_ADDR:29500 train.py "$@" &
wait
""",
    "ranks": """#!/bin/bash
#SBATCH -p gpu -n 16 -N 2 --gpus-per-task=1 --cpus-per-gpu=4 --mem-per-gpu=20G -t 90
#SBATCH --comment='a "comment"' --nice=10 --mail-type=END --mail-user=me@example.org
export HF_TOKEN=something
cd sub
srun --mpi=none --container-image=a#b/c:d python train.py
""",
    "array": """#!/bin/bash
#SBATCH -a 3-9:2%2 -c 4 --mem-per-cpu=2G -D /tmp -o log-%A_%a.txt --hint=nomultithread
python train.py --task $SLURM_ARRAY_TASK_ID
""",
    "old": """#!/bin/bash
#PBS -l nodes=2:ppn=4,walltime=2:00:00,mem=8gb
#PBS -N old -j oe
cat > hosts <<END
here
END
srun ./a.out < in.txt
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_slurm_holds_the_same_of_whole_scripts(judge: Judge, name: str) -> None:
    written = convert(SCRIPTS[name], "slurm")
    held = judge.held(written.text.encode())
    assert held is not None, written.text
    assert held == judge.held(SCRIPTS[name].encode()), written.text
    assert subprocess.run(["bash", "-n"], input=written.text, text=True, check=False).returncode == 0


def test_slurm_holds_the_same_of_the_seeds_script_with_its_variables(judge: Judge) -> None:
    source = (DATA / "axolotl.slurm").read_text()
    assert judge.held(source.encode()) is None  # as it is, no sbatch takes it
    filled = source.replace("--nodes=$NUM_NODES", "--nodes=2 --partition=gpu").replace("128", "16")
    written = convert(filled, "slurm", values={"NUM_NODES": 2, "NUM_TRAINERS": 8})
    assert judge.held(written.text.encode()) == judge.held(filled.encode())
    asked = convert(source.replace("128", "16"), "slurm", values={"NUM_NODES": 2}, options="-p gpu")
    assert judge.held(asked.text.encode()) == judge.held(filled.replace("$NUM_NODES", "2").encode())


@pytest.mark.parametrize("name", ["modal.yaml", "baseten.yaml"])
def test_scripts_of_cloud_files_are_taken(judge: Judge, name: str) -> None:
    written = convert(DATA / name, "slurm")
    text = written.text.replace("#SBATCH --nodes", "#SBATCH --partition=gpu\n#SBATCH --nodes", 1)
    held = judge.held(text.encode())
    assert held is not None, text
    gpus = written.spec.resources.gpus_per_node
    assert gpus is not None
    assert f"gres/gpu:h100={gpus.count}" in held["TRES"]


def of_this_cluster(spec: JobSpec) -> JobSpec:
    """The spec with the names and sizes of this cluster: what a partition is called is no matter of form."""
    replace = msgspec.structs.replace
    gpus = spec.resources.gpus_per_node
    kind = "h100" if gpus is not None and gpus.type else None
    resources = replace(
        spec.resources,
        nodes=min(spec.resources.nodes, 2),
        gpus_per_node=None if gpus is None else replace(gpus, type=kind),
        cpus_per_task=None,
        memory=None,
    )
    names = dict.fromkeys(("account", "qos", "constraint", "reservation", "dependency"))
    schedule = replace(spec.schedule, partition="gpu", **names)
    return replace(spec, resources=resources, schedule=schedule, storage=replace(spec.storage, ephemeral_disk=None))


def test_scripts_of_any_spec_are_taken_and_stay_the_same(judge: Judge) -> None:
    @settings(
        max_examples=25,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # each example asks a cluster
    )
    @given(jobs())
    def check(job: tuple[JobSpec, Program]) -> None:
        spec, program = job
        text = sbatch_script.write(of_this_cluster(spec), program).text
        held = judge.held(text.encode())
        assert held is not None, text
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
        again = convert(text, "slurm").text
        assert judge.held(again.encode()) == held, f"{text}\n{again}"

    check()


def test_a_written_script_runs_and_its_nodes_meet(judge: Judge, tmp_path: Path, slurm_cluster: SlurmCluster) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("torchrun", "python"):
        (tools / name).write_text(f'#!/bin/bash\necho "{name} $SLURMD_NODENAME $*" >>{tmp_path}/$SLURM_PROCID.out\n')
        (tools / name).chmod(0o755)
    source = f"""#!/bin/bash
#SBATCH -p gpu -N2 --ntasks-per-node=1 --gpus-per-node=h100:2 -c 4 --mem=500M -t 5
export PATH={tools}:/usr/bin:/bin
DIR={tmp_path}
OUT=$DIR/$SLURM_JOB_NAME
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun -N1 -n1 python prepare.py
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_endpoint=$head:29500 train.py --out $OUT
"""
    written = convert(source, "slurm")
    (tmp_path / "job.sh").write_text(written.text)
    done = slurm_cluster.run("sbatch", "--wait", "--parsable", f"--chdir={tmp_path}", str(tmp_path / "job.sh"))
    log = (tmp_path / f"slurm-{done.strip()}.out").read_text()
    lines = sorted(line for path in tmp_path.glob("*.out") for line in path.read_text().splitlines())
    first, second = [line.split() for line in lines if line.startswith("torchrun")]
    assert [line.split()[0] for line in lines if line.startswith("python")] == ["python"], log
    assert {first[1], second[1]} == {"gpu1", "gpu2"}
    ranks = {words[1]: next(word for word in words if word.startswith("--node_rank")) for words in (first, second)}
    assert ranks == {"gpu1": "--node_rank=0", "gpu2": "--node_rank=1"}
    addresses = {word for words in (first, second) for word in words if word.startswith("--master_addr")}
    assert addresses == {f"--master_addr={slurm_cluster.address('gpu1')}"}
    assert first[-3:] == ["train.py", "--out", f"{tmp_path}/job.sh"]


def test_what_comes_back_from_another_format_is_taken_and_holds_the_same_resources(judge: Judge) -> None:
    source = SCRIPTS["torchrun"]
    there = convert(source, Format.KUBERNETES)
    try:
        back = convert(there.text, Format.SLURM)
    except ClusterKernelError as error:
        pytest.fail(str(error))
    text = back.text.replace("\n", "\n#SBATCH --partition=gpu\n", 1)
    held, wanted = judge.held(text.encode()), judge.held(source.encode())
    assert held is not None, text
    assert wanted is not None
    for name in ("NumNodes", "NumTasks", "CPUs/Task", "TimeLimit"):
        assert held[name] == wanted[name], name
    assert converting.COLUMNS
