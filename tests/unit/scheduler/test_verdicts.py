"""Filter, scores and preemption over the ledger."""

import asyncio
import random
from contextlib import AbstractContextManager
from typing import Any

import msgspec
import pytest
from asking import asking
from control_scene import Scene, Truth
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.objects import node
from work import counted

from aliquot.kube.dialects import read
from aliquot.kube.names import GPUS
from aliquot.kube.objects import Node, Pod
from aliquot.kube.reflector import Change
from aliquot.kube.requests import PodAsk
from aliquot.model.ids import GpuUuid
from aliquot.model.requests import Slice
from aliquot.placement.entries import Placement
from aliquot.placement.policy import policy
from aliquot.placement.saved import dump
from aliquot.scheduler.extender.preempt import victims
from aliquot.scheduler.extender.wire import MetaPod, MetaVictims
from aliquot.scheduler.ledger import Ledger
from aliquot.scheduler.verdicts import indices_of, scores, verdicts


def pod(*limits: dict[str, Any], name: str = "x", priority: int = 0, **annotations: str) -> Pod:
    """A pod whose containers have these limits."""
    containers = [{"name": f"c{i}", "resources": {"limits": values}} for i, values in enumerate(limits)]
    notes = {f"aliquot.dev/{k.replace('_', '-')}": v for k, v in annotations.items()}
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes},
        "spec": {"containers": containers, "priority": priority},
    }
    return msgspec.convert(document, Pod)


def percent(number: int, memory: str = "") -> dict[str, Any]:
    """Limits in our words."""
    return {"aliquot.dev/gpu-percent": number} | ({"aliquot.dev/gpu-memory": memory} if memory else {})


def ask(made: Pod) -> PodAsk:
    found = read(made)
    assert found is not None
    return found


def scene() -> Scene:
    """Node n with two V100 and node m with one A100 of 80 GiB."""
    return Scene(Truth(), [node("n", 2), node("m", 1, "NVIDIA A100-SXM4-80GB", 81920)])


def put(s: Scene, name: str, on: str, limits: dict[str, Any], **meta: Any) -> Pod:
    """A pod bound to a node."""
    made = s.truth.create(name, limits, **meta)
    s.catch_up()
    assert "" == asyncio.run(s.bind(made, on))
    s.catch_up()
    return made


def test_verdicts_take_no_scores(monkeypatch: pytest.MonkeyPatch):
    """Which nodes have room is known without the policy, whose scores take long after it has learned."""
    scene = Scene(Truth(), [node("n", 2), node("m", 1)])

    def never(*_: object) -> None:
        pytest.fail("a score was computed")

    monkeypatch.setattr(scene.ledger.policy, "scores", never)
    ask = read(pod({"aliquot.dev/gpu-percent": 50}))
    assert ask is not None

    assert ["n", "m"] == verdicts(scene.ledger, ask, ["n", "m", "o"]).fitting


@pytest.mark.parametrize(
    ("made", "fitting", "failed", "never"),
    [
        (pod(percent(30)), ["n", "m"], {}, {"other": "has no GPUs that Aliquot knows of"}),
        (pod(percent(30), gpu_model="A100"), ["m"], {}, {"n": "has no GPU of model A100"}),
        (pod(percent(30, "40Gi")), ["m"], {}, {"n": "has no GPU with 40.0 GiB"}),
        (pod(percent(200)), ["n"], {}, {"m": "has 1 GPU, 2 were asked"}),
        (pod(percent(30), gpu_uuid="GPU-n-1"), ["n"], {}, {"m": "has no GPU called GPU-n-1"}),
        (pod(percent(30), gpu_model_not="V100"), ["m"], {}, {"n": "has no GPU of model NVIDIA A100-SXM4-80GB"}),
        (
            pod(percent(80), percent(80)),
            ["n"],
            {"m": "has room for each container alone, not for all"},
            {},
        ),
        (
            pod(percent(60), gpu_parts="2"),
            ["n"],
            {"m": "has room for each container alone, not for all"},
            {},
        ),
    ],
)
def test_each_node_fits_or_has_its_reason(made: Pod, fitting: list[str], failed: dict[str, str], never: dict[str, str]):
    """All fitting nodes are named; the others have a reason, and those that could never fit are told apart."""
    found = verdicts(scene().ledger, ask(made), ["n", "m", "other"])

    assert fitting == found.fitting
    assert failed == found.failed
    assert never.items() <= found.unresolvable.items()


