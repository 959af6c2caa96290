"""The test cluster itself: real nodes, real limits, real strictness, and nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.clusters import conf, hosts, late_view, procs
from tests.clusters.cluster import SlurmCluster
from tests.clusters.procs import ClusterError, wait_for
from tests.clusters.slurm import main

slurm = pytest.mark.slurm


def sbatch(cluster: SlurmCluster, script: str, *options: str) -> str:
    """Submit a script; its output goes to shared/<id>.out."""
    return cluster.run("sbatch", "--parsable", f"--chdir={cluster.shared}", "-o%j.out", *options, "--wrap", script)


def state(cluster: SlurmCluster, job: str) -> str:
    """The controller's word for a job's state."""
    shown = cluster.run("scontrol", "-o", "show", "job", job)
    return next(word for word in shown.split() if word.startswith("JobState=")).partition("=")[2]


def running(cluster: SlurmCluster, job: str) -> bool:
    """Whether a job runs."""
    return state(cluster, job) == "RUNNING"


def ended(cluster: SlurmCluster, job: str) -> str:
    """Wait for a job's end; give its state."""
    busy = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
    wait_for(lambda: state(cluster, job) not in busy, f"end of {job}", 60)
    return state(cluster, job)


def output(cluster: SlurmCluster, job: str) -> str:
    """What a job printed."""
    assert ended(cluster, job) == "COMPLETED"
    return (cluster.shared / f"{job}.out").read_text().strip()


# -- nodes -----------------------------------------------------------------------------------------------------


@slurm
def test_every_node_is_a_host_of_its_own(slurm_cluster: SlurmCluster) -> None:
    jobs = {}
    mark = f"mine-{os.urandom(4).hex()}"
    for node in slurm_cluster.nodes:
        partition = "gpu" if node.startswith("gpu") else "debug"
        script = f"hostname; hostname -I; getent hosts head; touch /tmp/{mark}-{node}; ls /tmp /dev/shm"
        jobs[node] = sbatch(slurm_cluster, script, "-w", node, "-p", partition)
    marks = {f"{mark}-{node}" for node in jobs}
    for node, job in jobs.items():
        name, address, head, *files = output(slurm_cluster, job).splitlines()
        assert (name, address) == (node, f"{slurm_cluster.address(node)} ")
        assert head.split()[0] == slurm_cluster.address("gpu1").rpartition(".")[0] + ".1"
        assert marks & set(files) == {f"{mark}-{node}"}
    assert not marks & set(os.listdir("/tmp"))
    assert len({slurm_cluster.address(node) for node in jobs}) == len(jobs) == 5


@slurm
def test_the_nodes_see_the_shared_folder_and_pytests_own(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "asked").write_text("hello")
    wrote = slurm_cluster.shared / "from-the-node"
    job = sbatch(slurm_cluster, f"cat {tmp_path}/asked >{wrote}; echo done >{tmp_path}/answer")
    assert ended(slurm_cluster, job) == "COMPLETED"
    assert (wrote.read_text(), (tmp_path / "answer").read_text()) == ("hello", "done\n")


@slurm
def test_srun_over_two_nodes(slurm_cluster: SlurmCluster) -> None:
    out = slurm_cluster.run("srun", "-p", "gpu", "-N2", "-n2", "-C", "h100", "hostname")
    assert sorted(out.splitlines()) == ["gpu1", "gpu2"]


