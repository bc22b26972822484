"""Prometheus metrics in a thread of their own, from the last published status, without calling into the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aliquot.status.tenants import TenantStatus

from .records import Status

_TENANT: Final = ("gpu", "tenant")
T = TypeVar("T")
Readers = Mapping[str, tuple[str, Callable[[T], float | None]]]
"""By the end of a metric's name what it tells, and how it is read."""
Labelled = Sequence[tuple[Sequence[str], T]]
"""What is measured, such as tenants on their GPUs, each with the values of its labels."""

TENANT_GAUGES: Final[dict[str, tuple[str, Callable[[TenantStatus], float | None]]]] = {
    "request_ratio": ("Guaranteed part of the GPU", lambda t: t.request_milli / 1000),
    "limit_ratio": ("Maximum part of the GPU it may use", lambda t: t.limit_milli / 1000),
    "usage_ratio": ("Charged part of the window", lambda t: t.usage),
    "memory_used_bytes": ("Device memory it uses", lambda t: t.memory_used_mib << 20),
    "memory_limit_bytes": ("Device memory it may use", lambda t: t.memory_limit_mib << 20),
    "wait_seconds_median": ("Wait for one of the last 256 grants", lambda t: t.wait_ms_p50 / 1e3),
    "quota_seconds": ("Length of its next grant", lambda t: t.quota_ms / 1e3),
    "debt_seconds": ("Time that ran after its grant, not paid yet", lambda t: t.debt_ms / 1e3),
    "kernel_seconds_longest": ("Longest recent kernel or graph", lambda t: t.kernel_ms / 1e3),
    "idle_seconds": ("Time since it last used or wanted a GPU", lambda t: t.idle_s),
    "processes": ("Processes attached", lambda t: t.processes),
    "fluid_error_ratio": ("Last window's distance from the fluid", lambda t: t.promise.fluid_error),
    "fluid_error_p95_ratio": ("The same, in 95 of 100 windows", lambda t: t.promise.fluid_error_p95),
    "fluid_error_worst_ratio": ("The same, at worst", lambda t: t.promise.fluid_error_worst),
}
"""What the arbiter and a node's agent both report of a tenant, by the end of the metric's name."""
TENANT_COUNTERS: Final[dict[str, tuple[str, Callable[[TenantStatus], float | None]]]] = {
    "charged_seconds": ("GPU time charged", lambda t: t.charged_ns / 1e9),
    "unrouted_functions": ("Driver functions it got unhooked", lambda t: t.unrouted),
    "ungated_seconds": ("Time it ran without an arbiter", lambda t: t.ungated_ms / 1e3),
    "wanted_seconds": ("Time it wanted the GPU", lambda t: t.promise.wanted_ns / 1e9),
    "promise_windows": ("Windows in which it wanted the GPU", lambda t: t.promise.windows),
    "promise_kept": ("Of those, its request for the time it wanted the GPU kept", lambda t: t.promise.kept),
    "busy_windows": ("Windows in which it wanted the GPU all the time", lambda t: t.promise.busy_windows),
    "busy_kept": ("Of those, its request kept", lambda t: t.promise.busy_kept),
}
HANDOVERS: Final[tuple[str, Callable[[TenantStatus], float | None]]] = ("Grants", lambda t: t.handovers)


class Metrics(Collector):
    """Serves `/metrics` on 127.0.0.1."""

    def __init__(self, port: int) -> None:
        """Start serving.

        Raises:
            OSError: the port is taken.
        """
        self._status: Status | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise OSError(error.errno, f"metrics port {port} cannot be used: {error.strerror}") from error

    def publish(self, status: Status) -> None:
        """Set the status that the next scrape shows."""
        self._status = status

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=2)

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        status = self._status
        if status is None:
            return
        busy = GaugeMetricFamily("aliquot_gpu_busy_ratio", "Part of the window charged to any tenant", labels=("gpu",))
        held = GaugeMetricFamily("aliquot_gpu_held", "1 while a tenant holds a valid grant", labels=("gpu",))
        for gpu in status.gpus:
            busy.add_metric([gpu.uuid], gpu.busy)
            held.add_metric([gpu.uuid], 1.0 if gpu.holder else 0.0)
        yield from (busy, held)
        tenants = [((gpu.uuid, tenant.name), tenant) for gpu in status.gpus for tenant in gpu.tenants]
        counters = TENANT_COUNTERS | {"grants": HANDOVERS}
        yield from families(GaugeMetricFamily, "aliquot_tenant_", _TENANT, tenants, TENANT_GAUGES)
        yield from families(CounterMetricFamily, "aliquot_tenant_", _TENANT, tenants, counters)
        yield from wake_metrics("aliquot", _TENANT, tenants)


def families(
    kind: type[GaugeMetricFamily | CounterMetricFamily], prefix: str, labels: Sequence[str], measured: Labelled[T],
    readers: Readers[T],
) -> Iterable[Metric]:  # fmt: skip
    """A family for each reader, with a sample for each thing of which there is a value."""
    for name, (text, read) in readers.items():
        family = kind(prefix + name, text, labels=labels)
        for where, thing in measured:
            if (value := read(thing)) is not None:
                family.add_metric(where, value)
        yield family


def wake_metrics(prefix: str, labels: Sequence[str], tenants: Labelled[TenantStatus]) -> Iterable[Metric]:
    """Metrics of tenants with a promised time to wake."""
    promised = GaugeMetricFamily(f"{prefix}_wake_promised_seconds", "How soon it was promised to wake", labels=labels)
    measured = GaugeMetricFamily(
        f"{prefix}_wake_seconds", "From asking to the grant, after a rest and within its request, of the last 1024",
        labels=(*labels, "quantile"),
    )  # fmt: skip
    kept = GaugeMetricFamily(f"{prefix}_wake_kept", "0 while a neighbour's kernels or its p99 break it", labels=labels)
    for where, tenant in tenants:
        if (wake := tenant.wake) is not None:
            promised.add_metric(where, wake.promised_ms / 1e3)
            measured.add_metric([*where, "0.5"], wake.p50_ms / 1e3)
            measured.add_metric([*where, "0.99"], wake.p99_ms / 1e3)
            kept.add_metric(where, 1.0 if wake.kept else 0.0)
    yield from (promised, measured, kept)
