"""The status source of a running scheduler program: its ledger, and what its caches of objects say.

What a pod, a vGPU and a quota are in the words of the read model is said here, also for `kubectl aliquot top`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, cast

from aliquot.arbiter.records import turns_of
from aliquot.kube.claims import ResourceClaim, claims_ask
from aliquot.kube.custom import SHAREPODS, VGPU
from aliquot.kube.dialects import read
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.objects import Pod
from aliquot.kube.quotas import quotas_of
from aliquot.kube.reflector import Reflector
from aliquot.kube.requests import BadPod, ClusterDevices, PodAsk
from aliquot.lib.log import Logger
from aliquot.model.ids import split_key
from aliquot.model.quantities import MILLI, BadQuantity, parse_memory, parse_milli
from aliquot.model.requests import BadRequest
from aliquot.placement.asks import Ask
from aliquot.scheduler.agents import AgentThread, agent_addresses
from aliquot.scheduler.cluster_source import ClusterSource
from aliquot.scheduler.verdicts import closed_nodes
from aliquot.status import (
    PENDING,
    SCHEDULED,
    Pool,
    QuotaLine,
    Recorder,
    Standing,
    Turns,
    Vgpu,
    Workload,
    WorkloadKind,
)  # fmt: skip

if TYPE_CHECKING:
    from aliquot.scheduler.program import Scheduler

READ_S: Final = 1.0
READ_PART: Final = 4
UNSEEN_READ_S: Final = 5.0
ADDRESSES_S: Final = 5.0
UNSEEN_S: Final = 10.0
AGE_STEP_S: Final = 10.0
HOP_S: Final = 10.0
_LOG: Final = Logger("status")


class SchedulerSource(ClusterSource):
    """The source of a running scheduler program; it is made in the program's loop, and `run` keeps it current.

    `agents` polls the nodes' agents; without it no use is measured.
    """

    def __init__(self, scheduler: Scheduler, title: str, recorder: Recorder | None = None) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self.agents: AgentThread | None = None
        super().__init__(scheduler.ledger.decider, title=title, while_still=self._in_loop, recorder=recorder)
        self.claim_of = scheduler.ledger.claim_of
        self.standing = standings(scheduler.pods, self.claim_of)
        self.owner_of = owners(scheduler.pods, self.claim_of)
        self.barred = self._barred_nodes

    async def run(self) -> None:
        """Read once a second, less often while no page is open; a reading takes no more than a fifth of the time.

        Only what must not change meanwhile is read in the program's loop.
        """
        addresses_s = -math.inf
        while True:
            began_s = time.monotonic()
            try:
                rest = self.read_program(time.time())
                if self.agents is not None:
                    poller, settings = self.agents.agents, self._scheduler.settings
                    if began_s - addresses_s >= ADDRESSES_S:
                        addresses_s = began_s
                        poller.places = agent_addresses(
                            self._scheduler.pods, namespace=settings.namespace, port=settings.web_agent_port
                        )
                    self.measured, self.silent = poller.measured, poller.silent
                    self.answered_at_s = poller.answered_at_s
                ledger = self.read_ledger()
                await asyncio.to_thread(rest)
                await asyncio.to_thread(self.show, ledger, began_s)
            except Exception as error:
                _LOG.defect("reading the ledger failed", error)
            now_s = time.monotonic()
            await self._pause(now_s + READ_PART * (now_s - began_s), began_s + UNSEEN_READ_S)

    def read_program(self, now_s: float) -> Callable[[], None]:
        """Read the program's facts besides its ledger; returns the rest of the work, which may run in any thread."""
        scheduler = self._scheduler
        waiting = [pod for pod in scheduler.pods if not (pod.spec.node_name or pod.ended)]
        claims = list(scheduler.ledger.claims.values())
        quotas = []  # a bound for all models is a line with the model `any`
        for bound in [bound for quota in scheduler.operator.quotas for bound in quotas_of(quota) if not bound.forbids]:
            milli, mib = bound.counted(scheduler.ledger.cluster.usage(bound.namespace))
            quotas.append(QuotaLine(bound.namespace, bound.model or "any", milli, mib, bound.milli, bound.memory_mib))
        quotas.sort(key=lambda line: (line.namespace, line.model))
        vgpus = list(scheduler.operator.pool.known)

        def rest() -> None:
            known = scheduler.ledger.known
            self.waiting = list(waiting_pods(waiting, scheduler.binder.dialects, known, now_s, claims))
            self.quotas = quotas
            self.vgpus = Pool(scheduler.settings.pool, [vgpu_facts(vgpu) for vgpu in vgpus])

        return rest

    def turns(self, gpu: str) -> Turns | None:
        """See `StatusSource`; from the agent of its node."""
        node = next((shown.node for shown in self._snapshot.gpus if shown.uuid == gpu), None)
        turns = self.agents.turns(node).get(gpu) if self.agents is not None and node is not None else None
        return None if turns is None else turns_of(gpu, turns, time.time(), self.names_on(gpu))

    async def _pause(self, rested_s: float, max_s: float) -> None:
        """Wait until `rested_s`, for at least a second; while no page is open, until `max_s`."""
        while True:
            await asyncio.sleep(READ_S)
            now_s = time.monotonic()
            if now_s >= rested_s and (now_s >= max_s or now_s - self.asked_s < UNSEEN_S):
                return

    def _in_loop(self, work: Callable[[], Any]) -> Any:
        """The result of a function that runs in the program's loop, where the ledger does not change meanwhile."""
        hop: Future[Any] = Future()

        def run_there() -> None:
            if hop.set_running_or_notify_cancel():
                try:
                    hop.set_result(work())
                except Exception as error:
                    hop.set_exception(error)

        self._loop.call_soon_threadsafe(run_there)
        try:
            return hop.result(HOP_S)
        finally:
            hop.cancel()  # no work is left behind if the loop did not get to it

    def _barred_nodes(self, key: str) -> Mapping[str, str]:
        """The nodes that a pod may not go to; none for one that is gone or cannot be read."""
        scheduler = self._scheduler

        def closed() -> Callable[[], dict[str, str]] | None:
            claim = scheduler.ledger.claim_of(key)
            pod = scheduler.pods.get(key) if claim is None else user_of(claim, scheduler.pods)
            try:
                request = read(pod, scheduler.binder.dialects) if pod is not None else None
                if claim is not None:
                    request = claims_ask([claim])
            except (BadPod, BadRequest):
                return None
            if pod is None or request is None:
                return None
            return closed_nodes(scheduler.ledger, request, pod, scheduler.nodes, scheduler.pods)

        find = self._in_loop(closed)
        return {} if find is None else cast(dict[str, str], find())


