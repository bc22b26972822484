"""What the scheduler program knows besides its ledger, for the pages: waiting pods, quotas, vGPUs; and the pages'
server next to it.

Everything of the program is read in its own event loop. Pages are rendered in other threads; where they must read the
ledger itself they hop to that loop and wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from aliquot.kube.custom import SHAREPODS, VGPU
from aliquot.kube.dialects import read
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.objects import Pod
from aliquot.kube.reflector import Reflector
from aliquot.kube.requests import BadPod, ClusterDevices
from aliquot.kube.reviews import Reviews
from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI, BadQuantity, parse_memory, parse_milli
from aliquot.placement.asks import Ask
from aliquot.placement.cluster import Cluster
from aliquot.placement.quota import Quota
from aliquot.scheduler.ledger import CLOSED
from aliquot.scheduler.operator.quotas import quotas_of
from aliquot.scheduler.verdicts import closed_nodes
from aliquot.status.workloads import PENDING, SCHEDULED, Standing, WorkloadKind
from aliquot.web.access import TokenDoor
from aliquot.web.api import Pool, QuotaLine, Vgpu, Workload
from aliquot.web.app import everyone
from aliquot.web.asking import AGENT_PORT, AskingThread, addresses
from aliquot.web.cluster import Beside, ClusterFacts
from aliquot.web.facts import Door
from aliquot.web.guard import LOOPBACK
from aliquot.web.history.file import Limits
from aliquot.web.history.keeping import LongHistory
from aliquot.web.history.prometheus import PrometheusPast
from aliquot.web.history.records import Turns
from aliquot.web.log import defect
from aliquot.web.rights import NamespacedView
from aliquot.web.serve import WebServer
from aliquot.web.sessions import Sessions
from aliquot.web.sharing import keep_shared
from aliquot.web.signin import SignIn

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler

LOOK_S: Final = 1.0
LOOK_PART: Final = 4
UNSEEN_LOOK_S: Final = 5.0
PLACES_S: Final = 5.0
UNSEEN_S: Final = 10.0
AGE_STEP_S: Final = 10.0
HOP_S: Final = 10.0
KEY_S: Final = 3.0


@dataclass(frozen=True)
class WebSettings:
    """The address of a cluster's pages, who sees what, and where nodes' agents are polled.

    `hosts` are names by which the server may be addressed beside the loopback's. Without `tokens` every client that
    reaches it sees everything, or with `namespaces` only the names of these: the read-only mode that an administrator
    sets. With `tokens` viewers sign in and see what Kubernetes lets them list. `namespace` is the scheduler's own, of
    its agents and of the key of its sessions. `agent_port` 0 polls no agents.
    `history` is the file of weeks and `history_bytes` its bound; None keeps two hours in memory.
    `prometheus` is the address from which GPU-hours and long timelines are read instead.
    """

    host: str = "127.0.0.1"
    port: int = 0
    title: str = "cluster"
    hosts: frozenset[str] = frozenset()
    namespaces: frozenset[str] | None = None
    tokens: bool = False
    tls: tuple[str, str] | None = None
    namespace: str = ""
    agent_port: int = AGENT_PORT
    history: Path | None = None
    history_bytes: int = 2_000_000_000
    prometheus: str = ""


@contextlib.asynccontextmanager
async def dashboard_beside(scheduler: Scheduler, settings: WebSettings) -> AsyncIterator[str]:
    """The pages of a running scheduler program while it runs; gives their address.

    Raises:
        PortTaken: another program uses the port.
        BadCertificate: the files are not a certificate and its key.
        BadKubeConfig: tokens are required and the API server's authority cannot be read.
    """
    async with contextlib.AsyncExitStack() as stack:
        asking: AskingThread | None = None

        def turns(gpu: str) -> Turns | None:
            return facts.turns(gpu, asking.turns) if asking is not None else None

        limits = Limits(max_bytes=settings.history_bytes) if settings.history else None
        history = LongHistory(settings.history, limits, turns=turns)
        stack.push_async_callback(asyncio.to_thread, history.close)
        facts, beside = facts_of(scheduler, settings.title, history)
        if settings.prometheus:
            facts.read_past_from(PrometheusPast(settings.prometheus, history, names=facts.names_on))
        door, signing_in = await _door(scheduler, settings, facts, stack)
        if settings.agent_port:
            asking = AskingThread(watched=lambda: time.monotonic() - facts.asked_s < UNSEEN_S)
            stack.push_async_callback(asyncio.to_thread, asking.close)
        looking = asyncio.create_task(_keep_looking(scheduler, facts, beside, settings, asking))
        stack.callback(looking.cancel)
        server = await asyncio.to_thread(_served, door, settings, signing_in)
        stack.push_async_callback(asyncio.to_thread, server.close)
        yield server.url


def _served(door: Door, settings: WebSettings, signing_in: SignIn | None) -> WebServer:
    host, port, hosts = settings.host, settings.port, LOOPBACK | settings.hosts
    called, instead = f"--web {host}:{port}", "choose another address"
    return WebServer(
        door, host=host, port=port, hosts=hosts, signing_in=signing_in, tls=settings.tls, called=called, instead=instead
    )


async def _door(
    scheduler: Scheduler, settings: WebSettings, facts: ClusterFacts, stack: contextlib.AsyncExitStack
) -> tuple[Door, SignIn | None]:
    if not settings.tokens:
        return everyone(facts if settings.namespaces is None else NamespacedView(facts, settings.namespaces)), None
    reviews = Reviews.connect(scheduler.settings.kubeconfig, scheduler.settings.context)
    stack.callback(reviews.close)
    sessions = Sessions()
    tried = asyncio.Event()
    sharing = asyncio.create_task(keep_shared(scheduler.api, settings.namespace, sessions, tried))
    stack.callback(sharing.cancel)
    with contextlib.suppress(TimeoutError):  # signed-in viewers must not have to sign in again after a restart
        await asyncio.wait_for(tried.wait(), KEY_S)
    door = TokenDoor(facts, reviews, sessions)
    stack.callback(door.close)
    return door, SignIn(door, sessions)


def facts_of(scheduler: Scheduler, title: str, history: LongHistory | None = None) -> tuple[ClusterFacts, Beside]:
    """The facts of a scheduler; call it in the program's loop."""
    loop, beside = asyncio.get_running_loop(), Beside()

    def calmly(work: Callable[[], Any]) -> Any:
        hop: Future[Any] = Future()

        def there() -> None:
            if hop.set_running_or_notify_cancel():
                try:
                    hop.set_result(work())
                except Exception as error:
                    hop.set_exception(error)

        loop.call_soon_threadsafe(there)
        try:
            return hop.result(HOP_S)
        finally:
            hop.cancel()  # no work is left behind if the loop did not get to it

    beside.standing, beside.owner_of = standings(scheduler.pods), owners(scheduler.pods)

    def barred(key: str) -> Mapping[str, str]:
        found = calmly(lambda: _barred(scheduler, key))
        return {} if found is None else cast(dict[str, str], found())

    beside.barred = barred
    facts = ClusterFacts(
        scheduler.ledger.decider, beside, title=title, calmly=calmly, hidden=lambda name: name.startswith(CLOSED),
        history=history,
    )  # fmt: skip
    return facts, beside


