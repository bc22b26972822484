"""A share that came by a claim gets another size while it is used: the claim's annotations say which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from kit.objects import node

from aliquot.kube.claims import DRIVER, RESOURCE_CLAIMS, ResourceClaim, device_name, holder_of
from aliquot.kube.names import GPU_MEMORY, GPU_MEMORY_LIMIT, GPU_REQUEST, NODE, PENDING, PLAN, RESIZE
from aliquot.kube.plan import Applied, read_plan, write_applied
from aliquot.kube.reflector import Change
from aliquot.placement.policy import POLICIES
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.resize import Resizer

KEY = "lab/claim:p"


class Scene:
    """A node with one GPU, a claim of 0.3 on it, and what resizes it; the node's agent answers when it is told to."""

    def __init__(self, milli: int = 300) -> None:
        self.ledger = Ledger(POLICIES["aliquot"]())
        machine = node("a", 1)
        self.ledger.node_changed(Change("added", machine))
        (self.gpu,) = self.ledger.cluster.uuids
        self.documents: dict[str, Any] = {}
        for name, part in (("p", milli), ("q", 200)):
            shared = part < 1000
            given = {"request": "gpu", "driver": DRIVER, "pool": "a", "device": device_name(self.gpu, shared=shared)}
            if shared:
                given |= {"shareID": name, "consumedCapacity": {"compute": str(part // 10), "memory": "4Gi"}}
            meta = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "resourceVersion": "1", "annotations": {}}
            allocation = {"allocation": {"devices": {"results": [given]}}}
            if name == "p" or milli < 1000:
                self.documents[name] = {"metadata": meta, "status": allocation}
                self.put(name)
        api: Any = self
        self.resizer = Resizer(api, self.ledger, lambda key: None)

    def put(self, name: str) -> ResourceClaim:
        """Write a claim; the watch shows it."""
        meta = self.documents[name]["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        found = msgspec.convert(json.loads(json.dumps(self.documents[name])), ResourceClaim)
        self.ledger.claim_changed(Change("modified", found, self.ledger.claims.get(f"lab/{name}")))
        return found

    async def resize(self, **sizes: str) -> Mapping[str, str]:
        """The claim's annotations once the scheduler has decided about these sizes."""
        named = {"request": GPU_REQUEST, "memory": GPU_MEMORY, "most": GPU_MEMORY_LIMIT}
        self.notes.update({named[name]: text for name, text in sizes.items()})
        self.put("p")
        await self.resizer.reconcile(KEY)
        return self.notes

    @property
    def notes(self) -> dict[str, str]:
        found: dict[str, str] = self.documents["p"]["metadata"]["annotations"]
        return found

    def applied(self) -> None:
        """The node's agent has applied the plan."""
        plan = read_plan(self.notes)
        assert plan is not None
        data = {"applied": write_applied(Applied(plan.generation))}
        self.documents["p"]["status"]["devices"] = [{"driver": DRIVER, "data": data}]
        self.put("p")

    def held(self) -> int:
        """What the claim holds of the GPU in the ledger."""
        (allocation,) = self.ledger.allocations["uid-p"]
        return allocation.milli

    async def patch(
        self, resource: Any, name: str, body: Any, *, namespace: str, sub: str = "", repeat: bool = True
    ) -> ResourceClaim:
        """As an Api."""
        assert resource is RESOURCE_CLAIMS and name == "p" and repeat is False
        meta = self.documents[name]["metadata"]
        assert meta["resourceVersion"] == body["metadata"]["resourceVersion"]
        meta["labels"] = body["metadata"].get("labels", meta.get("labels", {}))
        notes = {**meta["annotations"], **body["metadata"]["annotations"]}
        meta["annotations"] = {key: text for key, text in notes.items() if text is not None}
        return self.put(name)


async def test_what_grows_is_reserved_before_it_is_written():
    """The plan has the next generation and the size from before; its node follows the claim by a label."""
    s = Scene()
    notes = await s.resize(request="0.6", memory="5Gi")
    plan = read_plan(notes)

    assert plan is not None and (1, [(600, 1000, 5120)], [(300, 1000, 4096)]) == (
        plan.generation,
        [(p.request_milli, p.limit_milli, p.memory_mib) for p in plan.slices],
        [(p.request_milli, p.limit_milli, p.memory_mib) for p in plan.before["p"]],
    )
    assert (600, "a") == (s.held(), s.documents["p"]["metadata"]["labels"][NODE])


async def test_what_may_be_lent_changes_as_a_size_does():
    """It is in the plan of the next generation; the same in another spelling is no change."""
    s, limits = Scene(), list[tuple[int, str]]()
    for most in ("6Gi", "6144Mi", "50%"):
        plan = read_plan(await s.resize(most=most))
        assert plan is not None
        limits.append((plan.generation, plan.containers["p"].memory_limit))

    assert [(1, "6144Mi"), (1, "6144Mi"), (2, "50%")] == limits


async def test_what_shrinks_is_free_once_its_node_has_applied_it():
    """Until the claim's status says so, the larger size stays reserved."""
    s = Scene()
    await s.resize(request="0.1")
    before = s.held()
    s.applied()

    assert (300, 100) == (before, s.held())


async def test_a_size_without_room_waits_and_the_claim_says_why():
    """The share stays as it is; once there is room it grows, and the reason goes."""
    s = Scene()
    notes = await s.resize(request="0.9")
    said = notes[RESIZE]
    s.ledger.claim_changed(Change("deleted", s.ledger.claims["lab/q"]))
    await s.resizer.reconcile(KEY)

    assert said.startswith(f"{PENDING}: Deferred: ") and "0.90" in said
    assert (900, False) == (s.held(), RESIZE in s.notes)


@pytest.mark.parametrize("wrong", ["share", "gpu", "nothing"])
async def test_a_plan_of_another_allocation_counts_for_nothing(wrong: str):
    """A claim that was given back and allocated again has what its allocation says, until it is resized again."""
    s = Scene()
    await s.resize(request="0.6")
    (given,) = s.documents["p"]["status"]["allocation"]["devices"]["results"]
    given |= {"share": {"shareID": "new"}, "gpu": {"device": device_name("GPU-other", shared=True)}}.get(wrong, {})
    holder = holder_of(s.put("p"))

    assert holder is not None
    plan = read_plan(holder.metadata.annotations)
    assert plan is not None and (600 if wrong == "nothing" else 300) == plan.slices[0].request_milli


async def test_a_whole_gpu_keeps_its_size():
    """The claim says that only a part of one GPU is resized."""
    s = Scene(milli=1000)
    notes = await s.resize(request="0.5")

    assert "Infeasible" in notes[RESIZE] and "a part of one GPU" in notes[RESIZE] and PLAN not in notes
