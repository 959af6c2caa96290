"""Loading the extension, and taking it out again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.kernel.conftest import Kernel, gate


def test_loading_prints_one_line_and_registers_all(kernel: Kernel) -> None:
    ran = kernel.good("%reload_ext clusterkernel")
    assert len(ran.text.strip().splitlines()) <= 1
    names = kernel.value("sorted(get_ipython().magics_manager.magics['line'])")
    assert {"ck", "cluster", "cluster_train", "cluster_jobs", "cluster_logs"} <= set(names)


def test_loading_imports_nothing_heavy(kernel: Kernel) -> None:
    heavy = kernel.value(
        "[m for m in ('pandas', 'submitit', 'ipywidgets', 'modal', 'numpy') if m in __import__('sys').modules]"
    )
    assert heavy == []


def test_a_setting_that_makes_no_sense_is_one_line(new_kernel: Callable[..., Kernel]) -> None:
    ran = new_kernel(load=False, CLUSTERKERNEL_ON_PENDING="waits").run("%load_ext clusterkernel")
    assert not ran.ok
    assert ran.error == "SpecError: CLUSTERKERNEL_ON_PENDING = 'waits' is not known. Set refuse or wait."


def test_reloading_keeps_what_is_on_its_way(kernel: Kernel, tmp_path: Path) -> None:
    wait, release = gate(tmp_path)
    kernel.good(f"%%cluster_train --as job -o x\n{wait}\nx = 5")
    kernel.good("%reload_ext clusterkernel")
    assert "is not there yet" in kernel.run("x").error
    release()
    kernel.good("job.wait()")
    assert kernel.value("x") == 5


def test_unloading_takes_everything_out(new_kernel: Callable[..., Kernel]) -> None:
    kernel = new_kernel(load=False)
    look = (
        "def state():\n"
        "    ip = get_ipython()\n"
        "    import threading\n"
        "    return [sorted(ip.magics_manager.magics['line']), sorted(ip.magics_manager.magics['cell']),\n"
        "            len(ip.ast_transformers), len(ip.Completer.custom_matchers), \n"
        "            sum(type(c).__name__ == 'ClusterKernel' for c in ip.configurables),\n"
        "            [len(ip.events.callbacks[e]) for e in sorted(ip.events.callbacks)],\n"
        "            sorted(t.name for t in threading.enumerate() if 'clusterkernel' in t.name),\n"
        "            len(ip.display_formatter.ipython_display_formatter.deferred_printers)]"
    )
    kernel.good(look)
    before = kernel.value("state()")
    for _ in range(2):
        kernel.good("%load_ext clusterkernel")
        assert kernel.value("state()") != before
        kernel.good("%unload_ext clusterkernel")
        assert kernel.value("state()") == before
