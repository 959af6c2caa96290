"""What a converted script does is what its source does: both are run, and their calls are compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from clusterkernel.errors import FormatError
from clusterkernel.formats.convert import convert
from clusterkernel.formats.model import How
from tests.unit import shell_runs

#: The lines of a script, and arguments whose call fails.
SAME = {
    "set by the first line": ("#!/bin/bash -e", "false", "python a.py"),
    "several flags": ("#!/bin/bash -eu", "python a.py $NOBODY"),
    "behind modules": ("module load x", "export OVERRIDE=mine", "python a.py"),
    "before and behind a file": ("export OVERRIDE=a", "source ./settings.sh", "export OVERRIDE=b", "python a.py"),
    "a file counts": ("export OVERRIDE=a", "source ./settings.sh", "python a.py"),
    "for one launch": ("export A=1", "A=3 python a.py", "python b.py"),
    "for each launch": ("CUDA_VISIBLE_DEVICES=0 python a.py", "CUDA_VISIBLE_DEVICES=1 B=2 srun python b.py"),
    "for the one launch": ("export A=1", "A=3 OMP_NUM_THREADS=2 python a.py"),
    "exported by all": ("set -a", "A=1", "set +a", "B=2", "python a.py"),
    "from a file": ("python a.py < input.txt",),
    "from a file, by srun": ("srun python a.py < input.txt",),
    "read later": ("python a.py > out.txt 2>&1", "grep -c python out.txt"),
    "read later, through a pipe": ("python a.py 2>&1 | tee out.txt", "grep -c python out.txt"),
    "an option's name": ("python a.py --pat '*.txt'",),
    "read later, named by a variable": ("F=out_$A.txt", "python a.py > $F 2> err.txt", "cat $F", "gzip $F"),
    "a document": ("python - <<'PY'", 'print("hello")', "PY", "python a.py"),
    "a document that fails": ("python - <<'PY'", 'print("hello")', "PY", "python a.py"),
    "of an environment": ("conda run -n env --no-capture-output python a.py",),
    "all nodes": ("HOSTS=$(scontrol show hostnames | paste -sd,)", "python a.py --hosts $HOSTS"),
    "a count of nodes": ("N=$(scontrol show hostnames $SLURM_JOB_NODELIST | wc -l)", "python a.py --nodes $N"),
    "tasks with a GPU each": ("#SBATCH -n4 --gpus-per-task=1", "srun --gpus-per-task=1 python a.py"),
    "what srun does beside": ("srun -l --cpu-bind=cores python a.py", "srun python b.py"),
    "without an environment": ("export A=1", "srun --export=NONE python a.py"),
    "mounts by a variable": (
        "DIR=$(basename $PWD)",
        'srun --container-image=me/a:1 --container-mounts="/data:/data,$DIR:/w" python a.py',
    ),
    "inside a container": ("srun --container-image=me/a:1 --container-workdir=/nowhere python a.py",),
    "inside a container, from a folder": (
        "mkdir -p sub && cd sub",
        "srun --container-image=me/a:1 --container-workdir=/nowhere python a.py",
    ),
    "sbatch's own container": (
        "#SBATCH --container-image=me/a:1 --container-mounts=/a:/b --container-workdir=/nowhere",
        "srun python a.py",
    ),
    "behind the last": ("python a.py", "echo done > flag"),
    "behind the last, each": ("python a.py && echo done > flag",),
    "helpers": ("sleep 60 &", "python a.py", "kill $!", "true"),
    "numbers": ("LR=$((2 * 3))", "python a.py --lr $LR"),
    "if": ("M=s", "if [ -n $HOME ]; then M=big; fi", "python a.py --m $M"),
    "conditions": ("M=s", "[[ -n $HOME ]] && M=big", "python a.py --m $M"),
    "loops": ("S=0", "for i in 1 2 3; do S=$((S + i)); done", "python a.py --s $S"),
    "read": ("read -r A B <<< 'x y'", 'python a.py "$A" "$B"'),
    "printf -v": ("printf -v NAME '%03d' 7", "python a.py --name $NAME"),
    "mapfile": ("mapfile -t L < input.txt", 'python a.py "${L[0]}"'),
    "read, for a step": ("read -r P Q <<< 'x y'", 'srun bash -c \'python a.py "$0" "$1"\' "$P" "$Q"'),
    "read, for srun": ("read -r P Q <<< 'x y'", 'srun -l python a.py "$P" "$Q" $SLURM_PROCID'),
    "printf -v, for srun": ("printf -v NAME '%03d' 7", "srun -l python a.py --name $NAME $SLURM_PROCID"),
    "functions": ("pick() { M=big; }", "pick", "python a.py --m $M"),
    "arrays": ("ARGS=(--a 'b c' --d)", 'ARGS+=("$SLURM_JOB_ID")', 'python a.py "${ARGS[@]}"'),
    "a place of an array": ("S=(1 2 3)", "I=1", "python a.py ${S[$I]} ${S[$((I % 2))]} ${S[-1]} ${S[@]:1} ${#S[@]}"),
    "a task's place of an array": ("S=(1 2 3)", "srun python a.py ${S[$SLURM_ARRAY_TASK_ID]}"),
    "a task's place of an array, inside": (
        "S=(1 2 3)",
        "srun apptainer exec x.sif python a.py ${S[SLURM_ARRAY_TASK_ID]}",
    ),
    "parts of a value": ("C=c/a.yaml", 'srun python a.py ${C##*/} ${C%.yaml} $(basename $C) "${C^^}"'),
    "one or the other": ("python a.py && echo ok || echo bad",),
    "nothing behind exit": ("python a.py", "exit 0", "python b.py"),
    "a status behind the last": ("python a.py", "cp nothing out.txt", "echo done"),
    "where it was": ("R=$PWD", "mkdir sub; cd sub", 'python a.py "$(basename $R)" "${PWD##*/}"'),
    "what it adds to": ('export MOD="x:$MOD"', 'python a.py "$MOD"'),
    "patterns": ("P='*.txt'", 'python a.py $P "$P" --x=$P'),
    "a name in a value": ("N=V", "V=x", "python a.py ${!N}"),
    "toward nothing": ("python a.py $((7 / -2)) $((-7 % 4))",),
    "a file that sets": ("OVERRIDE=a", "source ./settings.sh", "python a.py $OVERRIDE"),
    "a file that reads": ("X=big", 'echo "Y=$X-\\$X" > read.sh', ". ./read.sh", 'python a.py "$Y"'),
    "a count that goes on": ("i=5", "python a.py $((i++)) $((i += 2))"),
    "a launcher's line": (
        'export MOD="prog --head $(scontrol show hostnames | head -n1) --n $SLURM_NNODES --r \\$SLURM_PROCID"',
        'srun bash -c "$MOD a.py"',
    ),
    "quotes": ("X='a b'", 'python a.py $X "$X" \'$X\' "${X}c" \\$X'),
    "trap at the end": ("trap 'echo over' EXIT", "python a.py"),
    "the folder": ("mkdir -p sub", "cd sub", "python a.py"),
    "a container": ("D=$(basename $PWD)", 'srun apptainer exec --nv --bind "/a:/b" --pwd /w x.sif python a.py $D'),
    "a wrapper": ("numactl --cpunodebind=0 python a.py",),
    "accelerate": ("export A='b c'", "accelerate launch --num_machines=1 --num_processes=2 a.py --x 'y z'"),
}
FAILS = {
    "status that is kept": ("python a.py", "rc=$?", 'echo "rc was $rc"', "exit $rc"),
    "status that is kept on one line": ("python a.py; rc=$?", "exit $rc"),
    "status that is looked at": ("python a.py", "if [ $? -ne 0 ]; then exit 3; fi", "python b.py"),
    "a trap": ("trap 'echo over' EXIT", "python a.py"),
    "a helper whose status is waited for": ("python a.py &", "P=$!", "sleep 0", "wait $P", "exit $?"),
    "the last": ("python b.py", "python a.py"),
    "set -e": ("set -e", "python a.py", "python b.py"),
    "set +e": ("set -e", "python b.py", "set +e", "python a.py", "set -e", "python c.py"),
    "may fail": ("python a.py || true", "python b.py"),
    "goes on": ("python a.py", "python b.py"),
    "goes on behind a document": ("python a.py <<'X'", "y", "X", "python b.py"),
    "and": ("python a.py && python b.py",),
    "one or the other": ("python a.py && echo ok || echo bad",),
    "or exit": ("python a.py || exit 5", "python b.py"),
    "or a message": ("M='went wrong'", 'python a.py || echo "$M" > out.txt', "cat out.txt"),
    "axolotl may fail": (
        "axolotl train a.py --launcher accelerate -- --num_machines=1 --num_processes=1 || true",
        "python b.py",
    ),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shell_runs.stand_ins(tmp_path_factory.mktemp("runs") / "bin")


def both(lines: tuple[str, ...], programs: Path, folder: Path, **environ: str) -> None:
    first = () if lines[0].startswith("#!") else ("#!/bin/bash",)
    text = "\n".join([*first, lines[0], "#SBATCH --time=60", *lines[1:], ""])
    source = shell_runs.run(text, programs, folder / "source", environ)
    done = convert(text, "slurm")
    written = shell_runs.run(done.text, programs, folder / "written", environ)
    assert written == source, done.text


@pytest.mark.parametrize("case", SAME)
def test_it_makes_the_same_calls(case: str, programs: Path, tmp_path: Path) -> None:
    both(SAME[case], programs, tmp_path, SLURM_ARRAY_TASK_ID="1")


@pytest.mark.parametrize("case", FAILS)
def test_it_ends_in_the_same_way(case: str, programs: Path, tmp_path: Path) -> None:
    done = convert("\n".join(["#!/bin/bash", *FAILS[case], ""]), "slurm")
    text = "\n".join(["#!/bin/bash", *FAILS[case], ""])
    source = shell_runs.run(text, programs, tmp_path / "source", {"FAILS": "a.py"})
    written = shell_runs.run(done.text, programs, tmp_path / "written", {"FAILS": "a.py"})
    told = [row.reason for row in done.rows if row.how is How.CHANGED]
    if told:  # what stands behind a failed step may not run, and the report says so
        assert any("did well" in why or "status" in why for why in told)
        assert (written.status, written.calls) == (source.status, source.calls[: len(written.calls)]), done.text
    else:
        assert written == source, done.text


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("#SBATCH --gpus-per-node=4", "mpirun -np 4 python a.py"), "mpirun starts 4 processes where the job has 1"),
        (("nodes=($(scontrol show hostnames))", "python a.py --peer ${nodes[1]}"), "other nodes than the first"),
        (("srun python a.py || touch failed", "python b.py"), "depends on how it ends"),
        (("A=1 torchrun a.py", "A=2 torchrun b.py"), "A has another value"),
        (("srun --export=ALL,A=1 python a.py", "srun --export=ALL,A=2 python b.py"), "A has another value"),
    ],
)
def test_what_cannot_be_the_same_is_refused(lines: tuple[str, ...], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        convert("\n".join(["#!/bin/bash", *lines, ""]), "slurm")


@pytest.mark.parametrize(
    ("behind", "written", "why"),
    [
        ("|| exit 5", "--label python a.py || exit\n", "the status of its step"),
        ("|| echo bad", "--label bash -c 'python a.py || true' || exit\n", "only prints"),
        ("&& echo good || echo bad", "--label bash -c 'python a.py || true' || exit\n", "only prints"),
    ],
)
def test_what_follows_srun_is_told(behind: str, written: str, why: str) -> None:
    done = convert(f"#!/bin/bash\nsrun --label python a.py {behind}\npython b.py\n", "slurm")
    assert written in done.text
    [row] = [row for row in done.rows if row.how is How.CHANGED]
    assert why in row.reason


TRAP = "trap 'touch seen; kill $PID' USR1"


@pytest.mark.parametrize(
    "lines",
    [
        (TRAP, "bash wait.sh &", "PID=$!", "wait $PID"),
        (TRAP, "bash wait.sh &", "PID=$!", 'wait "$PID"', "echo over"),
        (TRAP, "bash wait.sh &", "PID=$!", "wait $PID", "cp input.txt kept.txt"),
        ("bash wait.sh &", "PID=$!", TRAP, "wait ${PID}", "rc=$?", "exit $rc"),
        ("handler() {", "touch seen; kill $PID", "}", "trap handler USR1", "bash wait.sh &", "PID=$!", "wait"),
    ],
)
def test_a_trap_runs_while_the_step_does(lines: tuple[str, ...], programs: Path, tmp_path: Path) -> None:
    done = convert("\n".join(["#!/bin/bash", "#SBATCH --signal=B:USR1@60", *lines, ""]), "slurm")
    # The step asks for the signal itself, and would end by itself only long after.
    step = "cat > wait.sh <<'X'\nkill -USR1 $PPID\nexec sleep 30\nX\n"
    text = done.text.replace("#!/bin/bash\n", f"#!/bin/bash\n{step}", 1)
    ran = shell_runs.run(text, programs, tmp_path / "run")
    assert "seen" in ran.files, done.text
    assert ("kept.txt" in ran.files) == ("cp input.txt kept.txt" in lines)


def test_launches_at_once_are_no_waits() -> None:
    text = "#!/bin/bash\nsrun -n1 python a.py &\nsrun -n1 python b.py &\nwait\n"
    with pytest.raises(FormatError, match="2 commands run at once"):
        convert(text, "slurm")


@pytest.mark.parametrize("behind", ["echo done", "date", "true"])
def test_a_status_that_the_last_line_would_hide_is_told(behind: str) -> None:
    [row] = [row for row in convert(f"#!/bin/bash\npython a.py\n{behind}\n", "slurm").rows if row.how is How.CHANGED]
    assert (row.value, row.reason) == (behind, "A job ends with the status of its last step.")


def test_tasks_stay_on_as_many_nodes_as_slurm_likes() -> None:
    text = convert("#!/bin/bash\n#SBATCH --ntasks=70\nsrun python a.py\n", "slurm").text
    assert "#SBATCH --ntasks=70\n" in text
    assert "srun --kill-on-bad-exit=1 --ntasks=70 python a.py\n" in text


ARRAYS = {"0-3": "0123", "1-3": "123", "2-8:3": "258", "1,7,4": "147", "5": "5"}


def on_platform(platform: str, text: str) -> str:
    """The script that a platform's containers run, out of what is written for it."""
    written = convert(text, platform).text
    if platform == "kubernetes":
        [job] = [part for part in yaml.safe_load_all(written) if part["kind"] == "Job"]
        [container] = job["spec"]["template"]["spec"]["containers"]
        return str(container["args"][-1]).replace("$$", "$")
    [found] = re.findall(r'''(?s)SCRIPT = r?"""\\?\n?(.*?)"""''', written)
    return str(found)


