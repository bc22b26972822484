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

from aliquot.model.errors import UserError
from aliquot.node.telling.aliases import ALIASES
from aliquot.status.nodes import NodeGpu, NodeReport
from aliquot.status.sensors import Sensors
from aliquot.status.tenants import TenantStatus

_GPU: Final = ("node", "gpu", "uuid", "model")
_CONTAINER: Final = ("node", "gpu", "uuid", "namespace", "pod", "container")
_MIB: Final = 1 << 20

GPU_GAUGES: Final[dict[str, tuple[str, Callable[[NodeGpu], float]]]] = {
    "aliquot_node_gpu_healthy": ("1 while the GPU may be allocated", lambda g: 0 if g.sick else 1),
    "aliquot_node_gpu_busy_ratio": ("Part of the window charged to anybody", lambda g: g.busy),
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
CONTAINER_GAUGES: Final[dict[str, tuple[str, Callable[[TenantStatus], float]]]] = {
    "aliquot_container_gpu_request_ratio": ("Guaranteed part of the GPU", lambda t: t.request_milli / 1000),
    "aliquot_container_gpu_limit_ratio": ("Maximum part of the GPU it may use", lambda t: t.limit_milli / 1000),
    "aliquot_container_gpu_usage_ratio": ("Charged part of the window", lambda t: t.usage),
    "aliquot_container_gpu_memory_used_bytes": ("Device memory it uses", lambda t: t.memory_used_mib * _MIB),
    "aliquot_container_gpu_memory_limit_bytes": ("Device memory it may use", lambda t: t.memory_limit_mib * _MIB),
    "aliquot_container_gpu_memory_context_bytes": (
        "Of the memory used, that of contexts",
        lambda t: t.memory_context_mib * _MIB,
    ),
    "aliquot_container_gpu_waiting": ("1 while it waits for a grant", lambda t: 1 if t.waiting else 0),
    "aliquot_container_gpu_wait_seconds_median": ("Wait for one of the last 256 grants", lambda t: t.wait_ms_p50 / 1e3),
    "aliquot_container_gpu_quota_seconds": ("Length of its next grant", lambda t: t.quota_ms / 1e3),
    "aliquot_container_gpu_debt_seconds": ("Time that ran after its grant, not paid yet", lambda t: t.debt_ms / 1e3),
    "aliquot_container_gpu_kernel_seconds_longest": (
        "Longest recent kernel or graph",
        lambda t: t.kernel_ms / 1e3,
    ),
    "aliquot_container_gpu_processes": ("Processes attached", lambda t: t.processes),
    "aliquot_container_gpu_fluid_error_ratio": (
        "Last window's distance from the fluid",
        lambda t: t.promise.fluid_error,
    ),
    "aliquot_container_gpu_fluid_error_p95_ratio": (
        "The same, in 95 of 100 windows",
        lambda t: t.promise.fluid_error_p95,
    ),
    "aliquot_container_gpu_fluid_error_worst_ratio": ("The same, at worst", lambda t: t.promise.fluid_error_worst),
}
CONTAINER_COUNTERS: Final[dict[str, tuple[str, Callable[[TenantStatus], float]]]] = {
    "aliquot_container_gpu_charged_seconds_total": ("GPU time charged", lambda t: t.charged_ns / 1e9),
    "aliquot_container_gpu_throttled_seconds_total": ("Time spent waiting for grants", lambda t: t.waited_ns / 1e9),
    "aliquot_container_gpu_handovers_total": ("Grants", lambda t: t.handovers),
    "aliquot_container_gpu_oom_total": ("Allocations refused for its memory limit", lambda t: t.memory_refusals),
    "aliquot_container_gpu_unrouted_functions_total": ("Driver functions it got unhooked", lambda t: t.unrouted),
    "aliquot_container_gpu_ungated_seconds_total": ("Time it ran without an arbiter", lambda t: t.ungated_ms / 1e3),
    "aliquot_container_gpu_wanted_seconds_total": ("Time it wanted the GPU", lambda t: t.promise.wanted_ns / 1e9),
    "aliquot_container_gpu_promise_windows_total": ("Windows in which it wanted the GPU", lambda t: t.promise.windows),
    "aliquot_container_gpu_promise_kept_total": (
        "Of those, its request for the time it wanted the GPU kept",
        lambda t: t.promise.kept,
    ),
    "aliquot_container_gpu_busy_windows_total": (
        "Windows in which it wanted the GPU all the time",
        lambda t: t.promise.busy_windows,
    ),
    "aliquot_container_gpu_busy_kept_total": ("Of those, its request kept", lambda t: t.promise.busy_kept),
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
        yield from _audit_metrics(facts)
        yield from _gpu_metrics(facts)
        yield from _container_metrics(facts)
        for alias in self._aliases:
            yield from ALIASES[alias](facts)


def _audit_metrics(facts: NodeReport) -> Iterable[Metric]:
    audited = GaugeMetricFamily(
        "aliquot_node_audited", "1 while NVML is compared with the registered programs", labels=["node"]
    )
    found = CounterMetricFamily("aliquot_node_unregistered_found", "Programs found past Aliquot", labels=["node"])
    killed = CounterMetricFamily("aliquot_node_unregistered_killed", "Of those, killed", labels=["node"])
    audited.add_metric([facts.node], 1 if facts.audit.works else 0)
    found.add_metric([facts.node], facts.audit.found)
    killed.add_metric([facts.node], facts.audit.ended)
    yield from (audited, found, killed)


def _gpu_metrics(facts: NodeReport) -> Iterable[Metric]:
    for name, (text, read) in GPU_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=_GPU)
        for gpu in facts.gpus:
            gauge.add_metric([facts.node, str(gpu.index), gpu.uuid, gpu.model], read(gpu))
        yield gauge
    for name, (text, sense) in SENSOR_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=_GPU)
        for gpu in facts.gpus:
            sensed = sense(gpu.sensors) if gpu.sensors is not None else None
            if sensed is not None:
                gauge.add_metric([facts.node, str(gpu.index), gpu.uuid, gpu.model], sensed)
        yield gauge


