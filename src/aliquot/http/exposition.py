"""Metrics in the form that a scraper accepts: OpenMetrics, which has exemplars, or Prometheus' text."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response


def exposition(registry: CollectorRegistry, accept: str) -> Response:
    """One scrape; `accept` is the request's header."""
    encoder, content_type = choose_encoder(accept)
    return Response(encoder(registry), media_type=content_type)
