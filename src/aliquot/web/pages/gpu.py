"""One GPU: its tenants, the promise and the use of each, and the last hour."""

from __future__ import annotations

from statistics import fmean
from typing import Final, NamedTuple

from aliquot.web.api import Gpu, History, Series
from aliquot.web.facts import Facts
from aliquot.web.history import HOUR_S
from aliquot.web.pages import Drawn, NotHere, Query
from aliquot.web.pages.bars import compute_bar, memory_bar
from aliquot.web.render import block

CHARTS: Final = (
    ("usage_milli", "Usage", "part of the GPU"),
    ("memory_mib", "Memory", "GiB"),
    ("wait_ms", "Wait for a grant, median", "ms"),
    ("quota_ms", "Quota", "ms"),
    ("debt_ms", "Debt", "ms"),
)


class Hour(NamedTuple):
    """One tenant's hour in numbers, for viewers who do not see the charts."""

    tenant: str
    rows: list[tuple[str, str, str, str]]


def draw(facts: Facts, query: Query) -> Drawn:
    """The GPU that the query names by `uuid`."""
    gpu = find(facts, query.get("uuid", ""))
    history = facts.history(gpu.uuid, HOUR_S)
    hours = hours_of(history) if history else []
    blocks = [
        block("gpu", "blocks/gpu.html", gpu=gpu, compute=compute_bar(gpu), memory=memory_bar(gpu)),
        block("tenants", "blocks/tenants.html", gpu=gpu, window_s=facts.window_s),
        block("hour", "blocks/hour.html", hours=hours, gpu=gpu),
    ]
    return Drawn(f"GPU {gpu.index} of {gpu.node}", blocks, {"gpu": gpu, "charts": CHARTS})


def find(facts: Facts, uuid: str) -> Gpu:
    """The GPU by that UUID.

    Raises:
        NotHere: no such GPU exists.
    """
    gpu = next((gpu for gpu in facts.gpus() if gpu.uuid == uuid), None)
    if gpu is None:
        raise NotHere(f"There is no GPU {uuid[:60]} here.")
    return gpu


def hours_of(history: History) -> list[Hour]:
    """Minimum, mean and maximum of every quantity of every tenant."""
    return [Hour(series.tenant, _rows(series)) for series in history.series]


def _rows(series: Series) -> list[tuple[str, str, str, str]]:
    rows = []
    for metric, title, unit in CHARTS:
        divisor, digits = {"usage_milli": (1000, 2), "memory_mib": (1024, 1)}.get(metric, (1, 0))
        values = [value / divisor for value in getattr(series, metric) if value is not None]
        if values:
            numbers = (min(values), fmean(values), max(values))
            least, mean, most = (f"{value:.{digits}f}" for value in numbers)
            rows.append((f"{title} ({unit})", least, mean, most))
    return rows
