"""``!`` lines become Python as IPython would read them; other magics are refused by name and line."""

import ast
from typing import Any

import pytest

from clusterkernel.errors import PayloadError
from clusterkernel.payload.names import analyse
from clusterkernel.payload.shell import translate

IPYTHON_CASES = [
    "!ls",
    "  !ls",
    "! ls -l",
    "!!ls -l",
    "!echo 'a' \"b\" # c",
    "!echo it's",
    "!echo '''",
    "!echo (",
    "!echo )",
    '!echo "unfinished',
    "!a \\\n  b \\\n  c\nx = 1",
    "x = !ls",
    "x, y = !ls",
    "d[f(k='=')] = !ls -l",
    "a.b = ! ls",
    "x = !a \\\n  b",
    "(a,\n b) = !ls",
    "if x:\n    !ls\nelse:\n    y = !ls",
    "def f():\n  !ls\n  return 1",
    "x = 1\n!ls\n\n!ls 2\ny = !ls 3\n",
    "# a comment\n\n!ls",
    "for i in x: # c\n\t!ls {i}",
    "a != b",
    "a = b != c",
    "a = (b\n!= c)",
    "s = '''\n!ls\n%magic\nwhat?\n'''",
    "x = [\n1\n% 2\n]",
    "f'{x!r}'",
    "x = f'''\n{y\n!r}\n!ls'''",
    "x = a \\\n  % b",
    "f(a=\n'!x')",
    "!a != b",
]


def as_ipython(source: str) -> str:
    """What IPython makes of it, spelled as ours without the replacing."""
    from IPython.core.inputtransformer2 import TransformerManager

    manager = TransformerManager()
    manager.cleanup_transforms = []
    return manager.transform_cell(source)


class Calls(ast.NodeTransformer):
    """Bring both spellings to one form."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(attr="system" | "getoutput" as attr, value=ast.Call(func=ast.Name(id="get_ipython"))):
                return ast.Call(ast.Name(attr), node.args, [])
            case ast.Name(id="__clusterkernel_shell__"):
                return ast.Call(ast.Name("getoutput" if node.keywords else "system"), node.args[:1], [])
        return node


def common(source: str) -> str:
    return ast.unparse(ast.fix_missing_locations(Calls().visit(ast.parse(source))))


@pytest.mark.parametrize("source", IPYTHON_CASES)
def test_it_is_read_as_ipython_reads_it(source: str) -> None:
    ours = translate(source)
    if source.startswith("  "):
        ours, source = ours[2:], source[2:]
    assert common(ours) == common(as_ipython(source))
    assert ours.count("\n") == source.count("\n")


def test_source_without_such_lines_is_left_as_it_is() -> None:
    for source in ("x = 1\n", "", "x %= 3\r\ny = 'é'\x0c\n", "s = '''\n!ls'''", "a != b"):
        assert translate(source) == source


def run(source: str, **names: Any) -> list[tuple[str, bool]]:
    """The commands that the translated source would give to the shell."""
    commands = []

    def shell(command: str, expand: Any = None, *, capture: bool = False) -> list[str]:
        if expand is not None:
            try:
                command = expand()
            except Exception:
                pass
        commands.append((command, capture))
        return ["line"]

    exec(translate(source), {"__clusterkernel_shell__": shell, **names})
    return commands


REPLACED = [
    "!ls {x}",
    "!ls $x",
    "!ls {x!r} {y[1:]} {d['k']} {x + 'b'}",
    "!ls $$x $y",
    "!echo '$x' $x",
    "!echo $HOME",
    "!echo $HOME {x}",
    "!awk '{print $1}' {x}",
    "!awk '{{print $x}}' {x}",
    "!find . -exec ls {} \\;",
    "!echo {{x}}",
    "!echo ${{x}}",
    "!echo { {x}",
    "!echo {x",
    "!echo {x:>3}",
    "!echo {y:}",
    "!echo {missing} {x}",
    "!echo $x.y",
    "!echo $x. end",
    "!echo $(ls) $1",
    "!echo {(lambda q: q)(x)} {[i for i in y]}",
    "!echo {x!z}",
    "!echo { x }",
    "!echo {1/0}",
    "!echo {'{'} {x}",
    "!echo {await x} {x}",
    "!echo {(yield x)} {x}",
    "!echo {x := 3}",
    "!echo {x, y}",
    "!echo {\"it's\"} 'quoted'",
    "!a {x} \\\n  $y",
    "!echo é {x}",
]


@pytest.mark.parametrize("source", REPLACED)
def test_expressions_are_replaced_as_ipython_replaces_them(source: str) -> None:
    from IPython.utils.text import DollarFormatter

    names = {"x": "it's {y}", "y": ["1", "2"], "d": {"k": 3}}
    hidden = str.maketrans("{}$", "\1\2\3")
    raw = run(source.translate(hidden))[0][0].translate({new: old for old, new in hidden.items()})
    try:
        expected = DollarFormatter().vformat(raw, args=[], kwargs=dict(names))
    except Exception:
        expected = raw
    assert run(source, **names) == [(expected, False)]


def test_names_are_those_that_the_line_sees() -> None:
    source = "def f(local):\n    got = !ls {local} {outer}\n    return got\nf('here')"
    assert run(source, outer="there") == [("ls here there", True)]


def test_what_it_reads_is_known_without_running() -> None:
    names = analyse(translate("!ls {folder} $HOME\nx = !cat $name\n"))
    assert {"folder", "HOME", "name"} <= names.reads
    assert {"folder", "HOME", "name"} <= names.doubtful
    assert [one.name for one in names.assigns] == ["x"]


@pytest.mark.parametrize(
    ("source", "line", "name"),
    [
        ("%matplotlib inline", 1, "%matplotlib"),
        ("x = 1\n  %time f()", 2, "%time"),
        ("%%time\nf()", 1, "%%time"),
        ("\n%%bash\nls", 2, "%%bash"),
        ("x = 1\nif x:\n    %pip install y", 3, "%pip"),
        ("x = %timeit -o f()", 1, "%timeit"),
        ("!ls\n!ls\n%cd ..", 3, "%cd"),
        ("!a \\\n b\n%env A=1", 3, "%env"),
        ("(a,\n b) = %who", 2, "%who"),
        ("s = '''\n%x\n'''\n% load_ext y", 4, "%load_ext"),
    ],
)
def test_a_magic_is_refused_by_name_and_line(source: str, line: int, name: str) -> None:
    with pytest.raises(PayloadError) as caught:
        translate(source)
    assert str(caught.value).startswith(f"Line {line} of the cell: the magic {name} does not run in a job.")
    with pytest.raises(PayloadError, match=f"^Line {line + 1} "):
        translate(source, first_line=2)


@pytest.mark.parametrize("source", ["len?", "x = 1\nlen??", "?len", "x = 1\n??len", "np.*load*?", "x?  # why"])
def test_a_request_for_help_is_refused(source: str) -> None:
    with pytest.raises(PayloadError, match=r"^Line \d of the cell asks for help"):
        translate(source)


def test_a_question_in_a_command_or_comment_is_none() -> None:
    assert run("!ls a?\nx = 1  # really?\ny = '?'\n!ls ?") == [("ls a?", False), ("ls ?", False)]


def test_many_lines_are_quick_enough() -> None:
    source = "x = (1 +\n  2)\n!ls {x}\n" * 150
    assert translate(source).count("__clusterkernel_shell__") == 150
