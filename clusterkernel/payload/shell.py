"""IPython's ``!`` lines as Python, since a job has no IPython; other magics are refused.

``!cmd`` and ``x = !cmd`` become calls of a helper that the job's runtime puts
into the cell's namespace, on the same line::

    __clusterkernel_shell__(command, expand=None, *, capture=False)

It runs the text with ``/bin/sh`` and passes on what that prints, or with
``capture`` returns it as a list of lines. IPython replaces ``{expression}`` and
``$name`` in such lines, and where any of them cannot be evaluated it hands the
whole line to the shell as it is (so that ``$HOME`` and ``{print $1}`` reach it).
Hence `expand`: a function that gives the command with all of them replaced; if
it raises any exception, `command` stands. As a function of the cell's own code
it sees the names that the line would see, and `names` sees what it reads.
"""

from __future__ import annotations

import ast
import itertools
import re
import string
import tokenize
import warnings
from collections.abc import Iterator
from typing import Final

from clusterkernel.errors import PayloadError
from clusterkernel.payload.scopes import SHELL
from clusterkernel.runtime.payloadfile import lines as source_lines

__all__ = ["translate"]

_SILENT: Final = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
# ``$name`` and ``$$name``, but not between single quotes: as IPython has it.
_DOLLAR: Final = re.compile(r"(.*?)\$(\$?[\w\.]+)(?=([^']*'[^']*')*[^']*$)")
_MAGIC: Final = re.compile(r"%{1,2}[ \t]*([\w.]*)")
_HINTS: Final = {
    "bash": "Write its lines with ! in front.",
    "sh": "Write its lines with ! in front.",
    "cd": "Say --workdir on the %%cluster_train line, or use os.chdir.",
    "conda": "Say --interpreter or --setup on the %%cluster_train line.",
    "env": "Say --env NAME=VALUE on the %%cluster_train line.",
    "matplotlib": "Leave the line out: save figures with savefig, or return them as outputs.",
    "pip": "Write !pip instead, or install into the interpreter that the job uses.",
    "run": "Import the file as a module; those beside the notebook are taken along.",
    "set_env": "Say --env NAME=VALUE on the %%cluster_train line.",
    "time": "Leave it out: the job's card shows how long it ran.",
    "timeit": "Use the timeit module.",
    "writefile": "Write the file with open(...).write(...).",
}


def translate(source: str, *, first_line: int = 1) -> str:
    """The cell's source as Python, with as many lines.

    Parameters
    ----------
    source : str
        The cell's body as IPython reads it.
    first_line : int
        The number of its first line in the notebook's cell.

    Raises
    ------
    PayloadError
        It has a magic or a request for help: the line and its name.

    Examples
    --------
    >>> print(translate("files = !ls data"))
    files = __clusterkernel_shell__('ls data', capture=True)
    """
    if not re.search(r"[!%?]", source):
        return source
    lines = source_lines(source)
    done = 0  # lines before it have been looked at
    while True:
        for tokens in _logical_lines(lines):
            if tokens[0].start[0] <= done:
                continue
            row = _one(lines, tokens, first_line)
            if row is not None:
                done = row
                break  # the rest reads differently now
        else:
            return "".join(lines) if done else source


def _one(lines: list[str], tokens: list[tokenize.TokenInfo], first_line: int) -> int | None:
    """Translate one logical line where it asks for it; the number of the line that it then ends on."""
    first, last = tokens[0], tokens[-1]
    row = first.start[0] + first_line - 1
    if first.string == "%":
        raise _refused(lines[first.start[0] - 1][first.start[1] :], row)
    if "?" in (first.string, last.string) and (first.string != "!" or last.start[0] != first.start[0]):
        text = lines[last.start[0] - 1].strip()
        raise PayloadError(
            f"Line {last.start[0] + first_line - 1} of the cell asks for help, which a job cannot give: {text}",
            hint="Ask in a cell of its own.",
        )
    if first.string == "!":
        return _shell(lines, first.start, capture=None)
    after = _after_assignment(tokens)
    if after is None:
        return None
    if after.string == "%":
        raise _refused(lines[after.start[0] - 1][after.start[1] :], after.start[0] + first_line - 1)
    return _shell(lines, after.start, capture=True) if after.string == "!" else None


