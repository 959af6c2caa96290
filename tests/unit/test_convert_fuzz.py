"""Bad input: every reader gives one line of its own, in bounded time, and never an accident."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkernel.errors import ClusterKernelError
from clusterkernel.formats import convert as converting
from clusterkernel.formats import sources
from clusterkernel.formats.model import Format

DATA = Path(__file__).parent / "data" / "convert"
HEAD = "#!/bin/bash\n"
KEY = "hf_" + "abcdefghijklmnopqrstuvwx"
SHELL = f"""#!/bin/bash
#SBATCH -N2 --gres=gpu:h100:8 -t 4:00:00 -a 0-3%2
module load x && cd "$HOME/a" || exit 1
export A=1 B='two words' HF_TOKEN={KEY}
ARGS=( --x "$A" ) ; LAUNCHER="torchrun --nproc_per_node ${{G:-8}} --rdzv_endpoint $MASTER:29500"
cat > f.json <<END
{{"a": $A}}
END
if [ -d x ]; then echo "$(date)"; fi
srun --mpi=pmix apptainer exec --nv -B /a:/b img.sif bash -c "$LAUNCHER train.py ${{ARGS[@]}}" 2>&1 | tee log
wait
"""
PROFILE = """[profiles.default]
time = "4h"
[profiles.h100]
nodes = 2
gpus_per_node = "h100:8"
env = {A = "1"}
setup = ["module load x"]
sbatch = ["--mail-type=END"]
volumes = ["a:/b"]
"""
MANIFEST = """apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: x/y:z
          command: [bash, -c, "torchrun --nproc_per_node=8 train.py"]
          env: [{name: A, value: "1"}]
          resources: {limits: {nvidia.com/gpu: "8", memory: 64Gi}}
