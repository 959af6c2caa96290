"""Job folders are their owner's alone, and what another user could have written is never unpickled."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clusterkernel as ck
from clusterkernel.errors import JobRootError
from clusterkernel.jobroot import JobRoot
from clusterkernel.payload import cell
from clusterkernel.states import JobState
from clusterkernel.submission import complete, submit
from tests.backends.platforms import Platform

LIMIT = 60.0
ANOTHER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


class Evil:
    """Runs something when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "somebody's code ran"


@pytest.fixture
def job(local: Platform) -> ck.Job:
    """A cell that has ended well, with a result and an output, neither of which was looked at."""
    artefact = cell.build("x = base + 1\nx * 2", {"base": 20}, bind=("x",), modules_root=local.shared)
    made = submit(complete(local.executor().spec), artefact)
    assert isinstance(made, ck.Job)
    assert made.wait(LIMIT) is JobState.SUCCEEDED
    return made


def give_away(path: Path) -> None:
    os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)


def plant(path: Path, canary: Path) -> None:
    """Another user's pickle in the place of ours."""
    path.unlink()
    path.write_bytes(pickle.dumps(Evil(canary)))
    give_away(path)


def plant_link(path: Path, canary: Path) -> None:
    """Another user's link to a pickle, which they somehow got us to own."""
    target = canary.with_name("target.pkl")
    target.write_bytes(pickle.dumps(Evil(canary)))
    path.unlink()
    path.symlink_to(target)
    give_away(path)


def plant_link_of_ours(path: Path, canary: Path) -> None:
    """Our own link, to what another user wrote."""
    target = canary.with_name("target.pkl")
    target.write_bytes(pickle.dumps(Evil(canary)))
    give_away(target)
    path.unlink()
    path.symlink_to(target)


def refused(call: Callable[[], Any], canary: Path) -> str:
    with pytest.raises(JobRootError) as caught:
        call()
    assert not canary.exists()
    assert "so nothing in it is loaded" in str(caught.value)
    assert caught.value.hint
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- modes ---------------------------------------------------------------------------------------

_ONE_JOB = """
import os, sys
os.umask(int(sys.argv[2], 8))
import clusterkernel as ck
from clusterkernel.payload import cell
from clusterkernel.submission import complete, submit
from pathlib import Path
import helper
artefact = cell.build("import helper, os; os.umask(0); x = helper.value; x", {}, bind=("x",), modules_root=Path.cwd())
made = submit(complete(ck.Executor(sys.argv[1], tasks_per_node=2, **eval(sys.argv[3])).spec), artefact)
print(made.result(60), made.outputs["x"], made.results())
again = made.rerun()
print(again.result(60), again.outputs["x"])
"""


