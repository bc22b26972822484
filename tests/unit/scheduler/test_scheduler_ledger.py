"""The ledger follows what the API server says, in whatever order it says it."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from asking import asking
from control_scene import Scene, Truth
from kit.objects import node

from aliquot.kube.claims import DRIVER, ResourceClaim
from aliquot.kube.dialects import FOREIGN, read
from aliquot.kube.names import CPU_BIND, GPU_MEMORY_LIMIT, GPU_MODELS_MIXED, GPU_PARTS, GPU_PERCENT, PLAN
from aliquot.kube.objects import Pod
from aliquot.kube.plan import ContainerPlan, PodPlan, write_plan
from aliquot.kube.reflector import Change
from aliquot.kube.requests import PodAsk
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.placement.cluster import Placement
from aliquot.scheduler.ledger import NodeFull
from aliquot.scheduler.resize import desired
from aliquot.scheduler.verdicts import verdicts
from aliquot.topology import Topology


def planned(name: str, milli: int, *, phase: str = "Running", gpu: str = "GPU-n-0") -> Pod:
    """A pod that a plan gives a part of a GPU of node n."""
    plan = PodPlan("n", {"main": ContainerPlan((Slice(GpuUuid(gpu), milli, 1000, 1024),))})
    document: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": {PLAN: write_plan(plan)}},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, Pod)


def ask_of(annotations: dict[str, str], percent: int) -> PodAsk:
    """A pod of one container with these annotations."""
    document = {
        "metadata": {"name": "new", "namespace": "default", "uid": "new", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {GPU_PERCENT: percent}}}]},
    }
    found = read(msgspec.convert(document, Pod))
    assert found is not None
    return found


def scene(gpus: int = 1) -> Scene:
    """PlainLedger of one node, empty."""
    return Scene(Truth(), [node("n", gpus)])


@pytest.mark.parametrize(("written", "planned"), [("30Gi", "30720Mi"), ("75%", "75%"), (None, "")])
def test_the_plan_says_up_to_where_memory_is_lent(written: str | None, planned: str):
    """The node's agent knows it from there; the ledger reserves the guarantee alone."""
    s, notes = scene(), {} if written is None else {GPU_MEMORY_LIMIT: written}
    plan = s.ledger.allocate(ask_of(notes, 30), "n", 0.0).plan

    assert (planned, 300) == (plan.containers["main"].memory_limit, plan.slices[0].request_milli)
    assert s.reserved() == {"GPU-n-0": (300, plan.slices[0].memory_mib)}


def test_a_pod_without_its_memory_limit_borrows_nothing_more():
    """The plan says the guarantee then: what was lent is not yet to be freed, for it may still be called back."""
    s = scene()
    plan = s.ledger.allocate(ask_of({GPU_MEMORY_LIMIT: "30Gi"}, 30), "n", 0.0).plan
    container = {"name": "main", "resources": {"limits": {GPU_PERCENT: 30}}}
    pod = msgspec.convert({"metadata": {"name": "new"}, "spec": {"containers": [container]}}, Pod)
    after = desired(pod, plan, s.ledger.cluster, FOREIGN)

    assert (plan.slices, f"{plan.slices[0].memory_mib}Mi") == (after.slices, after.containers["main"].memory_limit)


def test_a_gpu_that_becomes_unhealthy_keeps_its_pods_and_takes_no_other_along():
    """Who is on it stays in the ledger with all that it has, the topology stays known, and newcomers go elsewhere."""
    s = scene(3)
    wired = Topology.of([["X", "NV1", "SYS"], ["NV1", "X", "SYS"], ["SYS", "SYS", "X"]])
    s.tell(Change("added", planned("a", 600)))

    s.ledger.node_changed(Change("modified", node("n", 3, wired=wired, unhealthy={"GPU-n-0": "XID 79"})))

    assert ({}, {"GPU-n-0": (600, 1024)}) == (s.ledger.inconsistent, s.reserved())
    assert wired == s.ledger.cluster.spec(0).topology
    for _ in range(8):
        placed = s.ledger.decider.place_on(asking(rest_milli=100), "n")
        assert isinstance(placed, Placement) and placed.slices[0].gpu != "GPU-n-0"


def test_who_waits_for_a_closed_device_has_it_when_it_is_open_again():
    """A pod that another scheduler put onto a device while it was closed here is reserved once it is not."""
    s = scene()
    s.ledger.close("GPU-n-0")
    s.tell(Change("added", planned("a", 600)))
    s.ledger.reopen("GPU-n-0")

    assert ({}, {"GPU-n-0": (600, 1024)}) == (s.ledger.inconsistent, s.reserved())


