"""The local machine as a platform: one runner a job, which outlives the kernel.

The runner starts the tasks' supervisors, as many at once as there are free
slots on this machine (see `slots`), restarts what may be tried again, and
writes the end of what died without a word.
"""

import os
import select
import signal
import sys
import time

from . import events, processes, verdict
from .context import Context, is_cancelled, read_json
from .slots import Slots, give_back
from .supervisor import GRACE, Supervisor

_SLOT_POLL = 0.05
_TOLD = (signal.SIGTERM, signal.SIGINT)
# Seconds to wait for a process to go that was killed.
_KILL_PATIENCE = 5.0
# From the signal that ends a supervisor to SIGKILL: its own grace, what it needs to say so, and some.
_GRACE = GRACE + 10.0


def detach(job_dir, prepare):
    """Fork twice, so that the runner has no terminal and no parent that waits. Returns in the runner alone.

    The first parent prints the runner's platform id and exits. The runner
    claims the job first: who finds the claim knows that the job is sent, and a
    script that is run a second time starts nothing. What `prepare` does is
    done before the id is told, and with it before a later job can be sent.
    """
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            identity, _, holder = pipe.read().rstrip("\n").partition(" ")
        if not identity or holder != identity:
            sys.stderr.write("This job was started already, by %s.\n" % holder if holder else "It did not start.\n")
            sys.stderr.flush()
            os._exit(1)
        sys.stdout.write(identity + "\n")
        sys.stdout.flush()
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(read_end)
    identity = "%s:%d:%d" % (os.uname().nodename, os.getpid(), processes.start_time(os.getpid()))
    holder = events.claim(os.path.join(job_dir, "claims", "runner"), identity)
    prepared = prepare(identity) if holder == identity else None
    os.write(write_end, ("%s %s\n" % (identity, holder)).encode())
    os.close(write_end)
    if holder != identity:
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    return prepared


class _Supervisor(Supervisor):
    """A supervisor that hears of what it was told before it listened."""

    def _listen(self):
        Supervisor._listen(self)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD)

    def _run_step(self, step):
        self._drain_signals()
        if self.ended_by:
            return verdict.outcome("CANCELLED", verdict.by_signal(self.ended_by), signum=self.ended_by)
        return Supervisor._run_step(self, step)


