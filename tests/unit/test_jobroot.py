"""The folder of the job folders: no number is given twice, no kill and no neighbour does harm."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkernel import jobroot
from clusterkernel.errors import JobRootError, PayloadError, UnknownJobError
from clusterkernel.jobroot import JobRoot, default_root
from clusterkernel.runtime import events
from tests.unit import making

CREATE = """
import sys
from pathlib import Path
from clusterkernel.jobroot import JobRoot
from tests.unit import making
root = JobRoot(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    print(making.job(root, "true", name=sys.argv[3]).id, flush=True)
"""
# A process that is killed at one moment of a creation.
KILLED = """
import os, signal, sys
from pathlib import Path
from clusterkernel import jobfolder, jobroot
from tests.unit import making
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def half(path):
    (path / "payload.json").write_text('{"kind": "comm')
    die()
root = jobroot.JobRoot(Path(sys.argv[1]))
moment = sys.argv[2]
record = lambda job_id, key: making.record(job_id, key)
payload = lambda path: None
if moment == "record":
    record = die
elif moment == "payload":
    payload = half
elif moment == "watched":
    jobroot.touch = die
elif moment == "description":
    jobfolder.os.replace = die
root.create(record, payload)
"""


def refusal(call: Callable[[], object]) -> JobRootError:
    with pytest.raises(JobRootError) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.hint
    return caught.value


# -- numbers -------------------------------------------------------------------------


@pytest.mark.parametrize("each", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_many_processes_share_no_number_and_lose_no_job(each: int) -> None:
    creators = [making.python(CREATE, str(default_root()), str(each), f"by-{number}") for number in range(8)]
    for creator in creators:
        assert creator.stdout is not None
        assert creator.stdout.readline() == "ready\n"
    for creator in creators:  # all at once
        assert creator.stdin is not None
        creator.stdin.write("go\n")
        creator.stdin.flush()
    given = {number: creator.communicate()[0].split() for number, creator in enumerate(creators)}
    assert all(creator.returncode == 0 for creator in creators)
    every = [job_id for ids in given.values() for job_id in ids]
    assert len(every) == len(set(every)) == 8 * each
    folders = {folder.id: folder for folder in JobRoot().folders()}
    assert folders.keys() == set(every)
    for number, ids in given.items():
        assert all(folders[job_id].record.spec.name == f"by-{number}" for job_id in ids), "somebody else's job"
        assert ids == sorted(ids, key=int), "a later job has a larger number"
    assert len({folder.record.key for folder in folders.values()}) == 8 * each


def test_numbers_go_on_after_those_of_others() -> None:
    one, other = JobRoot(), JobRoot()
    assert [making.job(one, "true").id for _ in range(3)] == ["1", "2", "3"]
    assert [making.job(other, "true").id for _ in range(12)][-1] == "15"
    assert making.job(one, "true").id == "16"
    assert [folder.id for folder in JobRoot().folders()] == [str(number) for number in range(1, 17)]


def test_a_number_is_never_given_again() -> None:
    # A ledger of another host, or a person, still means the first job of that number.
    root = JobRoot()
    folders = [making.job(root, "true") for _ in range(3)]
    root.remove(folders[2])
    assert JobRoot().ids() == ["1", "2"]
    assert making.job(JobRoot(), "true").id == "4"
    for job_id in ("2", "4", "1"):
        JobRoot().remove(JobRoot().open(job_id))
    assert JobRoot().ids() == []
    assert making.job(JobRoot(), "true").id == "5"
    assert sum(name.startswith(".last-") for name in os.listdir(root.path)) == 1


def test_a_removed_job_is_gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    root = JobRoot()
    folder = making.job(root, "true")
    # As where a process is killed after the first step, or NFS keeps a file that is open.
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    root.remove(folder)
    assert JobRoot().folders() == []
    with pytest.raises(UnknownJobError):
        JobRoot().open("1")
    monkeypatch.undo()
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", str(root.path))
    root.remove(making.job(root, "true"))
    assert not [name for name in os.listdir(root.path) if name.startswith(".removed")], "the rest goes next time"


@pytest.mark.parametrize("name", ["²", "٣", "007", "0", "-1", "1e3", "12.bak", "x", ".12"])
def test_other_names_in_the_root_are_no_jobs(name: str) -> None:
    root = JobRoot()
    making.job(root, "true")
    (root.path / name).mkdir()
    assert [folder.id for folder in root.folders()] == root.ids() == ["1"]
    assert making.job(JobRoot(), "true").id == "2"
    with pytest.raises(UnknownJobError):
        root.open(name)


@pytest.mark.parametrize("job_id", ["", "99", "12_3", "../1", "1/../1", "slurm:8123", "1\n", "9" * 5000])
def test_an_unknown_number_is_refused(job_id: str) -> None:
    making.job(JobRoot(), "true")
    with pytest.raises(UnknownJobError) as caught:
        JobRoot().open(job_id)
    assert "%cluster_jobs" in caught.value.hint
    assert len(str(caught.value).splitlines()) == 1


# -- kills -----------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["record", "payload", "watched", "description"])
def test_a_kill_while_a_job_is_made_harms_no_other(moment: str) -> None:
    root = JobRoot()
    before = making.job(root, "true")
    killed = making.python(KILLED, str(root.path), moment)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    after = making.job(JobRoot(), "true")
    assert [folder.id for folder in JobRoot().folders()] == [before.id, after.id] == ["1", "3"]
    with pytest.raises(UnknownJobError):
        JobRoot().open("2")


def test_a_kill_at_any_moment_leaves_all_readable() -> None:
    root = JobRoot()
    told: list[str] = []
    for count in range(1, 13):
        creator = making.python(CREATE, str(root.path), "100000", f"by-{count}")
        assert creator.stdin is not None
        assert creator.stdout is not None
        creator.stdin.write("go\n")
        creator.stdin.flush()
        assert creator.stdout.readline() == "ready\n"
        told += [creator.stdout.readline().strip() for _ in range(count * 7 % 10)]
        creator.kill()
        told += creator.communicate()[0].split("\n")[:-1]
    listed = [folder.id for folder in JobRoot().folders()]
    assert set(told) <= set(listed), "a job that was told of is lost"
    for job_id in listed:
        folder = JobRoot().open(job_id)
        assert (folder.payload / "payload.json").read_bytes()
        assert not folder.prepared()
        assert folder.submission() is None


def test_a_payload_that_cannot_be_made_leaves_no_job() -> None:
    def fail(_: Path) -> None:
        raise PayloadError("x cannot be pickled.")

    with pytest.raises(PayloadError, match="cannot be pickled"):
        JobRoot().create(making.record, fail)
    assert JobRoot().ids() == []
    assert not [name for name in os.listdir(default_root()) if name.startswith(".removed")]


# -- whose it is, and whether it can be used ------------------------------------------------


def test_the_root_and_all_folders_in_it_are_private() -> None:
    old = os.umask(0)
    try:
        making.job(JobRoot(), "true")
    finally:
        os.umask(old)
    folders = [path for path in [default_root(), *default_root().rglob("*")] if path.is_dir()]
    assert len(folders) > 5
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in folders} == dict.fromkeys(folders, 0o700)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o720])
def test_a_root_that_others_can_write_to_is_refused(mode: int) -> None:
    default_root().mkdir(parents=True)
    default_root().chmod(mode)
    error = refusal(lambda: making.job(JobRoot(), "true"))
    assert "can be written by another user" in str(error)
    assert os.listdir(default_root()) == []


def test_the_root_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    default_root().mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(default_root(), 65534, -1)
    else:  # only root can give a folder away: look at it as somebody else
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    error = refusal(lambda: making.job(JobRoot(), "true"))
    assert "belongs to another user" in str(error)
    assert "CLUSTERKERNEL_JOB_ROOT" in error.hint


def test_a_root_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Relative, since the tests' own folders are closed to others.
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    ours.chmod(0o500)
    theirs.chmod(0o555)
    if os.geteuid() == 0:
        os.chown(ours, 65534, 65534)
        os.chown(tmp_path, 65534, 65534)
    monkeypatch.chdir(tmp_path)

    def attempt(name: str) -> Callable[[], str]:
        def create() -> str:
            try:
                return making.job(JobRoot(Path(name)), "true").id
            except JobRootError as error:
                return str(error)

        return create

    mend = "Set CLUSTERKERNEL_JOB_ROOT to a folder of yours that the nodes share."
    assert making.as_nobody(attempt("ours")) == f"The job root ours cannot be used: Permission denied. {mend}"
    assert making.as_nobody(attempt("ours/new")) == f"The job root ours/new cannot be used: Permission denied. {mend}"
    (tmp_path / "file").touch()
    assert making.as_nobody(attempt("file")) == f"The job root file cannot be used: File exists. {mend}"
    assert "Not a directory" in making.as_nobody(attempt("file/below"))


@pytest.mark.parametrize("name", ["2", "claims"])
def test_a_full_disk_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    root = JobRoot()
    root.ensure()
    making.job(root, "true")
    real = os.mkdir

    def full(path: str | Path, *arguments: int, **about: int) -> None:
        if Path(path).name == name:
            raise OSError(28, "No space left on device", str(path))
        real(path, *arguments, **about)

    monkeypatch.setattr(os, "mkdir", full)
    error = refusal(lambda: making.job(root, "true"))
    assert "No space left on device" in str(error)
    assert JobRoot().ids() == ["1"]


def test_a_root_made_again_is_another_one() -> None:
    # A ledger that still knows the jobs of the old one must not speak for the new ones.
    first = JobRoot()
    assert jobroot.identity(first.path) == ""
    first.ensure()
    word = jobroot.identity(first.path)
    assert len(word) == 16
    JobRoot().ensure()
    assert jobroot.identity(first.path) == word
    subprocess.run(["rm", "-rf", str(first.path)], check=True)
    JobRoot().ensure()
    assert jobroot.identity(first.path) not in ("", word)


def test_the_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", "~/elsewhere")
    assert default_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("CLUSTERKERNEL_JOB_ROOT")
    assert default_root() == tmp_path / ".clusterkernel" / "jobs"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERKERNEL_JOB_ROOT", "relative")
    assert default_root() == tmp_path / "relative"


# -- the runtime -------------------------------------------------------------------------


def run(runtime: Path, *arguments: str, **about: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, str(runtime), *arguments],
        capture_output=True,
        text=True,
        timeout=making.CEILING,
        check=False,
        env={**environment, **about},
    )


@pytest.mark.parametrize("name", ["jobs", *making.NASTY])
def test_what_runs_inside_a_job_runs_from_any_folder(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = JobRoot(tmp_path / name)
    folder = making.job(root, "sh", "-c", 'echo "$0 $CLUSTERKERNEL_JOB_DIR"; exit 3', name)
    done = run(root.runtime(), "supervise", str(folder.path), SLURM_JOB_ID="77")
    assert (done.returncode, done.stderr) == (3, "")
    assert (folder.out() / "stdout").read_text() == f"{name} {folder.path}\n"
    assert events.read(str(folder.events()))[-1]["state"] == "FAILED"
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("safe", [{}, {"PYTHONSAFEPATH": "1"}], ids=["", "safe path"])
def test_its_main_file_runs_as_well_as_its_folder(safe: dict[str, str]) -> None:
    # Of the two the file starts sooner.
    root = JobRoot()
    folder = making.job(root, "sh", "-c", "exit 3")
    done = run(root.runtime() / "__main__.py", "supervise", str(folder.path), SLURM_JOB_ID="77", **safe)
    assert (done.returncode, done.stderr) == (3, "")


def test_the_runtime_needs_neither_the_product_nor_its_packages() -> None:
    runtime = JobRoot().runtime()
    code = "import sys; sys.path.insert(0, sys.argv[1]); import ckruntime.cli, ckruntime.supervisor, ckruntime.localrun"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(runtime)], check=False)
    assert done.returncode == 0


def test_an_unknown_part_is_an_error() -> None:
    done = run(JobRoot().runtime(), "nonsense")
    assert done.returncode == 1
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_runtime_is_laid_out_once() -> None:
    root = JobRoot()
    runtime = root.runtime()
    inode = runtime.stat().st_ino
    times = {path: path.stat().st_mtime_ns for path in runtime.rglob("*.py")}
    assert JobRoot().runtime() == runtime
    assert runtime.stat().st_ino == inode
    assert {path: path.stat().st_mtime_ns for path in runtime.rglob("*.py")} == times
    assert os.listdir(runtime.parent) == [runtime.name]
    assert root.ids() == []


RUNTIME = """
import sys
from pathlib import Path
from clusterkernel.jobroot import JobRoot
print("ready", flush=True)
sys.stdin.readline()
print(JobRoot(Path(sys.argv[1])).runtime())
"""


def test_four_processes_lay_it_out_at_once() -> None:
    makers = [making.python(RUNTIME, str(default_root())) for _ in range(4)]
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "ready\n"
    paths = {maker.communicate("go\n")[0].strip() for maker in makers}
    assert [maker.returncode for maker in makers] == [0] * 4
    assert len(paths) == 1
    runtime = Path(paths.pop())
    assert os.listdir(runtime.parent) == [runtime.name], "no rest of those that came second"
    assert run(runtime, "nonsense").returncode == 1


HALF = """
import os, signal, sys
from pathlib import Path
from clusterkernel import jobroot
real, count = jobroot.write_atomic, 0
def write(path, data):
    global count
    count += 1
    if count == 4:
        path.write_bytes(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, data)
jobroot.write_atomic = write
jobroot.JobRoot(Path(sys.argv[1])).runtime()
"""


def test_a_copy_that_a_killed_process_left_is_no_obstacle() -> None:
    killed = making.python(HALF, str(default_root()))
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(default_root() / ".runtime")) == 1
    assert run(JobRoot().runtime(), "nonsense").returncode == 1


@pytest.mark.parametrize("loss", ["__main__.py", "ckruntime/events.py", "ckruntime", "shim"])
def test_a_copy_that_lost_a_file_is_mended(loss: str) -> None:
    # Scratch file systems are swept by age, file by file.
    runtime = JobRoot().runtime()
    subprocess.run(["rm", "-rf", str(runtime / loss)], check=True)
    (runtime / "ckruntime").mkdir(exist_ok=True)
    (runtime / "ckruntime" / "context.py").write_text("half of i")
    assert JobRoot().runtime() == runtime
    assert run(runtime, "nonsense").returncode == 1
    folder = making.job(JobRoot(), "true")
    assert run(runtime, "supervise", str(folder.path)).returncode == 0
    assert os.listdir(runtime.parent) == [runtime.name]


def test_a_runtime_that_cannot_be_laid_out_is_told_in_one_line() -> None:
    root = JobRoot()
    root.ensure()
    (root.path / ".runtime").touch()
    assert str(root.path / ".runtime") in str(refusal(root.runtime))
