"""Spans on their way to an OTLP/HTTP receiver, which may be slow, away or wrong at the cost of spans only.

A span is recorded when it has ended, with both of its times. It waits in a bounded queue for a thread of its own; one
that does not fit, or that the receiver did not take within a few seconds, is dropped and counted.

OpenTelemetry is imported by `open_spans` only, so programs without an endpoint neither need it nor pay for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from aliquot.lib.package import version
from aliquot.model.extras import require
from aliquot.tracing.context import TraceContext

if TYPE_CHECKING:
    from aliquot.tracing.export import Backlog

END_S: Final = 2.0
"""How long the end of a program waits for its last spans."""
Attributes = Mapping[str, str | int | float | bool | Sequence[str]]


class Spans:
    """Records spans of one program; made by `open_spans`. No method waits for the receiver but `close`, for `END_S`."""

    def __init__(self, provider: Any, ids: Any, backlog: Backlog) -> None:
        self._provider = provider
        self._ids = ids
        self._tracer = provider.get_tracer("aliquot", version())
        self._lock = threading.Lock()
        self.backlog = backlog

    def record(
        self,
        name: str,
        began_ns: int,
        ended_ns: int,
        attributes: Attributes,
        *,
        parent: TraceContext | None,
        itself: TraceContext | None = None,
        error: str = "",
    ) -> TraceContext:
        """A span that has ended, with times since the epoch; `itself` gives it ids chosen before."""
        from opentelemetry import trace
        from opentelemetry.context import Context

        context = Context()
        if parent is not None:
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if parent.sampled else trace.TraceFlags.DEFAULT)
            above = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
            context = trace.set_span_in_context(trace.NonRecordingSpan(above), context)
        facts = {**attributes, "aliquot.duration_ms": round((ended_ns - began_ns) / 1e6, 3)}
        with self._lock:
            self._ids.chosen = itself
            span = self._tracer.start_span(name, context=context, attributes=facts, start_time=began_ns)
            self._ids.chosen = None
        if error:
            span.set_status(trace.Status(trace.StatusCode.ERROR, error))
        span.end(end_time=ended_ns)
        made = span.get_span_context()
        return TraceContext(made.trace_id, made.span_id)

    def close(self) -> None:
        """Send what waits, for `END_S` at most; a receiver that does not answer does not hold up the end."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(END_S)


def open_spans(program: str, endpoint: str, facts: Mapping[str, str] | None = None) -> Spans | None:
    """Where a program's spans go; None without an endpoint. `facts` describe the program on every span.

    Raises:
        MissingExtra: OpenTelemetry is not installed.
    """
    if not endpoint:
        return None
    require("opentelemetry")
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

    from aliquot.tracing.export import Backlog, ChosenIds, processor

    # Its messages repeat with every batch; the backlog logs changes.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    backlog, ids = Backlog(), ChosenIds()
    resource = Resource.create({"service.name": program, "service.version": version(), **(facts or {})})
    provider = TracerProvider(
        sampler=ParentBased(ALWAYS_ON), resource=resource, id_generator=ids, shutdown_on_exit=False
    )
    provider.add_span_processor(processor(url_of(endpoint), backlog))
    return Spans(provider, ids, backlog)


@contextmanager
def tracing(program: str, endpoint: str, facts: Mapping[str, str] | None = None) -> Iterator[Spans | None]:
    """`open_spans` for the time of a program."""
    spans = open_spans(program, endpoint, facts)
    try:
        yield spans
    finally:
        if spans is not None:
            spans.close()


def url_of(endpoint: str) -> str:
    """Where traces are posted: below the endpoint, as OTEL_EXPORTER_OTLP_ENDPOINT is read."""
    return endpoint if endpoint.rstrip("/").endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
