"""Local modules go along as they are at submission, and nothing that is installed does."""

import functools
import importlib
import importlib.machinery
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterkernel.errors import PayloadError
from clusterkernel.payload import modules
from clusterkernel.payload.modules import Shipped, collect

NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The notebook's folder, on the path as Jupyter puts it there; what is imported from it is forgotten."""
    before = set(sys.modules)
    root = tmp_path / "book"
    root.mkdir()
    monkeypatch.setattr(sys, "path", [str(root), *sys.path])
    yield root
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can reach."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
    for module in [module for module in sys.modules if module.startswith("ck_")]:
        del sys.modules[module]


@contextmanager
def somebody() -> Iterator[None]:
    """An ordinary user's rights, where the tests run as root, who may do everything."""
    root = os.geteuid() == 0
    if root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)
            importlib.invalidate_caches()  # folders that could not be listed


def lay(folder: Path, **files: str | bytes) -> None:
    """Write files; ``a__b`` is a folder and a file, and they end on .py."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/").replace("/init/", "/__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def paths(shipped: Shipped) -> list[str]:
    return [path for path, _ in shipped.files]


def test_what_the_cell_imports_goes_along_with_what_that_imports(folder: Path) -> None:
    lay(
        folder, ck_a="import ck_b\nimport json, numpy", ck_b="def f():\n  from ck_c import x", ck_c="x = 1", ck_other=""
    )
    shipped = collect(folder, source="def f():\n  import ck_a as a")
    assert paths(shipped) == ["ck_a.py", "ck_b.py", "ck_c.py"]
    assert shipped.modules == ("ck_a", "ck_b", "ck_c")
    assert dict(shipped.files)["ck_c.py"] == b"x = 1"


@pytest.mark.parametrize(
    "source",
    [
        "import ck_a",
        "import ck_a.b.c",
        "from ck_a import b",
        "from ck_a.b import *",
        "try:\n  import ck_a\nexcept ImportError: pass",
        "import importlib; importlib.import_module('ck_a')",
        "class A:\n  def m(self): from ck_a import x",
        "import sys, ck_a as q",
    ],
)
def test_every_form_of_import_is_seen(folder: Path, source: str) -> None:
    lay(folder, ck_a="x = 1")
    assert paths(collect(folder, source=source)) == ["ck_a.py"]


def test_a_package_goes_along_whole(folder: Path) -> None:
    lay(
        folder,
        ck_p____init__="from .sub import thing",
        ck_p__sub____init__="from ..near import y\nfrom . import leaf",
        ck_p__sub__leaf="import ck_far",
        ck_p__near="",
        ck_p__unused="import ck_never",
        ck_p__folder__free="",
        ck_far="",
        ck_never="",
    )
    (folder / "ck_p/data.json").write_text("{}")
    for name in ("__pycache__/x.pyc", ".git/config", "sub/.hidden", "sub/__pycache__/y.pyc", "old.pyc"):
        path = folder / "ck_p" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("no")
    shipped = collect(folder, source="import ck_p")
    inside = ["__init__.py", "data.json", "folder/free.py", "near.py", "sub/__init__.py", "sub/leaf.py", "unused.py"]
    assert paths(shipped) == ["ck_far.py", *(f"ck_p/{name}" for name in inside)]
    assert shipped.modules == ("ck_far", "ck_p")
    assert shipped.notes == ()


def test_of_a_namespace_package_only_what_is_imported_goes_along(folder: Path) -> None:
    lay(
        folder,
        ck_n__one="",
        ck_n__two="",
        ck_n__deep__three="from ck_n import two",
        ck_n__reg____init__="",
        ck_n__reg__x="",
    )
    (folder / "ck_n/big.bin").write_bytes(b"x")
    assert paths(collect(folder, source="import ck_n")) == []
    assert paths(collect(folder, source="import ck_n.one")) == ["ck_n/one.py"]
    shipped = collect(folder, source="from ck_n.deep import three\nfrom ck_n.reg import x")
    assert paths(shipped) == ["ck_n/deep/three.py", "ck_n/reg/__init__.py", "ck_n/reg/x.py", "ck_n/two.py"]
    assert shipped.modules == ("ck_n.deep.three", "ck_n.reg", "ck_n.two")


def test_what_values_refer_to_goes_along(folder: Path) -> None:
    lay(
        folder,
        ck_cls="class C:\n  pass",
        ck_fun="def f(): pass",
        ck_mod="",
        ck_glob="def g(): pass\nclass Base: pass",
        ck_late="",
        ck_from="y = 1",
    )
    get = importlib.import_module

    def go(*values: Any) -> list[str]:
        return paths(collect(folder, values=values))

    assert go(get("ck_cls").C()) == ["ck_cls.py"]
    assert go(get("ck_cls").C) == ["ck_cls.py"]
    assert go([{"k": (get("ck_fun").f,)}]) == ["ck_fun.py"]
    assert go(functools.partial(get("ck_fun").f, get("ck_cls").C())) == ["ck_cls.py", "ck_fun.py"]
    assert go(get("ck_mod")) == ["ck_mod.py"]
    assert go(1, "text", None, len, print, os, {}) == []
    main: dict[str, Any] = {"__name__": "__main__", "ck_mod": get("ck_mod"), "helper": get("ck_glob").g}
    exec(
        "def f(x=ck_mod):\n  import ck_late\n  from ck_from import y\n  return helper()\n"
        "def closed(inner):\n  return lambda: inner\n"
        "class M:\n  def m(self): return f()\n",
        main,
    )
    assert go(main["f"]) == ["ck_from.py", "ck_glob.py", "ck_late.py", "ck_mod.py"]
    assert go(main["closed"](main["f"])) == ["ck_from.py", "ck_glob.py", "ck_late.py", "ck_mod.py"]
    assert go(main["M"]()) == ["ck_from.py", "ck_glob.py", "ck_late.py", "ck_mod.py"]
    main["Child"] = type("Child", (get("ck_glob").Base,), {"__module__": "__main__"})
    assert go(main["Child"]) == ["ck_glob.py"]


def test_modules_that_a_pickle_names_go_along(folder: Path) -> None:
    lay(folder, ck_a="", ck_p____init__="", ck_p__b="import ck_a")
    assert paths(collect(folder, modules=["ck_p.b", "os.path"])) == ["ck_a.py", "ck_p/__init__.py", "ck_p/b.py"]


def test_installed_and_standard_modules_stay(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = folder / ".venv/lib/python3/site-packages"
    lay(site, ck_installed="")
    monkeypatch.syspath_prepend(str(site))
    source = "import ck_installed, os, sys, json.decoder, numpy, msgspec, yaml, clusterkernel, __main__"
    assert collect(folder, source=source) == Shipped()


def test_a_project_elsewhere_on_the_path_is_local(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path / "project/src", ck_proj____init__="from ck_proj import core", ck_proj__core="")
    monkeypatch.syspath_prepend(str(tmp_path / "project/src"))
    assert paths(collect(folder, source="import ck_proj")) == ["ck_proj/__init__.py", "ck_proj/core.py"]


def test_what_the_person_cannot_change_is_installed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(shared / "site", ck_shared="")
    lay(shared / "own", ck_own="")
    (shared / "site").chmod(0o555)
    (shared / "own").chmod(0o777)
    for name in ("site", "own"):
        monkeypatch.syspath_prepend(str(shared / name))
    with somebody():
        assert paths(collect(shared, source="import ck_shared, ck_own")) == ["ck_own.py", "ck_shared.py"]  # its root
        assert paths(collect(shared / "book", source="import ck_shared, ck_own")) == ["ck_own.py"]


def test_a_module_is_taken_from_where_it_was_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path / "other", ck_twice="where = 'other'")
    lay(folder, ck_twice="where = 'book'")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    importlib.import_module("ck_twice")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    assert dict(collect(folder, source="import ck_twice").files) == {"ck_twice.py": b"where = 'other'"}


def test_the_folder_counts_without_being_on_the_path(tmp_path: Path) -> None:
    lay(tmp_path, ck_beside="")
    assert paths(collect(tmp_path, source="import ck_beside")) == ["ck_beside.py"]


def test_an_edit_after_submission_changes_nothing(folder: Path, tmp_path: Path) -> None:
    lay(folder, ck_a="answer = 1")
    shipped = collect(folder, source="import ck_a")
    lay(folder, ck_a="answer = 2")
    payload = tmp_path / "payload"
    payload.mkdir()
    shipped.write(payload)
    code = "import sys; sys.path[:0] = sys.argv[1:]; import ck_a; print(ck_a.answer, ck_a.__file__)"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(payload / "modules"), str(folder)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["1", str(payload / "modules/ck_a.py")]
    assert (payload / "modules/ck_a.py").stat().st_mode & 0o777 == 0o600
    again = collect(folder, source="import ck_a")
    assert again.digests() != shipped.digests()
    lay(folder, ck_a="answer = 1")
    assert collect(folder, source="import ck_a").digests() == shipped.digests()


def test_a_file_just_written_is_found(folder: Path) -> None:
    for number in range(20):  # the import system caches folder listings
        assert collect(folder, source=f"import ck_new{number}").modules == ()
        lay(folder, **{f"ck_new{number}": ""})
        assert collect(folder, source=f"import ck_new{number}").modules == (f"ck_new{number}",)


def test_a_broken_module_is_named_with_its_line(folder: Path) -> None:
    lay(folder, ck_a="import ck_broken", ck_broken="x = 1\ny = = 2\n")
    with pytest.raises(
        PayloadError, match=r"module ck_broken cannot be taken along: .*ck_broken.py has a .* line 2"
    ) as e:
        collect(folder, source="import ck_a")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("data", [b"x = '\xff'", b"# coding: nonsense\n", b"x = 1\0"])
def test_a_module_that_is_no_text_is_refused(folder: Path, data: bytes) -> None:
    lay(folder, ck_a=data)
    with pytest.raises(PayloadError, match="ck_a"):
        collect(folder, source="import ck_a")


def test_a_broken_module_that_may_not_be_needed_is_only_noted(folder: Path) -> None:
    lay(folder, ck_a="try:\n  import ck_old\nexcept ImportError: pass", ck_old="print 'two'")
    shipped = collect(folder, source="import ck_a")
    assert paths(shipped) == ["ck_a.py", "ck_old.py"]
    assert len(shipped.notes) == 1
    assert "ck_old.py is no valid Python on line 1" in shipped.notes[0]


def test_a_broken_file_of_a_package_that_nothing_imports_is_left_alone(folder: Path) -> None:
    lay(folder, ck_p____init__="", ck_p__template="{{ name }} =")
    assert collect(folder, source="import ck_p").notes == ()


def test_an_unreadable_module_is_named(shared: Path) -> None:
    lay(shared, ck_locked="")
    (shared / "ck_locked.py").chmod(0)
    with somebody(), pytest.raises(PayloadError, match=r"ck_locked\.py cannot be read: Permission denied"):
        collect(shared, source="import ck_locked")


def test_unreadable_data_of_a_package_stays_behind(shared: Path) -> None:
    lay(shared, ck_p____init__="")
    (shared / "ck_p/data.txt").write_text("")
    (shared / "ck_p/data.txt").chmod(0)
    with somebody():
        shipped = collect(shared, source="import ck_p")
    assert paths(shipped) == ["ck_p/__init__.py"]
    assert "data.txt cannot be read and stays behind" in shipped.notes[0]


def test_a_module_that_is_gone_since_its_import_is_named(folder: Path) -> None:
    lay(folder, ck_a="")
    module = importlib.import_module("ck_a")
    (folder / "ck_a.py").unlink()
    with pytest.raises(PayloadError, match=r"ck_a\.py cannot be read: No such file"):
        collect(folder, values=[module])


def test_a_module_that_is_nowhere_is_noted_once(folder: Path) -> None:
    shipped = collect(
        folder, source="from ck_nowhere import a, b\nimport ck_nowhere\ntry:\n  import ck_maybe\nexcept E: 1"
    )
    assert shipped.notes == ("ck_nowhere is not found here: the job's Python has to have it.",)


def test_large_data_of_a_package_stays(folder: Path) -> None:
    lay(folder, ck_p____init__="")
    (folder / "ck_p/weights.bin").write_bytes(bytes(modules.DATA_LIMIT))
    (folder / "ck_p/small.txt").write_text("")
    assert len(collect(folder, source="import ck_p").files) == 3
    (folder / "ck_p/small.txt").write_text("1")
    shipped = collect(folder, source="import ck_p")
    assert paths(shipped) == ["ck_p/__init__.py"]
    assert "the largest is ck_p/weights.bin, 4.0 MiB" in shipped.notes[0]


def test_too_much_is_refused_with_the_largest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "LIMIT", 3 << 20)
    lay(folder, ck_p____init__="import ck_q", ck_p__table=b"#" * (2 << 20), ck_q=b"#" * (2 << 20))
    with pytest.raises(PayloadError) as caught:
        collect(folder, source="import ck_p")
    assert "ck_p, ck_q take more than 3.0 MiB" in str(caught.value)
    assert "ck_p/table.py (2.0 MiB), ck_q.py (2.0 MiB)" in str(caught.value)


def test_a_package_that_is_a_data_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "FILES_LIMIT", 10)
    lay(folder, ck_p____init__="", **{f"ck_p__m{i}": "" for i in range(10)})
    with pytest.raises(PayloadError, match=r"ck_p in .* has more than 10 files"):
        collect(folder, source="import ck_p")


def test_imports_are_followed_through_so_much_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "SOURCE_LIMIT", 100)
    lay(folder, ck_a="import ck_b", ck_b="#" * 100 + "\nimport ck_c", ck_c="")
    shipped = collect(folder, source="import ck_a")
    assert paths(shipped) == ["ck_a.py", "ck_b.py"]
    assert "followed up to ck_b" in shipped.notes[0]


def test_links_are_followed_and_loops_end(folder: Path, tmp_path: Path) -> None:
    lay(tmp_path / "real", sub____init__="", sub__m="")
    lay(folder, ck_p____init__="")
    (folder / "ck_p/sub").symlink_to(tmp_path / "real/sub")
    (folder / "ck_p/sub/up").symlink_to(folder / "ck_p")
    (folder / "ck_p/gone.py").symlink_to(folder / "nothing")
    assert paths(collect(folder, source="import ck_p")) == ["ck_p/__init__.py", "ck_p/sub/__init__.py", "ck_p/sub/m.py"]


def test_a_compiled_module_keeps_its_whole_ending(folder: Path) -> None:
    name = "ck_fast" + importlib.machinery.EXTENSION_SUFFIXES[0]
    (folder / name).write_bytes(b"\x7fELF")
    assert paths(collect(folder, source="import ck_fast")) == [name]


def test_import_loops_end(folder: Path) -> None:
    lay(folder, ck_a="import ck_b", ck_b="import ck_a", ck_p____init__="from . import q", ck_p__q="import ck_p.q, ck_a")
    assert paths(collect(folder, source="import ck_p")) == ["ck_a.py", "ck_b.py", "ck_p/__init__.py", "ck_p/q.py"]


def test_a_module_made_in_memory_is_none(folder: Path) -> None:
    assert collect(folder, values=[types.ModuleType("ck_memory")]) == Shipped()
