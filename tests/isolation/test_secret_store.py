"""The store: whose it is, what is refused before anything is sent, and what a job finds when it starts."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import secretstore, submission
from clusterkernel.errors import SpecError
from clusterkernel.jobroot import JobRoot
from clusterkernel.payload import command
from clusterkernel.runtime import events
from clusterkernel.spec import Environment
from clusterkernel.states import JobState
from tests.backends.platforms import Platform

from . import planted

LIMIT = 60.0


@pytest.fixture(autouse=True)
def store(own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = own_folders / "keep" / "secrets.json"
    monkeypatch.setenv("CLUSTERKERNEL_SECRETS", str(path))
    return path


def refusal(call: Callable[[], Any]) -> str:
    """The one line of a refusal; nothing was made."""
    with pytest.raises(SpecError) as caught:
        call()
    assert JobRoot().ids() == []
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


def read_env(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


# -- the file ---------------------------------------------------------------------------------


def test_the_file_is_for_its_owner_alone_whatever_the_umask(store: Path) -> None:
    old = os.umask(0)
    try:
        secretstore.save("HF_TOKEN", "one")
        secretstore.save("OTHER", "two")
    finally:
        os.umask(old)
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.parent.stat().st_mode) == 0o700
    assert os.listdir(store.parent) == ["secrets.json"]
    assert secretstore.names() == ["HF_TOKEN", "OTHER"]
    assert secretstore.forget("HF_TOKEN")
    assert not secretstore.forget("HF_TOKEN")
    assert secretstore.names() == ["OTHER"]


def test_the_default_place_is_outside_every_job_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CLUSTERKERNEL_SECRETS", "CLUSTERKERNEL_JOB_ROOT"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    old = os.umask(0o002)
    try:
        JobRoot().ensure()  # the job root is made first, and with it the folder above both
        secretstore.save("HF_TOKEN", "one")
    finally:
        os.umask(old)
    assert secretstore.store_file() == tmp_path / ".clusterkernel" / "secrets.json"
    assert JobRoot().path not in secretstore.store_file().parents
    assert stat.S_IMODE((tmp_path / ".clusterkernel").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_is_open_to_others_is_refused(store: Path, mode: int) -> None:
    secretstore.save("HF_TOKEN", "one")
    store.chmod(mode)
    assert "is open to other users. chmod 600" in refusal(lambda: ck.Executor(secrets="HF_TOKEN").submit(int))


def test_a_file_of_another_user_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secretstore.save("HF_TOKEN", "one")
    if os.geteuid() == 0:
        os.chown(store, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    said = refusal(lambda: ck.Executor(secrets="HF_TOKEN").submit(int))
    assert "belongs to another user" in said or "Another user can write" in said


def test_a_folder_that_another_user_can_write_to_is_refused(store: Path) -> None:
    secretstore.save("HF_TOKEN", "one")
    store.parent.chmod(0o777)
    said = refusal(lambda: ck.Executor(secrets="HF_TOKEN").submit(int))
    assert f"Another user can write to {store.parent}" in said
    assert "chmod go-w" in said
    with pytest.raises(SpecError, match="Another user can write"):
        secretstore.save("MORE", "two")


def test_a_damaged_file_is_named_and_nothing_of_it_is_shown(store: Path) -> None:
    value = planted.new()
    secretstore.save("HF_TOKEN", value)
    store.write_text('{"HF_TOKEN": "' + value)
    said = refusal(lambda: ck.Executor(secrets="HF_TOKEN").submit(int))
    assert "is damaged" in said
    assert value not in said
    store.write_text(json.dumps([value]))
    assert "is damaged" in refusal(lambda: ck.Executor(secrets="HF_TOKEN").submit(int))


# -- what is refused before anything is sent ------------------------------------------------------


def test_a_secret_that_is_not_there_is_refused_with_the_mend() -> None:
    assert refusal(lambda: ck.Executor(secrets="HF_TOKEN").submit(int)) == (
        "There is no secret HF_TOKEN. %cluster_secret set HF_TOKEN keeps it."
    )
    secretstore.save("HF_TOKEN", "one")
    said = refusal(lambda: ck.Executor(secrets=["HF_TOKN"]).submit(int))
    assert "Did you mean HF_TOKEN?" in said
    assert "%cluster_secret set HF_TOKN keeps it" in said


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("HF_TOKEN", True), ("hf_token", True), ("WANDB_API_KEY", True), ("MY_SECRET", True), ("PGPASSWORD", True),
        ("DB_PASSWORD", True), ("AWS_SECRET_ACCESS_KEY", True), ("GITHUB_TOKEN", True), ("OPENAI_APIKEY", True),
        ("TOKENIZERS_PARALLELISM", False), ("NCCL_DEBUG", False), ("PAD_TOKEN", False), ("MAX_NEW_TOKENS", False),
        ("SECRETARY", False), ("KEYBOARD", False), ("PASSWORDLESS", False),
    ],
)  # fmt: skip
def test_a_variable_that_holds_a_secret_is_refused(name: str, refused: bool) -> None:
    value = planted.new()
    if not refused:
        ck.Executor(env={name: value})
        return
    wanted = f"Keep it with %cluster_secret set {name}, and ask for it with --secrets {name}."
    said = refusal(lambda: ck.Executor(env={name: value}))
    assert wanted in said
    assert value not in said
    with pytest.raises(SpecError, match=f"--secrets {name}"):  # what the magic, a profile and a rerun go through
        submission.complete(ck.JobSpec(environment=Environment(env={name: value})))
    ck.Executor(env={name: ""})
    ck.Executor(env={name: "~/.tokens/it"})


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("export HF_TOKEN=abcdef", True),
        ("module load cuda && export HF_TOKEN='abcdef'", True),
        ("HF_TOKEN=abcdef hf auth login", True),
        ("hf auth login --token hf_abcdefghijklmnopqrstuvwxyz", True),
        ("export HF_TOKEN=$(cat ~/.token)", False),
        ('export HF_TOKEN="$OTHER"', False),
        ("export HF_TOKEN=", False),
        ("export HF_TOKEN=''", False),
        ("source ~/.secrets/HF_TOKEN", False),
        ("export PATH=/opt/bin:$PATH", False),
    ],
)
def test_a_setup_line_that_holds_a_secret_is_refused(line: str, refused: bool) -> None:
    if refused:
        said = refusal(lambda: ck.Executor(setup=[line]))
        assert "%cluster_secret set HF_TOKEN" in said
        assert "abcdef" not in said
    else:
        ck.Executor(setup=[line])


def test_the_form_of_a_key_is_enough() -> None:
    said = refusal(lambda: ck.Executor(env={"MY_THING": "hf_abcdefghijklmnopqrstuvwxyz"}))
    assert "%cluster_secret set MY_THING" in said
    assert "hf_abc" not in said


@pytest.mark.parametrize("name", ["HF TOKEN", "1A", "A=planted", "", "Ü", "A\nB"])
def test_a_name_that_is_none_is_refused_without_what_may_be_the_value(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        secretstore.save(name, "value")
    assert "planted" not in str(caught.value)
    assert "\n" not in str(caught.value)


# -- what a job finds -----------------------------------------------------------------------------


def test_a_job_has_what_it_asked_for_and_nothing_keeps_it(local: Platform, own_folders: Path, store: Path) -> None:
    value, other = planted.new("A"), planted.new("B")
    secretstore.save("HF_TOKEN", value)
    secretstore.save("NOT_ASKED", other)

    def digest() -> list[Any]:
        import subprocess

        token = os.environ["HF_TOKEN"]
        child = subprocess.run(["printenv", "HF_TOKEN"], capture_output=True, text=True, check=True).stdout.strip()
        return [hashlib.sha256(token.encode()).hexdigest(), child == token, os.environ.get("NOT_ASKED")]

    with planted.commands_that_show(value, other) as shown:
        job = local.executor(secrets="HF_TOKEN", env={"GIVEN": "control"}).submit(digest)
        said = job.result(LIMIT)
    assert said == [hashlib.sha256(value.encode()).hexdigest(), True, None]
    view = job.summary()
    assert not shown
    store.rename(local.shared / "apart.json")
    (local.shared / "apart.json").unlink()
    assert planted.files_with([value, other], own_folders, local.shared) == []
    assert str(job.folder.script) in planted.files_with(["control"], own_folders)
    for text in (repr(view), repr(job.spec), job.script, job.logs()):
        assert value not in text


def test_the_value_of_the_start_counts(local: Platform, tmp_path: Path) -> None:
    # A secret that was changed while the job waited: it is read when the job starts, not when it is sent.
    secretstore.save("HF_TOKEN", "old")
    made = submission.submit(
        submission.complete(local.executor(secrets="HF_TOKEN", setup=["until [ -e gate ]; do sleep 0.02; done"]).spec),
        command.build(["sh", "-c", "echo $HF_TOKEN | md5sum"]),
    )
    secretstore.save("HF_TOKEN", "new")
    (tmp_path / "gate").touch()
    assert isinstance(made, ck.Job)
    assert made.wait(LIMIT) is JobState.SUCCEEDED
    assert hashlib.md5(b"new\n").hexdigest() in made.logs()


@pytest.mark.parametrize("kind", ["function", "command"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("forget", "There is no secret HF_TOKEN any more. %cluster_secret set HF_TOKEN keeps it."),
        ("open", "are open to other users; chmod 600 it."),
        ("remove", "No such file or directory."),
        ("damage", "it is damaged."),
    ],
)
def test_a_job_whose_secret_is_gone_does_not_start(
    local: Platform, store: Path, tmp_path: Path, kind: str, change: str, reason: str
) -> None:
    value = planted.new()
    secretstore.save("HF_TOKEN", value)
    executor = local.executor(secrets="HF_TOKEN", setup=["until [ -e gate ]; do sleep 0.02; done"])
    job = executor.run(["touch", "ran"]) if kind == "command" else executor.submit(Path("ran").touch)
    if change == "forget":
        secretstore.forget("HF_TOKEN")
    elif change == "open":
        store.chmod(0o644)
    elif change == "remove":
        store.unlink()
    else:
        store.write_text('{"HF_TOKEN": "' + value)
    (tmp_path / "gate").touch()
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert job.reason.endswith(reason)
    assert not (tmp_path / "ran").exists()
    assert value not in str(job.exception()) + job.logs() + str(events.read(job.folder.events()))


def test_ranks_under_a_launcher_and_a_rerun_have_it_too(local: Platform) -> None:
    secretstore.save("HF_TOKEN", "one")
    job = local.executor(secrets="HF_TOKEN", tasks_per_node=2).submit(read_env, "HF_TOKEN")
    assert job.result(LIMIT) == ["one"]
    assert job.results() == [["one"], ["one"]]
    again = job.rerun()
    assert again.result(LIMIT) == ["one"]
    secretstore.forget("HF_TOKEN")
    with pytest.raises(SpecError, match="There is no secret HF_TOKEN"):
        job.rerun()
