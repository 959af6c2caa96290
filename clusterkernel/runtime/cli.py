"""The runtime's command line: ``python RUNTIME {supervise,local,modal,rank,rendezvous} ...``."""

import gc
import os
import sys
import time


def main(argv=None):
    """Run one of the runtime's parts and leave with its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    part, rest = (argv or ["nothing"])[0], argv[1:]
    if part == "supervise":
        gc.disable()  # until the payload starts: there is no garbage yet, and looking for it costs 1 ms
        code = supervise(rest, os.environ)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # taking the interpreter apart costs each task some milliseconds, and nothing is left to close
    if part == "local":
        from . import localrun

        localrun.main(rest[0], rest[1], int(rest[2]))
        sys.exit(0)
    if part == "modal":
        from . import modalrun

        modalrun.main(rest)
        sys.exit(0)
    if part == "rank":
        sys.exit(rank(os.environ))
    if part == "rendezvous":
        from . import rendezvous

        sys.exit(rendezvous.main(os.environ))
    sys.exit("unknown part: %s" % part)


def supervise(arguments, environ):
    """Supervise this process of a job that Slurm started.

    Parameters
    ----------
    arguments : list of str
        ``JOB_FOLDER [--first-task K] [--attempt-base A]``.
    environ : mapping
        Slurm's variables say which process it is.
    """
    from . import processes
    from .context import Context
    from .supervisor import Supervisor

    job_dir, rest = arguments[0], arguments[1:]
    first = int(rest[rest.index("--first-task") + 1]) if "--first-task" in rest else 0
    task = first + int(environ.get("SLURM_ARRAY_TASK_ID", 0))
    platform_id = environ.get("SLURM_JOB_ID", "")
    if "SLURM_ARRAY_TASK_ID" in environ:
        platform_id = "%s_%s" % (environ["SLURM_ARRAY_JOB_ID"], environ["SLURM_ARRAY_TASK_ID"])
    # A batch script has these variables too, with other values: only a step has its own.
    step = environ.get("SLURM_STEP_ID") is not None and environ.get("SLURM_STEP_ID") != "4294967291"
    context = Context(
        job_dir,
        task=task,
        rank=int(environ.get("SLURM_PROCID", 0)) if step else 0,
        world=int(environ.get("SLURM_NTASKS", 1)) if step else 1,
        attempt=int(environ.get("SLURM_RESTART_COUNT", 0)),
        platform_id=platform_id,
    )
    began = environ.get("SLURM_JOB_START_TIME", "")  # from Slurm 23.02 on; before that, the shell's own start
    elapsed = None if began.isdigit() else processes.age(os.getppid())
    return Supervisor(context, began=float(began) if began.isdigit() else elapsed and time.time() - elapsed).run()


def rank(environ):
    """Run the payload as one rank under a launcher."""
    from . import entry
    from .context import Context

    context = Context.from_environ(environ)
    os.makedirs(context.out_dir, 0o700, exist_ok=True)
    return entry.run(context)
