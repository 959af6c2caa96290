"""Nodes as hosts of their own: network, UTS and mount namespaces on a bridge of the cluster.

A node has its own address, host name, /etc/hosts and private /tmp, /var/tmp and /dev/shm. A small process per
node (the *holder*) keeps the namespaces; everything else enters it with nsenter. Not with ``ip netns exec``: that
mounts a new /sys, which hides the cgroups, and slurmd does not start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from . import procs
from .conf import CGROUP, JOBS, NAMES, NODES, Layout, hosts
from .procs import ClusterError

LOGIN = "login"
PRIVATE = ("/tmp", "/var/tmp", "/dev/shm")
_SLOTS = range(1, 255)
_LOCK = Path("/run/lock/clusterkernel-test-networks")
_NETNS = Path("/run/netns")


def network_of(slot: int) -> str:
    """The first three numbers of the addresses of slot 1 to 254."""
    return f"10.77.{slot}"


def port_of(slot: int) -> int:
    """The first of the four ports of a slot; below the ports that the kernel hands out by itself."""
    return 20000 + 10 * slot


def bridge(token: str) -> str:
    """The name of a cluster's bridge; an interface name has at most 15 characters."""
    return f"ck{token}br"


def veth(token: str, node: str) -> str:
    """The name of the head's end of a node's cable."""
    return f"ck{token}{node}"


def netns(token: str, node: str) -> str:
    """The name of a node's network namespace."""
    return f"ck{token}-{node}"


def ip(*lines: str, check: bool = True) -> str:
    """Run lines of iproute2 in one process."""
    force = () if check else ("-force",)
    return procs.run(["ip", *force, "-batch", "-"], stdin="\n".join(lines) + "\n", check=check).stdout


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock of this machine while a network is chosen."""
    with _LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def claim_network(token: str) -> int:
    """Make the cluster's bridge on a subnet and ports that nobody uses, and give the slot's number.

    The bridge's address is the claim: the kernel forgets it with the bridge, so there is no file to go stale.
    """
    with _one_at_a_time():
        routes = json.loads(procs.run(["ip", "-j", "-4", "route", "show"]).stdout or "[]")
        taken = {str(route.get("dst", "")).rpartition(".")[0] for route in routes}
        addresses = json.loads(procs.run(["ip", "-j", "-4", "address", "show"]).stdout or "[]")
        taken |= {a["local"].rpartition(".")[0] for link in addresses for a in link.get("addr_info", ())}
        for slot in _SLOTS:
            if network_of(slot) not in taken and all(_port_free(port_of(slot) + k) for k in range(4)):
                break
        else:
            raise ClusterError("no free network 10.77.x.0/24 with free ports is left on this machine")
        name = bridge(token)
        ip(
            f"link add {name} type bridge",
            f"address add {network_of(slot)}.1/24 dev {name}",
            f"link set {name} up",
        )
    return slot


def connect(token: str, at: Layout) -> None:
    """Make every node's network namespace and plug it into the bridge."""
    for node in NODES:
        procs.run(["ip", "netns", "add", netns(token, node.name)])
    ip(
        *(
            line
            for node in NODES
            for line in (
                f"link add {veth(token, node.name)} type veth peer name eth0 netns {netns(token, node.name)}",
                f"link set {veth(token, node.name)} master {bridge(token)} up",
            )
        )
    )
    for node in NODES:
        procs.run(
            # nsenter and not `ip -n`, which remounts / and fails where that is no mount point (a chroot)
            ["nsenter", f"--net={_NETNS / netns(token, node.name)}", "ip", "-batch", "-"],
            stdin=f"address add {at.address(node.host)}/24 dev eth0\nlink set eth0 up\nlink set lo up\n"
            f"route add default via {at.address(1)}\n",
        )


def has_network(token: str, slot: int) -> bool:
    """Whether the cluster's bridge exists with the address of its slot."""
    done = procs.run(["ip", "-4", "-o", "address", "show", "dev", bridge(token)], check=False)
    return slot > 0 and f" {network_of(slot)}.1/24 " in done.stdout


def unplug(token: str) -> None:
    """Remove the nodes' cables and namespaces, as far as they exist."""
    for node in NODES:
        if (_NETNS / netns(token, node.name)).exists():
            procs.run(["ip", "netns", "del", netns(token, node.name)])
    _remove(veth(token, node.name) for node in NODES)


def disconnect(token: str) -> None:
    """Remove the whole network of the cluster."""
    unplug(token)
    _remove([bridge(token)])


def _remove(mine: Iterable[str]) -> None:
    there = {link["ifname"] for link in json.loads(procs.run(["ip", "-j", "link", "show"]).stdout)}
    # not checked: the kernel may drop a cable together with its namespace meanwhile
    ip(*(f"link del {name}" for name in mine if name in there), check=False)


