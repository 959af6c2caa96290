"""Manifests that others write: what each field becomes, and that nothing is left untold."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, settings

from clusterkernel.errors import FormatError
from clusterkernel.fields import build, get
from clusterkernel.formats.convert import convert
from clusterkernel.formats.kubernetes import writer as kubernetes
from clusterkernel.formats.kubernetes.yaml import load
from clusterkernel.formats.model import Format, How, Mount, Parsed, Program, Runs, Step
from clusterkernel.spec import JobSpec, Launcher, Stage, Volume
from clusterkernel.units import GpuRequest
from tests.unit.kubernetes_judge import judge
from tests.unit.specs import kinds, programs, specs

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: finetune
  namespace: ml
  labels:
    kueue.x-k8s.io/queue-name: team-a
    app: demo
spec:
  backoffLimit: 2
  activeDeadlineSeconds: 7200
  template:
    spec:
      restartPolicy: Never
      nodeSelector:
        cloud.google.com/gke-accelerator: nvidia-h100-80gb
        topology.kubernetes.io/zone: us-central1-a
        pool: train
      tolerations:
        - key: nvidia.com/gpu
          operator: Exists
          effect: NoSchedule
      containers:
        - name: trainer
          image: ghcr.io/me/train:1.2
          command: ["torchrun", "--nproc_per_node=8", "train.py", "--lr", "1e-4"]
          workingDir: /workspace
          env:
            - name: NCCL_DEBUG
              value: INFO
            - name: HF_TOKEN
              valueFrom: {secretKeyRef: {name: hf-token, key: HF_TOKEN}}
            - name: WANDB_API_KEY
              valueFrom: {secretKeyRef: {name: wandb, key: api-key}}
          resources:
            requests: {cpu: "96", memory: 512Gi}
            limits: {nvidia.com/gpu: 8, memory: 600Gi, rdma/ib: 1}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: shm, mountPath: /dev/shm}
            - {name: code, mountPath: /code, readOnly: true}
      volumes:
        - name: data
          persistentVolumeClaim: {claimName: datasets}
        - name: shm
          emptyDir: {medium: Memory, sizeLimit: 64Gi}
        - name: code
          hostPath: {path: /srv/code, type: Directory}
"""

JOB_SET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: pytorch
spec:
  failurePolicy:
    maxRestarts: 3
  replicatedJobs:
    - name: workers
      template:
        spec:
          parallelism: 4
          completions: 4
          backoffLimit: 0
          template:
            spec:
              containers:
                - name: pytorch
                  image: pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime
                  ports:
                    - containerPort: 3389
                  env:
                    - name: MASTER_ADDR
                      value: pytorch-workers-0-0.pytorch
                    - name: MASTER_PORT
                      value: "3389"
                  command:
                    - bash
                    - -xc
                    - |
                      pip install datasets
                      torchrun --nproc_per_node=8 --nnodes=4 --rdzv_id=123 --master_addr=$MASTER_ADDR \\
                        --master_port=$MASTER_PORT --node_rank=$JOB_COMPLETION_INDEX resnet.py --epochs 3
                  resources:
                    limits:
                      nvidia.com/gpu: 8
              restartPolicy: Never
"""

PYTORCH_JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: simple
spec:
  nprocPerNode: "8"
  runPolicy:
    backoffLimit: 1
    cleanPodPolicy: None
    schedulingPolicy: {queue: research}
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: OnFailure
      template: &pod
        spec:
          containers:
            - name: pytorch
              image: me/mnist:latest
              command: ["python3", "/opt/mnist.py", "--epochs=1"]
              resources: {limits: {nvidia.com/gpu: "8"}}
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch
              image: me/mnist:latest
              command: ["python3", "/opt/mnist.py", "--epochs=1"]
              resources: {limits: {nvidia.com/gpu: "8"}}
""".replace(" &pod", "")

TRAIN_JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: bert
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
    image: me/bert:1
    command: [torchrun, train.py]
    args: [--epochs, "3"]
    numNodes: 2
    numProcPerNode: 4
    resourcesPerNode:
      limits: {nvidia.com/gpu: "4"}
      requests: {cpu: "32", memory: 256Gi}
    env:
      - {name: LR, value: "0.1"}
