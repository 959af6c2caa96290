"""The parent of a payload: starts it, listens to it, ends it, and says how it ended.

One supervisor for each process that the platform starts. It has one thread and
imports little, since a short task pays for it; what the payload prints passes
through it, so that each line has a time and metrics are read as they come.
"""

import errno
import gc
import os
import select
import struct
import sys
import time

from . import events, lean, private, processes, verdict
from .context import is_cancelled
from .lean import signal

HEARTBEAT = 10.0
SAMPLE_EVERY = 5.0
FLUSH_EVERY = 1.0
FIRST_SAMPLE = 1.0
# From a signal that ends the job to SIGKILL. Slurm's own (KillWait) is 30 s.
GRACE = 25.0
# For what a payload leaves behind (a torchrun that was killed leaves workers).
LEFTOVER_GRACE = 3.0
_CHUNK = 1 << 16
# One record for each chunk of output, so that the two streams can be read in the
# order in which they were written: "o" or "e", bytes, Unix time.
ORDER = struct.Struct("<cId")
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ABANDONED = "What had started its supervisor was killed: the batch shell, or the runner."
_RETRIED = ("FAILED", "DIED", "OUT_OF_MEMORY")


class NoSecret(Exception):
    """A secret that the job names cannot be had."""


class Supervisor(object):
    """Runs one process of a job to its end.

    Parameters
    ----------
    context : Context
        Which process of which job.
    time_limit : float, optional
        Seconds after which the payload is ended, where no platform does it.
    began : float, optional
        When the platform began to count the job's time (Unix time).
    """

    def __init__(self, context, time_limit=None, began=None):
        self.context = context
        self.time_limit = time_limit
        self.job_began = began
        self.log = None
        self.ended_by = None  # the signal that we were sent
        self.timed_out = False
        self.superseded = False
        self.abandoned = False
        self._kill_at = None
        self._told_to_end = None
        self._child = None
        self._flush_at = None
        self._unordered = b""  # records of the order that found no room yet
        self._parser = None
        self._metrics = None
        self._sampler = None
        self._wakeup = None
        self._step = None

    def run(self):
        """Run the payload.

        Returns
        -------
        int
            The exit code for the platform: 0 where the payload did well.
        """
        claimed_by = self._claim()
        if claimed_by is not None:
            # A file of its own: the other copy writes to the one that is watched.
            name = "%s.duplicate.%d.jsonl" % (self.context.events_path[: -len(".jsonl")], os.getpid())
            events.EventLog(name).write("duplicate", claimed_by=claimed_by, platform_id=self.context.platform_id)
            return 0
        self.log = events.EventLog(self.context.events_path)
        if is_cancelled(self.context.job_dir, self.context.task):
            self.log.write("outcome", **verdict.outcome("CANCELLED", "It was cancelled before it started."))
            return 1
        self._listen()
        self._parent = processes.hear_of_parent()
        processes.become_subreaper()
        self._open_output()
        self._oom_before = processes.oom_kills()
        context = self.context
        self.log.write(
            "started", pid=os.getpid(), host=os.uname().nodename, platform_id=context.platform_id,
            attempt=context.attempt, task=context.task, rank=context.rank, world=context.world,
        )  # fmt: skip
        outcome = None
        for step in self._steps():
            outcome = self._run_step(step)
            if outcome["state"] != "SUCCEEDED":
                break
        if self.superseded:
            self.log.write("superseded")
            return 0
        attempts = context.spec.get("recovery", {}).get("attempts", 1)
        if outcome["state"] in _RETRIED and context.attempt + 1 < attempts and not self.abandoned:
            outcome["retry"] = True
        self.log.write("outcome", **outcome)
        return 0 if outcome["state"] == "SUCCEEDED" else outcome["exit_code"] or 1

    # -- before the payload -------------------------------------------------

    def _claim(self):
        """None where this copy may run, else the platform's id of the one that does."""
        context = self.context
        base = os.path.join(context.job_dir, "claims", str(context.task))
        holder = events.claim(base, context.platform_id)
        if holder == context.platform_id:
            holder = events.claim("%s.%d" % (base, context.attempt), context.platform_id)
        if holder == context.platform_id and self._newer_attempt():
            holder = "attempt %d" % (context.attempt + 1)
        return None if holder == context.platform_id else holder

    def _newer_attempt(self):
        """Whether a later start of the job runs, or did: this one is an orphan, of a node that was taken for lost."""
        context = self.context
        for attempt in range(context.attempt + 1, context.attempt + 4):  # one may have ended before its claim
            name = "%d.%d" % (context.task, attempt)
            try:
                os.close(os.open(os.path.join(context.job_dir, "claims", name), os.O_RDONLY))
                return True
            except OSError:
                pass
        return False

    def _listen(self):
        self._wakeup, write_end = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(write_end, False)
        self._signals = write_end
        for signum in _FORWARDED:
            signal.signal(signum, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end)

    def _open_output(self):
        private.make_folder(self.context.process_dir)
        self._files = {
            name: self._append(name) for name in ("stdout", "stderr", "order", "metrics.jsonl", "usage.jsonl")
        }

    def _append(self, name):
        path = os.path.join(self.context.process_dir, name)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _steps(self):
        payload = self.context.payload
        if payload["kind"] != "command":
            return [None]
        return payload.get("steps") or [{"argv": payload["argv"]}]

    # -- the payload --------------------------------------------------------

    def _run_step(self, step):
        if step is not None and step.get("once") and self.context.rank != 0:
            return self._await_step(step["name"])
        try:
            secrets = self._secrets(self.context.spec.get("environment", {}).get("secrets", ()))
            argv = self._command(step)
        except NoSecret as error:
            return verdict.outcome("LAUNCH_FAILED", str(error))
        except Exception as error:  # the rendezvous could not be made: whatever it was, the run ends here
            return verdict.outcome("LAUNCH_FAILED", verdict.short("%s: %s" % (type(error).__name__, error)))
        readers = {}
        writers = []
        for stream in ("stdout", "stderr"):
            read_end, write_end = os.pipe()
            readers[read_end] = stream
            writers.append(write_end)
        parent = os.getpid()
        self._kill_at = None
        if argv is None:
            from . import entry  # noqa: F401 - before the fork, since what is written to after it is copied first
        gc.freeze()  # for the same reason
        self._child = os.fork()
        gc.enable()
        if self._child == 0:
            self._become_payload(parent, argv, secrets, writers, list(readers))
        for write_end in writers:
            os.close(write_end)
        self.log.write("running", **({"step": step["name"]} if step and "name" in step else {}))
        status = self._attend(readers)
        report = verdict.read_report(self.context.process_dir)
        after = processes.oom_kills()
        out_of_memory = after is not None and after > (self._oom_before or 0)
        outcome = verdict.judge(
            status, report, argv[0] if step else "", self.timed_out, self.ended_by, out_of_memory, self._told_to_end
        )
        if outcome["state"] == "CANCELLED" and self._is_over_time():
            outcome["overtime"] = True
        if self.abandoned and outcome["state"] != "SUCCEEDED":
            outcome.update(state="DIED", reason=_ABANDONED, signum=int(signal.SIGKILL))
        elif outcome["state"] == "DIED" and step is None and verdict.disk_is_full(self.context.process_dir):
            outcome["reason"] += " The disk of the job's folder is full."
        if outcome["state"] == "SUCCEEDED" and step and step.get("once"):
            self.log.write("step", name=step["name"])
        return outcome

    def _command(self, step):
        """The argv to execute, or None where the payload runs in a fork of this process."""
        context = self.context
        launcher = context.spec.get("launcher", "none")
        if step is None:
            if launcher == "none":
                return None
            from . import rendezvous

            return rendezvous.launch(launcher, [context.runtime_root, "rank"], context)
        if "name" not in step:
            return step["argv"]  # the user's own words are not expanded
        payload = os.path.join(context.job_dir, "payload")
        argv = [item.replace("{payload}", payload) for item in step["argv"]]
        if "{torchrun}" in argv:
            from . import rendezvous

            argv = rendezvous.expand(argv, context)
        return argv

    def _become_payload(self, parent, argv, secrets, writers, readers):
        """In the fork: become the payload. Does not return."""
        code = 127
        try:
            signal.set_wakeup_fd(-1)
            for signum in _FORWARDED + (signal.SIGCHLD,):
                signal.signal(signum, signal.SIG_DFL)
            os.setsid()
            processes.die_with_parent(parent)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(writers[0], 1)
            os.dup2(writers[1], 2)
            for number in [null, self._wakeup, self._signals] + writers + readers + list(self._files.values()):
                if number > 2:
                    os.close(number)
            environment = self.context.spec.get("environment", {})
            os.environ.update(environment.get("env", {}))
            os.environ.update(secrets)
            if (
                self.context.cpus
            ):  # else the threads of NumPy and PyTorch of jobs that share a machine fight for its cores
                os.environ.setdefault("OMP_NUM_THREADS", str(self.context.cpus))
            os.environ.update(self.context.environ())
            self._find_commands()
            if argv is None:
                from . import entry

                code = entry.run(self.context)
            else:
                if environment.get("workdir"):
                    os.chdir(environment["workdir"])
                os.environ["PYTHONUNBUFFERED"] = "1"
                os.execvp(argv[0], argv)
        except OSError as error:
            code = 127 if error.errno == errno.ENOENT and argv and error.filename in (None, argv[0]) else 126
            os.write(2, ("%s: %s\n" % ("cannot start %s" % argv[0] if argv else "the payload", error)).encode())
        except BaseException:  # nothing may return into the supervisor's own code
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def _find_commands(self):
        """Let `python` and what came with it (axolotl, torchrun) be the job's own, with no environment activated."""
        here, others = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
        # What setup lines put into the PATH (module load) is meant to be found first.
        ours = "steps" in self.context.payload or not self.context.spec.get("environment", {}).get("setup")
        os.environ["PATH"] = os.pathsep.join([here, others] if ours else [others, here])

    def _secrets(self, names):
        """The values of the secrets that the job names, from its owner's store. They go to the payload alone."""
        if not names:
            return {}
        path, host = self.context.job["secrets_file"], os.uname().nodename
        try:
            with open(path, "rb") as file:
                about = os.fstat(file.fileno())
                if about.st_uid != os.geteuid() or about.st_mode & 0o077:
                    raise NoSecret("The secrets in %s are open to other users; chmod 600 it." % path)
                values = lean.loads(file.read())
            missing = [name for name in names if name not in values]
        except (OSError, ValueError, TypeError) as error:
            # Without the error's own words where it read the file: they may show a part of it.
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise NoSecret("The secrets in %s cannot be read on %s: %s." % (path, host, why)) from None
        if missing:
            raise NoSecret("There is no secret %s any more. %%cluster_secret set %s keeps it." % tuple(missing[:1] * 2))
        return {name: values[name] for name in names}

    def _attend(self, readers):
        """Pass on output and signals until the payload and all that it started have ended."""
        # Deadlines by a clock that nobody sets back.
        self._began = time.monotonic()
        beat, sample = self._began + HEARTBEAT, self._began + FIRST_SAMPLE
        limit = self._began + self.time_limit if self.time_limit else None
        status = None
        poll = select.poll()
        for number in list(readers) + [self._wakeup]:
            poll.register(number, select.POLLIN)
        drain_until = None
        while status is None or (readers and time.monotonic() < drain_until):
            now = time.monotonic()
            due = [beat, sample] + [t for t in (limit, self._kill_at, drain_until, self._flush_at) if t]
            due += self._parse_due()
            for number, _ in poll.poll(max(0.0, min(due) - now) * 1000):
                if number == self._wakeup:
                    self._forward(status)
                elif not self._pump(number, readers[number]):
                    poll.unregister(number)
                    os.close(number)
                    del readers[number]
            now = time.monotonic()
            if self._flush_at and now >= self._flush_at:
                self._flush_at = None
                self._flush_output()
            if any(now >= moment for moment in self._parse_due()):
                self._parse("tick")
            if status is None:
                status = processes.reap().get(self._child)
                if status is not None:
                    processes.end_all_below(os.getpid(), LEFTOVER_GRACE)
                    drain_until = time.monotonic() + 2.0
            if now >= beat:
                beat = now + HEARTBEAT
                self.log.write("heartbeat")
                if self._newer_attempt():
                    self.superseded = True
                    self._end(signal.SIGKILL)
            if now >= sample:
                sample = now + SAMPLE_EVERY
                self._sample(now)
            if limit and now >= limit and status is None:
                self.timed_out, limit = True, None
                self._end(signal.SIGTERM)
            if self._kill_at and now >= self._kill_at:
                self._kill_at = None
                self._end(signal.SIGKILL)
        for number in readers:
            os.close(number)
        if status and not self.ended_by and select.select([self._wakeup], [], [], verdict.SIGNAL_LAG)[0]:
            self._forward(status)  # one signal to the whole group may reach the payload before us
        if self._parser:
            self._parse("close")
            self._parser = None
        return status

    def _pump(self, number, stream):
        """Keep what came through one pipe. False at its end."""
        data = os.read(number, _CHUNK)
        if not data:
            return False
        written = 0
        try:
            while written < len(data):
                written += os.write(self._files[stream], memoryview(data)[written:])
        except OSError:
            pass  # a full disk costs the log; the job goes on and its metrics too
        if written:
            self._unordered += ORDER.pack(b"o" if stream == "stdout" else b"e", written, time.time())
        self._flush_at = self._flush_at or time.monotonic() + FLUSH_EVERY
        try:
            self._unordered = self._unordered[os.write(self._files["order"], self._unordered) :]
        except OSError:
            pass  # it follows when there is room
        self._parse("feed", data, stream)
        return True

    def _flush_output(self):
        try:
            for number in self._files.values():
                events.flush(number)
        except OSError:
            pass  # a full disk, or a server that is away: as above

    def _parse(self, method, *arguments):
        """Let the parser of metrics read; its failure costs the metrics, not the job."""
        if self._parser is False:
            return
        try:
            if self._parser is None:
                from .logparse import LogParser

                self._parser = LogParser(self.context.rank)
            records = getattr(self._parser, method)(*arguments, time.monotonic())
        except Exception as error:
            self._parser = False
            self.log.write("warning", reason=verdict.short("Metrics are no longer read from the output: %r" % error))
            return
        if records:
            self._write_records("metrics.jsonl", records)

    def _parse_due(self):
        return [self._parser.due] if self._parser and self._parser.due is not None else []

    def _write_records(self, name, records):
        ahead = time.time() - time.monotonic()
        lines = []
        for record in records:
            lines.append(lean.dumps(dict(record, t=record["t"] + ahead)) + b"\n")
        try:
            os.write(self._files[name], b"".join(lines))
        except OSError:
            pass  # a full disk, as above

    def _sample(self, now):
        """Note what the payload uses; a failure costs the samples, not the job."""
        if self._sampler is False or (self._sampler is None and now - self._began < FIRST_SAMPLE):
            return  # too short a run to be worth the import
        try:
            if self._sampler is None:
                from .usage import Sampler

                self._sampler = Sampler(self._child)
            record = self._sampler.sample(now)
        except Exception as error:
            self._sampler = False
            self.log.write("warning", reason=verdict.short("Its use of the machine is no longer sampled: %r" % error))
            return
        record.setdefault("rank", self.context.rank)
        self._write_records("usage.jsonl", [record])

    def _forward(self, status):
        for signum in set(os.read(self._wakeup, 4096)):
            if signum == signal.SIGCHLD:
                if os.getppid() != self._parent and not self.abandoned:
                    self._abandon()
                continue
            self.log.write("signal", signum=signum)
            if signum in _ENDING and status != 0:  # one that comes after a good end has ended nothing
                self.ended_by = self.ended_by or signum
                self._end(signum)
            else:
                self._signal_group(signum)

    def _abandon(self):
        """What had started us was killed: the platform takes the job for dead, and gives its place to others."""
        self.abandoned = True
        self.log.write("abandoned")
        now = self._told_to_end = time.monotonic()
        self._signal_group(signal.SIGTERM)
        self._kill_at = min(self._kill_at or now + GRACE, now + LEFTOVER_GRACE)

    def _is_over_time(self):
        """Whether the time that the job asked for is over; Slurm counts whole minutes."""
        limit = self.context.spec.get("schedule", {}).get("time")
        return bool(limit and self.job_began) and time.time() - self.job_began >= -(-limit // 60) * 60

    def _end(self, signum):
        now = time.monotonic()
        self._told_to_end = self._told_to_end or now
        self._signal_group(signum)
        if signum != signal.SIGKILL and self._kill_at is None:
            self._kill_at = now + GRACE

    def _signal_group(self, signum):
        try:
            os.killpg(self._child, signum)
        except ProcessLookupError:
            # It has ended, or is so new that it leads no group yet: then it passes the signal back to us, for later.
            processes.send([self._child], signum)
        except OSError:
            pass
        if signum == signal.SIGKILL:
            processes.send(processes.descendants(os.getpid()), signum)

    def _await_step(self, name):
        """Wait until process 0 has done what is done once for all."""
        path = os.path.join(os.path.dirname(self.context.events_path), "%d.0.jsonl" % self.context.task)
        beat = time.monotonic() + HEARTBEAT
        while True:
            for record in events.read(path):
                if record["kind"] == "step" and record["name"] == name:
                    return verdict.outcome("SUCCEEDED", "")
                if record["kind"] == "outcome":
                    return verdict.outcome("FAILED", "Process 0 failed in %s." % name, exit_code=1)
            select.select([self._wakeup], [], [], 0.5)
            self._drain_signals()
            if self.ended_by:
                return verdict.outcome("CANCELLED", verdict.by_signal(self.ended_by), signum=self.ended_by)
            if os.getppid() != self._parent:
                self.abandoned = True
                return verdict.outcome("DIED", _ABANDONED, signum=int(signal.SIGKILL))
            if time.monotonic() >= beat:
                beat = time.monotonic() + HEARTBEAT
                self.log.write("heartbeat")

    def _drain_signals(self):
        try:
            for signum in set(os.read(self._wakeup, 4096)):
                if signum in _ENDING:
                    self.ended_by = self.ended_by or signum
        except OSError:
            pass  # nothing came
