"""An agent and an arbiter on the real node, pods with plans, and what their containers see."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.gpu_node import STATE, GpuNode
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.parts import until
from plugins import POD_RESOURCES, held_devices

from aliquot.kube.names import GPU_PERCENT, PLAN
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.model.requests import Slice

HERE = Path(__file__).resolve().parent
# The whole of it takes six minutes on two cores, too long to run at each change.
LONG = pytest.mark.slow


class Scene(GpuNode):
    """One node with an agent on `spec`'s emulated GPUs, and a namespace for pods."""

    def __init__(self, node: KubeletNode, namespace: str, spec: str, *flags: str) -> None:
        super().__init__(node, spec, flags=flags)
        self.namespace = namespace

    # -- scenes --------------------------------------------------------------------------------------------------

    def slice(self, gpu: int, request: int, limit: int = 1000, mib: int = 1024) -> Slice:
        """A part of one of the node's GPUs."""
        return Slice(self.gpus[gpu], request, limit, mib)  # type: ignore[arg-type]

    def create(
        self,
        name: str,
        plan: Mapping[str, Slice | Sequence[Slice] | ContainerPlan],
        *command: str,
        init: Mapping[str, Sequence[str]] | None = None,
        sidecar: str = "",
        bind: bool = True,
        percent: int = 0,
        replicas: int = 0,
        **spec: Any,
    ) -> None:
        """A pod with a container for each name in the plan, bound with its plan as the scheduler does it.

        `init` are the commands of those that are plain init containers; `sidecar` names one that is restarted always.
        With `replicas` a ReplicaSet makes the pods, and nobody binds them.
        """
        given = {key: _given(value) for key, value in plan.items()}
        containers, inits = [], []
        for key, what in given.items():
            asked = percent or max(1, sum(s.request_milli for s in (what.slices or given[what.uses].slices)) // 10)
            container = self._container(key, asked, list(command))
            if key == sidecar:
                inits.append(container | {"restartPolicy": "Always"})
            elif init and key in init:
                inits.append(container | {"command": list(init[key])})
            else:
                containers.append(container)
        body = {
            "metadata": {"name": name},
            "spec": {
                "schedulerName": "nobody", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": containers, "initContainers": inits, "volumes": volumes(), **spec,
            },
        }  # fmt: skip
        if replicas:
            self._replicate(name, body["spec"], replicas)
            return
        made = self.plane.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)[0]
        if bind:
            self.bind(name, made["metadata"]["uid"], PodPlan(self.node.name, given))

    def _replicate(self, name: str, spec: dict[str, Any], replicas: int) -> None:
        labels = {"set": name}
        template = {"metadata": {"labels": labels}, "spec": spec | {"restartPolicy": "Always"}}
        body = {
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
        }
        self.plane.api.create(f"/apis/apps/v1/namespaces/{self.namespace}/replicasets", body)

    def pods_of(self, name: str) -> list[dict[str, Any]]:
        """The pods that a ReplicaSet made and that are not on their way out."""
        items = self.plane.api.get(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=set%3D{name}")["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def bind(self, name: str, uid: str, plan: PodPlan) -> None:
        """Writes plan and node in one Binding."""
        binding = {
            "metadata": {"name": name, "uid": uid, "annotations": {PLAN: write_plan(plan)}},
            "target": {"kind": "Node", "name": self.node.name},
        }
        self.plane.api.create(f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding", binding)

    # -- what is seen ----------------------------------------------------------------------------------------------

    def registrations(self) -> int:
        """How often the agent has registered with kubelet, over all of its lives."""
        return self.agent.log.read_text().count(" registered ") if self.agent.log.exists() else 0

    def told(self, name: str, container: str = "main") -> dict[str, Any]:
        """The first line that the probe in a container printed, once it is there."""

        def look() -> dict[str, Any] | None:
            logs = self.plane.kubectl("logs", "-n", self.namespace, name, "-c", container, check=False)
            line = logs.partition("\n")
            if line[1] and not line[0].startswith("{"):
                raise AssertionError(f"the probe of {name}/{container} failed: {logs[-2000:]}")
            return json.loads(line[0]) if line[1] else None

        return until(look, f"the probe of {name}/{container}", 60)

    def tenants(self) -> set[str]:
        """Names of the arbiter's tenants in this scene."""
        names = {tenant.name for gpu in self.status().gpus for tenant in gpu.tenants}
        return {name for name in names if name.startswith(f"{self.namespace}/")}

    def held(self) -> dict[tuple[str, str], set[str]]:
        """(pod, container) -> ids, of this scene, from PodResources."""
        every = held_devices(self.node.path(POD_RESOURCES))
        return {(pod, container): ids for (namespace, pod, container, _), ids in every.items()
                if namespace == self.namespace}  # fmt: skip

    def events(self, reason: str) -> list[str]:
        """Messages of the events of that reason in this namespace."""
        items = self.plane.api.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [item["message"] for item in items if item["reason"] == reason]

    def specs(self) -> list[str]:
        """Names of the CDI files."""
        folder = self.node.path("/run/cdi")
        return sorted(path.name for path in folder.glob("aliquot.dev-*.json")) if folder.is_dir() else []

    def phase(self, name: str) -> str:
        """The pod's phase."""
        return self.plane.pod(self.namespace, name)["status"]["phase"]

    def delete(self, name: str) -> None:
        """Deletes a pod and waits until it is gone."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        self.plane.api.delete(f"{path}/{name}")
        until(lambda: name not in [i["metadata"]["name"] for i in self.plane.api.get(path)["items"]], f"no {name}")

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """The agent's state on a disk without room; what the agent wrote there stays when the disk is gone."""

        def shell(script: str) -> None:
            self.plane.rooms.run(["/bin/sh", "-ec", f"state={STATE}; small=/run/small; {script}"])

        shell("mkdir $small; mount -t tmpfs -o size=64m none $small; cp -a $state/. $small; mount --move $small $state")
        shell("cat /dev/zero > $state/ballast 2> /dev/null || true")
        try:
            yield
        finally:
            shell("rm $state/ballast; cp -a $state/. $small; umount -l $state; cp -a $small/. $state; rm -r $small")

    def clear(self) -> None:
        """Ends everything a test made: parts run, pods are gone, and so is what they had."""
        for part in (self.plane["containerd"], self.plane["kubelet"], self.arbiter, self.agent):
            part.start()
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self.plane.api.call("DELETE", f"/apis/apps/v1/namespaces/{self.namespace}/replicasets")
        self.plane.api.call("DELETE", pods, {"gracePeriodSeconds": 0})
        until(lambda: not self.plane.api.get(pods)["items"], "the end of the pods", 60)
        self.plane.api.call("DELETE", f"/api/v1/namespaces/{self.namespace}/events")
        until(lambda: not self.tenants() and not self.specs(), "no trace of the pods", 60)

    def _container(self, name: str, percent: int, command: list[str]) -> dict[str, Any]:
        return {
            "name": name, "image": PYTHON, "imagePullPolicy": "Never",
            "command": command or ["python3", "/probe/probe.py"],
            "env": [{"name": "PYTHONPATH", "value": "/site"}],
            "resources": {"limits": {GPU_PERCENT: str(percent)}},
            "volumeMounts": [
                {"name": "probe", "mountPath": "/probe", "readOnly": True},
                {"name": "site", "mountPath": "/site", "readOnly": True},
            ],
        }  # fmt: skip


def _given(value: Slice | Sequence[Slice] | ContainerPlan) -> ContainerPlan:
    if isinstance(value, ContainerPlan):
        return value
    return ContainerPlan((value,) if isinstance(value, Slice) else tuple(value))


def volumes() -> list[dict[str, Any]]:
    """The probe and the packages of this interpreter."""
    site = sysconfig.get_path("purelib")
    return [{"name": "probe", "hostPath": {"path": str(HERE)}}, {"name": "site", "hostPath": {"path": site}}]


@contextmanager
def running(node: KubeletNode, namespace: str, spec: str = "v100x2", *flags: str) -> Iterator[Scene]:
    """A scene from its start to its end."""
    scene = Scene(node, namespace, spec, *flags)
    try:
        scene.start()
        yield scene
    finally:
        scene.close()