def _barred(scheduler: Scheduler, key: str) -> Callable[[], dict[str, str]] | None:
    """What finds the nodes that a pod may not go to; None for one that is gone or cannot be read."""
    pod = scheduler.pods.get(key)
    try:
        asked = read(pod, scheduler.binder.dialects) if pod is not None else None
    except BadPod:
        return None
    if pod is None or asked is None:
        return None
    return closed_nodes(scheduler.ledger, asked, pod, scheduler.nodes, scheduler.pods)


def gather(scheduler: Scheduler, beside: Beside, now_s: float) -> Callable[[], None]:
    """Read the program's facts besides its ledger; returns the rest of the work, which may run in any thread."""
    waiting = [pod for pod in scheduler.pods if _waits(pod)]
    dialects, known = scheduler.binder.dialects, scheduler.ledger.known
    bounds = [quota for held in scheduler.quotas for quota in quotas_of(held)]
    quota = quota_lines(scheduler.ledger.cluster, bounds)
    policy, vgpus = scheduler.settings.pool, list(scheduler.operator.pool.known)

    def rest() -> None:
        beside.waiting = list(waiting_pods(waiting, dialects, known, now_s))
        beside.quota = quota
        beside.pool = Pool(policy, [vgpu_facts(vgpu) for vgpu in vgpus])

    return rest