"""
SEEDS = [
    (Format.SLURM, SHELL),
    (Format.SLURM, (DATA / "axolotl.slurm").read_text().replace("$NUM_NODES", "2")),
    (Format.MODAL_YAML, (DATA / "modal.yaml").read_text()),
    (Format.BASETEN_YAML, (DATA / "baseten.yaml").read_text()),
    (Format.PROFILE, PROFILE),
    (Format.KUBERNETES, MANIFEST),
]
PIECES = (
    "#SBATCH ~#PBS -l ~--nodes~=~2~ ~\n~'~\"~\\~$~${~}~(~)~srun ~torchrun ~axolotl train ~bash -c ~<<END\n~END\n~if ~"
    "then\n~fi\n~do\n~done\n~for x in ~case x in ~esac~&&~&~;~;;~export ~A=~`~#~--mem=~--gres=gpu:~--array=~0-3~-N~"
    "\t~\r~\0~é~\u2028~\u00a0~\x1c~$((~))~[[ ~]] ~{~--~-m ~accelerate launch ~deepspeed ~apptainer exec ~x.sif ~"
    "python t.py ~cd ~gpu: ~h100~- ~name: ~mount: ~/a~secrets:\n~[~]~[profiles.x]\n~nodes = ~&a ~*a~? ~: ~!!python/x ~"
    "env:\n~%~@~{}~1e999~9999999999999999999~null~true~|~||~| tee x"
).split("~")


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Format, str]:
    """A file of some format with parts cut out, put in and moved; or nothing but parts."""
    form, text = draw(st.sampled_from(SEEDS))
    if draw(st.integers(0, 5)) == 0:
        head = HEAD if form is Format.SLURM else ""
        return form, head + "".join(draw(st.lists(st.sampled_from(PIECES), max_size=50)))
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(0, len(text)))
        last = min(len(text), first + draw(st.integers(0, 30)))
        moved = text[last : last + 30]
        piece = draw(st.one_of(st.just(""), st.sampled_from(PIECES), st.text(max_size=5), st.just(moved)))
        text = text[:first] + piece + text[last:]
    return form, text


def tried(form: Format | None, text: str) -> None:
    """Read it and write it; only our own errors, each on one line."""
    began = time.process_time()
    said = ""
    try:
        converting.write(sources.read(text, "f", source_format=form), Format.SLURM)
    except ClusterKernelError as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) < 1000
    assert KEY not in said
    assert time.process_time() - began < 5, text[:200]


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(damaged())
def test_damaged_files_are_read_or_refused(case: tuple[Format, str]) -> None:
    tried(*case)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([None, *sources._READERS]), st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_any_text_is_read_or_refused(form: Format | None, data: str | bytes) -> None:
    text = data if isinstance(data, str) else data.decode("latin-1")
    tried(form, text)
    tried(form, HEAD + text)


@pytest.mark.full
@pytest.mark.timeout(3000)
@settings(max_examples=20_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged())
def test_full_damaged_files_are_read_or_refused(case: tuple[Format, str]) -> None:
    tried(*case)


@pytest.mark.parametrize(
    "text",
    [
        "#!/bin/bash\n#SBATCH --export=HF_TOKEN=not-to-be-seen'\nsrun a\n",
        "#!/bin/bash\n#SBATCH WANDB_API_KEY=not-to-be-seen\nsrun a\n",
        f"#!/bin/bash\n#SBATCH --mem={KEY}\nsrun a\n",
        f"#!/bin/bash\n#SBATCH --nodes=2 {KEY}\nsrun a\n",
        "#!/bin/bash\nexport HF_TOKEN=not-to-be-seen\nfor i in 1; do srun --export=HF_TOKEN=not-to-be-seen a; done\n",
        f"provider: modal\ngpu: {KEY}/x\n",
        f"provider: {KEY}\n",
        f"gpu: h100\nvolumes: [{KEY}]\n",
        "gpu: h100\nsecrets:\n  - HF_TOKEN: [not-to-be-seen]\n",
        "gpu: h100\nenv:\n  - {HF_TOKEN: {a: not-to-be-seen}}\n",
        f'[profiles.a]\nnodes = "{KEY}"\n',
        "[profiles.a]\nenv = {HF_TOKEN = ['not-to-be-seen']}\n",
        f"apiVersion: batch/v1\nkind: Job\nspec: {{backoffLimit: {KEY}}}\n",
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n"
        "        - {name: a, image: b, command: [c], env: [{name: HF_TOKEN, value: [not-to-be-seen]}]}\n",
    ],
)
def test_an_error_shows_no_secret(text: str) -> None:
    with pytest.raises(ClusterKernelError) as caught:
        converting.write(sources.read(text, "f"), Format.SLURM)
    for said in (str(caught.value), repr(caught.value)):
        assert "not-to-be-seen" not in said
        assert KEY not in said
        assert "\n" not in said


LARGE = {
    "doubled": HEAD + "A0=xxxxxxxxxx\n" + "".join(f"A{i + 1}=$A{i}$A{i}\n" for i in range(60)) + "python $A60\n",
    "doubled, not known": HEAD + "A0=$X\n" + "".join(f'A{i + 1}="$A{i} $A{i}"\n' for i in range(60)) + "python $A60\n",
    "doubled arrays": HEAD
    + "A0=(a b)\n"
    + "".join(f'A{i + 1}=("${{A{i}[@]}}" "${{A{i}[@]}}")\n' for i in range(60))
    + 'python "${A60[@]}"\n',
    "a chain": HEAD + "A0=$X\n" + "".join(f"A{i + 1}=$A{i}/a\n" for i in range(5000)) + "mkdir $A5000\n",
    "brackets": HEAD + "(" * 300_000,
    "substitutions": HEAD + "echo " + "$(" * 300_000,
    "quotes": HEAD + "echo " + '"$(' * 300_000,
    "braces": HEAD + "echo " + "${a:-" * 200_000,
    "conditions": HEAD + "if " * 200_000,
    "exports": HEAD + "export A=1\n" * 20_000,
    "launches": HEAD + "python train.py\n" * 20_000,
    "directives": HEAD + "#SBATCH --nodes=2\n" * 20_000,
    "one word": HEAD + "#SBATCH -J " + "a" * 900_000,
    "an open quote": HEAD + "echo '" + "a" * 900_000,
    "spaces": HEAD + "accelerate" + " " * 900_000 + "launch x",
    "here-documents": HEAD + "cat <<A\nA\n" * 20_000,
    "pipes": HEAD + "a | " * 50_000 + "b",
    "shells": HEAD + "bash -c " * 50_000 + "x",
    "calculation": HEAD + "A=$((" + "9*" * 100_000 + "9))\npython $A\n",
}


@pytest.mark.parametrize("name", LARGE)
def test_large_and_deep_scripts_take_bounded_time(name: str) -> None:
    tried(Format.SLURM, LARGE[name])


@pytest.mark.parametrize(
    "text",
    [
        "[profiles.a]\nsetup = " + "[" * 300_000,
        "[profiles.a]\n" + "a." * 100_000 + "b = 1\n",
        "[profiles.a]\nenv = " + "{a = " * 100_000,
        "".join(f"[profiles.p{i}]\nnodes = 2\n" for i in range(20_000)),
        "[profiles.a]\nnodes = " + "9" * 500_000 + "\n",
        "[profiles.a]\nname = '" + "a" * 900_000 + "'\n",
    ],
    ids=["arrays", "dots", "tables", "many", "digits", "long"],
)
def test_large_and_deep_profiles_take_bounded_time(text: str) -> None:
    tried(Format.PROFILE, text)


@pytest.mark.parametrize("form", sources._READERS)
def test_files_that_are_no_text_are_refused(form: Format, tmp_path: Path) -> None:
    path = tmp_path / "job"
    for data in (b"\x7fELF\x02\x01" + bytes(range(256)) * 100, b"\0" * 1000, b"a" * (10 << 20), b"\xff\xfe" * 100):
        path.write_bytes(data)
        with pytest.raises(ClusterKernelError) as caught:
            converting.convert(path, Format.SLURM, source_format=form)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "gpu: " + "[" * 300_000,
        "gpu: h100\nvolumes: " + "{a: " * 100_000,
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
        "secrets:\n" + "- A\n" * 100_000,
        "gpu: &a {b: *a}\n",
        "gpu: !!python/object/apply:os.system ['touch made']\n",
    ],
    ids=["deep", "flow", "aliases", "long", "itself", "code"],
)
def test_large_and_deep_yaml_takes_bounded_time_and_runs_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tried(Format.MODAL_YAML, text)
    tried(Format.KUBERNETES, "apiVersion: batch/v1\nkind: Job\nspec:\n  " + text.replace("\n", "\n  "))
    assert list(tmp_path.iterdir()) == []
