"""One private Slurm cluster as an object: start it, stop it, use it, break it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import conf, hosts, procs, users
from .procs import ClusterError
from .services import Services

PROGRAMS = (
    "munged slurmctld slurmd sbatch slurmdbd mariadbd mariadb-install-db ip mount nsenter unshare setsid setpriv"
).split()
FOLDERS = "etc log pid munge db ctld spool dev nodes shared".split()


def missing_programs() -> list[str]:
    """The programs that this machine lacks."""
    path = ":".join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass(frozen=True)
class Options:
    """How a cluster differs from the default.

    Parameters
    ----------
    accounting : bool
        With MariaDB and slurmdbd.
    strict : bool
        A site with rules: accounts mandatory, ordinary users only, ``--mem`` refused, a late share.
    lag : float
        Seconds until the head of a strict cluster sees what a node wrote.
    shared : tuple of str
        Folders that all nodes see although they lie in a folder that each node has for itself, such as /tmp.
    overrides : tuple of str
        Lines of slurm.conf, ``KEY=VALUE``, replaced or added.
    """

    accounting: bool = True
    strict: bool = False
    lag: float = 5.0
    shared: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """What a cluster remembers of itself in DIR/state.json."""

    options: Options
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    slot: int = 0

    @classmethod
    def read(cls, path: Path) -> State:
        """Read the file again."""
        known: dict[str, Any] = json.loads(path.read_text())
        options: dict[str, Any] = known.pop("options")
        for name in ("shared", "overrides"):
            options[name] = tuple(options[name])
        return cls(Options(**options), **known)

    def write(self, path: Path) -> None:
        """Write the file; it is whole at every moment."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)) + "\n")
        new.replace(path)


