"""From what people write to a spec and back; what is wrong is refused in one line before anything is sent."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkernel import fields, fieldtext, spec, units
from clusterkernel.errors import SpecError
from clusterkernel.fields import FIELDS, build
from clusterkernel.fieldtext import Field
from clusterkernel.spec import JobSpec, Launcher, Volume

# The machine may be busy: how long an example takes is no failure.
few = settings(deadline=None, max_examples=40)


def refusal(values: dict[str, object], **about: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        build(values, **about)
    error = caught.value
    assert len(str(error).splitlines()) == 1
    assert error.hint, "the line has a mend"
    assert error.field
    return error


# -- the table -----------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_field_reads_its_own_example(field: Field) -> None:
    example = field.example or {"switch": "true"}[field.unit]
    value = fields.get(build({field.name: example}), field.name)
    assert value != field.default, "an example that says nothing"
    assert build({field.name: value if field.unit not in {"memory", "time"} else example}) == build(
        {field.name: example}
    )
    assert field.help.endswith(".")


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_field_is_named_in_its_refusal(field: Field) -> None:
    bad = {"pairs": "no pair", "switch": "perhaps", "choice": "slrum", "names": [1], "lines": [1]}.get(field.unit, "\0")
    assert refusal({field.name: bad}).field == field.flag
    assert str(refusal({field.name: bad})).startswith(field.flag)


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
@pytest.mark.parametrize(
    "value", [5.5, True, object(), b"64G", {"a": 1}, [["x"]], float("nan"), float("inf"), -1, 10**400]
)
def test_a_value_of_another_type_is_read_or_refused(field: Field, value: object) -> None:
    try:
        build({field.name: value})
    except SpecError as error:
        line = str(error)
    else:
        line = ""
    assert "\n" not in line


def test_flags_and_names_are_one_to_one() -> None:
    assert len({field.flag for field in FIELDS.values()}) == len(FIELDS)
    assert not set(FIELDS) & set(fields.PSEUDO)


def test_none_leaves_the_base() -> None:
    base = build({"nodes": "2", "time": "4h"})
    assert build(dict.fromkeys(FIELDS), base) == base
    assert build({}) == JobSpec()


# -- refusals --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"nods": 2}, "--nods is not a field of a job. Did you mean nodes?"),
        ({"gpus_pr_node": 2}, "Did you mean gpus_per_node?"),
        ({"memory": "64"}, "--memory = '64' has no unit. Write 64G or 64M."),
        ({"memory": 64}, "--memory = '64' has no unit. Write 64G or 64M."),
        ({"time": 4}, "--time = '4' has no unit. Write 4s, 4m, 4h or 4d."),
        ({"time": "1:30"}, "--time = '1:30' can be read two ways."),
        ({"time": "0h"}, "--time = '0h' is out of range."),
        ({"memory": "0G"}, "--memory = '0G' is out of range."),
        ({"nodes": 0}, "--nodes = 0 is out of range. Write a number at least 1, at most 100000."),
        ({"nodes": "-1"}, "--nodes = '-1' is out of range."),
        ({"nodes": "two"}, "--nodes = 'two' is not a whole number. Write it as 2."),
        ({"nodes": 1.5}, "--nodes = '1.5' is not a whole number."),
        ({"nodes": True}, "--nodes = 'True' is not a whole number."),
        ({"attempts": 0}, "--attempts = 0 is out of range."),
        ({"max_cost": 0}, "--max-cost = 0 is out of range. Write a number above 0."),
        ({"max_cost": "nan"}, "--max-cost = 'nan' is not a number."),
        ({"max_cost": "inf"}, "--max-cost = 'inf' is not a number."),
        ({"gpus_per_node": True}, "--gpus-per-node = 'True' is not a GPU request."),
        ({"gpus_per_node": "8:h100"}, "Write 8, h100:8 or 8xh100."),
        ({"launcher": "torchrnu"}, "--launcher = 'torchrnu' is not known. Did you mean torchrun?"),
        ({"exclusive": "maybe"}, "--exclusive = 'maybe' is neither yes nor no. Write true or false."),
        ({"partition": " "}, "--partition is empty."),
        ({"partition": 5}, "--partition = 5 is not text. Write it in quotes."),
        ({"name": "a\nb"}, "holds a line break"),
        ({"name": "a\x1b[31m"}, "holds a line break or another control character"),
        ({"name": "a\udc80"}, "holds a line break or another control character"),
        ({"name": "a\u2028b"}, "holds a line break"),
        ({"setup": ["module load\nrm"]}, "holds a line break"),
        ({"tags": 5}, "--tags = 5 is not text. Write it in quotes, or as a list."),
        ({"env": "NCCL_DEBUG"}, "--env = 'NCCL_DEBUG' has no value. Write NAME=VALUE."),
        ({"env": "=x"}, "--env: '' is not a variable's name."),
        ({"env": "A-B=x"}, "--env: 'A-B' is not a variable's name."),
        ({"env": {"1A": "x"}}, "--env: '1A' is not a variable's name."),
        ({"env": {"A": ["x"]}}, "--env: A = ['x'] is not text."),
        ({"env": {"A": "x\0"}}, "--env: A holds a NUL"),
        ({"volumes": "data"}, "--volumes = 'data' is not a volume. Write NAME:/MOUNT/POINT."),
        ({"volumes": "data:rel"}, "is not a volume"),
        ({"volumes": {"name": "data"}}, "is not a volume"),
        ({"sbatch": "--comment='a"}, '--sbatch = "--comment=\'a" cannot be split'),
        ({"sbatch": "comment=a"}, "--sbatch: 'comment=a' is not an option."),
        ({"sbatch": 5}, "--sbatch = 5 is not text."),
        ({"memory": "64G", "memory_limit": "32G"}, "--memory-limit = 32G is below the memory asked for, 64G."),
        (
            {"volumes": ["weights:/data", "corpus:/data/"]},
            "--volumes: weights and corpus are both mounted at /data. Give each a mount point of its own.",
        ),
        ({"volumes": "a:/x,b://x/./y/.."}, "--volumes: a and b are both mounted at /x."),
        ({"volumes": "a:/x,b:/y,a:/x"}, "--volumes: a is twice mounted at /x. Name it once."),
        ({"secrets": "HF_TOKEN", "env": "HF_TOKEN=x"}, "HF_TOKEN is given both as a secret and as a variable."),
    ],
)
def test_bad_input_gets_one_line(values: dict[str, object], said: str) -> None:
    assert said in str(refusal(values))


def test_a_planted_secret_is_not_repeated() -> None:
    assert "hf_123" not in str(refusal({"secrets": "HF_TOKEN", "env": "HF_TOKEN=hf_123"}))


def test_an_error_names_where_the_value_came_from() -> None:
    origins = {"nodes": "nodes in profile h100 of /etc/profiles.toml", "nods": "nods in a profile"}
    assert str(refusal({"nodes": 0}, origins=origins)).startswith("nodes in profile h100 of /etc/profiles.toml = 0")
    assert str(refusal({"nods": 0}, origins=origins)).startswith("nods in a profile is not a field")


# -- GPUs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "each"),
    [
        ({"gpus": 16, "nodes": 2}, units.GpuRequest(8)),
        ({"gpus": "h100:16", "nodes": "2"}, units.GpuRequest(8, "h100")),
        ({"gpus": "16xh100", "nodes": 2}, units.GpuRequest(8, "h100")),
        ({"gpus": 1}, units.GpuRequest(1)),
        ({"gpus": 0, "nodes": 3}, None),
        ({"gpus": 4096, "nodes": 512}, units.GpuRequest(8)),
        ({"gpus_per_node": "h100:8", "nodes": 2}, units.GpuRequest(8, "h100")),
        ({"gpus_per_node": 8}, units.GpuRequest(8)),
    ],
)
def test_gpus_are_counted_by_node(values: dict[str, object], each: units.GpuRequest | None) -> None:
    assert build(values).resources.gpus_per_node == each


def test_a_total_divides_by_the_nodes_of_the_base() -> None:
    assert build({"gpus": 8}, build({"nodes": 2})).resources.gpus_per_node == units.GpuRequest(4)


@pytest.mark.parametrize(
    ("gpus", "nodes", "mend"),
    [(9, 2, "Write 8 or 10"), (1, 2, "Write 2, or"), ("h100:7", 4, "Write 4 or 8"), (3, 8, "Write 8, or")],
)
def test_a_total_that_does_not_divide_is_refused(gpus: object, nodes: int, mend: str) -> None:
    error = refusal({"gpus": gpus, "nodes": nodes})
    assert f"--gpus = {gpus} does not divide by {nodes} nodes." in str(error)
    assert mend in error.hint


def test_both_ways_to_say_gpus_are_refused() -> None:
    assert "both given" in str(refusal({"gpus": 8, "gpus_per_node": 8}))


def test_more_gpus_than_a_node_can_have_are_refused() -> None:
    refusal({"gpus": 5000, "nodes": 2})


# -- layers --------------------------------------------------------------------------


def test_variables_are_put_together() -> None:
    base = build({"env": ["A=1", "B=2"]})
    assert build({"env": {"B": 3, "C": "x y"}}, base).environment.env == {"A": "1", "B": "3", "C": "x y"}
    assert build({"env": "MSG=hello = world"}).environment.env == {"MSG": "hello = world"}
    assert build({"env": "EMPTY="}).environment.env == {"EMPTY": ""}


def test_other_lists_are_replaced() -> None:
    assert build({"tags": "c"}, build({"tags": "a,b"})).tags == ("c",)
    assert build({"tags": ["a,b", "c"]}).tags == ("a", "b", "c")


def test_options_for_sbatch_are_kept_apart() -> None:
    built = build({"sbatch": ["--opt=x --mail-type END -p gpu", '--comment "a b"', "--exclusive"]})
    assert built.extra["slurm"] == ("--opt=x", "--mail-type=END", "-pgpu", "--comment=a b", "--exclusive")
    assert build({"sbatch": "--more"}, built).extra["slurm"][-2:] == ("--exclusive", "--more")


def test_two_layers_are_merged() -> None:
    profile = {"nodes": 2, "gpus_per_node": "h100:8", "env": ["A=1", "B=2"], "time": "4h"}
    flags = {"gpus": 4, "env": {"B": "3"}, "time": None}
    merged = fields.merge(profile, flags)
    assert merged == {"nodes": 2, "gpus": 4, "env": {"A": "1", "B": "3"}, "time": "4h"}
    assert build(merged).resources.gpus_per_node == units.GpuRequest(2)
    assert "gpus" not in fields.merge({"gpus": 4}, {"gpus_per_node": 8})
    assert profile["gpus_per_node"] == "h100:8", "the layer below is left as it was"


# -- there and back --------------------------------------------------------------------

WORD = st.text(string.ascii_letters + string.digits + "_-./ü%$'\"; ", min_size=1, max_size=20).filter(
    lambda text: text == text.strip()
)
LINE = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), min_size=1).filter(str.strip)
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,10}", fullmatch=True)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": LINE,
    "count": st.integers(1, 100),
    "number": st.floats(min_value=0, exclude_min=True, max_value=1e12, allow_nan=False),
    "memory": st.integers(1, 1 << 40),
    "time": st.integers(1, 366 * 86400),
    "gpus": st.builds(units.GpuRequest, st.integers(1, 1024), st.sampled_from([None, "h100", "a100-80gb"])),
    "switch": st.booleans(),
    "pairs": st.dictionaries(NAME, st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=3),
    "names": st.lists(WORD, max_size=3).map(tuple),
    "lines": st.lists(LINE, max_size=3).map(tuple),
    "volumes": st.lists(
        st.builds(Volume, name=NAME, mount=NAME.map("/".__add__)), max_size=3, unique_by=lambda volume: volume.place
    ).map(tuple),
    "choice": st.sampled_from(list(Launcher)),
}
OPTIONS = st.lists(st.tuples(NAME, LINE).map(lambda pair: f"--{pair[0]}={pair[1]}"), max_size=3).map(tuple)


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Any spec that passes the rules between fields."""
    made = JobSpec()
    groups: dict[str, dict[str, Any]] = {}
    for name, field in FIELDS.items():
        if draw(st.booleans()):
            groups.setdefault(field.group, {})[name] = draw(VALUES[field.unit])
    resources = groups.get("resources", {})
    if resources.get("memory") and resources.get("memory_limit"):
        resources["memory_limit"] = max(resources["memory"], resources["memory_limit"])
    environment = groups.get("environment", {})
    environment["secrets"] = tuple(n for n in environment.get("secrets", ()) if n not in environment.get("env", {}))
    groups["environment"] = environment
    own = groups.pop("", {})
    parts = {group: type(getattr(made, group))(**inner) for group, inner in groups.items()}
    options = draw(OPTIONS)
    return JobSpec(**own, **parts, extra={"slurm": options} if options else {})


