"""For each rule of the advice: cases in which it speaks, and near ones in which it does not."""

from __future__ import annotations

from typing import Any

import msgspec

from clusterkernel.advice import Case, Facts
from clusterkernel.fields import build
from clusterkernel.formats.launch.steps import EACH_NODE
from clusterkernel.formats.model import Format, How, Mount, Program, Runs, SourceField, Step
from clusterkernel.spec import Array, JobSpec

NOTHING = Program()
UNKNOWN = Facts()
AXOLOTL = Program(
    config="train.yaml",
    steps=(
        Step(name="preprocess", shell="axolotl preprocess train.yaml", runs=Runs.HEAD),
        Step(name="train", shell="axolotl train train.yaml", runs=Runs.NODES, launched=True),
    ),
)
TRAIN = Program(steps=(Step(name="train", shell="train.py --lr 1e-4", launched=True, runs=Runs.NODES),))
SCHEMA = {
    "$ref": "#/$defs/Config",
    "$defs": {
        "Config": {
            "type": "object",
            "properties": {
                "base_model": {},
                "learning_rate": {},
                "datasets": {"anyOf": [{"$ref": "#/$defs/Data"}], "items": {"anyOf": [{"$ref": "#/$defs/Data"}]}},
                "deepspeed": {"anyOf": [{"type": "object"}]},
                "fsdp_config": {"anyOf": [{"$ref": "#/$defs/Data"}]},
            },
        },
        "Data": {"type": "object", "properties": {"path": {}, "type": {}}, "additionalProperties": False},
    },
}


def spec(backend: str, **values: Any) -> JobSpec:
    array = values.pop("array", None)
    extra = values.pop("extra", {})
    made = build({"backend": backend, **values})
    return msgspec.structs.replace(made, array=Array(size=array) if array else None, extra={**made.extra, **extra})


def case(backend: str, program: Program = NOTHING, **values: Any) -> Case:
    given = {name: values.pop(name) for name in ("facts", "fields", "format", "config", "schema") if name in values}
    return Case(spec=spec(backend, **values), program=program, **given)


def script(*fields: SourceField, program: Program = NOTHING, facts: Facts = UNKNOWN, **values: Any) -> Case:
    """A case that was read from an sbatch script."""
    return case("slurm", program, fields=fields, format=Format.SLURM, facts=facts, **values)


def option(key: str, value: str, line: int = 3, **more: Any) -> SourceField:
    return SourceField(key, value, line, **more)


GPU: dict[str, Any] = {"gpus_per_node": "h100:8", "cpus_per_task": "16", "memory": "512G", "time": "4h"}
TWO = {**GPU, "nodes": 2, "launcher": "torchrun"}
DATA = {"volumes": "data:/data"}


def shell(text: str) -> Program:
    return Program(steps=(Step(name="run", shell=text, runs=Runs.HEAD),))


