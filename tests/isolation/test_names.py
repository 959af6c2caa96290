"""Folders, names and values of which a shell, Slurm or a script may make something: they run, or are refused."""

from __future__ import annotations

import os
import stat
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel import submission
from clusterkernel.errors import ClusterKernelError, SpecError
from clusterkernel.jobroot import JobRoot
from clusterkernel.states import JobState
from tests.backends.platforms import Platform

LIMIT = 120.0
# Each would leave `owned` somewhere, were it executed.
WORDS = [
    "plain",
    "a  b ",
    'it\'s "quoted"',
    "50%u-%j-%A_%a-%%",
    "two\nlines",
    "\n#SBATCH --nodes=9\ntouch owned\n",
    "üñï-日本-🚀",
    "; touch owned; #",
    "$(touch owned)",
    "`touch owned`",
    "${HOME}'$(touch owned)'",
    "&& touch owned || touch owned &",
    "-rf --help",
    "back\\slash\\n",
    "{payload}{torchrun}",
    "*?[a-z]~!",
    "tab\tbell\x07",
]
# Slurm cannot open a log below such a folder: refused before anything is sent.
NO_JOB_ROOT = "\\\n\r"
PLATFORMS = ["local", pytest.param("slurm", marks=pytest.mark.slurm)]


@pytest.fixture(params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> Platform:
    made: Platform = request.getfixturevalue(request.param)
    return made


@pytest.fixture(autouse=True)
def nothing_is_executed(platform: Platform, own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    home = platform.shared / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))  # where a job would be without its working folder
    yield
    monkeypatch.undo()
    assert not list(platform.shared.rglob("owned")) + list(own_folders.rglob("owned"))


def place(shared: Path, word: str) -> Path:
    """A folder called so; ``/`` cannot be in a name."""
    folder = shared / f"{word.replace('/', '-')}{uuid.uuid4().hex[:4]}"
    folder.mkdir()
    return folder


def attempt(platform: Platform, **fields: str) -> ck.Job | SpecError:
    """A job, or why there is none: in one line that begins with the field."""
    try:
        return platform.executor(**fields).submit(where)
    except SpecError as error:
        refused = error
    assert "\n" not in str(refused)
    assert str(refused).lstrip("-").startswith(tuple(fields))
    return refused


def has_control(word: str) -> bool:
    """Whether it holds what no line of a script should."""
    return any(ord(char) < 32 for char in word)


def where() -> tuple[str, list[str], str | None]:
    import os
    import sys

    print("here")
    return os.getcwd(), sys.argv[:1], os.environ.get("BY_WRAPPER")


def test_job_roots_and_working_folders(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[ck.Job, Path]] = []
    refused = []
    for word in WORDS:
        folder = place(platform.shared, word)
        root = folder / f"jobs {word}"
        monkeypatch.chdir(folder)
        monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(root))
        bad = [char for char in NO_JOB_ROOT if char in word and platform.backend == "slurm"]
        if not bad:
            sent.append((platform.executor().submit(where), folder))
            continue
        with pytest.raises(SpecError) as caught:
            platform.executor().submit(where)
        refused.append(word)
        assert "\n" not in str(caught.value)
        assert caught.value.hint
        assert JobRoot().ids() == [], "before there is a job"
    for job, folder in sent:
        assert job.result(LIMIT)[0] == str(folder), (job.state, job.reason)
        assert job.logs() == "here"
        assert job.folder.path.parent.parent == folder
    assert len(sent) + len(refused) == len(WORDS)
    assert platform.backend == "slurm" or not refused


def test_working_folders_that_are_named(platform: Platform) -> None:
    sent = {word: (folder := place(platform.shared, word), attempt(platform, workdir=str(folder))) for word in WORDS}
    for word, (folder, job) in sent.items():
        if has_control(word):
            assert isinstance(job, SpecError)
        else:
            assert isinstance(job, ck.Job), job
            assert job.result(LIMIT)[0] == str(folder)


def test_a_working_folder_that_is_not_there_is_named(platform: Platform) -> None:
    word = "$(touch owned) 'it' \"is\" \\gone %s"
    job = platform.executor(workdir=str(platform.shared / word)).submit(where)
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert word in job.reason


