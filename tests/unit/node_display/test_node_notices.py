"""A pod's owner is told once of each new refusal, and of waiting that leaves a container below its request."""

import msgspec
from node_scenes import WEB, facts, status

from aliquot.node.display.notices import SPAN_S, Notices
from aliquot.status.nodes import NodeReport


def web(*, waited_s: float = 0, usage: float = 0.0, refused: int = 0) -> NodeReport:
    """Only `web-1`, whose request is 0.4."""
    now = status()
    now.gpus[0].tenants[:] = [tenant for tenant in now.gpus[0].tenants if tenant.name == WEB]
    now.gpus[1].tenants.clear()
    tenant = now.gpus[0].tenants[0]
    tenant.waited_ns, tenant.usage, tenant.memory_refusals = int(waited_s * 1e9), usage, refused
    return facts(status=lambda: now)


def told(*pictures: tuple[float, NodeReport]) -> list[list[str]]:
    """The reasons told at each picture."""
    notices = Notices()
    return [[notice.reason for notice in notices.new_notices(now, at_s)] for at_s, now in pictures]


def test_a_refused_allocation_is_told_once():
    """At the first look after it, and not again while nothing new is refused."""
    assert [[], ["GpuOutOfMemory"], []] == told((0, web()), (5, web(refused=2)), (10, web(refused=2)))


def test_what_happened_before_the_first_look_is_not_told():
    """An agent that starts again does not tell old things anew."""
    assert [[]] == told((0, web(refused=7, waited_s=1000)))


def test_waiting_below_the_request_is_told_after_a_span():
    """Most of the time waited, and less than nine tenths of the request used."""
    pictures = [(t, web(waited_s=0.9 * t, usage=0.2)) for t in (0.0, SPAN_S - 1, SPAN_S, SPAN_S + 5)]

    assert [[], [], ["GpuThrottled"], []] == told(*pictures)


def test_one_that_gets_its_request_is_not_throttled():
    """Waiting for more than was promised is no news."""
    assert [[], []] == told((0, web()), (SPAN_S, web(waited_s=SPAN_S, usage=0.4)))


def test_an_arbiter_that_started_again_makes_no_news():
    """Counters that went back start a new span."""
    pictures = [(0.0, web(refused=9, waited_s=50)), (5.0, web(refused=1)), (6.0, web(refused=2))]

    assert [[], [], ["GpuOutOfMemory"]] == told(*pictures)


def test_an_arbiter_that_is_away_for_a_look_forgets_nothing():
    """What was refused meanwhile is told when it answers again."""
    away = msgspec.structs.replace(web(), gpus=(), answers=False)

    assert [[], [], ["GpuOutOfMemory"]] == told((0, web()), (5, away), (10, web(refused=1)))


def test_the_text_says_whose_and_what():
    """A sentence for the pod's owner, the same each time."""
    notices = Notices()
    notices.new_notices(web(), 0)
    (memory, time) = notices.new_notices(web(refused=1, waited_s=SPAN_S), SPAN_S)

    assert "container app requested more memory of GPU 0 than its limit of 4096 MiB" == memory.text
    assert "container app waits for GPU 0 most of the time and gets less than its request of 0.40" == time.text
    assert ("team", "web-1", "uid-w") == (time.owner.namespace, time.owner.pod, time.owner.uid)
