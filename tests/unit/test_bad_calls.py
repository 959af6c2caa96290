"""Calls with what they do not take: one line each, of ours."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import fields, paths, profiles
from clusterkernel.errors import ClusterKernelError, FormatError, PayloadError, SpecError
from clusterkernel.jobs import Job

HUGE = 10**5000


class Mute:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("not shown")

    __str__ = __repr__


KINDS = lambda value: type(value).__name__  # noqa: E731
ODD: list[Any] = [5, 1.5, b"x", object(), Mute(), HUGE, True, "²", "٣", [Mute()], {"a": HUGE}]


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ClusterKernelError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 600
    return said


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Job:
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        for name in ("JOB_ROOT", "LOCAL_DIR"):
            patch.setenv(f"CLUSTERKERNEL_{name}", str(home / name))
        job = ck.Executor("local").submit(pow, 2, 3)
        assert job.result(60) == 8
        return job


@pytest.mark.parametrize("field", [*fields.FIELDS, *fields.PSEUDO, "nosuchfield"])
def test_fields_refuse_or_take_whatever_they_get(field: str) -> None:
    said = []
    for value in [*ODD, None, "", "9" * 5000, "9" * 5000 + "h", "h100:²", float("nan"), {Mute(): 1}, {1: 2}, "\ud800"]:
        try:
            fields.build({field: value})
        except ClusterKernelError as error:
            said.append(str(error))
    assert len(said) > 9
    assert not [text for text in said if "\n" in text]


@pytest.mark.parametrize("value", [*ODD, [None], None], ids=KINDS)
def test_an_executor_refuses_what_it_cannot_send(value: Any) -> None:
    ex = ck.Executor("local")
    refusal(lambda: ex.run(value))
    refusal(lambda: ex.train(value))
    if not isinstance(value, str | bytes | list | dict):
        refusal(lambda: ex.submit(value))
        refusal(lambda: ex.map_jobs(abs, value))
        refusal(lambda: ex.map(abs, value))
    if type(value) is not int or value == HUGE:
        refusal(lambda: ex.map_jobs(abs, [1], chunksize=value))
    refusal(lambda: ck.plan(value))
    if value is not None:
        refusal(lambda: ck.Executor(value))
        refusal(lambda: ck.Executor(profile=value))
        refusal(lambda: profiles.load(value))
        refusal(lambda: ck.queue(value))
        refusal(lambda: ck.job(value))


@pytest.mark.parametrize("value", [*ODD, -1], ids=KINDS)
def test_a_job_refuses_what_it_does_not_have(ended: Job, value: Any) -> None:
    refusal(lambda: ended.logs(stream=value))
    refusal(lambda: ended.logs(rank=value))
    refusal(lambda: ended.logs(attempt=value))
    if type(value) is not int or value != 5:
        refusal(lambda: ended.logs(value))
    if not isinstance(value, dict):
        refusal(lambda: ended.rerun(value))
    refusal(lambda: ended.rerun({"nosuchname": value}))
    refusal(lambda: ended.rerun(nosuchfield=value))


@pytest.mark.parametrize("job_id", ["²", "٣", "1_²", "1_٣", "1_" + "9" * 5000, "slurm:²", "", "1_", ":"])
def test_no_job_has_such_an_id(job_id: str) -> None:
    refusal(lambda: ck.job(job_id))


def test_an_empty_name_is_no_name() -> None:
    refusal(lambda: ck.Executor(""))
    refusal(lambda: ck.Executor(profile=""))


def test_a_working_folder_that_is_gone_or_has_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for call in (paths.working_folder, lambda: ck.Executor("local").submit(pow, 2, 3), ck.Executor("local").plan):
        assert "The working folder is gone" in refusal(call)
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    for call in (paths.working_folder, lambda: ck.Executor("local").submit(pow, 2, 3), ck.Executor("local").plan):
        assert "is not UTF-8" in refusal(call)


def test_users_that_are_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no user 'nosuchuser'" in refusal(ck.Executor("local", workdir="~nosuchuser/x").plan)
    for name in ("PROFILES", "SECRETS"):
        with monkeypatch.context() as patch:
            patch.setenv(f"CLUSTERKERNEL_{name}", "~nosuchuser/x")
            assert "there is no user" in refusal(lambda: ck.Executor("local", secrets="A").submit(pow, 1, 1))
    with pytest.raises(SpecError):
        paths.expand("~nosuchuser", "x")


def test_names_and_items_that_no_record_could_hold(own_folders: Path) -> None:
    ex = ck.Executor("local")

    def give(*args: object, **kwargs: object) -> int:
        return len(args) + len(kwargs)

    assert "has half a character in its name" in refusal(lambda: ex.submit(give, **{"\ud800": 1}))
    jobs = ex.map_jobs(give, ["\ud800", HUGE])
    assert jobs.labels == [r"'\ud800'", f"{jobs.id}_1"]
    assert jobs.results(60) == [1, 1]
    give.__name__ = give.__qualname__ = "\ud800"
    assert ex.submit(give, 1).result(60) == 1


def test_what_does_not_end_is_refused() -> None:
    ex = ck.Executor("local")
    for call in (ex.map_jobs, ex.map):
        with pytest.raises(PayloadError, match=r"more than 1,000,000 items\. Does what gives them end\?"):
            call(abs, itertools.count())
    with pytest.raises(PayloadError, match=r"100,001 tasks, more than 100,000\. Write chunksize=101:"):
        ex.map_jobs(abs, range(100_001))


def test_values_are_a_mapping() -> None:
    with pytest.raises(FormatError, match=r"values = '3' names no variables\. Write values="):
        ck.convert("#!/bin/bash\n#SBATCH -N 1\ntrue\n", to="modal", values=3)  # type: ignore[arg-type]
