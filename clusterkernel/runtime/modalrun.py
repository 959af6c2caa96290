"""A container of Modal's as a node: what the functions of a job's app run.

The container shares no files with the notebook. The job folder comes from a
volume, and what is written to it goes back in numbered pieces through a Dict
(`modalstream`). Claims in another Dict keep a second copy of a job from
running; they alone outlive it.

A first step with needs of its own (preprocessing, which needs no GPU) is a
function and an attempt of its own, at whose end the next function is called.
"""

import os
import subprocess
import sys
import tempfile
import time

from . import events, lean, localrun, modalfiles, processes, rendezvous
from .context import read_json, write_json
from .modalstream import Stream

CLAIMS = "clusterkernel-claims"
# How often a container is started again that died: Modal itself would go on for ever.
MOST_RESTARTS = 5
_DIED = (
    "Its containers died %d times without a word, as where memory runs out or Modal takes their machines; "
    "Modal's page of the app may tell which."
)
# Seconds between two pieces, while the job is young, and later.
_QUICK, _SLOW = 0.4, 2.0
_YOUNG = 120.0
_LOOK = 0.02
# How often a node of several looks whether another failed.
_LOOK_AROUND = 2.0
# From the signal that ends the runner to SIGKILL: its own grace, what it needs to say so, and some.
_GRACE = 40.0


def claim(claims, name, holder):
    """Take the right `name`, once for all containers and kernels; the one that holds it."""
    if claims.put(name, holder, skip_if_exists=True):
        return holder
    return claims.get(name, holder)  # an answer that got lost: then it is ours after all


def run(key, task, limit, volumes=(), budget=None, then=None, after=False, nodes=1):
    """Run one array task of a job, or one part of it.

    Parameters
    ----------
    key : str
        The job's key.
    task : int
        Array task; 0 without an array.
    limit : float
        Seconds after which the payload is ended.
    volumes : sequence of modal.Volume
        The person's own, to be committed however the job ends.
    budget : float, optional
        Seconds from the first start on after which no attempt goes on: what a ceiling of cost buys.
    then : tuple of str, optional
        App and function that are called next: this one does the steps that are done once.
    after : bool
        This is that function, and does the other steps.
    nodes : int
        Containers that run the task together, as Modal's clusters do: each runs this.

    Returns
    -------
    dict
        ``holder``, the call that runs this: another one's, where this is a second copy.
        ``next``, the call that runs the rest.
    """
    import modal

    call = modal.current_function_call_id()
    claims = modal.Dict.from_name(CLAIMS, create_if_missing=True)
    right = "%s/%d" % (key, task)
    holder = claim(claims, right + "/then" if after else right, call)
    if holder != call:
        print("This job runs already, as %s." % holder)
        return {"holder": holder}
    node, around, me = _among(modal, nodes)
    part, attempt = part_name(task, node), 0
    while claim(claims, "%s/%d" % (right, attempt), me) != me:
        attempt += 1
    if nodes > 1:
        port = rendezvous.first_port(key, attempt)
        os.environ.update({"JOB_COMPLETION_INDEX": str(node), rendezvous.VARIABLE: "%s:%d" % (around, port)})
    failed = "%s/failed/%d" % (right, attempt)
    cancelled = []
    # Modal's own handler raises wherever this code is: in the middle of a piece, too.
    lean.signal.signal(lean.signal.SIGUSR1, lambda *_: cancelled.append(time.monotonic()))
    if budget:
        limit = min(limit, budget + claim(claims, right + "/begun", time.time()) - time.time())
    with tempfile.TemporaryDirectory(prefix="clusterkernel-") as root:
        job_dir, work = modalfiles.fetch(modal, key, root)
        if then or after:
            _choose_steps(job_dir, once=bool(then))
        if after and work:
            modalfiles.take_work(modal, key, work)
        if not then:
            _go_on(claims, right, job_dir)
        stream = Stream(modal, key, part, attempt, job_dir)
        where = (job_dir, task, attempt, node)
        if limit <= 0:
            reason = "The time that its ceiling of cost buys was over before attempt %d." % (attempt + 1)
            outcome = _give_up(where, call, "TIMED_OUT", reason)
        elif attempt > MOST_RESTARTS:
            outcome = _give_up(where, call, "DIED", _DIED % attempt)
        else:
            peers = (lambda: claims.contains(failed)) if nodes > 1 else None
            outcome = _attend(where, call, limit, stream, cancelled, peers)
        if nodes > 1 and outcome["state"] != "SUCCEEDED":
            # The first node that failed says for all whether there is another attempt.
            outcome = dict(outcome, retry=claim(claims, failed, bool(outcome.get("retry"))))
        _commit(volumes)
        said = {"holder": call}
        if then and outcome["state"] == "SUCCEEDED" and not cancelled:
            if work:
                modalfiles.keep_work(modal, key, work)
            said["next"] = _call_next(modal, claims, right, then, task)
            outcome = _mark_again(where)
        stream.send(last=True, outcome=outcome)
    if cancelled:
        raise modal.exception.InputCancellation("It was cancelled.")
    if outcome.get("retry") and "next" not in said:  # what is raised is how Modal is told to try again
        raise RuntimeError("Attempt %d of the job failed: %s" % (attempt + 1, outcome.get("reason")))
    return said


