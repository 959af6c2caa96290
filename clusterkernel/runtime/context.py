"""Where a process stands within its job."""

import os

from . import lean


class Context(object):
    """One platform-level process of a job.

    Parameters
    ----------
    job_dir : str
        The job's folder.
    task, rank, world, attempt : int
        Array task (0 without an array), process of the task, how many there
        are, and how often the task was started before.
    platform_id : str
        The platform's id of the copy that runs.
    out_dir : str, optional
        Where its results go; ranks under a launcher have one each.
    global_rank : int, optional
        Its number among all ranks of the job, where a launcher gave it one; else `rank`.
    """

    def __init__(self, job_dir, task=0, rank=0, world=1, attempt=0, platform_id="", out_dir=None, global_rank=None):
        self.job_dir = os.path.abspath(job_dir)
        self.task = task
        self.rank = rank
        # Kept from the start: the variable RANK is the user's to set.
        self.global_rank = rank if global_rank is None else global_rank
        self.world = world
        self.attempt = attempt
        self.platform_id = platform_id
        self.runtime_root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        name = "%d.%d" % (task, rank)
        self.process_dir = os.path.join(self.job_dir, "out", str(attempt), name)
        self.out_dir = out_dir or self.process_dir
        self.events_path = os.path.join(self.job_dir, "events", str(attempt), name + ".jsonl")
        self.job = read_json(os.path.join(self.job_dir, "job.json"))
        self.payload = read_json(os.path.join(self.job_dir, "payload", "payload.json"))
        self.spec = self.job["spec"]
        self.cpus = self.spec.get("resources", {}).get("cpus_per_task")

    @property
    def job_id(self):
        """``12``, or ``12_3`` for a task of an array."""
        return "%s_%d" % (self.job["id"], self.task) if self.job.get("array") else self.job["id"]

    def environ(self):
        """What the payload finds in its environment; all that ``ck.log`` needs."""
        files = os.path.join(self.job_dir, "payload", "files")
        return {
            "CLUSTERKERNEL_FILES": files if self.spec.get("environment", {}).get("files") else "",
            "CLUSTERKERNEL_JOB": self.job_id,
            "CLUSTERKERNEL_JOB_DIR": self.job_dir,
            "CLUSTERKERNEL_OUT": self.process_dir,
            "CLUSTERKERNEL_TASK": str(self.task),
            "CLUSTERKERNEL_RANK": str(self.rank),
            "CLUSTERKERNEL_WORLD": str(self.world),
            "CLUSTERKERNEL_ATTEMPT": str(self.attempt),
            "CLUSTERKERNEL_PLATFORM_ID": self.platform_id,
        }

    @classmethod
    def from_environ(cls, environ):
        """The context of a rank that a launcher started under a supervisor."""
        number = environ.get("RANK", "0")
        return cls(
            environ["CLUSTERKERNEL_JOB_DIR"],
            task=int(environ["CLUSTERKERNEL_TASK"]),
            rank=int(environ["CLUSTERKERNEL_RANK"]),
            world=int(environ["CLUSTERKERNEL_WORLD"]),
            attempt=int(environ["CLUSTERKERNEL_ATTEMPT"]),
            platform_id=environ["CLUSTERKERNEL_PLATFORM_ID"],
            out_dir=os.path.join(environ["CLUSTERKERNEL_OUT"], "rank-" + number),
            global_rank=int(number),
        )


def read_json(path):
    """The JSON value in a file."""
    with open(path, "rb") as file:
        return lean.loads(file.read())


def is_cancelled(job_dir, task):
    """Whether somebody asked for the end of a task, or of the whole job."""
    try:
        tasks = read_json(os.path.join(job_dir, "cancel.json"))["tasks"]
        return not tasks or task in tasks
    except (IOError, OSError, ValueError, KeyError, TypeError):  # nobody did, or it is no such record
        return False


def write_json(path, value):
    """Put a JSON value into a file in one step."""
    temporary = "%s.%s.%d.tmp" % (path, os.uname().nodename, os.getpid())
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(lean.dumps(value))
    os.replace(temporary, path)
