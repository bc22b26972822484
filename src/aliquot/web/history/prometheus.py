"""The past from a Prometheus: longer than a replica lives. Timelines of a day and more, and GPU-hours.

Timelines are computed from the metrics of the nodes' agents. GPU-hours are those that the rules of
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
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec

from aliquot.status import HourLine, Hours, Past, Range, Timeline
from aliquot.status.history import MINUTE_S
from aliquot.status.hours import totalled
from aliquot.web.history.file import QUARTER_S
from aliquot.web.history.promql import Name, timeline_from, timeline_query

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


class PrometheusPast:
    """Hours and long timelines of Prometheus; the rest of `own`, and everything where Prometheus does not answer.

    `names` are the tenants that a GPU has now, by `namespace/pod/container`; others are called so.
    """

    def __init__(
        self,
        url: str,
        own: Past,
        *,
        names: Callable[[str], Mapping[str, str]] = lambda gpu: {},
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._own = own
        self._names = names
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}
        self._failed_s = -math.inf
        self._why = ""

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """See `Past`; one answer serves all viewers for half a minute."""
        if span.seconds < LONG_S:
            return self._own.timeline(gpu, span)
        return self._remembered((gpu, span), lambda: self._timeline(gpu, span))

    def hours(self, span: Range) -> Hours:
        """See `Past`; one answer serves all viewers for half a minute."""
        return self._remembered(span, lambda: self._hours(span))

    def _remembered(self, key: Hashable, work: Callable[[], T]) -> T:
        with self._lock:
            now_s = self._clock()
            self._kept = {each: held for each, held in self._kept.items() if 0 <= now_s - held[0] < KEPT_S}
            if key not in self._kept:
                while len(self._kept) >= MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = (now_s, work())
            found: T = self._kept[key][1]
            return found

    def _timeline(self, gpu: str, span: Range) -> Timeline:
        until_s = int(self._clock()) // MINUTE_S * MINUTE_S
        first_s = until_s - span.seconds + span.step_s
        query = {"query": timeline_query(gpu, span), "start": first_s, "end": until_s, "step": span.step_s}
        names = self._names(gpu)

        def called(name: Name) -> str:
            return names.get("/".join(name), "/".join(name))

        try:
            found = timeline_from(self._answer("query_range", query), gpu, span, until_s, called)
        except _UNUSABLE as error:
            return _with_note(self._own.timeline(gpu, span), self._absent(error))
        if not any(found.recorded):
            why = f"Prometheus at {self._url} has nothing of this GPU; this is what this replica recorded."
            return _with_note(self._own.timeline(gpu, span), why)
        return msgspec.structs.replace(found, source=TIMELINE_SOURCE)

    def _hours(self, span: Range) -> Hours:
        until = int(self._clock())
        seconds = max(span.seconds, QUARTER_S)
        try:
            sums = {field: self._summed(rule, "namespace", seconds, until) for field, rule in RULES.items()}
            recorded = sum(self._summed(CAPACITY, "node", seconds, until).values())
        except _UNUSABLE as error:
            return _with_note(self._own.hours(span), self._absent(error))
        lines = []
        for namespace in sorted(set().union(*sums.values())):
            promised, used, borrowed, idle = (sums[field].get(namespace, 0.0) for field in RULES)
            lines.append(HourLine(namespace, "", "", promised, used, borrowed, 0.0, idle, 0.0))
        nothing = HourLine("", "", "", 0, 0, 0, 0, 0, 0)
        return totalled(Hours(until - seconds, until, recorded, lines, nothing, source=SOURCE))

    def _absent(self, error: Exception) -> str:
        if not isinstance(error, _StillAbsent):
            self._failed_s, self._why = self._clock(), str(error)
        return f"Prometheus at {self._url} does not answer ({self._why}); this is what this replica recorded."

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
        if 0 <= self._clock() - self._failed_s < KEPT_S:
            raise _StillAbsent
        with urllib.request.urlopen(f"{self._url}/api/v1/{page}?{urlencode(query)}", timeout=ANSWER_S) as answer:
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
