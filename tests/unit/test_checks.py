"""``ck.check``: advice on files of every format and on specs, as a DataFrame."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import clusterkernel as ck
from clusterkernel import checks
from clusterkernel.advice import axolotl_schema
from clusterkernel.errors import FormatError
from clusterkernel.fields import build
from tests.unit.advice_cases import SCHEMA

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=axolotl-slurm-multinode
#SBATCH --ntasks-per-node=1
#SBATCH --nodes=$NUM_NODES
#SBATCH --gpus-per-task=8
#SBATCH --cpus-per-task=128
export TORCH_DIST_INIT_BARRIER=0
srun axolotl preprocess train.yaml
srun axolotl train train.yaml --launcher torchrun -- \\
    --nproc_per_node=8 --nnodes=$NUM_NODES \\
    --rdzv_id axolotl-cli --rdzv_backend c10d --rdzv_endpoint "node01:29400"
"""
CLOUD = """\
volumes:
  - name: axolotl-data
    mount: /workspace/data
secrets:
  - HF_TOKEN
gpu: h100
gpu_count: 1
memory: 128
timeout: 86400
restart_policy:
  type: on-failure
  max_attempts: 3
"""
CLEAN = """\
#!/bin/bash
#SBATCH --nodes=1 --gpus-per-node=h100:8 --ntasks-per-node=1 --cpus-per-task=128 --mem=512G --time=4:00:00
srun torchrun --standalone --nproc_per_node=8 train.py
"""
# Scripts that are as they should be.
SCRIPTS = {
    "torchrun": r"""#!/bin/bash
#SBATCH -J llama -N 4 --ntasks-per-node=1 --gpus-per-node=h100:8 --cpus-per-task=128 --mem=900G
#SBATCH -t 12:00:00 -p gpu --output=logs/%x-%j.out
module load cuda/12.4
source /shared/venv/bin/activate
export HF_HOME=/shared/hf
export NCCL_DEBUG=INFO
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
port=$((20000 + SLURM_JOB_ID % 10000))
srun torchrun --nnodes=$SLURM_NNODES --nproc_per_node=8 --rdzv_id=$SLURM_JOB_ID \
    --rdzv_backend=c10d --rdzv_endpoint=$head:$port train.py --output_dir /shared/out
""",
    "accelerate": r"""#!/bin/bash
#SBATCH --job-name=acc
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
#SBATCH --time=04:00:00
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=$(( 20000 + SLURM_JOB_ID % 10000 ))
srun accelerate launch --num_processes 16 --num_machines 2 --machine_rank $SLURM_PROCID \
    --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT train.py
""",
    "mpi": r"""#!/bin/bash
#SBATCH --ntasks=64
#SBATCH --nodes=2
#SBATCH --time=1:00:00
#SBATCH --mem-per-cpu=4G
module load openmpi
srun ./solver input.dat
""",
    "array": r"""#!/bin/bash
#SBATCH --array=0-99%10
#SBATCH --time=30:00
#SBATCH --mem=8G
python sweep.py --task $SLURM_ARRAY_TASK_ID
""",
    "axolotl": r"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=128
#SBATCH --mem=1000G
#SBATCH --time=1-00:00:00
srun -N1 -n1 axolotl preprocess train.yaml
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
srun axolotl train train.yaml --launcher torchrun -- --nproc_per_node=8 --nnodes=2 \
    --rdzv_id $SLURM_JOB_ID --rdzv_backend c10d --rdzv_endpoint "$head:$((20000 + SLURM_JOB_ID % 10000))"
""",
    "exclusive": r"""#!/bin/bash
#SBATCH -N 1 --exclusive --gpus-per-node=8 -t 2:00:00 --mem=0
export OMP_NUM_THREADS=8
srun --ntasks-per-node=8 python train.py
""",
    "tokens": r"""#!/bin/bash
#SBATCH --gpus=1 --cpus-per-task=16 --mem=64G --time=60
export TOKENIZERS_PARALLELISM=false
export HF_TOKEN=$(cat ~/.hf)
export WANDB_API_KEY
python train.py --max_new_tokens 200
""",
}


@pytest.fixture(autouse=True)
def _no_axolotl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No axolotl and no cluster of this machine take part."""
    monkeypatch.setattr(axolotl_schema, "find", lambda interpreter=None: None)
    monkeypatch.setattr(checks, "facts_of", lambda spec: None)
    monkeypatch.chdir(tmp_path)


def rules(source: object, **values: object) -> dict[str, str]:
    frame = ck.check(source, **values)  # type: ignore[arg-type]
    assert list(frame.columns) == ["level", "rule", "field", "message", "fix"]
    return dict(zip(frame["rule"], frame["level"], strict=True))


def test_the_article_script() -> None:
    found = rules(SCRIPT, values={"NUM_NODES": 2})
    assert found["directive-variable"] == "error"
    assert found["rendezvous-fixed"] == "warning"
    assert found["time-missing"] == "warning"
    assert found["gpu-ratio"] == "info"


def test_the_article_cloud_file() -> None:
    found = rules(CLOUD)
    assert found["key-ignored"] == "warning"
    assert found["memory-soft"] == "info"


@pytest.mark.parametrize("name", SCRIPTS)
def test_clean_scripts_get_nothing(name: str) -> None:
    frame = ck.check(SCRIPTS[name])
    assert [(row.rule, row.message) for row in frame.itertuples()] == []


def test_nothing_is_a_frame_too() -> None:
    frame = ck.check(CLEAN)
    assert len(frame) == 0
    assert list(frame.columns) == ["level", "rule", "field", "message", "fix"]


def test_a_file_and_a_spec(tmp_path: Path) -> None:
    path = tmp_path / "job.slurm"
    path.write_text(CLEAN.replace("--time=4:00:00", ""))
    assert set(rules(path)) == set(rules(str(path))) == {"time-missing"}
    assert rules(build({"backend": "modal", "gpus_per_node": "h100:9"}))["modal-gpu-count"] == "error"


def test_another_backend_has_other_advice() -> None:
    assert "shm-small" in rules(CLEAN, backend="kubernetes")
    assert "shm-small" not in rules(CLEAN)


def test_an_axolotl_configuration_beside_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(axolotl_schema, "find", lambda interpreter=None: Path(sys.executable))
    monkeypatch.setattr(axolotl_schema, "load", lambda python, cached_only=False: SCHEMA)
    (tmp_path / "train.yaml").write_text("base_model: m\nlearning_rat: 1.0e-4\n")
    (tmp_path / "job.slurm").write_text(SCRIPT)
    frame = ck.check(tmp_path / "job.slurm", values={"NUM_NODES": 2})
    [row] = frame[frame["rule"] == "axolotl-key"].itertuples()
    assert (row.field, row.fix) == ("learning_rat", "Did you mean learning_rate?")
    alone = ck.check(tmp_path / "train.yaml")
    assert "learning_rat" in set(alone["field"])


def test_what_cannot_be_read_is_one_line() -> None:
    with pytest.raises(FormatError):
        ck.check("no such file")


def test_advice_on_a_payload_leaves_out_what_the_backend_notes() -> None:
    spec = build({"backend": "slurm", "gpus_per_node": "8", "priority": "TOP"})
    assert [item.rule for item in checks.of_payload(spec, {})] == ["gpu-ratio"]
    config = {"config.yml": "base_model: m\noutput_dir: /tmp/x\n"}
    assert "output-dir" in {item.rule for item in checks.of_payload(spec, config)}


def test_a_dry_run_shows_the_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from clusterkernel.magics import train
    from clusterkernel.payload import command

    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(tmp_path / "jobs"))
    spec = build({"backend": "slurm", "nodes": 2, "gpus_per_node": "8", "time": "1h", "env": "NCCL_SOCKET_IFNAME=lo"})
    shown = train._dry_run(spec, command.build(["python", "train.py"]))
    assert "Advice:   NCCL_SOCKET_IFNAME=lo is an interface that other nodes cannot reach" in shown
    assert shown.index("NCCL_SOCKET_IFNAME=lo is") < shown.index("8 GPUs are asked for without cores and memory")
    assert shown.index("Advice:") < shown.index("#!/bin/bash")
