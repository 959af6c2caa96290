"""What becomes of the names behind -o, as a person sees it: on the card, in a cell, later again."""

from __future__ import annotations

from tests.kernel.conftest import Kernel

NEVER = """%%cluster_train -o model,other,loss --as job
import threading
model, loss = threading.Lock(), 1
if loss > 1:
    other = 1"""


def test_a_name_that_could_not_be_saved(kernel: Kernel) -> None:
    card = kernel.good(NEVER).displays[0]
    kernel.good("job.wait()")
    kernel.until(lambda: "Succeeded" in kernel.text_of(card) and "loss (bound)" in kernel.text_of(card), "the end")
    assert kernel.text_of(card).splitlines()[0].startswith("Job 1  ✓ Succeeded, but without model, other")
    unsaved = kernel.run("model")
    assert "model could not be saved by job 1: model: _thread.lock does not pickle." in unsaved.error
    assert "Let the cell set it to what can be" in unsaved.error
    never = kernel.run("other + 1")
    assert "other did not come: job 1 never set it." in never.error
    said = kernel.run("job.outputs['model']").error
    assert "ResultFailed: 'model' of job 1 could not be saved: model: _thread.lock does not pickle. Let the" in said
    assert kernel.value("loss") == 1


def test_a_later_card_knows_what_was_bound(kernel: Kernel) -> None:
    kernel.good("%%cluster_train -o x --wait\nx = 1")
    later = kernel.good("%cluster_status 1").displays[0]["data"]["text/plain"]
    assert "x (bound)" in later
    assert "%cluster_bind" not in later
    kernel.good("%config ClusterKernel.bind_limit_mb = 0")
    kernel.good("%%cluster_train -o y --wait\ny = 2")
    large = kernel.good("%cluster_status 2").displays[0]["data"]["text/plain"]
    assert "not bound by itself" in large
    assert "%cluster_bind 2 y" in large
    kernel.good("%cluster_bind 2 y")
    bound = kernel.good("%cluster_status 2").displays[0]["data"]["text/plain"]
    assert "y (bound)" in bound
    assert "not bound" not in bound
    assert "%cluster_bind" not in bound


def test_empty_flags_are_refused_in_one_line(kernel: Kernel) -> None:
    for flag in ("-o ''", "-o ,", "--as ''", "--profile ''", "--name ''", "--sbatch ''", "--secrets ''", "--tags ,"):
        ran = kernel.run(f"%%cluster_train {flag}\n1")
        assert not ran.ok, flag
        assert len((ran.text + ran.error).strip().splitlines()) == 1, ran.text + ran.error
    for magic in ("cancel", "wait", "status"):
        assert "No job is named." in kernel.run(f"%cluster_{magic} ''").text
    kernel.good("z = 1")
    assert "reads z, which is not in -i" in kernel.run("%%cluster_train -i ''\nz").error
    kernel.good("%%cluster_train -i '' --dry-run\n1")


def test_a_value_behind_a_secrets_name_is_not_echoed(kernel: Kernel) -> None:
    ran = kernel.run("%%cluster_train --secrets WANDB,HF_TOKEN=abcd\n1")
    said = (ran.text + ran.error).strip()
    assert "--secrets takes names only" in said
    assert "%cluster_secret set HF_TOKEN, and write --secrets HF_TOKEN." in said
    assert "abcd" not in said
    assert len(said.splitlines()) == 1


def test_secrets_are_not_echoed(kernel: Kernel) -> None:
    for flags in ("--backend slurm --sbatch '--export=ALL,DB_PASSWORD=hunter22'", "--name hf_abcdefghijklmnopqrstuvwx"):
        for more in ("", " --dry-run"):
            ran = kernel.run(f"%%cluster_train {flags}{more}\n1")
            assert not ran.ok
            said = (ran.text + ran.error).strip()
            assert "would write" in said
            assert len(said.splitlines()) == 1
            assert "hunter22" not in said
            assert "hf_abc" not in said
