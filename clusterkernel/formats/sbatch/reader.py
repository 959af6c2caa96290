"""Reads an sbatch script: its options as sbatch does, its lines as far as they say what runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from clusterkernel.errors import FormatError
from clusterkernel.formats import secrets
from clusterkernel.formats.launch.steps import Shape, Steps, counts, steps
from clusterkernel.formats.model import Format, How, Parsed, Program, SourceField
from clusterkernel.formats.sbatch import body as sbatch_body
from clusterkernel.formats.sbatch import grammar as sbatch_grammar
from clusterkernel.formats.sbatch.kept import Body
from clusterkernel.formats.sbatch.needs import Counts, Needs, needs, shape
from clusterkernel.formats.sbatch.words import directives
from clusterkernel.formats.shell import effects
from clusterkernel.formats.shell.values import Variables, names_in
from clusterkernel.spec import JobSpec, Launcher

__all__ = ["read"]

_SHELLS: Final = ("bash", "sh", "zsh", "dash", "ksh")
#: What a shell on a node has anyway, or what the launchers set.
_EVERYWHERE: Final = frozenset(
    "HOME USER LOGNAME PATH PWD OLDPWD HOSTNAME SHELL TMPDIR LANG TERM UID EUID RANDOM SECONDS BASHPID PPID LINENO "
    "IFS BASH_SOURCE BASH_VERSION FUNCNAME PIPESTATUS PYTHONPATH LD_LIBRARY_PATH CUDA_VISIBLE_DEVICES RANK LOCAL_RANK "
    "WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT OMP_NUM_THREADS @ * # ? $ ! - 0".split()
)


def read(text: str, *, name: str, values: Mapping[str, str] | None = None, options: str | Sequence[str] = ()) -> Parsed:
    """Read an sbatch script.

    Parameters
    ----------
    text : str
        The script.
    name : str
        What errors call it.
    values : mapping, optional
        Variables of its directives and lines, and ``SBATCH_...`` variables, which count over the script.
    options : str or sequence of str
        sbatch's command line before the script, which counts over all.

    Raises
    ------
    FormatError
        sbatch refuses it, a variable has no value, or it does what only Slurm can do.
    """
    values = {variable: str(value) for variable, value in (values or {}).items()}
    lines = _lines(text, name)
    header = sbatch_grammar.read(lines, name=name, values=values, options=sbatch_grammar.words_of(options))
    given = header.last
    if (export := given.get("export")) and export.value:
        pairs = (part.partition("=") for part in export.value.split(","))
        values = {**{variable.strip(): value for variable, equals, value in pairs if equals}, **values}
    alone = {
        variable: value
        for variable, value in values.items()
        if not variable.startswith("SBATCH_") and not secrets.is_name(variable)
    }
    chdir = given["chdir"].value or "" if "chdir" in given else ""
    flags, shell = _shebang(lines[0])
    script = "\n".join([flags, *lines[1:]])
    body, variables = sbatch_body.read(script, name=name, first_line=1, values=alone, chdir=chdir)
    agreed = counts(body, variables, Shape(*shape(header, name)), name)
    asked = needs(header, agreed, name)
    gpus = asked.values.get("gpus_per_node")
    has = Shape(asked.values["nodes"], asked.tasks, gpus.count if gpus else 0)
    made = steps(body, variables, has, agreed, name)
    spec = _spec(asked, agreed, body, made, name)
    program = Program(
        steps=tuple(made.steps),
        config=made.config,
        mounts=(*asked.mounts, *made.mounts),
        options=_options(asked, body, made, shell),
    )
    if made.workdir and body.workdir:  # the folder of the node, and not that of the container
        outside = "program.options.container.from"
        body.rows = [
            msgspec.structs.replace(row, field=outside) if row.field == "workdir" else row for row in body.rows
        ]
    rows = [*asked.rows, *sorted([*body.rows, *made.rows], key=lambda row: row.line or 0)]
    rows += _asked_rows(body, variables, made)
    if not any("<<" in line for line in lines):  # a document may be a script of its own
        first = max((number for number, _ in directives(lines)), default=0)
        why = "sbatch takes no notice of it: it stands behind the first command."
        rows += [
            SourceField("#SBATCH", line[8:].strip(), number, None, reason=why)
            for number, line in enumerate(lines, 1)
            if number > first and line.startswith("#SBATCH ")
        ]
    if shell:
        rows.append(
            SourceField("#!", shell, 1, "program.options.shell.run-by", reason="Other platforms read it by bash.")
        )
    rows += [
        SourceField(f"${variable}", secrets.shown(alone[variable]), None, None, How.EXACT, "It is given with values.")
        for variable in sorted({*variables.used, *header.variables} & alone.keys())
    ]
    return Parsed(format=Format.SLURM, spec=spec, program=program, fields=tuple(rows))


def _lines(text: str, name: str) -> list[str]:
    """The script's lines; refuses what sbatch refuses to look at."""
    if not text.strip():
        raise FormatError(f"{name} is empty.", hint="A script begins with #!/bin/bash.")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise FormatError(f"{name}, line {line}: a NUL character, which Slurm refuses.", hint="Is it the right file?")
    if "\r\n" in text:
        line = text.count("\n", 0, text.index("\r\n")) + 1
        raise FormatError(
            f"{name}, line {line}: the line ends as on Windows (CR LF), which sbatch refuses.",
            hint=f"Run: dos2unix {name}",
        )
    lines = text.split("\n")
    if not lines[0].startswith("#!"):
        raise FormatError(
            f"{name}, line 1: a batch script begins with #! and the path of a shell.", hint="Write #!/bin/bash first."
        )
    words = lines[0][2:].split()
    called = [word.rpartition("/")[2] for word in words]
    shell = next((word for word in called if word not in ("env", "-S") and not word.startswith("-")), "")
    if shell not in _SHELLS:
        raise FormatError(
            f"{name}, line 1: the script is written in {shell[:40] or 'nothing'}, and only shells are read here.",
            hint="Start it from a script in bash: srun python train.py.",
        )
    return lines


