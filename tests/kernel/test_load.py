"""Loading the extension, and taking it out again."""

from __future__ import annotations

from collections.abc import Callable

from tests.kernel.conftest import Kernel


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
