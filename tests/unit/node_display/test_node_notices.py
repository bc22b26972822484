"""A pod's owner is told once of each new refusal, and of waiting that leaves a container below its request."""

import msgspec
import pytest
from node_scenes import WEB, facts, status

from aliquot.node.display.notices import SPAN_S, Notices
from aliquot.status.nodes import NodeReport


def web(*, waited_s: float = 0, usage: float = 0.0, refused: int = 0, lost_mib: int = 0) -> NodeReport:
    """Only `web-1`, whose request is 0.4."""
    now = status()
    now.gpus[0].tenants[:] = [tenant for tenant in now.gpus[0].tenants if tenant.name == WEB]
    now.gpus[1].tenants.clear()
    tenant = now.gpus[0].tenants[0]
    tenant.waited_ns, tenant.usage, tenant.memory_refusals = int(waited_s * 1e9), usage, refused
    tenant.lost, tenant.not_lent = (lost_mib, ""), "runs here" if refused else ""
    return facts(status=lambda: now)


AWAY = msgspec.structs.replace(web(), gpus=(), answers=False)
MEMORY, TIME, LENT = ["GpuOutOfMemory"], ["GpuThrottled"], ["GpuMemoryNotGivenBack"]


@pytest.mark.parametrize(
    ("reasons", "pictures"),
    [
        # A refused allocation is told at the first look after it, and not again while nothing new is refused.
        ([[], MEMORY, []], [(0, web()), (5, web(refused=2)), (10, web(refused=2))]),
        # An agent that starts again does not tell old things anew.
        ([[]], [(0, web(refused=7, waited_s=1000))]),
        # Programs that were ended for what they had borrowed: at the next look, and again where it happens again.
        ([[], LENT, [], LENT], [(t, web(lost_mib=mib)) for t, mib in enumerate((0, 2048, 2048, 1024))]),
        # Most of a span waited, and less than nine tenths of the request used.
        ([[], [], TIME, []], [(t, web(waited_s=0.9 * t, usage=0.2)) for t in (0, SPAN_S - 1, SPAN_S, SPAN_S + 5)]),
        # Waiting for more than was promised is no news.
        ([[], []], [(0, web()), (SPAN_S, web(waited_s=SPAN_S, usage=0.4))]),
        # Counters that went back are those of a new arbiter and start a new span.
        ([[], [], MEMORY], [(0, web(refused=9, waited_s=50)), (5, web(refused=1)), (6, web(refused=2))]),
        # What was refused while the arbiter was away for a look is told when it answers again.
        ([[], [], MEMORY], [(0, web()), (5, AWAY), (10, web(refused=1))]),
    ],
    ids=["refused", "before the first look", "ended", "waits", "has its request", "new arbiter", "arbiter away"],
)
def test_what_is_new_is_told_once(reasons: list[list[str]], pictures: list[tuple[float, NodeReport]]):
    """Of each picture the reasons that are told of it."""
    notices = Notices()

    assert reasons == [[notice.reason for notice in notices.new_notices(now, at_s)] for at_s, now in pictures]


def test_the_text_says_whose_and_what():
    """A sentence for the pod's owner, the same each time."""
    notices = Notices()
    notices.new_notices(web(), 0)
    (memory, lent, time) = notices.new_notices(web(refused=1, waited_s=SPAN_S, lost_mib=2048), SPAN_S)

    refused = "container app requested more memory of GPU 0 than its limit of 4096 MiB"
    assert f"{refused}; it borrows no memory, for it runs here" == memory.text
    assert lent.text.startswith("container app was ended: it held 2.0 GiB beyond its guarantee that another's")
    assert "container app waits for GPU 0 most of the time and gets less than its request of 0.40" == time.text
    assert ("team", "web-1", "uid-w") == (time.owner.namespace, time.owner.pod, time.owner.uid)