@slurm
def test_declared_gpus_are_given_out(slurm_cluster: SlurmCluster) -> None:
    show = ("sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    assert slurm_cluster.run("srun", "-p", "gpu", "--gpus-per-node=a100:3", *show) == "gpu3 0,1,2"
    assert slurm_cluster.run("srun", "-p", "gpu", "--gpus-per-node=h100:8", *show).endswith(" 0,1,2,3,4,5,6,7")
    with pytest.raises(ClusterError, match="node configuration is not available"):
        slurm_cluster.run("srun", "-p", "gpu", "--gpus-per-node=h100:9", "true")
    with pytest.raises(ClusterError, match="node configuration is not available"):
        slurm_cluster.run("srun", "-p", "debug", "--gpus-per-node=1", "true")


@slurm
def test_a_memory_limit_is_real_where_cgroups_are(slurm_cluster: SlurmCluster) -> None:
    job = sbatch(slurm_cluster, f"exec {sys.executable} -c 'x = bytearray(400 << 20)'", "--mem=100M")
    assert ended(slurm_cluster, job) == ("OUT_OF_MEMORY" if slurm_cluster.cgroups else "COMPLETED")


# -- accounting ------------------------------------------------------------------------------------------------


@slurm
def test_sacct_answers_with_accounting(slurm_cluster: SlurmCluster) -> None:
    job = sbatch(slurm_cluster, "exit 7", "--qos=high")
    assert ended(slurm_cluster, job) == "FAILED"
    ask = ("sacct", "-nXP", "-j", job, "-o", "State,ExitCode,QOS,Partition")
    wait_for(lambda: slurm_cluster.run(*ask) == "FAILED|7:0|high|debug", "the record of the job")


@slurm
def test_sacct_is_disabled_without_accounting(slurm_bare: SlurmCluster) -> None:
    assert output(slurm_bare, sbatch(slurm_bare, "echo here")) == "here"
    with pytest.raises(ClusterError, match="accounting storage is disabled"):
        slurm_bare.run("sacct")


@slurm
def test_two_clusters_side_by_side(slurm_cluster: SlurmCluster, slurm_bare: SlurmCluster) -> None:
    ours, theirs = (sbatch(cluster, "hostname -I; sleep 300", "-w", "cpu1") for cluster in (slurm_cluster, slurm_bare))
    for cluster, job in ((slurm_cluster, ours), (slurm_bare, theirs)):
        wait_for(partial(running, cluster, job), f"start of {job}")
        assert {ours, theirs} & set(cluster.run("squeue", "-h", "-o%i").split()) == {job}
    assert slurm_cluster.address("cpu1") != slurm_bare.address("cpu1")
    slurm_cluster.run("scancel", ours)
    assert ended(slurm_cluster, ours) == "CANCELLED"
    assert state(slurm_bare, theirs) == "RUNNING"
    slurm_bare.run("scancel", theirs)
    assert ended(slurm_bare, theirs) == "CANCELLED"


# -- the strict site -------------------------------------------------------------------------------------------


def refused(cluster: SlurmCluster, *options: str) -> str:
    done = cluster.run_as_user(["sbatch", *options, "--wrap", "true"], check=False)
    assert done.returncode != 0
    assert not done.stdout
    return done.stderr


@slurm
def test_a_strict_site_refuses(slurm_strict: SlurmCluster) -> None:
    account = f"--account={conf.ACCOUNT}"
    assert "give --account" in refused(slurm_strict)
    assert "Invalid account" in refused(slurm_strict, "--account=nobodys")
    for option in ("--mem=1G", "--mem-per-cpu=100M", "--mem-per-gpu=1G"):
        assert "remove --mem" in refused(slurm_strict, account, "-p", "gpu", "--gpus=1", option)
    with pytest.raises(ClusterError, match="root may not submit"):
        sbatch(slurm_strict, "true", account)


@slurm
def test_a_strict_site_runs_jobs_as_the_ordinary_user(slurm_strict: SlurmCluster) -> None:
    script = f"id -un; hostname; {sys.executable} -c 'import os; print(os.getcwd())'"
    argv = ["sbatch", "--parsable", f"--account={conf.ACCOUNT}", "-o", "who.out", "--wrap", script]
    job = slurm_strict.run_as_user(argv).stdout.strip()
    assert ended(slurm_strict, job) == "COMPLETED"
    out = slurm_strict.home / "who.out"
    wait_for(out.exists, "the head to see the output")
    assert out.read_text().splitlines() == [conf.USER, "cpu1", str(slurm_strict.home)]
    assert out.owner() == conf.USER


@slurm
def test_what_a_node_writes_is_seen_late(slurm_strict: SlurmCluster) -> None:
    home, real = slurm_strict.home, slurm_strict.nodes_shared / conf.USER
    slurm_strict.run_as_user(["sh", "-c", "mkdir late; echo old >late/replaced; echo one >late/log"])
    node = ("gpu1", "sh", "-c")
    slurm_strict.on_node(*node, f"cd {home}/late; echo two >>log; echo new >.new; mv .new replaced; echo x >made")
    changed = (real / "late" / "made").stat().st_ctime
    # the node has it all, the head nothing of it
    assert sorted(os.listdir(real / "late")) == ["log", "made", "replaced"]
    seen = [(home / "late" / name).read_text() for name in ("log", "replaced")] + sorted(os.listdir(home / "late"))
    assert time.time() < changed + slurm_strict.options.lag, "this machine is too slow to tell"
    assert seen == ["one\n", "old\n", "log", "replaced"]
    wait_for((home / "late" / "made").exists, "the head to see the new file")
    assert time.time() >= changed + slurm_strict.options.lag
    assert (home / "late" / "log").read_text() == "one\ntwo\n"
    assert (home / "late" / "replaced").read_text() == "new\n"


@slurm
def test_what_the_head_writes_is_there_at_once_and_names_are_exclusive(slurm_strict: SlurmCluster) -> None:
    share = slurm_strict.shared / "claims"
    share.mkdir(mode=0o777)
    (share / "payload").write_text("x" * 300_000)
    assert slurm_strict.on_node("cpu2", "wc", "-c", str(share / "payload")).split()[0] == "300000"
    slurm_strict.on_node("gpu1", "sh", "-c", f"set -C; : >{share}/claim; mkdir {share}/17")
    assert not (share / "claim").exists()
    with pytest.raises(FileExistsError):
        (share / "claim").open("x")
    with pytest.raises(FileExistsError):
        (share / "17").mkdir()
    with pytest.raises(FileExistsError):
        os.link(share / "payload", share / "claim")
    with pytest.raises(ClusterError, match="File exists"):
        slurm_strict.on_node("gpu2", "ln", str(share / "payload"), str(share / "claim"))


# -- faults and the end ----------------------------------------------------------------------------------------


def answers(cluster: SlurmCluster, node: str) -> bool:
    """Whether the head reaches a node's daemon over the network."""
    try:
        port = int(cluster.run("scontrol", "-o", "show", "config").partition("SlurmdPort")[2].split()[1])
        socket.create_connection((cluster.address(node), port), timeout=0.5).close()
    except OSError:
        return False
    return True


@slurm
def test_faults_happen_and_heal(slurm_own: Callable[..., SlurmCluster]) -> None:
    cluster = slurm_own(accounting=False, overrides=("MaxArraySize=100",))
    with pytest.raises(ClusterError, match="Invalid job array"):
        sbatch(cluster, "true", "--array=0-200")
    assert answers(cluster, "gpu1")
    cluster.cut("gpu1")
    assert not answers(cluster, "gpu1")
    assert answers(cluster, "gpu2")
    cluster.heal("gpu1")
    wait_for(lambda: answers(cluster, "gpu1"), "gpu1 on the network again")

    job = sbatch(cluster, "hostname", "-w", "cpu2", "--begin=now+1hour")
    cluster.kill_slurmd("cpu2")
    assert not answers(cluster, "cpu2")
    cluster.start_slurmd("cpu2")
    wait_for(lambda: answers(cluster, "cpu2"), "slurmd of cpu2")
    cluster.stop_controller()
    assert "DOWN" in cluster.run("scontrol", "ping", check=False)
    cluster.start_controller()
    cluster.run("scontrol", "update", f"jobid={job}", "StartTime=now")
    assert output(cluster, job) == "cpu2"


@slurm
def test_down_leaves_nothing_behind(slurm_own: Callable[..., SlurmCluster]) -> None:
    cluster = slurm_own(strict=True, lag=1.0)
    token = json.loads((cluster.folder / "state.json").read_text())["token"]
    stays = "setsid sleep 1000 & trap '' TERM; echo $! >started; sleep 1000"
    cluster.run_as_user(["sbatch", f"--account={conf.ACCOUNT}", "--wrap", stays])
    wait_for((cluster.home / "started").exists, "the job on the node")
    ours = set(hosts.pids_on(token, cluster.nodes)) | {p for p in procs.all_pids() if procs.marked(p, cluster.folder)}
    assert int((cluster.home / "started").read_text()) in ours
    assert procs.mounted(cluster.shared)

    cluster.down()
    assert not [pid for pid in ours if procs.alive(pid)]
    assert not [pid for pid in procs.all_pids() if procs.marked(pid, cluster.folder)]
    assert token not in procs.run(["ip", "-o", "link", "show"]).stdout
    assert token not in procs.run(["ip", "netns", "list"]).stdout
    assert str(cluster.folder) not in Path("/proc/self/mountinfo").read_text()
    cluster.down()

    # and it comes up again, with its accounts and its queue's numbers
    again = SlurmCluster(cluster.folder).up()
    assert conf.ACCOUNT in again.run("sacctmgr", "-nP", "show", "account", "format=account").split()


@slurm
def test_down_cleans_a_half_started_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="ck-half") as name:
        folder = Path(name)
        assert main(["up", name, "--no-accounting", "--conf", "SchedulerType=sched/none-such"]) == 1
        assert "slurmctld: it did not start; its log ends:" in capsys.readouterr().err
        token = json.loads((folder / "state.json").read_text())["token"]
        assert token in procs.run(["ip", "-o", "link", "show"]).stdout
        assert main(["down", name]) == 0
        assert token not in procs.run(["ip", "-o", "link", "show"]).stdout
        assert not [pid for pid in procs.all_pids() if procs.marked(pid, folder)]


