"""The node's Prometheus metrics, drawn from one snapshot at each scrape; under other programs' names on request.

Ours carry the container as `namespace`, `pod`, `container` and the GPU by index and UUID. Counters start again at 0
when the arbiter does, which is what Prometheus expects of counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from aliquot.arbiter.metrics import HANDOVERS, TENANT_COUNTERS, TENANT_GAUGES, families, wake_metrics
from aliquot.model.errors import UserError
from aliquot.node.display.aliases import ALIASES
from aliquot.status.nodes import NodeGpu, NodeReport
from aliquot.status.sensors import Sensors

_GPU: Final = ("node", "gpu", "uuid", "model")
_CONTAINER: Final = ("node", "gpu", "uuid", "namespace", "pod", "container")
_MIB: Final = 1 << 20

GPU_GAUGES: Final[dict[str, tuple[str, Callable[[NodeGpu], float | None]]]] = {
    "aliquot_node_gpu_healthy": ("1 while the GPU may be allocated", lambda g: 0 if g.unhealthy else 1),
    "aliquot_node_gpu_busy_ratio": ("Part of the window charged to any tenant", lambda g: g.busy),
    "aliquot_node_gpu_held": ("1 while a container holds a valid grant", lambda g: 1 if g.holder else 0),
    "aliquot_node_gpu_containers": ("Containers on the GPU", lambda g: len(g.uses)),
    "aliquot_node_gpu_free_ratio": (
        "Part of the GPU that is free: promised to no container",
        lambda g: g.free_milli / 1000,
    ),
    "aliquot_node_gpu_memory_bytes": ("Device memory", lambda g: g.memory_mib * _MIB),
    "aliquot_node_gpu_memory_used_bytes": ("Device memory used by containers", lambda g: g.memory_used_mib * _MIB),
    "aliquot_node_gpu_unregistered_processes": ("Programs on it without a share", lambda g: g.bypassing),
}
SENSOR_GAUGES: Final[dict[str, tuple[str, Callable[[Sensors], float | None]]]] = {
    "aliquot_node_gpu_temperature_celsius": ("Temperature of the GPU", lambda s: s.celsius),
    "aliquot_node_gpu_power_watts": ("Power it draws", lambda s: s.watts),
    "aliquot_node_gpu_power_limit_watts": ("Power it may draw", lambda s: s.limit_watts),
    "aliquot_node_gpu_sm_clock_hertz": ("Clock of its multiprocessors", lambda s: _hertz(s.sm_mhz)),
    "aliquot_node_gpu_memory_clock_hertz": ("Clock of its memory", lambda s: _hertz(s.memory_mhz)),
}
"""What a driver does not answer has no sample."""
CONTAINER_GAUGES: Final = TENANT_GAUGES | {
    "memory_context_bytes": ("Of the memory used, that of contexts", lambda t: t.memory_context_mib * _MIB),
    "waiting": ("1 while it waits for a grant", lambda t: 1 if t.waiting else 0),
}
CONTAINER_COUNTERS: Final = TENANT_COUNTERS | {
    "throttled_seconds": ("Time spent waiting for grants", lambda t: t.waited_ns / 1e9),
    "handovers": HANDOVERS,
    "oom": ("Allocations refused for its memory limit", lambda t: t.memory_refusals),
}


def registry_of(facts: Callable[[], NodeReport], aliases: Sequence[str] = ()) -> CollectorRegistry:
    """A registry that takes a snapshot at each scrape; `aliases` are keys of `ALIASES` such as `hami`.

    Raises:
        UserError: an alias that does not exist.
    """
    for alias in aliases:
        if alias not in ALIASES:
            raise UserError(f"metric-aliases {alias!r} is not known; the names are {', '.join(sorted(ALIASES))}")
    registry = CollectorRegistry()
    registry.register(_NodeCollector(facts, tuple(dict.fromkeys(aliases))))
    return registry


class _NodeCollector(Collector):
    def __init__(self, facts: Callable[[], NodeReport], aliases: tuple[str, ...]) -> None:
        self._facts = facts
        self._aliases = aliases

    def describe(self) -> Iterable[Metric]:
        """Empty before the first scrape: a snapshot queries the arbiter."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        facts = self._facts()
        up = GaugeMetricFamily("aliquot_node_arbiter_up", "1 while the arbiter answers", labels=("node",))
        up.add_metric([facts.node], 1 if facts.answers else 0)
        about = InfoMetricFamily("aliquot_node", "The node's driver", labels=("node",))
        about.add_metric([facts.node], {"driver": facts.driver})
        yield from (up, about)
        audited = GaugeMetricFamily(
            "aliquot_node_audited", "1 while NVML is compared with the registered programs", labels=["node"]
        )
        found = CounterMetricFamily("aliquot_node_unregistered_found", "Programs found past Aliquot", labels=["node"])
        killed = CounterMetricFamily("aliquot_node_unregistered_killed", "Of those, killed", labels=["node"])
        audited.add_metric([facts.node], 1 if facts.audit.works else 0)
        found.add_metric([facts.node], facts.audit.found)
        killed.add_metric([facts.node], facts.audit.ended)
        yield from (audited, found, killed)
        gpus = [((facts.node, str(gpu.index), gpu.uuid, gpu.model), gpu) for gpu in facts.gpus]
        yield from families(GaugeMetricFamily, "", _GPU, gpus, GPU_GAUGES)
        sensed = [(where, gpu.sensors) for where, gpu in gpus if gpu.sensors is not None]
        yield from families(GaugeMetricFamily, "", _GPU, sensed, SENSOR_GAUGES)
        tenants = [
            ((facts.node, str(gpu.index), gpu.uuid, owner.namespace, owner.pod, owner.container), use.status)
            for gpu in facts.gpus
            for use in gpu.uses
            for owner in (use.owner,)
        ]
        yield from families(GaugeMetricFamily, "aliquot_container_gpu_", _CONTAINER, tenants, CONTAINER_GAUGES)
        yield from families(CounterMetricFamily, "aliquot_container_gpu_", _CONTAINER, tenants, CONTAINER_COUNTERS)
        yield from wake_metrics("aliquot_container_gpu", _CONTAINER, tenants)
        for alias in self._aliases:
            yield from ALIASES[alias](facts)


def _hertz(mhz: int | None) -> float | None:
    return None if mhz is None else mhz * 1e6
