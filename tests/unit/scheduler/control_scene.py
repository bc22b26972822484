"""An API server that keeps pods and answers binds, truthfully or not, and a scheduler over it."""

import asyncio
import contextlib
import copy
import json
import random
from collections.abc import Mapping
from typing import Any

import msgspec
from kit.objects import node

from aliquot.kube.errors import Busy, Conflict, NotFound, Unreachable
from aliquot.kube.names import PLAN
from aliquot.kube.objects import Node, Pod, Resource
from aliquot.kube.plan import read_plan
from aliquot.kube.reflector import Change
from aliquot.placement.policy import policy
from aliquot.scheduler.extender.bind import Binder, CanNotBind
from aliquot.scheduler.extender.server import Extender
from aliquot.scheduler.extender.wire import BindingArgs
from aliquot.scheduler.ledger import Ledger


class Truth:
    """What the API server has. `fault` chooses what becomes of each bind."""

    def __init__(self, chance: random.Random | None = None) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.events: list[Change[Pod]] = []
        self.faults: list[str] = []
        self.chance = chance or random.Random(0)
        self.late: list[tuple[str, dict[str, Any]]] = []
        self.protected: set[str] = set()
        """Pods that a disruption budget keeps."""
        self.binds = 0

    def create(self, name: str, limits: dict[str, Any], **meta: Any) -> Pod:
        """A pod of namespace default with one container."""
        self.version += 1
        document = {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{self.version}", **meta},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }
        self.pods[name] = document
        self._tell("added", document)
        return self.pod(name)

    def delete(self, name: str) -> None:
        """The pod is gone."""
        self._tell("deleted", self.pods.pop(name))

    def end(self, name: str) -> None:
        """The pod's containers have ended."""
        self.pods[name]["status"]["phase"] = "Succeeded"
        self._tell("modified", self.pods[name])

    def pod(self, name: str) -> Pod:
        """The pod as a client decodes it."""
        return msgspec.convert(copy.deepcopy(self.pods[name]), Pod)

    def _tell(self, kind: Any, document: dict[str, Any]) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.events.append(Change(kind, msgspec.convert(copy.deepcopy(document), Pod)))

    def apply(self, name: str, binding: dict[str, Any]) -> None:
        """A bind as the API server does it."""
        document = self.pods.get(name)
        if document is None:
            raise NotFound("no pod")
        if binding["metadata"]["uid"] != document["metadata"]["uid"] or document["spec"].get("nodeName"):
            raise Conflict("another pod, or bound already")
        document["spec"]["nodeName"] = binding["target"]["name"]
        notes = document["metadata"].setdefault("annotations", {})
        notes.update(binding["metadata"].get("annotations", {}))
        self.binds += 1
        self._tell("modified", document)

    # The client's methods

    async def request(self, method: str, path: str, *, content: bytes, repeat: bool, timeout_s: float = 10.0) -> bytes:
        """POST of a Binding, with the next fault; or of an Eviction, which is obeyed at once."""
        fault = self.faults.pop(0) if self.faults else ""
        name, binding = path.split("/")[-2], json.loads(content)
        if path.endswith("/eviction"):
            if name in self.protected:
                raise Busy("Cannot evict pod as it would violate the pod's disruption budget.")
            if "dryRun" not in binding["deleteOptions"]:
                self.delete(name)
            return b"{}"
        for _ in range(self.chance.randint(0, 3)):
            await asyncio.sleep(0)
        if fault == "lost before":
            raise Unreachable("no answer", may_have_happened=True)
        if fault == "late":
            self.late.append((name, binding))
            raise Unreachable("no answer", may_have_happened=True)
        if fault == "refused":
            raise Conflict("refused by an admission webhook")
        self.apply(name, binding)
        if fault == "lost after":
            raise Unreachable("no answer", may_have_happened=True)
        return b"{}"

    async def get(self, resource: Resource[Pod], name: str, *, namespace: str) -> Pod:
        await asyncio.sleep(0)
        if self.faults and self.faults[0] == "unreadable":
            self.faults.pop(0)
            raise Unreachable("no answer", may_have_happened=True)
        if name not in self.pods:
            raise NotFound("no pod")
        return self.pod(name)

    async def find(self, resource: Resource[Pod], name: str, *, namespace: str) -> Pod | None:
        found = self._found(name)
        await asyncio.sleep(0)
        return found

    def _found(self, name: str) -> Pod | None:
        return self.pod(name) if name in self.pods else None

    def land(self) -> None:
        """Requests that were thought lost arrive now."""
        for name, binding in self.late:
            with contextlib.suppress(NotFound, Conflict):
                self.apply(name, binding)
        self.late.clear()

    def used(self) -> dict[str, tuple[int, int]]:
        """(milli, MiB) by UUID of what the bound pods' plans give them."""
        found: dict[str, tuple[int, int]] = {}
        for document in self.pods.values():
            if document["status"]["phase"] == "Succeeded" or PLAN not in document["metadata"].get("annotations", {}):
                continue
            plan = read_plan(document["metadata"]["annotations"])
            assert plan is not None
            assert plan.node == document["spec"]["nodeName"]
            for given in plan.containers.values():
                for piece in () if given.uses else given.slices:
                    milli, mib = found.get(piece.gpu, (0, 0))
                    found[piece.gpu] = (milli + piece.request_milli, mib + piece.memory_mib)
        return found


class Clock:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall(self) -> Any:
        import datetime

        return datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC)

    async def sleep(self, wait_s: float) -> None:
        await asyncio.sleep(0)


