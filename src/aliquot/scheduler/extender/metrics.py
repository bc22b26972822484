"""What is recorded of the scheduler: metrics of its verbs and its ledger, and the spans of a pod.

A pod's spans are its filters, its bind, and its whole way up to there as their parent. A verb notes whose request it
answers; the server, which measures the verb, then records the span with the same time as its histogram, so that an
exemplar leads to the span of the very request.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aliquot.kube.names import TRACEPARENT
from aliquot.kube.objects import Meta
from aliquot.model.quantities import MILLI
from aliquot.scheduler.ledger import Ledger
from aliquot.tracing.context import PodTrace, pod_trace
from aliquot.tracing.spans import Spans

BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)
BOUND: Final = "bind"
_Note = tuple[Meta, Mapping[str, Any], str]
_NOTED: Final[ContextVar[_Note | None]] = ContextVar("noted", default=None)


@dataclass
class SchedulerMetrics:
    """A separate registry, so that several schedulers fit into one process."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        registry = self.registry
        self.verb_s = Histogram(
            "aliquot_scheduler_verb_seconds", "Time to answer a verb.", ["verb"], buckets=BUCKETS_S, registry=registry
        )
        self.verbs = Counter("aliquot_scheduler_verbs_total", "Verbs answered.", ["verb", "result"], registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.leads = gauge("aliquot_scheduler_leads", "1 while this scheduler leads.")
        self.nodes = gauge("aliquot_scheduler_nodes", "Nodes with GPUs in the ledger.")
        self.allocations = gauge("aliquot_scheduler_allocations", "Pods that hold GPUs, by state.", ["state"])
        self.inconsistent = gauge("aliquot_scheduler_inconsistent_pods", "Pods whose plan does not fit the ledger.")
        self.unreadable = gauge("aliquot_scheduler_unreadable_nodes", "Nodes whose inventory cannot be read.")
        self.gpu_milli = gauge("aliquot_scheduler_gpu_milli", "Thousandths of GPUs, by state.", ["state"])
        self.watch = gauge("aliquot_scheduler_watch", "Events of the watch caches.", ["kind", "count"])

    def measure(self, ledger: Ledger, *, leads: bool) -> None:
        """Bring the gauges of the ledger up to date."""
        cluster = ledger.cluster
        allocations = list(chain.from_iterable(ledger.allocations.values()))
        self.nodes.set(len(cluster.index))
        self.leads.set(leads)
        self.inconsistent.set(len(ledger.inconsistent))
        self.unreadable.set(len(ledger.faulty))
        for state, count in (
            ("confirmed", sum(h.confirmed for h in allocations)),
            ("unconfirmed", sum(not h.confirmed and not h.in_doubt for h in allocations)),
            ("in_doubt", sum(h.in_doubt for h in allocations)),
        ):
            self.allocations.labels(state).set(count)
        total = int((cluster.size_mib >= 0).sum()) * MILLI
        free = int(cluster.free_milli[cluster.free_milli > 0].sum())
        self.gpu_milli.labels("free").set(free)
        self.gpu_milli.labels("reserved").set(total - free)


class PodSpans:
    """Records what the verbs note; each request is answered in a task of its own."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def note(self, meta: Meta, facts: Mapping[str, Any], *, error: str = "") -> None:
        """The request that is being answered is about this pod."""
        _NOTED.set((meta, facts, error))

    def record(self, verb: str, seconds: float) -> dict[str, str] | None:
        """The span of a verb that has just been answered; its exemplar, None where nothing was noted or is traced."""
        noted = _NOTED.get()
        if noted is None:
            return None
        meta, facts, error = noted
        trace = trace_of(meta)
        if not trace.root.sampled:
            return None
        ended_ns = time.time_ns()
        began_ns = ended_ns - int(seconds * 1e9)
        pod = {"k8s.namespace.name": meta.namespace, "k8s.pod.name": meta.name, "k8s.pod.uid": meta.uid}
        attributes = {**pod, **facts}
        made = self._spans.record(verb, began_ns, ended_ns, attributes, parent=trace.root, error=error)
        if verb == BOUND and not error:
            created_ns = began_ns
            with contextlib.suppress(ValueError):
                created_ns = int(datetime.fromisoformat(meta.creation_timestamp or "").timestamp() * 10**9)
            created_ns = min(began_ns, created_ns or began_ns)
            self._spans.record("pod", created_ns, ended_ns, attributes, parent=trace.parent, itself=trace.root)
        return made.exemplar


def trace_of(meta: Meta) -> PodTrace:
    """The trace of a pod that has no node yet."""
    return pod_trace(meta.uid, meta.annotations.get(TRACEPARENT, ""))
