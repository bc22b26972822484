"""Claims that Aliquot places: one writer, nodes that Kubernetes allows, and no node that is tried again and again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from kit.objects import node

from aliquot.kube.claims import PLACED_CLASS, RESOURCE_CLAIMS, TEMPLATES, ResourceClaim, claim_plan, slice_name
from aliquot.kube.clock import Clock
from aliquot.kube.errors import Conflict, NotFound, Unreachable
from aliquot.kube.names import CLAIMS, GATE
from aliquot.kube.objects import PODS, ApiObject, Node, Pod, without_nulls
from aliquot.kube.reflector import Change
from aliquot.model.requests import Slice
from aliquot.placement.policy import POLICIES
from aliquot.scheduler.admission.rules import Admission
from aliquot.scheduler.groups import Groups, HeldGroups
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.operator.claims import FINALIZER, REFUSED_S, ClaimAllocator

CAPACITY = {"cpu": "4", "memory": "16Gi", "pods": "110"}


class Store(dict[str, Any]):
    """Objects by key, iterated as a reflector is."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(list(self.values()))


class StoppedClock(Clock):
    """Goes on when it is told to."""

    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


class Scene:
    """An API server of pods and claims, and the allocator that follows it."""

    def __init__(self, *nodes: Node) -> None:
        self.ledger = Ledger(POLICIES["aliquot"]())
        self.nodes, self.pods, self.documents = Store(), Store(), dict[str, dict[str, Any]]()
        self.version, self.faults, self.events, self.writes = 0, list[Exception](), list[str](), list[str]()
        self.quick = False
        self.waits: list[tuple[str, str, list[str]]] = []
        caches: Any = (self, self.ledger, self.nodes, self.pods)
        self.needed = dict[str, int]()
        held, native = (kind(self.ledger, lambda: self.clock.now_s, self._needed) for kind in (HeldGroups, Groups))
        self.held = held
        self.allocator = ClaimAllocator(
            *caches,
            lambda: True,
            lambda pod, ask, failed: self.waits.append((pod.metadata.name, ask.key, failed)),
            native,
            held,
        )
        self.allocator.clock = self.clock = StoppedClock()
        self.allocator.templates = Store()  # type: ignore[assignment]
        self.allocator.slices = Store({slice_name(each.metadata.name, "devices"): each for each in nodes})  # type: ignore[assignment]
        for each in nodes:
            self.nodes[each.metadata.name] = each
            self.ledger.node_changed(Change("added", each))

    def claim(self, name: str, *, kind: str = PLACED_CLASS, count: int = 1, said: Any = None, **amounts: str) -> None:
        """A claim of one request."""
        exactly = {"deviceClassName": kind, "count": count, "capacity": {"requests": amounts}}
        devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
        if said:
            devices["config"] = [{"opaque": {"driver": "gpu.aliquot.dev", "parameters": said}}]
        meta = {"name": name, "namespace": "lab", "uid": f"uid-{name}"}
        self.put_claim(name, {"metadata": meta, "spec": {"devices": devices}, "status": {}})

    def put_claim(self, name: str, document: dict[str, Any]) -> ResourceClaim:
        """Write a claim; the watch shows it."""
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        old = self.ledger.claims.get(f"lab/{name}")
        self.documents[name] = document
        found = msgspec.convert(json.loads(json.dumps(document)), ResourceClaim)
        self.allocator.claim_changed(Change("modified" if old else "added", found, old))
        return found

    def pod(
        self, name: str, *claims: str, cpu: str = "1", gates: tuple[str, ...] = (GATE,), labels: Any = None, **spec: Any
    ) -> None:
        """A pod that waits, with the claim of its own name without any."""
        uses = [{"name": claim, "resourceClaimName": claim} for claim in claims or [name]]
        containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}, "claims": [{"name": uses[0]["name"]}]}}]
        whole = {
            "containers": containers,
            "resourceClaims": uses,
            "schedulingGates": [{"name": gate} for gate in gates],
        }
        meta = {"name": name, "namespace": "lab", "uid": f"uid-pod-{name}", "resourceVersion": "1", "labels": labels}
        self.put_pod(without_nulls({"metadata": meta, "spec": whole | spec}))

    async def _needed(self, group: str) -> int:
        return self.needed[group]

    def put_pod(self, document: Any) -> None:
        """Write a pod; the watch shows it."""
        found = msgspec.convert(document, Pod)
        self.held.pods.changed(Change("modified", found, self.pods.get(found.metadata.key)))
        self.pods[found.metadata.key] = found
        self.allocator.pod_changed(Change("modified", found))

    def allocation(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.documents[name]["status"].get("allocation") or {}
        return found

    def node_of(self, name: str) -> str:
        """Where a claim is allocated; empty where it is not."""
        results = self.allocation(name).get("devices", {}).get("results", [{}])
        return str(results[0].get("pool", ""))

    def gates(self, name: str) -> list[str]:
        return [gate.name for gate in self.pods[f"lab/{name}"].spec.scheduling_gates]

    def give_back(self, name: str) -> None:
        """Kube-scheduler takes an allocation away."""
        self.put_claim(name, self.documents[name] | {"status": {}})

    # The client's methods

    async def apply(self, resource: Any, body: Mapping[str, Any], *, manager: str, sub: str = "") -> ResourceClaim:
        name = body["metadata"]["name"]
        document = json.loads(json.dumps(self.documents[name]))
        document["metadata"]["finalizers"] = body["metadata"]["finalizers"]
        self.writes.append(f"finalizer {name}")
        return self.put_claim(name, document)

    async def patch(
        self, resource: Any, name: str, body: Any, *, namespace: str, sub: str = "", repeat: bool = True
    ) -> Any:
        if self.faults:
            raise self.faults.pop(0)
        if resource is PODS:
            self.writes.append(f"gate {name}")
            pod = msgspec.to_builtins(self.pods[f"{namespace}/{name}"])
            pod["spec"]["schedulingGates"] = body["spec"]["schedulingGates"] or []
            self.put_pod(pod)
            return self.pods[f"{namespace}/{name}"]
        document = json.loads(json.dumps(self.documents[name]))
        if document["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("another version")
        self.writes.append(f"allocation {name}")
        written = self.put_claim(name, document | {"status": body["status"]})
        if self.quick:
            self.quick = False
            self.give_back(name)
        return written

    async def find(self, resource: Any, name: str, *, namespace: str) -> ResourceClaim | None:
        assert resource is RESOURCE_CLAIMS
        return self.ledger.claims.get(f"{namespace}/{name}")

    async def create(self, resource: Any, body: Any, *, namespace: str) -> None:
        if resource is TEMPLATES:
            meta = {"namespace": namespace, "uid": body["metadata"]["name"], **body["metadata"]}
            template = msgspec.convert({"metadata": meta}, ApiObject)
            self.allocator.templates[template.metadata.key] = template  # type: ignore[index]
        else:
            self.events.append(body.message)

    async def delete(self, resource: Any, name: str, *, namespace: str, uid: str) -> None:
        if not self.allocator.templates.pop(f"{namespace}/{name}", None):  # type: ignore[attr-defined]
            raise NotFound(name)


def machine(name: str, gpus: int = 2, **more: Any) -> Node:
    """A node with GPUs and 4 CPUs."""
    return node(name, gpus, status={"allocatable": CAPACITY}, **more)


async def test_a_claim_gets_what_it_asks_for_and_then_its_pod_goes_on():
    """The finalizer is there before the allocation, as the claim's controller wants it, and the gate opens last."""
    s = Scene(machine("a"))
    s.claim("p", compute="30", said={"limit": "0.6", "apiVersion": "aliquot.dev/v1alpha1", "kind": "ShareParameters"})
    s.pod("p", gates=("other", GATE))
    await s.allocator.place()
    assert [] == s.writes  # what keeps the pod would keep its GPUs idle
    s.pod("p")
    await s.allocator.place()

    assert ["finalizer p", "allocation p", "gate p"] == s.writes
    assert [FINALIZER] == s.documents["p"]["metadata"]["finalizers"] and [] == s.gates("p")
    assert "allocationTimestamp" in s.allocation("p") and "a" == s.node_of("p")
    plan = claim_plan(s.ledger.claims["lab/p"], {})
    assert plan is not None and [Slice("GPU-a-0", 300, 600, 4915)] == [  # type: ignore[arg-type]
        msgspec.structs.replace(piece, gpu="GPU-a-0") for piece in plan.slices
    ]


async def test_whole_gpus_and_shares_of_all_requests_are_in_one_ledger():
    """What one claim has, no other gets; a claim that fits nowhere says why, for each kind of node."""
    s = Scene(machine("a"))
    for name, compute, count in (("one", "100", 1), ("part", "60", 1), ("late", "60", 1), ("two", "100", 2)):
        s.claim(name, compute=compute, count=count)
        s.pod(name)
    await s.allocator.place()

    assert ["a", "a", "", ""] == [s.node_of(name) for name in ("one", "part", "late", "two")]
    devices = [s.allocation(name)["devices"]["results"][0]["device"] for name in ("one", "part")]
    assert [False, True] == [device.endswith("-shared") for device in devices] and 2 == len(set(devices))
    assert 2 == len(s.events) and all(event.startswith("0/1 nodes with GPUs can take it: 1 ") for event in s.events)


async def test_a_pod_goes_only_where_kubernetes_lets_it():
    """CPU, also of pods that are placed and not bound yet, taints, selectors and the number of pods are looked at."""
    tainted = machine("b", spec={"taints": [{"key": "reserved", "effect": "NoSchedule"}]})
    s = Scene(machine("a"), tainted, machine("c", metadata={"labels": {"disk": "fast"}}))
    for name, more in (
        ("one", {"cpu": "3"}),
        ("two", {"cpu": "3", "nodeSelector": {"disk": "fast"}}),
        ("three", {"cpu": "3"}),
    ):
        s.claim(name, compute="10")
        s.pod(name, **more)
    await s.allocator.place()

    assert ["a", "c", ""] == [s.node_of(name) for name in ("one", "two", "three")]
    assert "reserved:NoSchedule" in s.events[0] and "of cpu free" in s.events[0]


async def test_a_node_that_kube_scheduler_does_not_take_is_not_tried_again_at_once():
    """The pod goes elsewhere, then waits; a minute later the first node is tried once more: no livelock."""
    s = Scene(machine("a"), machine("b"))
    s.claim("p", compute="30")
    s.pod("p")
    nodes = []
    for _ in range(4):
        await s.allocator.place()
        nodes.append(s.node_of("p"))
        s.give_back("p")
    s.clock.now_s += REFUSED_S + 1
    await s.allocator.place()

    assert {"a", "b"} == set(nodes[:2]) and ["", ""] == nodes[2:]
    assert "did not take the pod" in s.events[0] and s.node_of("p") in ("a", "b")


async def test_a_pod_that_no_scheduler_binds_is_placed_elsewhere():
    """Where kube-scheduler keeps the allocation and the pod, the allocation is taken back after a minute."""
    s = Scene(machine("a"), machine("b"))
    s.claim("p", compute="30")
    stuck = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    s.pod("p", gates=())
    await s.allocator.place()
    first = s.node_of("p")
    s.put_pod(msgspec.to_builtins(s.pods["lab/p"]) | {"status": stuck})
    seen = []
    for _ in range(4):
        await s.allocator.place()
        seen.append(s.node_of("p"))
        s.clock.now_s += REFUSED_S / 2 + 1

    assert [first, first, ""] == seen[:3] and seen[3] not in (first, "")


async def test_an_allocation_may_be_given_back_before_its_write_is_answered():
    """The watch is ahead of the answer then, and what the answer says is not taken for the claim's state."""
    s = Scene(machine("a"), machine("b"))
    s.claim("p", compute="30")
    s.pod("p")
    s.allocator.claims.has_seen = lambda version: int(version) <= s.version  # type: ignore[method-assign]
    s.quick = True
    await s.allocator.place()
    await s.allocator.place()

    assert s.node_of("p") in ("a", "b") and ["finalizer p", "allocation p", "gate p"] == s.writes[:3]


async def test_what_no_pod_uses_is_taken_back():
    """The controller of claims frees those that a pod had; a pod that went before its bind leaves its claim to us."""
    s = Scene(machine("a"))
    s.claim("p", compute="30")
    s.pod("p")
    await s.allocator.place()
    s.allocator.pod_changed(Change("deleted", s.pods.pop("lab/p")))
    await s.allocator.place()

    assert "" == s.node_of("p") and not s.ledger.allocations


async def test_the_claims_of_a_pod_are_on_one_node_or_nowhere():
    """A pod of two claims needs a node for both; a claim that another pod has brought to a node decides for all."""
    s = Scene(machine("a", 1), machine("b", 2))
    for name in ("x", "y"):
        s.claim(name, compute="70")
    s.pod("p", "x", "y")
    await s.allocator.place()
    assert ["b", "b"] == [s.node_of(name) for name in ("x", "y")]

    s.claim("z", compute="70")
    s.pod("q", "x", "z")
    await s.allocator.place()
    assert "" == s.node_of("z") and [GATE] == s.gates("q")


@pytest.mark.parametrize("kind", ["coscheduling", "native"])
async def test_a_group_is_placed_whole_or_not_at_all(kind: str):
    """Where some of its pods find no room nothing is written and nothing reserved, and each says why; where fewer are
    there than it needs, they wait; with room for all, all go on."""
    s = Scene(machine("a", 1), machine("b", 1))
    group, more = "lab/podgroups/g", dict[str, Any](labels={"scheduling.x-k8s.io/pod-group": "g"})
    if kind == "native":
        group, more = "lab/g", {"schedulingGroup": {"podGroupName": "g"}}
    s.needed[group] = 3
    for name in ("x", "y", "z", "other"):
        s.claim(name, compute="60")
    for name in ("x", "y"):
        s.pod(name, **more)
    await s.allocator.place()
    few = s.events[:]
    s.clock.now_s += 11
    s.pod("z", **more)
    await s.allocator.place()
    cramped = s.events[2:]
    s.pod("other")
    await s.allocator.place()

    assert ["3 pods of its group are needed at once, 2 are there"] * 2 == few
    assert 3 == len(cramped) and all(text.startswith("2 of 3 pods of the group have room now; 0/2") for text in cramped)
    assert ["finalizer other", "allocation other", "gate other"] == s.writes
    s.nodes["c"] = added = machine("c", 2)
    s.allocator.slices[slice_name("c", "devices")] = added  # type: ignore[index]
    s.ledger.node_changed(Change("added", added))
    await s.allocator.place()
    assert 3 == len([name for name in ("x", "y", "z") if s.node_of(name) and not s.gates(name)])
    assert [] == s.waits


async def test_what_was_never_written_is_free_when_its_claim_is_gone():
    """Of a group of two the second claim is not written any more, since both are deleted: nothing stays reserved."""
    s = Scene(machine("a", 2))
    s.needed["lab/g"] = 2
    for name in ("x", "y"):
        s.claim(name, compute="60")
        s.pod(name, schedulingGroup={"podGroupName": "g"})
    s.faults = [Conflict("another version")]
    await s.allocator.place()
    assert [] == s.writes[2:] and 1 == len(s.ledger.allocations)
    for name in ("x", "y"):
        s.allocator.claim_changed(Change("deleted", s.ledger.claims[f"lab/{name}"]))

    assert {} == s.ledger.allocations


@pytest.mark.parametrize("fault", [Unreachable("no answer", may_have_happened=True), Conflict("another version")])
async def test_what_becomes_of_a_lost_write_is_found_out(fault: Exception):
    """A share is not given to others while its write may arrive; one that was refused is free at once."""
    s = Scene(machine("a", 1))
    s.claim("p", compute="60")
    s.pod("p")
    s.faults = [fault]
    await s.allocator.place()
    kept = bool(s.ledger.allocations.get("uid-p"))
    await s.allocator.place()

    assert (kept, "a", []) == (isinstance(fault, Unreachable), s.node_of("p"), s.gates("p"))


async def test_what_cannot_be_judged_is_refused_in_words():
    """Impossible amounts or parameters would give another share than was meant: the pod waits and says so."""
    s = Scene(machine("a"))
    s.claim("p", compute="130")
    s.claim("q", compute="30", said={"limt": "0.5"})
    for name in ("p", "q"):
        s.pod(name)
    await s.allocator.place()

    assert ["claim p: compute 130 is more than one GPU; a share is at most 100"] == s.events[:1]
    assert "limt" in s.events[1] and [GATE] == s.gates("q")


async def test_an_important_pod_that_finds_no_room_asks_for_evictions():
    """The evictor is told of the claim and of the nodes where less important ones hold what it needs."""
    s = Scene(machine("a", 1))
    for name, priority in (("low", 0), ("high", 1000)):
        s.claim(name, compute="60")
        s.pod(name, priority=priority, gates=())
        await s.allocator.place()

    assert [("high", "lab/claim:high", ["a"])] == s.waits


async def test_a_template_lives_as_long_as_pods_name_it():
    """It is made once for all pods that ask the same, and of the annotation only what asks for our classes is read."""
    s = Scene()
    limits = {"aliquot.dev/gpu-percent": "30"}
    document = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}
    made = Admission().claim({"object": document}, "placed").changed
    assert made is not None
    for name in ("p", "q"):
        made["metadata"] |= {"name": name, "namespace": "lab", "uid": name}
        s.put_pod(made)
        await s.allocator.make_templates(f"lab/{name}")
    forged = json.loads(json.dumps(made).replace(PLACED_CLASS, "admin.example"))
    assert CLAIMS in forged["metadata"]["annotations"]
    s.put_pod(forged | {"metadata": forged["metadata"] | {"name": "forged"}})
    await s.allocator.make_templates("lab/forged")
    (template,) = s.allocator.templates

    assert template.metadata.name == made["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    await s.allocator.remove_templates("lab")
    assert [template] == list(s.allocator.templates)
    s.pods.clear()
    await s.allocator.remove_templates("lab")
    assert [] == list(s.allocator.templates)