# rule -> (cases in which it speaks, cases in which it does not)
CASES: dict[str, tuple[list[Case], list[Case]]] = {
    "gpu-ratio": (
        [
            case("slurm", gpus_per_node="h100:8", time="1h"),
            case("modal", gpus_per_node="h100:1", memory="64G", time="1h"),
            case("kubernetes", gpus_per_node="8", cpus_per_task=4),
            case("slurm", gpus_per_node="8", facts=Facts(node_cpus=96, node_memory=480_000, node_gpus=8)),
        ],
        [
            case("slurm", **GPU),
            case("slurm", gpus_per_node="8", exclusive=True),
            case("slurm", gpus_per_node="8", sbatch=["--cpus-per-gpu=16", "--mem-per-gpu=64G"]),
            case("local", gpus_per_node="1"),
            case("slurm", cpus_per_task=4),
        ],
    ),
    "over-node": (
        [
            case("slurm", cpus_per_task=16, gpus_per_node="8", facts=Facts(node_cpus=64)),
            case("slurm", memory="2T", facts=Facts(node_memory=1_000_000)),
            case("slurm", gpus_per_node="8", facts=Facts(node_gpus=4)),
        ],
        [
            case("slurm", **GPU),
            case("slurm", **GPU, facts=Facts(node_cpus=128, node_memory=524_288, node_gpus=8)),
        ],
    ),
    "ranks-gpus": (
        [
            case("slurm", gpus_per_node="4", tasks_per_node=8),
            case("slurm", gpus_per_node="8", tasks_per_node=4, launcher="torchrun"),
            case("slurm", shell("torchrun --nproc_per_node=4 train.py"), gpus_per_node="8"),
            case("slurm", shell("torchrun --nproc-per-node 16 train.py"), gpus_per_node="8"),
        ],
        [
            case("slurm", **GPU),
            case("slurm", shell("torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE train.py"), gpus_per_node="8"),
            case("slurm", gpus_per_node="8", tasks_per_node=1),  # one process for all of them
            case("slurm", tasks_per_node=8, launcher="torchrun"),  # gloo
            case("slurm", gpus_per_node="8", tasks_per_node=8, launcher="torchrun"),
        ],
    ),
    "time-missing": (
        [case("slurm"), case("kubernetes"), case("modal", gpus_per_node="h100:8")],
        [case("slurm", time="1h"), case("local"), case("slurm", sbatch="--time=60"), case("baseten")],
    ),
    "time-too-long": (
        [case("slurm", time="3d", facts=Facts(longest_time=86_400))],
        [case("slurm", time="1d", facts=Facts(longest_time=86_400)), case("slurm", time="30d")],
    ),
    "memory-limit": (
        [case("slurm", memory="8G", memory_limit="10G"), case("baseten", memory_limit="10G")],
        [case("modal", memory="8G", memory_limit="10G"), case("slurm", memory="8G")],
    ),
    "memory-soft": (
        [case("modal", memory="512G")],
        [case("modal", memory="512G", memory_limit="512G"), case("kubernetes", memory="8G"), case("modal")],
    ),
    "memory-tight": (
        [case("slurm", gpus_per_node="8", memory="16G"), case("kubernetes", gpus_per_node="1", memory="2G")],
        [
            case("slurm", **GPU),
            case("slurm", memory="2G"),
            case("modal", gpus_per_node="h100:8", memory="16G"),
            case("slurm", gpus_per_node="8", memory="16G", facts=Facts(hard_memory=False)),
        ],
    ),
    "shm-small": (
        [case("kubernetes", **GPU), case("kubernetes", **GPU, shm="256M")],
        [case("kubernetes", **GPU, shm="64G"), case("kubernetes"), case("slurm", **GPU)],
    ),
    "shm-memory": (
        [case("kubernetes", memory="64G", shm="64G"), case("kubernetes", memory="64G", memory_limit="80G", shm="90G")],
        [case("kubernetes", memory="64G", shm="16G"), case("kubernetes", shm="16G"), case("slurm", memory="1G")],
    ),
    "output-dir": (
        [
            case("slurm", shell("python train.py --output_dir /tmp/out"), nodes=2),
            case("slurm", shell("python train.py --output-dir=$TMPDIR/out")),
            case("slurm", AXOLOTL, config={"output_dir": "/local/me/out"}),
            case("modal", AXOLOTL, config={"output_dir": "./out"}, **DATA),
            case("kubernetes", AXOLOTL, config={"output_dir": "/workspace/out"}, **DATA),
            case("baseten", shell("python train.py --output_dir /workspace/out")),
        ],
        [
            case("slurm", shell("python train.py --output_dir /scratch/me/out"), nodes=2),
            case("slurm", AXOLOTL, config={"output_dir": "./out"}),
            case("modal", AXOLOTL, config={"output_dir": "/data/out"}, **DATA),
            case("kubernetes", AXOLOTL, config={"output_dir": "./out"}, workdir="/data/run", **DATA),
            case("baseten", shell("python train.py --output_dir $BT_CHECKPOINT_DIR")),
            case("local", shell("python train.py --output_dir /tmp/out")),
            case("modal", AXOLOTL),
        ],
    ),
    "nothing-kept": (
        [case("modal", TRAIN), case("kubernetes", AXOLOTL)],
        [
            case("modal", TRAIN, **DATA),
            case("modal"),  # a cell: what it makes comes back
            case("slurm", TRAIN),
            case("kubernetes", msgspec.structs.replace(TRAIN, mounts=(Mount("/data", "/data"),))),
        ],
    ),
    "hf-cache": (
        [
            case("slurm", env="HF_HOME=/tmp/hf", nodes=2),
            case("slurm", setup=["export HF_HOME=$SLURM_TMPDIR/hf"], nodes=2),
            case("modal", AXOLOTL, **DATA),
            case("modal", AXOLOTL, env="HF_HOME=/root/hf", **DATA),
            case("slurm", env=["HF_HOME=/shared/hf", "HF_HUB_CACHE=/shared/hf"]),
        ],
        [
            case("slurm", env="HF_HOME=/shared/hf", nodes=2),
            case("slurm", AXOLOTL),  # the home folder, which the nodes share
            case("modal", AXOLOTL, env="HF_HOME=/data/hf", **DATA),
            case("modal", TRAIN, **DATA),
            case("slurm", env=["HF_HOME=/shared/hf", "HF_HUB_CACHE=/shared/hf/hub"]),
        ],
    ),
    "network-option": (
        [case("slurm", network="ib")],
        [case("slurm", network="single_node_vni", facts=Facts(network_option=True)), case("slurm")],
    ),
    "infiniband-constraint": (
        [case("slurm", **TWO, facts=Facts(features=("h100", "ib")))],
        [
            case("slurm", **TWO),
            case("slurm", **TWO, facts=Facts(features=("h100", "big"))),
            case("slurm", **TWO, constraint="ib", facts=Facts(features=("h100", "ib"))),
            case("slurm", **GPU, facts=Facts(features=("ib",))),
        ],
    ),
    "infiniband-off": (
        [case("slurm", **TWO, env="NCCL_IB_DISABLE=1")],
        [case("slurm", **TWO, env="NCCL_IB_DISABLE=0"), case("slurm", **GPU, env="NCCL_IB_DISABLE=1")],
    ),
    "nccl-interface": (
        [case("slurm", **TWO, env="NCCL_SOCKET_IFNAME=lo"), case("modal", **TWO, env="GLOO_SOCKET_IFNAME==lo")],
        [case("slurm", **TWO, env="NCCL_SOCKET_IFNAME=ib0"), case("slurm", **GPU, env="NCCL_SOCKET_IFNAME=lo")],
    ),
    "rdma-device": (
        [case("kubernetes", **TWO)],
        [
            case("kubernetes", **TWO, extra={"kubernetes": ("resource.rdma/ib=1",)}),
            case("kubernetes", **TWO, extra={"kubernetes": ("resource.vpc.amazonaws.com/efa=4",)}),
            case("kubernetes", **GPU),
            case("slurm", **TWO),
        ],
    ),
    "same-zone": (
        [case("kubernetes", **TWO)],
        [
            case("kubernetes", **TWO, zone="a"),
            case("kubernetes", **GPU),
            case("modal", **TWO),
            case(
                "kubernetes",
                **TWO,
                extra={
                    "kubernetes": ("annotation.kueue.x-k8s.io/podset-required-topology=topology.kubernetes.io/zone",)
                },
            ),
        ],
    ),
    "rendezvous-localhost": (
        [
            case("slurm", **TWO, env="MASTER_ADDR=localhost"),
            case("slurm", shell("torchrun --rdzv_endpoint=127.0.0.1:29500 train.py"), nodes=2),
            case("slurm", nodes=2, setup=["export MASTER_ADDR=$(hostname -i || echo localhost)"]),
            script(option("--rdzv_endpoint", "localhost:29500"), nodes=2),
        ],
        [
            case("slurm", **GPU, env="MASTER_ADDR=localhost"),
            case("slurm", **TWO, env="MASTER_ADDR=gpu1"),
            case("slurm", shell("torchrun --rdzv_endpoint=$head:29500 train.py"), nodes=2),
        ],
    ),
    "rendezvous-fixed": (
        [
            case("slurm", **TWO, env="MASTER_PORT=29500"),
            case("slurm", shell("torchrun --rdzv_id axolotl-cli --rdzv_endpoint $head:$port train.py")),
            case("slurm", shell("torchrun --rdzv-endpoint=$head:29400 train.py")),
            script(option("--rdzv_id", "axolotl-cli"), nodes=2),
            script(option("--master_port", "29500"), nodes=2),
        ],
        [
            case("slurm", **TWO),
            case("slurm", shell("torchrun --rdzv_id $SLURM_JOB_ID --rdzv_endpoint $head:$port train.py")),
            case("slurm", shell("torchrun --standalone train.py")),
            case("modal", **TWO, env="MASTER_PORT=29500"),  # a container has its own ports
            script(option("--rdzv_id", "$SLURM_JOB_ID"), option("--rdzv_endpoint", "$head:$port")),
        ],
    ),
    "secret-in-clear": (
        [
            case("slurm", env="HF_TOKEN=abcdef"),
            case("modal", env="WANDB_API_KEY=0123456789"),
            case("slurm", env="MODEL_KEY=hf_abcdefghijklmnopqrstuvwxyz0123"),
            case("slurm", shell("wandb login; python t.py --token hf_abcdefghijklmnopqrstuvwxyz0123")),
            script(
                SourceField("export HF_TOKEN", "***", 3, "secrets.HF_TOKEN", How.CHANGED, "A secret in the clear."),
                secrets="HF_TOKEN",
            ),
        ],
        [
            case("slurm", secrets="HF_TOKEN"),
            case("slurm", env=["TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=2048", "HF_TOKEN_PATH=/home/me/token"]),
            case("slurm", env="HF_TOKEN=$HF_TOKEN"),
            case("slurm", env="PAD_TOKEN=0"),
        ],
    ),
    "priority-ignored": (
        [case("slurm", priority="TOP"), case("slurm", priority="100")],
        [case("slurm", priority="TOP", facts=Facts(operator=True)), case("kubernetes", priority="high"), case("slurm")],
    ),
    "array-size": (
        [
            case("slurm", array=5000, facts=Facts(array_size=1001)),
            script(array=1001, facts=Facts(array_size=1001)),
        ],
        [
            case("slurm", array=1000, facts=Facts(array_size=1001)),
            case("slurm", array=5000),
            case("slurm", facts=Facts(array_size=1001)),
        ],
    ),
    "submit-limit": (
        [case("slurm", array=500, facts=Facts(submitted=100)), case("slurm", facts=Facts(submitted=0))],
        [case("slurm", array=500), case("slurm", array=100, facts=Facts(submitted=100))],
    ),
    "slurm-conflict": (
        [
            case("slurm", sbatch=["--mem-per-cpu=4G", "--mem-per-gpu=64G"], gpus_per_node="8"),
            case("slurm", sbatch="--mem-per-gpu=64G"),
            case("slurm", sbatch=["--ntasks-per-gpu=1", "--gpus-per-task=1"]),
            case("slurm", sbatch="--cpus-per-gpu=8", cpus_per_task=8, gpus_per_node="8"),
            case("slurm", sbatch="--gpus-per-socket=4"),
            script(option("--gpus-per-task", "8")),
            script(option("-G", "8"), option("--gpus-per-node", "a100:4")),
            script(option("--gpus-per-node", "8"), option("--gres", "gpu:8")),
            script(option("--gpus-per-node", "8"), option("--gres", "gpu:8"), facts=Facts(version=(26, 5))),
        ],
        [
            case("slurm", **GPU),
            case("slurm", sbatch="--mem-per-gpu=64G", gpus_per_node="8"),
            script(option("--gpus-per-node", "8"), option("--gres", "gpu:8"), facts=Facts(version=(25, 11))),
            script(option("--gpus-per-task", "8"), option("--ntasks-per-node", "1")),
            script(option("--gres", "gpu:8"), option("--mem-per-gpu", "64G")),
            script(option("--gpus-per-node", "h100:8"), option("--gres", "nvme:1")),
            case("kubernetes", sbatch=["--mem-per-cpu=4G", "--mem-per-gpu=64G"]),
        ],
    ),
    "modal-gpu": (
        [case("modal", gpus_per_node="h10"), case("modal", gpus_per_node="mi300x:8")],
        [case("modal", gpus_per_node="a100-80gb:2"), case("modal"), case("slurm", gpus_per_node="mi300x:8")],
    ),
    "modal-gpu-count": (
        [
            case("modal", gpus_per_node="h100:9"),
            case("modal", gpus_per_node="a10:8"),
            case("modal", gpus_per_node="16"),
        ],
        [case("modal", gpus_per_node="h100:8"), case("modal", gpus_per_node="a10:4")],
    ),
    "modal-cluster": (
        [
            case("modal", nodes=2),
            case("modal", nodes=2, gpus_per_node="h100:4"),
            case("modal", nodes=40, gpus_per_node="h100:8"),
        ],
        [case("modal", nodes=2, gpus_per_node="h100:8"), case("modal", gpus_per_node="h100:4")],
    ),
    "modal-time": ([case("modal", time="2d")], [case("modal", time="24h"), case("slurm", time="2d")]),
    "modal-retries": ([case("modal", attempts=20)], [case("modal", attempts=11), case("slurm", attempts=20)]),
    "modal-backoff": ([case("modal", attempts=2, backoff="5m")], [case("modal", attempts=2, backoff="60s")]),
    "modal-disk": ([case("modal", ephemeral_disk="4T")], [case("modal", ephemeral_disk="3T"), case("modal")]),
    "modal-mount": (
        [case("modal", volumes="data:/tmp"), case("modal", volumes="d:/root/"), case("modal", volumes="d:/a/../root")],
        [case("modal", **DATA)],
    ),
    "modal-volume": (
        [case("modal", volumes="data:/a,data:/b")],
        [case("modal", volumes="data:/a,more:/b"), case("kubernetes", volumes="data:/a,data:/b")],
    ),
    "baseten-gpu": (
        [case("baseten", gpus_per_node="mi300x:8")],
        [case("baseten", gpus_per_node="h100:8"), case("baseten", gpus_per_node="8")],
    ),
    "baseten-gpu-count": ([case("baseten", gpus_per_node="h100:16")], [case("baseten", gpus_per_node="h100:8")]),
    "baseten-array": ([case("baseten", array=4)], [case("baseten"), case("modal", array=4)]),
    "kubernetes-gpu-type": (
        [case("kubernetes", gpus_per_node="mi300x:8"), case("kubernetes", gpus_per_node="gtx1080:1")],
        [
            case("kubernetes", gpus_per_node="h100:8"),
            case("kubernetes", gpus_per_node="8"),
            case("kubernetes", gpus_per_node="mi300x:8", constraint="amd.com/gpu.family=AI"),
        ],
    ),
    "kubernetes-name": (
        [case("kubernetes", name="Llama_SFT"), case("kubernetes", name="a" * 70)],
        [case("kubernetes", name="llama-sft"), case("kubernetes"), case("slurm", name="Llama_SFT")],
    ),
    "kubernetes-priority": (
        [case("kubernetes", priority="TOP"), case("kubernetes", priority="100")],
        [case("kubernetes", priority="high"), case("kubernetes"), case("baseten", priority="100")],
    ),
    "kubernetes-extra": (
        [case("kubernetes", extra={"kubernetes": ("namespce=ml",)})],
        [case("kubernetes", extra={"kubernetes": ("namespace=ml",)}), case("slurm", extra={"kubernetes": ("x",)})],
    ),
    "field-ignored": (
        [
            case("modal", partition="gpu"),
            case("kubernetes", reservation="course"),
            case("baseten", region="us-east", gpus_per_node="h100:8"),
        ],
        [
            case("modal", region="us-east"),
            case("kubernetes", partition="gpu"),
            case("slurm", partition="gpu"),
            case("kubernetes", setup="module load cuda"),
        ],
    ),
    "directive-variable": (
        [script(option("--nodes", "$NUM_NODES")), script(option("-t", "${TIME}"))],
        [
            script(option("--output", "$HOME/%j.log")),
            script(option("--nodes", "2"), option("export X", "$HOME")),
            case("slurm", fields=(option("--nodes", "$N"),)),
        ],
    ),
    "directive-late": (
        [script(option("#SBATCH", "--gpus=2"))],
        [script(option("--gpus", "2")), case("kubernetes", fields=(option("#SBATCH", "--gpus=2"),))],
    ),
    "launch-one-node": (
        [script(option("torchrun", "", how=How.CHANGED, reason=EACH_NODE, field="program.steps.0"))],
        [script(option("torchrun", ""))],
    ),
    "key-ignored": (
        [
            case(
                "kubernetes",
                format=Format.KUBERNETES,
                fields=(option("spec.backofLimit", "2", how=How.DROPPED, reason="Did you mean backoffLimit? No."),),
            ),
            case(
                "modal",
                format=Format.MODAL_YAML,
                fields=(option("restart_policy", "{max_attempts: 3}", how=How.DROPPED, reason="Nobody reads it."),),
            ),
            case(
                "baseten",
                format=Format.BASETEN_YAML,
                fields=(option("memory", "512", how=How.DROPPED, reason="Baseten's path ignores it."),),
            ),
        ],
        [
            case("modal", format=Format.MODAL_YAML, fields=(option("gpu", "h100"),)),
            script(option("--mail-type", "END", how=How.DROPPED, reason="x")),
        ],
    ),
    "launcher-tasks": (
        [script(option("--ntasks-per-node", "8"), launcher="torchrun", gpus_per_node="8")],
        [
            script(option("--ntasks-per-node", "1"), launcher="torchrun", gpus_per_node="8"),
            script(option("--ntasks-per-node", "8"), gpus_per_node="8"),
        ],
    ),
    "preprocess-missing": (
        [
            case("slurm", msgspec.structs.replace(AXOLOTL, steps=AXOLOTL.steps[1:]), **TWO),
            case("slurm", msgspec.structs.replace(AXOLOTL, steps=AXOLOTL.steps[1:]), config={"datasets": [{}]}),
        ],
        [
            case("slurm", AXOLOTL, **TWO),
            case("slurm", TRAIN, **TWO),
            case("slurm", msgspec.structs.replace(AXOLOTL, steps=AXOLOTL.steps[1:]), config={"streaming": True}),
            case(
                "slurm",
                msgspec.structs.replace(AXOLOTL, steps=AXOLOTL.steps[1:]),
                config={"pretraining_dataset": [{"path": "x"}]},
            ),
        ],
    ),
    "preprocess-repeated": (
        [
            case(
                "slurm",
                msgspec.structs.replace(
                    AXOLOTL, steps=(msgspec.structs.replace(AXOLOTL.steps[0], runs=runs), AXOLOTL.steps[1])
                ),
                **TWO,
            )
            for runs in (Runs.NODES, Runs.RANKS)
        ],
        [
            case("slurm", AXOLOTL, **TWO),
            case(
                "slurm",
                msgspec.structs.replace(
                    AXOLOTL, steps=(msgspec.structs.replace(AXOLOTL.steps[0], runs=Runs.NODES), AXOLOTL.steps[1])
                ),
                **GPU,
            ),
        ],
    ),
    "axolotl-key": (
        [
            case("slurm", AXOLOTL, config={"base_model": "m", "learning_rat": 1}, schema=SCHEMA),
            case("slurm", AXOLOTL, config={"datasets": [{"path": "d", "typ": "alpaca"}]}, schema=SCHEMA),
            case("slurm", AXOLOTL, config={"plugins": ["liger"], "learning_rat": 1}, schema=SCHEMA),
        ],
        [
            case("slurm", AXOLOTL, config={"base_model": "m", "deepspeed": {"zero": 3}}, schema=SCHEMA),
            case("slurm", AXOLOTL, config={"learning_rat": 1}),  # no axolotl here to ask
            case("slurm", AXOLOTL, config={"fsdp_config": {"fsdp_offload_params": True}}, schema=SCHEMA),
            case("slurm", AXOLOTL, config={"plugins": ["liger"], "liger_rope": True}, schema=SCHEMA),
        ],
    ),
}

