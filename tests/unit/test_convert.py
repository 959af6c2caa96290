"""Conversions: the seed's own files every way, with a report that leaves nothing out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import clusterkernel as ck
from clusterkernel.__main__ import main
from clusterkernel.checks import check
from clusterkernel.errors import ClusterKernelError, FormatError
from clusterkernel.formats.convert import COLUMNS, Conversion, convert, parse, write
from clusterkernel.formats.model import Format, How, Parsed, Program, Runs, Step
from clusterkernel.formats.reporting import said
from clusterkernel.formats.sources import detect
from clusterkernel.spec import Environment, JobSpec, Launcher, Resources

DATA = Path(__file__).parent / "data" / "convert"
VALUES = {"NUM_NODES": 2, "NUM_TRAINERS": 8}
SEED = ["axolotl.slurm", "modal.yaml", "baseten.yaml"]
ROUND = [form for form in Format if form not in (Format.MODAL, Format.BASETEN)]


def of_seed(name: str, to: Format | str) -> Conversion:
    return convert(DATA / name, to, values=VALUES)


# -- the seed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", Format)
@pytest.mark.parametrize("name", SEED)
def test_the_seeds_files_convert_every_way_with_complete_reports(name: str, to: Format) -> None:
    done = of_seed(name, to)
    source = parse(DATA / name, values=VALUES)
    assert done.format is to
    assert done.spec.backend == (to.value.partition("-")[0] if to is not Format.PROFILE else source.spec.backend)
    # each field of the source has its row, in the source's order
    listed = [(row.source, row.value, row.line) for row in done.rows if row.source]
    assert listed == [(field.key, field.value, field.line) for field in source.fields]
    # what the spec and the program came to hold is listed, too
    fields = {row.field for row in done.rows}
    for field, _ in said(source.spec, source.program):
        spelling = field.startswith("program.options.slurm")  # each option once more, as it was written
        assert field in fields or field == "tasks_per_node" or spelling, field
    for row in done.rows:
        assert isinstance(row.how, How)
        assert row.source or row.how is How.ASSUMED
        assert row.reason.endswith((".", "?")) or not row.reason, row
        if row.how in (How.DROPPED, How.CHANGED, How.ASSUMED):
            assert row.reason, row
        if row.how is How.DROPPED:
            assert not row.target
    assert done.text.endswith("\n")


@pytest.mark.parametrize("name", SEED)
def test_every_line_of_a_seed_file_that_says_something_is_in_the_report(name: str) -> None:
    lines = (DATA / name).read_text().splitlines()
    told = {row.line for row in of_seed(name, Format.PROFILE).rows}
    joined = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        inner = text.startswith(("-", "mount:", "type:", "max_attempts:")) and name.endswith("yaml")
        silent = not text or (text.startswith("#") and not text.startswith("#SBATCH")) or inner
        silent = silent or text in ("volumes:", "secrets:")
        if not silent and not joined:
            assert number in told, line
        joined = text.endswith("\\")


def test_the_seeds_script_takes_two_nodes_anywhere() -> None:
    for to in (Format.SLURM, Format.KUBERNETES, Format.MODAL, Format.BASETEN):
        spec = of_seed("axolotl.slurm", to).spec
        assert (spec.resources.nodes, spec.gpus, spec.launcher) == (2, 16, Launcher.TORCHRUN)
    rows = {row.source: row for row in of_seed("axolotl.slurm", Format.MODAL_YAML).rows}
    assert rows["--nodes"].how is How.DROPPED  # axolotl itself runs on one node there


def test_the_seeds_modal_file_on_slurm() -> None:
    done = of_seed("modal.yaml", "slurm")
    assert "#SBATCH --gpus-per-node=h100:1" in done.text
    assert "#SBATCH --mem=128G" in done.text
    assert "#SBATCH --time=1-00:00:00" in done.text
    assert ': "${HF_TOKEN:?' in done.text
    rows = {row.source: row for row in done.rows}
    assert rows["restart_policy"].how is How.DROPPED
    assert "axolotl does not know restart_policy" in rows["restart_policy"].reason
    assert rows["volumes[0]"].how is How.DROPPED
    assert rows["axolotl train"].how is How.ASSUMED


def test_the_seeds_baseten_file_says_what_axolotl_ignores() -> None:
    rows = {row.source: row for row in of_seed("baseten.yaml", "kubernetes").rows}
    assert rows["memory"].how is How.DROPPED
    assert rows["memory"].reason == "axolotl does not pass it on to Baseten."
    assert rows["memory_preprocess"].how is How.DROPPED


# -- the report ---------------------------------------------------------------------------------


def test_the_report_is_a_data_frame_of_text() -> None:
    done = of_seed("modal.yaml", "slurm")
    report = done.report
    assert tuple(report.columns) == COLUMNS == ("source", "value", "target", "target_value", "how", "reason")
    assert len(report) == len(done.rows)
    assert set(report["how"]) <= {"exact", "changed", "dropped", "assumed"}
    assert report.map(lambda value: isinstance(value, str)).all(axis=None)
    assert "from modal-yaml to slurm" in repr(done)


def test_pandas_is_imported_for_the_report_only() -> None:
    code = (
        "import sys, clusterkernel as ck\n"
        "done = ck.convert('#!/bin/bash\\n#SBATCH -N2\\nsrun a\\n', 'slurm')\n"
        "assert not {'pandas', 'modal', 'truss', 'IPython', 'submitit'} & sys.modules.keys()\n"
        "done.report\n"
        "assert 'pandas' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_same_option_with_the_same_value_is_exact_whatever_was_in_between() -> None:
    done = convert("#!/bin/bash\n#SBATCH -N2\n#SBATCH --mem-per-cpu=2G -c 4\nsrun a\n", "slurm")
    rows = {row.source: row for row in done.rows}
    assert rows["--mem-per-cpu"].how is How.EXACT
    there = convert("#!/bin/bash\n#SBATCH --mem-per-cpu=2G -c 4\nsrun a\n", "profile")
    assert {row.source: row.how for row in there.rows}["--mem-per-cpu"] is How.CHANGED


def test_a_default_of_both_is_not_dropped() -> None:
    done = convert("#!/bin/bash\n#SBATCH --nodes=1\npython a.py\n", "modal")
    assert {row.source: row.how for row in done.rows}["--nodes"] is How.EXACT


def test_what_a_source_does_not_carry_stays_exact_without_a_target() -> None:
    done = convert("#!/bin/bash\n#SBATCH -N2\n#SBATCH -N3\nsrun a\n", "kubernetes")
    first = next(row for row in done.rows if row.value == "2")
    assert (first.how, first.target) == (How.EXACT, "")


@pytest.mark.parametrize("to", Format)
def test_no_writer_writes_a_secret_in_the_clear(to: Format) -> None:
    key = "hf_" + "a" * 30
    environment = Environment(env={"HF_TOKEN": "not-to-be-seen", "MODEL_ID": key, "A": "plain-to-see"})
    spec = JobSpec(environment=environment, launcher=Launcher.TORCHRUN)
    steps = (Step(name="train", shell="axolotl train c.yaml", runs=Runs.NODES, launched=True),)
    parsed = Parsed(format=to, spec=spec, program=Program(steps=steps, config="c.yaml"), fields=())
    done = write(parsed, to)
    assert "not-to-be-seen" not in done.text
    assert key not in done.text
    assert "HF_TOKEN" in done.text
    assert "MODEL_ID" in done.text
    assert "plain-to-see" in done.text or to is Format.BASETEN_YAML  # which has no place for variables


# -- sources ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("#!/bin/bash\n#SBATCH -N2\n", Format.SLURM),
        ("gpu: h100\nmemory: 64\n", Format.MODAL_YAML),
        ("provider: baseten\ngpu: h100\n", Format.BASETEN_YAML),
        ("[profiles.a]\nnodes = 2\n", Format.PROFILE),
    ],
)
def test_the_format_is_seen(text: str, form: Format) -> None:
    assert parse(text).format is form


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "job.slurm"
    path.write_text("#!/bin/bash\n#SBATCH --nodes=x\n")
    with pytest.raises(FormatError, match=r"job\.slurm, line 2: --nodes = 'x'"):
        convert(str(path), "profile")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"#!/bin/bash\n\xff\xfe\n", r"line 2: byte 12 is no text in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0", r"line 1: byte 0 is no text"),
        (b"x" * (10 << 20), r"more than 1 MiB"),
        (b"hello world\n", r"cannot be told"),
        (b"", r"is empty"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "job"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=why) as caught:
        convert(path, "slurm")
    assert "job" in str(caught.value)


def test_sources_that_are_no_files(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "none", "no such file", "a\0b"):
        with pytest.raises(FormatError):
            convert(source, "slurm")
    with pytest.raises(FormatError, match="is of type int"):
        convert(3, "slurm")  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="at most"):
        convert("#!/bin/bash\n" + "#" * (10 << 20), "slurm")


def test_names_of_formats() -> None:
    text = "#!/bin/bash\nsrun a\n"
    assert convert(text, "k8s").format is Format.KUBERNETES
    assert convert(text, "sbatch").format is Format.SLURM
    assert convert(text, "truss").format is Format.BASETEN
    with pytest.raises(FormatError, match=r"no format 'slrum'\. Did you mean slurm\?"):
        convert(text, "slrum")
    with pytest.raises(FormatError, match="can be written and not read"):
        convert(text, "slurm", source_format="modal")
    with pytest.raises(FormatError, match=r"app\.py is a Python program"):
        detect("import modal\n", "app.py")


def test_a_program_that_is_not_axolotls_has_no_cloud_file() -> None:
    with pytest.raises(FormatError, match=r"modal\.yaml can only run axolotl, and the program is 'python a\.py'"):
        convert("#!/bin/bash\npython a.py\n", "modal-yaml")


def test_it_is_written(tmp_path: Path) -> None:
    done = of_seed("modal.yaml", "slurm")
    assert done.write(tmp_path / "job.slurm").read_text() == done.text
    assert done.write(tmp_path / "job.slurm"), "the same again, as in a notebook that runs anew"
    with pytest.raises(FormatError, match="is there already"):
        of_seed("modal.yaml", "kubernetes").write(tmp_path / "job.slurm")
    assert done.write(tmp_path / "job.slurm").read_text() == done.text
    other = of_seed("modal.yaml", "kubernetes")
    assert other.write(tmp_path / "job.slurm", overwrite=True).read_text() == other.text
    with pytest.raises(FormatError, match="cannot be written"):
        done.write(tmp_path)


def test_it_is_offered_by_the_package() -> None:
    assert ck.convert is convert
    assert ck.check is check
    assert {"convert", "check"} <= set(dir(ck))


# -- advice -------------------------------------------------------------------------------------


def test_advice_is_a_data_frame() -> None:
    found = check(DATA / "axolotl.slurm", values=VALUES)
    assert list(found.columns) == ["level", "rule", "field", "message", "fix"]
    assert isinstance(found, pd.DataFrame)
    assert "directive-variable" in set(found["rule"])
    assert "time-limit" in " ".join(found["rule"]) or len(found) > 1
    spec = JobSpec(backend="modal", resources=Resources(nodes=1))
    assert list(check(spec).columns) == list(found.columns)


@pytest.mark.parametrize(
    ("lines", "rule", "says"),
    [
        (["python a.py", "#SBATCH --gpus=2"], "directive-late", "Line 4: sbatch takes no notice of #SBATCH --gpus=2"),
        (["#SBATCH -N2", "torchrun --nnodes=2 a.py"], "launch-one-node", "Line 4: torchrun starts on the first of 2"),
    ],
)
def test_traps_of_slurm_are_told(lines: list[str], rule: str, says: str) -> None:
    found = check("\n".join(["#!/bin/bash", "#SBATCH --time=60", *lines, ""]))
    [message] = found[found["rule"] == rule]["message"]
    assert message.startswith(says)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("nvidia.com/gpu: 4", "nvidia.com/gpus: 4"),
        ("activeDeadlineSeconds: 60", "activeDeadlineSecond: 60"),
        ("backoffLimit: 0", "backofLimit: 0"),
        ("resources:", "resorces:"),
    ],
)
def test_a_key_of_a_manifest_that_is_nearly_one_is_told(right: str, wrong: str) -> None:
    text = (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  backoffLimit: 0\n  activeDeadlineSeconds: 60\n"
        "  template:\n    spec:\n      restartPolicy: Never\n      hostNetwork: true\n      containers:\n"
        "        - name: main\n          image: a/b:1\n          command: [python, a.py]\n"
        "          resources:\n            limits:\n              nvidia.com/gpu: 4\n"
    )
    assert "key-ignored" not in set(check(text)["rule"])
    assert right in text
    found = check(text.replace(right, wrong))
    [message] = found[found["rule"] == "key-ignored"]["message"]
    assert f"Did you mean {right.partition(':')[0]}, for {wrong.partition(':')[0]}?" in message


def test_advice_reads_the_configuration_beside_the_script(tmp_path: Path) -> None:
    script = tmp_path / "job.slurm"
    script.write_text("#!/bin/bash\n#SBATCH -N2 --gpus-per-node=8\nsrun axolotl train c.yaml\n")
    before = len(check(script))
    (tmp_path / "c.yaml").write_text("base_model: a\ndatasets: [{path: b}]\noutput_dir: /tmp/out\n")
    assert len(check(script)) > before


# -- the command line ---------------------------------------------------------------------------


def test_the_command_line_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "app.py"
    words = ["convert", str(DATA / "axolotl.slurm"), "--to", "modal", "-o", str(target)]
    assert main([*words, "--set", "NUM_NODES=2", "--set", "NUM_TRAINERS=8"]) == 0
    assert "clustered" in target.read_text()
    out, report = capsys.readouterr()
    assert out == ""
    lines = report.splitlines()
    assert "changed  --nodes 2 " in report
    assert lines[-1].startswith(f"{len(lines) - 1} fields: "), "what a person should look at comes first"
    assert main([*words, "--set", "NUM_NODES=4", "--set", "NUM_TRAINERS=8"]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main([*words, "--set", "NUM_NODES=4", "--set", "NUM_TRAINERS=8", "--force"]) == 0
    capsys.readouterr()
    assert main(["convert", str(DATA / "modal.yaml"), "--to", "slurm", "--quiet"]) == 3  # something was dropped
    out, report = capsys.readouterr()
    assert out.startswith("#!/bin/bash\n")
    assert report == ""


def test_the_command_line_says_what_is_wrong_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(DATA / "axolotl.slurm"), "--to", "modal"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "$NUM_NODES (line 9)" in error
    assert main(["convert", str(DATA / "modal.yaml"), "--to", "modal", "--set", "x"]) == 1
    with pytest.raises(SystemExit) as caught:
        main(["convert"])
    assert caught.value.code == 2


def test_the_command_line_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", str(DATA / "axolotl.slurm"), "--set", "NUM_NODES=2", "--set", "NUM_TRAINERS=8"]
    assert main(words) == 3
    assert "error    directive-variable: Line 9: --nodes holds a variable" in capsys.readouterr().out
    clean = tmp_path / "job.slurm"
    clean.write_text("#!/bin/bash\n#SBATCH --time=60 --cpus-per-task=4 --mem=8G\npython a.py\n")
    assert main(["check", str(clean), "--backend", "local"]) == 0
    assert capsys.readouterr() == ("", "Nothing found.\n")
    assert main(["check", str(clean), "--backend", "mdal"]) == 1
    assert capsys.readouterr().err == "There is no platform 'mdal'. Did you mean modal?\n"
    assert main(["check", str(clean), "--backend", "modal", "--sbatch", "--partition=gpu"]) == 3
    assert "field-ignored" in capsys.readouterr().out


def test_the_command_line_says_why_it_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "job.slurm"
    script.write_text("#!/bin/bash\nsrun a\n")
    for words, why in (
        (["convert", str(tmp_path / "none.slurm"), "--to", "modal"], "cannot be read"),
        (["check", str(tmp_path)], "is no file"),
        (["convert", str(script), "--to", "slrum"], "Did you mean slurm?"),
        (["convert", str(script), "--to", "slurm", "-o", str(tmp_path)], "cannot be written"),
        (["convert", str(script), "--to", "slurm", "--from", "modal"], "written and not read"),
        (["convert", str(script), "--to", "slurm", "--sbatch", "'"], "cannot be split"),
    ):
        assert main(words) == 1, words
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1), words
        assert why in error


def test_the_module_runs_and_reads_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterkernel", "convert", "-", "--to", "profile"],
        input="#!/bin/bash\n#SBATCH -N2\nsrun a\n",
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 3  # a profile does not say what runs
    assert 'nodes = "2"' in done.stdout
    assert "exact    -N 2                                     -> nodes 2\n" in done.stderr


def test_nothing_but_our_own_errors() -> None:
    for source, to in (("x\n", "slurm"), ("#!/bin/bash\n", "nothing"), ("gpu: [\n", "slurm")):
        with pytest.raises(ClusterKernelError):
            convert(source, to)


@pytest.mark.parametrize(
    ("to", "mend"),
    [
        ("modal", "modal secret create HF_TOKEN HF_TOKEN=... gives Modal its value."),
        (
            "kubernetes",
            "kubectl create secret generic hf-token --from-literal=HF_TOKEN=... gives the cluster its value.",
        ),
        ("slurm", "%cluster_secret set HF_TOKEN keeps its value."),
    ],
)
def test_a_secret_is_kept_where_the_target_looks_for_it(to: str, mend: str) -> None:
    done = convert("#!/bin/bash\n#SBATCH --nodes=1\nexport HF_TOKEN=hf_%s\npython train.py\n" % ("a" * 24), to)
    (row,) = [row for row in done.rows if row.field == "secrets.HF_TOKEN"]
    assert row.reason.endswith(mend)
    assert row.reason.count("HF_TOKEN") == mend.count("HF_TOKEN")


def test_an_app_tells_the_time_that_it_asks_for() -> None:
    done = convert("#!/bin/bash\n#SBATCH --time=2-00:00:00 --gres=gpu:h100:8\npython train.py\n", "modal")
    assert "timeout=86400" in done.text
    assert "at most 1d" in done.text
    assert "2d" not in done.text


# -- what runs stays what it was ----------------------------------------------------------------


def with_trap(trap: str) -> str:
    return convert(f"#!/bin/bash\n#SBATCH --signal=B:USR1@60\n{trap}srun ./train.sh\n", "slurm").text


@pytest.mark.parametrize("trap", ["", "trap 'touch trapped' USR1\n", "trap 'touch trapped' SIGUSR1\n"])
def test_a_script_with_a_signal_ends_as_its_training_does(tmp_path: Path, trap: str) -> None:
    text = with_trap(trap)
    train = tmp_path / "train.sh"
    # with a trap: the signal comes while the training runs, which ends long after the trap
    signalled = "kill -USR1 $PPID\nuntil [ -e trapped ]; do sleep 0.01; done\n" if trap else ""
    train.write_text(f"#!/bin/bash\n{signalled}exit 7\n")
    train.chmod(0o755)
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 7
    assert ("./train.sh &\n" in text) is bool(trap)
    assert convert(text, "slurm").text == text


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        (["nvidia-smi -l 10 > gpu.log &", "python a.py"], "nvidia-smi -l 10 > gpu.log &\npython a.py"),
        (
            ["M=small", '[[ -n "$BIG" ]] && M=big', "python a.py --model $M"],
            'M=small\n[[ -n "$BIG" ]] && M=big\npython a.py --model $M',
        ),
        (
            ["M=slow", 'if [ "$FAST" = 1 ]; then M=fast; fi', "python a.py --mode $M"],
            'M=slow\nif [ "$FAST" = 1 ]; then M=fast; fi\npython a.py --mode $M',
        ),
        (["source activate env && python a.py"], "source activate env || exit\npython a.py"),
        (["X=1", "let X+=1", "python a.py $X"], "X=1\nlet X+=1\npython a.py $X"),
    ],
)
def test_what_only_a_shell_knows_is_left_to_it(lines: list[str], kept: str) -> None:
    text = "\n".join(["#!/bin/bash", "#SBATCH -N1 --gpus-per-node=1 -t 60", *lines, ""])
    assert convert(text, "slurm").text.rstrip().endswith(kept)