@pytest.mark.parametrize("ids", ARRAYS)
@pytest.mark.parametrize(("platform", "index"), [("kubernetes", "JOB_COMPLETION_INDEX"), ("modal", "CK_TASK")])
def test_tasks_of_an_array_keep_their_numbers(
    platform: str, index: str, ids: str, programs: Path, tmp_path: Path
) -> None:
    text = f"#!/bin/bash\n#SBATCH --array={ids} --container-image=a/b:1\npython a.py $SLURM_ARRAY_TASK_ID\n"
    script = "#!/bin/bash\n" + on_platform(platform, text)
    seen = ""
    for place in range(len(ARRAYS[ids])):
        ran = shell_runs.run(script, programs, tmp_path / str(place), {index: str(place)})
        seen += re.findall(r"\[a.py\] \[(\d)\]", ran.calls[0])[0]
    assert seen == ARRAYS[ids]


@pytest.mark.parametrize("ids", ARRAYS)
def test_tasks_of_an_array_keep_their_numbers_on_the_way_back(ids: str, programs: Path, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH --array={ids} --container-image=a/b:1\npython a.py $SLURM_ARRAY_TASK_ID\n"
    back = convert(convert(text, "kubernetes").text, "slurm").text
    assert f"#SBATCH --array=0-{len(ARRAYS[ids]) - 1}\n" in back
    seen = ""
    for place in range(len(ARRAYS[ids])):
        ran = shell_runs.run(back, programs, tmp_path / str(place), {"SLURM_ARRAY_TASK_ID": str(place)})
        seen += re.findall(r"\[a.py\] \[(\d)\]", ran.calls[1])[0]
    assert seen == ARRAYS[ids]


@pytest.mark.parametrize("platform", ["kubernetes", "modal"])
@pytest.mark.parametrize(
    ("directives", "srun", "devices"),
    [
        ("-n4 --gpus-per-task=1", "srun", {"0", "1", "2", "3"}),
        ("-n2 --gpus-per-task=2", "srun", {"0,1", "2,3"}),
        ("-N1 -n2 --gpus-per-node=2", "srun --gpus-per-task=1", {"0", "1"}),
        ("-N1 -n2 --gpus-per-node=2", "srun", {""}),
    ],
)
def test_a_task_sees_the_gpus_that_srun_would_show_it(
    platform: str, directives: str, srun: str, devices: set[str], programs: Path, tmp_path: Path
) -> None:
    text = f"#!/bin/bash\n#SBATCH {directives} --container-image=a/b:1\n{srun} python a.py\n"
    ran = shell_runs.run("#!/bin/bash\n" + on_platform(platform, text), programs, tmp_path / "run")
    assert {call.partition("CUDA_VISIBLE_DEVICES=")[2].partition(" ")[0] for call in ran.calls} == devices
    assert ran.status == 0


@pytest.mark.parametrize("platform", ["kubernetes", "modal"])
@pytest.mark.parametrize(
    "trap", ["trap 'touch over' EXIT", "clean() {\n  touch over\n}\nfalse\ntrap clean EXIT\nfalse"]
)
def test_a_container_keeps_the_traps(platform: str, trap: str, programs: Path, tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH --container-image=a/b:1\n{trap}\npython a.py\n"
    ran = shell_runs.run("#!/bin/bash\n" + on_platform(platform, text), programs, tmp_path / "run", {"FAILS": "a.py"})
    assert (ran.calls, ran.status) == (["python [a.py] in work"], 3)
    assert "over" in ran.files


@pytest.mark.parametrize("platform", ["kubernetes", "modal"])
def test_ranks_leave_the_trap_at_the_end_to_the_person(platform: str, programs: Path, tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N1 -n2 --container-image=a/b:1\n"
        "trap 'echo \"it'\"'\"'s over: $?\"' EXIT\nsrun python a.py\n"
    )
    ran = shell_runs.run("#!/bin/bash\n" + on_platform(platform, text), programs, tmp_path / "run", {"FAILS": "a.py"})
    assert ran.calls[-1] == "it's over: 3"
    assert ran.status == 3


@pytest.mark.parametrize("platform", ["kubernetes", "modal"])
@pytest.mark.parametrize(("asks", "threads"), [("", "1"), (" --cpus-per-task=3", "3")])
def test_a_count_of_cpus_is_set_where_slurm_sets_it(
    platform: str, asks: str, threads: str, programs: Path, tmp_path: Path
) -> None:
    text = f"#!/bin/bash\n#SBATCH --container-image=a/b:1{asks}\npython a.py ${{SLURM_CPUS_PER_TASK:-1}}\n"
    ran = shell_runs.run("#!/bin/bash\n" + on_platform(platform, text), programs, tmp_path / "run")
    assert ran.calls == [f"python [a.py] [{threads}] in work"]


def test_a_variable_of_a_container_is_the_jobs() -> None:
    done = convert("#!/bin/bash\nexport APPTAINERENV_HF_HOME=/cache\napptainer exec a.sif python a.py\n", "modal")
    assert '"HF_HOME": "/cache"' in done.text
    [row] = [row for row in done.rows if row.source.endswith("HF_HOME")]
    assert row.how is How.CHANGED


@pytest.mark.parametrize("platform", ["kubernetes", "modal"])
def test_a_container_knows_the_variables_of_a_login(platform: str, programs: Path, tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\n#SBATCH --container-image=a/b:1\npython a.py --out /s/$USER/x --tmp ${TMPDIR}/y\nrsync -a x y\n"
    )
    done = convert(text, platform)
    ran = shell_runs.run("#!/bin/bash\n" + on_platform(platform, text), programs, tmp_path / "run")
    assert re.match(r"python \[a.py\] \[--out\] \[/s/\w+/x\] \[--tmp\] \[/tmp/y\]", ran.calls[0])
    assert "def prepare" not in done.text
    assert "name: prepare" not in done.text
    back = convert(done.text, "slurm").text if platform == "kubernetes" else ""
    assert "export USER" not in back


def test_what_the_cluster_has_and_a_container_may_not_is_told() -> None:
    rows = convert("#!/bin/bash\ncd /home/me/p\nrsync -a data /d\nread -r a < hp.txt\npython a.py $a\n", "modal").rows
    told = {row.source: row.how for row in rows}
    assert (told["rsync"], told["read"]) == (How.CHANGED, How.CHANGED)


@pytest.mark.parametrize("platform", ["kubernetes", "modal"])
def test_a_task_of_several_ranks_has_all_its_cores(platform: str, programs: Path, tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N1 -n1 -c32 --gpus-per-node=4 --container-image=a/b:1\n"
        "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\n"
        "torchrun --nproc_per_node=4 a.py\n"
    )
    ran = shell_runs.run("#!/bin/bash\n" + on_platform(platform, text), programs, tmp_path / "run")
    assert "OMP_NUM_THREADS=32" in ran.calls[0]


@pytest.mark.parametrize("platform", ["kubernetes", "modal", "baseten"])
def test_a_device_of_the_cluster_is_told(platform: str) -> None:
    rows = convert("#!/bin/bash\nexport NCCL_SOCKET_IFNAME=ib0\npython a.py\n", platform).rows
    [row] = [row for row in rows if "IFNAME" in row.source]
    assert row.how is How.CHANGED


def test_a_folder_of_an_image_is_not_looked_for_on_the_node() -> None:
    manifest = convert(
        "#!/bin/bash\n#SBATCH --container-image=a/b:1 --container-workdir=/app\npython a.py\n", "kubernetes"
    ).text
    text = convert(manifest, "slurm").text
    assert "cd /app" not in text
    assert "apptainer exec --pwd /app docker://a/b:1" in text


def test_a_task_of_an_array_fails_alone() -> None:
    text = "#!/bin/bash\n#SBATCH --array=0-4\n#SBATCH --container-image=a/b:1\npython a.py\n"
    manifest = convert(text, "kubernetes").text
    assert "backoffLimitPerIndex: 0\n" in manifest
    assert "backoffLimit:" not in manifest
    assert convert(manifest, "slurm").spec.recovery.attempts == 1
    assert "return_exceptions=True" in convert(text, "modal").text


def test_what_a_login_shell_reads_is_told() -> None:
    done = convert("#!/bin/bash\nsrun bash -lc 'torchrun --nproc_per_node=2 a.py'\n", "slurm")
    [row] = [row for row in done.rows if row.source == "bash -l"]
    assert row.how is How.CHANGED
    assert "torchrun --standalone" in done.text


@pytest.mark.parametrize("shell", ["/bin/bash -l", "/bin/bash --login", "/bin/zsh"])
def test_the_shell_stays_the_same(shell: str) -> None:
    text = f"#!{shell}\npython a.py\n"
    assert convert(text, "slurm").text.startswith(f"#!{shell}\n")
    [row] = [row for row in convert(text, "modal").rows if row.source == "#!"]
    assert row.how is How.DROPPED