def _shebang(line: str) -> tuple[str, str]:
    """What the first line sets (``set -eu``), and the shell where another one than bash, or a login shell, reads it."""
    words = line[2:].split()
    at = next(place for place, word in enumerate(words) if word.rpartition("/")[2] in _SHELLS)
    flags = [word for word in words[at + 1 :] if word.startswith(("-", "+"))]
    sets = [
        kept for word in flags if not word.startswith("--") and len(kept := word.replace("l", "").replace("i", "")) > 1
    ]
    login = any(word == "--login" or (not word.startswith("--") and "l" in word) for word in flags)
    other = words[at].rpartition("/")[2] not in ("bash", "sh", "dash")
    return " ".join(["set", *sets]) if sets else "", " ".join(words) if login or other else ""


def _spec(asked: Needs, agreed: Counts, body: Body, made: Steps, name: str) -> JobSpec:
    values: dict[str, object] = dict(asked.values)
    origins = dict(asked.origins)
    env = {**asked.values.get("env", {}), **body.env, **made.env}
    named = dict.fromkeys([*asked.values.get("secrets", []), *body.secrets])
    found: dict[str, object] = {
        "env": {variable: value for variable, value in env.items() if variable not in named} or None,
        "secrets": list(named) or None,
        "setup": body.setup or None,
        "image": made.image or values.get("image"),
        "workdir": made.workdir or body.workdir or values.get("workdir"),
        "interpreter": made.interpreter or None,
        "attempts": body.attempts if body.attempts > 1 else None,
        "backoff": f"{body.backoff}s" if body.backoff else None,
        "launcher": agreed.launcher if agreed.launcher is not Launcher.NONE else None,
        "backend": "slurm",
    }
    values.update({key: value for key, value in found.items() if value is not None})
    return asked_spec(asked, values, {**origins, **{key: origins.get(key, f"{name}: {key}") for key in values}})


def asked_spec(asked: Needs, values: Mapping[str, object], origins: Mapping[str, str]) -> JobSpec:
    """The spec that the options and lines ask for."""
    return msgspec.structs.replace(asked, values=dict(values), origins=dict(origins)).spec(JobSpec())


def _options(asked: Needs, body: Body, made: Steps, shell: str) -> dict[str, tuple[str, ...]]:
    found = {"slurm": asked.options, **{f"srun-{step}": tuple(options) for step, options in made.srun.items()}}
    if made.container:
        workdir = (f"--workdir={made.workdir}",) if made.workdir else ()
        outside = (f"--from={body.workdir}",) if made.workdir and body.workdir else ()
        found["container"] = (f"--{made.container}", *workdir, *outside)
    found["shell"] = tuple(f"--{key}={value}" for key, value in (("run-by", shell), ("process", body.process)) if value)
    return {platform: options for platform, options in found.items() if options or platform == "slurm"}


def _asked_rows(body: Body, variables: Variables, made: Steps) -> list[SourceField]:
    """A row for each variable that comes from the shell which calls sbatch."""
    rows = []
    for variable, text in variables.assumed.items():
        why = "The shell that calls sbatch may set it; this is what the script has otherwise."
        rows.append(SourceField(f"${variable}", text, None, None, How.ASSUMED, why))
    texts = [*body.setup, *(step.shell for step in made.steps)]
    texts += [word for step in made.steps for word in step.launcher_args]
    read_there = {name for text in texts for name in names_in(text)}
    set_there = {*body.env, *body.secrets, *body.meeting, *effects.sets("\n".join(texts))}
    sourced = any(re.match(r"\s*(source|\.|eval|module|ml)\s", line) for line in body.setup)
    for variable in variables.asked:
        known = variable in set_there or variable in _EVERYWHERE or variable.startswith(("SLURM_", "CLUSTERKERNEL_"))
        positional = variable.isdecimal()
        if known or not (variable in read_there or positional):
            continue
        how = f'values={{"{variable}": "..."}} gives it here.'
        why = f"The calling shell has it{', or a setup line sets it' if sourced else ''}: {how}"
        if positional:
            why = f"It is given to sbatch behind the script: {how}"
        rows.append(SourceField(f"${variable}", "", None, f"program.shell.{variable}", How.EXACT, why))
    return rows