def _private(at: Layout, host: str, shared: Sequence[str]) -> list[str]:
    """The shell lines that give a host its own /tmp and the like."""
    d = at.folder
    lines = []
    for place in PRIVATE:
        own = f"{d}/nodes/{host}{place}"
        lines.append(f"mkdir -p {own}")
        if place == "/dev/shm":
            lines.append(f"mount -t tmpfs -o mode=1777 tmpfs {own}")
        lines.append(f"chmod 1777 {own}")
        # A folder of the cluster often lies under /tmp itself: keep it visible there.
        for folder in (str(d), *shared):
            if folder == place or folder.startswith(place + "/"):
                inside = shlex.quote(own + folder[len(place) :])
                lines += [f"mkdir -p {inside}", f"mount --rbind {shlex.quote(folder)} {inside}"]
        lines.append(f"mount --rbind {own} {place}")
    return lines


def _reachable(at: Layout, host: str, paths: Sequence[Path]) -> list[str]:
    """The shell lines that let an ordinary user reach folders that lie in a closed one (an interpreter in /root).

    The closed folder is covered, in this host's mount namespace only, by an open one that holds nothing else.
    """
    closed: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(paths):
        for above in reversed(path.parents):
            if not above.stat().st_mode & 0o001:
                closed.setdefault(above, []).append(path)
                break
    lines = []
    for above, inside in closed.items():
        tops = [path for path in inside if not any(other in path.parents for other in inside)]
        kept = {path: f"{at.folder}/nodes/{host}/kept/{number}" for number, path in enumerate(tops)}
        for path, place in kept.items():
            lines += [f"mkdir -p {place}", f"mount --bind {shlex.quote(str(path))} {place}"]
        lines.append(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(above))}")
        for path, place in kept.items():
            target = shlex.quote(str(path))
            lines += [f"mkdir -p {target}", f"mount --bind {place} {target}", f"umount {place}"]
    return lines


def boot(token: str, at: Layout, shared: Sequence[str], reach: Sequence[Path], env: Mapping[str, str]) -> None:
    """Start the holder of every node and, on a strict cluster, of the ordinary user's view of the head.

    Parameters
    ----------
    shared
        Folders that stay visible where a node has its private ones.
    reach
        Folders that the ordinary user of a strict cluster must be able to read.
    env
        The environment of the holders.
    """
    d = at.folder
    (d / "etc" / "hosts").write_text(hosts(at))
    # names come from the file alone: a name server is out of reach, and asking it costs 10 s
    (d / "etc" / "nsswitch.conf").write_text("passwd: files\ngroup: files\nshadow: files\nhosts: files\n")

    def one(host: str) -> None:
        pid = f"{d}/pid/host-{host}.pid"
        # Our mounts must not spread to the machine; unshare could not say so in a chroot, whose / is no mount point.
        lines = ["set -e", "mount --make-rslave / 2>/dev/null || true"]
        argv = ["unshare", "--mount", "--propagation", "unchanged"]
        if host != LOGIN:
            argv = ["nsenter", f"--net={_NETNS / netns(token, host)}", *argv, "--uts"]
            lines.append(f"hostname {host}")
            lines += [f"mount --bind {d}/etc/{name} /etc/{name}" for name in ("hosts", "nsswitch.conf")]
        if at.strict:
            lines += _reachable(at, host, reach)
            if host != LOGIN:
                lines += [f"umount -l {d}/shared", f"mount --bind {d}/export {d}/shared"]
        if host != LOGIN:
            lines += _private(at, host, shared)
        lines += ["cd /", "setsid sleep infinity </dev/null >/dev/null 2>&1 &"]
        lines += [f"echo $! >{pid}.new", f"mv {pid}.new {pid}"]
        procs.run([*argv, "--", "sh", "-c", "\n".join(lines)], env=env)

    names = [*NAMES, LOGIN] if at.strict else NAMES
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(one, names))


def enter(at: Layout, node: str) -> list[str]:
    """The command prefix that runs a program on a node, or in the ordinary user's view of the head."""
    holder = procs.read_pid(at.folder / "pid" / f"host-{node}.pid")
    if holder is None or not procs.marked(holder, at.folder):
        raise ClusterError(f"node {node} is not up")
    # with the holder's root: entering a mount namespace alone would leave a chroot that the tests run in
    kinds = ["--mount", "--root"] if node == LOGIN else ["--net", "--uts", "--mount", "--root"]
    return ["nsenter", "-t", str(holder), *kinds, "--"]


def pids_on(token: str, nodes: Sequence[str]) -> list[int]:
    """The processes inside the nodes' network namespaces: holders, daemons and jobs."""
    # The inode number of a namespace is its identity only as long as it exists, and its name keeps it so.
    mine = set()
    for node in nodes:
        try:
            mine.add(f"net:[{os.stat(_NETNS / netns(token, node)).st_ino}]")
        except OSError:
            continue
    return [pid for pid in procs.all_pids() if procs.namespace(pid) in mine]


def remove_cgroups(at: Layout) -> None:
    """Remove the empty cgroups of jobs that were killed; other clusters' jobs have other numbers."""
    for job in CGROUP.parent.glob("slurm_*/uid_*/job_*"):
        number = int(job.name.removeprefix("job_"))
        if at.first_job <= number < at.first_job + JOBS and job.parts[-3].removeprefix("slurm_") in NAMES:
            for folder, _, _ in os.walk(job, topdown=False):
                # a step that is just going away removes its own
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
