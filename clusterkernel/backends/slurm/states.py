"""Slurm's states, reasons and exit codes in our words.

State names and reasons are those of the man pages of squeue and sacct, 22.05
to 26.05.
"""

from __future__ import annotations

import pwd
import signal
from types import MappingProxyType
from typing import Final

import msgspec

from clusterkernel.states import JobState

__all__ = ["Record", "Verdict", "explain", "judge"]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What one of Slurm's commands says of one job or array task.

    Attributes
    ----------
    state : str
        Slurm's word, maybe with a suffix (``CANCELLED by 0``).
    reason : str
        Slurm's word for why it waits, or ended.
    exit_code, derived : str
        ``code:signal`` of the batch script, and the worst of its steps; empty where not told.
    restarts : int or None
        How often it was started before, where told.
    """

    state: str
    reason: str = ""
    exit_code: str = ""
    derived: str = ""
    restarts: int | None = None
    node: str = ""

    @property
    def word(self) -> str:
        """The state without its suffix."""
        return self.state.split()[0].rstrip("+") if self.state.strip() else ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A record in our words."""

    state: JobState
    reason: str = ""
    exit_code: int | None = None
    signum: int | None = None


_LIVE: Final = MappingProxyType(
    {
        "PENDING": JobState.QUEUED,
        "CONFIGURING": JobState.STARTING,
        "RUNNING": JobState.RUNNING,
        "RESIZING": JobState.RUNNING,
        "SIGNALING": JobState.RUNNING,
        "SUSPENDED": JobState.RUNNING,
        "STOPPED": JobState.RUNNING,
        "STAGE_OUT": JobState.FINISHING,
        "COMPLETING": JobState.FINISHING,
        "REQUEUED": JobState.REQUEUED,
        "REQUEUE_FED": JobState.REQUEUED,
        "EXPEDITING": JobState.REQUEUED,
        "REQUEUE_HOLD": JobState.HELD,
        "SPECIAL_EXIT": JobState.HELD,
        "RESV_DEL_HOLD": JobState.HELD,
    }
)
_ENDED: Final = MappingProxyType(
    {
        "COMPLETED": (JobState.SUCCEEDED, ""),
        "CANCELLED": (JobState.CANCELLED, "It was cancelled in Slurm."),
        "TIMEOUT": (JobState.TIMED_OUT, "It reached its time limit."),
        "DEADLINE": (JobState.TIMED_OUT, "It reached its deadline."),
        "NODE_FAIL": (JobState.NODE_LOST, "A node of it went down."),
        "BOOT_FAIL": (JobState.LAUNCH_FAILED, "A node of it did not boot."),
        "OUT_OF_MEMORY": (JobState.OUT_OF_MEMORY, "It used more memory than it had asked for."),
        "PREEMPTED": (JobState.CANCELLED, "Slurm ended it for a job of higher priority (pre-emption)."),
        "REVOKED": (JobState.CANCELLED, "It runs in another cluster of the federation."),
        "LAUNCH_FAILED": (JobState.LAUNCH_FAILED, "Slurm could not start it on its nodes."),
        "RECONFIG_FAIL": (JobState.LAUNCH_FAILED, "A node of it could not be reconfigured."),
    }
)
# Exit 0:53 is what slurmstepd reports where it could not open the log or the folder.
_NO_FILES: Final = 53
# Exit 0:125 is what it reports for the out-of-memory killer.
_OOM: Final = 125

