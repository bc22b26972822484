"""OpenTelemetry's parts with our bounds: ids chosen before a span begins, a queue that counts what it drops.

The queue is of spans that wait for their receiver, or are being sent to it.

Imported by `spans.open_spans` only where there is an endpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from prometheus_client import Counter

from aliquot.lib.log import Logger
from aliquot.tracing.context import TraceContext

log = Logger("tracing")
QUEUE: Final = 2048
"""Spans that wait or are being sent."""
BATCH: Final = 512
EVERY_MS: Final = 1000
TIMEOUT_S: Final = 5.0
"""For one batch in all, with its retries."""


class Backlog:
    """How many spans wait or are being sent; what does not fit is dropped. From any thread."""

    def __init__(self) -> None:
        self.dropped = Counter(
            "aliquot_tracing_spans_dropped_total",
            "Spans that the receiver did not get, where tracing is on.",
            registry=None,
        )
        self._lock = threading.Lock()
        self._count = 0
        self._delivers = True

    def admit(self) -> bool:
        """Whether one more fits."""
        with self._lock:
            if self._count < QUEUE:
                self._count += 1
                return True
        self.dropped.inc()
        return False

    def sent(self, count: int, *, delivered: bool, endpoint: str) -> None:
        """So many have left the queue; a change between delivered and not is logged once."""
        with self._lock:
            self._count -= count
            changed, self._delivers = self._delivers != delivered, delivered
        if not delivered:
            self.dropped.inc(count)
        if changed and delivered:
            log.info("spans are delivered again to %s", endpoint)
        elif changed:
            log.warning("spans are not delivered to %s and are dropped; scheduling goes on without them", endpoint)


class ChosenIds(RandomIdGenerator):
    """Random ids, or those of `chosen`; the caller holds a lock."""

    chosen: TraceContext | None = None

    def generate_span_id(self) -> int:
        """Of the next span."""
        return self.chosen.span_id if self.chosen is not None else super().generate_span_id()

    def generate_trace_id(self) -> int:
        """Of a span without a parent."""
        return self.chosen.trace_id if self.chosen is not None else super().generate_trace_id()


class _Exporter(SpanExporter):
    """Tells the backlog what became of each batch; no failure goes further."""

    def __init__(self, url: str, backlog: Backlog) -> None:
        self._inner = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S)
        self._url = url
        self._backlog = backlog

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        try:
            result = self._inner.export(spans)
        except Exception:  # a receiver may answer anything, and the exporter knows some of it
            result = SpanExportResult.FAILURE
        self._backlog.sent(len(spans), delivered=result is SpanExportResult.SUCCESS, endpoint=self._url)
        return result

    def shutdown(self) -> None:
        """End retries."""
        self._inner.shutdown()  # type: ignore[no-untyped-call]


class _Bounded(BatchSpanProcessor):
    """Refuses what does not fit, where the library would drop what waits longest without a count."""

    def __init__(self, exporter: SpanExporter, backlog: Backlog) -> None:
        super().__init__(exporter, max_queue_size=QUEUE, schedule_delay_millis=EVERY_MS, max_export_batch_size=BATCH)
        self._backlog = backlog

    def on_end(self, span: ReadableSpan) -> None:
        """A span has ended."""
        if span.context is not None and span.context.trace_flags.sampled and self._backlog.admit():
            super().on_end(span)


def processor(url: str, backlog: Backlog) -> SpanProcessor:
    """The way from spans to the receiver at `url`."""
    return _Bounded(_Exporter(url, backlog), backlog)
