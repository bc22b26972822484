"""What the scheduler program knows beside its books, as the pages want it: waiting pods, quotas, vGPUs; and the pages'
server next to it.

Everything of the program is read in its own event loop. Pages are made in other threads; where they must look at the
books themselves they hop to that loop and wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from aliquot.kube.custom import VGPU
from aliquot.kube.dialects import read
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.objects import Pod
from aliquot.kube.requests import BadPod, Known
from aliquot.kube.reviews import Reviews
from aliquot.model.quantities import MILLI, BadQuantity, parse_memory, parse_milli
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.quota import Quota
from aliquot.scheduler.books import CLOSED
from aliquot.scheduler.program import quotas_of
from aliquot.web.access import TokenDoor
from aliquot.web.api import Pool, QuotaLine, Vgpu, Workload
from aliquot.web.app import Door, everyone
from aliquot.web.asking import AGENT_PORT, AskingThread, addresses
from aliquot.web.cluster import Beside, ClusterFacts
from aliquot.web.guard import LOOPBACK
from aliquot.web.log import defect
from aliquot.web.rights import Seen
from aliquot.web.serve import WebServer
from aliquot.web.sessions import Sessions
from aliquot.web.signin import SignIn

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler

T = TypeVar("T")
LOOK_S: Final = 1.0
PLACES_S: Final = 5.0
UNSEEN_S: Final = 10.0
AGE_STEP_S: Final = 10.0
HOP_S: Final = 10.0


class Kept(Protocol):
    """Pods by `namespace/name`."""

    def get(self, key: str) -> Pod | None:
        """One of them."""


@dataclass(frozen=True)
class WebSettings:
    """Where the pages of a cluster are, who sees what, and where nodes' agents are asked.

    `hosts` are names by which the server may be addressed beside the loopback's. Without `tokens` everybody who reaches
    it sees everything, or with `namespaces` only the names of these: the read-only mode that an administrator sets.
    With `tokens` everybody signs in and sees what Kubernetes lets them list. `agent_port` 0 asks no agents.
    """

    host: str = "127.0.0.1"
    port: int = 0
    title: str = "cluster"
    hosts: frozenset[str] = frozenset()
    namespaces: frozenset[str] | None = None
    tokens: bool = False
    tls: tuple[str, str] | None = None
    agent_namespace: str = ""
    agent_port: int = AGENT_PORT


@contextlib.asynccontextmanager
async def dashboard_beside(scheduler: Scheduler, settings: WebSettings) -> AsyncIterator[str]:
    """The pages of a running scheduler program while it runs; gives their address.

    Raises:
        PortTaken: another program listens there.
        BadKubeConfig: tokens are asked for and the API server's authority can not be read.
    """
    facts, beside = facts_of(scheduler, settings.title)
    async with contextlib.AsyncExitStack() as stack:
        door, signing_in = _door(scheduler, settings, facts, stack)
        asking = None
        if settings.agent_port:
            asking = AskingThread(watched=lambda: time.monotonic() - facts.asked_s < UNSEEN_S)
            stack.push_async_callback(asyncio.to_thread, asking.close)
        looking = asyncio.create_task(_keep_looking(scheduler, facts, beside, settings, asking))
        stack.callback(looking.cancel)
        server = await asyncio.to_thread(
            WebServer,
            door,
            host=settings.host,
            port=settings.port,
            hosts=LOOPBACK | settings.hosts,
            signing_in=signing_in,
            tls=settings.tls,
        )
        stack.push_async_callback(asyncio.to_thread, server.close)
        yield server.url


def _door(
    scheduler: Scheduler, settings: WebSettings, facts: ClusterFacts, stack: contextlib.AsyncExitStack
) -> tuple[Door, SignIn | None]:
    if not settings.tokens:
        return everyone(facts if settings.namespaces is None else Seen(facts, settings.namespaces)), None
    reviews = Reviews.connect(scheduler.settings.kubeconfig, scheduler.settings.context)
    stack.callback(reviews.close)
    sessions = Sessions()
    door = TokenDoor(facts, reviews, sessions)
    stack.callback(door.close)
    return door, SignIn(door, sessions)


def facts_of(scheduler: Scheduler, title: str) -> tuple[ClusterFacts, Beside]:
    """The facts of a scheduler; call it in the program's loop."""
    loop, beside = asyncio.get_running_loop(), Beside()

    def calmly(work: Callable[[], Any]) -> Any:
        async def there() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(there(), loop).result(HOP_S)

    beside.age_s = ages(scheduler.pods)
    facts = ClusterFacts(
        scheduler.books.decider, beside, title=title, calmly=calmly, hidden=lambda name: name.startswith(CLOSED)
    )
    return facts, beside


