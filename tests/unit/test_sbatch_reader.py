"""The sbatch reader: its grammar is sbatch's, its counts are Slurm's, and nothing of a script is unlisted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from clusterkernel.errors import ClusterKernelError, FormatError
from clusterkernel.formats import sources
from clusterkernel.formats.model import How, Mount, Parsed, Runs, SourceField
from clusterkernel.formats.sbatch.reader import read
from clusterkernel.spec import Launcher
from clusterkernel.units import GpuRequest
from tests.unit.sbatch_lines import CASES, FILES, LAYERS, Case

KEY = "hf_" + "abcdefghijklmnopqrstuvwx"


def script(*lines: str) -> str:
    return "\n".join(["#!/bin/bash", *lines, ""])


def parsed(*lines: str, values: Mapping[str, str] | None = None, **more: Any) -> Parsed:
    return read(script(*lines), name="train.slurm", values=values, **more)


def refused(*lines: str, **more: Any) -> str:
    with pytest.raises(FormatError) as caught:
        parsed(*lines, **more)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("train.slurm")
    return text


def row(found: Parsed, key: str) -> SourceField:
    return next(field for field in found.fields if field.key == key)


# -- the grammar --------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case.lines))
def test_what_sbatch_takes_is_read_and_what_it_refuses_is_refused(case: Case) -> None:
    if case.taken:
        parsed(case.lines, "hostname")
    else:
        assert refused(case.lines, "hostname")


@pytest.mark.parametrize(("data", "taken"), FILES)
def test_files_that_sbatch_does_not_look_at(data: bytes, taken: bool) -> None:
    if taken:
        read(data.decode(), name="train.slurm")
    else:
        with pytest.raises(FormatError, match=r"train\.slurm"):
            read(data.decode(), name="train.slurm")


@pytest.mark.parametrize(("lines", "words", "environ", "holds"), LAYERS)
def test_the_environment_and_the_command_line_count_over_the_script(
    lines: str, words: tuple[str, ...], environ: dict[str, str], holds: dict[str, str]
) -> None:
    found = parsed(lines, values=environ, options=words)
    schedule, resources = found.spec.schedule, found.spec.resources
    seen = {
        "Partition": schedule.partition,
        "NumNodes": str(resources.nodes)
        if "-" not in holds.get("NumNodes", "")
        else f"{resources.nodes}-{resources.nodes}",
        "TimeLimit": None if schedule.time is None else f"00:{schedule.time // 60:02}:00",
        "MinMemoryNode": None if resources.memory is None else f"{resources.memory // 1024}G",
        "OverSubscribe": "NO" if schedule.exclusive else "OK",
        "Requeue": "0" if found.spec.recovery.requeue is False else "1",
        "JobName": found.spec.name,
        "TresPerNode": f"gres:gpu:{resources.gpus_per_node.count}" if resources.gpus_per_node else None,
    }
    assert {name: seen[name] for name in holds} == holds


def test_a_line_that_is_overridden_is_listed() -> None:
    found = parsed("#SBATCH --nodes=2", "#SBATCH -N1", values={"SBATCH_PARTITION": "gpu"})
    first, second = row(found, "--nodes"), row(found, "-N")
    assert (first.line, first.field, first.how) == (2, None, How.EXACT)
    assert first.reason == "Line 3 says it again, and counts."
    assert (second.line, second.field, second.value) == (3, "nodes", "1")
    assert row(found, "SBATCH_PARTITION").reason == "The environment counts over the script."


# -- variables ----------------------------------------------------------------------------------


def test_variables_of_directives_are_asked_for_by_name_all_at_once() -> None:
    text = refused("#SBATCH --nodes=$NUM_NODES", "#SBATCH -p ${QUEUE}", "#SBATCH -t ${TIME:-60}")
    assert "$NUM_NODES (line 2), $QUEUE (line 3)" in text
    assert "TIME" not in text
    assert 'values={"NUM_NODES": "..."}' in text


def test_variables_of_directives_take_given_values() -> None:
    found = parsed(
        "#SBATCH --nodes=$NUM_NODES -p ${QUEUE:-gpu}", values={"NUM_NODES": "2", "UNUSED": "x"}, options="--export=ALL"
    )
    assert found.spec.resources.nodes == 2
    assert found.spec.schedule.partition == "gpu"
    assert row(found, "--nodes").how is How.CHANGED
    assert row(found, "--nodes").reason.startswith("$NUM_NODES")
    assert row(found, "$NUM_NODES").value == "2"


def test_values_come_from_the_command_line_of_a_readme() -> None:
    found = parsed("#SBATCH --nodes=$N", "srun torchrun --nproc_per_node=$G train.py", options="--export=ALL,N=2,G=4")
    assert found.spec.resources.nodes == 2
    assert found.spec.ranks_per_node == 4


def test_several_options_may_stand_in_one_variable() -> None:
    found = parsed("#SBATCH $MORE", values={"MORE": "-p gpu -N 3"})
    assert (found.spec.schedule.partition, found.spec.resources.nodes) == ("gpu", 3)


# -- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "nodes", "gpus", "ranks"),
    [
        ("#SBATCH -N2 --gpus-per-node=h100:8 --ntasks-per-node=8", 2, GpuRequest(8, "h100"), 8),
        ("#SBATCH -N2 --gpus=16 --ntasks=16", 2, GpuRequest(8), 8),
        ("#SBATCH -N2 --gpus-per-task=2 --ntasks-per-node=4", 2, GpuRequest(8), 4),
        ("#SBATCH -N2 --gres=gpu:A100:4", 2, GpuRequest(4, "a100"), 1),
        ("#SBATCH --ntasks=8 --ntasks-per-node=4", 2, None, 4),
        ("#SBATCH --gpus=4 --ntasks-per-gpu=2", 1, GpuRequest(4), 8),
        ("#SBATCH --nodelist=gpu[1-3],gpu7", 4, None, 1),
        ("#SBATCH -N4 -n2", 2, None, 1),
        ("#SBATCH -N2-4", 2, None, 1),
        ("#SBATCH --gpus-per-node=2 --gres=gpu:2,nvme:1", 1, GpuRequest(2), 1),
    ],
)
def test_counts_are_per_node(lines: str, nodes: int, gpus: GpuRequest | None, ranks: int) -> None:
    spec = parsed(lines, "srun python train.py").spec
    assert (spec.resources.nodes, spec.resources.gpus_per_node, spec.ranks_per_node) == (nodes, gpus, ranks)


@pytest.mark.parametrize(
    ("lines", "memory"),
    [
        ("#SBATCH --mem=64G", 65536),
        ("#SBATCH --mem=1500K", 2),
        ("#SBATCH --mem-per-cpu=2G -c 16", 32768),
        ("#SBATCH --mem-per-gpu=40G --gpus-per-node=4", 163840),
        ("#SBATCH --mem=0", None),
    ],
)
def test_memory_is_per_node(lines: str, memory: int | None) -> None:
    assert parsed(lines).spec.resources.memory == memory


def test_cores_of_a_launcher_are_shared_by_its_ranks() -> None:
    found = parsed(
        "#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=128",
        "srun torchrun --nproc_per_node=8 train.py",
    )
    assert found.spec.resources.cpus_per_task == 16
    assert row(found, "--cpus-per-task").reason == "128 cores of a node are 16 for each of its 8 ranks."


def test_what_has_no_field_is_passed_on_or_kept() -> None:
    found = parsed("#SBATCH --mail-type=END --mail-user=a@b -o %x-%j.out --gres=gpu:1,nvme:2 -t UNLIMITED")
    assert found.spec.extra["slurm"] == ("--gres=nvme:2", "--time=UNLIMITED", "--mail-type=END", "--mail-user=a@b")
    assert "--output=%x-%j.out" in found.program.options["slurm"]
    assert row(found, "-o").field == "program.options.slurm.output"
    assert row(found, "--mail-type").field == "extra.slurm.mail-type"


def test_an_array_is_counted() -> None:
    found = parsed("#SBATCH -a 0-9%2")
    assert (found.spec.array.size, found.spec.parallelism) == (10, 2)  # type: ignore[union-attr]
    assert row(found, "-a").how is How.EXACT
    other = parsed("#SBATCH -a 1,3,5")
    assert other.spec.array.size == 3  # type: ignore[union-attr]
    assert row(other, "-a").how is How.EXACT  # test_convert_runs has what its tasks are called elsewhere


def test_a_priority_that_slurm_ignores_is_dropped() -> None:
    assert parsed("#SBATCH --priority=TOP").spec.schedule.priority == "TOP"
    found = parsed("#SBATCH --priority=high")
    assert found.spec.schedule.priority is None
    assert row(found, "--priority").how is How.DROPPED


# -- launch lines -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "launcher", "shell", "args"),
    [
        ("srun torchrun --nproc_per_node 8 train.py --lr 1e-4", Launcher.TORCHRUN, "train.py --lr 1e-4", ()),
        ("srun torchrun --nproc-per-node=gpu -m pkg.train", Launcher.TORCHRUN, "-m pkg.train", ()),
        (
            "srun python -u -m torch.distributed.run --nnodes 2 --nproc 8 --max_restarts 3 --tee 3 t.py",
            Launcher.TORCHRUN,
            "t.py",
            ("--max_restarts=3", "--tee=3"),
        ),
        (
            "srun accelerate launch --num_processes 16 --num_machines 2 --config_file a.yaml --machine_rank 0 t.py",
            Launcher.ACCELERATE,
            "t.py",
            ("--config_file=a.yaml",),
        ),
        ("deepspeed --num_gpus=8 --master_port 29500 t.py --deepspeed ds.json", Launcher.DEEPSPEED, None, ()),
        ("srun bash -c 'torchrun --nproc_per_node=8 --node_rank $SLURM_NODEID t.py'", Launcher.TORCHRUN, "t.py", ()),
        ("srun axolotl train c.yaml --launcher torchrun -- --nproc_per_node=8", Launcher.TORCHRUN, None, ()),
        ("srun torchrun --nproc_per_node=8 -m axolotl.cli.train c.yaml", Launcher.TORCHRUN, None, ()),
        ("srun python -m axolotl.cli.train c.yaml", Launcher.NONE, None, ()),
    ],
)
def test_launchers_are_told_from_what_they_launch(
    line: str, launcher: Launcher, shell: str | None, args: tuple[str, ...]
) -> None:
    found = parsed("#SBATCH -N2 --ntasks-per-node=1 --gpus-per-node=8", line)
    step = found.program.steps[-1]
    assert (found.spec.launcher, step.launcher_args) in [(launcher, args), (Launcher.ACCELERATE, args)]
    assert found.spec.ranks_per_node == 8 or launcher is Launcher.NONE
    if shell is not None:
        assert (step.shell, step.launched) == (shell, True)


def test_an_axolotl_run_is_known_with_its_configuration() -> None:
    found = parsed("#SBATCH -N2 --gpus-per-node=8", "srun axolotl preprocess c.yaml", "srun axolotl train c.yaml")
    assert found.program.config == "c.yaml"
    assert [(step.name, step.runs, step.launched) for step in found.program.steps] == [
        ("preprocess", Runs.HEAD, False),
        ("train", Runs.NODES, True),
    ]
    assert all(step.axolotl for step in found.program.steps)


@pytest.mark.parametrize(
    ("line", "shell", "args"),
    [
        (
            "exec axolotl train c.yaml --launcher torchrun -- --nproc_per_node=8 --max-restarts=2",
            "axolotl train c.yaml",
            ("--max-restarts=2",),
        ),
        ("nohup -- torchrun --nproc_per_node=8 train.py -- --x", "train.py -- --x", ()),
        ("exec -a me torchrun --nproc_per_node=8 train.py -p 3", "train.py -p 3", ()),
        ("time -p srun torchrun --nproc_per_node=8 train.py -p", "train.py -p", ()),
    ],
)
def test_only_their_own_words_go_with_exec_and_nohup(line: str, shell: str, args: tuple[str, ...]) -> None:
    found = parsed("#SBATCH --gpus-per-node=8", line)
    assert found.spec.launcher is Launcher.TORCHRUN
    assert (found.program.steps[0].shell, found.program.steps[0].launcher_args) == (shell, args)


@pytest.mark.parametrize(
    ("line", "shell"),
    [
        ("""srun bash -c 'python t.py "$@"' bash --lr 1 'two words'""", "python t.py --lr 1 'two words'"),
        ("srun bash -c 'python t.py $1 ${2}' -- 7 8", "python t.py 7 8"),
        ("""srun bash -c 'python t.py "$@"' bash "$@" """, 'python t.py "$@"'),
        ("srun bash -c 'python t.py' x y", "python t.py"),
        ('srun bash -c "python t.py $1"', "python t.py $1"),
        # within a quote only a shell puts it in
        ("""srun bash -c 'python t.py "a $1"' - 'b c'""", """bash -c 'python t.py "a $1"' - 'b c'"""),
    ],
)
def test_words_behind_a_shells_command_are_its_arguments(line: str, shell: str) -> None:
    assert parsed(line).program.steps[0].shell == shell


def test_axolotl_without_a_launcher_keeps_saying_so() -> None:
    found = parsed("axolotl train c.yaml --launcher python")
    assert (found.spec.launcher, found.program.steps[0].shell) == (
        Launcher.NONE,
        "axolotl train c.yaml --launcher python",
    )


def test_variables_stand_with_their_values_in_what_is_launched() -> None:
    found = parsed(
        "#SBATCH -N2 --gpus-per-node=8",
        "GPUS=8",
        "NODES=$SLURM_NNODES",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "ARGS=(",
        "    --lr 1e-4  # a rate",
        "    --note 'two words'",
        ")",
        'LAUNCHER="torchrun --nproc_per_node $GPUS --nnodes $NODES \\',
        '    --rdzv_endpoint $MASTER_ADDR:29500 --rdzv_backend c10d"',
        'srun $LAUNCHER train.py "${ARGS[@]}" --out ${OUT:-/data/out} --data $DATA',
    )
    assert found.spec.launcher is Launcher.TORCHRUN
    step = found.program.steps[0]
    assert step.shell == "train.py --lr 1e-4 --note 'two words' --out /data/out --data $DATA"
    assert row(found, "torchrun --nnodes").field == "nodes"
    assert row(found, "torchrun --rdzv-endpoint").field is None
    assert row(found, "$OUT").how is How.ASSUMED
    assert row(found, "$DATA").field == "program.shell.DATA"


def test_setup_environment_and_folder() -> None:
    found = parsed(
        "module load cuda/12.4",
        "source ~/venv/bin/activate",
        "export NCCL_DEBUG=INFO OMP_NUM_THREADS=8",
        "export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH",
        "cd $SLURM_SUBMIT_DIR",
        "cd runs/a",
        "srun python train.py 2>&1 | tee log.txt",
    )
    environment = found.spec.environment
    assert environment.env == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"}
    assert environment.setup == (
        "module load cuda/12.4",
        "source ~/venv/bin/activate",
        "export NCCL_DEBUG=INFO",  # again, should one of these have set it
        "export OMP_NUM_THREADS=8",
        "export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH",
    )
    assert environment.workdir == "runs/a"
    assert row(found, "| tee").how is How.DROPPED
    assert row(found, "2>&1").how is How.EXACT


def test_lines_that_fill_several_lines_run_on_the_first_node_in_their_order() -> None:
    found = parsed("A=$(date)", "cat > c.json <<END", '{"a": 1}', "END", "if true; then", "  echo", "fi", "srun x.sh")
    assert found.spec.environment.setup == ("A=$(date)",)
    first, second = found.program.steps
    assert (first.runs, first.shell) == (
        Runs.HEAD,
        'cat > c.json <<END\n{"a": 1}\nEND\nif true; then\n  echo\nfi',
    )
    assert second.shell == "x.sh"


def test_containers() -> None:
    found = parsed("srun --container-image=nvcr.io#nvidia/pytorch:25.01-py3 --container-mounts=/a:/b:ro,/c python t.py")
    assert found.spec.environment.image == "nvcr.io#nvidia/pytorch:25.01-py3"
    assert found.program.mounts == (Mount("/a", "/b", "ro"), Mount("/c", "/c"))
    other = parsed("srun apptainer exec --nv -B /data --env A=1 docker://x/y:z python t.py")
    assert other.spec.environment.image == "x/y:z"
    assert other.program.mounts == (Mount("/data", "/data"),)
    assert other.spec.environment.env == {"A": "1"}
    assert other.program.steps[0].shell == "python t.py"
    sif = parsed("singularity run img.sif torchrun --nproc_per_node=2 t.py")
    assert (sif.spec.environment.image, sif.spec.launcher) == ("img.sif", Launcher.TORCHRUN)


@pytest.mark.parametrize(
    ("lines", "line", "why"),
    [
        (("#SBATCH -N2", "#SBATCH hetjob", "#SBATCH -N1"), 3, "unlike parts"),
        (("#SBATCH -N2", "srun -w n1 a"), 3, "picks a part"),
        (("#SBATCH -n2", "srun a &", "srun b &", "wait"), 4, "run at once"),
        (("#SBATCH -n8", "srun -n4 a"), 3, "4 of the job's 8 tasks"),
        (("#SBATCH -n8", "srun -n8 a", "srun -n4 b"), 4, "where an earlier one has 8"),
        (("srun torchrun --nproc_per_node=2 a.py", "srun accelerate launch b.py"), 3, "another launcher"),
        (("srun torchrun --nproc_per_node=2 a.py", "srun torchrun --nproc_per_node=4 b.py"), 3, "4 ranks"),
        (("for i in 1 2; do srun a; done",), 2, "a condition, a loop or a function"),
        (("run() { torchrun a.py; }", "run"), 2, "a condition, a loop or a function"),
        (("[ -d x ] || srun a",), 2, "depends on what runs before"),
        (("srun",), 2, "no program"),
        (("echo 'a",), 2, "not closed"),
        (("if true; then", "  echo"), 2, "has no end"),
        (("cat <<END", "a"), 2, "has no end"),
        (("cat <<'A", "B'", "a"), 2, "the here-document A B has no end"),
        (("srun axolotl train",), 2, "no configuration"),
    ],
)
def test_what_only_slurm_can_do_is_refused_with_the_reason(lines: tuple[str, ...], line: int, why: str) -> None:
    text = refused(*lines)
    assert f"line {line}: " in text
    assert why in text


def test_a_script_of_another_language_is_refused() -> None:
    with pytest.raises(FormatError, match=r"line 1: the script is written in python3"):
        read("#!/usr/bin/env python3\n#SBATCH -N2\nprint(1)\n", name="train.slurm")


# -- secrets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ((f"export HF_TOKEN={KEY}", "srun a"), {"HF_TOKEN"}),
        (("export WANDB_API_KEY='something'", "srun a"), {"WANDB_API_KEY"}),
        (("export HF_TOKEN=$(cat ~/.token)", "srun a"), {"HF_TOKEN"}),
        ((f"MY_VALUE={KEY}", "srun a $MY_VALUE"), {"MY_VALUE"}),
        ((f"srun python t.py --hub_token {KEY}",), {"HF_TOKEN"}),
        (("srun python t.py --api-key=abc123",), {"API_KEY"}),
        ((f"HF_TOKEN={KEY} srun a",), {"HF_TOKEN"}),
        ((f"huggingface-cli login --token {KEY}", "srun a"), {"HF_TOKEN"}),
        (("wandb login " + "0123456789abcdef" * 2 + "01234567", "srun a"), {"WANDB_API_KEY"}),
        ((f"#SBATCH --export=ALL,HF_TOKEN={KEY},A=1", "srun a"), {"HF_TOKEN"}),
        ((f"srun --export=ALL,HF_TOKEN={KEY} a",), {"HF_TOKEN"}),
        (("if true; then", f"  export X={KEY}", "fi", "srun a"), {"HF_TOKEN"}),
        (("git clone https://me:" + "pa55word" + "@host/x", "srun a"), {"SECRET"}),
    ],
)
def test_a_secret_in_the_clear_becomes_a_name_and_is_nowhere(lines: tuple[str, ...], names: set[str]) -> None:
    found = parsed(*lines)
    assert set(found.spec.environment.secrets) == names
    told = repr(found)
    for secret in (KEY, "something", "abc123", "0123456789abcdef", "pa55word"):
        assert secret not in told
    assert any(
        field.field == f"secrets.{name}" and field.how is How.CHANGED for name in names for field in found.fields
    )


def test_a_secret_is_in_no_error() -> None:
    for lines in (
        (f"export HF_TOKEN={KEY}", "echo 'open"),
        (f"#SBATCH --comment={KEY} --nodes=x",),
        (f"srun -n3 python t.py --token {KEY}",),
    ):
        with pytest.raises(ClusterKernelError) as caught:
            parsed("#SBATCH -n8", *lines)
        assert KEY not in str(caught.value)


def test_names_that_look_like_secrets_and_are_none() -> None:
    found = parsed("export TOKENIZERS_PARALLELISM=false PAD_TOKEN=x MAX_TOKENS=5 SSH_AUTH_SOCK=/a", "srun a")
    assert found.spec.environment.secrets == ()
    assert len(found.spec.environment.env) == 4


# -- nothing unlisted ---------------------------------------------------------------------------


def test_every_option_and_every_line_has_a_row() -> None:
    lines = [
        "#SBATCH --job-name=a --nodes=2",
        "#SBATCH --gpus-per-node=8 -t 60 --comment=x",
        "module load cuda",
        "export A=1",
        "X=2",
        "cd /data",
        "srun --mpi=pmix --label torchrun --nproc_per_node=8 --tee 3 t.py $X > log",
        "echo done",
    ]
    found = parsed(*lines)
    assert {field.line for field in found.fields if field.line} == set(range(2, 10))
    keys = [field.key for field in found.fields]
    for key in ("--job-name", "--nodes", "--gpus-per-node", "-t", "--comment", "srun --mpi", "srun --label", "> log"):
        assert key in keys
    assert sources.detect(script(*lines), "x") is found.format
