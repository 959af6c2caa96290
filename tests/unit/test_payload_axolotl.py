"""An axolotl configuration becomes two steps and a file; what is wrong with it is one line."""

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from clusterkernel.errors import PayloadError, SpecError
from clusterkernel.payload import yamltext
from clusterkernel.payload.axolotl import build, reload, with_launcher
from clusterkernel.spec import JobSpec, Launcher, Resources
from tests.unit import axolotl_judge

CONFIG = """\
# a comment that stays
base_model: org/tiny
adapter: lora
datasets:
  - path: org/data  # hub
    type: alpaca
dataset_prepared_path: prepared
learning_rate: 1e-4
sequence_len: 256
bf16: auto
lora: {r: 8, targets: [q, v]}
"""


def config_of(artefact: Any, folder: Path) -> Any:
    artefact.write(folder)
    return yaml.safe_load((folder / "config.yml").read_text(encoding="utf-8"))


def changed(key: str, value: Any, text: str = CONFIG) -> Any:
    return yaml.safe_load(build(text, overrides={key: value}).files["config.yml"])


def test_the_text_travels_as_it_is_with_its_steps(tmp_path: Path) -> None:
    artefact = build(CONFIG, launcher="torchrun")
    artefact.write(tmp_path)
    assert (tmp_path / "config.yml").read_text() == CONFIG
    payload = json.loads((tmp_path / "payload.json").read_text())
    config = "{payload}/config.yml"
    assert payload == {
        "kind": "command",
        "title": "axolotl lora: org/tiny",
        "steps": [
            {"name": "preprocess", "argv": ["axolotl", "preprocess", config], "once": True},
            {"name": "train", "argv": ["axolotl", "train", config, "--launcher", "torchrun", "--", "{torchrun}"]},
        ],
        "output_dir": "./model-out",
    }
    assert artefact.source == CONFIG
    assert artefact.notes == ()


@pytest.mark.parametrize("launcher", ["none", Launcher.NONE, "torchrun"])
def test_torchrun_trains_by_itself(launcher: Any) -> None:
    assert build(CONFIG, launcher=launcher).body["steps"][-1]["argv"][3:] == [
        "--launcher",
        "torchrun",
        "--",
        "{torchrun}",
    ]


def test_accelerate_trains_where_it_is_asked_for() -> None:
    assert build(CONFIG, launcher="accelerate").body["steps"][-1]["argv"][3:] == ["--launcher", "accelerate"]


def test_the_spec_gets_the_launcher_that_the_steps_use() -> None:
    spec = JobSpec(resources=Resources(nodes=2))
    assert with_launcher(spec) == JobSpec(resources=Resources(nodes=2), launcher=Launcher.TORCHRUN)
    one = JobSpec(launcher=Launcher.ACCELERATE)
    assert with_launcher(one) is one
    with pytest.raises(SpecError, match=r"runs on one node, and 2 are asked for\. Use --launcher torchrun"):
        with_launcher(JobSpec(resources=Resources(nodes=2), launcher=Launcher.ACCELERATE))
    for refuse in (
        lambda: with_launcher(JobSpec(launcher=Launcher.DEEPSPEED)),
        lambda: build(CONFIG, launcher="deepspeed"),
    ):
        with pytest.raises(SpecError, match="not started by --launcher deepspeed"):
            refuse()


@pytest.mark.parametrize(
    "more",
    [
        "skip_prepare_dataset: true",
        "streaming: true",
        "pretraining_dataset: [{path: org/x}]",
        "pretraining_dataset: [{path: org/x}]\ndatasets: null",
    ],
)
def test_nothing_is_prepared_where_nothing_would_be_used(more: str) -> None:
    artefact = build(f"{CONFIG}{more}\n")
    assert [step["name"] for step in artefact.body["steps"]] == ["train"]


def test_what_is_prepared_is_used(tmp_path: Path) -> None:
    text = CONFIG.replace("dataset_prepared_path: prepared\n", "")
    artefact = build(text)
    assert artefact.files["config.yml"] == f"{text}dataset_prepared_path: last_run_prepared\n"
    assert artefact.notes == ("dataset_prepared_path was not set; last_run_prepared in the working folder is used.",)
    assert "dataset_prepared_path" not in yaml.safe_load(build(f"{text}skip_prepare_dataset: true").files["config.yml"])
    braces = "{base_model: a/b, datasets: [{path: c/d}]}"
    assert config_of(build(braces), tmp_path) == {
        "base_model": "a/b",
        "datasets": [{"path": "c/d"}],
        "dataset_prepared_path": "last_run_prepared",
    }


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + CONFIG.encode())
    assert build(path).files["config.yml"] == CONFIG