def test_a_full_node_is_told_apart_from_an_unsuited_one():
    """Where others are in the way an eviction could help; the reason says what was asked."""
    s = scene()
    put(s, "a", "n", percent(80))
    put(s, "b", "n", percent(80))
    found = verdicts(s.ledger, ask(pod(percent(30, "4Gi"))), ["n"])

    assert {"n": "does not have a GPU with 0.30 and 4.0 GiB free"} == found.failed


@pytest.mark.parametrize(
    ("changed", "temporary", "says"),
    [
        (node("n", 1, spec={"unschedulable": True}), True, "takes no pods (cordoned)"),
        (
            node("n", 1, unhealthy={"GPU-n-0": "XID 79"}),
            True,
            "does not have a GPU with 0.30 free that is well",
        ),
        (msgspec.convert({"metadata": {"name": "n", "annotations": {GPUS: "{"}}}, Node), False, "cannot be read"),
    ],
    ids=["cordoned", "unhealthy", "its inventory is garbage"],
)
def test_a_node_that_takes_nobody_says_why(changed: Node, temporary: bool, says: str):
    """What may pass is told apart from what does not, and the other nodes go on."""
    s = scene()
    s.ledger.node_changed(Change("modified", changed))
    found = verdicts(s.ledger, ask(pod(percent(30))), ["n", "m"])

    assert says in (found.failed if temporary else found.unresolvable)["n"]
    assert ["m"] == found.fitting


def test_the_best_node_alone_has_the_highest_score():
    """The node that placement would choose has 10, all others less; equal ones differ by rank."""
    s = Scene(Truth(), [node(name) for name in "abcd"])
    put(s, "p", "c", percent(50))
    numbers = indices_of(s.ledger, ["a", "b", "c", "d", "other"])
    found = scores(s.ledger, ask(pod(percent(50))), numbers).tolist()

    assert 10 == found[2] == max(found)
    assert all(score <= 9 for i, score in enumerate(found) if i != 2)
    assert 0 == found[4]
    assert [9, 9, 10, 9, 0] == scores(s.ledger, ask(pod(percent(50))), numbers, near=True).tolist()


def test_what_a_pod_has_already_is_its_room():
    """A pod whose bind was lost is shown the node where its share is still held, and sent there."""
    s = scene()
    made = s.truth.create("a", percent(100))
    s.catch_up()
    s.truth.faults = ["lost before"]
    asyncio.run(s.bind(made, "m"))
    other = s.truth.create("b", percent(100))

    assert "m" in verdicts(s.ledger, ask(made), ["n", "m"]).fitting
    assert [0, 10] == scores(s.ledger, ask(made), indices_of(s.ledger, ["n", "m"])).tolist()
    assert "m" not in verdicts(s.ledger, ask(other), ["n", "m"]).fitting


def test_what_is_a_small_part_of_large_gpus_is_not_taken_for_one_of_small_ones():
    """A container's memory next to one that takes a part of the GPU's is counted for the GPUs where it is most."""
    s = Scene(Truth(), [node("n", 1), node("m", 1, "NVIDIA A100-SXM4-80GB", 81920)])
    made = pod(percent(50, "12Gi"), percent(30))

    assert ["m"] == verdicts(s.ledger, ask(made), ["n", "m"]).fitting


def proposed(*uids: str) -> dict[str, MetaVictims]:
    """kube-scheduler's proposal for node n."""
    return {"n": MetaVictims([MetaPod(uid) for uid in uids])}