class SlurmCluster:
    """One private cluster.

    Parameters
    ----------
    folder : Path or str
        Where it lives; made when missing. Its path must be short (unix sockets lie inside).
    options : Options
        A cluster that exists keeps its own; asking for others is an error.
    """

    def __init__(self, folder: Path | str, options: Options | None = None) -> None:
        self.folder = Path(folder).resolve()
        self._file = self.folder / "state.json"
        if self._file.exists():
            self._state = State.read(self._file)
            if options not in (None, Options(), self.options):
                raise ClusterError(f"{self.folder} holds a cluster with other options; give another folder")
        else:
            self._state = State(options or Options())
        conf.override("", self.options.overrides)  # before anything is made: are they KEY=VALUE?
        if self.options.strict and not self.options.accounting:
            raise ClusterError("a strict cluster needs accounting: its accounts lie in the database")

    # -- what a test uses --------------------------------------------------------------------------------------

    @property
    def options(self) -> Options:
        """How this cluster was started."""
        return self._state.options

    @property
    def env(self) -> dict[str, str]:
        """What to overlay on os.environ so that Slurm's clients, and the product, use this cluster."""
        return {"SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    @property
    def shared(self) -> Path:
        """A folder that the head and all nodes have at the same path."""
        return self.folder / "shared"

    @property
    def nodes_shared(self) -> Path:
        """Where the head finds what the nodes really have in `shared`; another place on a strict cluster only."""
        return self.folder / "export" if self.options.strict else self.shared

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return conf.NAMES

    @property
    def cgroups(self) -> bool:
        """Whether memory limits are real here (state OUT_OF_MEMORY)."""
        return self._at.cgroups and not self.options.strict

    def address(self, node: str) -> str:
        """The network address of a node."""
        return self._at.address(next(n.host for n in conf.NODES if n.name == node))

    def run(self, *argv: str, timeout: float = 60, check: bool = True) -> str:
        """Run a command on the head, as the caller, with the cluster's environment; give its stdout, stripped."""
        return procs.run(argv, env={**os.environ, **self.env}, timeout=timeout, check=check).stdout.strip()

    def on_node(self, node: str, *argv: str, timeout: float = 60) -> str:
        """Run a command on a node as root, without Slurm; give its stdout, stripped."""
        env = {**os.environ, **self.env}
        return procs.run([*hosts.enter(self._at, node), *argv], env=env, timeout=timeout).stdout.strip()

    # -- the ordinary user of a strict cluster -----------------------------------------------------------------

    @property
    def home(self) -> Path:
        """The ordinary user's home folder, on the share."""
        return self.shared / conf.USER

    def popen_as_user(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, **more: Any
    ) -> subprocess.Popen[str]:
        """Start a program on the head as the ordinary user; the keywords are those of Popen.

        The environment is the user's own and `env`, nothing of the caller's. The process is the program itself, so a
        signal to it hits the program.
        """
        if not self.options.strict:
            raise ClusterError("only a strict cluster has an ordinary user")
        command = users.argv_as_user(self._at, argv, cwd or self.home)
        full = {**users.environment(self.home), **self.env, **(env or {})}
        return subprocess.Popen(command, env=full, text=True, **more)

    def run_as_user(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
        timeout: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the head as the ordinary user to its end, and keep its text."""
        pipe = subprocess.PIPE
        with self.popen_as_user(argv, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            try:
                out, err = process.communicate(stdin, timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise ClusterError(f"{' '.join(argv)}: no answer within {timeout:g} s") from None
        if check and process.returncode != 0:
            raise ClusterError(f"{' '.join(argv)}: status {process.returncode}: {(err or out).strip()}")
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    # -- faults ------------------------------------------------------------------------------------------------

    def cut(self, node: str) -> None:
        """Pull a node's network cable; its jobs go on."""
        hosts.ip(f"link set {hosts.veth(self._state.token, node)} down")

    def heal(self, node: str) -> None:
        """Plug a node's network cable in again."""
        hosts.ip(f"link set {hosts.veth(self._state.token, node)} up")

    def kill_slurmd(self, node: str) -> None:
        """End a node's daemon with SIGKILL; job processes go on without it."""
        self._services.stop(f"slurmd-{node}", patience=0)

    def start_slurmd(self, node: str) -> None:
        """Start a node's daemon."""
        self._services.start_slurmd(node)

    def stop_controller(self) -> None:
        """Stop slurmctld; clients then block for up to 19 s and fail."""
        self._services.stop("slurmctld")

    def start_controller(self) -> None:
        """Start slurmctld and wait for its answer."""
        self._services.start_slurmctld()

    def restart_controller(self) -> None:
        """Stop and start slurmctld."""
        self.stop_controller()
        self.start_controller()

    def stop_accounting(self) -> None:
        """Stop slurmdbd; sacct then fails at once."""
        self._services.stop("slurmdbd")

    def start_accounting(self) -> None:
        """Start slurmdbd."""
        self._services.start_slurmdbd()

    # -- life --------------------------------------------------------------------------------------------------

    def up(self, say: Callable[[str], None] = lambda _: None) -> SlurmCluster:
        """Start what does not run yet, and wait until every node is idle or busy."""
        self._check_machine()
        self._make_folders()
        self._save(self._state)  # before anything is made, so that `down` finds it
        if not hosts.has_network(self._state.token, self._state.slot):
            self._save(replace(self._state, slot=hosts.claim_network(self._state.token)))
        services = self._services
        services.write_configs()
        with ThreadPoolExecutor(1) as pool:
            machines = pool.submit(self._start_hosts)
            services.start_munge()
            if self.options.accounting:
                services.start_database()
                say("database up")
                services.start_slurmdbd()
                services.make_accounts()
                say("accounting up")
            machines.result()
            say("nodes' namespaces up")
        services.start_slurmctld()
        say("controller up")
        with ThreadPoolExecutor(len(conf.NODES)) as pool:
            list(pool.map(services.start_slurmd, self.nodes))
        procs.wait_for(self._all_answer, "nodes of the cluster to answer", 60)
        say("ready")
        return self

    def down(self) -> None:
        """Stop every process of the cluster by its pid and remove its network and mounts; the files stay."""
        if not self._file.exists():
            return
        services = self._services
        services.stop(*(f"slurmd-{name}" for name in self.nodes))
        procs.stop(hosts.pids_on(self._state.token, self.nodes), patience=1)
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged"):
            services.stop(name, patience=20)
        services.stop_share()
        procs.stop([pid for pid in procs.all_pids() if procs.marked(pid, self.folder) and pid != os.getpid()])
        for path in (self.folder / "pid").glob("*.pid"):
            path.unlink()
        hosts.disconnect(self._state.token)
        hosts.remove_cgroups(self._at)
        self._save(replace(self._state, slot=0))

    # -- parts -------------------------------------------------------------------------------------------------

    @property
    def _at(self) -> conf.Layout:
        return conf.Layout(
            folder=self.folder,
            head=socket.gethostname().partition(".")[0],
            network=hosts.network_of(self._state.slot),
            port=hosts.port_of(self._state.slot),
            # job ids differ between clusters, because the cgroups of two clusters lie side by side
            first_job=self._state.slot * conf.JOBS,
            accounting=self.options.accounting,
            strict=self.options.strict,
            overrides=self.options.overrides,
        )

    @property
    def _services(self) -> Services:
        return Services(self._at)

    def _save(self, state: State) -> None:
        self._state = state
        state.write(self._file)

    def _make_folders(self) -> None:
        for name in self.options.shared:
            Path(name).mkdir(parents=True, exist_ok=True)
        for name in FOLDERS:
            if name != "shared" or not procs.mounted(self.shared):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder, 0o755)
        os.chmod(self.folder / "db", 0o700)
        self.nodes_shared.mkdir(exist_ok=True)
        os.chmod(self.nodes_shared, 0o1777)
        if self.options.strict:
            if not users.reachable(self.folder):
                raise ClusterError(f"{self.folder}: give a folder that every user may enter")
            user = users.ensure_user()
            home = self.nodes_shared / conf.USER
            if not home.exists():
                home.mkdir(mode=0o700)
                os.chown(home, user.pw_uid, user.pw_gid)

    def _start_hosts(self) -> None:
        """Start the share and the nodes' namespaces; together, since the latter hold mounts of the former."""
        services, token = self._services, self._state.token
        names = [f"host-{name}" for name in self.nodes]
        if self.options.strict:
            names += ["share", f"host-{hosts.LOGIN}"]
        if all(services.pid(name) for name in names):
            return
        services.stop(*(f"slurmd-{name}" for name in self.nodes))
        services.stop(f"host-{hosts.LOGIN}")
        procs.stop(hosts.pids_on(token, self.nodes), patience=1)
        hosts.unplug(token)
        if self.options.strict:
            services.start_share(self.nodes_shared, self.shared, self.options.lag)
        hosts.connect(token, self._at)
        hosts.boot(token, self._at, self.options.shared, users.interpreters(), services.env)

    def _all_answer(self) -> bool:
        done = procs.run(["sinfo", "-h", "-N", "-o", "%N %t"], env=self._services.env, check=False)
        good = {line.split()[0] for line in done.stdout.splitlines() if line.split()[1] in ("idle", "mix", "alloc")}
        return good == set(self.nodes)

    def _check_machine(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("the test Slurm needs root (network namespaces): run it as root or with sudo")
        if missing := missing_programs():
            raise ClusterError(f"missing: {', '.join(missing)}; run `python tests/clusters/slurm.py install` as root")
        if len(str(self.folder)) > 70:
            raise ClusterError(f"{self.folder}: give a path of at most 70 characters (unix sockets lie inside)")
        if any(mark in str(self.folder) for mark in " '\"%,"):
            raise ClusterError(f"{self.folder}: give a path without blanks, quotes, commas and %")
