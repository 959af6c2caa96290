"""The ordinary user of a strict cluster, and how a test runs programs as that user."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from pathlib import Path

from . import conf, hosts, procs
from .procs import ClusterError

PROJECT = Path(__file__).resolve().parents[2]


def ensure_user() -> pwd.struct_passwd:
    """Give the system user of the tests, made when it is missing."""
    try:
        return pwd.getpwnam(conf.USER)
    except KeyError:
        # two clusters may come up at once: the loser's useradd fails, and the user is there
        done = procs.run(["useradd", "--system", "--user-group", "--shell", "/bin/bash", conf.USER], check=False)
    try:
        return pwd.getpwnam(conf.USER)
    except KeyError:
        raise ClusterError(f"system user {conf.USER} cannot be made: {done.stderr.strip()}") from None


def interpreters() -> list[Path]:
    """The folders that the user's Python programs need: this interpreter's, the project's and its environment's."""
    found = [PROJECT, Path(sys.prefix), Path(sys.base_prefix)]
    settings = PROJECT / ".venv" / "pyvenv.cfg"
    if settings.exists():
        for line in settings.read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "home":
                found.append(Path(value.strip()).parent)
    found += [path.resolve() for path in found]
    return [path for path in dict.fromkeys(found) if path.is_dir()]


def reachable(path: Path) -> bool:
    """Whether an ordinary user can get to a path."""
    return all(above.stat().st_mode & 0o001 for above in (path, *path.parents))


def argv_as_user(at: conf.Layout, argv: Sequence[str], cwd: Path) -> list[str]:
    """The command that runs `argv` as the user in folder `cwd`, in the user's view of the head."""
    user = ["setpriv", f"--reuid={conf.USER}", f"--regid={conf.USER}", "--clear-groups", "--"]
    return [*hosts.enter(at, hosts.LOGIN), *user, "env", "-C", str(cwd), *argv]


def environment(home: Path) -> dict[str, str]:
    """The user's environment, but for the cluster's own variables."""
    path = [str(Path(sys.executable).parent), *os.environ.get("PATH", os.defpath).split(":")]
    keep = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TZ") if name in os.environ}
    return {
        **keep,
        "PATH": ":".join(dict.fromkeys(path)),
        "HOME": str(home),
        "USER": conf.USER,
        "LOGNAME": conf.USER,
        "SHELL": "/bin/bash",
    }