def test_the_fewest_go_and_on_one_gpu():
    """To what kube-scheduler proposed is added who shares that GPU, not pods on others."""
    s = scene()
    names = {}
    for name, size in (("big0", 60), ("big1", 60), ("small0", 38), ("small1", 38)):
        names[name] = put(s, name, "n", percent(size))
    made = pod(percent(70), priority=10)
    beside = next(h for h in s.ledger.allocations[names["small1"].metadata.uid])
    gpu = beside.plan.containers["main"].slices[0].gpu
    mate = next(
        n
        for n in ("big0", "big1")
        if s.ledger.allocations[names[n].metadata.uid][0].plan.containers["main"].slices[0].gpu == gpu
    )
    found = asyncio.run(victims(s.ledger, made, ask(made), proposed(names["small1"].metadata.uid), s.cache.get))

    assert {names["small1"].metadata.uid, names[mate].metadata.uid} == {v.uid for v in found["n"].pods or []}


def test_who_need_not_go_stays():
    """kube-scheduler wanted two that are on different GPUs; those on one GPU free as much, so the other one stays."""
    s = scene()
    uids = {n: put(s, n, "n", percent(size)).metadata.uid for n, size in (("a", 60), ("b", 60), ("c", 38), ("d", 38))}
    made = pod(percent(70), priority=10)
    found = asyncio.run(victims(s.ledger, made, ask(made), proposed(uids["c"], uids["d"]), s.cache.get))

    assert 2 == len(found["n"].pods or [])
    assert 1 == len({uids["a"], uids["b"]} & {v.uid for v in found["n"].pods or []})


def test_looking_for_victims_changes_nothing():
    """Preemption tries evictions on the ledger and takes them back, so tenants and versions of nodes are as before."""
    s = scene()
    for name in ("a", "b"):
        put(s, name, "n", percent(60))
    cluster = s.ledger.cluster
    before = (dump(cluster), cluster.version.tolist())
    made = pod(percent(70), priority=10)

    assert ["n"] == list(asyncio.run(victims(s.ledger, made, ask(made), {"n": MetaVictims([])}, s.cache.get)))
    assert before == (dump(cluster), cluster.version.tolist())


def test_many_nodes_hold_up_nobody():
    """Others have their turn between two nodes, and what was found when the time is over is the answer."""
    names = [f"n{number}" for number in range(20)]
    s = Scene(Truth(), [node(name, 1) for name in names])
    for name in names:
        put(s, f"low-{name}", name, percent(60))
    made = pod(percent(70), priority=10)
    everywhere = {name: MetaVictims([]) for name in names}
    turns = 0

    async def both(max_s: float) -> dict[str, MetaVictims]:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        found = await victims(s.ledger, made, ask(made), everywhere, s.cache.get, max_s=max_s)
        other.cancel()
        return found

    assert names == list(asyncio.run(both(60)))
    assert turns >= len(names)
    assert names[:1] == list(asyncio.run(both(0)))


def test_a_node_whose_time_is_over_has_one_gpu_tried(monkeypatch: pytest.MonkeyPatch):
    """Victims that are least for one GPU are the answer for a node that takes long; in time every GPU is tried."""
    s = Scene(Truth(), [node("n", 8)])
    for number in range(16):
        put(s, f"low{number}", "n", percent(45))
    made = pod(percent(70), priority=10)
    trials = 0
    trial = s.ledger.cluster.trial

    def counted() -> AbstractContextManager[None]:
        nonlocal trials
        trials += 1
        return trial()

    monkeypatch.setattr(s.ledger.cluster, "trial", counted)
    costs = []
    for max_s in (0, 60):
        before = trials
        found = asyncio.run(victims(s.ledger, made, ask(made), proposed(), s.cache.get, max_s=max_s))
        costs.append((len(found["n"].pods or []), trials - before))
    (hasty, few), (best, many) = costs

    assert (2, 2) == (hasty, best) and many > 7 * few