# -- without a cluster -----------------------------------------------------------------------------------------


def test_without_root_there_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["up", str(tmp_path / "c")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "needs root" in said.err
    assert not (tmp_path / "c").exists()


@slurm
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a" * 80], "at most 70 characters"),
        (["with blank"], "without blanks"),
        (["c", "--strict", "--no-accounting"], "a strict cluster needs accounting"),
        (["c", "--conf", "MaxArraySize"], "write KEY=VALUE"),
    ],
)
def test_bad_options_get_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="ck-bad") as name:
        assert main(["up", f"{name}/{options[0]}", *options[1:]]) == 1
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert main(["down", f"{name}/{options[0]}"]) == 0


def test_down_of_nothing_is_fine(tmp_path: Path) -> None:
    assert main(["down", str(tmp_path / "never")]) == 0


def test_lines_of_slurm_conf_are_replaced_or_added() -> None:
    text = conf.override("A=1\nMaxArraySize=10001\nNodeName=a", ["maxarraysize=100", "NodeName=b", "New=x=y"])
    assert text.splitlines() == ["A=1", "NodeName=a", "maxarraysize=100", "NodeName=b", "New=x=y"]
    with pytest.raises(ValueError, match="KEY=VALUE"):
        conf.override("", ["MaxArraySize"])


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead


