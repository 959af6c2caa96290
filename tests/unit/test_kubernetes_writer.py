"""Manifests that we write: judged by the schemas of Kubernetes and JobSet, and told of field by field."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkernel.errors import SpecError
from clusterkernel.fields import build
from clusterkernel.formats.kubernetes import words
from clusterkernel.formats.kubernetes import writer as kubernetes
from clusterkernel.formats.kubernetes.yaml import dump, load
from clusterkernel.formats.model import How, Program, Runs, Step
from clusterkernel.spec import Array, JobSpec, Stage
from tests.unit.kubernetes_judge import judge
from tests.unit.specs import kept, kinds, programs, specs

AXOLOTL = Program(
    config="train.yaml",
    steps=(
        Step(name="preprocess", shell="axolotl preprocess train.yaml", runs=Runs.HEAD),
        Step(name="train", shell="axolotl train train.yaml", runs=Runs.NODES, launched=True),
    ),
)
RUN = Program(steps=(Step(name="run", shell="python train.py"),))
SLOW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def spec(**values: Any) -> JobSpec:
    array, stages, extra = (values.pop(name, None) for name in ("array", "stages", "extra"))
    made = build({"backend": "kubernetes", **values})
    return msgspec.structs.replace(
        made,
        array=Array(size=array) if array else None,
        stages=stages or (),
        extra={"kubernetes": tuple(extra)} if extra else {},
    )


def documents(wanted: JobSpec, program: Program = RUN) -> list[dict[str, Any]]:
    written = kubernetes.write(wanted, program)
    made = list(yaml.safe_load_all(written.text))
    for document in made:
        judge(document)
    return made


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    spec = document["spec"]
    if document["kind"] == "JobSet":
        spec = spec["replicatedJobs"][-1]["template"]["spec"]
    return spec["template"]["spec"]


def script_of(document: dict[str, Any]) -> str:
    return words.unescape(pod_of(document)["containers"][0]["args"][0])


def how(wanted: JobSpec, program: Program = RUN) -> dict[str, How]:
    return {row.field: row.how for row in kubernetes.write(wanted, program).fields}


# -- kinds ------------------------------------------------------------------------------


def test_one_node_is_a_job() -> None:
    [job] = documents(spec(name="sft", gpus_per_node="h100:8", time="4h", attempts=3))
    assert (job["kind"], job["metadata"]["name"]) == ("Job", "sft")
    assert job["spec"]["backoffLimit"] == 2
    assert "completionMode" not in job["spec"]
    # the limit is that of each attempt
    assert "activeDeadlineSeconds" not in job["spec"]
    assert pod_of(job)["activeDeadlineSeconds"] == 14_400
    assert pod_of(job)["restartPolicy"] == "Never"


def test_the_limit_of_a_single_attempt_is_the_jobs() -> None:
    [job] = documents(spec(time="4h"))
    assert job["spec"]["activeDeadlineSeconds"] == 14_400
    assert "activeDeadlineSeconds" not in pod_of(job)
    assert job["spec"]["backoffLimit"] == 0


def test_several_nodes_are_a_job_set_that_restarts_whole() -> None:
    [jobs] = documents(spec(name="sft", nodes=2, gpus_per_node="h100:8", attempts=3, time="4h"), AXOLOTL)
    assert jobs["kind"] == "JobSet"
    assert jobs["spec"]["failurePolicy"]["maxRestarts"] == 2
    [rule] = jobs["spec"]["failurePolicy"]["rules"]
    assert (rule["action"], rule["onJobFailureReasons"]) == ("FailJobSet", ["DeadlineExceeded"])
    inner = jobs["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert (inner["completions"], inner["parallelism"], inner["completionMode"]) == (2, 2, "Indexed")
    assert inner["backoffLimit"] == 0
    assert "MASTER_ADDR=sft-node-0-0.sft\n" in script_of(jobs)


def test_several_nodes_without_job_set_have_a_headless_service() -> None:
    service, job = documents(
        spec(name="sft", nodes=4, gpus_per_node="8", attempts=2, launcher="torchrun", extra=["kind=Job"]), AXOLOTL
    )
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["metadata"]["name"] == pod_of(job)["subdomain"] == "sft"
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "sft"}
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["backoffLimit"] == 4  # it counts pods
    assert "MASTER_ADDR=sft-0.sft\n" in script_of(job)
    assert "--node_rank=$JOB_COMPLETION_INDEX" in script_of(job)


def test_an_array_is_an_indexed_job() -> None:
    [job] = documents(spec(array=20, parallelism=4), Program(steps=(Step(name="run", shell="x $SLURM_ARRAY_TASK_ID"),)))
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (20, 4)
    assert "export SLURM_ARRAY_TASK_ID=$JOB_COMPLETION_INDEX\n" in script_of(job)
    with pytest.raises(SpecError, match="array of jobs of several nodes"):
        kubernetes.write(spec(array=2, nodes=2), RUN)


def test_a_stage_runs_before_on_one_node_without_gpus() -> None:
    stage = Stage(name="preprocess", cpus_per_task=8, memory=65_536, time=3600)
    wanted = spec(name="sft", nodes=2, gpus_per_node="h100:8", volumes="data:/data", stages=(stage,))
    [jobs] = documents(wanted, AXOLOTL)
    first, second = jobs["spec"]["replicatedJobs"]
    assert second["dependsOn"] == [{"name": "preprocess", "status": "Complete"}]
    job = first["template"]["spec"]
    assert job["activeDeadlineSeconds"] == 3600
    box = job["template"]["spec"]["containers"][0]
    assert box["resources"] == {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"memory": "64Gi"}}
    assert "axolotl preprocess" in box["args"][0]
    assert "axolotl preprocess" not in script_of(jobs)
    assert "gpu" not in str(job)


def test_a_stage_of_one_node_is_an_init_container() -> None:
    stage = Stage(name="preprocess", memory=65_536)
    [job] = documents(spec(gpus_per_node="8", volumes="data:/data", stages=(stage,)), AXOLOTL)
    [before] = pod_of(job)["initContainers"]
    assert "axolotl preprocess" in before["args"][0]
    assert before["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]


def test_without_a_volume_each_node_prepares() -> None:
    wanted = spec(nodes=2, gpus_per_node="8")
    rows = {row.field: row for row in kubernetes.write(wanted, AXOLOTL).fields}
    assert rows["program.steps.0"].how is How.CHANGED
    assert "no files in common" in rows["program.steps.0"].reason
    shared = {row.field: row for row in kubernetes.write(build({"volumes": "d:/d"}, base=wanted), AXOLOTL).fields}
    assert shared["program.steps.0"].how is How.EXACT


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize(("key", "value"), [("backofLimit", 1), ("backoffLimit", "one"), ("parallelism", [1])])
def test_the_judges_refuse_what_is_wrong(nodes: int, key: str, value: Any) -> None:
    [document] = documents(spec(nodes=nodes))
    place = document["spec"]["replicatedJobs"][0]["template"]["spec"] if nodes > 1 else document["spec"]
    place[key] = value
    with pytest.raises(Exception, match=r"Additional properties|is not|valid|became"):
        judge(document)


# -- what stands in them ------------------------------------------------------------------


def test_a_node_has_what_was_asked_for() -> None:
    [job] = documents(
        spec(
            gpus_per_node="h100:8",
            cpus_per_task=16,
            memory="512G",
            memory_limit="600G",
            shm="64G",
            ephemeral_disk="1T",
            volumes="data:/data",
            workdir="/data/project",
            env="NCCL_DEBUG=INFO",
            secrets="HF_TOKEN",
            image="me/train:1",
        )
    )
    box = pod_of(job)["containers"][0]
    assert box["resources"]["requests"] == {
        "cpu": "128",
        "memory": "512Gi",
        "ephemeral-storage": "1024Gi",
        "nvidia.com/gpu": "8",
    }
    assert box["resources"]["limits"] == {"memory": "600Gi", "ephemeral-storage": "1024Gi", "nvidia.com/gpu": "8"}
    assert box["env"] == [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}},
    ]
    assert (box["workingDir"], box["image"]) == ("/data/project", "me/train:1")
    volumes = {volume["name"]: volume for volume in pod_of(job)["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "data"}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    [term] = pod_of(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["key"] == "nvidia.com/gpu.product"


def test_where_it_runs() -> None:
    [job] = documents(
        spec(zone="us-1a", region="us", constraint="pool=train&ib", partition="team", priority="high", tags="sweep-3")
    )
    pod = pod_of(job)
    assert pod["nodeSelector"] == {
        "topology.kubernetes.io/region": "us",
        "topology.kubernetes.io/zone": "us-1a",
        "pool": "train",
    }
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team", "tag.clusterkernel/sweep-3": "true"}
    assert pod["priorityClassName"] == "high"
    assert "Exists" in str(pod["affinity"])


def test_amd_has_a_device_of_its_own() -> None:
    [job] = documents(spec(gpus_per_node="mi300x:8"))
    assert pod_of(job)["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "8"}


def test_extra_options_find_their_places() -> None:
    [jobs] = documents(
        spec(
            nodes=2,
            extra=[
                "namespace=ml",
                "service-account=trainer",
                "runtime-class=nvidia",
                "scheduler=volcano",
                "pull-secret=registry",
                "pull-policy=Always",
                "resource.rdma/ib=1",
                "label.team=nlp",
                "annotation.k8s.v1.cni.cncf.io/networks=rdma-net",
                "toleration=nvidia.com/gpu:NoSchedule",
                "toleration=pool=train:NoExecute",
                "ttl=3600",
                "host-network=true",
            ],
        )
    )
    pod = pod_of(jobs)
    assert jobs["metadata"]["namespace"] == "ml"
    assert jobs["spec"]["ttlSecondsAfterFinished"] == 3600
    assert (pod["serviceAccountName"], pod["runtimeClassName"], pod["schedulerName"]) == (
        "trainer",
        "nvidia",
        "volcano",
    )
    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert pod["containers"][0]["resources"]["limits"] == {"rdma/ib": "1"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "pool", "operator": "Equal", "value": "train", "effect": "NoExecute"},
    ]
    metadata = jobs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]
    assert metadata["labels"] == {"team": "nlp"}
    assert metadata["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma-net"}


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("namespce=ml", "namespace"),
        ("namespace", "key=value"),
        ("namespace=No_Good", "no namespace"),
        ("kind=Deployment", "Job"),
        ("resource.rdma/ib=one", "no quantity"),
        ("label.a b=c", "no label"),
        ("ttl=soon", "no ttl"),
    ],
)
def test_an_extra_option_without_a_place_is_refused(option: str, hint: str) -> None:
    with pytest.raises(SpecError, match=re.escape(option)) as error:
        kubernetes.write(spec(extra=[option]), RUN)
    assert hint in str(error.value)


def test_recovery_from_disruptions() -> None:
    condition = [{"type": "DisruptionTarget", "status": "True"}]
    [job] = documents(spec(requeue=True))
    assert job["spec"]["podFailurePolicy"]["rules"] == [{"action": "Ignore", "onPodConditions": condition}]
    [job] = documents(spec(requeue=False))
    assert job["spec"]["podFailurePolicy"]["rules"] == [{"action": "FailJob", "onPodConditions": condition}]
    [jobs] = documents(spec(nodes=2, requeue=True))
    rule = jobs["spec"]["failurePolicy"]["rules"][0]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_an_image_that_no_registry_knows_is_refused() -> None:
    with pytest.raises(SpecError, match="--image = 'my image:1' is no name of an image"):
        kubernetes.write(spec(image="my image:1"), RUN)


def test_a_volume_at_the_place_of_shared_memory_is_refused() -> None:
    with pytest.raises(SpecError, match="two of the places are /dev/shm"):
        kubernetes.write(spec(volumes="a:/dev/shm/", shm="1G"), RUN)


def test_a_manifest_without_a_program_is_refused() -> None:
    with pytest.raises(SpecError, match="does not say what is run"):
        kubernetes.write(spec(), Program())


def test_a_command_of_the_backend_takes_the_place_of_the_steps() -> None:
    command = kubernetes.Command(("python", "-u", "/ck/runtime.pyz", "supervise", "$(x) $$"))
    [job] = kubernetes.manifest(spec(name="cell"), Program(), command=command)
    judge(job)
    assert pod_of(job)["containers"][0]["command"] == ["python", "-u", "/ck/runtime.pyz", "supervise", "$$(x) $$$"]


# -- names and texts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Llama SFT_v2", "llama-sft-v2"),
        ("3d", "job-3d"),
        ("---", "job"),
        ("a" * 100, "a" * 63),
        ("ä", "job"),
        ("x-", "x"),
    ],
)
def test_names_become_valid(name: str, label: str) -> None:
    assert words.dns_label(name) == label
    assert words.is_dns_label(label)


@pytest.mark.parametrize(("nodes", "extra"), [(1, []), (2, ["kind=Job"]), (400, ["kind=Job"]), (2, []), (400, [])])
def test_names_leave_room_for_those_of_the_pods(nodes: int, extra: list[str]) -> None:
    last = documents(spec(name="n" * 80, nodes=nodes, extra=extra))[-1]
    name = last["metadata"]["name"]
    pod = f"{name}-node-0-{nodes - 1}" if last["kind"] == "JobSet" else f"{name}-{nodes - 1}"
    assert len(pod) <= 63


@pytest.mark.parametrize("text", ["$(x)", "$$", "$$(x)", "$", "a$b", "$$$", "$(", "echo $$ $(date) ${A}", "$$$(x)$"])
def test_nothing_is_expanded_that_bash_should_see(text: str) -> None:
    assert _expanded(words.escape(text)) == text


def _expanded(text: str) -> str:
    """As kubelet does it (its expansion package), with a variable x."""
    out, at = "", 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            if text[at + 1] == "$":
                out, at = out + "$", at + 2
                continue
            if text[at + 1] == "(":
                end = text.find(")", at + 2)
                if end < 0:
                    out, at = out + "$(", at + 2
                else:
                    name = text[at + 2 : end]
                    out, at = out + ("VALUE" if name == "x" else f"$({name})"), end + 1
                continue
            out, at = out + text[at : at + 2], at + 2
            continue
        out, at = out + text[at], at + 1
    return out


@pytest.mark.parametrize(
    "text", ["1e3", "y", "no", "0x1F", "1_000", "12:30", "~", "null", "", " x ", "a: b", "#", "a\nb\n"]
)
def test_every_text_stays_a_text(text: str) -> None:
    written = dump([{"value": text}])
    assert yaml.safe_load(written) == {"value": text}
    if text not in ("a\nb\n",):
        assert f'"{text}"' in written  # in quotes: other readers take 1e3 for a number
    assert load(written, "m.yaml")[0].at("value").value == text


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512Gi", 524_288), ("1G", 954), ("1e9", 954), ("800Mi", 800), ("1048576", 1), ("1.5Gi", 1536), ("1Ti", 1 << 20)],
)
def test_sizes_are_read_as_kubernetes_writes_them(text: str, mib: int) -> None:
    read = words.read_memory(text)
    assert read is not None
    assert read[0] == mib
    assert read[1] is (text not in ("1G", "1e9"))


@pytest.mark.parametrize("text", ["12 gigs", "512GiB", "", "-1Gi", "0", "Gi", "1K"])
def test_what_is_no_size(text: str) -> None:
    assert words.read_memory(text) is None


# -- the script --------------------------------------------------------------------------


def run_script(text: str, tmp_path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script with stand-ins for torchrun and axolotl that say what they were given."""
    for name in ("torchrun", "axolotl", "deepspeed"):
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\necho "{name} $*" >>"{tmp_path}/said"\nexit ${{FAIL_{name}:-0}}\n')
        command.chmod(0o755)
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    return subprocess.run(
        ["/bin/bash", "-c", text], env={"PATH": path, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def said(tmp_path: Path) -> list[str]:
    return (tmp_path / "said").read_text().splitlines()


def test_the_script_runs_its_steps_and_stops_at_the_first_that_fails(tmp_path: Path) -> None:
    [job] = documents(spec(gpus_per_node="8", launcher="torchrun"), AXOLOTL)
    assert run_script(script_of(job), tmp_path).returncode == 0
    assert said(tmp_path)[0] == "axolotl preprocess train.yaml"
    assert said(tmp_path)[1].startswith("axolotl train train.yaml --launcher torchrun -- --standalone")
    done = run_script(script_of(job), tmp_path, FAIL_axolotl="7")
    assert done.returncode == 7
    assert len(said(tmp_path)) == 3


def test_only_the_first_node_prepares(tmp_path: Path) -> None:
    [jobs] = documents(spec(nodes=2, gpus_per_node="8", launcher="torchrun", volumes="d:/d"), AXOLOTL)
    script = script_of(jobs)
    assert run_script(script, tmp_path, JOB_COMPLETION_INDEX="0").returncode == 0
    assert [line.split()[1] for line in said(tmp_path)] == ["preprocess", "train"]
    # The others wait until the head listens: here somebody does at once.
    waits = script.replace("$MASTER_ADDR/$MASTER_PORT", "127.0.0.1/1").replace("until", "! true ||")
    waits = re.sub(r"    ! true \|\| .*\n", "    true\n", waits)
    assert run_script(waits, tmp_path, JOB_COMPLETION_INDEX="1").returncode == 0
    assert "--node_rank=1" in said(tmp_path)[2]
    assert len(said(tmp_path)) == 3


def test_ranks_without_a_launcher_are_started_by_the_script(tmp_path: Path) -> None:
    shell = f'echo "$RANK $LOCAL_RANK $WORLD_SIZE $SLURM_PROCID $MASTER_ADDR" >>"{tmp_path}/ranks"'
    program = Program(steps=(Step(name="run", shell=shell, runs=Runs.RANKS),))
    [jobs] = documents(spec(name="r", nodes=2, gpus_per_node="4"), program)
    assert run_script(script_of(jobs), tmp_path, JOB_COMPLETION_INDEX="1").returncode == 0
    ranks = sorted((tmp_path / "ranks").read_text().splitlines())
    assert ranks == [f"{rank} {rank - 4} 8 {rank} r-node-0-0.r" for rank in (4, 5, 6, 7)]


def test_the_last_command_takes_the_shells_place(tmp_path: Path) -> None:
    program = Program(steps=(Step(name="run", shell=f"{tmp_path}/own > /dev/null"), Step(name="b", shell="torchrun x")))
    [job] = documents(spec(), program)
    assert script_of(job).splitlines()[-1] == "exec torchrun x"
    assert run_script(script_of(job), tmp_path).returncode == 127  # there is no first command
    (tmp_path / "own").symlink_to("/bin/true")
    assert run_script(script_of(job), tmp_path).returncode == 0
    assert said(tmp_path) == ["torchrun x"]


def test_a_rank_that_fails_fails_the_script(tmp_path: Path) -> None:
    program = Program(steps=(Step(name="run", shell='[ "$LOCAL_RANK" != 2 ] || exit 5; sleep 30', runs=Runs.RANKS),))
    [job] = documents(spec(gpus_per_node="4"), program)
    begun = time.monotonic()
    assert run_script(script_of(job), tmp_path).returncode == 5
    assert time.monotonic() - begun < 20  # the others were ended, and did not sleep on


# -- the report ---------------------------------------------------------------------------


def test_what_kubernetes_lacks_is_dropped_with_the_reason() -> None:
    wanted = spec(
        account="a", qos="q", reservation="r", dependency="afterok:1", exclusive=True, backoff="30s", files="x"
    )
    rows = {row.field: row for row in kubernetes.write(wanted, RUN).fields}
    for field in ("account", "qos", "reservation", "dependency", "exclusive", "backoff", "files.x"):
        name = "files" if field.startswith("files") else field
        assert rows[name].how is How.DROPPED
        assert rows[name].reason.endswith(".")


def test_modules_are_dropped_and_other_setup_stays() -> None:
    wanted = spec(setup=["module load cuda", "source env.sh", "ulimit -n 4096"])
    expected = {"setup.0": How.DROPPED, "setup.1": How.CHANGED, "setup.2": How.EXACT}
    assert expected.items() <= how(wanted).items()
    [job] = documents(wanted)
    assert "module" not in script_of(job)
    assert script_of(job).startswith("source env.sh\n")


def test_images_of_the_cluster_are_replaced() -> None:
    for image, name, kind in (
        ("nvcr.io#nvidia/pytorch:24.01", "nvcr.io/nvidia/pytorch:24.01", How.CHANGED),
        ("docker://me/x:1", "me/x:1", How.CHANGED),
        ("/images/x.sqsh", "pytorch/pytorch:latest", How.CHANGED),
        ("me/x:1", "me/x:1", How.EXACT),
        (None, "pytorch/pytorch:latest", How.ASSUMED),
    ):
        wanted = spec(image=image)
        assert how(wanted)["image"] is kind
        assert pod_of(documents(wanted)[0])["containers"][0]["image"] == name


# -- TrainJob -----------------------------------------------------------------------------


def test_a_train_job_leaves_the_pods_to_its_runtime() -> None:
    wanted = spec(
        name="sft", nodes=2, gpus_per_node="h100:8", tasks_per_node=4, time="4h", image="me/x:1", volumes="data:/data",
        env="A=1", workdir="/data/run", launcher="torchrun", attempts=3, priority="high",
        extra=["kind=TrainJob", "runtime=torch-big", "runtime-kind=TrainingRuntime", "service-account=me", "ttl=60"],
    )  # fmt: skip
    [job] = documents(wanted, AXOLOTL)
    assert (job["kind"], job["metadata"]["name"]) == ("TrainJob", "sft")
    given = job["spec"]
    assert given["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": "torch-big"}
    trainer = given["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"], trainer["image"]) == (2, 4, "me/x:1")
    assert trainer["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "8"}
    assert trainer["env"] == [{"name": "A", "value": "1"}]
    assert given["activeDeadlineSeconds"] == 14_400
    lines = words.unescape(trainer["args"][0]).splitlines()
    assert lines[0] == "cd /data/run || exit"
    assert "--node_rank=$PET_NODE_RANK" in lines[-1]
    assert "--master_addr=$PET_MASTER_ADDR --master_port=$PET_MASTER_PORT" in lines[-1]
    [patch] = given["runtimePatches"]
    [part] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = part["template"]["spec"]["template"]["spec"]
    assert (part["name"], pod["serviceAccountName"]) == ("node", "me")
    assert pod["containers"] == [{"name": "node", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]
    ways = how(wanted, AXOLOTL)
    for field in ("attempts", "priority", "extra.kubernetes.ttl"):
        assert ways[field] is How.DROPPED, field
    assert (ways["workdir"], ways["tasks_per_node"]) == (How.EXACT, How.EXACT)


def test_a_train_job_without_wishes_patches_nothing() -> None:
    wanted = spec(extra=["kind=TrainJob"])
    [job] = documents(wanted)
    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert "runtimePatches" not in job["spec"]
    assert how(wanted)["extra.kubernetes.runtime"] is How.ASSUMED


def test_a_train_job_has_no_array_and_others_no_runtime() -> None:
    with pytest.raises(SpecError, match="array has no place in a TrainJob"):
        kubernetes.write(spec(array=3, extra=["kind=TrainJob"]), RUN)
    assert how(spec(extra=["runtime=torch-big"]))["extra.kubernetes.runtime"] is How.DROPPED


# -- all of it ----------------------------------------------------------------------------


@SLOW
@given(specs().flatmap(kinds), programs())
def test_every_manifest_is_valid_and_every_field_is_told_of(wanted: JobSpec, program: Program) -> None:
    written = kubernetes.write(wanted, program)
    for document in yaml.safe_load_all(written.text):
        judge(document)
    told = {row.field for row in written.fields}
    for field in kept(wanted, program):
        parts = field.split(".")
        assert any(".".join(parts[:end]) in told for end in range(1, len(parts) + 1)), field
    for row in written.fields:
        assert row.how is How.EXACT or row.reason.endswith("."), row


@pytest.mark.torch
def test_nodes_meet_under_the_real_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as d\n"
        "d.init_process_group('gloo')\n"
        "total = torch.ones(1) * d.get_rank()\n"
        "d.all_reduce(total)\n"
        "open(f'rank{d.get_rank()}', 'w').write(f'{d.get_world_size()} {total.item()}')\n"
    )
    steps = (
        Step(name="prepare", shell="sleep 1; echo done >prepared", runs=Runs.HEAD),
        Step(name="train", shell="train.py", runs=Runs.NODES, launched=True),
    )
    wanted = spec(name="r", nodes=2, tasks_per_node=2, launcher="torchrun", volumes="d:/d")
    script = script_of(documents(wanted, Program(steps=steps))[0])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = script.replace("r-node-0-0.r", "127.0.0.1").replace("29500", str(port)).replace("sleep 5", "sleep 0.2")
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    nodes = [
        subprocess.Popen(
            ["/bin/bash", "-c", script],
            cwd=tmp_path,
            env={"PATH": path, "JOB_COMPLETION_INDEX": str(node), "OMP_NUM_THREADS": "1"},
        )
        for node in range(2)
    ]
    try:
        assert nodes[0].wait(200) == 0  # the other one waits for it
        assert nodes[1].wait(60) == 0
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    assert (tmp_path / "prepared").exists()
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(4)] == ["4 6.0"] * 4


@pytest.mark.full
@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(wanted=specs(nodes=st.integers(2, 4)).flatmap(kinds), program=programs())
def test_every_object_fits_its_definition(definitions: Any, wanted: JobSpec, program: Program) -> None:
    for document in yaml.safe_load_all(kubernetes.write(wanted, program).text):
        if document["kind"] in definitions:
            assert [error.message for error in definitions[document["kind"]].iter_errors(document)] == []


@pytest.fixture(scope="session")
def definitions() -> Any:
    """Strict validators made of the kinds' own CustomResourceDefinitions, which are not part of this project."""
    import jsonschema

    folder = os.environ.get("CLUSTERKERNEL_CRDS")
    names = {"JobSet": "jobset.x-k8s.io_jobsets.yaml", "TrainJob": "trainer.kubeflow.org_trainjobs.yaml"}
    if not folder:
        pytest.skip(f"CLUSTERKERNEL_CRDS does not name a folder with {' and '.join(names.values())}")
    found = {}
    for kind, name in names.items():
        definition = yaml.load((Path(folder) / name).read_text(), Loader=yaml.CSafeLoader)
        schema = definition["spec"]["versions"][-1]["schema"]["openAPIV3Schema"]
        _close(schema)
        schema["properties"]["metadata"] = {"type": "object"}
        found[kind] = jsonschema.Draft7Validator(schema)
    return found


def _close(schema: Any) -> None:
    """Refuse unknown fields, and take a count or a text where the definition takes both."""
    if isinstance(schema, list):
        for item in schema:
            _close(item)
    if not isinstance(schema, dict):
        return
    if schema.get("x-kubernetes-int-or-string"):
        for key in ("type", "anyOf", "pattern"):
            schema.pop(key, None)
    properties = schema.get("properties")
    if isinstance(properties, dict) and "type" in schema and "additionalProperties" not in schema:
        schema["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    for key, item in schema.items():
        for part in item.values() if key == "properties" and isinstance(item, dict) else [item]:
            _close(part)
