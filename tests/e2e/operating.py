"""SharePods, vGPUs and quotas on the test cluster: making them and waiting for what becomes of them."""

import time
from collections.abc import Callable
from typing import Any

from cluster.api import ApiError
from cluster.control_plane import ControlPlane
from cluster.ours import install_crds as install_crds
from scheduling import Pods

ALIQUOT = "/apis/aliquot.dev/v1alpha1"


def sharepod(name: str, request: str | float = "0.3", **gpu: Any) -> dict[str, Any]:
    """A SharePod of one container; `node` names a node, `template` adds to its pod's spec."""
    node, template = gpu.pop("node", ""), gpu.pop("template", {})
    inner = {"containers": [{"name": "main", "image": "busybox"}], "terminationGracePeriodSeconds": 0, **template}
    spec = {"gpu": {"request": request, **gpu}, "template": {"spec": inner}, **({"nodeName": node} if node else {})}
    return {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": name}, "spec": spec}


def vgpus(plane: ControlPlane) -> dict[str, dict[str, Any]]:
    """All vGPUs by name."""
    return {item["metadata"]["name"]: item for item in plane.api.get(f"{ALIQUOT}/vgpus")["items"]}


def reason(thing: dict[str, Any], kind: str = "Scheduled") -> tuple[str, str]:
    """Reason and message of a condition."""
    found = [c for c in thing.get("status", {}).get("conditions", []) if c["type"] == kind]
    return (found[0]["reason"], found[0].get("message", "")) if found else ("", "")


def wait_for(get: Callable[[], Any], want: Callable[[Any], bool], what: str, timeout_s: float = 25.0) -> Any:
    """What `get` gives once it is as wanted."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            seen = get()
            if want(seen):
                return seen
        except ApiError as error:
            if error.status != 404:
                raise
            seen = None
        assert time.monotonic() < deadline, f"{what}: {seen}"
        time.sleep(0.05)


class SharePods:
    """The SharePods of a namespace, and the pods that are made of them."""

    def __init__(self, pods: Pods) -> None:
        self.pods, self.plane, self.namespace = pods, pods.plane, pods.namespace
        self.path = f"{ALIQUOT}/namespaces/{pods.namespace}/sharepods"

    def create(self, *sharepods: dict[str, Any]) -> None:
        """Make SharePods."""
        self.plane.api.create(self.path, *sharepods)

    def all(self) -> list[dict[str, Any]]:
        """Every SharePod that is there."""
        found: list[dict[str, Any]] = self.plane.api.get(self.path)["items"]
        return found

    def __getitem__(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.api.get(f"{self.path}/{name}")
        return found

    def wait_phase(self, name: str, phase: str) -> dict[str, Any]:
        """A SharePod once it is in a phase."""
        reached = lambda s: s.get("status", {}).get("phase") == phase  # noqa: E731
        found: dict[str, Any] = wait_for(lambda: self[name], reached, f"{name} not {phase}")
        return found

    def wait_reason(self, name: str, want: str = "") -> tuple[str, str]:
        """Why a SharePod is as it is, once that is said, and in these words."""
        found: tuple[str, str] = wait_for(
            lambda: reason(self[name]), lambda r: r[0] and want in " ".join(r), f"{name} is not told why"
        )
        return found

    def remove(self, *names: str) -> None:
        """Delete SharePods, and see their pods gone."""
        for name in names:
            self.plane.api.delete(f"{self.path}/{name}")
        left = lambda: {pod["metadata"]["name"] for pod in self.pods.all()} & set(names)  # noqa: E731
        wait_for(left, lambda pods: not pods, "pods stay")
