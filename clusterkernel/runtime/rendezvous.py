"""Where the ranks of a job meet, derived inside the job.

Ranks are static: the head is the first node of the allocation and has node
rank 0, since c10d would number ranks by the sorted text of addresses. On one
node they meet on the loopback, at a port that is free. On several, somebody on
the head chooses the address and the port once, before the nodes' launchers
start, and they all inherit the answer: ``CLUSTERKERNEL_RENDEZVOUS``. On Slurm
that is the batch script, which runs on the head; so nothing has to be agreed
upon through files, which another node may see late.
"""

import os
import re
import socket
import subprocess
import sys

VARIABLE = "CLUSTERKERNEL_RENDEZVOUS"
# Below the ports that systems give to clients (32768 and up), above the services.
FIRST_PORT = 20000
PORTS = 12000
_TRIES = 256
_TIMEOUT = 30


class RendezvousError(RuntimeError):
    """The ranks cannot meet; says what was looked for, and where."""


_ERROR = "error: "


def main(environ=None):
    """Print ``address:port`` for the nodes of this Slurm job, or why there is none. Run on the head."""
    try:
        print(choose(os.environ if environ is None else environ))
    except RendezvousError as error:
        print(_ERROR + str(error))  # the supervisors inherit it, and say it


def choose(environ):
    """Address and port at which the job's nodes reach the head, where this runs.

    Returns
    -------
    str
        ``address:port``.

    Raises
    ------
    RendezvousError
        The head's address cannot be found. The loopback is never taken: each
        node would meet itself.
    """
    nodes = node_names(environ)
    address = head_address(nodes)
    job, restart = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_RESTART_COUNT", "0")
    return "%s:%d" % (address, free_port(first_port(job, restart)))


def node_names(environ):
    """The nodes of the allocation, the head first."""
    text = environ.get("SLURM_JOB_NODELIST", "")
    if not text:
        raise RendezvousError("SLURM_JOB_NODELIST is not set, so the job's nodes are not known.")
    return _scontrol("hostnames", text).split()


def head_address(nodes):
    """How the other nodes reach the first one, also where host names do not resolve there."""
    address = _node_address(nodes[0])
    if _is_address(address):
        if not address.startswith("127."):
            return address
    else:
        for found in _resolve(address):
            if not found.startswith("127."):
                return found
    # Its name leads to the loopback, as Debian's /etc/hosts has it, or nowhere: ask
    # the kernel which address of ours packets to a neighbour carry.
    for node in nodes[1:]:
        for neighbour in _resolve(_node_address(node)):
            source = "127." if neighbour.startswith("127.") else _source_towards(neighbour)
            if source and not source.startswith("127."):
                return source
    raise RendezvousError(
        "The head node %s has no address that other nodes reach: its NodeAddr is %s." % (nodes[0], address)
    )


def first_port(job, restart):
    """The port to try first: another for each job and each of its restarts."""
    digits = re.sub(r"\D", "", job) or "0"
    return FIRST_PORT + (int(digits) * 31 + int(restart or 0) * 7) % PORTS


def free_port(first=0):
    """The first port from `first` on that nobody listens on; any free one for 0."""
    candidates = [0] if not first else [FIRST_PORT + (first - FIRST_PORT + step) % PORTS for step in range(_TRIES)]
    for port in candidates:
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            # As the store does: what a client's last connection left behind does not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return probe.getsockname()[1]
        except OSError:
            continue
        finally:
            probe.close()
    raise RendezvousError("None of %d ports from %d on is free on %s." % (_TRIES, first, socket.gethostname()))


def torchrun_args(context, environ=None):
    """What torchrun needs to know on this node.

    Parameters
    ----------
    context : Context
        The process that starts it, one on each node.
    environ : mapping, optional
        Default: the process's own.

    Returns
    -------
    list of str
        Its options, without the program.

    Raises
    ------
    RendezvousError
        The job has several nodes, and nothing says where they meet.
    """
    environ = os.environ if environ is None else environ
    nodes, ranks = shape(context.spec)
    address, port = _meeting_point(nodes, environ)
    return [
        "--nnodes=%d" % nodes,
        "--nproc_per_node=%d" % ranks,
        "--node_rank=%d" % node_rank(nodes, environ),
        "--rdzv_backend=static",
        "--rdzv_id=%s-%d" % (context.job_id, context.attempt),
        "--master_addr=%s" % address,
        "--master_port=%d" % port,
    ]


