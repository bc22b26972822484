"""An agent and an arbiter on the real node, pods with plans, and what their containers see."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster.images import PYTHON
from cluster.kubelet_node import KubeletNode
from cluster.parts import Part, until
from plugins import POD_RESOURCES, held_devices

from aliquot.arbiter.client import ArbiterClient, ArbiterError, Status
from aliquot.driver.native import HOOK, native_part
from aliquot.kube.names import GPU_MEMORY, GPU_PERCENT, PLAN
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.model.requests import Slice

HERE = Path(__file__).resolve().parent
SOURCES = Path(__file__).resolve().parents[3] / "src"
RUNTIME = "/run/aliquot"
# What the agent may do, and nothing else; a test that needs more has found something.
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]
USER = "aliquot-node"
# The whole of it takes six minutes on two cores, too long to run at each change.
LONG = pytest.mark.slow


class Scene:
    """One node with an agent on `spec`'s emulated GPUs."""

    def __init__(self, node: KubeletNode, namespace: str, spec: str) -> None:
        self.node = node
        self.plane = node.control_plane
        self.namespace = namespace
        self.spec = spec
        self.gpus: list[str] = []
        environment = {
            "PYTHONPATH": str(SOURCES),
            "PATH": os.environ["PATH"],
            "ALIQUOT_NATIVE_DIR": str(native_part(HOOK).parent),
        }
        rooms = self.plane.rooms
        self.arbiter = Part("arbiter", rooms, self._arbiter, self._arbiter_answers, environment=environment)
        self.agent = Part("agent", rooms, self._agent, self.fit, environment=environment)
        self.flags: list[str] = []

    def start(self) -> None:
        """Gives the agent its rights and starts arbiter and agent; ready when the node advertises its GPUs."""
        self._allow()
        self._path(RUNTIME).mkdir(exist_ok=True)
        self.plane.parts["arbiter"], self.plane.parts["agent"] = self.arbiter, self.agent
        self.arbiter.start()
        self.agent.start()
        self.gpus = [device["uuid"] for device in self.devices()]

    def close(self) -> None:
        """Ends both and removes what they left."""
        for name in ("agent", "arbiter"):
            self.plane.parts.pop(name, None)
        self.agent.stop()
        self.arbiter.stop()
        for folder in ("/run/aliquot", "/var/lib/aliquot"):
            self.node._rooms.run(["/bin/rm", "-rf", folder])

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
                "containers": containers, "initContainers": inits, "volumes": _volumes(), **spec,
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

    def fit(self) -> bool:
        """Whether the node advertises both resources."""
        allocatable = self.allocatable()
        return allocatable[0] not in ("", "0") and allocatable[1] not in ("", "0")

    def registrations(self) -> int:
        """How often the agent has registered with kubelet, over all of its lives."""
        return self.agent.log.read_text().count(" registered ") if self.agent.log.exists() else 0

    def allocatable(self) -> tuple[str, str]:
        """(gpu-percent, gpu-memory) as the node has them."""
        told = self.plane.api.get(f"/api/v1/nodes/{self.node.name}")["status"]["allocatable"]
        return told.get(GPU_PERCENT, ""), told.get(GPU_MEMORY, "")

    def devices(self) -> list[dict[str, Any]]:
        """The node's GPUs by its own annotation."""
        annotations = self.plane.api.get(f"/api/v1/nodes/{self.node.name}")["metadata"]["annotations"]
        return json.loads(annotations["aliquot.dev/gpus"])["devices"]

    def told(self, name: str, container: str = "main") -> dict[str, Any]:
        """The first line that the probe in a container printed, once it is there."""

        def look() -> dict[str, Any] | None:
            logs = self.plane.kubectl("logs", "-n", self.namespace, name, "-c", container, check=False)
            line = logs.partition("\n")
            if line[1] and not line[0].startswith("{"):
                raise AssertionError(f"the probe of {name}/{container} failed: {logs[-2000:]}")
            return json.loads(line[0]) if line[1] else None

        return until(look, f"the probe of {name}/{container}", 60)

    def status(self) -> Status:
        """The arbiter's account."""
        with ArbiterClient(self._path(RUNTIME)) as client:
            return client.status()

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
        folder = self._path("/run/cdi")
        return sorted(path.name for path in folder.glob("aliquot.dev-*.json")) if folder.is_dir() else []

    def phase(self, name: str) -> str:
        """The pod's phase."""
        return self.plane.pod(self.namespace, name)["status"]["phase"]

    def delete(self, name: str) -> None:
        """Deletes a pod and waits until it is gone."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        self.plane.api.delete(f"{path}/{name}")
        until(lambda: name not in [i["metadata"]["name"] for i in self.plane.api.get(path)["items"]], f"no {name}")

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

    # -- how it is made ----------------------------------------------------------------------------------------

    def _path(self, inside: str) -> Path:
        return self.node.path(inside)

    def _arbiter_answers(self) -> bool:
        try:
            return bool(self.status().pid)
        except ArbiterError as error:
            raise OSError(str(error)) from None

    def _arbiter(self) -> list[str]:
        return [sys.executable, "-m", "aliquot.arbiter", "--runtime-dir", RUNTIME]

    def _agent(self) -> list[str]:
        return [
            sys.executable, "-m", "aliquot.cli", "node", "--emulate", self.spec, "--node-name", self.node.name,
            "--kubeconfig", str(self.plane.user(USER)), "--health-period-s", "0.5",
            "--allocation-check-period-s", "1", *self.flags,
        ]  # fmt: skip

    def _allow(self) -> None:
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": USER}}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}
        bound = {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
            "subjects": [subject],
        }  # fmt: skip
        documents = "\n---\n".join(json.dumps(part) for part in (role | {"rules": RULES}, bound))
        self.plane.kubectl("apply", "-f", "-", input_=documents)

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


def _volumes() -> list[dict[str, Any]]:
    site = sysconfig.get_path("purelib")
    return [{"name": "probe", "hostPath": {"path": str(HERE)}}, {"name": "site", "hostPath": {"path": site}}]


@contextmanager
def running(node: KubeletNode, namespace: str, spec: str = "v100x2") -> Iterator[Scene]:
    """A scene from its start to its end."""
    scene = Scene(node, namespace, spec)
    try:
        scene.start()
        yield scene
    finally:
        scene.close()
