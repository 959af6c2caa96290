"""Which checkpoint a later attempt goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from clusterkernel.runtime import resume


def leave(folder: Path, name: str, text: str | None = "{}") -> None:
    (folder / name).mkdir()
    if text is not None:
        (folder / name / "trainer_state.json").write_text(text)


def test_the_last_complete_checkpoint_of_the_job_itself(tmp_path: Path) -> None:
    assert resume.checkpoints(str(tmp_path / "none")) == {}
    leave(tmp_path, "checkpoint-99")
    leave(tmp_path, "checkpoint-10", "of before")
    before = resume.checkpoints(str(tmp_path))
    assert set(before) == {"checkpoint-99", "checkpoint-10"}
    assert resume.newest(before, before) == ""
    leave(tmp_path, "checkpoint-9")
    assert resume.newest(resume.checkpoints(str(tmp_path)), before) == "checkpoint-9"
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text("anew")
    leave(tmp_path, "checkpoint-100", None)  # not complete
    leave(tmp_path, "checkpoint-last")
    assert resume.newest(resume.checkpoints(str(tmp_path)), before) == "checkpoint-10"


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("a: 1", True),
        ("a: 1\nauto_resume_from_checkpoints: true\nresume_from_checkpoint: x\nb:\n  - c", True),
        ('{"a": 1}', False),
        ("a: 1\n...\n", False),
    ],
)
def test_the_configuration_names_it(tmp_path: Path, text: str, done: bool) -> None:
    config = tmp_path / "config.yml"
    config.write_text(text)
    assert resume.go_on_from(str(config), '/data/a "b"/checkpoint-1') is done
    if done:
        before = yaml.safe_load(text)
        before.pop("auto_resume_from_checkpoints", None)
        wanted = {**before, "resume_from_checkpoint": '/data/a "b"/checkpoint-1'}
        assert yaml.safe_load(config.read_text()) == wanted
    else:
        assert config.read_text() == text