def gather(scheduler: Scheduler, beside: Beside, now_s: float) -> None:
    """Take what the program knows now beside its books."""
    beside.waiting = list(waiting_pods(scheduler.pods, scheduler.binder.dialects, scheduler.books.known, now_s))
    bounds = [quota for held in scheduler.quotas for quota in quotas_of(held)]
    beside.quota = quota_lines(scheduler.books.cluster, bounds)
    operator = scheduler.operator
    beside.pool = Pool(scheduler.settings.operator.policy, [vgpu_facts(vgpu) for vgpu in operator.pool.vgpus()])


def waiting_pods(
    pods: Iterable[Pod], dialects: Mapping[str, Dialect], known: Known, now_s: float
) -> Iterator[tuple[Workload, Ask]]:
    """Pods that ask for GPUs and have no node, each with what it asks for and what kube-scheduler last said of it."""
    for pod in pods:
        if pod.spec.node_name or pod.ended:
            continue
        try:
            asked = read(pod, dialects)
        except BadPod:
            continue
        seats = asked.seats(known) if asked else ()
        if asked is None or not seats:
            continue
        request = sum(seat.ask.milli for seat in seats)
        limit = sum(seat.ask.ceiling_milli for seat in seats)
        said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
        yield (
            Workload(asked.key, "Pod", "Pending", request, limit, [], age_of(pod, now_s), message=said),
            seats[0].ask,
        )


def ages(pods: Kept) -> Callable[[str], float]:
    """Seconds by tenant since its pod was made, in steps, so that a page is not new every second."""

    def age_s(tenant: str) -> float:
        pod = pods.get(tenant.rpartition("/")[0])
        return age_of(pod, time.time()) // AGE_STEP_S * AGE_STEP_S if pod is not None else 0.0

    return age_s


def age_of(pod: Pod, now_s: float) -> float:
    """Seconds since the pod was made; 0 where that is not known."""
    made = pod.metadata.creation_timestamp
    try:
        return max(0.0, now_s - datetime.fromisoformat(made).astimezone(UTC).timestamp()) if made else 0.0
    except ValueError:
        return 0.0


def quota_lines(cluster: Cluster, bounds: Iterable[Quota]) -> list[QuotaLine]:
    """Every bound with what is used of it; one for all models is a line with the model `any`."""
    lines = []
    for bound in bounds:
        used = [amount for model, amount in cluster.usage(bound.namespace).items() if bound.covers(model)]
        milli, mib = sum(amount[0] for amount in used), sum(amount[1] for amount in used)
        lines.append(QuotaLine(bound.namespace, bound.model or "any", milli, mib, bound.milli, bound.memory_mib))
    return sorted(lines, key=lambda line: (line.namespace, line.model))


def vgpu_facts(vgpu: VGPU) -> Vgpu:
    """A vGPU as its status says."""
    status = vgpu.status
    return Vgpu(
        name=vgpu.metadata.name,
        node=vgpu.spec.node_name,
        phase=status.phase or "Creating",
        uuid=status.uuid,
        model=status.model or vgpu.spec.model,
        used_milli=_or_zero(parse_milli, status.requested)
        or sum(_or_zero(parse_milli, a.request) for a in status.attached),
        memory_mib=_mib(status.memory),
        memory_used_mib=sum(_mib(attached.memory) for attached in status.attached),
        attached=[attached.tenant for attached in status.attached],
    )


async def _keep_looking(
    scheduler: Scheduler, facts: ClusterFacts, beside: Beside, settings: WebSettings, asking: AskingThread | None
) -> None:
    """Look once a second; in the program's loop only what must stand still there is read."""
    places_s = -math.inf
    while True:
        try:
            gather(scheduler, beside, time.time())
            if asking is not None:
                if time.monotonic() - places_s >= PLACES_S:
                    places_s = time.monotonic()
                    pods, port = scheduler.pods, settings.agent_port
                    asking.agents.places = addresses(pods, namespace=settings.agent_namespace, port=port)
                beside.measured, beside.silent = asking.agents.measured, asking.agents.silent
            await asyncio.to_thread(facts.show, facts.take(), time.time())
        except Exception as error:
            defect("looking at the books failed", error)
        await asyncio.sleep(LOOK_S)


def _or_zero(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text) if text else 0
    except BadQuantity:
        return 0


def _mib(text: str) -> int:
    return _or_zero(lambda words: parse_memory(words).on(MILLI), text)