_HELD: Final = MappingProxyType(
    {
        "JobHeldUser": "Held by its owner; scontrol release lets it go.",
        "JobHeldAdmin": "Held by an administrator.",
        "launch failed requeued held": "Its launch failed: queued again and held; scontrol release lets it go.",
        "job requeued in held state": "Queued again and held: scontrol release lets it go.",
        "job requeued in special exit state": "Queued again and held: scontrol release lets it go.",
        "JobHoldMaxRequeue": "Held: it was queued again too often.",
        "ReservationDeleted": "Held: its reservation was deleted.",
        "BadConstraints": "Held: no node can ever meet its constraints.",
        "DependencyNeverSatisfied": "A job that it waits for failed: it will never start. Cancel it.",
    }
)
_WAITING: Final = MappingProxyType(
    {
        "Priority": "Jobs of higher priority are ahead of it.",
        "Resources": "It waits for nodes to become free.",
        "None": "",
        "": "",
        "Dependency": "It waits for the jobs that it depends on.",
        "BeginTime": "It may start only later (Slurm waits a while before it starts a job again).",
        "JobArrayTaskLimit": "As many tasks of its array run as may run at once.",
        "Licenses": "It waits for a licence.",
        "Reservation": "It waits for its reservation to begin.",
        "ReqNodeNotAvail": "A node that it asks for is down, drained or reserved.",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
            "The nodes that it could run on are down, drained or reserved."
        ),
        "NodeDown": "A node that it needs is down.",
        "PartitionDown": "Its partition is down.",
        "PartitionInactive": "Its partition takes no jobs at present.",
        "PartitionNodeLimit": "It asks for more nodes than its partition has or allows: it will not start like this.",
        "PartitionTimeLimit": "It asks for more time than its partition allows: it will not start like this.",
        "PartitionConfig": "Its partition does not allow what it asks for: it will not start like this.",
        "AccountNotAllowed": "Its account may not use this partition: it will not start like this.",
        "QOSNotAllowed": "Its QOS may not be used here: it will not start like this.",
        "InvalidAccount": "Its account is not valid: it will not start like this.",
        "InvalidQOS": "Its QOS is not valid: it will not start like this.",
        "QOSJobLimit": "Its QOS has reached its limit of jobs.",
        "QOSResourceLimit": "Its QOS has reached a limit of resources.",
        "QOSTimeLimit": "Its QOS has reached its limit of time.",
        "AssociationJobLimit": "Your account has reached its limit of jobs.",
        "AssociationResourceLimit": "Your account has reached a limit of resources.",
        "AssociationTimeLimit": "Your account has reached its limit of time.",
        "Cleaning": "Slurm still cleans up after its earlier run.",
        "Prolog": "The site's prolog runs on its nodes.",
        "WaitingForScheduling": "Slurm has not looked at it yet.",
        "FrontEndDown": "No front end is up.",
        "JobLaunchFailure": "It could not be launched.",
        "MaxRequeue": "It was queued again too often.",
        "BurstBufferResources": "It waits for room in the burst buffer.",
        "BurstBufferStageIn": "Its burst buffer is being filled.",
        "SchedDefer": "Slurm starts no job at once here.",
    }
)
_LIMITED: Final = MappingProxyType(
    {
        "GRES": "GPUs",
        "Cpu": "CPUs",
        "CPU": "CPUs",
        "Node": "nodes",
        "Mem": "memory",
        "Memory": "memory",
        "Jobs": "jobs",
        "SubmitJobs": "jobs submitted",
        "JobsRun": "running jobs",
        "Wall": "time",
        "Billing": "billing units",
        "BB": "burst buffer",
        "Energy": "energy",
        "License": "licences",
    }
)
_PREFIXES: Final = (
    ("QOSMax", "Your QOS allows no more {what} at once."),
    ("QOSGrp", "Your QOS has all its {what} in use."),
    ("QOSMin", "Your QOS asks for more {what} than this job wants: it will not start like this."),
    ("QOSUsageThreshold", "Your QOS has used up its share."),
    ("AssocMax", "Your account allows no more {what} at once."),
    ("AssocGrp", "Your account has all its {what} in use."),
    ("MaxGRES", "Your account allows no more {what} at once."),
)


