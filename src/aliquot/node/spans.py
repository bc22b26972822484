"""How long a container's start takes on its node: kubelet's calls as a histogram, and spans where tracing is on.

The spans are Allocate, PreStartContainer, and the time until the container has the GPU.

Kubelet names no pod in Allocate, so its times are kept by the name that was answered until PreStartContainer identifies
the container. When a container was granted the GPU for the first time is read from the arbiter's status, which has the
time itself: polling makes its span late, not wrong. Pods without a trace context are not traced.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Histogram
from prometheus_client.registry import Collector

from aliquot.arbiter.records import Status
from aliquot.kube.names import PLAN, TRACEPARENT
from aliquot.kube.objects import Meta
from aliquot.kube.plan import BadPlan, read_plan
from aliquot.lib.bounded import Bounded
from aliquot.node.allocation.kubelet import Claim
from aliquot.tracing.context import TraceContext, read_traceparent
from aliquot.tracing.spans import Spans

BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
POLL_S: Final = 0.5
KEPT: Final = 1000
"""The maximum number of remembered containers; beyond it the oldest are forgotten and lose their spans."""


@dataclass(frozen=True)
class Start:
    """A container that kubelet starts, its pod, the text of its plan, and its tenant's name once it has one."""

    claim: Claim
    pod: Meta
    plan: str
    tenant: str


@dataclass(frozen=True)
class _Waiting:
    uid: str
    parent: TraceContext
    attributes: dict[str, str | list[str]]
    since_ns: int


class KubeletCalls:
    """Measures the two calls that start a container; with `spans` one that prepares it has its trace as an exemplar."""

    def __init__(self, node: str, spans: Spans | None = None) -> None:
        self.seconds = Histogram(
            "aliquot_node_kubelet_call_seconds",
            "Time to answer a call of kubelet's.",
            ["node", "call"],
            buckets=BUCKETS_S,
            registry=None,
        )
        self.collectors: Sequence[Collector] = (
            (self.seconds,) if spans is None else (self.seconds, spans.backlog.dropped)
        )
        self.spans = spans
        self._node = node
        self._allocated: Bounded[str, tuple[int, int]] = Bounded(KEPT)
        self._waiting: Bounded[str, _Waiting] = Bounded(KEPT)

    def allocated(self, name: str, seconds: float) -> None:
        """Allocate has just been answered with this name."""
        self.seconds.labels(self._node, "Allocate").observe(seconds)
        ended_ns = time.time_ns()
        self._allocated[name] = (ended_ns - int(seconds * 1e9), ended_ns)

    def prepared(self, starts: Iterable[Start], seconds: float, why: str) -> None:
        """PreStartContainer has just been answered, for these containers; `why` it was refused, or empty."""
        exemplar = None
        for start in starts if self.spans is not None else ():
            exemplar = self._span(start, seconds, why) or exemplar
        self.seconds.labels(self._node, "PreStartContainer").observe(seconds, exemplar)

    def _span(self, start: Start, seconds: float, why: str) -> dict[str, str] | None:
        """Record what kubelet has asked for this container; the exemplar of PreStartContainer, None if untraced."""
        assert self.spans is not None, "traced"
        allocated = self._allocated.pop(start.claim.name, None) if not why else self._allocated.get(start.claim.name)
        parent = read_traceparent(start.pod.annotations.get(TRACEPARENT, ""))
        if parent is None or not parent.sampled:
            return None
        ended_ns, owner, share = time.time_ns(), start.claim.owner, None
        with contextlib.suppress(BadPlan):
            plan = read_plan({PLAN: start.plan}) if start.plan else None
            share = plan.containers.get(start.claim.container) if plan is not None else None
        attributes: dict[str, str | list[str]] = {
            "k8s.namespace.name": owner.namespace,
            "k8s.pod.name": owner.pod,
            "k8s.pod.uid": owner.uid,
            "k8s.container.name": start.claim.container,
            "k8s.node.name": self._node,
            "aliquot.gpu.uuids": [str(piece.gpu) for piece in share.slices] if share is not None else [],
        }
        if allocated is not None and not why:
            self.spans.record("Allocate", *allocated, attributes, parent=parent)
        began_ns = ended_ns - int(seconds * 1e9)
        made = self.spans.record("PreStartContainer", began_ns, ended_ns, attributes, parent=parent, error=why)
        if not why and start.tenant:
            self._waiting[start.tenant] = _Waiting(owner.uid, parent, attributes, ended_ns)
        return made.exemplar

    async def follow(self, status: Callable[[], Status | None], lives: Callable[[str], bool]) -> None:
        """Record first grants until cancelled; `lives` tells whether the pod of a uid is still there."""
        while True:
            await asyncio.sleep(POLL_S)
            for tenant in [t for t, waiting in self._waiting.items() if not lives(waiting.uid)]:
                del self._waiting[tenant]
            if self._waiting:
                found = await asyncio.to_thread(status)
                if found is not None:
                    self.granted(found)

    def granted(self, status: Status) -> None:
        """Record the containers whose first grant this status shows."""
        assert self.spans is not None, "only what is traced waits"
        wall_ns = time.time_ns() - time.monotonic_ns()
        first: dict[str, int] = {}
        for tenant in (tenant for gpu in status.gpus for tenant in gpu.tenants):
            if tenant.first_grant_ns:
                first[tenant.name] = min(tenant.first_grant_ns, first.get(tenant.name, tenant.first_grant_ns))
        for name in first.keys() & self._waiting.keys():
            waiting, at_ns = self._waiting.pop(name), wall_ns + first[name]
            if at_ns >= waiting.since_ns:  # otherwise it belongs to the container's previous start
                self.spans.record("first grant", waiting.since_ns, at_ns, waiting.attributes, parent=waiting.parent)