class Scene:
    """A scheduler over a truth; its watch is as far behind as the test lets it be."""

    def __init__(self, truth: Truth, nodes: list[Node], *, named: str = "binpack") -> None:
        self.truth = truth
        self.nodes = nodes
        self.clock = Clock()
        self.named = named
        self.start()

    def start(self) -> None:
        """As after a crash: an empty ledger, filled from a list."""
        self.cache: dict[str, Pod] = {}
        self.ledger = Ledger(policy(self.named))
        self.binder = Binder(self.truth, self.ledger, self.cache.get, clock=self.clock)  # type: ignore[arg-type]
        for one in self.nodes:
            self.ledger.node_changed(Change("added", one))
        self.truth.events.clear()
        for name in self.truth.pods:
            self.tell(Change("added", self.truth.pod(name)))

    def tell(self, change: Change[Pod]) -> None:
        """One event reaches the scheduler."""
        key = change.object.metadata.key
        if change.kind == "deleted":
            self.cache.pop(key, None)
        else:
            self.cache[key] = change.object
        self.ledger.pod_changed(change)

    def catch_up(self, count: int | None = None) -> None:
        """So many events reach the scheduler, or all."""
        for _ in range(len(self.truth.events) if count is None else min(count, len(self.truth.events))):
            self.tell(self.truth.events.pop(0))

    def land(self) -> None:
        """Requests that were thought lost arrive, and the scheduler sees it."""
        self.truth.land()
        self.catch_up()

    async def bind(self, pod: Pod, node: str) -> str:
        """Bind; the error, or nothing."""
        try:
            await self.binder.bind(BindingArgs(pod.metadata.name, "default", pod.metadata.uid, node))
        except CanNotBind as error:
            return str(error)
        return ""

    def reserved(self) -> dict[str, tuple[int, int]]:
        """(milli, MiB) by UUID in the ledger."""
        cluster, found = self.ledger.cluster, {}
        for spec in cluster.nodes:
            number = cluster.node_index(spec.name)
            for g, device in enumerate(spec.gpus):
                milli = 1000 - cluster.free_milli.item(number, g)
                mib = device.memory_mib - cluster.free_mib.item(number, g)
                if milli or mib:
                    found[device.uuid] = (milli, mib)
        return found


class Asking:
    """Nodes n0, n1 and so on with so many GPUs, and kube-scheduler: it asks about one pod, binds it, takes the next."""

    def __init__(self, *gpus: int) -> None:
        self.truth = Truth()
        self.scene = Scene(self.truth, [node(f"n{i}", count) for i, count in enumerate(gpus)])
        self.start()

    def start(self) -> None:
        """A scheduler starts, as after a crash."""
        self.scene.start()
        self.extender = Extender(self.scene.ledger, self.scene.binder, self.scene.cache.get, lambda: True)
        self.held = self.extender.held
        self.held.nodes = lambda: self.scene.nodes

    def catch_up(self) -> None:
        """The scheduler sees what has happened to pods."""
        for change in self.truth.events:
            self.held.pods.changed(Change(change.kind, change.object, self.scene.cache.get(change.object.metadata.key)))
            self.scene.tell(change)
        self.truth.events.clear()

    def create(self, name: str, percent: int, *, labels: Mapping[str, str] | None = None, **spec: Any) -> str:
        """A pod that asks for so much of a GPU; its name."""
        self.truth.create(name, {"aliquot.dev/gpu-percent": percent}, labels=dict(labels or {}))
        self.truth.pods[name]["spec"] |= spec
        self.truth.events[-1] = Change("added", self.truth.pod(name))
        self.catch_up()
        return name

    def ask(self, name: str, *nodes: str) -> tuple[list[str], str]:
        """The nodes that the filter leaves of these, or of all, and what it says of the first other."""
        names = nodes or tuple(one.metadata.name for one in self.scene.nodes)
        body = {"Pod": self.truth.pods[name], "NodeNames": list(names)}
        found = json.loads(msgspec.json.encode(asyncio.run(self.extender.filter(json.dumps(body).encode()))))
        refused = {**found.get("FailedNodes", {}), **found.get("FailedAndUnresolvableNodes", {})}
        return found["NodeNames"], next(iter(refused.values()), "")

    def bind(self, name: str, to: str) -> str:
        """kube-scheduler binds a pod: the error, or nothing."""
        return asyncio.run(self.scene.bind(self.truth.pod(name), to))

    def place(self, name: str) -> str:
        """Ask and bind: the node, "" without one."""
        nodes, _ = self.ask(name)
        if nodes:
            assert "" == self.bind(name, nodes[0])
            self.catch_up()
        return nodes[0] if nodes else ""
