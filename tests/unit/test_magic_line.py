"""The magic's line: words, quotes, expressions, flags and their errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
from IPython.core.error import UsageError

from clusterkernel.errors import PendingError
from clusterkernel.magics import commands
from clusterkernel.magics.line import split
from clusterkernel.magics.options import parse

NAMES: dict[str, Any] = {"n": 2, "lr": 1e-4, "odd": {"}": "x y"}, "names": ["a", "b"], "table": {1: 2}}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("--nodes 2  --time\t4h", ["--nodes", "2", "--time", "4h"]),
        ("--name 'my job' --x \"a 'b'\"", ["--name", "my job", "--x", "a 'b'"]),
        (r"a\ b \{n\}", ["a b", "{n}"]),
        ("''", [""]),
        ("--env A=$HOME --env B=${X}", ["--env", "A=$HOME", "--env", "B=${X}"]),
        ("--nodes {n} --time {n+1}h", ["--nodes", "2", "--time", "3h"]),
        ("'run {n}' \"{n}\"", ["run 2", "2"]),
        ('{odd["}"]}', ["x y"]),
        ("{lr:.1e} {n:03d}", ["1.0e-04", "002"]),
        ("-o {names}", ["-o", "a,b"]),
        ("{{n}} a}b }}", ["{n}", "a}b", "}"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert split(line, NAMES) == words


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("--name 'open", "not closed"),
        ("{nope}", "'nope' is not known"),
        ("{n", "no Python expression"),
        ("{}", "no Python expression"),
        ('--env CFG={"a": 1}', "Write {{ and }}"),
        ("{table}", "is a dict"),
        ("{1/0}", "ZeroDivisionError"),
    ],
)
def test_bad_lines_get_one_line(line: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        split(line, NAMES)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_of_ours_in_an_expression_stays_what_it_is() -> None:
    class Early:
        def __getitem__(self, _: object) -> None:
            raise PendingError("model is not there yet.")

    with pytest.raises(PendingError):
        split("{model[0]}", {"model": Early()})


def train(*words: str) -> dict[str, Any]:
    command = commands.find("train")
    assert command is not None
    parsed = parse(commands.parser_of(command), commands.details(command).options, words)
    return {name: value for name, value in vars(parsed).items() if value is not None}


def test_flags() -> None:
    assert train("--nodes", "2", "-o", "model,", "history", "--wait") == {
        "nodes": "2",
        "out": ["model,", "history"],
        "wait": True,
    }
    assert train("--exclusive") == {"exclusive": "true"}
    assert train("--exclusive", "no", "--gpus", "8") == {"exclusive": "no", "gpus": "8"}
    assert train("--env", "A=1", "--env", "B=-2") == {"env": ["A=1", "B=-2"]}


def test_a_value_may_look_like_a_flag() -> None:
    given = train("--sbatch", "--nodelist=gpu1", "--sbatch", "-w gpu2", "--setup", "-x", "--time", "-4h")
    assert given == {"sbatch": ["--nodelist=gpu1", "-w gpu2"], "setup": ["-x"], "time": "-4h"}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--node", "2"], "Did you mean --nodes?"),
        (["--gpu-per-node=2"], "Did you mean --gpus-per-node?"),
        (["--nodes"], "expected one argument"),
        (["--nodes", "--time", "4h"], "expected one argument"),
        (["--nodes", "1", "--nodes", "2"], "--nodes is given twice"),
        (["model"], "does not know what to do with 'model'"),
        (["-z"], "has no option -z"),
    ],
)
def test_bad_flags_get_one_line(words: list[str], part: str) -> None:
    with pytest.raises(UsageError) as caught:
        train(*words)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: command.name)
def test_every_magic_has_help_with_an_example(command: commands.Command) -> None:
    text = commands.parser_of(command).format_help()
    assert text.startswith("Usage: %")
    assert f"%{command.magic}" in text.partition("Examples:")[2]
    for option in commands.details(command).options:
        assert (option.flags[0] if option.flags[0].startswith("-") else option.metavar) in text
        assert option.help.endswith(".")


def test_the_value_in_a_flags_help_can_be_typed_as_it_stands() -> None:
    for command in commands.COMMANDS:
        about, parser = commands.details(command), commands.parser_of(command)
        first = ["12" for option in about.options if not option.flags[0].startswith("-") and not option.many]
        for option in about.options:
            for example in re.findall(rf"{option.flags[0]} (?:\"[^\"]*\"|'[^']*'|\S+)(?=[.,]? |\.?$)", option.help):
                parse(parser, about.options, [*first, *split(example, {})])
            if option.flags[0].startswith("--") and option.metavar and option.many != "switch":
                typed = split(f"{option.flags[0]} {option.metavar}", {})
                assert len(typed) == 2, "a value with spaces is shown in quotes"


def test_examples_can_be_parsed() -> None:
    for command in commands.COMMANDS:
        about = commands.details(command)
        for example in about.examples:
            name, _, rest = example.partition("\n")[0].lstrip("%").partition(" ")
            assert name == command.magic
            parse(commands.parser_of(command), about.options, split(rest, {}))
