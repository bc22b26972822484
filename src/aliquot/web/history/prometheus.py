"""The past from a Prometheus: longer than a replica lives. Timelines of a day and more, and GPU-hours.

Timelines are one query each over the metrics of the nodes' agents. Each step is computed from the samples within it:
what was used and waited from increases of counters, promise and memory from samples at equal distances; it counts as
recorded for as long as the agent reported the GPU. GPU-hours are those that the rules of
`deploy/grafana/aliquot-recording.yaml` sum by namespace, one sample a minute: they have neither controllers nor models.
Neither says which unused promises others used, so all of it counts as idle. Shorter times, turns, and what Prometheus
does not answer are what the replica recorded itself.
"""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlencode

import msgspec
import numpy as np
from numpy.typing import NDArray

from aliquot.lib.bounded import Bounded
from aliquot.status import HourLine, Hours, Past, Range, Timeline
from aliquot.status.history import MINUTE_S, NO_HOURS, QUARTER_S, Lane, Uses, totalled
from aliquot.web.history.file import where

T = TypeVar("T")
ANSWER_S: Final = 5.0
MAX_BYTES: Final = 16 << 20
KEPT_S: Final = 30.0
MAX_KEPT: Final = 64
LONG_S: Final = 2 * 3600
"""Timelines of at least this much come from Prometheus: so much a replica keeps without a file."""
RULES: Final = {
    "promised": "namespace:aliquot_gpu_requested:sum",
    "used": "namespace:aliquot_gpu_used:rate5m",
    "borrowed": "namespace:aliquot_gpu_borrowed:rate5m",
    "idle": "namespace:aliquot_gpu_unused:rate5m",
}
CAPACITY: Final = "node:aliquot_gpu_healthy:sum"
SOURCE: Final = "From Prometheus, which records namespaces only; what was lent to others counts as idle."
TIMELINE_SOURCE: Final = "From Prometheus; what was lent to others is not recorded there."
_UNUSABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass
class PrometheusPast:
    """Hours and long timelines of Prometheus; the rest of `own`, and everything where Prometheus does not answer.

    `names` are the tenants that a GPU has now, by `namespace/pod/container`; others are called so.
    """

    url: str
    own: Past
    names: Callable[[str], Mapping[str, str]] = lambda gpu: {}
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _kept: Bounded[Hashable, tuple[float, Any]] = field(init=False, default_factory=lambda: Bounded(MAX_KEPT))
    _failed_s: float = field(init=False, default=-math.inf)
    _why: str = field(init=False, default="")

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """See `Past`; one answer serves all viewers for half a minute."""
        if span.seconds < LONG_S:
            return self.own.timeline(gpu, span)
        return self._remembered((gpu, span), lambda: self._timeline(gpu, span))

    def hours(self, span: Range) -> Hours:
        """See `Past`; one answer serves all viewers for half a minute."""
        return self._remembered(span, lambda: self._hours(span))

    def uses(self, span: Range) -> Uses:
        """See `Past`; from what the replica recorded, for Prometheus knows no controllers."""
        return self.own.uses(span)

    def _remembered(self, key: Hashable, work: Callable[[], T]) -> T:
        with self._lock:
            now_s = self.clock()
            read_s, found = self._kept.get(key, (-math.inf, None))
            if not 0 <= now_s - read_s < KEPT_S:
                found = work()
                self._kept[key] = (now_s, found)
            return cast(T, found)

    def _timeline(self, gpu: str, span: Range) -> Timeline:
        until_s = int(self.clock()) // MINUTE_S * MINUTE_S
        first_s = until_s - span.seconds + span.step_s
        query = {"query": timeline_query(gpu, span), "start": first_s, "end": until_s, "step": span.step_s}
        names = self.names(gpu)

        def called(name: Name) -> str:
            return names.get("/".join(name), "/".join(name))

        try:
            found = timeline_from(self._answer("query_range", query), gpu, span, until_s, called)
        except _UNUSABLE as error:
            return _with_note(self.own.timeline(gpu, span), self._absent(error))
        if not any(found.recorded):
            why = f"Prometheus at {self.url} has nothing of this GPU; this is what this replica recorded."
            return _with_note(self.own.timeline(gpu, span), why)
        return msgspec.structs.replace(found, source=TIMELINE_SOURCE)

    def _hours(self, span: Range) -> Hours:
        until = int(self.clock())
        seconds = max(span.seconds, QUARTER_S)
        try:
            sums = {field: self._summed(rule, "namespace", seconds, until) for field, rule in RULES.items()}
            recorded = sum(self._summed(CAPACITY, "node", seconds, until).values())
        except _UNUSABLE as error:
            return _with_note(self.own.hours(span), self._absent(error))
        lines = []
        for namespace in sorted(set().union(*sums.values())):
            promised, used, borrowed, idle = (sums[field].get(namespace, 0.0) for field in RULES)
            lines.append(HourLine(namespace, "", "", promised, used, borrowed, 0.0, idle, 0.0))
        return totalled(Hours(until - seconds, until, recorded, lines, NO_HOURS, source=SOURCE))

    def _absent(self, error: Exception) -> str:
        if not isinstance(error, _StillAbsent):
            self._failed_s, self._why = self.clock(), str(error)
        return f"Prometheus at {self.url} does not answer ({self._why}); this is what this replica recorded."

    def _summed(self, rule: str, label: str, seconds: int, until: int) -> dict[str, float]:
        """GPU-hours of a rule by a label, from its samples of a minute each."""
        query = {"query": f"sum by ({label}) (sum_over_time({rule}[{seconds}s])) / 60", "time": until}
        series = self._answer("query", query)
        found = {str(each["metric"].get(label, "")): float(each["value"][1]) for each in series}
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _answer(self, page: str, query: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The series that Prometheus answers with; after a failure it is left alone for a while.

        Raises:
            OSError, ValueError, KeyError, TypeError: it does not answer, or with something else.
        """
        if 0 <= self.clock() - self._failed_s < KEPT_S:
            raise _StillAbsent
        with urllib.request.urlopen(f"{self.url}/api/v1/{page}?{urlencode(query)}", timeout=ANSWER_S) as answer:
            body = answer.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise ValueError(f"its answer is longer than {MAX_BYTES >> 20} MiB")
        series: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        return series


class _StillAbsent(OSError):
    """It did not answer a moment ago."""


def _with_note(found: T, note: str) -> T:
    kept: str = getattr(found, "note", "")
    return msgspec.structs.replace(found, note=f"{note} {kept}".rstrip())  # type: ignore[type-var]


OF: Final = ("namespace", "pod", "container")
SAMPLES: Final = 48
"""How often promise and memory are looked at in a step of hours."""
RECORDED: Final = "recorded"
_FIELD: Final = "field"
_MIB: Final = 1 << 20
_SUMS: Final[Mapping[str, str]] = {
    "promised": "sum_over_time(aliquot_container_gpu_request_ratio{gpu}[{samples}])",
    "memory": "sum_over_time(aliquot_container_gpu_memory_used_bytes{gpu}[{samples}])",
    "there": "count_over_time(aliquot_container_gpu_memory_used_bytes{gpu}[{samples}])",
    "used": "increase(aliquot_container_gpu_charged_seconds_total{gpu}[{step}])",
    "waited": "increase(aliquot_container_gpu_throttled_seconds_total{gpu}[{step}])",
    "windows": "increase(aliquot_container_gpu_promise_windows_total{gpu}[{step}])",
    "kept": "increase(aliquot_container_gpu_promise_kept_total{gpu}[{step}])",
    "handovers": "increase(aliquot_container_gpu_handovers_total{gpu}[{step}])",
}

Sums = NDArray[np.float64]
Name = tuple[str, ...]


def sample_s(span: Range) -> int:
    """How far apart promise and memory are looked at: a minute, and in steps of hours a part of them."""
    return max(MINUTE_S, span.step_s // SAMPLES // MINUTE_S * MINUTE_S)


def timeline_query(gpu: str, span: Range) -> str:
    """Everything of one GPU: a series for each container and field, and one for how much was recorded."""
    fill = {
        "gpu": f"{{uuid={json.dumps(gpu)}}}",
        "step": f"{span.step_s}s",
        "samples": f"{span.step_s}s:{sample_s(span)}s",
    }

    def marked(text: str, field: str) -> str:
        for word, value in fill.items():
            text = text.replace(f"{{{word}}}", value)
        return f'label_replace({text}, "{_FIELD}", "{field}", "", "")'

    sums = [marked(f"sum by ({', '.join(OF)}) ({text})", field) for field, text in _SUMS.items()]
    return " or ".join([marked("count_over_time(max(aliquot_node_gpu_healthy{gpu})[{samples}])", RECORDED), *sums])


def timeline_from(
    series: Iterable[Mapping[str, Any]], gpu: str, span: Range, until_s: int, called: Callable[[Name], str]
) -> Timeline:
    """The answer of `timeline_query` for steps that end at `until_s`; `called` is a tenant's name by its labels.

    Raises:
        ValueError, KeyError, TypeError: it is no such answer.
    """
    steps = span.seconds // span.step_s
    since_s = until_s - span.seconds
    found: dict[Name, dict[str, Sums]] = {}
    recorded = np.zeros(steps)
    for each in series:
        metric, values = each["metric"], np.zeros(steps)
        for moment_s, text in each["values"]:  # a sample belongs to the step that ends with it
            step, value = round((moment_s - since_s) / span.step_s) - 1, float(text)
            if 0 <= step < steps and math.isfinite(value):
                values[step] = max(0.0, value)
        if metric[_FIELD] == RECORDED:
            recorded = values
        else:
            found.setdefault(tuple(str(metric.get(name, "")) for name in OF), {})[metric[_FIELD]] = values
    lanes = [_lane(called(name), sums, recorded, span) for name, sums in found.items()]
    parts = np.minimum(1.0, recorded * sample_s(span) / span.step_s)
    at_s = list(range(since_s, until_s, span.step_s))
    lanes.sort(key=lambda lane: lane.tenant)
    return Timeline(gpu, since_s, until_s, span.step_s, at_s, np.round(parts, 3).tolist(), lanes)


def _lane(tenant: str, sums: Mapping[str, Sums], recorded: Sums, span: Range) -> Lane:
    nothing = np.zeros(len(recorded))
    held = {field: sums.get(field, nothing) for field in _SUMS}
    known = recorded > 0
    looked = np.maximum(recorded, 1)
    seconds = np.minimum(looked * sample_s(span), span.step_s)
    windows = np.maximum(held["windows"], 1e-9)

    def shown(values: Sums, digits: int, there: NDArray[np.bool_] = known) -> list[Any]:
        return where(there, np.round(values, digits))

    return Lane(
        tenant,
        "",
        used=shown(np.minimum(1.0, held["used"] / seconds), 4),
        promised=shown(np.minimum(1.0, held["promised"] / looked), 4),
        lent=[None] * len(recorded),
        waited=shown(np.minimum(1.0, held["waited"] / seconds), 4),
        memory_mib=shown(held["memory"] / np.maximum(held["there"], 1) / _MIB, 1),
        kept_percent=shown(np.minimum(100.0, 100 * held["kept"] / windows), 2, known & (held["windows"] >= 0.5)),
        handovers=where(known, np.round(held["handovers"]).astype(int)),
    )
