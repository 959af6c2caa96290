"""Jobs for the tests of the Slurm backend alone: commands, made without the layers above it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from clusterkernel.backends.base import Observation
from clusterkernel.backends.slurm.backend import SlurmBackend
from clusterkernel.fields import build
from clusterkernel.jobfolder import JobFolder
from clusterkernel.jobroot import JobRoot
from clusterkernel.records import JobRecord, PayloadSummary, identity
from clusterkernel.spec import Array

CEILING = 60.0


class Jobs:
    """Makes, sends and watches jobs on one cluster.

    Parameters
    ----------
    cluster : SlurmCluster
        Where; its environment is already set.
    folder : Path
        On the cluster's share: holds the job root, and is the working folder.
    """

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.root = JobRoot(folder / "jobs")
        self.backend = SlurmBackend()
        self.made: list[JobFolder] = []

    def make(self, argv: Sequence[str], *, tasks: int | None = None, name: str = "try", **fields: Any) -> JobFolder:
        """A job's folder, nothing sent."""
        fields.setdefault("workdir", str(self.folder))
        spec = build({"backend": "slurm", **fields})
        if tasks is not None:
            spec = msgspec.structs.replace(spec, array=Array(size=tasks))

        def record(job_id: str, key: str) -> JobRecord:
            return JobRecord(
                id=job_id,
                key=key,
                name=name,
                spec=spec,
                payload=PayloadSummary(kind="command"),
                tasks=tasks or 1,
                array=tasks is not None,
                **identity(),
            )

        def payload(path: Path) -> None:
            (path / "payload.json").write_text(json.dumps({"kind": "command", "argv": list(argv)}))

        folder = self.root.create(record, payload)
        self.made.append(folder)
        return folder

    def send(self, folder: JobFolder) -> JobFolder:
        """Submit it."""
        folder.write_submission(self.backend.submit(folder))
        return folder

    def start(self, argv: Sequence[str], **fields: Any) -> JobFolder:
        """Make and submit one."""
        return self.send(self.make(argv, **fields))

    def look(self, *folders: JobFolder) -> dict[str, dict[int, Observation]]:
        """One poll, by job and task."""
        return {job: {seen.task: seen for seen in told} for job, told in self.backend.poll(folders).items()}

    def until(
        self, folder: JobFolder, holds: Callable[[dict[int, Observation]], bool], *, ceiling: float = CEILING
    ) -> dict[int, Observation]:
        """Poll until what is seen of the job is as wanted."""
        deadline = time.monotonic() + ceiling
        told: dict[int, Observation] = {}
        while time.monotonic() < deadline:
            told = self.look(folder).get(folder.id, {})
            if told and holds(told):
                return told
            time.sleep(0.1)
        raise AssertionError(f"after {ceiling:g} s job {folder.id} is {told}")

    def until_state(self, folder: JobFolder, *states: str, ceiling: float = CEILING) -> Observation:
        """Poll until the job's first task is in one of the states."""
        return self.until(folder, lambda told: 0 in told and str(told[0].state) in states, ceiling=ceiling)[0]

    def end(self, folder: JobFolder, *, ceiling: float = CEILING) -> dict[int, Observation]:
        """Poll until all tasks have ended."""

        def ended(told: dict[int, Observation]) -> bool:
            states = [told[task].state if task in told else None for task in range(folder.record.tasks)]
            return all(state is not None and state.terminal for state in states)

        return self.until(folder, ended, ceiling=ceiling)

    def ids(self, folder: JobFolder) -> list[str]:
        """The ids of all submissions of one job that Slurm keeps; others submit at the same time."""
        listed = self.cluster.run("squeue", "-h", "-t", "all", "-u", str(os.geteuid()), "-o", "%F %k").splitlines()
        # Tasks of an array get ids of their own as they start; %F is the array's.
        return sorted({line.split()[0] for line in listed if folder.record.key in line})

    def close(self) -> None:
        """Cancel what still runs."""
        for folder in self.made:
            if (sent := folder.submission()) is not None:
                self.cluster.run("scancel", *(job for job, _, _ in sent.platform_ids), check=False)