def part_name(task, node):
    """What claims and streams call one container's part of a task."""
    return "%s.%d" % (task, node) if node else str(task)


def _among(modal, nodes):
    """Which of the nodes this is, the address of the head, and a word that all nodes of this start have alone."""
    if nodes == 1:
        return 0, "", "%s/%s" % (os.environ.get("MODAL_TASK_ID"), os.urandom(4).hex())
    cluster = modal.Cluster.from_context()
    return cluster.container_rank(), cluster.container_ips()[0], cluster.object_id


def _attend(where, call, limit, stream, cancelled, peers):
    """Start the task's supervisors, pass on what they write, and wait for their end; the outcome."""
    job_dir = where[0]
    runner = _start(where, call, limit)
    began, due, told = time.monotonic(), 0.0, False
    look = began + _LOOK_AROUND
    while runner.poll() is None:
        now = time.monotonic()
        if peers and not told and now >= look:
            look = now + _LOOK_AROUND
            if peers():
                told = True
                processes.send([runner.pid], lean.signal.SIGTERM)
        if cancelled and not told:
            told = True
            write_json(os.path.join(job_dir, "cancel.json"), {"tasks": [], "time": time.time(), "by": "modal"})
            processes.send([runner.pid], lean.signal.SIGTERM)
        if cancelled and now >= cancelled[0] + _GRACE:
            processes.send([runner.pid] + processes.descendants(runner.pid), lean.signal.SIGKILL)
        if now >= due:
            stream.send()
            due = time.monotonic() + (_QUICK if now - began < _YOUNG else _SLOW)
        time.sleep(_LOOK)
    return _spoken(where, runner.returncode, bool(cancelled), _launch_lines(where, call))


def _start(where, call, limit):
    job_dir, task, attempt, node = where
    setup = read_json(os.path.join(job_dir, "job.json"))["spec"].get("environment", {}).get("setup", ())
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    words = [sys.executable, "-u", os.path.join(root, "__main__.py"), "modal", job_dir]
    words += [str(task), str(attempt), call, str(limit), str(node)]
    if setup:
        from . import setuplines

        words = ["/bin/bash", "-c", "\n".join(setuplines.telling(setup) + ['exec "$@"']), "setup"] + words
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with open(_launch_log(where, call), "wb") as log:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
        )


def _launch_log(where, call):
    """Where the kernel looks for what is printed before a supervisor keeps it: of several nodes by the head."""
    job_dir, _, _, node = where
    return os.path.join(job_dir, "batch", "%s.log" % (part_name(call, node)))


def _launch_lines(where, call):
    with open(_launch_log(where, call), "rb") as file:
        return file.read().decode("utf-8", "replace").splitlines()


def _records(where):
    """The files of records of this attempt."""
    job_dir, task, attempt, _ = where
    folder = os.path.join(job_dir, "events", str(attempt))
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name.startswith("%d." % task)]


def _spoken(where, code, cancelled, printed):
    """The outcome that decides, of all ranks; made up where the runner could not write one, from what it `printed`."""
    paths = _records(where)
    found = [record for path in paths for record in events.read(path) if record["kind"] == "outcome"]
    if found:
        return next((record for record in found if record["state"] != "SUCCEEDED"), found[0])
    from . import setuplines

    reason = setuplines.told(printed)
    if not reason:
        reason = "What runs the job in the container ended with exit code %s and no word." % code
        reason = setuplines.reason(reason, ([""] + [line for line in printed if line.strip()])[-1])
    record = {"state": "LAUNCH_FAILED", "reason": reason, "exit_code": code, "signum": None}
    if cancelled:
        record.update(state="CANCELLED", reason="It was cancelled before it started.", exit_code=None)
    _log(where).write("outcome", **record)
    return record


