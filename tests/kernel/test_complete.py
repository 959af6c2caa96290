"""Tab on a magic's line, as a front end asks for it."""

from __future__ import annotations

from tests.kernel.conftest import CEILING, Kernel


def tab(kernel: Kernel, code: str) -> list[str]:
    """What Tab offers at the bar in `code`, as whole replacements of what stands before it."""
    at = code.index("|")
    whole = code.replace("|", "")
    message = kernel.client.complete(whole, at)
    while True:
        reply = kernel.client.get_shell_msg(timeout=CEILING)
        if reply["parent_header"].get("msg_id") == message:
            content = reply["content"]
            return [whole[: content["cursor_start"]] + match for match in content["matches"]]


def test_options_complete_everywhere(kernel: Kernel) -> None:
    for magic in ("%%cluster_train", "%%ck", "%ck", "%cluster"):
        assert set(tab(kernel, f"{magic} --gpu|")) == {f"{magic} --gpus", f"{magic} --gpus-per-node"}
        assert tab(kernel, f"{magic} --nodes 2 --no|") == [], "what was given is not offered again"


OFFERED = (
    ("%%ck --backend s|", ["%%ck --backend slurm"]),
    ("%%ck --backend=s|", ["%%ck --backend=slurm"]),
    ("%%ck --launcher tor|", ["%%ck --launcher torchrun"]),
    ("%%ck --exclusive |", ["%%ck --exclusive no", "%%ck --exclusive yes"]),
    ("%cluster st|", ["%cluster status"]),
    ("%ck jobs --st|", ["%ck jobs --state"]),
    ("%ck jobs --state TIM|", ["%ck jobs --state TIMED_OUT"]),
    ("frame = %cluster_jobs --st|", ["frame = %cluster_jobs --state"]),
    ("%%ck -o mo|\nmodel = 1\nmore = 2", ["%%ck -o model", "%%ck -o more"]),
    ("%%ck -o more,mo|\nmodel = 1\nmore = 2", ["%%ck -o more,model", "%%ck -o more,more"]),
    ("%%ck -i |\nmodel = base", ["%%ck -i base"]),
    ("x = 1 --gpu|", []),
)


def test_values_complete(kernel: Kernel) -> None:
    kernel.good("base = 1")
    for code, expected in OFFERED:
        assert sorted(tab(kernel, code)) == expected, code
    assert "%%ck --as base" in tab(kernel, "%%ck --as |")


def test_profiles_complete(kernel: Kernel) -> None:
    kernel.good("open('.clusterkernel.toml', 'w').write('[profiles.h100]\\nnodes = 2\\n')")
    assert tab(kernel, "%%ck --profile h|") == ["%%ck --profile h100"]


def test_jobs_and_their_names_complete(kernel: Kernel) -> None:
    kernel.good("%%ck --wait\nmodel = 1\nmore = 2")
    assert tab(kernel, "%cluster_logs |") == ["%cluster_logs 1"]
    assert sorted(tab(kernel, "%cluster_bind 1 mo|")) == ["%cluster_bind 1 model", "%cluster_bind 1 more"]
    assert tab(kernel, "%cluster_wait 1 |") == ["%cluster_wait 1 1"]


def test_nothing_of_ours_is_offered_after_unloading(kernel: Kernel) -> None:
    kernel.good("%unload_ext clusterkernel")
    assert not [one for one in tab(kernel, "%%cluster_train --gpu|") if "gpus" in one]


def test_nothing_else_is_offered_on_a_line_of_ours(kernel: Kernel) -> None:
    kernel.good("open('a file.txt', 'w').close()\nclass timetable: pass\nx = 1")
    for line in ("%%ck --time |", "%%ck --time t|", "%%ck --env |", "%%ck -o |", "%cluster_jobs x|", "%cluster_wait |"):
        assert tab(kernel, line) == [], line
    for line in ("%%ck --files |", "%cluster_check |"):
        assert any("file.txt" in one for one in tab(kernel, line)), line


def test_the_package_offers_what_it_has_and_no_more(kernel: Kernel) -> None:
    kernel.good("import clusterkernel as ck; ck.jobs(); ck.Executor")
    offered = {one.removeprefix("ck.") for one in tab(kernel, "ck.|")}
    assert kernel.value("sorted(dir(ck))") == kernel.value("sorted(ck.__all__)")
    assert offered == {name for name in kernel.value("ck.__all__") if not name.startswith("_")}