def test_the_late_view_shows_each_step_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(late_view, "time", clock)
    view = late_view.View(str(tmp_path), lag=100.0)
    log, made = tmp_path / "log", tmp_path / "made"
    log.write_text("head")
    inode = view.made(view.root, "log")
    for size in (5, 9):
        log.write_text("x" * size)
        view.tick()
    assert view.shape(inode)[1] == 4
    made.write_text("node")
    assert view.look(view.root, "made") is None
    assert [name for name, _ in view.listing(view.root)] == ["log"]
    clock.ahead = 101.0
    assert view.shape(inode)[1] == 9
    assert [name for name, _ in view.listing(view.root)] == ["log", "made"]
    made.unlink()
    gone = view.look(view.root, "made")
    assert gone is not None
    assert Path(gone.path).read_text() == "node"
    clock.ahead = 202.0
    assert view.look(view.root, "made") is None


def test_the_late_view_closes_what_nobody_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(late_view, "time", clock)
    view = late_view.View(str(tmp_path), lag=1.0)
    for number in range(50):
        (tmp_path / f"f{number}").touch()
        view.made(view.root, f"f{number}")
    before = len(os.listdir("/proc/self/fd"))
    clock.ahead = 60.0
    view.tick()
    assert len(os.listdir("/proc/self/fd")) <= before - 50
    assert view.look(view.root, "f7") is not None