def modes_of_one_job(platform: Platform, umask: str) -> dict[str, int]:
    """Have a process with this umask submit a job, and one more like it; what was made, with its mode."""
    (platform.shared / "pkg" / "deep").mkdir(parents=True)
    (platform.shared / "helper.py").write_text("import pkg.deep\nvalue = 5\n")
    for folder in ("pkg", "pkg/deep"):
        (platform.shared / folder / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", _ONE_JOB, platform.backend, umask, repr(platform.fields)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 5 [5, 5]\n5 5\n"
    root = JobRoot().path
    return {str(path.relative_to(root)): path.lstat().st_mode for path in [root, *root.rglob("*")]}


@pytest.mark.parametrize("umask", ["000", "002", "077"])
@pytest.mark.parametrize("platform", ["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def test_folders_are_private_whatever_the_umask(request: pytest.FixtureRequest, platform: str, umask: str) -> None:
    modes = modes_of_one_job(request.getfixturevalue(platform), umask)
    folders = {path: stat.S_IMODE(mode) for path, mode in modes.items() if stat.S_ISDIR(mode)}
    assert len(folders) > 15
    theirs = ("__pycache__",)  # what Python itself makes, in folders of ours
    assert {mode for path, mode in folders.items() if not path.endswith(theirs)} == {0o700}, folders
    pickles = [path for path in modes if path.endswith((".pkl", ".json"))]
    assert len([path for path in pickles if path.endswith("result.pkl")]) == 4
    assert {stat.S_IMODE(modes[path]) for path in pickles} == {0o600}


# -- what is looked at before it is loaded ----------------------------------------------------------


@needs_root
@pytest.mark.parametrize("how", [plant, plant_link, plant_link_of_ours], ids=lambda how: how.__name__)
@pytest.mark.parametrize("what", ["result.pkl", "outputs/x.pkl"])
def test_a_file_of_another_user_is_not_loaded(
    job: ck.Job, canary: Path, what: str, how: Callable[[Path, Path], None]
) -> None:
    path = job.out() / what
    how(path, canary)
    said = refused(job.result if what == "result.pkl" else lambda: job.outputs["x"], canary)
    assert f"{path} belongs to another user" in said


@needs_root
def test_another_users_exception_is_not_loaded(local: Platform, canary: Path) -> None:
    job = local.executor().submit(int, "no number")
    assert job.wait(LIMIT) is JobState.FAILED
    plant(job.out() / "error.pkl", canary)
    error = job.exception()
    assert isinstance(error, JobRootError)
    assert "belongs to another user" in str(error)
    assert not canary.exists()
    job.summary()  # a card can still be drawn


@needs_root
def test_what_lies_beside_is_not_loaded_either(job: ck.Job, canary: Path) -> None:
    # A function that comes back takes the values of the names it uses from the other outputs, and from the payload.
    for path in (job.out() / "outputs" / "y.pkl", job.folder.payload / "names.pkl"):
        kept = path.read_bytes() if path.exists() else None
        path.touch()
        plant(path, canary)
        assert str(path) in refused(job.result, canary)
        assert str(path) in refused(lambda: job.outputs["x"], canary)
        path.unlink()
        if kept is not None:
            path.write_bytes(kept)
    assert job.result() == 42


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777, 0o702])
@pytest.mark.parametrize(
    "where", ["", "payload", "out", "out/0", "out/0/0.0", "out/0/0.0/outputs", "out/0/0.0/result.pkl", ".."]
)
def test_where_another_user_can_write_nothing_is_loaded_until_it_is_mended(
    job: ck.Job, canary: Path, where: str, mode: int
) -> None:
    path = Path(os.path.normpath(job.folder.path / where))
    before = stat.S_IMODE(path.stat().st_mode)
    path.chmod(mode)
    said = refused(job.result, canary)
    assert f"{path} can be written by another user" in said
    assert f"chmod go-w {path}" in said
    path.chmod(before)
    assert job.result() == 42, "the refusal is not remembered"
    assert job.outputs["x"] == 21


@needs_root
@pytest.mark.parametrize("where", ["", "out", "out/0/0.0"])
def test_a_folder_of_another_user_is_refused(job: ck.Job, canary: Path, where: str) -> None:
    give_away(job.folder.path / where)
    assert "belongs to another user" in refused(job.result, canary)


@needs_root
def test_a_rerun_takes_nothing_of_another_user_along(job: ck.Job, canary: Path) -> None:
    plant(job.folder.payload / "names.pkl", canary)
    refused(job.rerun, canary)
    assert JobRoot().ids() == [job.id]


@needs_root
def test_all_ranks_are_looked_at(local: Platform, canary: Path) -> None:
    job = local.executor(tasks_per_node=2).submit(int, "3")
    job.wait(LIMIT)
    plant(job.out(1) / "result.pkl", canary)
    assert job.result() == 3
    assert "0.1/result.pkl belongs to another user" in refused(job.results, canary)


def held(local: Platform) -> tuple[ck.Job, Path]:
    """A job that has yet to start, and what lets it."""
    gate = local.shared / "gate"
    return local.executor(setup=[f"until [ -e {gate} ]; do sleep 0.02; done"]).submit(int, "3"), gate


@pytest.mark.parametrize("how", [pytest.param("plant", marks=needs_root), "root", "folder", "payload"])
def test_a_job_does_not_run_what_another_user_could_have_put_there(local: Platform, canary: Path, how: str) -> None:
    job, gate = held(local)
    if how == "plant":
        plant(job.folder.payload / "call.pkl", canary)
    else:
        places = {"root": job.folder.path.parent, "folder": job.folder.path, "payload": job.folder.payload}
        places[how].chmod(0o777)
    gate.touch()
    assert job.wait(LIMIT) is JobState.LAUNCH_FAILED
    assert "another user, so nothing in it is loaded" in job.reason
    assert not canary.exists()


def test_a_link_of_ones_own_is_followed(job: ck.Job, tmp_path: Path) -> None:
    # Somebody moved a large job to another disk.
    apart = tmp_path / "apart"
    shutil.move(job.folder.path / "out", apart)
    (job.folder.path / "out").symlink_to(apart)
    assert job.result() == 42
