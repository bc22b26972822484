"""A bind gives a share once, whatever becomes of the request."""

import asyncio
import random

import httpx2
import msgspec
import pytest
from control_scene import Scene, Truth
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.objects import node
from ledger import check

from aliquot.kube.api import Api
from aliquot.kube.objects import Pod
from aliquot.kube.plan import read_plan

HALF = {"aliquot.dev/gpu-percent": 50, "aliquot.dev/gpu-memory": "4Gi"}


def scene(*faults: str, gpus: int = 1) -> Scene:
    """One node n and these fates for the binds to come."""
    truth = Truth()
    truth.faults = list(faults)
    return Scene(truth, [node("n", gpus), node("m", gpus)])


def waiting(*faults: str) -> tuple[Scene, Pod]:
    """Such a scene, and a pod that waits in it."""
    s = scene(*faults)
    pod = s.truth.create("a", HALF)
    s.catch_up()
    return s, pod


def test_node_and_plan_arrive_together():
    """A bound pod carries the plan that the ledger has."""
    s, pod = waiting()

    assert "" == asyncio.run(s.bind(pod, "n"))
    plan = read_plan(s.truth.pods["a"]["metadata"]["annotations"])
    assert plan is not None
    assert [("GPU-n-0", 500, 1000, 4096)] == [
        (p.gpu, p.request_milli, p.limit_milli, p.memory_mib) for p in plan.containers["main"].slices
    ]
    assert {"GPU-n-0": (500, 4096)} == s.reserved() == s.truth.used()


def test_a_pod_that_the_cache_does_not_have_yet_is_read():
    """kube-scheduler may be ahead of our watch."""
    s = scene()
    pod = s.truth.create("a", HALF)

    assert "" == asyncio.run(s.bind(pod, "n"))


def test_another_pod_of_the_same_name_is_not_bound():
    """The uid counts, not the name."""
    s = scene()
    old = s.truth.create("a", HALF)
    s.catch_up()
    s.truth.delete("a")
    s.truth.create("a", HALF)

    assert "no" not in s.truth.pods["a"]["spec"]
    assert "is gone" in asyncio.run(s.bind(old, "n"))
    assert {} == s.reserved()


def test_a_full_node_is_said_to_be_full():
    """What does not fit is refused with the container, the node and the device; nothing is held."""
    s = scene()
    pods = [s.truth.create(name, HALF) for name in "abc"]
    s.catch_up()
    errors = [asyncio.run(s.bind(pod, "n")) for pod in pods]

    assert ["", ""] == errors[:2]
    assert 'pod default/c: container "main": node n does not have a GPU with 0.50 and 4.0 GiB free' in errors[2]
    assert "GPU 0 has 0.00 free, 0.50 were asked" in errors[2]
    assert {"GPU-n-0": (1000, 8192)} == s.reserved()


def test_a_lost_answer_is_looked_up():
    """The bind arrived, its answer did not: reading the pod shows it, and the bind counts as done."""
    s, pod = waiting("lost after")

    assert "" == asyncio.run(s.bind(pod, "n"))
    assert s.reserved() == s.truth.used()


def test_a_lost_request_keeps_its_share_until_it_can_not_come_any_more():
    """The bind may still arrive: its share is kept, and given back when the pod is seen unbound long after."""
    s, pod = waiting("lost before")
    error = asyncio.run(s.bind(pod, "n"))
    kept = s.reserved()
    s.clock.now_s += 100
    asyncio.run(s.binder.settle())

    assert "no answer" in error
    assert {"GPU-n-0": (500, 4096)} == kept
    assert {} == s.reserved()


def test_a_request_sent_again_keeps_its_share_as_long_as_the_first():
    """The doubt counts from the last request, for that one can still arrive when the first cannot."""
    s, pod = waiting("lost before", "late")
    asyncio.run(s.bind(pod, "n"))
    s.clock.now_s += 69
    asyncio.run(s.bind(pod, "n"))
    s.clock.now_s += 5
    asyncio.run(s.binder.settle())
    kept = s.reserved()
    s.land()

    assert {"GPU-n-0": (500, 4096)} == kept == s.reserved() == s.truth.used()


def test_a_refused_request_leaves_its_share_to_the_one_before_it():
    """The API server refuses the second request, while the first, whose answer was lost, may still arrive."""
    s, pod = waiting("late", "refused")
    asyncio.run(s.bind(pod, "n"))
    asyncio.run(s.bind(pod, "n"))
    kept = s.reserved()
    s.land()

    assert {"GPU-n-0": (500, 4096)} == kept == s.reserved() == s.truth.used()