def explain(reason: str) -> tuple[bool, str]:
    """Why a job waits.

    Returns
    -------
    held : bool
        It does not start before somebody acts.
    text : str
        A sentence; one that names Slurm's own word where none is known.
    """
    word = reason.strip().strip("()")
    if word in ("null", "None"):
        return False, ""
    for table, held in ((_HELD, True), (_WAITING, False)):
        for known in (word, word.partition(",")[0]):
            if known in table:
                return held, table[known]
    for prefix, text in _PREFIXES:
        if word.startswith(prefix):
            rest = word.removeprefix(prefix)
            what = next((name for key, name in sorted(_LIMITED.items(), key=_longest) if rest.startswith(key)), rest)
            return False, text.format(what=what)
    return False, f"Slurm's reason is {word}."


def _longest(item: tuple[str, str]) -> int:
    return -len(item[0])


def _pair(text: str) -> tuple[int | None, int | None]:
    code, _, signum = text.partition(":")
    if not code.isdigit() or not signum.isdigit():
        return None, None
    return int(code), int(signum)


def _signal_name(signum: int) -> str:
    try:
        return f"{signal.Signals(signum).name} ({signum})"
    except ValueError:
        return f"signal {signum}"


def _canceller(state: str) -> str:
    _, by, uid = state.partition(" by ")
    if not by or not uid.strip().isdigit():
        return "It was cancelled in Slurm."
    try:
        return f"It was cancelled by {pwd.getpwuid(int(uid)).pw_name}."
    except (KeyError, OverflowError):
        return f"It was cancelled by user {uid.strip()}."


def judge(record: Record) -> Verdict | None:
    """A record in our words, or None where its state is not known."""
    word = record.word
    code, signum = _pair(record.exit_code)
    if _pair(record.derived)[1] == _OOM and word in ("FAILED", "OUT_OF_MEMORY"):
        return Verdict(state=JobState.OUT_OF_MEMORY, reason=_ENDED["OUT_OF_MEMORY"][1])
    if word in _LIVE:
        return _judge_live(word, record)
    if word == "FAILED":
        return _judge_failed(code, signum)
    if word in _ENDED:
        state, reason = _ENDED[word]
        if word == "CANCELLED":
            reason = _canceller(record.state)
        elif state is JobState.NODE_LOST and record.node:
            reason = f"A node of it ({record.node}) went down."
        kept = signum if signum and signum < 65 and state is not JobState.SUCCEEDED else None
        return Verdict(state=state, reason=reason, exit_code=code if state is JobState.SUCCEEDED else None, signum=kept)
    return None


def _judge_live(word: str, record: Record) -> Verdict:
    state, reason = _LIVE[word], ""
    if state is JobState.QUEUED:
        held, reason = explain(record.reason)
        if held:
            state = JobState.HELD
        elif record.restarts:
            state = JobState.REQUEUED
    elif word in ("SUSPENDED", "STOPPED"):
        reason = "It is suspended."
    elif state is JobState.HELD:
        reason = "Queued again and held: scontrol release lets it go."
    return Verdict(state=state, reason=reason)


def _judge_failed(code: int | None, signum: int | None) -> Verdict:
    if signum == _NO_FILES:
        return Verdict(
            state=JobState.LAUNCH_FAILED,
            reason="Slurm could not open the job's log or folder on the node: the job folder must be shared with it.",
        )
    if signum == _OOM:
        return Verdict(state=JobState.OUT_OF_MEMORY, reason=_ENDED["OUT_OF_MEMORY"][1])
    if not signum and code is not None and 128 < code < 128 + 65:
        signum = code - 128  # how a shell says that its child was killed
    if signum:
        return Verdict(
            state=JobState.DIED,
            reason=f"It was killed by {_signal_name(signum)}.",
            exit_code=code or None,
            signum=signum,
        )
    if code is None:
        return Verdict(state=JobState.FAILED, reason="It failed.")
    return Verdict(state=JobState.FAILED, reason=f"It ended with exit code {code}.", exit_code=code)
