"""The texts of a cluster's configuration files, and what its nodes are.

All numbers come from runs of Slurm 22.05 on Debian 12. The scheduler is tuned for a quick start (a job starts
0.2 to 0.9 s after sbatch; 2.4 to 2.8 s with Slurm's defaults), and ``cred_expire=5`` shortens a requeue from two
minutes to seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CLUSTER = "lab"
USER = "cktest"  # the ordinary user of a strict cluster, a system user of this machine
ACCOUNT = "research"  # the one account of USER on a strict cluster
CGROUP = Path("/sys/fs/cgroup/memory/tasks")


@dataclass(frozen=True)
class Node:
    """One node: its name, the last number of its address, and the GPUs and features it declares."""

    name: str
    host: int
    gpu: str = ""
    features: str = ""


NODES = (
    Node("cpu1", 11),
    Node("cpu2", 12),
    Node("gpu1", 21, "h100", "h100,ib"),
    Node("gpu2", 22, "h100", "h100,ib"),
    Node("gpu3", 23, "a100", "a100"),
)
NAMES = tuple(node.name for node in NODES)
GPUS_PER_NODE = 8
JOBS = 100_000  # how many job ids belong to one cluster


@dataclass(frozen=True)
class Layout:
    """Where a cluster lives: its folder, network and ports, and how it differs from the default."""

    folder: Path
    head: str
    network: str
    port: int
    first_job: int
    accounting: bool
    strict: bool
    overrides: tuple[str, ...] = ()

    @property
    def cgroups(self) -> bool:
        """Whether memory limits can be real: Slurm 22.05 needs a cgroup v1 that it may write."""
        try:
            with CGROUP.open("a"):
                return True
        except OSError:
            return False

    def address(self, host: int) -> str:
        """The address with this last number; the head is number 1."""
        return f"{self.network}.{host}"


def override(text: str, overrides: Sequence[str]) -> str:
    """Replace the lines of slurm.conf whose key is given again (``KEY=VALUE``), and append the others.

    Lines of nodes and partitions are always appended, since several may stand side by side.
    """
    lines = text.splitlines()
    for item in overrides:
        key, equals, _ = item.partition("=")
        if not key or not equals:
            raise ValueError(f"--conf {item!r}: write KEY=VALUE, for example MaxArraySize=100")
        if key.lower() not in ("nodename", "partitionname"):
            lines = [line for line in lines if line.partition("=")[0].lower() != key.lower()]
        lines.append(item)
    return "\n".join(lines) + "\n"


def slurm_conf(at: Layout) -> str:
    """The text of slurm.conf."""
    d = at.folder
    lines = f"""\
ClusterName={CLUSTER}
SlurmctldHost={at.head}({at.address(1)})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/munge/munge.sock,ttl=300,cred_expire=5
CredType=cred/munge
CryptoType=crypto/munge
SlurmctldPort={at.port}
SlurmdPort={at.port + 1}
StateSaveLocation={d}/ctld
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/pid/slurmctld.pid
SlurmdPidFile={d}/pid/slurmd-%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/{"cgroup" if at.cgroups else "none"}
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=10
InactiveLimit=0
MinJobAge=300
KillWait=5
UnkillableStepTimeout=30
MessageTimeout=20
MaxArraySize=10001
MaxJobCount=20000
FirstJobId={at.first_job}
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_continue,default_queue_depth=1000
SelectType=select/cons_tres
SelectTypeParameters={"CR_Core" if at.strict else "CR_Core_Memory"}
GresTypes=gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
""".splitlines()
    if at.accounting:
        # multifactor, QOS preemption and gres among the tracked resources are refused without slurmdbd
        lines += f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={at.address(1)}
AccountingStoragePort={at.port + 2}
AccountingStoragePass={d}/munge/munge.sock
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment,job_env,job_script
AccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/gpu:a100
PriorityType=priority/multifactor
PriorityWeightQOS=10000
PriorityWeightAge=100
PreemptType=preempt/qos
PreemptMode=REQUEUE
""".splitlines()
    else:
        lines += ["AccountingStorageType=accounting_storage/none", "PriorityType=priority/basic"]
    if at.strict:
        lines.append("JobSubmitPlugins=lua")
    for node in NODES:
        gres = f" Gres=gpu:{node.gpu}:{GPUS_PER_NODE} Feature={node.features}" if node.gpu else ""
        lines.append(
            f"NodeName={node.name} NodeHostname={node.name} NodeAddr={at.address(node.host)} CPUs=64 Boards=1"
            f" SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=512000{gres}"
        )
    memory = "" if at.strict else " DefMemPerCPU=1000"
    for name, kind, default in (("debug", "cpu", " Default=YES"), ("gpu", "gpu", "")):
        members = ",".join(node.name for node in NODES if node.name.startswith(kind))
        lines.append(f"PartitionName={name} Nodes={members}{default} MaxTime=INFINITE DefaultTime=60 State=UP{memory}")
    return override("\n".join(lines), at.overrides)


def gres_conf(at: Layout) -> str:
    """The text of gres.conf; the GPUs are copies of /dev/null, for Slurm wants a character device."""
    lines = ["AutoDetect=off"]
    for node in NODES:
        if node.gpu:
            last = GPUS_PER_NODE - 1
            lines.append(f"NodeName={node.name} Name=gpu Type={node.gpu} File={at.folder}/dev/{node.name}-[0-{last}]")
    return "\n".join(lines) + "\n"


def cgroup_conf(at: Layout) -> str:
    """The text of cgroup.conf: memory limits only, and only where they work."""
    plugin, limit = ("cgroup/v1", "yes") if at.cgroups else ("autodetect", "no")
    return (
        f"CgroupPlugin={plugin}\nCgroupAutomount=no\nConstrainCores=no\n"
        f"ConstrainDevices=no\nConstrainRAMSpace={limit}\n"
    )


def slurmdbd_conf(at: Layout) -> str:
    """The text of slurmdbd.conf; the database listens on a socket in the cluster's folder only."""
    d = at.folder
    return f"""\
AuthType=auth/munge
AuthInfo=socket={d}/munge/munge.sock
DbdHost={at.head}
DbdAddr={at.address(1)}
DbdPort={at.port + 2}
SlurmUser=root
PidFile={d}/pid/slurmdbd.pid
LogFile={d}/log/slurmdbd.log
DebugLevel=info
CommitDelay=1
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""


def hosts(at: Layout) -> str:
    """The text of the nodes' /etc/hosts."""
    lines = ["127.0.0.1 localhost", f"{at.address(1)} {at.head} head"]
    lines += [f"{at.address(node.host)} {node.name}" for node in NODES]
    return "\n".join(lines) + "\n"


def job_submit_lua() -> str:
    """The rules of a strict site, which slurmctld asks about every submission; the texts are shown by sbatch."""
    return """\
local function refuse(text)
  slurm.log_user(text)
  return slurm.ERROR
end

function slurm_job_submit(job, partitions, uid)
  if uid == 0 then
    return refuse("root may not submit jobs on this cluster")
  end
  if job.account == nil or job.account == "" then
    return refuse("an account is mandatory on this cluster: give --account")
  end
  if job.min_mem_per_node ~= nil or job.min_mem_per_cpu ~= nil or (job.mem_per_tres or "") ~= "" then
    return refuse("memory is not a resource of this cluster: remove --mem, --mem-per-cpu and --mem-per-gpu")
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
"""