# -- overrides --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("learning_rate", 2e-5, 2e-5),
        ("learning_rate", "1e-4", "1e-4"),
        ("sequence_len", 512, 512),
        ("sequence_len", "512", "512"),
        ("bf16", True, True),
        ("bf16", "yes", "yes"),
        ("bf16", None, None),
        ("new_key", "é: #", "é: #"),
        ("note", "2024-01-01", "2024-01-01"),
        ("note", "", ""),
        ("note", "a\nb", "a\nb"),
        ("weights", (1, 2.5, "x"), [1, 2.5, "x"]),
        ("output_dir", PurePosixPath("out/x"), "out/x"),
        ("limit", float("inf"), float("inf")),
        ("trl", {"beta": 0.1, "deep": {"x": [1]}}, {"beta": 0.1, "deep": {"x": [1]}}),
        ("launcher", Launcher.TORCHRUN, "torchrun"),
    ],
)
def test_an_override_keeps_its_type(key: str, value: Any, expected: Any) -> None:
    document = changed(key, value)
    assert document[key] == expected
    assert type(document[key]) is type(expected)
    rest = yaml.safe_load(CONFIG)
    rest.pop(key, None)
    document.pop(key)
    assert document == rest
    assert list(document) == list(rest)


def test_a_number_of_numpy_is_a_number() -> None:
    import numpy

    assert changed("learning_rate", numpy.float64(0.5))["learning_rate"] == 0.5
    assert changed("learning_rate", numpy.float32(0.5))["learning_rate"] == 0.5
    assert changed("seed", numpy.int64(3))["seed"] == 3
    assert changed("on", numpy.bool_(True))["on"] is True


def test_dotted_keys_reach_inside() -> None:
    assert changed("lora.r", 16)["lora"] == {"r": 16, "targets": ["q", "v"]}
    assert changed("lora.targets.1", "k")["lora"]["targets"] == ["q", "k"]
    assert changed("datasets.0.path", "org/other")["datasets"] == [{"path": "org/other", "type": "alpaca"}]
    assert changed("trl.vllm.mode", "colocate")["trl"] == {"vllm": {"mode": "colocate"}}
    assert changed("trl.x", 1, CONFIG + "trl:\n")["trl"] == {"x": 1}
    assert changed("a.b", 1, CONFIG + "a.b: 0\n")["a.b"] == 1


def test_an_override_changes_one_of_what_an_alias_shares() -> None:
    text = CONFIG + "one: &x {k: 1}\ntwo: *x\n"
    document = changed("one.k", 2, text)
    assert (document["one"], document["two"]) == ({"k": 2}, {"k": 1})


