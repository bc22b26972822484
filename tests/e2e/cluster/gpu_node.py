"""The real node with GPUs: Aliquot's agent and arbiter on it, the GPUs emulated."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aliquot.arbiter.client import ArbiterClient, ArbiterError, Status
from aliquot.driver.native import HOOK, native_part
from aliquot.kube.names import GPU_MEMORY, GPU_PERCENT

from .kubelet_node import KubeletNode
from .ours import AGENT, program, surroundings
from .parts import Part

RUNTIME = "/run/aliquot"
STATE = "/var/lib/aliquot"
# What the agent may do, and nothing else; a test that needs more has found something.
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]
RULES_FOR_CLAIMS = [
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"],
     "verbs": ["get", "list", "watch", "create", "patch"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
    # In a pod `associated-node` does: the name of its node stands in its token.
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims/driver"], "resourceNames": ["gpu.aliquot.dev"],
     "verbs": ["arbitrary-node:patch", "arbitrary-node:update"]},
]  # fmt: skip
ROLE = "cluster-gpu-node"
"""Not the chart's names: it may be installed beside, and its bindings could not replace these."""


class GpuNode:
    """One node with an agent and an arbiter on `spec`'s emulated GPUs; `gpus` are their UUIDs by index.

    `flags` are further flags of the agent, looked at whenever it starts, `arbiter_flags` those of the arbiter.
    """

    def __init__(
        self, node: KubeletNode, spec: str, *, flags: Sequence[str] = (), arbiter_flags: Sequence[str] = ()
    ) -> None:
        self.node = node
        self.plane = node.control_plane
        self.spec = spec
        self.gpus: list[str] = []
        self.flags = list(flags)
        self._arbiter_flags = list(arbiter_flags)
        environment = surroundings(ALIQUOT_NATIVE_DIR=str(native_part(HOOK).parent))
        rooms = self.plane.rooms
        self.arbiter = Part("arbiter", rooms, self._arbiter, self._arbiter_answers, environment=environment)
        self.agent = Part("agent", rooms, self._agent, self.ready, environment=environment)

    def start(self) -> None:
        """Gives the agent its rights and starts arbiter and agent; ready when the node advertises its GPUs."""
        self._allow()
        self.node.path(RUNTIME).mkdir(exist_ok=True)
        self.plane.parts["arbiter"], self.plane.parts["agent"] = self.arbiter, self.agent
        self.arbiter.start()
        self.agent.start()
        if not self.spec:  # the node's own driver
            self.gpus = [device["uuid"] for device in self.devices()]
            return
        conf = (self.node.path(self.emulated) / "emulator.conf").read_text()
        self.gpus = [f"GPU-{uuid}" for uuid in re.findall(r"^uuid=\d+ (\S+)$", conf, re.MULTILINE)]

    def close(self) -> None:
        """Ends both and removes what they left."""
        for name in ("agent", "arbiter"):
            self.plane.parts.pop(name, None)
        self.agent.stop()
        self.arbiter.stop()
        for folder in (RUNTIME, STATE):
            self.plane.rooms.run(["/bin/rm", "-rf", folder])

    def ready(self) -> bool:
        """Whether the agent is ready, as `start` waits for it; one that has no GPUs of its own offers none at first."""
        return self.fit() or ("coexist" in self.flags and self.allocatable() == ("0", "0"))

    def fit(self) -> bool:
        """Whether the node advertises both resources."""
        allocatable = self.allocatable()
        return allocatable[0] not in ("", "0") and allocatable[1] not in ("", "0")

    def allocatable(self) -> tuple[str, str]:
        """(gpu-percent, gpu-memory) as the node has them."""
        told = self.plane.api.get(f"/api/v1/nodes/{self.node.name}")["status"]["allocatable"]
        return told.get(GPU_PERCENT, ""), told.get(GPU_MEMORY, "")

    def devices(self) -> list[dict[str, Any]]:
        """The node's GPUs by its own annotation."""
        annotations = self.plane.api.get(f"/api/v1/nodes/{self.node.name}")["metadata"]["annotations"]
        found: list[dict[str, Any]] = json.loads(annotations["aliquot.dev/gpus"])["devices"]
        return found

    def status(self) -> Status:
        """The arbiter's account."""
        with ArbiterClient(self.node.path(RUNTIME)) as client:
            return client.status()

    @property
    def emulated(self) -> Path:
        """The folder of the emulated machine, as processes inside the namespaces see it."""
        return Path(RUNTIME) / "emulated"

    # -- how it is made ----------------------------------------------------------------------------------------

    def _arbiter_answers(self) -> bool:
        try:
            return bool(self.status().pid)
        except ArbiterError as error:
            raise OSError(str(error)) from None

    def _arbiter(self) -> list[str]:
        return [sys.executable, "-m", "aliquot.arbiter", "--runtime-dir", RUNTIME, *self._arbiter_flags]

    def _agent(self) -> list[str]:
        where = ("--node-name", self.node.name, "--kubeconfig", str(self.plane.user(AGENT)))
        often = ("--health-period-s", "0.5", "--allocation-check-period-s", "1")
        return program("node", "--emulate", self.spec, *where, *often, *self.flags)

    def _allow(self) -> None:
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ROLE}}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": AGENT}
        bound = {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": ROLE},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
            "subjects": [subject],
        }  # fmt: skip
        rules = RULES + (RULES_FOR_CLAIMS if "--claims" in self.flags else [])
        documents = "\n---\n".join(json.dumps(part) for part in (role | {"rules": rules}, bound))
        self.plane.kubectl("apply", "-f", "-", input_=documents)


@contextmanager
def gpu_node(
    node: KubeletNode, spec: str, *, flags: Sequence[str] = (), arbiter_flags: Sequence[str] = ()
) -> Iterator[GpuNode]:
    """A node with GPUs from its start to its end."""
    made = GpuNode(node, spec, flags=flags, arbiter_flags=arbiter_flags)
    try:
        made.start()
        yield made
    finally:
        made.close()
