"""SharePods, vGPUs and quotas on the test cluster: making them and waiting for what becomes of them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cluster.api import ApiError
from cluster.control_plane import ControlPlane
from cluster.ours import OurScheduler
from cluster.ours import install_crds as install_crds
from scheduling import pods_of

ALIQUOT = "/apis/aliquot.dev/v1alpha1"


@contextmanager
def operating(plane: ControlPlane, port: int, *flags: str) -> Iterator[OurScheduler]:
    """Our scheduler with its operator, and the stock one told to ask it."""
    ours = OurScheduler(plane, port, "--holder-image", "busybox", *flags)
    ours.part.start()
    ours.configure()
    try:
        yield ours
    finally:
        ours.part.stop()
        plane.schedule_with({})


def sharepod(name: str, request: str | float = "0.3", **gpu: Any) -> dict[str, Any]:
    """A SharePod of one container; `node` names a node, `template` adds to its pod's spec."""
    node, template = gpu.pop("node", ""), gpu.pop("template", {})
    inner = {"containers": [{"name": "main", "image": "busybox"}], "terminationGracePeriodSeconds": 0, **template}
    spec = {"gpu": {"request": request, **gpu}, "template": {"spec": inner}, **({"nodeName": node} if node else {})}
    return {"apiVersion": "aliquot.dev/v1alpha1", "kind": "SharePod", "metadata": {"name": name}, "spec": spec}


def create(plane: ControlPlane, namespace: str, *sharepods: dict[str, Any]) -> None:
    """Create SharePods."""
    plane.api.create(f"{ALIQUOT}/namespaces/{namespace}/sharepods", *sharepods)


def look(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    """A SharePod as it is now."""
    found: dict[str, Any] = plane.api.get(f"{ALIQUOT}/namespaces/{namespace}/sharepods/{name}")
    return found


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


def wait_phase(plane: ControlPlane, namespace: str, name: str, phase: str) -> dict[str, Any]:
    """A SharePod once it is in a phase."""
    get = lambda: look(plane, namespace, name)  # noqa: E731
    found: dict[str, Any] = wait_for(get, lambda s: s.get("status", {}).get("phase") == phase, f"{name} not {phase}")
    return found


def remove(plane: ControlPlane, namespace: str, *names: str) -> None:
    """Delete SharePods, and see their pods gone."""
    for name in names:
        plane.api.delete(f"{ALIQUOT}/namespaces/{namespace}/sharepods/{name}")

    def left() -> set[str]:
        return {pod["metadata"]["name"] for pod in pods_of(plane, namespace)} & set(names)

    wait_for(left, lambda pods: not pods, "pods stay")
