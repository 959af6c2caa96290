"""``%%cluster_train`` in real kernels: the cell, its card, its names, and every bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkernel.render import MIME
from tests.kernel.conftest import Kernel, gate


def test_a_cell_is_shipped_and_its_name_comes_back(kernel: Kernel) -> None:
    kernel.good("base = 40")
    ran = kernel.good("%%cluster_train -o total --as job\nprint('in the job')\ntotal = base + 2\ntotal * 10")
    assert len(ran.displays) == 1
    assert ran.result is None, "the card is the only output"
    card = ran.displays[0]
    assert set(card["data"]) == {"text/plain", "text/html", MIME}
    kernel.until(lambda: "Succeeded" in kernel.text_of(card), "the end")
    assert kernel.value("total") == 42
    assert kernel.value("job.result()") == 420
    assert kernel.value("job is _") is True
    assert kernel.value("job.logs()") == "in the job"
    kernel.until(lambda: "total (bound)" in kernel.text_of(card), "the word on its name")


def test_the_final_card_is_sent_once(kernel: Kernel, tmp_path: Path) -> None:
    wait, release = gate(tmp_path)
    card = kernel.good(f"%%cluster_train --as job\n{wait}").displays[0]
    release()
    kernel.good("job.wait()")
    kernel.until(lambda: "Succeeded" in kernel.text_of(card), "the end")
    kernel.good("import time; time.sleep(2)")
    final = [u for u in kernel.updates_of(card) if "Succeeded" in u["data"]["text/plain"]]
    assert len(final) == 1


def test_a_job_can_be_shown_again_and_goes_through_a_variable(kernel: Kernel) -> None:
    ran = kernel.good("job = get_ipython().run_cell_magic('cluster_train', '', '1 + 1')")
    assert len(ran.displays) == 1, "a card appears also where the value is not displayed"
    kernel.good("job.wait()")
    assert len(kernel.good("job").displays) == 1
    assert len(kernel.good("job").displays) == 1


def test_values_go_into_the_line_one_by_one(kernel: Kernel, tmp_path: Path) -> None:
    kernel.good("import os; n = 7; os.environ['LATER'] = 'no'")
    kernel.good("%%ck --as job --wait --name 'run {n}' --env A=$LATER --env B={n+1} --env C={{x}}\n"
                "import os\n[os.environ[v] for v in 'ABC']")  # fmt: skip
    assert kernel.value("job.result()") == ["$LATER", "8", "{x}"]
    assert kernel.value("job.name") == "run 7"


def test_dry_run_sends_nothing(kernel: Kernel, own_folders: Path) -> None:
    kernel.good("data = list(range(1000))")
    ran = kernel.good("%%cluster_train --dry-run --tasks-per-node 2 --cpus-per-task 1 -o total\ntotal = sum(data)")
    assert "Nothing was sent" in ran.text
    assert "1 x 2 = 2 ranks" in ran.text
    assert "data" in ran.text
    assert "total" in ran.text
    assert not list((own_folders / "jobs").glob("[0-9]*"))


def test_without_a_body_there_are_three_examples_that_run(kernel: Kernel) -> None:
    text = kernel.good("%cluster_train").text
    cells = ["%%" + part.strip() for part in text.partition("\n")[2].split("%%")[1:4]]
    assert len(cells) == 3
    for cell in cells:
        kernel.good(cell.partition("\n\n%")[0])


def test_help_shows_options_and_examples(kernel: Kernel) -> None:
    for magic in ("%%cluster_train", "%cluster_logs", "%cluster_rerun", "%cluster_clean"):
        reply = kernel.run(f"{magic}?").reply
        text = reply["payload"][0]["data"]["text/plain"]
        assert "Examples:" in text, magic
        assert f"{magic} " in text


BAD = [
    ("%%cluster_train --node 2\n1", "Did you mean --nodes?"),
    ("%%cluster_train --time 4\n1", "Write 4s, 4m, 4h or 4d."),
    ("%%cluster_train --memory 64\n1", "Write 64G or 64M."),
    ("%%cluster_train --memory 0G\n1", "out of range"),
    ("%%cluster_train --nodes 0\n1", "--nodes = '0' is out of range"),
    ("%%cluster_train --nodes -2\n1", "--nodes = '-2' is out of range"),
    ("%%cluster_train --nodes 2 --gpus 3\n1", "does not divide by 2 nodes"),
    ("%%cluster_train --gpus 8 --gpus-per-node 8\n1", "are both given"),
    ("%%cluster_train --backend slrum\n1", "Did you mean slurm?"),
    ("%%cluster_train --profile nope\n1", "There is no profile 'nope'"),
    ("%%cluster_train --launcher torchrn\n1", "Did you mean torchrun?"),
    ("%%cluster_train --nodes {nope}\n1", "'nope' is not known"),
    ("%%cluster_train --name 'x\n1", "not closed"),
    ("%%cluster_train -o 1x\n1", "'1x' is not a name"),
    ("%%cluster_train --as 1job\n1", "--as: '1job' is not a name. Write --as job."),
    ("%%cluster_train -o print\nprint = 1", "-o: print is a builtin of Python"),
    ("%%cluster_train --as max\n1", "--as: max is a builtin of Python"),
    ("%%cluster_train --setup module load\n1", "A value with spaces goes into quotes"),
    ("%cluster_wait $job.id", "Write {job.id}."),
    ("%%cluster_train -o model\nx = 1", "model"),
    ("%%cluster_train\nx = = 1", "syntax error on line 2"),
    ("import threading\nlock = threading.Lock()", None),
    ("%%cluster_train\nprint(lock)", "lock"),
    ("%%cluster_train\nprint(unheard_of)", "unheard_of"),
    ("%%cluster_train -i base\nprint(base, other)", "other"),
    ("%%cluster_train\n%matplotlib inline", "matplotlib"),
    ("%cluster_logs 99", "There is no job 99"),
    ("%cluster_logs nonsense", "is not a job"),
    ("%cluster_cancel", "needs a job"),
    ("%cluster jbos", "Did you mean jobs?"),
    ("%cluster_queue", "has a queue"),
    ("%cluster_nodes --backend local", "The backend local has no nodes."),
    ("%cluster_logs 1 -n x", "is not a whole number"),
    ("%cluster_jobs --state GONE", "'GONE' is not a state"),
    ("%cluster_wait 1 --timeout 5", "Write 5s, 5m, 5h or 5d."),
    ("%cluster_rerun 99 --set lr", "There is no job 99"),
    ("%%cluster_train --axolotl -o x\nbase_model: a", "takes neither -i nor -o"),
    ("%%cluster_train --axolotl\nbase_model: [1", "no valid YAML"),
]


def test_bad_input_gets_one_line_and_sends_nothing(kernel: Kernel, own_folders: Path) -> None:
    kernel.good("base = 1; other = 2")
    for code, part in BAD:
        if part is None:
            kernel.good(code)
            continue
        ran = kernel.run(code)
        assert not ran.ok, code
        said = (ran.error + ran.text).strip()
        assert part in said, f"{code}: {said}"
        assert len(said.splitlines()) == 1, f"{code}: {said}"
    assert not list((own_folders / "jobs").glob("[0-9]*"))


def test_a_job_root_that_cannot_be_written_is_one_line(new_kernel: Callable[..., Kernel], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kernel = new_kernel(CLUSTERKERNEL_JOB_ROOT=str(tmp_path / "file" / "jobs"))
    ran = kernel.run("%%cluster_train\n1")
    assert not ran.ok
    assert len(ran.error.splitlines()) == 1
    assert "CLUSTERKERNEL_JOB_ROOT" in ran.error


def test_waiting_shows_the_end_and_fails_as_the_job_failed(kernel: Kernel) -> None:
    first = kernel.send("%%cluster_train --wait -o x\nx = 1\nraise ValueError('loss is nan')")
    second = kernel.send("ran_all = True")
    ran = kernel.collect(first)
    assert not ran.ok
    assert ran.reply["ename"] == "ValueError"
    assert "loss is nan" in ran.error
    assert kernel.collect(second).reply["status"] == "aborted"


def test_waiting_binds_at_once(kernel: Kernel) -> None:
    kernel.good("%%cluster_train --wait -o x\nx = 5")
    assert kernel.value("x") == 5


def test_an_interrupt_stops_the_wait_and_not_the_job(kernel: Kernel, tmp_path: Path) -> None:
    wait, release = gate(tmp_path)
    sent = kernel.send(f"%%cluster_train --wait --as job -o x\n{wait}\nx = 5")
    kernel.until_display(sent)
    kernel.interrupt()
    ran = kernel.collect(sent)
    assert not ran.ok
    assert "Stopped waiting. Job 1 goes on; %cluster_cancel 1 ends it." in ran.error
    assert "Traceback" not in ran.error
    release()
    kernel.good("%cluster_wait 1")
    assert kernel.value("x") == 5


@pytest.mark.parametrize(
    "line",
    [
        "%cluster_wait 1",
        "%cluster_logs 1 -f",
        "await asyncio.sleep(0); get_ipython().run_line_magic('cluster_wait', '1')",
    ],
)
def test_line_magics_that_wait_can_be_interrupted(kernel: Kernel, tmp_path: Path, line: str) -> None:
    wait, release = gate(tmp_path)
    kernel.good("import asyncio")
    kernel.good(f"%%cluster_train\nprint('begun', flush=True)\n{wait}")
    sent = kernel.send(line)
    if "logs" in line:
        kernel.until_text(sent, "begun")
    else:
        kernel.until_display(sent)
    kernel.interrupt()
    ran = kernel.collect(sent)
    release()
    assert not ran.ok
    assert "Job 1 goes on" in ran.error


def test_following_prints_what_the_job_prints(kernel: Kernel, tmp_path: Path) -> None:
    wait, release = gate(tmp_path)
    kernel.good(f"%%cluster_train\nprint('one', flush=True)\n{wait}\nprint('two')")
    sent = kernel.send("%cluster_logs 1 -f")
    kernel.until_text(sent, "one")
    release()
    ran = kernel.collect(sent)
    assert ran.ok
    assert "one\ntwo\n" in ran.text
    assert "SUCCEEDED" in ran.text


def test_following_a_job_that_waits_says_so_once_for_each_state(kernel: Kernel, tmp_path: Path) -> None:
    """Without a word a person could not tell it from a hang."""
    wait, release = gate(tmp_path)
    kernel.good(f"%%cluster_train --as job\n{wait}\nprint('out')")
    sent = kernel.send("%cluster_logs 1 -f")
    kernel.until_text(sent, "Job 1 is RUNNING; waiting for its first line, interrupt to stop.\n")
    release()
    ran = kernel.collect(sent)
    assert ran.ok
    assert ran.text.count("is RUNNING") == 1
    assert ran.text.endswith("out\nJob 1: SUCCEEDED\n")


def test_a_variable_that_holds_a_job_stands_for_its_id(kernel: Kernel) -> None:
    kernel.good("%%cluster_train --as sl --wait\nspare = 3")
    kernel.good("%cluster_wait sl")
    kernel.good("%cluster_bind sl spare")
    assert kernel.value("spare") == 3
    assert kernel.good("%cluster_logs sl").text == "Job 1 (SUCCEEDED) printed nothing.\n"
    assert "'spare' is not a job's number" in kernel.run("%cluster_logs spare").error


def test_what_a_rerun_changed_stands_on_its_card(kernel: Kernel) -> None:
    kernel.good("lr = 0.5")
    kernel.good("%%cluster_train -o twice --wait\ntwice = lr * 2")
    kernel.good("%cluster_rerun 1 --set lr=3 --wait")
    card = kernel.good("%cluster_status 2").displays[0]["data"]["text/plain"]
    assert "Changed:   lr = 3\n" in card
    assert "Changed" not in kernel.good("%cluster_status 1").displays[0]["data"]["text/plain"]


def test_a_cancelled_job_tells_the_reason_and_no_traceback(kernel: Kernel, tmp_path: Path) -> None:
    wait, _ = gate(tmp_path)
    kernel.good(f"%%cluster_train --as job\nprint('begun', flush=True)\n{wait}")
    sent = kernel.send("%cluster_logs 1 -f")
    kernel.until_text(sent, "begun")
    kernel.interrupt()
    kernel.collect(sent)
    kernel.good("%cluster_cancel 1")
    kernel.good("job.wait()")
    card = kernel.good("%cluster_status 1").displays[0]["data"]["text/plain"]
    assert "Cancelled" in card
    assert "Reason:" in card
    assert "Traceback" not in card
    assert "Terminated" not in card


def test_a_job_is_found_by_its_tag(kernel: Kernel) -> None:
    kernel.good("%%cluster_train --tags sweep-3,lr --as job\n1")
    kernel.good("%%cluster_train --tags sweep-4\n2")
    assert kernel.value("list(get_ipython().run_line_magic('cluster_jobs', '--tag sweep-3')['id'])") == ["1"]
    assert kernel.value("list(get_ipython().run_line_magic('cluster_jobs', '')['tags'])") == ["sweep-3, lr", "sweep-4"]


def test_line_magics_in_turn(kernel: Kernel) -> None:
    kernel.good("lr = 0.5")
    kernel.good("%%cluster_train -o twice --as job --wait\nimport sys\nprint('out')\nprint('err', file=sys.stderr)\n"
                "import clusterkernel as ck\nck.log(step=1, loss=0.25)\ntwice = lr * 2\nspare = 'kept'")  # fmt: skip
    assert kernel.good("%cluster_logs 1").text.split() == ["out", "err"]
    assert kernel.good("%cluster_logs 1 --stderr -n 1").text.strip() == "err"
    assert "has no process 7" in kernel.run("%cluster_logs 1 --rank 7").error
    assert kernel.value("get_ipython().run_line_magic('cluster_metrics', '1')['loss'].tolist()") == [0.25]
    assert kernel.value("list(get_ipython().run_line_magic('cluster_jobs', '')['state'])") == ["SUCCEEDED"]
    assert kernel.value("len(get_ipython().run_line_magic('cluster_jobs', '--all --state FAILED'))") == 0
    assert "Succeeded" in kernel.good("%cluster_status 1").displays[0]["data"]["text/plain"]
    assert "No job lives" in kernel.good("%cluster_status").text
    kernel.good("%cluster_bind 1 spare")
    assert kernel.value("spare") == "kept"
    assert "saved no 'spar'" in kernel.run("%cluster_bind 1 spar").error
    kernel.good("%cluster_rerun 1 --set lr=3 --as again --wait")
    assert kernel.value("(twice, again.id)") == (6, "2")
    assert "has ended already" in kernel.good("%cluster_cancel 1").text
    assert "Nothing was deleted" in kernel.good("%cluster_clean").text
    assert "Deleted 1 job" in kernel.good("%cluster_clean 1 --yes").text
    assert "There is no job 1" in kernel.run("%cluster_logs 1").error


def test_cancel_ends_a_job(kernel: Kernel, tmp_path: Path) -> None:
    wait, _ = gate(tmp_path)
    kernel.good(f"%%cluster_train --as job -o x\n{wait}\nx = 1")
    assert "asked to end" in kernel.good("%cluster_cancel 1").text
    kernel.good("job.wait()")
    assert kernel.value("str(job.state)") == "CANCELLED"
    ran = kernel.run("print(x)")
    assert not ran.ok
    assert "job 1 is CANCELLED" in ran.error


def test_no_card_and_no_print_lands_in_another_cell(kernel: Kernel, tmp_path: Path) -> None:
    wait, release = gate(tmp_path)
    card = kernel.good(f"%%cluster_train\n{wait}").displays[0]
    sent = kernel.send("import time\nfor _ in range(60): time.sleep(0.05)\nprint('mine')")
    release()
    ran = kernel.collect(sent)
    assert [m["msg_type"] for m in ran.messages if m["msg_type"] not in ("execute_input", "update_display_data")] == [
        "stream"
    ]
    assert ran.text == "mine\n"
    assert kernel.updates_of(card), "the card was kept up to date while another cell ran"
    assert kernel.strays == []


def test_a_function_s_traceback_names_the_cell_that_it_came_from(kernel: Kernel) -> None:
    kernel.good("import clusterkernel as ck\nex = ck.Executor('local')")
    kernel.good("def fails(x):\n    y = x\n    return y / 0")
    kernel.good("job = ex.submit(fails, 1)\njob.wait()")
    said = kernel.value("job.logs()")
    assert ", line 3, in fails\n    return y / 0" in said
    assert 'File "Cell In[' in said
    assert "ipykernel" not in said
    assert "ipykernel" not in kernel.run("job.result()").error
