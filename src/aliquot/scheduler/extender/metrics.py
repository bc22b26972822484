"""The scheduler's metrics: what its verbs take, and gauges of the ledger."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aliquot.model.quantities import MILLI
from aliquot.scheduler.ledger import Ledger

BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)


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
        self.leads = Gauge("aliquot_scheduler_leads", "1 while this scheduler leads.", registry=registry)
        self.nodes = Gauge("aliquot_scheduler_nodes", "Nodes with GPUs in the ledger.", registry=registry)
        self.allocations = Gauge(
            "aliquot_scheduler_allocations", "Pods that hold GPUs, by state.", ["state"], registry=registry
        )
        self.inconsistent = Gauge(
            "aliquot_scheduler_inconsistent_pods", "Pods whose plan does not fit the ledger.", registry=registry
        )
        self.unreadable = Gauge(
            "aliquot_scheduler_unreadable_nodes", "Nodes whose inventory cannot be read.", registry=registry
        )
        self.gpu_milli = Gauge(
            "aliquot_scheduler_gpu_milli", "Thousandths of GPUs, by state.", ["state"], registry=registry
        )
        self.watch = Gauge(
            "aliquot_scheduler_watch", "Events of the watch caches.", ["kind", "count"], registry=registry
        )

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