def test_job_names(platform: Platform, slurm_names: Any) -> None:
    sent = {word: attempt(platform, name=word) for word in WORDS}
    for word, job in sent.items():
        # Control characters, and blanks that Slurm would not keep.
        if has_control(word) or (platform.backend == "slurm" and " ".join(word.split()) != word):
            assert isinstance(job, SpecError)
        else:
            assert isinstance(job, ck.Job), job
            job.result(LIMIT)
            assert job.name == word
            assert slurm_names(job) in (word, None)


@pytest.fixture
def slurm_names(request: pytest.FixtureRequest, platform: Platform) -> Any:
    """What Slurm says that a job is called; None on another platform."""
    if platform.backend != "slurm":
        return lambda job: None
    cluster = request.getfixturevalue("slurm_cluster")
    return lambda job: cluster.run("squeue", "-h", "-t", "all", "-j", str(job.platform_id), "-o", "%j")


def test_variables_arguments_and_commands(platform: Platform) -> None:
    words = [*WORDS, "$HOME", "\\", "'", '"', "", " ", "a\rb", "\x1b[31m"]

    def tell(*args: str, **kwargs: str) -> tuple[list[str], list[str], dict[str, str]]:
        import os

        return [os.environ[f"V{number}"] for number in range(len(args))], list(args), kwargs

    env = {f"V{number}": word for number, word in enumerate(words)}
    job = platform.executor(env=env).submit(tell, *words, key="$(touch owned)")
    command = platform.executor().run([sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))", *words])
    assert job.result(LIMIT) == (words, words, {"key": "$(touch owned)"})
    command.result(LIMIT)
    assert command.logs() == ascii(words)


@pytest.mark.parametrize("name", ["A B", "A;touch owned", "$(touch owned)", "1A", "A-B", "", "A\nB", "Ü"])
def test_a_variable_s_name_is_a_name(platform: Platform, name: str) -> None:
    with pytest.raises(SpecError, match="is not a variable's name") as caught:
        platform.executor(env={name: "x"})
    assert "\n" not in str(caught.value)


def test_interpreters(platform: Platform) -> None:
    sent = {}
    for word in WORDS:
        path = place(platform.shared, word) / f"py {word}"
        path.write_text(f'#!/bin/sh\nexport BY_WRAPPER=yes\nexec {sys.executable} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        sent[word] = attempt(platform, interpreter=str(path))
    for word, job in sent.items():
        if has_control(word):
            assert isinstance(job, SpecError)
        else:
            assert isinstance(job, ck.Job), job
            assert job.result(LIMIT)[2] == "yes"


def test_an_interpreter_that_is_not_there_is_named(platform: Platform) -> None:
    word = "/opt/$(touch owned)/'py' \"3\" %s"
    job = platform.executor(interpreter=word).submit(where)
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert word in job.reason


@pytest.mark.parametrize("platform", PLATFORMS[1:], indirect=True)
def test_what_is_meant_for_slurm_alone(platform: Platform) -> None:
    for field in ("partition", "account", "qos", "constraint", "reservation", "dependency"):
        for word in ("$(touch owned)", "`touch owned`; touch owned", "a' b \" \\"):
            with pytest.raises(ClusterKernelError) as caught:
                platform.executor(**{field: word}).submit(where).result(LIMIT)
            assert "\n" not in str(caught.value), field


def test_ranks_and_arrays_in_such_folders(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    # srun, Slurm's patterns of arrays, and the folders of tasks.
    word = "50%u %A_%a it's $(touch owned) ü"
    folder = place(platform.shared, word)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(folder / "jobs"))
    ranks = platform.executor(tasks_per_node=2).submit(where)
    tasks = platform.executor(name=word).map_jobs(lambda item: (item, os.getcwd()), WORDS[:3])
    assert ranks.result(LIMIT)[0] == str(folder)
    assert tasks.results(LIMIT) == [(item, str(folder)) for item in WORDS[:3]]
    assert [view.id for view in submission.summaries()] == ["1", "2"]
