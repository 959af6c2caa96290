"""The objects of a job.

One node is a Job. Several nodes are a JobSet, whose controller starts all of
them again when one fails, or with ``kind=Job`` an Indexed Job and a headless
Service, which need nothing on the cluster; there a node is replaced alone.

Sources: the Job API of Kubernetes 1.37, JobSet v1alpha2, Kueue's label of the queue.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from clusterkernel.errors import SpecError
from clusterkernel.formats.container import script as container_script
from clusterkernel.formats.kubernetes import pod as kubernetes_pod
from clusterkernel.formats.kubernetes import words
from clusterkernel.formats.kubernetes.extra import Extra
from clusterkernel.formats.launch.writer import Meeting
from clusterkernel.formats.model import Program, Runs, Step
from clusterkernel.formats.reporting import Report
from clusterkernel.spec import JobSpec, Stage

__all__ = ["QUEUE", "TAG", "Builder", "Command"]

QUEUE: Final = "kueue.x-k8s.io/queue-name"
TAG: Final = "tag.clusterkernel/"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
PORT: Final = "29500"
NODES: Final = "node"
_SHELL: Final = ["/bin/bash", "-c"]


class Command(msgspec.Struct, frozen=True):
    """What the container runs instead of the program's steps.

    Attributes
    ----------
    argv : tuple of str
        Words that are executed.
    """

    argv: tuple[str, ...]


class Builder:
    """Puts the objects together."""

    def __init__(self, spec: JobSpec, program: Program, extra: Extra, report: Report, command: Command | None) -> None:
        self.spec, self.program, self.extra, self.report, self.command = spec, program, extra, report, command
        self.nodes = spec.resources.nodes
        self.indexed = self.nodes > 1 or spec.array is not None
        self.kind = extra.get("kind") or ("JobSet" if self.nodes > 1 else "Job")
        self.staged = self._staged()
        self.name = self._name()

    def objects(self) -> list[dict[str, Any]]:
        """The documents of the manifest."""
        self.report.exact("nodes", "completions", self.nodes)
        self._tell_config()
        if self.kind == "JobSet":
            return [self._job_set()]
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": self._metadata(), "spec": self._job()}
        return [self._service(), job] if self.nodes > 1 else [job]

    def _tell_config(self) -> None:
        if self.program.steps:
            why = "No file travels with a manifest: the image, or a volume, has to have the program."
            self.report.assumed("program.files", "image", self.spec.environment.image or "", why)
        if config := self.program.config:
            why = "No file travels with a manifest: put it into the image or onto a volume."
            self.report.changed("program.config", "script", config, why)

    # -- names ------------------------------------------------------------------------

    def _name(self) -> str:
        digits = len(str(max(self.nodes, self.spec.array.size if self.spec.array else 1)))
        longest = max([len(NODES), *(len(name) for name, _, _ in self.staged)])
        room = digits + 1 if self.kind == "Job" else longest + digits + 4
        asked = self.spec.name
        name = words.dns_label(asked or self._title(), most=63 - room)
        if asked is None:
            self.report.assumed("name", "metadata.name", name, "An object needs a name, and none is given.")
        elif asked == name:
            self.report.exact("name", "metadata.name", name)
        else:
            why = "A name here begins with a letter and holds lower-case letters, digits and dashes, 63 with its ends."
            self.report.changed("name", "metadata.name", name, why)
        return name

    def _title(self) -> str:
        return self.program.called or "job"

    def _metadata(self) -> dict[str, Any]:
        made: dict[str, Any] = {"name": self.name}
        if namespace := self.extra.get("namespace"):
            made["namespace"] = namespace
        labels: dict[str, str] = {}
        if (queue := self.spec.schedule.partition) is not None:
            if words.is_label_value(queue):
                labels[QUEUE] = queue
                why = "A queue of Kueue stands for it: kubectl get localqueues names those that there are."
                self.report.changed("partition", f"label {QUEUE}", queue, why)
            else:
                self.report.dropped("partition", "The name of a queue holds letters, digits, dashes and dots.")
        for tag in self.spec.tags:
            if words.is_label_value(tag):
                labels[TAG + tag] = "true"
                self.report.exact(f"tags.{tag}", f"label {TAG}{tag}", "true")
            else:
                self.report.dropped(f"tags.{tag}", "A label holds letters, digits, dashes and dots, 63 at most.")
        if labels:
            made["labels"] = labels
        return made

    # -- kinds ------------------------------------------------------------------------

    def _service(self) -> dict[str, Any]:
        """Gives the pods names that resolve before they are ready."""
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_NAME: self.name}}
        metadata = {key: value for key, value in self._metadata().items() if key != "labels"}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    def _job_set(self) -> dict[str, Any]:
        staged = [
            {
                "name": words.dns_label(step.name),
                "replicas": 1,
                "template": {"spec": self._stage_job(step, stage, shell)},
            }
            for step, stage, shell in self._stage_parts()
        ]
        main: dict[str, Any] = {"name": NODES, "replicas": 1}
        if staged:
            main["dependsOn"] = [{"name": staged[-1]["name"], "status": "Complete"}]
        for earlier, later in itertools.pairwise(staged):
            later["dependsOn"] = [{"name": earlier["name"], "status": "Complete"}]
        main["template"] = {"spec": self._job()}
        spec: dict[str, Any] = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": self._failure_policy(),
            "replicatedJobs": [*staged, main],
        }
        if (ttl := self.extra.get("ttl")) is not None:
            spec["ttlSecondsAfterFinished"] = int(ttl)
        return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": self._metadata(), "spec": spec}

    def _failure_policy(self) -> dict[str, Any]:
        """All nodes start again together; what ran into its time limit does not."""
        rules: list[dict[str, Any]] = []
        if (requeue := self.spec.recovery.requeue) is not None:
            action = "RestartJobSetAndIgnoreMaxRestarts" if requeue else "FailJobSet"
            rules.append({"name": "disrupted", "action": action, "onJobFailureReasons": ["PodFailurePolicy"]})
        if self.spec.recovery.attempts > 1 and self.spec.schedule.time is not None:
            rules.append({"name": "timeLimit", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]})
        made: dict[str, Any] = {"maxRestarts": self.spec.recovery.attempts - 1}
        if rules:
            made["rules"] = rules
        self.report.exact("attempts", "failurePolicy.maxRestarts", made["maxRestarts"])
        return made

    def _job(self) -> dict[str, Any]:
        """The spec of the Job whose pods are the nodes."""
        spec, report = self.spec, self.report
        made: dict[str, Any] = {}
        if self.indexed:
            tasks = self.nodes if spec.array is None else spec.array.size
            made |= {"completions": tasks, "parallelism": tasks, "completionMode": "Indexed"}
        if spec.array is not None:
            report.exact("array", "completions", spec.array.size)
            if spec.parallelism is not None:
                made["parallelism"] = min(spec.parallelism, spec.array.size)
                if spec.parallelism < spec.array.size:
                    report.exact("parallelism", "parallelism", spec.parallelism)
                else:
                    why = "All tasks run at once: there are no more."
                    report.changed("parallelism", "parallelism", spec.array.size, why)
        in_set = self.kind == "JobSet"
        if spec.array is not None and not in_set:
            # Each task for itself: with a limit of all together one that fails ends the others. Since 1.29.
            made["backoffLimitPerIndex"] = spec.recovery.attempts - 1
            report.exact("attempts", "backoffLimitPerIndex", spec.recovery.attempts - 1)
        else:
            made["backoffLimit"] = 0 if in_set else self._backoff_limit()
        limit = spec.schedule.time
        # The limit of a Job holds over all attempts, that of a pod for each; a JobSet makes new Jobs.
        of_pod = limit is not None and not in_set and (spec.recovery.attempts > 1 or spec.array is not None)
        if limit is not None:
            report.exact("time", ("template.spec." if of_pod else "") + "activeDeadlineSeconds", limit)
        if limit is not None and not of_pod:
            made["activeDeadlineSeconds"] = limit
        if (ttl := self.extra.get("ttl")) is not None and not in_set:
            made["ttlSecondsAfterFinished"] = int(ttl)
        if (policy := self._pod_failure_policy(in_set=in_set)) is not None:
            made["podFailurePolicy"] = policy
        made["template"] = self._template()
        if of_pod:
            made["template"]["spec"]["activeDeadlineSeconds"] = limit
        return made

    def _backoff_limit(self) -> int:
        """It counts pods: of a job of several nodes all of them may have to start again."""
        again = self.spec.recovery.attempts - 1
        if again and self.nodes > 1:
            why = f"The limit counts failed pods, of all {self.nodes} nodes together."
            self.report.changed("attempts", "backoffLimit", again * self.nodes, why)
        else:
            self.report.exact("attempts", "backoffLimit", again)
        return again * self.nodes

    def _pod_failure_policy(self, *, in_set: bool) -> dict[str, Any] | None:
        requeue = self.spec.recovery.requeue
        if requeue is None:
            return None
        action = "Ignore" if requeue and not in_set else "FailJob"
        where = "failurePolicy.rules" if in_set else "podFailurePolicy"
        self.report.exact("requeue", where, action)
        return {
            "rules": [{"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}],
        }

    # -- pods -------------------------------------------------------------------------

    def _template(self) -> dict[str, Any]:
        metadata = self._pod_metadata()
        main, spec = self._main(), self.spec
        before = []
        if self.kind == "Job":
            before = [
                kubernetes_pod.stage_container(main, stage, spec, name=words.dns_label(step.name), shell=shell)
                for step, stage, shell in self._stage_parts()
            ]
        made = kubernetes_pod.pod(spec, self.program, self.extra, self.report, [*before, main])
        if self.nodes > 1 and self.kind == "Job":
            made["subdomain"] = self.name
        return {**({"metadata": metadata} if metadata else {}), "spec": made}

    def _pod_metadata(self) -> dict[str, Any]:
        for key in ("label", "annotation"):
            for name, value in self.extra.all(key).items():
                self.report.exact(f"extra.kubernetes.{key}.{name}", f"template {key} {name}", value)
        return {f"{key}s": found for key in ("label", "annotation") if (found := self.extra.all(key))}

    def _main(self) -> dict[str, Any]:
        if self.command is not None:
            command, shell = list(self.command.argv), ""
        elif self.program.steps:
            command, shell = _SHELL, self._script(self.program.steps[len(self.staged) :])
        else:
            raise SpecError(
                "The source does not say what is run.", field="program", hint="Add a command: a manifest runs one."
            )
        return kubernetes_pod.container(
            self.spec, self.program, self.extra, self.report, name="main", command=command, shell=shell
        )

    def _script(self, steps: Sequence[Step]) -> str:
        place = container_script.Place(
            platform="Kubernetes",
            meeting=self._meeting(),
            task="$JOB_COMPLETION_INDEX",
            job=self.name,
            shared=bool(self.spec.storage.volumes or self.program.mounts),
        )
        workdir = self.spec.environment.workdir
        cd = _folder(workdir) if workdir is not None and self._by_script(workdir) else ""
        if cd:
            self.report.exact("workdir", "script", workdir)
        return container_script.script(self.spec, self.program, place, self.report, cd=cd, steps=steps)

    def _meeting(self) -> Meeting:
        head = f"{self.name}-{NODES}-0-0" if self.kind == "JobSet" else f"{self.name}-0"
        return Meeting("$JOB_COMPLETION_INDEX", f"{head}.{self.name}", PORT, self.name)

    def _by_script(self, workdir: str) -> bool:
        """Whether the script goes to the working folder, and not the container's own field."""
        return not workdir.startswith("/")

    # -- stages -----------------------------------------------------------------------

    def _staged(self) -> list[tuple[str, Step, Stage]]:
        """The first steps that have needs of their own, and leave what they make on a volume."""
        if self.command is not None or self.kind == "TrainJob":
            return []
        stages = {stage.name: stage for stage in self.spec.stages}
        found: list[tuple[str, Step, Stage]] = []
        # What runs before a pod's container runs in each pod.
        fitting = {Runs.HEAD} if self.kind == "JobSet" else {Runs.HEAD, Runs.NODES}
        for step in self.program.steps[:-1]:
            if step.runs not in fitting or step.launched or step.name not in stages or not self.spec.storage.volumes:
                break
            found.append((words.dns_label(step.name), step, stages[step.name]))
        return found

    def _stage_parts(self) -> list[tuple[Step, Stage, str]]:
        parts = []
        for _, step, stage in self.staged:
            alone = msgspec.structs.replace(self.spec, resources=msgspec.structs.replace(self.spec.resources, nodes=1))
            place = container_script.Place(platform="Kubernetes", meeting=Meeting("0", "", "", ""))
            shell = container_script.script(alone, self.program, place, self.report, steps=[step])
            parts.append((step, stage, shell))
            for name in ("cpus_per_task", "memory"):
                if (value := getattr(stage, name)) is not None:
                    self.report.exact(f"stages.{step.name}.{name}", "resources.requests", value)
        return parts

    def _stage_job(self, step: Step, stage: Stage, shell: str) -> dict[str, Any]:
        main = kubernetes_pod.stage_container(
            self._main(), stage, self.spec, name=words.dns_label(step.name), shell=shell
        )
        made: dict[str, Any] = {"backoffLimit": 0}
        if stage.time is not None:
            made["activeDeadlineSeconds"] = stage.time
            self.report.exact(f"stages.{step.name}.time", "activeDeadlineSeconds", stage.time)
        without = msgspec.structs.replace(
            self.spec, resources=msgspec.structs.replace(self.spec.resources, gpus_per_node=None)
        )
        pod = kubernetes_pod.pod(without, self.program, self.extra, Report(), [main])
        return {**made, "template": {"spec": pod}}


def _folder(path: str) -> str:
    """A folder as bash reads it; ``~`` keeps its meaning."""
    if path == "~" or path.startswith("~/"):
        return "~" + (shlex.quote(path[1:]) if len(path) > 1 else "")
    return shlex.quote(path)
