"""The ledger against anything that pods and nodes may say: never broken, never over, and nobody is forgotten."""

import random
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger import check as check_cluster

from aliquot.kube.inventory import BadInventory, read_inventory
from aliquot.kube.names import GPUS, PLAN
from aliquot.kube.objects import Node, Pod
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.kube.reflector import Change
from aliquot.placement.policy import policy
from aliquot.scheduler.allocations import Allocation, reservations
from aliquot.scheduler.ledger import Ledger

SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


def a_node(chance: random.Random, name: str) -> Node:
    """One of up to two devices, of which a twin may have the same."""
    whose = chance.choice([name] * 4 + ["n", "m"])
    devices = [
        {"index": i, "uuid": f"GPU-{whose}-{i}", "model": "V100", "memory_mib": 1000}
        for i in range(chance.choice([0, 1, 2, 2]))
    ]
    text = chance.choice([msgspec.json.encode({"v": 1, "devices": devices}).decode()] * 4 + ["", "{}"])
    return msgspec.convert(
        {"metadata": {"name": name, "annotations": {GPUS: text}}, "spec": {"unschedulable": chance.random() < 0.2}},
        Node,
    )


def a_plan(chance: random.Random) -> str:
    """As a bind writes it, mostly; or as somebody else does."""
    containers: dict[str, Any] = {}
    if chance.random() < 0.7:
        piece = [chance.choice(["GPU-n-0", "GPU-m-0"]), chance.choice([300, 500, 600, 1000]), 1000, 100]
        return msgspec.json.encode({"v": 1, "n": "n", "c": {"a": {"s": [piece]}}}).decode()
    for container in chance.sample(["a", "b", "a#2"], chance.randint(0, 3)):
        slices = [
            [
                chance.choice(["GPU-n-0", "GPU-n-1", "GPU-m-0", "GPU-x-0", "nobody's"]),
                chance.choice([1, 300, 500, 600, 1000, 1000, 0, -5, 2000]),
                chance.choice([1000, 1000, 600, 10**9]),
                chance.choice([0, 100, 500, 1000, 10**30, -1]),
            ]
            for _ in range(chance.randint(0, 3))
        ]
        given = {"s": slices, "p": chance.choice([1, 1, 1, 2, 0, 10**9]), "g": chance.choice(["", "", "team"])}
        containers[container] = given | chance.choice([{}, {}, {"u": "a"}, {"l": chance.sample(["p", "", "q"], 2)}])
    good = msgspec.json.encode({"v": 1, "n": chance.choice("nmz"), "c": containers}).decode()
    return chance.choice([good] * 9 + ["{", '{"v":2}'])


def a_pod(chance: random.Random, uid: str) -> Pod:
    """One that is bound or not, with a plan or without, at any time of its life."""
    notes = {PLAN: a_plan(chance)} if chance.random() < 0.8 else {}
    return msgspec.convert(
        {
            "metadata": {"name": uid, "namespace": "default", "uid": uid, "annotations": notes},
            "spec": {"nodeName": chance.choice(["n", "n", "m", "z", ""])},
            "status": {"phase": chance.choice(["Running"] * 5 + ["Succeeded"])},
        },
        Pod,
    )


def fits_now(ledger: Ledger, allocation: Allocation) -> bool:
    """Whether what a plan gives could be reserved; the ledger is as before afterwards."""
    done: list[str] = []
    try:
        for number, (_, placement, ask) in enumerate(reservations(allocation)):
            ledger.cluster.reserve(f"~try/{number}", placement, ask)
            done.append(f"~try/{number}")
    except Exception:
        return False
    finally:
        for name in done:
            ledger.cluster.release(name)
    return True


def check(ledger: Ledger, pods: dict[str, Pod], nodes: dict[str, Node]) -> None:
    """All that must hold after every event."""
    check_cluster(ledger.cluster)
    allocations = {allocation for held in ledger.allocations.values() for allocation in held}
    assert allocations == {allocation for name in "nmz" for allocation in ledger.on_node(name)}
    for allocation in allocations:
        pod = pods[allocation.uid]
        assert (pod.spec.node_name, False) == (allocation.node, pod.ended)
        if allocation.node in ledger.cluster.index and not allocation.tenants and tenancies_of(allocation):
            assert allocation.uid in ledger.inconsistent and not fits_now(ledger, allocation)
    for uid, pod in pods.items():
        if uid not in ledger.allocations and pod.spec.node_name in ledger.cluster.index and not pod.ended:
            assert not readable(pod)
    for name in ledger.faulty:
        assert name in nodes and name not in ledger.cluster.index
        assert not well_told(nodes[name]) or any(uuid in ledger.cluster.uuids for uuid in well_told(nodes[name]))


def well_told(node: Node) -> list[str]:
    """The devices of a node that tells of them as it should."""
    try:
        inventory = read_inventory(node.metadata.annotations)
    except BadInventory:
        return []
    return [device.uuid for device in inventory.devices] if inventory is not None else []


def tenancies_of(allocation: Allocation) -> bool:
    """Whether a plan stands for any reservation, or for one that cannot be."""
    try:
        return bool(reservations(allocation))
    except Exception:
        return True


def readable(pod: Pod) -> bool:
    """Whether the pod has a plan that can be read."""
    try:
        return read_plan(pod.metadata.annotations) is not None
    except BadPlan:
        return False


@SETTINGS
@given(st.integers(0, 2**32))
def test_whatever_is_told_the_ledger_is_whole(seed: int):
    """In any order of nodes and pods, with plans that nobody of ours wrote: no device is over its capacity, every pod
    that fits is reserved, who does not is a stray, and what one takes away the other may have."""
    chance, ledger = random.Random(seed), Ledger(policy("binpack"))
    pods, nodes = dict[str, Pod](), dict[str, Node]()
    for _ in range(25):
        if chance.random() < 0.35:
            name = chance.choice("nm")
            if name in nodes and chance.random() < 0.4:
                ledger.node_changed(Change("deleted", nodes.pop(name)))
            else:
                nodes[name] = a_node(chance, name)
                ledger.node_changed(Change("modified", nodes[name]))
        else:
            uid = chance.choice("abcdef")
            old = pods.pop(uid, None)
            if old is not None and (chance.random() < 0.5 or old.spec.node_name):
                ledger.pod_changed(Change("deleted", old))
            else:
                pods[uid] = a_pod(chance, uid)
                ledger.pod_changed(Change("modified", pods[uid]))
        check(ledger, pods, nodes)
    for pod in pods.values():
        ledger.pod_changed(Change("deleted", pod))

    assert ({}, {}, {}) == (ledger.allocations, ledger.inconsistent, ledger._awaiting_node)
    assert not ledger.cluster.tenants