@few
@given(specs())
def test_a_spec_is_the_same_after_a_round_trip(made: JobSpec) -> None:
    assert build(fields.values(made)) == made
    assert spec.from_json(spec.to_json(made)) == made


@few
@given(specs())
def test_what_is_written_for_people_is_one_line_a_field(made: JobSpec) -> None:
    flat = fields.flatten(made)
    assert set(flat) == {name for name, field in FIELDS.items() if fields.get(made, name) != field.default} | (
        {"sbatch"} if made.extra else set()
    )
    assert all(isinstance(text, str) for text in flat.values())
    # What is given once reads back from its text.
    single = {name: text for name, text in flat.items() if name in FIELDS and not FIELDS[name].repeats}
    again = build(single)
    assert all(fields.get(again, name) == fields.get(made, name) for name in single)
    if "sbatch" in flat:
        assert build({"sbatch": flat["sbatch"]}).extra == made.extra


@few
@given(specs(), specs())
def test_a_difference_is_told_for_each_field(one: JobSpec, other: JobSpec) -> None:
    found = {name: (left, right) for name, left, right in fields.diff(one, other)}
    for name in FIELDS:
        assert (name in found) == (fields.get(one, name) != fields.get(other, name))
    assert fields.diff(one, one) == []
    assert {name: (right, left) for name, left, right in fields.diff(other, one)} == found