def _hertz(mhz: int | None) -> float | None:
    return None if mhz is None else mhz * 1e6


def _container_metrics(facts: NodeReport) -> Iterable[Metric]:
    families: list[tuple[GaugeMetricFamily | CounterMetricFamily, Callable[[TenantStatus], float]]] = [
        (GaugeMetricFamily(name, text, labels=_CONTAINER), read) for name, (text, read) in CONTAINER_GAUGES.items()
    ]
    families += [
        (CounterMetricFamily(name.removesuffix("_total"), text, labels=_CONTAINER), read)
        for name, (text, read) in CONTAINER_COUNTERS.items()
    ]
    for family, read in families:
        for gpu in facts.gpus:
            for use in gpu.uses:
                owner = use.owner
                where = [facts.node, str(gpu.index), gpu.uuid, owner.namespace, owner.pod, owner.container]
                family.add_metric(where, read(use.status))
        yield family
    yield from _wake_metrics(facts)


def _wake_metrics(facts: NodeReport) -> Iterable[Metric]:
    """Of containers that were promised to wake in time alone."""
    promised = GaugeMetricFamily(
        "aliquot_container_gpu_wake_promised_seconds", "How soon it was promised to wake", labels=_CONTAINER
    )
    measured = GaugeMetricFamily(
        "aliquot_container_gpu_wake_seconds", "From asking to the grant, after a rest", labels=(*_CONTAINER, "quantile")
    )
    kept = GaugeMetricFamily(
        "aliquot_container_gpu_wake_kept", "0 while a neighbour's kernels or its p99 break it", labels=_CONTAINER
    )
    for gpu in facts.gpus:
        for use in gpu.uses:
            if (wake := use.status.wake) is not None:
                owner = use.owner
                where = [facts.node, str(gpu.index), gpu.uuid, owner.namespace, owner.pod, owner.container]
                promised.add_metric(where, wake.promised_ms / 1e3)
                measured.add_metric([*where, "0.5"], wake.p50_ms / 1e3)
                measured.add_metric([*where, "0.99"], wake.p99_ms / 1e3)
                kept.add_metric(where, 1.0 if wake.kept else 0.0)
    yield from (promised, measured, kept)
