"""The job folder on its way into a container of Modal's, over a volume that all jobs share."""

import os
import tarfile
import tempfile

from .context import read_json, write_json

VOLUME = "clusterkernel-jobs"


def _ours(member):
    # Who unpacks it shall own it: a job trusts no files of others.
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def pack(job_dir, file):
    """Write the job folder as it is sent: what describes the job, and its payload.

    Parameters
    ----------
    job_dir : str
        The job's folder.
    file : binary file
        Where it goes.
    """
    name = os.path.basename(job_dir)
    with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1) as tar:
        tar.add(job_dir, name, recursive=False, filter=_ours)
        for part in ("job.json", "payload"):
            tar.add(os.path.join(job_dir, part), "%s/%s" % (name, part), filter=_ours)


def _unpack(volume, place, root):
    with tempfile.TemporaryFile() as archive:
        for block in volume.read_file(place):
            archive.write(block)
        archive.seek(0)
        with tarfile.open(fileobj=archive, mode="r:gz") as tar:
            tar.extraction_filter = lambda member, _: member  # it is our own
            tar.extractall(root)


def fetch(modal, key, root):
    """Lay out the job folder under `root`.

    Returns
    -------
    tuple of str
        The job's folder, and the working folder that was made for it; empty where it has one of its own.
    """
    volume = modal.Volume.from_name(VOLUME)
    _unpack(volume, "%s/payload.tar.gz" % key, root)
    (name,) = os.listdir(root)
    job_dir, work = os.path.join(root, name), ""
    job = read_json(os.path.join(job_dir, "job.json"))
    environment = job["spec"].setdefault("environment", {})
    environment.pop("secrets", None)  # they are in the environment of the container
    environment.pop("interpreter", None)  # of the notebook's machine
    if not os.path.isdir(environment.get("workdir") or ""):
        work = environment["workdir"] = os.path.join(root, "work")
        os.mkdir(work, 0o700)
        files = os.path.join(job_dir, "payload", "files")
        for name in os.listdir(files) if os.path.isdir(files) else ():
            os.symlink(os.path.join(files, name), os.path.join(work, name))
    write_json(os.path.join(job_dir, "job.json"), job)
    for folder in ("claims", "out", "events", "batch"):
        os.mkdir(os.path.join(job_dir, folder), 0o700)
    return job_dir, work


def keep_work(modal, key, work):
    """Keep what a first step left in the working folder, for the container of the next."""
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
            for name in os.listdir(work):
                if not os.path.islink(os.path.join(work, name)):  # the files that were taken along
                    tar.add(os.path.join(work, name), name, filter=_ours)
        archive.seek(0)
        with modal.Volume.from_name(VOLUME).batch_upload(force=True) as batch:
            batch.put_file(archive, "/%s/work.tar.gz" % key)


def take_work(modal, key, work):
    """Lay out what `keep_work` kept, where it kept something."""
    try:
        _unpack(modal.Volume.from_name(VOLUME), "%s/work.tar.gz" % key, work)
    except FileNotFoundError:
        pass
