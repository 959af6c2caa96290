"""What is refused before anything is sent to Modal, what a plan says, and what it costs. No client is imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterkernel import fields
from clusterkernel.backends.modal import app, backend, client, prices, rates, startup, submit
from clusterkernel.backends.modal.options import parse
from clusterkernel.errors import BackendUnavailable, SpecError
from clusterkernel.records import JobRecord, PayloadSummary
from clusterkernel.spec import JobSpec, Stage


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-test")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-test")
    monkeypatch.setattr(rates, "ask", lambda _: rates.known())  # nothing is asked here
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def spec(**values: Any) -> JobSpec:
    return fields.build({"backend": "modal", **values})


def record(wanted: JobSpec, kind: str = "cell", **values: Any) -> JobRecord:
    about: dict[str, Any] = {"id": "7", "key": "0123456789abcdef", "name": "job", "created": 0.0, "host": "h"}
    return JobRecord(**{**about, **values}, user="u", spec=wanted, payload=PayloadSummary(kind=kind))


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"gpus_per_node": "h101:1"}, "--gpus-per-node", ("h101", "h100")),
        ({"gpus_per_node": "h100:9"}, "--gpus-per-node", ("h100:9", "8")),
        ({"gpus_per_node": "a10:5"}, "--gpus-per-node", ("a10:5", "4")),
        ({"time": "25h"}, "--time", ("24h",)),
        ({"attempts": 12}, "--attempts", ("12", "11")),
        ({"backoff": "2m"}, "--backoff", ("60s",)),
        ({"ephemeral_disk": "4T"}, "--ephemeral-disk", ("3T",)),
        ({"volumes": ["data:/root"]}, "--volumes", ("/root",)),
        ({"volumes": ["my data:/data"]}, "--volumes", ("my data",)),
        ({"volumes": ["data:/a", "data:/b"]}, "--volumes", ("data", "/a", "/b")),
        ({"region": "US East"}, "--region", ("US East",)),
        ({"partition": "gpu"}, "--partition", ("gpu", "partitions")),
        ({"dependency": "afterok:1"}, "--dependency", ("afterok:1",)),
        ({"zone": "us-east-1a"}, "--zone", ("region",)),
        ({"nodes": 2, "gpus_per_node": "h100:4"}, "--gpus-per-node", ("h100:4", "8")),
        ({"nodes": 2}, "--nodes", ("2", "GPUs")),
        ({"nodes": 33, "gpus_per_node": "h100:8"}, "--nodes", ("33", "32")),
        ({"modal": ["--gpu=h100:9"]}, "--modal", ("h100:9", "8")),
        ({"modal": ["--gpu=h900"]}, "--modal", ("h900",)),
        ({"modal": ["--gpus=h100"]}, "--modal", ("--gpus", "gpu")),
        ({"modal": ["--cpu-limit=many"]}, "--modal", ("many",)),
        ({"modal": ["--cpu-limit=2"], "cpus_per_task": 3}, "--modal", ("--cpu-limit=2 ", "asked for, 3.")),
        ({"modal": ["--cpu-limit=9.5"], "cpus_per_task": 5, "tasks_per_node": 2}, "--modal", ("9.5", "10, 2 x 5.")),
        ({"modal": ["--cpu-limit=0.1"]}, "--modal", ("0.1", "0.125")),
        ({"image": "team/my image:1"}, "--image", ("'team/my image:1'",)),
        ({"image": "team/Image:1"}, "--image", ("team/Image:1", "small letters")),
        ({"image": "team/image:a:b"}, "--image", ("team/image:a:b",)),
        ({"image": "team/image;x"}, "--image", ("team/image;x",)),
        ({"image": "/images/x.sqsh"}, "--image", ("/images/x.sqsh", "registry")),
        ({"max_cost": 0.01, "gpus_per_node": "h100:8"}, "--max-cost", ("0.01", "hour")),
        ({"secrets": ["MODAL_TOKEN_ID"]}, "--secrets", ("MODAL_TOKEN_ID",)),
    ],
)
def test_bad_input_gets_one_line(values: dict[str, Any], field: str, words: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        backend.ModalBackend().check(spec(**values))
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("image", "refused"),
    [
        (f"axolotlai/axolotl:main-py3.{sys.version_info.minor}-cu128-2.9.1", False),
        (f"axolotlai/axolotl:main-py3.{sys.version_info.minor + 1}-cu128-2.9.1", True),
        (f"python:3.{sys.version_info.minor + 1}-slim", True),
        (f"python:3.{sys.version_info.minor}-slim", False),
        ("pytorch/pytorch:2.9.1-cuda12.8", False),
        (None, False),
    ],
)
def test_an_image_of_another_python(image: str | None, refused: bool) -> None:
    wanted = record(spec(image=image))
    if refused:
        with pytest.raises(SpecError, match="need the same"):
            submit.refuse_image(wanted)
    else:
        submit.refuse_image(wanted)
    submit.refuse_image(record(spec(image=image), kind="command"))


@pytest.mark.parametrize(
    ("image", "python"),
    [
        ("x:py3.9", (3, 9)),
        ("x:py39", (3, 9)),
        ("x:py39_4.12.0", (3, 9)),
        ("x:cuda-python3.8-slim", (3, 8)),
        ("x:main-PY3.11-cu12.4-2.3.9", (3, 11)),
        ("python:3.9-slim", (3, 9)),
        ("python:3.10.4-alpine3.20", (3, 10)),
        ("docker.io/library/python:2.7", (2, 7)),
        ("host:5000/devcontainers/python:1-3.12-bookworm", (3, 12)),
        ("ubi9/python-311:1-115", (3, 11)),
        ("jupyter/scipy-notebook:python_3.10", (3, 10)),
        ("py3.9/x:py310", (3, 10)),
        ("python:3", None),
        ("python:latest", None),
        ("python:alpine3.9", None),
        ("x/mypython:3.9", None),
        ("pytorch/pytorch:2.3.9-cuda12.4-cudnn9-devel", None),
        ("nvcr.io/nvidia/pytorch:25.10-py3", None),
        ("nvidia/cuda:cu12.4", None),
        ("team/numpy3.9:2.3.9", None),
        ("x:py3.100", None),
    ],
)
def test_the_python_that_an_image_tells_of(image: str, python: tuple[int, int] | None) -> None:
    assert submit._python(image) == python


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ubuntu", "ubuntu"),
        ("docker://Host.example:5000/a_b/c__d/e-f.g:V1.2_x", "Host.example:5000/a_b/c__d/e-f.g:V1.2_x"),
        ("nvcr.io#nvidia/pytorch:25.10-py3", "nvcr.io/nvidia/pytorch:25.10-py3"),
        (f"a/b:1@sha256:{'0f' * 32}", f"a/b:1@sha256:{'0f' * 32}"),
        (f"a/b@sha256:{'0f' * 32}", f"a/b@sha256:{'0f' * 32}"),
    ],
)
def test_names_that_a_registry_knows_are_sent(image: str, name: str) -> None:
    wanted = spec(image=image, cpus_per_task=4, modal=["--cpu-limit=4"])
    backend.ModalBackend().check(wanted)
    assert f'from_registry("{name}")' in app.text(record(wanted), "/runtime")


def test_a_python_that_no_kernel_has_is_not_proposed() -> None:
    with pytest.raises(SpecError) as caught:
        submit.refuse_image(record(spec(image="x:py3.9")))
    here = f"3.{sys.version_info.minor}"
    assert str(caught.value) == (
        f"--image = x:py3.9 has Python 3.9, and this notebook {here}: cells and functions need the same. "
        f"Choose an image with Python {here}."
    )


def test_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MODAL_TOKEN_ID")
    monkeypatch.setenv("MODAL_CONFIG_PATH", str(tmp_path / "none.toml"))
    with pytest.raises(BackendUnavailable, match="no token") as caught:
        backend.ModalBackend().check(spec())
    assert "modal token new" in caught.value.hint
    (tmp_path / "none.toml").write_text('[default]\ntoken_id = "ak-x"\ntoken_secret = "as-x"\n')
    assert client.available().ok


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_that_swallows_the_loopback(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://proxy.invalid:3128")
    assert client.available().ok, "Modal itself is reached by the proxy"
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9999")
    with pytest.raises(BackendUnavailable, match=name) as caught:
        backend.ModalBackend().check(spec())
    assert "NO_PROXY=127.0.0.1" in caught.value.hint
    monkeypatch.setenv("NO_PROXY", "localhost, 127.0.0.1")
    assert client.available().ok


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"gpus_per_node": "h100:8", "time": "4h", "modal": ["--gpu=A100-80GB:8 --gpu=h200"]},
        {"secrets": ["HF_TOKEN"], "modal": ["--secret=wandb"], "volumes": ["data:/data"]},
        {"image": "docker://nvcr.io#nvidia/pytorch:25.10-py3", "modal": ["--dockerfile=\"RUN echo 'a b'\""]},
        {"name": 'quotes " and \\ and é'},
    ],
)
def test_the_file_is_python_and_makes_the_same_objects_everywhere(values: dict[str, Any]) -> None:
    text = app.text(record(spec(**values), name=values.get("name", "job")), "/runtime")
    tree = ast.parse(text)
    # In the container Modal counts the objects of the function again: none may hang on where it is.
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            assert not any("modal." in ast.unparse(part) for part in node.body)
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert names == [app.FUNCTION]


def test_containers_that_start_together_have_not_ended() -> None:
    assert startup.ended({}) == 0
    assert startup.ended({f"ta-{number}": 100.0 + number for number in range(8)}) == 0
    assert startup.ended({"ta-1": 100.0, "ta-2": 105.0, "ta-3": 140.0}) == 2


def test_values_of_secrets_are_not_in_the_file() -> None:
    text = app.text(record(spec(secrets=["HF_TOKEN"])), "/runtime")
    assert 'secretstore.values(["HF_TOKEN"], environment=True)' in text


def test_modal_ends_a_run_after_we_do() -> None:
    text = app.text(record(spec(time="1h")), "/runtime")
    assert "timeout=3660" in text
    assert app.time_limit(spec(time="24h")) + app.MARGIN == 86_400
    assert app.time_limit(spec()) + app.MARGIN == 86_400


def test_a_plan_says_where_the_first_step_gets_less_time() -> None:
    def notes(hours: int) -> str:
        wanted = msgspec.structs.replace(spec(time="4h"), stages=(Stage(name="preprocess", time=hours * 3600),))
        return "\n".join(backend.ModalBackend().plan(wanted).notes)

    assert "The step preprocess is ended after 4h, as the job is." in notes(30)
    assert "The step preprocess" not in notes(3)


def test_the_price_of_eight_gpus() -> None:
    price = prices.hourly(spec(gpus_per_node="h100:8", cpus_per_task=1, memory="100G"))
    assert price.asked == pytest.approx(3600 * (8 * 0.001097 + 8 * 0.0000131 + 100 * 0.00000222))
    assert price.most == pytest.approx(price.asked + 3600 * 16 * 0.0000131)
    dearest = prices.hourly(spec(gpus_per_node="l4:1", modal=["--gpu=h100:1"]))
    assert dearest.asked == pytest.approx(3600 * (0.001097 + 0.125 * (0.0000131 + 0.00000222)), rel=1e-3)


def test_the_file_says_the_time_that_the_run_gets() -> None:
    text = app.text(record(spec(gpus_per_node="h100:8", time="4h", max_cost=20.0)), "/tmp/runtime")
    assert "at most 4h" not in text
    assert "at most 3" in text.partition("\n")[0], "some 35 minutes"


def test_a_ceiling_becomes_the_time_that_it_buys() -> None:
    wanted = spec(gpus_per_node="h100:8", max_cost=20, attempts=2, time="10h")
    bought = prices.affordable(wanted)
    assert bought is not None
    assert bought / 3600 * prices.hourly(wanted).most == pytest.approx(20, rel=1e-3)
    limit = app.time_limit(wanted) + app.MARGIN
    assert limit == bought // 2
    assert f"timeout={limit}" in app.text(record(wanted), "/runtime")
    plan = backend.ModalBackend().plan(wanted)
    assert any("--max-cost 20 buys no more" in note for note in plan.notes)
    assert any("estimate from list prices of 2026-07-01" in note for note in plan.notes)
    assert app.time_limit(spec(gpus_per_node="t4:1", max_cost=2000, time="1h")) == 3600


def test_with_a_ceiling_memory_is_bounded_and_counted() -> None:
    def declared(**values: Any) -> str:
        return app.text(record(spec(gpus_per_node="h100:8", max_cost=20, **values)), "/runtime")

    assert "memory=(128, 32768)" in declared()
    assert "memory=(65536, 65536)" in declared(memory="64G")
    assert "memory=(65536, 131072)" in declared(memory="64G", memory_limit="128G")
    assert "memory=" not in app.text(record(spec(gpus_per_node="h100:8")), "/runtime")
    free, held = (prices.hourly(spec(gpus_per_node="h100:8", **more)) for more in ({}, {"max_cost": 20}))
    assert held.most - free.most == pytest.approx(3600 * (32 - 0.125) * 0.00000222)
    [note] = [note for note in backend.ModalBackend().plan(spec(max_cost=20)).notes if "Memory is held" in note]
    assert "32G" in note


def test_the_steps_without_gpus_hold_the_ceiling_too() -> None:
    text = app.text(record(spec(gpus_per_node="h100:8", max_cost=20)), "/runtime", staged=True)
    assert "cpu=(8.0, 8.0)" in text
    assert "memory=(32768, 32768)" in text


def test_rates_are_taken_where_it_is_sure_what_they_mean() -> None:
    told = {
        "gpu_h100": "4.50",  # the list: 3.95
        "GPU A100-80GB per hour": "2.60",
        "A100_40GB": "2.20",
        "nvidia_l4": "0.00022",  # of a second
        "t4": "not a number",
        "cpu_core_hour": "0.05",
        "sandbox_cpu": "0.14",
        "memory_gib": "0.009",
        "volume_storage": "0.09",
    }
    found = rates.read(told)
    assert found.own == {"H100", "A100-80GB", "A100-40GB", "A100", rates.CPU, rates.MEMORY}
    assert [found.prices[name] for name in ("H100", "A100-80GB", "A100", rates.CPU, rates.MEMORY)] == [
        *(4.5, 2.6, 2.2, 0.05, 0.009)
    ]
    assert found.prices["L4"] == rates.LISTED.prices["L4"]
    assert found.source({"H100", rates.CPU}) == "your workspace's rates of today"
    assert found.source({"L4", rates.CPU}) == ("your workspace's rates of today and, for L4, list prices of 2026-07-01")
    assert rates.LISTED.source({"L4"}) == "list prices of 2026-07-01"


def test_a_plan_of_an_axolotl_run_shows_both_functions() -> None:
    steps = [{"name": "preprocess", "once": True}, {"name": "train"}]
    wanted = spec(gpus_per_node="h100:8")
    text = backend.ModalBackend().plan_of(wanted, "command", "axolotl lora: a/b", steps).text
    tree = ast.parse(text)
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == [app.FUNCTION, app.FIRST]
    assert "axolotlai/axolotl" in text
    assert text.count('gpu="H100:8"') == 1
    alone = backend.ModalBackend().plan_of(spec(), "command", "axolotl lora: a/b", steps).text
    assert f"def {app.FIRST}" not in alone, "without GPUs one container does both"


def test_the_advice_does_not_say_that_a_ceiling_has_no_effect() -> None:
    from clusterkernel import advice

    said = [item.message for item in advice.check(spec(max_cost=20, gpus_per_node="h100:8"))]
    assert not any("max-cost" in message for message in said)
    assert any("--qos" in item.message for item in advice.check(spec(qos="high")))


def test_an_error_names_each_gpu_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse(["--gpu=h900"])
    named = caught.value.hint.partition("one of ")[2].partition(", and")[0].split(", ")  # type: ignore[union-attr]
    assert len(named) == len(set(named)) > 5


def test_options_are_read() -> None:
    options = parse(
        ["--pip=torch==2.9.1", "--pip=einops", "--gpu=H100!:2", "--environment=dev", "--create-volumes=true"]
    )
    assert options.pip == ("torch==2.9.1", "einops")
    assert options.gpu == ("H100!:2",)
    assert options.environment == "dev"
    assert options.create_volumes
    wanted = spec(modal=["--pip=torch==2.9.1 --apt=git"])
    assert fields.build(fields.values(wanted)) == wanted, "a profile keeps them"


def test_each_gpu_is_named_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse(["--gpu=h900"])
    assert str(caught.value) == (
        '--modal "--gpu=h900" has a value that is no gpu. Write one of T4, L4, A10, L40S, A100, A100-40GB, A100-80GB, '
        "RTX-PRO-6000, H100, H200, B200, B300, and at most 8 (4 A10)."
    )
    same = spec(gpus_per_node="a10:1", modal=["--gpu=a10g --gpu=A10:1 --gpu=l4:2 --gpu=L4:02"])
    assert 'gpu=["A10", "L4:2"]' in app.text(record(same), "/runtime")
    several = spec(gpus_per_node="h100:2", modal=["--gpu=H100!:2 --gpu=h100"])
    assert 'gpu=["H100:2", "H100!:2", "H100"]' in app.text(record(several), "/runtime")


def test_planning_imports_no_client() -> None:
    probe = (
        "import os, sys, clusterkernel as ck\n"
        "from clusterkernel.backends import registry\n"
        "executor = ck.Executor('modal', gpus_per_node='h100:8')\n"
        "assert registry.get('modal').available().ok\n"
        "registry.get('modal').check(executor.spec)\n"
        "del os.environ['MODAL_TOKEN_ID']\n"  # with one, the plan asks for rates
        "executor.plan()\n"
        "assert not {'modal', 'grpclib', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)