def _logical_lines(lines: list[str]) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each statement, without what is only layout; up to where the text is no Python at all."""
    here: list[tokenize.TokenInfo] = []
    depth = 0
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type == tokenize.NEWLINE or (token.type == tokenize.NL and depth == 0):
                if here:
                    yield here
                here = []
            elif token.type not in _SILENT and token.string.strip():
                here.append(token)
                if token.string in ("(", "[", "{"):
                    depth += 1
                elif token.string in (")", "]", "}"):
                    depth = max(0, depth - 1)
    except (tokenize.TokenError, SyntaxError):
        pass  # inside a shell line, or an error that the compiler will name
    if here:
        yield here


def _after_assignment(tokens: list[tokenize.TokenInfo]) -> tokenize.TokenInfo | None:
    """What follows the first ``=`` outside brackets."""
    depth = 0
    for token, following in itertools.pairwise(tokens):
        if token.string in ("(", "[", "{"):
            depth += 1
        elif token.string in (")", "]", "}"):
            depth -= 1
        elif token.string == "=" and depth == 0:
            return following
    return None


def _shell(lines: list[str], start: tuple[int, int], *, capture: bool | None) -> int:
    row, column = start
    end = row
    while lines[end - 1].endswith("\\\n") and end < len(lines):
        end += 1
    parts = [lines[row - 1][column + 1 :], *lines[row:end]]
    if capture is None:
        capture = parts[0].startswith("!")
        parts[0] = parts[0].removeprefix("!")
    command = " ".join([part.rstrip()[:-1] for part in parts[:-1]] + [parts[-1].rstrip()])
    call = f"{SHELL}({', '.join([*_arguments(command), *(['capture=True'] if capture else [])])})"
    newline = "\n" if lines[end - 1].endswith("\n") else ""
    lines[row - 1 : end] = [lines[row - 1][:column] + call + "\n"] + ["\n"] * (end - row)
    if not newline:
        lines[end - 1] = lines[end - 1][:-1]
    return end


def _arguments(command: str) -> list[str]:
    """The command, and how to replace what is to be replaced in it."""
    template, values = "", list[str]()
    try:
        for literal, field, conversion in _fields(command):
            template += literal.replace("{", "{{").replace("}", "}}")
            if field is not None:
                template += f"{{!{conversion}}}" if conversion else "{}"
                values.append(f"({_expression(field)})")
        if not values:
            return [repr(template.format())]  # ``{{`` and ``$$`` stand for one of them
    except (ValueError, SyntaxError):
        return [repr(command)]
    return [repr(command), f"lambda: {template!r}.format({', '.join(values)})"]


def _fields(command: str) -> Iterator[tuple[str, str | None, str | None]]:
    for literal, field, layout, conversion in string.Formatter().parse(command):
        done, text = 0, ""
        for match in _DOLLAR.finditer(literal):
            before, name = match.group(1, 2)
            text += before
            if name.startswith("$"):
                text += name
            else:
                yield text, name, None
                text = ""
            done = match.end()
        if conversion not in (None, "r", "s", "a"):
            raise ValueError(conversion)
        # A colon belongs to the expression: a slice, not a layout.
        whole = field if field is None or not layout else f"{field}:{layout}"
        yield text + literal[done:], whole, conversion


def _expression(text: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(text.strip(), mode="eval")
        compile(tree, "<line>", "eval")  # an ``await`` or ``yield`` is none
    return ast.unparse(tree)


def _refused(text: str, row: int) -> PayloadError:
    match = _MAGIC.match(text)
    word = match.group(1) if match else ""
    percent = "%%" if text.startswith("%%") else "%"
    hint = _HINTS.get(word, "Leave the line out, or run it in a cell of its own.")
    return PayloadError(f"Line {row} of the cell: the magic {percent}{word} does not run in a job.", hint=hint)
