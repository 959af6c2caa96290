"""A command is a list of words; what no program can be given is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.errors import PayloadError
from clusterkernel.payload.command import build


def test_the_words_are_kept_as_they_are(tmp_path: Path) -> None:
    words = ["python", "-c", "print('a b')", "", "$HOME; rm -rf /", "new\nline", "é\u4e2d", "{torchrun}"]
    artefact = build(words)
    artefact.write(tmp_path)
    assert json.loads((tmp_path / "payload.json").read_text()) == {
        "kind": "command",
        "title": artefact.title,
        "argv": words,
    }
    assert artefact.kind == "command"
    assert artefact.outputs == artefact.bind == artefact.captured == ()


def test_the_title_is_one_short_line() -> None:
    assert build(["python", "train.py", "two words"]).title == "python train.py 'two words'"
    assert build(["sh", "-c", "a\nb" * 100]).title.count("\n") == 0
    assert len(build(["x" * 1000]).title) == 80
    assert build(["python"], title="nightly run").title == "nightly run"
    assert build(("python", "x")).body["argv"] == ["python", "x"]


@pytest.mark.parametrize(
    ("argv", "said", "mend"),
    [
        (
            "python train.py --x 'a b'",
            'is one string, "python train.py',
            "Pass a list: ['python', 'train.py', '--x', 'a b'].",
        ),
        ("a | b", "is one string", '["bash", "-c", "..."]'),
        ("it's", "is one string", "Pass a list of words"),
        (b"python", "is one string", "Pass a list of words"),
        ([], "is empty", "Pass a list of words"),
        ([""], "program is an empty text", "Pass a list of words"),
        (["python", 3], "argument 1 of the command is 3, of type int", "Write it as text: '3'."),
        (["python", Path("x")], "argument 1", "Write it as text: 'x'."),
        ([None], "program of the command is None", "Write it as text"),
        (["python", "a\0b"], "holds a NUL character", "Leave it out."),
        (["python", "\udcff"], "is no valid text", "Rename"),
        (["python", "x" * (128 << 10)], "argument 1 of the command takes 128 KiB", "into a file"),
        (["x" * (100 << 10)] * 30, "takes 3000 KiB, more than the 2048 KiB", "into a file"),
        (None, "is of type NoneType", "Pass a list of words"),
        ({"python"}, "is of type set", "Pass a list of words"),
    ],
)
def test_what_is_no_command_is_refused(argv: Any, said: str, mend: str) -> None:
    with pytest.raises(PayloadError) as caught:
        build(argv)
    assert said in str(caught.value)
    assert mend in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_longest_argument_that_is_let_through_can_be_executed() -> None:
    import subprocess

    word = "x" * ((128 << 10) - 1)
    assert build(["echo", word]).body["argv"][1] == word
    assert subprocess.run(["echo", word], capture_output=True, check=True).stdout.decode() == word + "\n"
