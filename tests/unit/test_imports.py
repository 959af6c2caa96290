"""Promise 5, light: what the first two lines of a notebook import, looked at in fresh interpreters."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import clusterkernel

PACKAGE = Path(clusterkernel.__file__).parent
HEAVY = {"pandas", "numpy", "modal", "ipywidgets", "submitit", "lightkube", "truss", "jupyterlab", "jupyter_server"}
# Third-party packages that may be there after the line; anything else is a new cost and has to be argued for.
ALLOWED_ON_IMPORT: set[str] = set()
ALLOWED_ON_LOAD = {"msgspec", "typing_extensions"}  # the second by the first, on an older Python


def new_modules(statement: str, setup: str = "") -> set[str]:
    """Top-level third-party modules that a statement imports in a fresh interpreter."""
    probe = (
        f"import json, sys\n{setup}\nbefore = set(sys.modules)\n{statement}\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(json.dumps(sorted(new - sys.stdlib_module_names - {'clusterkernel'})))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", probe], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_needs_no_other_package() -> None:
    assert new_modules("import clusterkernel") <= ALLOWED_ON_IMPORT


def test_load_ext_imports_nothing_heavy() -> None:
    shell = "from IPython.core.interactiveshell import InteractiveShell\nip = InteractiveShell.instance()"
    new = new_modules(
        "ip.run_line_magic('load_ext', 'clusterkernel'); assert ip.find_cell_magic('cluster_train')", shell
    )
    assert not new & HEAVY
    assert new <= ALLOWED_ON_LOAD | {"IPython"}  # the shell loads parts of its own when a magic needs them


def test_no_module_imports_heavy_packages_when_it_is_imported() -> None:
    names = [
        ".".join(("clusterkernel", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted(PACKAGE.rglob("*.py"))
        # the forms and the server extension are loaded on request, and __main__ acts
        if path.relative_to(PACKAGE).parts[0] not in {"widgets", "server"} and path.stem != "__main__"
    ]
    assert "clusterkernel.errors" in names
    lines = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    assert not new_modules(lines) & HEAVY


def test_public_names_are_there_and_typed() -> None:
    for name in clusterkernel.__all__:
        assert getattr(clusterkernel, name) is not None
        assert name in dir(clusterkernel)
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    typed = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert typed == clusterkernel._LAZY, "the table of lazy names and the imports under TYPE_CHECKING differ"
    assert {*clusterkernel._LAZY, "__version__"} == set(clusterkernel.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        clusterkernel.nonsense  # type: ignore[attr-defined]


def test_a_public_name_wins_over_the_submodule_of_the_same_name() -> None:
    probe = (
        "import sys, types, clusterkernel\n"
        "clusterkernel._LAZY['jobs'] = 'clusterkernel.jobs'\n"
        "module = sys.modules['clusterkernel.jobs'] = types.ModuleType('clusterkernel.jobs')\n"
        "module.jobs = lambda: 'called'\n"
        "clusterkernel.jobs = module  # as the import system does\n"
        "assert clusterkernel.jobs() == 'called'"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, timeout=60)


def test_version_is_that_of_the_installed_package() -> None:
    from importlib.metadata import version

    assert clusterkernel.__version__ == version("clusterkernel")
