"""Karpenter with its kwok provider: its nodes are played by kwok, and have what an agent would have written."""

from __future__ import annotations

import json
import threading
from typing import Any

from . import programs
from .api import ApiError
from .control_plane import ControlPlane
from .fake import fake_node
from .parts import Part

HEALTH, METRICS = 8084, 8094
TYPE = "node.kubernetes.io/instance-type"
POOL: dict[str, Any] = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "gpus"},
    "spec": {
        "template": {"spec": {
            "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}],
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "gpus"},
        }},
        "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "2s",
            "budgets": [{"nodes": "100%"}],
        },
    },
}  # fmt: skip
CLASS: dict[str, Any] = {
    "apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "gpus"},
}  # fmt: skip


def instance_type(name: str, spec: str, price: float) -> dict[str, Any]:
    """A type of node with GPUs of an emulated profile, such as `v100x2`."""
    profile, _, count = spec.partition("x")
    offered = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "here"}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in offered.items()]
    return {
        "name": name,
        "offerings": [{"Price": price, "Available": True, "Requirements": requirements}],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": fake_node(name, profile, int(count or 1))["status"]["capacity"],
    }


class Karpenter:
    """Karpenter, which may make nodes of these types (name to profile), each GPU at the same price."""

    def __init__(self, plane: ControlPlane, types: dict[str, str]) -> None:
        self.plane, self.types = plane, types
        self._built = programs.charted("karpenter")
        (program,) = (self._built / "bin").iterdir()
        known = plane.rooms.state / "instance-types.json"
        listed = [instance_type(name, spec, float(spec.partition("x")[2] or 1)) for name, spec in types.items()]
        known.write_text(json.dumps(listed))
        environment = {
            "KUBECONFIG": str(plane.kubeconfig), "SYSTEM_NAMESPACE": "kube-system", "DISABLE_LEADER_ELECTION": "true",
            "HEALTH_PROBE_PORT": str(HEALTH), "METRICS_PORT": str(METRICS), "INSTANCE_TYPES_FILE_PATH": str(known),
        }  # fmt: skip
        self.part = Part(
            "karpenter", plane.rooms, lambda: [str(program)], lambda: plane.answers(HEALTH, "/readyz"),
            environment=environment,
        )  # fmt: skip
        self._ended = threading.Event()
        self._agents = threading.Thread(target=self._write_inventories, daemon=True)

    def start(self) -> None:
        """Its kinds, its program, and the agents of its nodes; it makes none before there is a NodePool."""
        for folder in ("charts/crds", "apis/crds"):
            self.plane.kubectl("apply", "--server-side", "-f", str(self._built / "chart" / folder))
        self.plane.wait_for_kinds()
        self.part.start()
        self._agents.start()

    def stop(self) -> None:
        """Its program, and the agents."""
        self.part.stop()
        self._ended.set()
        self._agents.join(20)

    def make_pool(self) -> None:
        """From now on it may make nodes."""
        self.plane.kubectl("apply", "-f", "-", input_="\n---\n".join(json.dumps(one) for one in (CLASS, POOL)))

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that it has made."""
        return [node for node in self.plane.api.get("/api/v1/nodes")["items"] if self._of_ours(node)]

    def _of_ours(self, node: dict[str, Any]) -> bool:
        return node["metadata"]["labels"].get(TYPE) in self.types

    def _write_inventories(self) -> None:
        """What the agent of each node would write."""
        while not self._ended.wait(0.2):
            for node in self.nodes():
                name = node["metadata"]["name"]
                profile, _, count = self.types[node["metadata"]["labels"][TYPE]].partition("x")
                told = fake_node(name, profile, int(count or 1))["metadata"]["annotations"]
                if not told.items() <= node["metadata"]["annotations"].items():
                    try:
                        self.plane.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"annotations": told}})
                    except ApiError as error:
                        if error.status != 404:
                            raise