def waiting_pods(
    pods: Sequence[Pod],
    dialects: Mapping[str, Dialect],
    known: ClusterDevices,
    now_s: float,
    claims: Iterable[ResourceClaim] = (),
) -> Iterator[tuple[Workload, Sequence[Ask]]]:
    """What of these pods, which have no node, waits for GPUs, each with its requests and kube-scheduler's last message:
    pods that request some, and those of these claims that are not allocated."""
    asking: list[tuple[str, WorkloadKind, Pod, PodAsk | None]] = []
    for pod in pods:
        with contextlib.suppress(BadPod):
            asking.append((pod.metadata.key, _kind_of(pod), pod, read(pod, dialects)))
    for claim in (claim for claim in claims if claim.status.allocation is None):
        user = user_of(claim, pods)
        with contextlib.suppress(BadRequest):
            if user is not None:
                asking.append((claim.workload, "ResourceClaim", user, claims_ask([claim])))
    for name, kind, pod, asked in asking:
        asks = [unit.ask for unit in asked.units(known)] if asked else []
        if asks:
            request, limit = sum(ask.milli for ask in asks), sum(ask.ceiling_milli for ask in asks)
            said = next((c.message for c in pod.status.conditions if c.type == "PodScheduled"), "")
            age_s = pod.metadata.age_s(now_s)
            yield Workload(name, kind, PENDING, request, limit, [], age_s, message=said), asks


def user_of(claim: ResourceClaim, pods: Iterable[Pod]) -> Pod | None:
    """The first of these pods that uses a claim."""
    return next((pod for pod in pods if claim.name_in(pod)), None)


ClaimOf = Callable[[str], ResourceClaim | None]


def standings(pods: Reflector[Pod], claim_of: ClaimOf) -> Callable[[str], Standing]:
    """How each pod with a place stands, by its key, and each claim: as the first of its pods.

    The age is in steps, so that a page is not new every second.
    """

    def standing(key: str) -> Standing:
        claim = claim_of(key)
        pod = _pod_of(key, claim, pods)
        kind = "ResourceClaim" if claim is not None else _kind_of(pod) if pod is not None else "Pod"
        if pod is None or not pod.spec.node_name:  # its binding is under way
            return Standing(kind, state=SCHEDULED)
        age_s = pod.metadata.age_s(time.time()) // AGE_STEP_S * AGE_STEP_S
        statuses = [*pod.status.init_container_statuses, *pod.status.container_statuses]
        message = next((why for status in statuses if (why := status.detail.message)), pod.status.message)
        message = message or pod.share_missing
        return Standing(kind, pod.state, age_s, pod.restarts, message)

    return standing


def _pod_of(key: str, claim: ResourceClaim | None, pods: Reflector[Pod]) -> Pod | None:
    """A workload's pod; of a claim the first for which it is reserved."""
    if claim is not None:
        key = f"{claim.metadata.namespace}/{claim.pods[0].name if claim.pods else ''}"
    return pods.get(key)


def _kind_of(pod: Pod) -> WorkloadKind:
    return "SharePod" if any(owner.kind == SHAREPODS.kind for owner in pod.metadata.owner_references) else "Pod"


def owners(pods: Reflector[Pod], claim_of: ClaimOf = lambda name: None) -> Callable[[str], str]:
    """The controller by tenant; of a ReplicaSet that a Deployment has made, the Deployment."""

    def owner_of(tenant: str) -> str:
        key, claim = tenant.rpartition("/")[0], claim_of(tenant)
        pod = _pod_of(key, claim, pods)
        if pod is not None:
            return controller_of(pod)
        return f"ResourceClaim/{claim.metadata.name}" if claim is not None else f"Pod/{split_key(key)[1]}"

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


def _or_zero(parse: Callable[[str], int], text: str) -> int:
    try:
        return parse(text) if text else 0
    except BadQuantity:
        return 0


def _mib(text: str) -> int:
    return _or_zero(lambda words: parse_memory(words).on(MILLI), text)
