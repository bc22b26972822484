"""Room for a more important pod among fragments: the least goes, the room is kept, and nobody goes in vain."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from control_scene import Scene, Truth
from kit.objects import node

from aliquot.kube.claims import DRIVER, PLACED_CLASS, ResourceClaim, claims_ask
from aliquot.kube.dialects import read
from aliquot.kube.objects import Pod
from aliquot.kube.reflector import Change
from aliquot.kube.requests import PodAsk
from aliquot.placement.quota import Quota, Quotas
from aliquot.scheduler.extender.preempt import GIVE_UP_S, PATIENCE_S, Evictor
from aliquot.scheduler.verdicts import verdicts


def percent(number: int) -> dict[str, Any]:
    """Limits in our words."""
    return {"aliquot.dev/gpu-percent": number}


class Stage:
    """Node n with two GPUs, each held to 60 by a lesser pod, and an evictor over it."""

    def __init__(self, *sizes: int) -> None:
        self.scene = Scene(Truth(), [node("n", 2)])
        for i, size in enumerate(sizes or (60, 50)):
            made = self.scene.truth.create(f"low{i}", percent(size))
            self.scene.catch_up()
            assert "" == asyncio.run(self.scene.bind(made, "n"))
        self.scene.catch_up()
        self.evictor = Evictor(
            self.scene.truth,  # type: ignore[arg-type]
            self.scene.ledger,
            self.scene.cache.get,
            clock=self.scene.clock,
        )

    def wish(self, size: int = 70, **spec: Any) -> tuple[Pod, PodAsk]:
        """A waiting pod of priority 10, of which a filter was just refused."""
        self.scene.truth.create("high", percent(size))
        self.scene.truth.pods["high"]["spec"] |= {"priority": 10, **spec}
        self.scene.truth._tell("modified", self.scene.truth.pods["high"])
        self.scene.catch_up()
        made = self.scene.truth.pod("high")
        ask = read(made)
        assert ask is not None
        self.evictor.waits(made, ask, verdicts(self.scene.ledger, ask, ["n"]).failed)
        return made, ask

    def later(self, wait_s: float = PATIENCE_S) -> None:
        """Some time, and one look."""
        self.scene.clock.now_s += wait_s
        asyncio.run(self.evictor.step())

    def hear(self) -> None:
        """The watch tells what happened."""
        for change in list(self.scene.truth.events):
            self.scene.tell(change)
            if change.kind == "deleted":
                self.evictor.gone(change.object)
        self.scene.truth.events.clear()

    @property
    def left(self) -> set[str]:
        """Pods that are still there."""
        return set(self.scene.truth.pods)


def test_the_smallest_that_makes_room_goes_and_the_room_is_kept():
    """One of two could go; the smaller one does, and nobody else gets the room meanwhile."""
    stage = Stage(60, 50)
    made, ask = stage.wish()
    stage.later()
    stage.hear()
    greedy = stage.scene.truth.create("greedy", percent(60))
    other = read(greedy)
    assert other is not None

    assert {"low0", "high", "greedy"} == stage.left
    assert [] == verdicts(stage.scene.ledger, other, ["n"]).fitting
    assert ["n"] == verdicts(stage.scene.ledger, ask, ["n"]).fitting
    assert "" == asyncio.run(stage.scene.bind(made, "n"))


@pytest.mark.parametrize(
    ("size", "spec", "leads", "wait_s"),
    [
        (70, {}, True, PATIENCE_S / 2),
        (300, {}, True, PATIENCE_S),
        (70, {"preemptionPolicy": "Never"}, True, PATIENCE_S),
        (70, {}, False, PATIENCE_S),
    ],
    ids=["it has not waited", "it does not fit on the empty node", "it must not preempt", "another leads by now"],
)
def test_nobody_goes_for_a_pod_that(size: int, spec: dict[str, Any], leads: bool, wait_s: float):
    """No pod is evicted before kube-scheduler had its time, in vain, against the policy, or by who leads no more."""
    stage = Stage()
    stage.wish(size, **spec)
    stage.evictor.leads = lambda: leads
    stage.later(wait_s)

    assert {"low0", "low1", "high"} == stage.left


@pytest.mark.parametrize(
    ("nominal", "lent", "left"),
    [
        (600, 700, {"low1", "lender"}),
        (600, 600, {"low0", "low1", "lender"}),
        (1100, 700, {"low0", "low1", "lender"}),
    ],
    ids=["it is within its nominal quota", "it would borrow itself", "none of the others borrows"],
)
def test_a_nominal_quota_is_given_back_by_the_newest_pod_that_borrows(nominal: int, lent: int, left: set[str]):
    """A pod of no priority evicts the newest pod of a namespace that holds more than is nominal, if it is within its
    own nominal quota, and has the room."""
    stage = Stage(50, 60)
    truth, ledger = stage.scene.truth, stage.scene.ledger
    for day, name in enumerate(("low1", "low0")):
        truth.pods[name]["metadata"]["creationTimestamp"] = f"2026-05-0{day + 1}T00:00:00Z"
        truth._tell("modified", truth.pods[name])
    cohort = (("default", nominal), ("lender", lent))
    ledger.decider.quotas = Quotas(Quota(name, cohort="all", nominal=(milli, None)) for name, milli in cohort)
    made = truth.create("lender", percent(70), namespace="lender")
    stage.scene.catch_up()
    ask = read(made)
    assert ask is not None
    stage.evictor.waits(made, ask, verdicts(ledger, ask, ["n"]).failed)
    stage.later()
    stage.hear()

    assert left == stage.left
    assert ("low0" not in left) is bool(ledger.allocations.get(ask.uid))


def test_a_wish_ends_with_its_pod():
    """When the waiting pod is deleted nobody goes for it."""
    stage = Stage()
    stage.wish()
    stage.scene.truth.delete("high")
    stage.hear()
    stage.later()

    assert {"low0", "low1"} == stage.left
    assert {} == stage.evictor.preemptors


def test_a_wish_in_vain_is_given_up():
    """When who was asked to go does not, the wish ends and can be noted anew."""
    stage = Stage()
    stage.wish()
    stage.later()
    stage.later(GIVE_UP_S + 1)

    assert {} == stage.evictor.preemptors


def test_whom_a_disruption_budget_keeps_is_not_chosen():
    """The smaller one may not be evicted: nobody is asked in vain, and the larger one goes in its place."""
    stage = Stage(60, 50)
    stage.scene.truth.protected.add("low1")
    stage.wish(55)
    stage.later()
    assert {"low0", "low1", "high"} == stage.left
    stage.later(0.5)

    assert {"low1", "high"} == stage.left


def test_where_a_budget_keeps_all_nobody_goes():
    """One of two that would have to go is kept: the other does not go in vain, and the wish ends."""
    stage = Stage(60, 50)
    stage.scene.truth.protected.add("low0")
    stage.wish(200)
    for _ in range(3):
        stage.later()

    assert {"low0", "low1", "high"} == stage.left
    assert {} == stage.evictor.preemptors


def test_the_pod_of_a_claim_goes_as_any_other_and_makes_room_for_claims():
    """A claim's share is found under the claim; the eviction is of the pod that uses it, by the pod's own uid."""
    scene = Scene(Truth(), [node("n", 1)])
    user = scene.truth.create("user", {})
    scene.catch_up()
    consumed = {"compute": "60", "memory": "1Gi"}
    result = {"driver": DRIVER, "pool": "n", "device": "gpu-n-0-shared", "consumedCapacity": consumed}
    held = {"reservedFor": [{"resource": "pods", "name": "user", "uid": user.metadata.uid}]}
    status = held | {"allocation": {"devices": {"results": [result]}}}
    meta = {"name": "share", "namespace": "default", "uid": "claim"}
    holding = msgspec.convert({"metadata": meta, "status": status}, ResourceClaim)
    scene.ledger.claim_changed(Change("added", holding))
    evictor = Evictor(
        scene.truth,  # type: ignore[arg-type]
        scene.ledger,
        lambda key: scene.cache.get("default/user" if "claim:" in key else key),
        clock=scene.clock,
    )
    made = scene.truth.create("high", {})
    made.spec.priority = 10
    scene.cache["default/high"] = made
    exactly = {"deviceClassName": PLACED_CLASS, "capacity": {"requests": {"compute": "60"}}}
    asking = {"metadata": {"name": "own"}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    ask = claims_ask([msgspec.convert(asking, ResourceClaim)])
    assert ask is not None
    evictor.waits(made, replace(ask, key="default/claim:own", uid="own"), ["n"])
    scene.clock.now_s += PATIENCE_S
    asyncio.run(evictor.step())

    assert {"high"} == set(scene.truth.pods)
    scene.ledger.claim_changed(Change("deleted", holding))
    asyncio.run(evictor.step())
    assert ["n"] == [held.node for held in scene.ledger.allocations["own"]]
