"""The spans of a pod in the scheduler: its filters, its bind, and its whole way up to there as their parent.

A verb notes whose request it answers; the server, which measures the verb, then records the span with the same time as
its histogram, so that an exemplar leads to the span of the very request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

from aliquot.kube.names import TRACEPARENT
from aliquot.kube.objects import Meta
from aliquot.tracing.context import PodTrace, pod_trace
from aliquot.tracing.spans import Spans

BOUND: Final = "bind"
_Note = tuple[Meta, Mapping[str, Any], str]
_NOTED: Final[ContextVar[_Note | None]] = ContextVar("noted", default=None)


class PodSpans:
    """Records what the verbs note; each request is answered in a task of its own."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def note(self, meta: Meta, facts: Mapping[str, Any], *, error: str = "") -> None:
        """The request that is being answered is about this pod."""
        _NOTED.set((meta, facts, error))

    def record(self, verb: str, seconds: float) -> dict[str, str] | None:
        """The span of a verb that has just been answered; its exemplar, None where nothing was noted or is traced."""
        noted = _NOTED.get()
        if noted is None:
            return None
        meta, facts, error = noted
        trace = trace_of(meta)
        if not trace.root.sampled:
            return None
        ended_ns = time.time_ns()
        began_ns = ended_ns - int(seconds * 1e9)
        attributes = {**pod_attributes(meta), **facts}
        made = self._spans.record(verb, began_ns, ended_ns, attributes, parent=trace.root, error=error)
        if verb == BOUND and not error:
            created_ns = min(began_ns, _created_ns(meta) or began_ns)
            self._spans.record("pod", created_ns, ended_ns, attributes, parent=trace.parent, itself=trace.root)
        return made.exemplar


def trace_of(meta: Meta) -> PodTrace:
    """The trace of a pod that has no node yet."""
    return pod_trace(meta.uid, meta.annotations.get(TRACEPARENT, ""))


def traceparent(meta: Meta) -> str:
    """What a pod carries to its node: the span of its whole way."""
    return trace_of(meta).root.text


def pod_attributes(meta: Meta) -> dict[str, str]:
    """The pod by OpenTelemetry's names."""
    return {"k8s.namespace.name": meta.namespace, "k8s.pod.name": meta.name, "k8s.pod.uid": meta.uid}


def _created_ns(meta: Meta) -> int:
    try:
        return int(datetime.fromisoformat(meta.creation_timestamp or "").timestamp() * 10**9)
    except ValueError:
        return 0
