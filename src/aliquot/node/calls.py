"""How long kubelet's calls take: a histogram for its metrics, and spans of the pods where tracing is on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import Histogram
from prometheus_client.registry import Collector

from aliquot.node.spans import ContainerSpans, Start
from aliquot.tracing.spans import Spans

BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class KubeletCalls:
    """Measures the two calls that start a container; one that prepares it has its trace as an exemplar."""

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
        self.starts = ContainerSpans(node, spans) if spans is not None else None
        self._node = node

    def allocated(self, name: str, seconds: float) -> None:
        """Allocate has just been answered with this name."""
        self.seconds.labels(self._node, "Allocate").observe(seconds)
        if self.starts is not None:
            self.starts.allocated(name, seconds)

    def prepared(self, starts: Iterable[Start], seconds: float, why: str) -> None:
        """PreStartContainer has just been answered, for these containers; `why` it was refused, or empty."""
        exemplar = None
        if self.starts is not None:
            for start in starts:
                exemplar = self.starts.prepared(start, seconds, why) or exemplar
        self.seconds.labels(self._node, "PreStartContainer").observe(seconds, exemplar)
