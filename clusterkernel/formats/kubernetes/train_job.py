"""A TrainJob of Kubeflow's trainer, whose runtime is an object of the cluster and makes the pods.

The runtime sets torchrun's ``PET_...`` variables, says how often a run starts
again, and brings whatever a TrainJob has no field for. Of its pods only some
fields may be patched.

Source: TrainJob v1alpha1; its names of the training's job and container are those of Kubeflow's own runtimes.
"""

from __future__ import annotations

from typing import Any, Final

from clusterkernel.errors import SpecError
from clusterkernel.formats.kubernetes import pod as kubernetes_pod
from clusterkernel.formats.kubernetes.objects import NODES, Builder
from clusterkernel.formats.launch.writer import Meeting

__all__ = ["RUNTIME", "TrainJobBuilder"]

#: Kubeflow's runtime for PyTorch.
RUNTIME: Final = "torch-distributed"
API: Final = "trainer.kubeflow.org"
#: What may be patched of a runtime's pods.
_PATCHES: Final = (
    "serviceAccountName",
    "imagePullSecrets",
    "nodeSelector",
    "affinity",
    "tolerations",
    "terminationGracePeriodSeconds",
    "volumes",
)
# Field -> why a TrainJob has no place for it.
_OF_RUNTIME: Final = {
    "attempts": "The runtime says how often a run starts again.",
    "requeue": "The runtime says what becomes of a pre-empted run.",
    "priority": "The runtime says the priority of its pods.",
    **{f"extra.kubernetes.{key}": "The runtime says it." for key in ("runtime-class", "scheduler", "host-network")},
    "extra.kubernetes.pull-policy": "The runtime says it.",
    "extra.kubernetes.ttl": "A TrainJob stays until it is deleted.",
}


class TrainJobBuilder(Builder):
    """Puts a TrainJob together."""

    def objects(self) -> list[dict[str, Any]]:
        """The documents of the manifest."""
        if self.spec.array is not None:
            raise SpecError(
                "An array has no place in a TrainJob.", field="extra.kubernetes", hint="Take kind=TrainJob away."
            )
        self._tell_config()
        self.report.exact("nodes", "trainer.numNodes", self.nodes)
        main = self._main()
        if (workdir := self.spec.environment.workdir) is not None:
            self.report.exact("workdir", "script", workdir)
        spec: dict[str, Any] = {"runtimeRef": self._runtime(), "trainer": self._trainer(main)}
        if (limit := self.spec.schedule.time) is not None:
            spec["activeDeadlineSeconds"] = limit
            self.report.exact("time", "activeDeadlineSeconds", limit)
        if patch := self._patch(main):
            spec["runtimePatches"] = [{"manager": "clusterkernel", "trainingRuntimeSpec": patch}]
        for field, why in _OF_RUNTIME.items():
            if field in self.report or (field == "attempts" and self.spec.recovery.attempts > 1):
                self.report.dropped(field, why)
        return [
            {"apiVersion": f"{API}/v1alpha1", "kind": "TrainJob", "metadata": self._metadata(), "spec": spec},
        ]

    def _runtime(self) -> dict[str, str]:
        if (name := self.extra.get("runtime")) is None:
            name = RUNTIME
            why = "A runtime of the cluster makes the pods; this is Kubeflow's own for PyTorch."
            self.report.assumed("extra.kubernetes.runtime", "runtimeRef.name", name, why)
        kind = self.extra.get("runtime-kind")
        return {"name": name, **({"apiGroup": API, "kind": kind} if kind else {})}

    def _trainer(self, main: dict[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = {key: main[key] for key in ("image", "command", "args") if key in main}
        if env := [item for item in main.get("env", []) if item["name"] != kubernetes_pod.RANKS]:
            made["env"] = env
        made["numNodes"] = self.nodes
        if (tasks := self.spec.resources.tasks_per_node) is not None:
            made["numProcPerNode"] = tasks
            self.report.exact("tasks_per_node", "trainer.numProcPerNode", tasks)
        if "resources" in main:
            made["resourcesPerNode"] = main["resources"]
        return made

    def _patch(self, main: dict[str, Any]) -> dict[str, Any]:
        """What has to be changed of the runtime's pods."""
        pod = kubernetes_pod.pod(self.spec, self.program, self.extra, self.report, [main])
        patched: dict[str, Any] = {key: pod[key] for key in _PATCHES if key in pod}
        if mounts := main.get("volumeMounts"):
            patched["containers"] = [{"name": NODES, "volumeMounts": mounts}]
        template: dict[str, Any] = {}
        if metadata := self._pod_metadata():
            template["metadata"] = metadata
        if patched:
            template["spec"] = patched
        if not template:
            return {}
        job = {"name": NODES, "template": {"spec": {"template": template}}}
        return {"template": {"spec": {"replicatedJobs": [job]}}}

    def _meeting(self) -> Meeting:
        return Meeting("$PET_NODE_RANK", "$PET_MASTER_ADDR", "$PET_MASTER_PORT", self.name)

    def _by_script(self, workdir: str) -> bool:
        return True  # a TrainJob has no field for it
