"""Profiles: three layers of TOML, and where each value came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterkernel import fields, profiles
from clusterkernel.errors import ProfileError, SpecError


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A file for each layer, none there yet; the working folder lies two below the project's."""
    paths = {
        "site": tmp_path / "etc" / "profiles.toml",
        "user": tmp_path / "config" / "clusterkernel" / "profiles.toml",
        "project": tmp_path / "project" / ".clusterkernel.toml",
    }
    for path in paths.values():
        path.parent.mkdir(parents=True)
    monkeypatch.setattr(profiles, "SITE", paths["site"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    start = paths["project"].parent / "notebooks" / "deep"
    start.mkdir(parents=True)
    monkeypatch.chdir(start)
    return paths


def refusal(name: str = "h100") -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        profiles.load(name)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.hint
    return caught.value


def test_the_later_layer_wins_field_by_field(layers: dict[str, Path]) -> None:
    layers["site"].write_text('[profiles.h100]\nbackend = "slurm"\nnodes = 1\ntime = "1h"\n')
    layers["user"].write_text('[profiles.h100]\nnodes = 2\naccount = "mine"\n')
    layers["project"].write_text("[profiles.h100]\nnodes = 4\n")
    profile = profiles.load("h100")
    assert profile.values == {"backend": "slurm", "nodes": 4, "time": "1h", "account": "mine"}
    assert profile.origins == {
        "backend": f"backend in profile h100 of {layers['site']}",
        "nodes": f"nodes in profile h100 of {layers['project']}",
        "time": f"time in profile h100 of {layers['site']}",
        "account": f"account in profile h100 of {layers['user']}",
    }


def test_every_run_starts_at_the_default_profile(layers: dict[str, Path]) -> None:
    layers["site"].write_text('[profiles.default]\ntime = "1h"\npartition = "cpu"\n')
    layers["project"].write_text('[profiles.default]\naccount = "ours"\n')
    layers["user"].write_text('[profiles.h100]\npartition = "gpu"\n')
    assert profiles.default().values == {"time": "1h", "partition": "cpu", "account": "ours"}
    # A named profile wins over the default one, also where the default's layer is later.
    layers["project"].write_text('[profiles.default]\npartition = "late"\n')
    assert profiles.load("h100").values == {"time": "1h", "partition": "gpu"}
    assert profiles.load("default").values == profiles.default().values


def test_without_files_there_is_nothing(layers: dict[str, Path]) -> None:
    assert profiles.names() == []
    assert profiles.default().values == {}
    error = refusal()
    assert "There is no profile 'h100'." in str(error)
    assert str(layers["user"]) in error.hint, "the mend says which file to write"


def test_an_unknown_profile_names_the_nearest(layers: dict[str, Path]) -> None:
    layers["user"].write_text("[profiles.h100]\n[profiles.a100]\n[profiles.default]\n")
    assert profiles.names() == ["a100", "default", "h100"]
    assert refusal("h10").hint == "Did you mean h100?"
    assert refusal("zzz").hint == "Known: a100, h100."


def test_an_unknown_field_is_refused_with_its_file(layers: dict[str, Path]) -> None:
    layers["project"].write_text("[profiles.h100]\ngpus_pr_node = 8\n")
    error = refusal()
    assert f"{layers['project']}: profile h100 has the unknown field 'gpus_pr_node'." in str(error)
    assert error.hint == "Did you mean gpus_per_node?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[profiles.h100\n", "Mend the file: it is TOML."),
        (b'[profiles.h100]\ntime = "4h\n', "Mend the file: it is TOML."),
        (b"\xff\xfe", "Mend the file: it is TOML."),
        (b"profiles = 3\n", "profiles must be tables. Write [profiles.NAME]"),
        (b"[profiles]\nh100 = 3\n", "profiles must be tables. Write [profiles.NAME]"),
    ],
)
@pytest.mark.parametrize("layer", ["site", "user", "project"])
def test_a_broken_file_is_named(layers: dict[str, Path], layer: str, text: bytes, said: str) -> None:
    layers[layer].write_bytes(text)
    error = refusal()
    assert str(layers[layer]) in str(error)
    assert said in str(error)


def test_a_file_that_cannot_be_read_is_named(layers: dict[str, Path]) -> None:
    layers["user"].mkdir()
    assert f"{layers['user']} cannot be read: Is a directory." in str(refusal())


def test_the_environment_names_another_file(
    layers: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers["user"].write_text("[profiles.mine]\nnodes = 2\n")
    other = tmp_path / "other.toml"
    other.write_text("[profiles.other]\nnodes = 3\n")
    monkeypatch.setenv("CLUSTERKERNEL_PROFILES", str(other))
    assert profiles.names() == ["other"]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLUSTERKERNEL_PROFILES", "~/other.toml")
    assert profiles.names() == ["other"]


def test_the_nearest_project_file_counts(layers: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    layers["project"].write_text("[profiles.outer]\n")
    inner = Path.cwd().parent / ".clusterkernel.toml"
    inner.write_text("[profiles.inner]\n")
    assert profiles.names() == ["inner"]
    assert profiles.names(layers["project"].parent) == ["outer"]
    inner.unlink()
    inner.mkdir()  # not a file: passed over
    assert profiles.names() == ["outer"]


def test_a_working_folder_that_was_removed_is_no_obstacle(layers: dict[str, Path]) -> None:
    layers["user"].write_text("[profiles.h100]\nnodes = 2\n")
    Path.cwd().rmdir()
    assert profiles.load("h100").values == {"nodes": 2}


def test_a_project_file_that_anybody_could_have_laid_there_is_refused(
    layers: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in /tmp: its setup lines would run as the person who works below it.
    layers["project"].write_text('[profiles.default]\nsetup = ["touch /tmp/owned"]\n')
    if os.geteuid() == 0:
        os.chown(layers["project"], 65534, -1)
    else:  # only root can give a file away: look at it as somebody else
        monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert profiles.default().values, "a colleague's file in a project's folder is fine"
    layers["project"].parent.chmod(0o1777)
    with pytest.raises(ProfileError, match="belongs to another user"):
        profiles.default()


def test_values_build_a_spec_and_errors_name_the_file(layers: dict[str, Path]) -> None:
    layers["user"].write_text(
        '[profiles.h100]\nbackend = "slurm"\nnodes = 2\ngpus_per_node = "h100:8"\ntime = "4h"\nexclusive = true\n'
        'tags = ["a", "b"]\nsetup = ["module load cuda"]\nmax_cost = 20.5\nsbatch = ["--opt=x"]\n'
        '[profiles.h100.env]\nNCCL_DEBUG = "INFO"\nN = 3\n'
        "[profiles.bad]\nmemory = 64\n"
    )
    profile = profiles.load("h100")
    made = fields.build(profile.values, origins=profile.origins)
    assert made.gpus == 16
    assert made.environment.env == {"NCCL_DEBUG": "INFO", "N": "3"}
    assert (made.tags, made.max_cost, made.extra) == (("a", "b"), 20.5, {"slurm": ("--opt=x",)})
    bad = profiles.load("bad")
    with pytest.raises(SpecError) as caught:
        fields.build(bad.values, origins=bad.origins)
    assert str(caught.value).startswith(f"memory in profile bad of {layers['user']} = '64' has no unit.")