"""


def read(text: str, **values: Any) -> Parsed:
    """Read a manifest, and see that each of its leaves has a row."""
    parsed = kubernetes.read(text, name="job.yaml", **values)
    told = {row.key for row in parsed.fields}
    documents = load(text, "job.yaml")
    for document in documents:
        for leaf in document.left():
            parts = [leaf.path[: match.end()] for match in re.finditer(r"[^.\[\]]+\]?|\[[^\]]*\]", leaf.path)]
            kind = document.value["kind"]
            known = leaf.path in told or f"{kind} {leaf.path}" in told or any(part in told for part in parts)
            assert known, leaf.path
    for row in parsed.fields:
        assert row.how in (How.EXACT,) or row.reason.endswith("."), row
        if row.line is not None:
            assert 0 < row.line <= text.count("\n") + 1
    return parsed


def rows(parsed: Parsed) -> dict[str, Any]:
    return {row.key: row for row in parsed.fields}


def change(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


# -- kinds ------------------------------------------------------------------------------


def test_a_job() -> None:
    judge(yaml.safe_load(JOB.replace("nvidia.com/gpu: 8", 'nvidia.com/gpu: "8"').replace("ib: 1", 'ib: "1"')))
    parsed = read(JOB)
    spec = parsed.spec
    assert parsed.format is Format.KUBERNETES
    assert (spec.backend, spec.name, spec.schedule.partition) == ("kubernetes", "finetune", "team-a")
    assert spec.resources.gpus_per_node == GpuRequest(8, "h100")
    assert (spec.resources.nodes, spec.resources.tasks_per_node, spec.resources.cpus_per_task) == (1, None, 12)
    assert (spec.resources.memory, spec.resources.memory_limit) == (524_288, 614_400)
    assert (spec.schedule.time, spec.recovery.attempts) == (7200, 3)
    assert (spec.schedule.zone, spec.schedule.constraint) == ("us-central1-a", "pool=train")
    assert (spec.environment.image, spec.environment.workdir) == ("ghcr.io/me/train:1.2", "/workspace")
    assert spec.environment.env == {"NCCL_DEBUG": "INFO"}
    assert spec.environment.secrets == ("HF_TOKEN", "WANDB_API_KEY")
    assert spec.storage.volumes == (Volume(name="datasets", mount="/data"),)
    assert spec.storage.shm == 65_536
    assert spec.launcher is Launcher.TORCHRUN
    assert set(spec.extra["kubernetes"]) == {
        "namespace=ml",
        "toleration=nvidia.com/gpu:NoSchedule",
        "resource.rdma/ib=1",
        "secret.WANDB_API_KEY=wandb/api-key",
    }
    assert parsed.program.mounts == (Mount("/srv/code", "/code", "ro"),)
    [step] = parsed.program.steps
    assert (step.shell, step.launched, step.runs) == ("train.py --lr 1e-4", True, Runs.NODES)
    told = rows(parsed)
    assert told["metadata.labels.app"].how is How.DROPPED
    assert told["spec.backoffLimit"].line == 10
    assert told["spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]"].field == "gpus_per_node"


def test_it_is_written_back_as_it_was() -> None:
    parsed = read(JOB)
    written = kubernetes.write(parsed.spec, parsed.program)
    again = kubernetes.read(written.text, name="again.yaml")
    assert msgspec.structs.replace(again.spec, extra={}) == msgspec.structs.replace(parsed.spec, extra={})
    assert set(again.spec.extra["kubernetes"]) == set(parsed.spec.extra["kubernetes"])
    assert again.program == parsed.program


def test_a_job_set() -> None:
    parsed = read(JOB_SET)
    spec = parsed.spec
    assert (spec.resources.nodes, spec.recovery.attempts) == (4, 4)
    assert (spec.launcher, spec.resources.gpus_per_node) == (Launcher.TORCHRUN, GpuRequest(8))
    assert spec.environment.setup == ("pip install datasets",)
    assert spec.environment.env == {}
    [step] = parsed.program.steps
    assert (step.shell, step.launcher_args) == ("resnet.py --epochs 3", ())
    assert rows(parsed)["torchrun --rdzv-id"].how is How.CHANGED


def test_a_pytorch_job() -> None:
    parsed = read(PYTORCH_JOB)
    spec = parsed.spec
    assert (spec.resources.nodes, spec.resources.tasks_per_node) == (3, 8)
    assert (spec.launcher, spec.schedule.partition, spec.recovery.attempts) == (Launcher.TORCHRUN, "research", 2)
    [step] = parsed.program.steps
    assert (step.shell, step.launched) == ("/opt/mnist.py --epochs=1", True)
    assert rows(parsed)["kind"].how is How.CHANGED
    other = read(change(PYTORCH_JOB, "Worker:\n      replicas: 2", "Worker:\n      replicas: 5"))
    assert other.spec.resources.nodes == 6


def test_workers_that_differ_are_told() -> None:
    at = PYTORCH_JOB.rindex("me/mnist:latest")
    parsed = read(PYTORCH_JOB[:at] + "me/other:latest" + PYTORCH_JOB[at + len("me/mnist:latest") :])
    assert any(row.how is How.CHANGED and "first one" in row.reason for row in parsed.fields)


def test_one_process_for_each_replica_is_one_rank() -> None:
    parsed = read(change(PYTORCH_JOB, '  nprocPerNode: "8"\n', ""))
    assert parsed.spec.resources.tasks_per_node == 1


def test_a_train_job() -> None:
    judge(yaml.safe_load(TRAIN_JOB))
    parsed = read(TRAIN_JOB)
    spec = parsed.spec
    assert (spec.resources.nodes, spec.resources.tasks_per_node, spec.resources.cpus_per_task) == (2, 4, 8)
    assert (spec.launcher, spec.environment.env) == (Launcher.TORCHRUN, {"LR": "0.1"})
    assert parsed.program.steps[0].shell == "train.py --epochs 3"
    assert spec.extra["kubernetes"] == ("kind=TrainJob", "runtime=torch-distributed")


def test_an_indexed_job_is_an_array_or_nodes() -> None:
    array = change(
        JOB,
        "  backoffLimit: 2\n",
        "  backoffLimit: 2\n  completions: 20\n  parallelism: 5\n  completionMode: Indexed\n",
    )
    spec = read(array).spec
    assert (spec.array, spec.parallelism, spec.resources.nodes) == (
        msgspec.convert({"size": 20}, type(spec.array)),
        5,
        1,
    )
    several = change(array, "parallelism: 5", "parallelism: 20").replace(
        "      restartPolicy: Never", "      restartPolicy: Never\n      subdomain: finetune"
    )
    nodes = read(several)
    assert (nodes.spec.array, nodes.spec.resources.nodes) == (None, 20)
    assert "kind=Job" in nodes.spec.extra["kubernetes"]


def test_a_service_and_others_beside_the_job() -> None:
    text = JOB + (
        "---\napiVersion: v1\nkind: Service\nmetadata: {name: finetune}\nspec: {clusterIP: None}\n"
        "---\napiVersion: v1\nkind: Secret\nmetadata: {name: hf}\nstringData: {token: hf_abcdefghijklmnopqrstuvwxyz}\n"
    )
    told = rows(read(text))
    assert told["Secret stringData.token"].value == "***"
    assert told["Service spec.clusterIP"].how is How.CHANGED


def test_what_nobody_said_is_assumed() -> None:
    parsed = read(change(JOB, "  backoffLimit: 2\n", ""))
    assert parsed.spec.recovery.attempts == 7
    row = rows(parsed)["spec.backoffLimit"]
    assert (row.how, row.line) == (How.ASSUMED, None)


# -- secrets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTHER_API_KEY", "abc123secret"), ("ANYTHING", "hf_abcdefghijklmnopqrstuvwxyz0123")],
)
@pytest.mark.parametrize("place", ["main", "beside", "before"])
def test_secrets_in_the_clear_become_names(name: str, value: str, place: str) -> None:
    variable = f"{{name: {name}, value: {value}}}"
    other = f"        - {{name: side, image: x, command: [x], env: [{variable}]}}\n"
    if place == "main":
        old = "            - name: NCCL_DEBUG\n              value: INFO\n"
        text = change(JOB, old, f"            - {variable}\n")
    elif place == "beside":
        text = change(JOB, "      volumes:\n", f"{other}      volumes:\n")
    else:
        text = change(JOB, "      volumes:\n", f"      initContainers:\n{other}      volumes:\n")
    parsed = kubernetes.read(text, name="job.yaml")
    assert value not in str(parsed)
    assert (name in parsed.spec.environment.secrets) is (place == "main")
    assert value not in kubernetes.write(parsed.spec, parsed.program).text


# -- commands -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "shell"),
    [
        ('command: ["python", "train.py", "--note", "two words"]', "python train.py --note 'two words'"),
        (
            'command: ["python", "train.py", "--where", "$(NCCL_DEBUG)", "$(HF_TOKEN)"]',
            'python train.py --where INFO "${HF_TOKEN}"',
        ),
        ('command: ["python", "train.py", "$(UNKNOWN)", "$$(X)"]', "python train.py '$(UNKNOWN)' '$(X)'"),
        ('command: ["python"]\n          args: ["-m", "pkg"]', "python -m pkg"),
        ('command: ["/bin/sh", "-c"]\n          args: ["python train.py --x $HOME"]', "python train.py --x $HOME"),
        ('command: ["bash", "-lc", "exec python train.py"]', "python train.py"),
    ],
)
def test_commands(command: str, shell: str) -> None:
    old = '          command: ["torchrun", "--nproc_per_node=8", "train.py", "--lr", "1e-4"]'
    parsed = read(change(JOB, old, f"          {command}"))
    assert [step.shell for step in parsed.program.steps] == [shell]
    assert parsed.spec.launcher is Launcher.NONE


def test_a_container_without_a_command_has_no_steps() -> None:
    old = '          command: ["torchrun", "--nproc_per_node=8", "train.py", "--lr", "1e-4"]\n'
    parsed = read(change(JOB, old, ""))
    assert parsed.program.steps == ()
    assert rows(parsed)["command"].how is How.ASSUMED


def test_ranks_of_the_launcher() -> None:
    parsed = read(change(JOB, "--nproc_per_node=8", "--nproc_per_node=4"))
    assert parsed.spec.resources.tasks_per_node == 4
    assert parsed.spec.resources.cpus_per_task == 24


@pytest.mark.parametrize("key", ["8080", "on", "~", "", "1.5", "2026-01-01"])
def test_every_key_is_text(key: str) -> None:
    [tree] = load(f"spec:\n  {key or '&none '}: x\n", "a.yaml")
    assert [(name, part.value, part.line) for name, part in tree.at("spec").pairs()] == [(key, "x", 2)]


def test_values_are_put_in() -> None:
    parsed = read(change(JOB, "ghcr.io/me/train:1.2", "ghcr.io/me/train:${TAG}"), values={"TAG": "9"})
    assert parsed.spec.environment.image == "ghcr.io/me/train:9"


# -- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Deployment\napiVersion: apps/v1\n", "no job, but Deployment"),
        (JOB + "---\n" + JOB, r"2 jobs \(Job, Job\)"),
        ("just a text", "no manifest"),
        ("", "no job"),
        ("kind: [", "no valid YAML on line"),
        ("kind: Job\nspec: \x10\n", r"no valid YAML on line 2: the character U\+0010"),
        ("---\n- 3\n", "line 2: it is no manifest"),
        ("kind: Job\nkind: Job\n", "sets kind on line 1 and again on line 2"),
        ("kind: Job\nspec: &a {x: *a}\n", "alias on line 2"),
        (JOB.replace("backoffLimit: 2", "backoffLimit: two"), "line 10: spec.backoffLimit is 'two'"),
        (JOB.replace("value: INFO", "value: 1"), r"line 30: .*value is '1', and not a text"),
        (JOB.replace("memory: 512Gi", "memory: 12 gigs"), "line 36: .* is '12 gigs', and not a size"),
        (JOB.replace("memory: 600Gi", "memory: 500Gi"), "limits.memory is below what is requested"),
        (JOB.replace("memory: 600Gi", "cpu: 1"), "limits.cpu is below what is requested"),
        (JOB.replace("{name: data, mountPath: /data}", "{name: dat, mountPath: /data}"), "names the volume 'dat'"),
        (JOB.replace("      containers:\n", "      containers: []\n      other:\n"), "has no containers"),
        ("kind: Job\n" + "a: " + "[" * 100 + "]" * 100, "nested too deeply"),
    ],
)
def test_it_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message) as error:
        kubernetes.read(text, name="job.yaml")
    assert "\n" not in str(error.value)


def test_unlike_parts_at_once_are_refused() -> None:
    text = change(
        JOB_SET, "    - name: workers\n", "    - name: driver\n      template: {spec: {}}\n    - name: workers\n"
    )
    with pytest.raises(FormatError, match="driver, workers run at once"):
        kubernetes.read(text, name="job.yaml")


# -- round trips ----------------------------------------------------------------------------


def test_a_stage_of_every_node_comes_back() -> None:
    steps = (
        Step(name="preprocess", shell="axolotl preprocess train.yaml", runs=Runs.NODES),
        Step(name="train", shell="axolotl train train.yaml", runs=Runs.NODES, launched=True),
    )
    spec = build({"backend": "kubernetes", "nodes": 2, "volumes": "data:/a"})
    spec = msgspec.structs.replace(
        spec, stages=(Stage(name="preprocess", cpus_per_task=4),), extra={"kubernetes": ("kind=Job",)}
    )
    parsed = read(kubernetes.write(spec, Program(steps=steps)).text)
    assert parsed.spec.stages == spec.stages
    assert read(kubernetes.write(parsed.spec, parsed.program).text).spec.stages == spec.stages


# Its specs are the same in each run; other ones are tried by the full tests.
@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)  # fmt: skip
@given(specs().flatmap(kinds), programs())
def test_what_is_exact_comes_back(spec: JobSpec, program: Program) -> None:
    places = [one.mount for one in spec.storage.volumes] + [one.target for one in program.mounts]
    assume(len({*places}) == len(places))  # else it is refused
    written = kubernetes.write(spec, program)
    parsed = read(written.text)
    exact = {row.field for row in written.fields if row.how is How.EXACT}
    for field in exact:
        name, _, item = field.partition(".")
        if name in ("program", "extra", "stages", "array", "setup"):
            continue
        before, after = get(spec, name), get(parsed.spec, name)
        if name == "env":
            assert after[item] == before[item]
        elif name == "volumes":
            assert {volume.name: volume.mount for volume in after}[item] == {v.name: v.mount for v in before}[item]
        elif item:
            assert item in after
        elif name != "launcher" or any(step.launched for step in program.steps):
            assert after == before, field
    assert parsed.spec.array == spec.array
    assert [step.shell for step in parsed.program.steps] == [step.shell for step in program.steps]
    assert set(parsed.spec.environment.setup) <= set(spec.environment.setup)
    # once more, and nothing changes any more
    again = kubernetes.read(kubernetes.write(parsed.spec, parsed.program).text, name="again.yaml")
    assert msgspec.structs.replace(again.spec, extra={}) == msgspec.structs.replace(parsed.spec, extra={})


# -- what runs stays what it was --------------------------------------------------------------


PLAIN = """\
apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {"gpu": "h100"}
      containers:
        - name: main
          image: me/a:1
          env:
            - {name: A, value: b c}
          command: ["python", "train.py"]
          args: ["--idx", "$(JOB_COMPLETION_INDEX)", "--a=$(NO)$(A)"]
          resources: {limits: {nvidia.com/gpu: 8, cpu: 64}}
