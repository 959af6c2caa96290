"""``%cluster_secret`` in real kernels: the value is typed, and neither the notebook nor a file shows it."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.kernel.conftest import CEILING, REPOSITORY, Kernel, Ran

from . import planted


@pytest.fixture(autouse=True)
def store(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = own_folders / "keep" / "secrets.json"
    monkeypatch.setenv("CLUSTERKERNEL_SECRETS", str(path))
    return path


def typed(kernel: Kernel, code: str, value: str) -> tuple[Ran, dict[str, Any]]:
    """Run a cell that asks for something, and type it."""
    sent = kernel.send(code)
    asked = kernel.client.get_stdin_msg(timeout=CEILING)
    kernel.client.input(value)
    return kernel.collect(sent), asked


def seen(ran: Ran) -> str:
    """All that a notebook would keep of a cell."""
    return json.dumps([ran.reply, *ran.messages], default=str)


def test_a_secret_is_typed_used_listed_and_forgotten(
    kernel: Kernel, own_folders: Path, store: Path, tmp_path: Path
) -> None:
    value = planted.new()
    assert "There are no secrets" in kernel.good("%cluster_secret list").text
    ran, asked = typed(kernel, "%cluster_secret set HF_TOKEN", f" {value}\n")
    assert ran.ok
    assert asked["content"] == {"prompt": "HF_TOKEN: ", "password": True}
    assert f"HF_TOKEN is kept in {store}" in ran.text
    said = [seen(ran)]
    for cell in (
        "%cluster_secret list",
        "%ck secret",
        "%%cluster_train --secrets HF_TOKEN -o size --as job --wait\nimport os\nsize = len(os.environ['HF_TOKEN'])",
        "job",
        "%cluster_jobs",
        "%cluster_status 1",
        "%cluster_logs 1",
        "%%cluster_train --secrets HF_TOKEN --dry-run\n1",
        "print(job.summary(), job.record, job.script, vars(job))",
    ):
        said.append(seen(kernel.good(cell)))
    assert "HF_TOKEN" in said[1]
    assert kernel.value("size") == len(value)
    failed = kernel.run("%%cluster_train --secrets HF_TOKEN --wait\nimport os\nos.environ['HF_TOKEN'] + 1")
    assert not failed.ok
    assert "TypeError" in failed.error
    said.append(seen(failed))
    assert not any(value in text for text in [*said, json.dumps(kernel.updates, default=str)])
    assert kernel.value("'HF_TOKEN' in __import__('os').environ") is False
    kernel.good("get_ipython().history_manager.writeout_cache()")
    assert planted.files_with([value], own_folders, tmp_path) == [str(store)]
    assert "Forgot HF_TOKEN" in kernel.good("%cluster_secret forget HF_TOKEN").text
    assert planted.files_with([value], own_folders, tmp_path) == []
    refused = kernel.run("%%cluster_train --secrets HF_TOKEN\n1")
    assert "There is no secret HF_TOKEN. %cluster_secret set HF_TOKEN keeps it." in refused.error
    assert kernel.strays == []


def test_a_value_from_the_environment(new_kernel: Callable[..., Kernel], store: Path) -> None:
    value = planted.new()
    kernel = new_kernel(OTHER_NAME=value)
    ran = kernel.good("%cluster_secret set HF_TOKEN --from-env OTHER_NAME")
    assert value not in seen(ran)
    assert json.loads(store.read_text()) == {"HF_TOKEN": value}
    assert "has no such variable" in kernel.run("%cluster_secret set HF_TOKEN --from-env NOT_THERE").text


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("set HF_TOKEN {0}", "The value of HF_TOKEN does not belong into a cell"),
        ("set HF_TOKEN={0}", "The value of HF_TOKEN does not belong into a cell"),
        ("set HF_TOKEN {{token}}", "does not belong into a cell"),
        ("{0} HF_TOKEN", "takes one of set, list, forget first"),
        ("HF_TOKEN={0}", "takes one of set, list, forget first"),
        ("set HF_TOKEN --value={0}", "has no option --value"),
        ("set", "needs a name"),
        ("forget", "needs a name"),
        ("forget HF_TOKN", "There is no secret 'HF_TOKN'"),
        ("list all", "takes nothing more"),
    ],
)
def test_bad_lines_get_one_line_without_the_value(kernel7: Kernel, line: str, part: str, store: Path) -> None:
    value = planted.new()
    kernel7.good(f"token = {value!r}")
    ran = kernel7.run("%cluster_secret " + line.format(value))
    assert not ran.ok
    said = (ran.error + ran.text).strip()
    assert part in said
    assert len(said.splitlines()) == 1
    assert value not in said
    assert not store.exists()


def test_a_cell_s_variables_hold_no_secret(kernel7: Kernel, own_folders: Path, tmp_path: Path) -> None:
    value = planted.new()
    profile = tmp_path / ".clusterkernel.toml"
    profile.write_text(f'[profiles.mine]\nenv = {{ HF_TOKEN = "{value}" }}\n')
    for flags in (f"--env HF_TOKEN={value}", f"--setup 'export HF_TOKEN={value}'", "--profile mine"):
        for again in ("", " --dry-run"):
            ran = kernel7.run(f"%%cluster_train {flags}{again}\n1")
            assert not ran.ok
            said = (ran.error + ran.text).strip()
            assert said.endswith("Keep it with %cluster_secret set HF_TOKEN, and ask for it with --secrets HF_TOKEN.")
            assert len(said.splitlines()) == 1
            assert value not in said
    assert not list((own_folders / "jobs").glob("[0-9]*"))
    kernel7.good("%%cluster_train --env HF_TOKEN= --wait\n1")


@pytest.fixture
def kernel7(own_folders: Path, tmp_path: Path) -> Any:
    """One kernel is enough where only words are looked at."""
    kernel = Kernel({**os.environ, "PYTHONPATH": str(REPOSITORY)}, tmp_path)
    kernel.good("%load_ext clusterkernel")
    yield kernel
    kernel.close()


def test_where_nobody_can_type_there_is_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    made = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(c) for c in ("%load_ext clusterkernel", "%cluster_secret set HF_TOKEN")]
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
        nbclient.execute(made, cwd=str(tmp_path))
    assert "Nobody is here to type the value of HF_TOKEN" in str(caught.value)
    assert "--from-env HF_TOKEN" in str(caught.value)


def test_a_script_reads_it_from_its_standard_input(tmp_path: Path, store: Path) -> None:
    value = planted.new()
    code = "%load_ext clusterkernel\n%cluster_secret set HF_TOKEN\nget_ipython().history_manager.writeout_cache()"
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "-c", code],
        input=f"{value}\nmore\n", capture_output=True, text=True, cwd=tmp_path, check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert json.loads(store.read_text()) == {"HF_TOKEN": value}
    assert value not in done.stdout + done.stderr
    assert getpass.GetPassWarning.__name__ not in done.stderr


def test_names_are_completed(kernel7: Kernel) -> None:
    kernel7.good("import os; os.environ['A'] = 'x'")
    kernel7.good("%cluster_secret set HF_TOKEN --from-env A")

    def offered(code: str) -> list[str]:
        return list(kernel7.client.complete(code, len(code), reply=True, timeout=CEILING)["content"]["matches"])

    assert offered("%cluster_secret ") == ["forget", "list", "set"]
    assert offered("%cluster_secret forget H") == ["HF_TOKEN"]
    assert offered("%%cluster_train --secrets ") == ["HF_TOKEN"]
