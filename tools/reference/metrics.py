"""Metrics, collected from the programs' own collectors over one made-up tenant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric

from aliquot.arbiter.metrics import Metrics as ArbiterMetrics
from aliquot.arbiter.records import GpuStatus, Status
from aliquot.node.display.metrics import ALIASES, registry_of
from aliquot.node.spans import KubeletCalls
from aliquot.scheduler.extender.metrics import SchedulerMetrics
from aliquot.status.nodes import NodeGpu, NodeReport, Owner, Use
from aliquot.status.sensors import Sensors
from aliquot.status.tenants import TenantStatus, WakeStatus
from aliquot.tracing.export import Backlog
from reference.markdown import code, page, sentence, table

HEAD = ("metric", "type", "labels", "what it tells")
_WAKE = WakeStatus(5.0, 1.0, 2.0, 100, True, 3.25)
_UUID = "GPU-00000000-0000-0000-0000-000000000000"


def page_text() -> str:
    """Every metric."""
    aliases = [part for name in sorted(ALIASES) for part in _alias(name)]
    return page(
        "Metrics",
        "A ratio is a part of one GPU or of the token window, 0 to 1. Alert rules and a board that use these names: "
        "[deploy/grafana](../../deploy/grafana).",
        "## Scheduler",
        "`/metrics` at the extender's address (`--bind`).",
        table(HEAD, _described([*vars(SchedulerMetrics()).values(), Backlog().dropped])),
        "## Nodes",
        "`/metrics` at the agent's `--display-address` and `--display-port`.",
        table(
            HEAD, [*_rows(registry_of(_facts).collect()), *_described([KubeletCalls("").seconds, Backlog().dropped])]
        ),
        "## Arbiter",
        "`/metrics` on the loopback at `--metrics-port` of `aliquot up` and `aliquot arbiter`.",
        table(HEAD, _rows(_arbiter())),
        "## Other projects' names",
        "Told by a node too where `--metric-aliases` asks for them, so that boards made for those go on working.",
        *aliases,
    )


def _alias(name: str) -> list[str]:
    return [f"### {name}", table(HEAD, _rows(ALIASES[name](_facts())))]


def _rows(families: Iterable[Metric]) -> list[tuple[str, str, str, str]]:
    """Each family by the name that is scraped, with the labels of its samples."""
    rows = []
    for family in families:
        if not family.samples:
            raise SystemExit(f"{family.name} has no sample in the made-up scene, so its labels are not known")
        sample = next((s for s in family.samples if s.name.endswith("_total")), family.samples[0])
        labels = ", ".join(code(label) for label in sample.labels)
        rows.append((code(sample.name), family.type, labels, sentence(family.documentation)))
    return rows


def _described(metrics: Iterable[Any]) -> list[tuple[str, str, str, str]]:
    """These metrics have no samples before they were used, so the labels come from the objects."""
    rows = []
    for metric in metrics:
        for family in metric.describe() if hasattr(metric, "describe") else ():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = ", ".join(code(label) for label in metric._labelnames)
            rows.append((code(name), family.type, labels, sentence(family.documentation)))
    return rows


def _tenant() -> TenantStatus:
    return TenantStatus("ns/pod/main", 300, 600, 0.25, 1, 512, 4096, 64, 1.0, 0.0, 100.0, 1, 1, False, wake=_WAKE)


def _facts() -> NodeReport:
    use = Use(Owner("ns", "pod", "main"), _tenant())
    sensors = Sensors(41, 60.0, 300.0, 1530, 877)
    gpu = NodeGpu(uuid=_UUID, model="V100", memory_mib=16384, busy=0.25, uses=(use,), sensors=sensors)
    return NodeReport(node="node", driver="550", gpus=(gpu,), window_ms=10_000, now_ns=1)


def _arbiter() -> Iterable[Metric]:
    gpu = GpuStatus(_UUID, None, 0.25, [_tenant()])
    collector = ArbiterMetrics.__new__(ArbiterMetrics)  # without the port that it would listen on
    collector.publish(Status(1, 1, 1, 10_000, "adaptive", 100, "revoke", "pace", 1, [gpu]))
    return collector.collect()