class Runner(object):
    """Runs all tasks of one job.

    Parameters
    ----------
    job_dir : str
        The job's folder.
    platform_id : str
        ``host:pid:start``, which names this runner for good.
    slots_dir : str
        Folder of the slots, on local disk.
    slots : int
        How many tasks may run at once on this machine, over all jobs.
    """

    def __init__(self, job_dir, platform_id, slots_dir, slots):
        self.job_dir = job_dir
        self.platform_id = platform_id
        self.slots = Slots(slots_dir, slots)
        job = read_json(os.path.join(job_dir, "job.json"))
        spec = job["spec"]
        self.tasks = job.get("tasks", 1)
        self.array = job.get("array", False)
        resources = spec.get("resources", {})
        ranks = resources.get("tasks_per_node") or (resources.get("gpus_per_node") or {}).get("count", 1)
        self.world = ranks if spec.get("launcher", "none") == "none" else 1
        # Of the task's processes, those of this runner: all of them, on one machine.
        self.total, self.first = self.world, 0
        self.time_limit = spec.get("schedule", {}).get("time")
        self.backoff = spec.get("recovery", {}).get("backoff", 0)
        self.parallelism = spec.get("parallelism")
        self.waiting = [(0.0, task, 0) for task in range(self.tasks)]  # not before, task, attempt
        self.running = {}  # pid of a supervisor -> (task, attempt, rank)
        self.held = {}  # task -> slot's descriptor
        self.kill_at = {}  # pid of a supervisor that was told to end -> when it is killed

    def run(self):
        """Until every task has ended."""
        processes.become_subreaper()
        wakeup, write_end = os.pipe()
        for number in (wakeup, write_end):
            os.set_blocking(number, False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(signum, lambda *_: None)
        signal.set_wakeup_fd(write_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD)
        self._pipe = (wakeup, write_end)
        while self.waiting or self.running:
            blocked = self._start()
            timeout = _SLOT_POLL if blocked else None
            if self.kill_at:
                timeout = min(timeout or _GRACE, max(0.0, min(self.kill_at.values()) - time.monotonic()))
            if not self.running and not self.waiting:
                break
            ready, _, _ = select.select([wakeup], [], [], timeout)
            if ready and set(os.read(wakeup, 4096)) & {signal.SIGTERM, signal.SIGINT}:
                self._cancel()
            self._kill_the_deaf()
            self._collect()
        self.slots.leave()

    def _start(self):
        """Start what may start. True where something still waits for a slot or its time."""
        now = time.time()
        for item in [item for item in self.waiting if item[0] <= now]:
            _, task, attempt = item
            if self.parallelism and len(self.held) >= self.parallelism:
                break
            slot = self.slots.take("%s_%d" % (self.job_dir, task) if self.array else self.job_dir)
            if slot is None:
                return True
            self.waiting.remove(item)
            self.held[task] = slot
            for rank in range(self.first, self.first + self.world):
                self._fork(task, attempt, rank)
        self.slots.leave()  # nothing of it waits for a slot: others may pass
        return bool(self.waiting)

    def _fork(self, task, attempt, rank):
        runner = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _TOLD)
        pid = os.fork()
        if pid:
            self.running[pid] = (task, attempt, rank)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _TOLD)
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in self._pipe:
                os.close(number)
            for slot in self.held.values():
                os.close(slot)
            self.slots.let_go()
            os.setpgid(0, 0)
            processes.die_with_parent(runner)
            context = Context(self.job_dir, task, rank, self.total, attempt, self.platform_id)
            context.cpus = context.cpus or max(1, (os.cpu_count() or 1) // (self.slots.count * self.world))
            code = _Supervisor(context, self.time_limit).run()
        except BaseException:  # nothing may return into the runner's own code
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def _events(self, task, attempt, rank):
        return os.path.join(self.job_dir, "events", str(attempt), "%d.%d.jsonl" % (task, rank))

    def _collect(self):
        """Take note of supervisors that ended; speak for those that could not."""
        ended = processes.reap()
        while ended:
            pid, status = ended.popitem()
            if pid not in self.running:
                continue  # an orphan of a supervisor that was killed
            task, attempt, rank = self.running.pop(pid)
            self.kill_at.pop(pid, None)
            path = self._events(task, attempt, rank)
            outcome = self._last_outcome(path)
            if outcome is None and not self._claim(task):
                outcome = {"state": "SUCCEEDED"}  # another copy runs: its records are not ours to write
            if outcome is None:
                ended.update(self._end_orphans())
                outcome = self._speak_for(path, status, task)
            peers = [key for key, value in self.running.items() if value[0] == task]
            if outcome["state"] != "SUCCEEDED":
                self._end(peers)
            if not peers:
                give_back(self.held.pop(task))
                self._retry(task, attempt)

    def _last_outcome(self, path):
        found = [record for record in events.read(path) if record["kind"] in ("outcome", "superseded")]
        if not found:
            return None
        return found[-1] if found[-1]["kind"] == "outcome" else {"state": "SUCCEEDED"}

    def _claim(self, task):
        """Whether this runner may run the task, and write its records; asking takes the right."""
        return events.claim(os.path.join(self.job_dir, "claims", str(task)), self.platform_id) == self.platform_id

    def _end(self, pids):
        """Tell supervisors to end; those that do not hear are killed in time."""
        processes.send(pids, signal.SIGTERM)
        for pid in pids:
            self.kill_at.setdefault(pid, time.monotonic() + _GRACE)

    def _kill_the_deaf(self):
        """One that was stopped (SIGSTOP) hears nothing else."""
        now = time.monotonic()
        for pid in [pid for pid, when in self.kill_at.items() if when <= now]:
            processes.send([pid] + processes.descendants(pid), signal.SIGKILL)
            self.kill_at[pid] = now + _KILL_PATIENCE

    def _speak_for(self, path, status, task):
        if os.WIFSIGNALED(status):
            reason = "Its supervisor was ended by signal %d." % os.WTERMSIG(status)
        else:
            reason = "Its supervisor ended with exit code %d and no word; see runner.log." % os.WEXITSTATUS(status)
        record = {"state": "DIED", "reason": reason, "exit_code": None, "signum": None}
        if self._cancelled(task):
            record.update(state="CANCELLED", reason="It was cancelled. %s" % reason)
        log = events.EventLog(path)
        log.write("outcome", **record)
        log.close()
        return record

    def _end_orphans(self):
        """End what a killed supervisor left: it has become a child of this process.

        Returns
        -------
        dict
            Pid -> wait status of what ended meanwhile.
        """
        ended = {}
        deadline = time.monotonic() + _KILL_PATIENCE
        while time.monotonic() < deadline:
            # Again and again: the payload dies at this moment, and its children become ours in turn.
            orphans = [pid for pid in processes.children(os.getpid()) if pid not in self.running]
            if not orphans:
                break
            for pid in orphans:
                processes.send([pid] + processes.descendants(pid), signal.SIGKILL)
            time.sleep(0.01)
            ended.update(processes.reap())
        return ended

    def _retry(self, task, attempt):
        outcomes = [self._last_outcome(self._events(task, attempt, rank)) for rank in range(self.world)]
        if any(outcome and outcome.get("retry") for outcome in outcomes) and not self._cancelled(task):
            self.waiting.append((time.time() + self.backoff, task, attempt + 1))

    def _cancelled(self, task):
        return is_cancelled(self.job_dir, task)

    def _cancel(self):
        """End what `cancel.json` names; all, where nobody asked for a cancel: somebody else wants our end."""
        ours = any(self._cancelled(task) for task in range(self.tasks))
        reason = "It was cancelled before it started." if ours else "Its runner was ended before it started."
        for item in list(self.waiting):
            _, task, attempt = item
            if not ours or self._cancelled(task):
                self.waiting.remove(item)
                for rank in range(self.first, self.first + (self.world if self._claim(task) else 0)):
                    log = events.EventLog(self._events(task, attempt, rank))
                    log.write("outcome", state="CANCELLED", reason=reason)
                    log.close()
        wanted = [pid for pid, value in self.running.items() if not ours or self._cancelled(value[0])]
        self._end(wanted)


def main(job_dir, slots_dir, slots):
    """Start a runner for `job_dir` in the background and print its platform id."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _TOLD)  # who learns our id may cancel at once

    def prepare(identity):
        runner = Runner(job_dir, identity, slots_dir, slots)
        runner.slots.queue_up()
        return runner

    runner = detach(job_dir, prepare)
    log = os.open(os.path.join(job_dir, "runner.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 2)
    runner.run()
