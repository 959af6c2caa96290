#!/usr/bin/env python3
"""A real, private Slurm cluster for the tests.

    python tests/clusters/slurm.py install
    python tests/clusters/slurm.py up DIR [--no-accounting] [--strict] [--shared PATH] [--conf KEY=VALUE]
    python tests/clusters/slurm.py down DIR

`up` prints ``export SLURM_CONF=...``, the only variable that a Slurm client needs. Both may be called again; `down`
also cleans what a broken `up` left. Everything lies in DIR, but the network: a bridge and namespaces with names and
addresses of the cluster's own, so that several clusters run side by side. Needs root and Debian's packages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

if not __package__:  # run as a script: give it the package that it lies in
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    __package__ = Path(__file__).resolve().parent.name

from . import procs
from .cluster import Options, SlurmCluster, missing_programs
from .procs import ClusterError

__all__ = ["ClusterError", "Options", "SlurmCluster", "install", "main"]

PACKAGES = (
    "munge slurmctld slurmd slurm-client slurmdbd slurm-wlm-basic-plugins slurm-wlm-mysql-plugin"
    " mariadb-server-core mariadb-client-core iproute2 util-linux"
).split()


def install(say: Callable[[str], None]) -> None:
    """Install the Debian packages that are missing; no service is started."""
    if not missing_programs():
        say("all programs are here")
        return
    if os.geteuid() != 0:
        raise ClusterError("installing packages needs root; run with sudo")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
    with _no_services():
        procs.run(["apt-get", "update", "-qq"], env=env, timeout=300)
        procs.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES], env=env, timeout=900)
    say("packages installed")


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting their services, by Debian's own means; a policy that is there stays."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="slurm.py", description="A private Slurm cluster for the tests.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("install", help="install the Debian packages that are missing")
    up = verbs.add_parser("up", help="start a cluster, or what of it does not run")
    up.add_argument("folder", metavar="DIR")
    up.add_argument("--no-accounting", action="store_true", help="no MariaDB and slurmdbd")
    up.add_argument("--strict", action="store_true", help="accounts, ordinary users, no --mem, a late share")
    up.add_argument("--lag", type=float, default=5.0, metavar="SECONDS", help="how late the strict site's share is")
    up.add_argument("--shared", action="append", default=[], metavar="PATH", help="a folder in /tmp that all nodes see")
    up.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a line of slurm.conf")
    down = verbs.add_parser("down", help="stop a cluster")
    down.add_argument("folder", metavar="DIR")
    given = parser.parse_args(argv)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.2f} s] {text}", file=sys.stderr)

    try:
        if given.verb == "install":
            install(say)
        elif given.verb == "down":
            SlurmCluster(given.folder).down()
            say("down")
        else:
            options = Options(
                accounting=not given.no_accounting,
                strict=given.strict,
                lag=given.lag,
                shared=tuple(str(Path(path).resolve()) for path in given.shared),
                overrides=tuple(given.conf),
            )
            cluster = SlurmCluster(given.folder, options).up(say)
            print(f"export SLURM_CONF={cluster.env['SLURM_CONF']}")
    except (ClusterError, ValueError, subprocess.SubprocessError) as error:
        print(f"slurm.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