def test_a_node_under_a_new_name_has_its_devices_once_the_old_one_is_gone():
    """Two nodes that claim one device: the first is believed, and the second is as soon as the first is gone."""
    s = scene()
    again = node("n2", 1, uuids=["GPU-n-0"], spec={"unschedulable": True})
    s.ledger.node_changed(Change("added", again))
    before = (set(s.ledger.faulty), set(s.ledger.cluster.index))
    s.ledger.node_changed(Change("deleted", s.nodes[0]))

    assert ({"n2"}, {"n"}) == before
    assert (set(), {"n2": 0}) == (set(s.ledger.faulty), dict.fromkeys(s.ledger.cluster.index, 0))
    assert not s.ledger.cluster.open[s.ledger.cluster.node_index("n2")]


@pytest.mark.parametrize(("mixed", "models"), [("false", {"V100"}), ("true", {"V100", "A100"})])
def test_equal_parts_of_one_container_are_on_one_model(mixed: str, models: set[str]):
    """Parts go together onto the model that has room for all of them, unless they may be mixed."""
    s = scene(0)
    names = {"GPU-n-0": "A100", "GPU-n-1": "V100", "GPU-n-2": "V100"}
    s.ledger.node_changed(Change("modified", node("n", [*names.values()])))
    s.tell(Change("added", planned("a", 300)))  # the fullest GPU, which packing would like, is the only A100
    ask = ask_of({GPU_PARTS: "2", GPU_MODELS_MIXED: mixed}, percent=100)

    assert ["n"] == verdicts(s.ledger, ask, ["n"]).fitting
    plan = s.ledger.allocate(ask, "n", 0.0).plan

    assert models == {names[piece.gpu] for piece in plan.containers["main"].slices}


def test_containers_are_bound_to_the_cores_that_the_fewest_are_bound_to():
    """Tenants of a GPU are spread over its near cores, also those of one pod, and cores are free again at the end."""
    s = scene(0)
    wired = Topology.of([["X"]], cores=[(8, 9, 10, 11)])
    s.ledger.node_changed(Change("modified", node("n", 1, wired=wired)))

    def bound(name: str, cores: int) -> tuple[int, ...]:
        ask = replace(ask_of({CPU_BIND: str(cores)}, percent=10), uid=name, key=f"default/{name}")
        return s.ledger.allocate(ask, "n", 0.0).plan.containers["main"].cores

    assert [(8, 9), (10, 11), (8,), (9, 10)] == [bound("a", 2), bound("b", 2), bound("c", 1), bound("d", 2)]
    s.ledger.forget(s.ledger.allocations["b"][0])
    assert (11,) == bound("e", 1)


def claimed(consumed: str, *, node: str = "n", allocated: bool = True) -> ResourceClaim:
    """A claim on the shared device of the GPU of a node."""
    capacity = {"compute": consumed, "memory": "1Gi"}
    device = {"driver": DRIVER, "pool": node, "device": "gpu-n-0-shared", "consumedCapacity": capacity}
    status = {"allocation": {"devices": {"results": [device]}}} if allocated else {}
    return msgspec.convert(
        {"metadata": {"name": "c", "namespace": "default", "uid": "c"}, "status": status}, ResourceClaim
    )


def test_what_claims_hold_is_not_given_to_pods():
    """An allocated claim holds what it consumes, also on a node that is seen later, until it is deallocated or gone."""
    s = scene()
    taken = claimed("60")
    s.ledger.claim_changed(Change("added", taken))
    held = s.reserved()
    with pytest.raises(NodeFull):
        s.ledger.allocate(ask_of({}, 50), "n", 0.0)
    s.ledger.node_changed(Change("deleted", node("n", 1)))
    s.ledger.node_changed(Change("added", node("n", 1)))
    again = s.reserved()
    s.ledger.claim_changed(Change("modified", claimed("60", allocated=False), taken))
    freed = s.reserved()
    s.ledger.claim_changed(Change("added", claimed("60", node="later")))
    s.ledger.claim_changed(Change("deleted", claimed("60", node="later")))

    assert [{"GPU-n-0": (600, 1024)}] * 2 == [held, again]
    assert ({}, {}) == (freed, s.ledger.inconsistent)
    assert s.ledger.allocate(ask_of({}, 50), "n", 0.0)
