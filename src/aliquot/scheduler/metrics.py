"""The scheduler's metrics, for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5)


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
            "aliquot_scheduler_holds", "Pods that hold GPUs, by state.", ["state"], registry=registry
        )
        self.inconsistent = Gauge(
            "aliquot_scheduler_strays", "Pods whose plan does not fit the ledger.", registry=registry
        )
        self.faulty = Gauge(
            "aliquot_scheduler_faulty_nodes", "Nodes whose inventory cannot be read.", registry=registry
        )
        self.gpu_milli = Gauge(
            "aliquot_scheduler_gpu_milli", "Thousandths of GPUs, by state.", ["state"], registry=registry
        )
        self.watch = Gauge(
            "aliquot_scheduler_watch", "Events of the watch caches.", ["kind", "count"], registry=registry
        )
