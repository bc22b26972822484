"""Our scheduler beside the real kube-scheduler, and what must hold whatever happens."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cluster.control_plane import ControlPlane
from cluster.ours import PORT as PORT
from cluster.ours import ROOT as ROOT
from cluster.ours import OurScheduler as OurScheduler

from aliquot.kube.api import Api
from aliquot.kube.objects import PODS, Pod
from aliquot.kube.plan import read_plan
from aliquot.kube.reflector import Change, Reflector

PROFILE = "aliquot-scheduler"
PLAN = "aliquot.dev/plan"


def gpu_pod(
    name: str, *limits: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """A pod whose containers c0, c1... have these limits; scheduled by our profile."""
    containers = [
        {"name": f"c{i}", "image": "busybox", "resources": {"limits": values}} for i, values in enumerate(limits)
    ]
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"schedulerName": PROFILE, "terminationGracePeriodSeconds": 0, "containers": containers, **spec},
    }


def percent(number: int, memory: str = "") -> dict[str, Any]:
    """Limits in our words."""
    return {"aliquot.dev/gpu-percent": number} | ({"aliquot.dev/gpu-memory": memory} if memory else {})


class Pods:
    """The pods of a namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.plane, self.namespace = plane, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, *pods: dict[str, Any]) -> None:
        """Make pods, one after another as fast as it goes."""
        self.plane.api.create(self.path, *pods)

    def delete(self, name: str) -> None:
        """Let a pod go."""
        self.plane.api.delete(f"{self.path}/{name}")

    def all(self) -> list[dict[str, Any]]:
        """Every pod that is there."""
        found: list[dict[str, Any]] = self.plane.api.get(self.path)["items"]
        return found

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self.plane.pod(self.namespace, name)

    def staying(self) -> list[dict[str, Any]]:
        """The pods that nobody asked to go."""
        return [pod for pod in self.all() if not pod["metadata"].get("deletionTimestamp")]

    def bound(self) -> list[dict[str, Any]]:
        """The pods that have a node."""
        return [pod for pod in self.all() if pod["spec"].get("nodeName")]

    def waiting(self) -> list[dict[str, Any]]:
        """The pods that have none."""
        return [pod for pod in self.all() if not pod["spec"].get("nodeName")]

    def is_bound(self, name: str) -> bool:
        """Whether a pod has a node."""
        return bool(self[name]["spec"].get("nodeName"))

    def told(self, name: str) -> str:
        """What a pod's conditions say."""
        return " ".join(c.get("message", "") for c in self[name]["status"].get("conditions", []))

    def wait_bound(self, count: int, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """The bound pods, once they are so many."""
        deadline = time.monotonic() + timeout_s
        while len(bound := self.bound()) < count:
            if time.monotonic() > deadline:
                reasons = {self.told(pod["metadata"]["name"]) for pod in self.waiting()}
                raise TimeoutError(f"{len(bound)} of {count} pods are bound; the others: {reasons}")
            time.sleep(0.05)
        return bound

    def agree(self, scheduler: OurScheduler, timeout_s: float = 30.0) -> None:
        """Annotations and ledger say the same, soon after the last change."""
        eventually(
            lambda: check_promises(self.plane, self.all()) == ledger_of(scheduler),
            "the ledger and the annotations differ",
            timeout_s,
        )


@contextmanager
def asking(ours: OurScheduler, *more: str, flags: Sequence[str] = ()) -> Iterator[OurScheduler]:
    """Our scheduler, started, and kube-scheduler told to ask it."""
    ours.part.start()
    ours.configure("", *more, flags=flags)
    try:
        yield ours
    finally:
        ours.part.stop()


def slices_of(pod: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(UUID, milli, MiB) of a bound pod by its plan; containers that use what others have are not counted."""
    plan = json.loads(pod["metadata"]["annotations"][PLAN])
    assert plan["n"] == pod["spec"]["nodeName"]
    return [(s[0], s[1], s[3]) for given in plan["c"].values() if "u" not in given for s in given["s"]]


def devices_of(plane: ControlPlane) -> dict[str, tuple[str, int]]:
    """Node and MiB of every GPU by UUID."""
    found = {}
    for node in plane.api.get("/api/v1/nodes")["items"]:
        described = json.loads(node["metadata"]["annotations"].get("aliquot.dev/gpus", '{"devices": []}'))
        for device in described["devices"]:
            found[device["uuid"]] = (node["metadata"]["name"], device["memory_mib"])
    return found


def check_promises(plane: ControlPlane, pods: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """No GPU is over its capacity, every slice is on its pod's node; returns (milli, MiB) used by UUID."""
    devices, used = devices_of(plane), {}
    for pod in pods:
        if not pod["spec"].get("nodeName") or pod["status"].get("phase") in ("Succeeded", "Failed"):
            assert PLAN not in pod["metadata"].get("annotations", {}) or pod["spec"].get("nodeName")
            continue
        for uuid, milli, mib in slices_of(pod):
            assert devices[uuid][0] == pod["spec"]["nodeName"]
            before = used.get(uuid, (0, 0))
            used[uuid] = (before[0] + milli, before[1] + mib)
    for uuid, (milli, mib) in used.items():
        assert milli <= 1000, f"{uuid} is given away {milli} times a thousandth"
        assert mib <= devices[uuid][1]
    return used


def ledger_of(scheduler: OurScheduler) -> dict[str, tuple[int, int]]:
    """(milli, MiB) used by UUID, in the scheduler's own ledger; devices in use only."""
    found = {}
    for node in scheduler.get("/inspect")["nodes"]:
        for d in node["devices"]:
            if d["free_milli"] < 1000 or d["free_mib"] < d["memory_mib"]:
                found[d["uuid"]] = (1000 - d["free_milli"], d["memory_mib"] - d["free_mib"])
    return found


class Witness:
    """Follows every pod of a namespace from the watch and sees whether a GPU was ever over its capacity."""

    def __init__(self, pods: Pods) -> None:
        self.faults: list[str] = []
        self.changes = 0
        self._devices = devices_of(pods.plane)
        self._holds: dict[str, list[tuple[str, int, int]]] = {}
        self._used: dict[str, tuple[int, int]] = {}
        self._kubeconfig, self._namespace = str(pods.plane.kubeconfig), pods.namespace
        self._stop = threading.Event()
        self._synced = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()), daemon=True)

    def __enter__(self) -> Witness:
        self._thread.start()
        assert self._synced.wait(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)

    async def _follow(self) -> None:
        async with Api.connect(self._kubeconfig) as api:
            reflector = Reflector(api, PODS, self._changed, namespace=self._namespace)
            following = asyncio.create_task(reflector.run())
            await reflector.synced.wait()
            self._synced.set()
            while not self._stop.is_set():
                await asyncio.sleep(0.05)
            following.cancel()

    def _changed(self, change: Change[Pod]) -> None:
        self.changes += 1
        pod = change.object
        plan = read_plan(pod.metadata.annotations)
        if (plan is not None) != bool(pod.spec.node_name):
            self.faults.append(f"{pod.metadata.key} has a plan without a node, or a node without a plan")
        pieces: list[tuple[str, int, int]] = []
        if change.kind != "deleted" and not pod.ended and plan is not None:
            given = [piece for given in plan.containers.values() if not given.uses for piece in given.slices]
            pieces = [(p.gpu, p.request_milli, p.memory_mib) for p in given]
        before = self._holds.pop(pod.metadata.uid, [])
        if pieces:
            self._holds[pod.metadata.uid] = pieces
        for sign, held in ((-1, before), (1, pieces)):
            for uuid, milli, mib in held:
                used = self._used.get(uuid, (0, 0))
                self._used[uuid] = (used[0] + sign * milli, used[1] + sign * mib)
        for uuid, _, _ in pieces:
            milli, mib = self._used[uuid]
            if milli > 1000 or mib > self._devices[uuid][1]:
                self.faults.append(f"after {pod.metadata.key}: {uuid} is given away {milli} milli, {mib} MiB")


def eventually(look: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait for something that must come true."""
    deadline = time.monotonic() + timeout_s
    while not look():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
