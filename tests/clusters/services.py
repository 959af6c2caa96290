"""The daemons of a cluster: munge, MariaDB, slurmdbd, slurmctld and the nodes' slurmd.

Every daemon writes its pid below ``pid/``; it is started only when it does not run yet.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from . import conf, hosts, procs
from .procs import MARK, ClusterError


class Services:
    """Starts and stops the daemons of one cluster.

    Parameters
    ----------
    at : Layout
        Where it lives.
    """

    def __init__(self, at: conf.Layout) -> None:
        self.at = at
        self.folder = at.folder

    @property
    def env(self) -> dict[str, str]:
        """The environment of the daemons and of the administrator's commands."""
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "TZ")}
        sbin = keep.get("PATH", os.defpath).split(":")
        sbin += [folder for folder in ("/usr/sbin", "/sbin") if folder not in sbin]
        return {
            **keep,
            "PATH": ":".join(sbin),
            "SLURM_CONF": str(self.folder / "etc" / "slurm.conf"),
            "MYSQL_UNIX_PORT": str(self.folder / "db" / "mysql.sock"),
            MARK: str(self.folder),
        }

    def pid(self, name: str) -> int | None:
        """The pid of a daemon that runs and is ours, else None."""
        pid = procs.read_pid(self.folder / "pid" / f"{name}.pid")
        if pid is not None and procs.alive(pid) and procs.marked(pid, self.folder):
            return pid
        return None

    def stop(self, *names: str, patience: float = 10) -> None:
        """End daemons by their own pids, all at once."""
        procs.stop([pid for name in names if (pid := self.pid(name)) is not None], patience)
        for name in names:
            (self.folder / "pid" / f"{name}.pid").unlink(missing_ok=True)

    def write_configs(self) -> None:
        """Write every configuration file, and the declared GPUs' device files."""
        etc = self.folder / "etc"
        (etc / "slurm.conf").write_text(conf.slurm_conf(self.at))
        (etc / "gres.conf").write_text(conf.gres_conf(self.at))
        (etc / "cgroup.conf").write_text(conf.cgroup_conf(self.at))
        if self.at.strict:
            (etc / "job_submit.lua").write_text(conf.job_submit_lua())
        dbd = etc / "slurmdbd.conf"
        dbd.touch(mode=0o600)  # slurmdbd refuses a file that others may read
        dbd.write_text(conf.slurmdbd_conf(self.at))
        for node in conf.NODES:
            for number in range(conf.GPUS_PER_NODE if node.gpu else 0):
                device = self.folder / "dev" / f"{node.name}-{number}"
                if not device.exists():
                    os.mknod(device, 0o20666, os.makedev(1, 3))

    def start_munge(self) -> None:
        """Start munged on the cluster's own socket and key."""
        if self.pid("munged"):
            return
        d = self.folder
        key = d / "munge" / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(os.urandom(128))
        # --force: the folders above (a sticky /tmp) are not munged's business in a test
        procs.run(
            ["munged", f"--socket={d}/munge/munge.sock", f"--key-file={key}", f"--pid-file={d}/pid/munged.pid"]
            + [f"--log-file={d}/log/munged.log", f"--seed-file={d}/munge/seed", "--num-threads=4", "--force"],
            env=self.env,
        )

    def start_database(self) -> None:
        """Start MariaDB on a socket in the cluster's folder, making its tables the first time."""
        if self.pid("mariadbd"):
            return
        data = self.folder / "db"
        if not (data / "mysql").is_dir():
            procs.run(
                ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root"]
                + ["--auth-root-authentication-method=socket", "--skip-test-db"],
                env=self.env,
            )
        self._background(
            "mariadbd",
            ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={data}/mysql.sock"]
            + [f"--pid-file={self.folder}/pid/mariadbd.pid", "--skip-networking", "--skip-log-bin"]
            + ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-lock-wait-timeout=900"]
            + ["--innodb-flush-log-at-trx-commit=0", "--performance-schema=OFF"],
        )

        def answers() -> bool:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(f"{data}/mysql.sock")
            except OSError:
                return False
            return self.pid("mariadbd") is not None

        self._wait(answers, "mariadbd")

    def start_slurmdbd(self) -> None:
        """Start slurmdbd and wait until it answers."""
        if not self.pid("slurmdbd"):
            self._fresh_log("slurmdbd")
            procs.run(["slurmdbd"], env=self.env)
        self._wait(lambda: self._listens(self.at.port + 2), "slurmdbd")

    def start_slurmctld(self) -> None:
        """Start the controller and wait until it answers."""
        if not self.pid("slurmctld"):
            self._fresh_log("slurmctld")
            procs.run(["slurmctld"], env=self.env)
        self._wait(lambda: procs.run(["scontrol", "ping"], env=self.env, check=False).returncode == 0, "slurmctld")

    def start_slurmd(self, node: str) -> None:
        """Start the daemon of a node."""
        if not self.pid(f"slurmd-{node}"):
            (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
            procs.run([*hosts.enter(self.at, node), "slurmd", "-N", node], env=self.env)

    def make_accounts(self) -> None:
        """Register the cluster, its qualities of service and, on a strict one, the ordinary user's account."""
        have = procs.run(["sacctmgr", "-nP", "show", "cluster", "format=cluster"], env=self.env).stdout.split()
        if conf.CLUSTER in have:
            return
        commands = [
            f"add cluster {conf.CLUSTER}",
            "add qos low set priority=1",
            "add qos high set priority=1000",
            # sacctmgr reads the list of QOS only once: nothing may ask for it before both are there
            "modify qos high set preempt=low",
            "modify account root set qos=normal,high,low",
        ]
        if self.at.strict:
            commands += [
                f"add account {conf.ACCOUNT} cluster={conf.CLUSTER} description=tests organization=tests",
                f"add user {conf.USER} account={conf.ACCOUNT}",
            ]
        # one process for all of them: each sacctmgr takes about 0.3 s
        procs.run(["sacctmgr", "-i", "-Q"], stdin="\n".join(commands) + "\nquit\n", env=self.env)

    def start_share(self, real: Path, view: Path, lag: float) -> None:
        """Mount the late share at `view`; afresh, where it was served before."""
        self.stop_share()
        program = Path(__file__).with_name("lagged_share.py")
        pid = self.folder / "pid" / "share.pid"
        self._background("share", [sys.executable, str(program), str(real), str(view), f"--lag={lag}", f"--pid={pid}"])
        self._wait(lambda: self.pid("share") is not None, "share")

    def stop_share(self) -> None:
        """Unmount the late share and end its server."""
        # one that still serves first: unmounting is what ends it, and a killed one makes its users fail at once
        while procs.mounted(self.folder / "shared"):
            procs.run(["umount", "-l", str(self.folder / "shared")])
        self.stop("share", patience=2)

    def _background(self, name: str, argv: list[str]) -> None:
        """Start a program that does not become a daemon by itself."""
        self._fresh_log(name)
        log = self.folder / "log" / f"{name}.log"
        # setsid forks, so the program is nobody's child and leaves no zombie behind
        with log.open("ab") as out:
            subprocess.run(
                ["setsid", "--fork", *argv],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                check=True,
            )

    def _listens(self, port: int) -> bool:
        try:
            socket.create_connection((self.at.address(1), port), timeout=1).close()
        except OSError:
            return False
        return True

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        """Wait for a daemon; give up as soon as its log says that it gave up."""

        def look() -> bool:
            if ready():
                return True
            if "fatal: " in self.tail(name):
                raise ClusterError(name)
            return False

        try:
            procs.wait_for(look, name)
        except ClusterError as error:
            raise ClusterError(f"{error}: it did not start; its log ends: {self.tail(name)}") from error

    def _fresh_log(self, name: str) -> None:
        """Put an earlier start's log aside, for `_wait` reads this one's."""
        log = self.folder / "log" / f"{name}.log"
        with contextlib.suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.old"))

    def tail(self, name: str, lines: int = 3) -> str:
        """The last lines of a daemon's log, on one line."""
        try:
            text = Path(self.folder / "log" / f"{name}.log").read_text(errors="replace")
        except OSError:
            return "(no log)"
        return " | ".join(text.strip().splitlines()[-lines:])