def test_a_difference_is_written_as_people_write_it() -> None:
    found = fields.diff(build({"time": "4h", "memory": "1.5T"}), build({"time": "1-00:00:00", "gpus": "h100:8"}))
    assert found == [("gpus_per_node", "", "h100:8"), ("memory", "1.5T", ""), ("time", "4h", "1d")]


def test_env_is_written_so_that_a_shell_reads_it() -> None:
    flat = fields.flatten(build({"env": {"B": "x y", "A": "1"}, "volumes": "data:/data", "setup": ["module load a"]}))
    assert flat == {"env": "A=1 B='x y'", "volumes": "data:/data", "setup": "module load a"}


def test_only_what_may_be_given_often_repeats() -> None:
    assert {name for name, field in FIELDS.items() if field.repeats} == {
        *("env", "secrets", "setup", "files", "volumes", "tags"),
    }
    assert fieldtext.parse(FIELDS["files"], "a.csv, b.csv", "--files") == ("a.csv", "b.csv")


def test_a_path_is_as_good_as_its_text() -> None:
    paths = {"workdir": Path("/data/run,1"), "files": [Path("a,b"), "c"], "interpreter": Path("/usr/bin/python3")}
    environment = build(paths).environment
    assert environment.workdir == "/data/run,1"
    assert list(environment.files) == ["a,b", "c"]
    assert build({"files": Path("a,b")}).environment.files == environment.files[:1]
    assert environment.interpreter == "/usr/bin/python3"