def test_a_bind_that_begins_while_an_old_one_is_settled_keeps_its_share():
    """The pod was read unbound, but a new request is on its way: the share is not given back."""
    s, pod = waiting("lost before", "late")
    asyncio.run(s.bind(pod, "n"))
    s.clock.now_s += 100

    async def both() -> None:
        await asyncio.gather(s.binder.settle(), s.bind(pod, "n"))

    asyncio.run(both())
    kept = s.reserved()
    s.land()

    assert {"GPU-n-0": (500, 4096)} == kept == s.reserved() == s.truth.used()


def test_a_pod_that_is_seen_bound_while_its_hold_is_settled_keeps_its_share():
    """The answer to the look is older than what the watch says by now: the watch is believed."""
    s, pod = waiting("late")
    asyncio.run(s.bind(pod, "n"))
    s.clock.now_s += 100

    async def both() -> None:
        looking = asyncio.ensure_future(s.binder.settle())
        await asyncio.sleep(0)
        s.land()
        await looking

    asyncio.run(both())

    assert {"GPU-n-0": (500, 4096)} == s.reserved() == s.truth.used()


def test_a_bind_is_not_sent_any_more_when_another_may_lead(monkeypatch: pytest.MonkeyPatch):
    """An API server that says "not now" for long is not asked again after the time in which nobody else can lead."""
    (s, pod), sent = waiting(), 0
    monkeypatch.setattr("aliquot.scheduler.extender.bind.POST_S", 0.05)

    async def busy(request: httpx2.Request) -> httpx2.Response:
        nonlocal sent
        if request.method == "GET":
            return httpx2.Response(200, content=msgspec.json.encode(pod))
        sent += 1
        return httpx2.Response(429, headers={"Retry-After": "1"})

    async def bind() -> str:
        async with httpx2.AsyncClient(base_url="http://x", transport=httpx2.MockTransport(busy)) as http:
            s.binder.api = Api(http)
            return await s.bind(pod, "n")

    error = asyncio.run(bind())

    assert ("no answer within" in error, 1) == (True, sent)
    assert {"GPU-n-0": (500, 4096)} == s.reserved()


def test_the_same_bind_again_is_the_same_plan():
    """After a lost request the next bind to that node sends the same plan, so it matters not which arrives."""
    s, pod = waiting("late")
    first = asyncio.run(s.bind(pod, "n"))
    second = asyncio.run(s.bind(pod, "n"))
    s.land()

    assert ("no answer" in first, second) == (True, "")
    assert {"GPU-n-0": (500, 4096)} == s.reserved() == s.truth.used()
    assert 1 == s.truth.binds


def test_a_pod_that_is_deleted_during_its_bind_holds_nothing():
    """The pod is gone before the bind arrives: the share is free at once."""
    s, pod = waiting()
    s.truth.delete("a")

    assert "is gone" in asyncio.run(s.bind(pod, "n"))
    assert {} == s.reserved()


def test_who_does_not_lead_binds_nothing():
    """Without the lease no bind is sent."""
    s, pod = waiting()
    s.binder.leads = lambda: False

    assert "does not lead" in asyncio.run(s.bind(pod, "n"))
    assert 0 == s.truth.binds


SIZES = [5, 10, 25, 33, 50, 100, 150]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_fate_of_requests_loses_or_doubles_a_share(seed: int):
    """Binds at once, lost and late requests, lagging watches, deletions and crashes at any step: at no moment is a
    GPU over its capacity, and when all has settled, ledger and pods agree."""
    chance = random.Random(seed)
    truth = Truth(chance)
    s = Scene(truth, [node("n", 2), node("m", 1)])
    made = 0

    async def play() -> None:
        nonlocal made
        for _ in range(40):
            act = chance.random()
            if act < 0.35:
                made += 1
                truth.create(f"p{made}", {"aliquot.dev/gpu-percent": chance.choice(SIZES)})
            elif act < 0.75:
                waiting = [p for p in truth.pods if not truth.pods[p]["spec"].get("nodeName")]
                some = chance.sample(waiting, min(len(waiting), chance.randint(1, 4)))
                truth.faults = [
                    chance.choice(["", "", "lost after", "lost before", "late", "unreadable"]) for _ in some
                ]
                await asyncio.gather(*(s.bind(truth.pod(p), chance.choice("nm")) for p in some))
            elif act < 0.85 and truth.pods:
                name = chance.choice(list(truth.pods))
                truth.end(name) if chance.random() < 0.5 else truth.delete(name)
            elif act < 0.9:
                truth.land()
            elif act < 0.95:
                truth.land()
                s.start()
            s.catch_up(chance.randint(0, 5))
            check(s.ledger.cluster)
            assert all(milli <= 1000 and mib <= 16384 for milli, mib in truth.used().values())
        truth.land()
        truth.faults.clear()
        s.catch_up()
        s.clock.now_s += 100
        await s.binder.settle()

    asyncio.run(play())

    assert truth.used() == s.reserved()
    assert {} == s.ledger.inconsistent