"""
INDEXED = PLAIN.replace("  backoffLimit: 0\n", "  backoffLimit: 0\n  completions: 4\n  completionMode: Indexed\n")


def told(text: str, to: str) -> tuple[str, dict[str, Any]]:
    done = convert(text, to)
    return done.text, {row.source.rpartition(".")[2]: row for row in done.rows}


@pytest.mark.parametrize(
    ("label", "value", "kind"),
    [
        ("gpu", "h100", "h100"),
        ("nvidia.com/gpu.product", "NVIDIA-H200", "h200"),
        ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb", "h100"),
        ("example.org/gpu-type", "A100-SXM4-80GB", "a100-80gb"),
        ("accelerator", "mi300x", "mi300x"),
    ],
)
def test_a_label_of_gpus_is_their_type(label: str, value: str, kind: str) -> None:
    text, _ = told(change(PLAIN, '"gpu": "h100"', f'"{label}": "{value}"'), "slurm")
    assert f"#SBATCH --gpus-per-node={kind}:8\n" in text
    assert "--constraint" not in text


@pytest.mark.parametrize("label", ["gpu: 'true'", "pool: train", "example.org/accelerator: fast"])
def test_a_label_that_sbatch_would_refuse_is_dropped(label: str) -> None:
    text, _ = told(change(PLAIN, '"gpu": "h100"', label), "slurm")
    assert "--constraint" not in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    [row] = [row for row in convert(change(PLAIN, '"gpu": "h100"', label), "slurm").rows if "Selector" in row.source]
    assert (row.how, bool(row.reason)) == (How.DROPPED, True)


@pytest.mark.parametrize("kind", ["{name: a}", "[Job]", "5", "", "null"])
def test_a_kind_is_a_word(kind: str) -> None:
    with pytest.raises(FormatError, match="it has no kind"):
        read(change(PLAIN, "kind: Job", f"kind: {kind}"))


def test_a_profile_of_a_manifest_names_no_backend() -> None:
    text, _ = told(PLAIN, "profile")
    assert "backend" not in text
    [row] = [row for row in convert(PLAIN, "profile").rows if row.field == "backend"]
    assert row.how is How.ASSUMED


def test_a_type_without_gpus_is_dropped() -> None:
    rows = convert(change(PLAIN, "nvidia.com/gpu: 8, ", ""), "slurm").rows
    [row] = [row for row in rows if "nodeSelector" in row.source]
    assert row.how is How.DROPPED


def test_one_process_of_a_container_has_all_its_cores() -> None:
    spec = read(PLAIN).spec
    assert (spec.resources.tasks_per_node, spec.resources.cpus_per_task) == (1, 64)
    text, rows = told(PLAIN, "slurm")
    assert "--ntasks-per-node=1\n" in text
    assert "--cpus-per-task=64\n" in text
    assert [rows[key].how for key in ("containers[0]", "command", "args", "cpu") if key in rows] == [How.EXACT] * 3
    assert 'tasks_per_node = "1"' in told(PLAIN, "profile")[0]


def test_cores_in_parts_are_rounded_and_told() -> None:
    text, rows = told(change(PLAIN, "gpu: 8, cpu: 64", "gpu: 4, cpu: 1500m"), "slurm")
    assert "--cpus-per-task=2\n" in text
    assert rows["cpu"].how is How.CHANGED


@pytest.mark.parametrize(("to", "line"), [("slurm", ""), ("modal", "export SLURM_ARRAY_TASK_ID=$CK_TASK\n")])
def test_the_index_is_the_tasks_own(to: str, line: str) -> None:
    text, _ = told(INDEXED, to)
    assert '--idx "${SLURM_ARRAY_TASK_ID}"' in text
    assert "--a=$(NO)b c" in text
    assert line in text


def test_a_variable_of_the_index_is_set() -> None:
    more = (
        "            - name: I\n              valueFrom: {fieldRef: {fieldPath: "
        "\"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}}\n          command:"
    )
    assert read(change(INDEXED, "          command:", more)).spec.environment.setup == (
        "export I=$SLURM_ARRAY_TASK_ID",
    )
