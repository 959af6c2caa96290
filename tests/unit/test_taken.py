"""Files that are taken along: a copy as it was at submission, with a digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import clusterkernel as ck
from clusterkernel import fields
from clusterkernel.errors import SpecError
from clusterkernel.payload import command, taken

CEILING = 60.0


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "notebook"
    (folder / "data" / ".git").mkdir(parents=True)
    (folder / "data" / "deep").mkdir()
    (folder / "data" / "a.csv").write_text("1,2")
    (folder / "data" / "deep" / "b.csv").write_text("3,4")
    (folder / "data" / ".git" / "config").write_text("no")
    (folder / "left,right.txt").write_text("both")
    (folder / "data" / "payload.json").write_text("mine")
    (folder / "go.sh").write_text("#!/bin/sh\necho went\n")
    (folder / "go.sh").chmod(0o755)
    (tmp_path / "far.txt").write_text("far")
    monkeypatch.chdir(folder)
    return folder


def environment(*files: str, **other: object) -> object:
    return fields.build({"files": list(files), **other}).environment


def read() -> dict[str, str]:
    """What a job finds."""
    root = Path(os.environ["CLUSTERKERNEL_FILES"])
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_job_finds_them_as_they_were(here: Path) -> None:
    ex = ck.Executor("local", files=["data", "../far.txt", r"left\,right.txt", "go.sh"])
    job = ex.submit(read)
    (here / "data" / "a.csv").write_text("changed")
    assert job.result(CEILING) == {
        "data/a.csv": "1,2",
        "data/deep/b.csv": "3,4",
        "data/payload.json": "mine",
        "far.txt": "far",
        "go.sh": "#!/bin/sh\necho went\n",
        "left,right.txt": "both",
    }
    assert job.rerun().result(CEILING) == job.result()
    again = job.rerun(files=["data/a.csv"])
    assert again.result(CEILING) == {"data/a.csv": "changed"}
    assert "--files data" in job.record.payload.inputs
    assert again.record.payload.inputs["--files data/a.csv"]


def test_programs_stay_programs(here: Path) -> None:
    ex = ck.Executor("local", files="go.sh")
    job = ex.run(["sh", "-c", '"$CLUSTERKERNEL_FILES/go.sh"'])
    job.result(CEILING)
    assert job.logs() == "went"


def test_the_digest_is_that_of_the_content(here: Path) -> None:
    def digests() -> dict[str, str | None]:
        return dict(taken.with_files(command.build(["x"]), environment("data", "go.sh")).inputs_digest)

    before = digests()
    (here / "data" / "a.csv").touch()
    (here / "data" / ".git" / "config").write_text("other")
    assert digests() == before
    (here / "data" / "deep" / "b.csv").write_text("3,5")
    after = digests()
    assert [after[name] == before[name] for name in ("--files data", "--files go.sh")] == [False, True]


def test_what_cannot_go_along_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(*files: str) -> str:
        with pytest.raises(SpecError) as caught:
            taken.with_files(command.build(["x"]), environment(*files))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "nothere is not in" in refusal("nothere")
    assert r"a comma in a name as '\,'" in refusal("left,right.txt")
    (here / "far.txt").write_text("near")
    assert "would both be far.txt" in refusal("far.txt", "../far.txt")
    assert "there is no user 'nosuchuser'" in refusal("~nosuchuser/x")
    monkeypatch.setattr(taken, "LIMIT", 5)
    assert "would take more than 5 B along" in refusal("data")


def test_a_comma_survives_being_written() -> None:
    spec = fields.build({"files": r"a\,b.csv, c.csv", "tags": r"x\,y"})
    assert spec.environment.files == ("a,b.csv", "c.csv")
    assert spec.tags == ("x,y",)
    assert fields.build(fields.flatten(spec)) == spec
    assert fields.build(fields.values(spec)) == spec


def test_what_is_linked_goes_along(here: Path, tmp_path: Path) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "c.csv").write_text("5,6")
    (here / "data" / "train").symlink_to(tmp_path / "big")
    (here / "data" / "one.csv").symlink_to(tmp_path / "far.txt")
    job = ck.Executor("local", files=["data"]).submit(read)
    found = job.result(CEILING)
    assert found["data/train/c.csv"] == "5,6"
    assert found["data/one.csv"] == "far"


@pytest.mark.parametrize("odd", ["pipe", "nowhere", "circle"])
@pytest.mark.parametrize("named", ["data", "itself"])
def test_nothing_is_left_out_without_a_word(here: Path, odd: str, named: str) -> None:
    path = here / "data" / odd
    if odd == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("gone" if odd == "nowhere" else ".")
    with pytest.raises(SpecError, match=r"pipe is no regular|leads nowhere|is not in|leads back"):
        taken.with_files(command.build(["true"]), environment("data" if named == "data" else f"data/{odd}"))
