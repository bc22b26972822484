"""W3C trace contexts, and the one of a pod.

A trace begins where the pod's author wrote a context on it, or else with the pod itself: its trace id is then the pod's
uid without dashes, so a trace is found by what `kubectl get pod -o yaml` shows. All programs compute the same ids, and
need no memory of the pod for it.

Source: W3C Trace Context, Level 1 and 2, traceparent header.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_UID: Final = re.compile(r"[0-9a-f]{32}")
_SAMPLED: Final = 1


@dataclass(frozen=True)
class TraceContext:
    """A span by its ids; the children of one that is not sampled are not recorded."""

    trace_id: int
    span_id: int
    sampled: bool = True

    @property
    def text(self) -> str:
        """The traceparent header that names it."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED if self.sampled else 0:02x}"

    @property
    def exemplar(self) -> dict[str, str]:
        """The labels of an OpenMetrics exemplar that leads to it."""
        return {"trace_id": f"{self.trace_id:032x}", "span_id": f"{self.span_id:016x}"}


def read_traceparent(text: str) -> TraceContext | None:
    """The context that a traceparent header names; None for one that is invalid, which is treated as absent."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    context = TraceContext(int(trace, 16), int(span, 16), bool(int(flags, 16) & _SAMPLED))
    valid = context.trace_id and context.span_id and version != "ff" and (version != "00" or more is None)
    return context if valid else None


@dataclass(frozen=True)
class PodTrace:
    """Where a pod's spans belong: `root` is the span of its whole way, `parent` the context that its author wrote."""

    root: TraceContext
    parent: TraceContext | None = None


def pod_trace(uid: str, traceparent: str = "") -> PodTrace:
    """The trace of a pod, by its uid and the context that stands on it."""
    digest = hashlib.sha256(uid.encode()).digest()
    span_id = int.from_bytes(digest[:8]) or 1
    parent = read_traceparent(traceparent)
    if parent is not None:
        return PodTrace(TraceContext(parent.trace_id, span_id, parent.sampled), parent)
    digits = uid.replace("-", "")
    trace_id = int(digits, 16) if _UID.fullmatch(digits) else int.from_bytes(digest[8:24])
    return PodTrace(TraceContext(trace_id or 1, span_id))