def test_nobody_goes_where_it_does_not_help():
    """A node on which even all evictions make no room is left out; equals are not evicted."""
    s = scene()
    put(s, "a", "n", percent(60))
    put(s, "b", "n", percent(60))
    helpless = pod(percent(70), priority=0)
    large = pod(percent(300), priority=10)

    assert {} == asyncio.run(victims(s.ledger, helpless, ask(helpless), proposed(), s.cache.get))
    assert {} == asyncio.run(victims(s.ledger, large, ask(large), proposed(), s.cache.get))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_verdicts_are_what_a_bind_would_find(seed: int):
    """For any ledger and pod, a node is called fitting exactly when a bind there succeeds; asking changes nothing."""
    chance = random.Random(seed)
    s = Scene(Truth(), [node("n", 2), node("m", 1, "NVIDIA A100-SXM4-80GB", 81920)])
    for i in range(chance.randint(0, 8)):
        made = s.truth.create(f"p{i}", percent(chance.choice([10, 30, 50, 70])))
        s.catch_up()
        asyncio.run(s.bind(made, chance.choice("nm")))
    sizes = [percent(chance.choice([10, 30, 50, 80, 100, 150])) for _ in range(chance.randint(1, 3))]
    labels = {"anti_affinity": "x"} if chance.random() < 0.3 else {}
    wished = ask(pod(*sizes, **labels))
    before = s.reserved()
    found = verdicts(s.ledger, wished, ["n", "m"])

    assert before == s.reserved()
    for name in ("n", "m"):
        try:
            s.ledger.forget(s.ledger.allocate(wished, name, 0.0))
            fits = True
        except Exception:
            fits = False
        assert fits == (name in found.fitting)
    assert before == s.reserved()


def busy(nodes: int) -> Ledger:
    """A ledger of nodes with 8 GPUs, of which every other has tenants."""
    chance, ledger = random.Random(1), Ledger(policy("aliquot"))
    for number in range(nodes):
        ledger.node_changed(Change("added", node(f"n{number}", 8)))
        for g in range(8):
            if milli := chance.choice([0, 0, 0, 100, 300, 500, 700, 900]):
                ask = asking(rest_milli=milli, gpu_mib=16 * milli)
                slices = (Slice(GpuUuid(f"GPU-n{number}-{g}"), milli, milli, 16 * milli),)
                ledger.cluster.reserve(f"d/{number}-{g}", Placement(f"n{number}", slices), ask)
    return ledger


@pytest.mark.parametrize(
    ("containers", "notes"),
    [
        ([percent(5)] * 64, {}),
        ([percent(8)] * 64, {}),
        ([percent(100)] * 64, {}),
        ([percent(number // 4 + 1) for number in range(64)], {}),
        ([percent(1, "2Gi"), percent(30, "64Mi")] * 32, {}),
        ([percent(2)] * 64, {"affinity": "x"}),
        ([percent(2)] * 64, {"exclusion": "x"}),
        ([percent(64)], {"gpu_parts": "64"}),
    ],
)
def test_a_pod_of_many_containers_costs_no_trial_of_every_node(containers: list[dict[str, Any]], notes: dict[str, str]):
    """What one filter costs is bounded, whatever the containers of the pod are and however many nodes there are."""
    ledger, wished = busy(200), ask(pod(*containers, **notes))
    names = list(ledger.cluster.index)
    with counted() as calls:
        verdicts(ledger, wished, names)

    assert 200_000 > calls.count


def test_nodes_that_were_not_tried_are_refused_as_such_and_come_first_in_the_next_call(monkeypatch: pytest.MonkeyPatch):
    """Where the columns do not tell, so many nodes are tried in a call; the others are refused for that, till next."""
    monkeypatch.setattr("aliquot.scheduler.verdicts.MAX_PLACEMENTS", 2 * 8)
    ledger, wished = busy(20), ask(pod(percent(5), percent(5), affinity="x"))
    names = list(ledger.cluster.index)
    untried, tried = "was not tried for 2 requests at once: its turn comes with the next call", set[str]()
    for _ in range(3):
        found = verdicts(ledger, wished, names)
        new = {name for name in names if found.failed.get(name) != untried}
        assert 8 == len(new)
        tried |= new

    assert set(names) == tried