def _log(where):
    job_dir, task, attempt, node = where
    first = Node(job_dir, task, attempt, "", 0, node).first
    return events.EventLog(os.path.join(job_dir, "events", str(attempt), "%d.%d.jsonl" % (task, first)))


def _give_up(where, call, state, reason):
    """End a job that is not to run again."""
    log = _log(where)
    log.write("started", pid=os.getpid(), host=os.uname().nodename, platform_id=call, attempt=where[2])
    record = {"state": state, "reason": reason, "exit_code": None, "signum": None}
    log.write("outcome", **record)
    return record


def _commit(volumes):
    for volume in volumes:
        try:
            volume.commit()
        except Exception as error:  # the end must be told all the same
            print("A volume could not be committed: %s" % error, file=sys.stderr)


# -- a first step that is a function of its own -------------------------------------------


def _choose_steps(job_dir, once):
    """Leave the steps that are done once, or the others."""
    path = os.path.join(job_dir, "payload", "payload.json")
    payload = read_json(path)
    payload["steps"] = [step for step in payload["steps"] if bool(step.get("once")) is once]
    write_json(path, payload)
    if not once:  # the first step was an attempt, too
        path = os.path.join(job_dir, "job.json")
        job = read_json(path)
        recovery = job["spec"].setdefault("recovery", {})
        recovery["attempts"] = recovery.get("attempts", 1) + 1
        write_json(path, job)


def _go_on(claims, right, job_dir):
    """Let a later attempt of an axolotl run begin with the checkpoint that an earlier one left on a volume."""
    payload = read_json(os.path.join(job_dir, "payload", "payload.json"))
    if "output_dir" not in payload:
        return
    from . import resume

    workdir = read_json(os.path.join(job_dir, "job.json"))["spec"]["environment"]["workdir"]
    folder = os.path.join(workdir, os.path.expanduser(payload["output_dir"]))
    found = resume.checkpoints(folder)
    # What the first attempt found is of another run.
    name = resume.newest(found, claim(claims, right + "/checkpoints", found))
    if name and resume.go_on_from(os.path.join(job_dir, "payload", "config.yml"), os.path.join(folder, name)):
        print("It goes on from %s." % os.path.join(folder, name))


def _call_next(modal, claims, right, then, task):
    """Call the function that does the rest, once for all copies of this one."""
    app, function = then
    made = modal.Function.from_name(app, function).spawn(task)
    holder = claim(claims, right + "/then", made.object_id)
    if holder != made.object_id:
        made.cancel()
    return holder


def _mark_again(where):
    """Say in the records that this good end is not the job's: another attempt does the rest."""
    outcome = {}
    for path in _records(where):
        with open(path, "rb") as file:
            records, _ = events.parse(file.read())
        for record in records:
            if record["kind"] == "outcome":
                record.update(retry=True, reason="The first step is done.")
                outcome = record
        with open(path, "wb") as file:
            file.write(b"".join(lean.dumps(record) + b"\n" for record in records))
    return outcome


# -- the runner's process -----------------------------------------------------------------


class Node(localrun.Runner):
    """Runs the ranks of one array task in this container."""

    def __init__(self, job_dir, task, attempt, platform_id, limit, node=0):
        localrun.Runner.__init__(self, job_dir, platform_id, os.path.join(os.path.dirname(job_dir), "slots"), 1)
        self.time_limit = limit
        self.waiting = [(0.0, task, attempt)]
        self.first = node * self.world
        self.total = self.world * read_json(os.path.join(job_dir, "job.json"))["spec"].get("resources", {}).get(
            "nodes", 1
        )

    def _retry(self, task, attempt):
        """Modal does, by starting the function again."""


def main(arguments):
    """The runner's process: ``modal JOB_FOLDER TASK ATTEMPT PLATFORM_ID LIMIT NODE``."""
    job_dir, task, attempt, platform_id, limit, node = arguments
    lean.signal.pthread_sigmask(lean.signal.SIG_BLOCK, [lean.signal.SIGTERM, lean.signal.SIGINT])
    processes.die_with_parent(os.getppid())
    Node(job_dir, int(task), int(attempt), platform_id, float(limit), int(node)).run()