def waiting_pods(
    pods: Iterable[Pod], dialects: Mapping[str, Dialect], known: ClusterDevices, now_s: float
) -> Iterator[tuple[Workload, Sequence[Ask]]]:
    """Pods without a node that request GPUs, each with its requests and kube-scheduler's last message."""
    for pod in pods:
        if not _waits(pod):
            continue
        try:
            asked = read(pod, dialects)
        except BadPod:
            continue
        units = asked.units(known) if asked else ()
        if asked is None or not units:
            continue
        request = sum(unit.ask.milli for unit in units)
        limit = sum(unit.ask.ceiling_milli for unit in units)
        said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
        yield (
            Workload(asked.key, _kind_of(pod), PENDING, request, limit, [], pod.metadata.age_s(now_s), message=said),
            [unit.ask for unit in units],
        )


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.ended)


def standings(pods: Reflector[Pod]) -> Callable[[str], Standing]:
    """How each pod with a place stands, by its key; its age in steps, so that a page is not new every second."""

    def standing(key: str) -> Standing:
        pod = pods.get(key)
        if pod is None or not pod.spec.node_name:  # its binding is under way
            return Standing(state=SCHEDULED)
        age_s = pod.metadata.age_s(time.time()) // AGE_STEP_S * AGE_STEP_S
        statuses = [*pod.status.init_container_statuses, *pod.status.container_statuses]
        message = next((why for status in statuses if (why := status.detail.message)), pod.status.message)
        message = message or pod.share_missing
        return Standing(_kind_of(pod), pod.state, age_s, pod.restarts, message)

    return standing


def _kind_of(pod: Pod) -> WorkloadKind:
    return "SharePod" if any(owner.kind == SHAREPODS.kind for owner in pod.metadata.owner_references) else "Pod"


def owners(pods: Reflector[Pod]) -> Callable[[str], str]:
    """The controller by tenant; of a ReplicaSet that a Deployment has made, the Deployment."""

    def owner_of(tenant: str) -> str:
        key = tenant.rpartition("/")[0]
        pod = pods.get(key)
        return controller_of(pod) if pod is not None else f"Pod/{split_key(key)[1]}"

    return owner_of


def controller_of(pod: Pod) -> str:
    """Kind and name of what has made a pod, or the pod itself."""
    meta = pod.metadata
    owner = next((each for each in meta.owner_references if each.controller), None)
    if owner is None:
        return f"Pod/{meta.name}"
    suffix = "-" + meta.labels.get("pod-template-hash", "")
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        return f"Deployment/{owner.name.removesuffix(suffix)}"
    return f"{owner.kind}/{owner.name}"


def quota_lines(cluster: Cluster, bounds: Iterable[Quota]) -> list[QuotaLine]:
    """Every bound with its use; a bound for all models is a line with the model `any`."""
    lines = []
    for bound in bounds:
        if bound.forbids:
            continue
        milli, mib = bound.counted(cluster.usage(bound.namespace))
        lines.append(QuotaLine(bound.namespace, bound.model or "any", milli, mib, bound.milli, bound.memory_mib))
    return sorted(lines, key=lambda line: (line.namespace, line.model))


def vgpu_facts(vgpu: VGPU) -> Vgpu:
    """A vGPU from its status."""
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
    """Read once a second, less often while no page is open; a reading takes no more than a fifth of the time.

    Only what must not change meanwhile is read in the program's loop.
    """
    places_s = -math.inf
    while True:
        began_s = time.monotonic()
        try:
            rest = gather(scheduler, beside, time.time())
            if asking is not None:
                if began_s - places_s >= PLACES_S:
                    places_s = began_s
                    pods, port = scheduler.pods, settings.agent_port
                    asking.agents.places = addresses(pods, namespace=settings.namespace, port=port)
                beside.measured, beside.silent = asking.agents.measured, asking.agents.silent
                beside.answered_at_s = asking.agents.answered_at_s
            taken = facts.take()
            await asyncio.to_thread(rest)
            await asyncio.to_thread(facts.show, taken, began_s)
        except Exception as error:
            defect("reading the ledger failed", error)
        now_s = time.monotonic()
        await _pause(facts, now_s + LOOK_PART * (now_s - began_s), began_s + UNSEEN_LOOK_S)


async def _pause(facts: ClusterFacts, rested_s: float, max_s: float) -> None:
    """Wait until `rested_s`, for at least a second; while no page is open, until `max_s`."""
    while True:
        await asyncio.sleep(LOOK_S)
        now_s = time.monotonic()
        if now_s >= rested_s and (now_s >= max_s or now_s - facts.asked_s < UNSEEN_S):
            return


def _or_zero(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text) if text else 0
    except BadQuantity:
        return 0


def _mib(text: str) -> int:
    return _or_zero(lambda words: parse_memory(words).on(MILLI), text)