def launch(launcher, command, context, environ=None):
    """The command line that starts `command`, a Python program and its arguments, as the ranks of this node.

    DeepSpeed's own launcher reaches other nodes by ssh, which clusters forbid;
    its programs read the same variables that torchrun sets.
    """
    environ = os.environ if environ is None else environ
    if launcher in ("torchrun", "deepspeed"):
        return [sys.executable, "-m", "torch.distributed.run"] + torchrun_args(context, environ) + list(command)
    if launcher != "accelerate":
        raise RendezvousError("The launcher %r is not known." % (launcher,))
    nodes, ranks = shape(context.spec)
    address, port = _meeting_point(nodes, environ)
    words = [sys.executable, "-m", "accelerate.commands.launch", "--num_machines=%d" % nodes]
    words += ["--num_processes=%d" % (nodes * ranks), "--machine_rank=%d" % node_rank(nodes, environ)]  # the total
    words += ["--main_process_ip=%s" % address, "--main_process_port=%d" % port, "--rdzv_backend=static"]
    words += ["--mixed_precision=no", "--dynamo_backend=no"]
    if not context.spec.get("resources", {}).get("gpus_per_node"):
        words.append("--cpu")
    elif nodes * ranks > 1:
        words.append("--multi_gpu")
    return words + list(command)


def expand(argv, context, environ=None):
    """`argv` with torchrun's options for the item ``{torchrun}``, and the payload's folder for ``{payload}``."""
    payload = os.path.join(context.job_dir, "payload")
    expanded = []
    for item in argv:
        if item == "{torchrun}":
            expanded += torchrun_args(context, environ)
        else:
            expanded.append(item.replace("{payload}", payload))
    return expanded


def shape(spec):
    """Nodes, and ranks of each."""
    resources = spec.get("resources", {})
    ranks = resources.get("tasks_per_node") or (resources.get("gpus_per_node") or {}).get("count", 1)
    return resources.get("nodes", 1), ranks


def node_rank(nodes, environ):
    """Which node this is, the head being 0."""
    if nodes == 1:
        return 0
    for name in ("SLURM_NODEID", "JOB_COMPLETION_INDEX"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    raise RendezvousError("Neither SLURM_NODEID nor JOB_COMPLETION_INDEX says which of the %d nodes this is." % nodes)


def _meeting_point(nodes, environ):
    if nodes == 1:
        return "127.0.0.1", free_port()
    text = environ.get(VARIABLE, "")
    if not text and environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        text = "%s:%s" % (environ["MASTER_ADDR"], environ["MASTER_PORT"])
    if text.startswith(_ERROR):
        raise RendezvousError(text[len(_ERROR) :])
    address, _, port = text.rpartition(":")
    if not address or not port.isdigit():
        raise RendezvousError(
            "%s = %r does not say where the %d nodes meet; MASTER_ADDR and MASTER_PORT do not, either."
            % (VARIABLE, text, nodes)
        )
    return address, int(port)


def _scontrol(*words):
    command = ("scontrol", "show") + words
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCONTROL_")}
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=_TIMEOUT,
            env=environ,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        text = "%s cannot be run on %s: %s" % (" ".join(command), socket.gethostname(), error)
        raise RendezvousError(text) from error
    if done.returncode or not done.stdout.strip():
        raise RendezvousError("%s failed: %s" % (" ".join(command), done.stderr.strip() or "it printed nothing"))
    return done.stdout


def _node_address(node):
    """NodeAddr: what the cluster's own daemons use; the node's name where it is not set."""
    match = re.search(r"\bNodeAddr=(\S+)", _scontrol("node", node))
    return match.group(1) if match else node


def _is_address(text):
    try:
        socket.inet_aton(text)
    except OSError:
        return False
    return text.count(".") == 3


def _resolve(name):
    """Its IPv4 addresses; none where it does not resolve."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted(set(item[4][0] for item in found))


def _source_towards(address):
    """Our own address on the way to another: no packet is sent."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.connect((address, 9))
        return probe.getsockname()[0]
    except OSError:
        return ""
    finally:
        probe.close()
