"""GPU-hours from a Prometheus that evaluates `deploy/grafana/aliquot-recording.yaml`: longer than a replica lives.

The rules sum by namespace and have one sample a minute. They do not say which unused promises others used, so all of it
counts as idle, and there are neither controllers nor models.
"""

from __future__ import annotations

import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from aliquot.model.errors import UserError
from aliquot.web.history.file import QUARTER_S
from aliquot.web.history.keeping import Past
from aliquot.web.history.reading import Range, totalled
from aliquot.web.history.records import HourLine, Hours, Timeline, Turns

ANSWER_S: Final = 5.0
MAX_BYTES: Final = 16 << 20
KEPT_S: Final = 30.0
RULES: Final = {
    "promised": "namespace:aliquot_gpu_requested:sum",
    "used": "namespace:aliquot_gpu_used:rate5m",
    "borrowed": "namespace:aliquot_gpu_borrowed:rate5m",
    "idle": "namespace:aliquot_gpu_unused:rate5m",
}
CAPACITY: Final = "node:aliquot_gpu_healthy:sum"
NOTE: Final = "From Prometheus, which records namespaces only; what was lent to others counts as idle."


def checked_url(url: str, option: str) -> str:
    """The address of a Prometheus without a slash at its end.

    Raises:
        UserError: it is not an http or https address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UserError(f'{option} "{url[:80]}" is not an address; write it as http://prometheus.monitoring:9090')
    return url.rstrip("/")


class PrometheusPast:
    """Hours of Prometheus; timelines and turns of `own`, and its hours too where Prometheus does not answer."""

    def __init__(self, url: str, own: Past, *, clock: Callable[[], float] = time.time) -> None:
        self._url = url
        self._own = own
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Range, tuple[float, Hours]] = {}

    def timeline(self, gpu: str, span: Range) -> Timeline:
        """See `Past`."""
        return self._own.timeline(gpu, span)

    def turns(self, gpu: str) -> Turns | None:
        """See `Past`."""
        return self._own.turns(gpu)

    def hours(self, span: Range) -> Hours:
        """See `Past`; one answer serves all viewers for half a minute."""
        with self._lock:
            known = self._known.get(span)
            if known is None or not 0 <= self._clock() - known[0] < KEPT_S:
                known = self._known[span] = (self._clock(), self._asked(span))
            return known[1]

    def _asked(self, span: Range) -> Hours:
        until = int(self._clock())
        seconds = max(span.seconds, QUARTER_S)
        try:
            sums = {field: self._summed(rule, "namespace", seconds, until) for field, rule in RULES.items()}
            recorded = sum(self._summed(CAPACITY, "node", seconds, until).values())
        except (OSError, ValueError, KeyError, TypeError) as error:
            found = self._own.hours(span)
            why = f"Prometheus at {self._url} does not answer ({error}); this is what this replica recorded."
            return Hours(found.since_s, found.until_s, found.recorded, found.lines, found.total, why)
        lines = []
        for namespace in sorted(set().union(*sums.values())):
            promised, used, borrowed, idle = (sums[field].get(namespace, 0.0) for field in RULES)
            lines.append(HourLine(namespace, "", "", promised, used, borrowed, 0.0, idle, 0.0))
        return totalled(Hours(until - seconds, until, recorded, lines, HourLine("", "", "", 0, 0, 0, 0, 0, 0), NOTE))

    def _summed(self, rule: str, label: str, seconds: int, until: int) -> dict[str, float]:
        """GPU-hours of a rule by a label, from its samples of a minute each."""
        query = urlencode({"query": f"sum by ({label}) (sum_over_time({rule}[{seconds}s])) / 60", "time": until})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=ANSWER_S) as answer:
            body = answer.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise ValueError(f"its answer is longer than {MAX_BYTES >> 20} MiB")
        series: list[dict[str, Any]] = json.loads(body)["data"]["result"]
        found = {str(each["metric"].get(label, "")): float(each["value"][1]) for each in series}
        return {name: value for name, value in found.items() if math.isfinite(value)}
