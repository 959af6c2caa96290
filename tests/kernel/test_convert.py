"""``%cluster_convert`` and ``%cluster_check`` in a notebook."""

from __future__ import annotations

import html

from tests.kernel.conftest import Kernel

SCRIPT = """#!/bin/bash
#SBATCH --nodes=$NUM_NODES --gpus-per-node=h100:8
#SBATCH --partition=gpu
export HF_TOKEN=not-to-be-seen
srun torchrun --nproc_per_node=8 train.py
"""


def put(kernel: Kernel) -> None:
    kernel.good(f"open('train.slurm', 'w').write({SCRIPT!r})")


def test_a_script_is_converted_and_its_report_is_a_frame(kernel: Kernel) -> None:
    put(kernel)
    ran = kernel.run("report = %cluster_convert train.slurm --to kubernetes --set NUM_NODES=2 --as done")
    assert ran.ok, ran.error
    assert "kind: JobSet" in ran.text
    assert "not-to-be-seen" not in ran.text
    columns = ["source", "value", "target", "target_value", "how", "reason"]
    assert kernel.value("list(report.columns)") == columns
    assert kernel.value("list(report[report['source'] == '--nodes']['how'])") == ["changed"]
    assert kernel.value("done.spec.resources.nodes") == 2
    assert kernel.value("report.equals(done.report)") is True
    assert kernel.value("'not-to-be-seen' in report.to_string()") is False


def test_it_is_written_to_a_file(kernel: Kernel) -> None:
    put(kernel)
    ran = kernel.run("%cluster_convert train.slurm --to modal --set NUM_NODES=2 -o app.py")
    assert ran.text == "app.py is written.\n"
    assert kernel.value("'import modal' in open('app.py').read()") is True


def test_what_is_missing_is_said_in_one_line(kernel: Kernel) -> None:
    put(kernel)
    for line, why in (
        ("%cluster_convert train.slurm --to modal", "no value for $NUM_NODES (line 2)"),
        ("%cluster_convert train.slurm", "needs --to"),
        ("%cluster_convert none.slurm --to modal", "cannot be read"),
        ("%cluster_convert train.slurm --to modal --set NUM_NODES", "needs a name and a value"),
        ("%cluster_convert train.slurm --to modal --set NUM_NODES=2 --as 2x", "is no name"),
        ("%cluster_check none.slurm", "cannot be read"),
    ):
        ran = kernel.run(line)
        assert not ran.ok
        assert why in ran.error + ran.text, line  # IPython prints a wrong usage, and nothing more
        assert "Traceback" not in ran.error + ran.text
        assert "import modal" not in ran.text


def test_a_script_is_checked(kernel: Kernel) -> None:
    put(kernel)
    shown = kernel.good("found = %cluster_check train.slurm --set NUM_NODES=2 --backend modal\nfound")
    (data,) = [m["content"]["data"] for m in shown.messages if m["msg_type"] == "execute_result"]
    longest = kernel.value("max(found['message'], key=len)")
    assert len(longest) > 50
    assert html.escape(longest, quote=False) in data["text/html"]
    assert longest in data["text/plain"]
    assert kernel.value("type(found).__name__") == "DataFrame"
    plain = kernel.good("import pandas as pd\npd.DataFrame({'x': ['y' * 60]})")
    assert plain.result is not None
    assert "y..." in plain.result, "other tables stay as pandas shows them"
    assert kernel.value("list(found.columns)") == ["level", "rule", "field", "message", "fix"]
    rules = kernel.value("list(found['rule'])")
    assert {"directive-variable", "secret-in-clear", "time-missing", "nothing-kept"} <= set(rules)
    assert kernel.value("list(found['level'])[0]") == "error"
    assert kernel.value("'not-to-be-seen' in found.to_string()") is False