def test_an_added_key_leaves_the_text_as_it_is() -> None:
    assert build(CONFIG, overrides={"seed": 3}).files["config.yml"] == f"{CONFIG}seed: 3\n"
    assert build(CONFIG, overrides={"sequence_len": 256}).files["config.yml"] == CONFIG


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("lora.r.x", 1, "lora.r.x cannot be set: lora.r is 8, which has nothing below it."),
        ("datasets.1.path", "x", "datasets is a list, and 1 is no item of it. Items: 0."),
        ("lora.targets.-1", "x", "is no item of it. Items: 0 to 1."),
        ("lora.targets.x", "x", "is no item of it."),
        ("", 1, "is no key"),
        ("a..b", 1, "is no key"),
        (".a", 1, "is no key"),
        ("seed", object, "a configuration holds no type"),
        ("seed", {1, 2}, "a configuration holds no set"),
        ("a", {"b": [b"x"]}, "a.b.0 cannot be set"),
        ("base_model", None, "has no base_model"),
        ("datasets", [], "has no datasets"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(key: str, value: Any, said: str) -> None:
    with pytest.raises(PayloadError) as caught:
        build(CONFIG, overrides={key: value})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_is_sent_again_with_other_values(tmp_path: Path) -> None:
    build(CONFIG, launcher="accelerate").write(tmp_path)
    again = reload(tmp_path, None, {"learning_rate": 0.5})  # type: ignore[arg-type]
    assert yaml.safe_load(again.files["config.yml"])["learning_rate"] == 0.5
    assert again.body["steps"][-1]["argv"][-1] == "accelerate"


# -- bad input --------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no keys and values: it is empty"),
        ("# only\n", "it is empty"),
        ("- a\n- b", "it is of type list"),
        ("just text", "it is of type str"),
        ("base_model: a/b", "has no datasets. Add datasets:"),
        ("datasets: [{path: a/b}]", "has no base_model. Add a line such as"),
        ("base_model: 3\ndatasets: [{path: a/b}]", "has the base_model 3"),
        ("base_model: ' '\ndatasets: [{path: a/b}]", "has the base_model"),
        ("base_model: a/b\ndatasets: {path: c/d}", "datasets that are no list"),
        ("base_model: a/b\ndatasets:\n  - path: x\n   type: y\n", "no valid YAML on line 4"),
        ("base_model: a: b", "on line 1: mapping values are not allowed here: base_model: a: b."),
        ("base_model: [a\nx: 1", "no valid YAML on line 2"),
        ("a: 1\n---\nb: 2", "no valid YAML on line 2: expected a single document"),
        ("\tx: 1", "no valid YAML on line 1"),
        ("x: *nowhere", "found undefined alias"),
        ("x: !!python/object/apply:os.system ['touch /tmp/x']", "could not determine a constructor for the tag"),
        ("x: !env HOME", "could not determine a constructor for the tag"),
        ("x: 'a\0b'", "is no valid YAML"),
        ("x: 2024-13-45", "holds a value that YAML cannot read"),
        ("x: &a [*a]", "on line 1 that contains itself"),
        ("? [a, {b: 1}]\n: x", "no valid YAML on line 1"),
        (BOMB, "has more than 20000 values once its aliases are written out"),
        ("<<: [&m {k: 1}, " + "*m, " * 20_001 + "]", "has more than 20000 values"),
        ("x: " + "[" * 100_000, "nested too deeply"),
        ("{a: " * 60, "nested too deeply"),
        ("a: 1\n" * 20_000, "has more than 20000 values"),
        ("x: " + "y" * (1 << 20), "takes 1024 KiB, more than"),
    ],
)
def test_what_is_no_configuration_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PayloadError) as caught:
        build(text)
    assert said in str(caught.value)
    assert "The axolotl configuration" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match=r"none\.yaml cannot be read: No such file"):
        build(tmp_path / "none.yaml")
    with pytest.raises(PayloadError, match="Is a directory"):
        build(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"x: \xff")
    with pytest.raises(PayloadError, match=r"x\.yaml is no text: byte 3 is not UTF-8"):
        build(tmp_path / "x.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (2 << 20))
    with pytest.raises(PayloadError, match="more than the 1024 KiB"):
        build(tmp_path / "big.yaml")


def test_a_key_set_twice_is_told() -> None:
    artefact = build(CONFIG + "learning_rate: 2.0e-5\nlora2: {x: 1, x: 2}\n")
    assert artefact.notes == (
        "x is set on line 13 and again on line 13; the last one counts.",
        "learning_rate is set on line 8 and again on line 12; the last one counts.",
    )


@pytest.mark.parametrize("key", ["comet_api_key", "hf_token", "x: {aws_secret", "a: {password", "API_KEY"])
def test_a_secret_is_refused(key: str) -> None:
    text = f"{CONFIG}{key}: hunter2{'}' if '{' in key else ''}\n"
    with pytest.raises(PayloadError, match=r"holds a secret in .*--secrets") as caught:
        build(text)
    assert "hunter2" not in str(caught.value)


def test_tokens_of_a_tokenizer_are_no_secrets() -> None:
    text = (
        CONFIG + "special_tokens: {pad_token: <pad>, eos_token: </s>}\ntokens: [a]\nuse_auth_token:\nhub_token: true\n"
    )
    build(text)


# -- paths ------------------------------------------------------------------------


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("")
    (tmp_path / "model").mkdir()
    text = (
        "base_model: ./model\n"
        "lora_model_dir: ./adapter\n"
        "deepspeed: zero3.json\n"
        "datasets:\n  - path: data.jsonl\n  - path: more.jsonl\n  - path: org/hub\n  - path: s3://bucket/x.jsonl\n"
        "test_datasets:\n  - path: /nowhere/x\n"
        "dataset_prepared_path: prepared\noutput_dir: ./out\n"
    )
    artefact = build(text, workdir=tmp_path)
    assert artefact.notes == (
        f"lora_model_dir names ./adapter, which is not there in {tmp_path}.",
        f"deepspeed names zero3.json, which is not there in {tmp_path}.",
        f"datasets.1.path names more.jsonl, which is not there in {tmp_path}.",
        "test_datasets.0.path names /nowhere/x, which is not there.",
    )
    assert artefact.files["config.yml"] == text


def test_paths_are_looked_up_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = CONFIG + "deepspeed: ds.json\n"
    assert len(build(text).notes) == 1
    (tmp_path / "ds.json").write_text("{}")
    assert build(text).notes == ()


@pytest.mark.full
@pytest.mark.timeout(600)
def test_what_travels_is_what_axolotl_itself_takes() -> None:
    text = CONFIG.replace("lora: {r: 8, targets: [q, v]}\n", "micro_batch_size: 1\ngradient_accumulation_steps: 1\n")
    overrides = {"learning_rate": "1e-4", "datasets.0.type": "completion", "lora_r": 8, "lora_alpha": 16}
    overrides |= {"lora_target_linear": True, "dataset_prepared_path": None}
    shipped = build(text, overrides=overrides).files["config.yml"]
    assert isinstance(shipped, str)
    sent = yaml.safe_load(shipped)
    kept = axolotl_judge.kept(sent)
    assert kept.keys() == sent.keys()
    assert kept["learning_rate"] == 1e-4
    assert kept["lora_r"] == 8
    assert kept["datasets"][0]["type"] == "completion"
    assert kept["dataset_prepared_path"] == sent["dataset_prepared_path"]


def test_dumping_repeats_what_is_shared() -> None:
    shared = {"k": 1}
    assert not re.search(r"[&*]", yamltext.dump({"a": shared, "b": shared}))