# 20 jobs that are as they should be.
RATIO = {"gpus_per_node": "h100:8", "cpus_per_task": "16", "memory": "512G"}
CLEAN: list[Case] = [
    case("local"),
    case("local", gpus_per_node="1", env="CUDA_VISIBLE_DEVICES=0"),
    case("slurm", time="10m", cpus_per_task=4, memory="8G"),
    case("slurm", **GPU),
    case("slurm", TRAIN, **TWO),
    case("slurm", AXOLOTL, **TWO, config={"output_dir": "./out", "datasets": [{}]}, env="NCCL_DEBUG=INFO"),
    case("slurm", **TWO, facts=Facts(features=("h100",), node_cpus=128, node_memory=1_000_000, node_gpus=8)),
    case("slurm", time="1h", array=500, parallelism=20, cpus_per_task=1, memory="2G", facts=Facts(array_size=1001)),
    case("slurm", time="2h", exclusive=True, nodes=4, gpus_per_node="a100:4", secrets="HF_TOKEN,WANDB_API_KEY"),
    case("slurm", time="2h", tasks_per_node=32, nodes=8, setup=["module load openmpi"], dependency="afterok:1"),
    case("slurm", TRAIN, **TWO, attempts=3, checkpoint_signal="USR1@120", requeue=True, constraint="ib"),
    script(option("--nodes", "2"), option("--gpus-per-node", "8"), program=TRAIN, **TWO),
    case("modal", **RATIO, memory_limit="600G", time="4h"),
    case("modal", AXOLOTL, **RATIO, memory_limit="600G", time="24h", env="HF_HOME=/data/hf", **DATA, attempts=3),
    case("modal", TRAIN, **RATIO, memory_limit="512G", time="1h", nodes=2, launcher="torchrun", region="us", **DATA),
    case("kubernetes", **RATIO, time="4h", shm="64G", name="llama-sft", partition="team", priority="high"),
    case(
        "kubernetes",
        AXOLOTL,
        **TWO,
        shm="64G",
        zone="us-east-1a",
        env="HF_HOME=/data/hf",
        config={"output_dir": "/data/out", "datasets": [{}]},
        extra={"kubernetes": ("resource.rdma/ib=1", "namespace=ml")},
        **DATA,
    ),
    case("kubernetes", time="1h", cpus_per_task=2, memory="4G", attempts=2),
    case("baseten", **RATIO, secrets="HF_TOKEN", priority="10"),
    case("baseten", AXOLOTL, **TWO, secrets="HF_TOKEN"),
]
