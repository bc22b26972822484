"""One GPU: its tenants, the promise and the use of each, and the last hour."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple

from aliquot.status import Gpu, History, Series, StatusSource
from aliquot.web.history.ring import HOUR_S
from aliquot.web.pages import Drawn, NotHere, Query, commands
from aliquot.web.pages.bars import compute_bar, memory_bar
from aliquot.web.render import block

CHARTS: Final = (
    ("usage_milli", "Usage", "part of the GPU"),
    ("memory_mib", "Memory", "GiB"),
    ("wait_ms", "Wait for a grant, median", "ms"),
    ("quota_ms", "Length of a grant", "ms"),
    ("debt_ms", "Debt", "ms"),
)


FOLDED: Final = frozenset({"quota_ms", "debt_ms"})
"""Charts that explain how turns are taken, not what a tenant gets; they are opened on demand."""
SHORTEST: Final = 8
ABBREVIATIONS: Final = (12, 17, 22)
"""`GPU-` and the first of the groups of a UUID."""


class Hour(NamedTuple):
    """One tenant's hour in numbers, for viewers who do not see the charts."""

    tenant: str
    rows: list[tuple[str, str, str, str]]


def draw(facts: StatusSource, query: Query) -> Drawn:
    """The GPU that the query names by `uuid`."""
    gpu = find(facts, query.get("uuid", ""))
    history = facts.history(gpu.uuid, HOUR_S)
    hours = hours_of(history) if history else []
    blocks = [
        block("gpu", "blocks/gpu.html", gpu=gpu, compute=compute_bar(gpu), memory=memory_bar(gpu)),
        block("tenants", "blocks/tenants.html", gpu=gpu, window_s=facts.window_s),
        block("hour", "blocks/hour.html", hours=hours, gpu=gpu),
    ]
    return Drawn(
        f"GPU {gpu.index} of {gpu.node}",
        blocks,
        {"gpu": gpu, "charts": CHARTS, "folded": FOLDED, "command": commands.top(facts)},
    )


def find(facts: StatusSource, uuid: str) -> Gpu:
    """The GPU by that UUID, or by a beginning of it that no other has, as CUDA_VISIBLE_DEVICES takes them.

    Raises:
        NotHere: no such GPU exists, or several.
    """
    found = [gpu for gpu in facts.gpus() if gpu.uuid.startswith(uuid)] if len(uuid) >= SHORTEST else []
    for gpu in found:
        if gpu.uuid == uuid or len(found) == 1:
            return gpu
    raise NotHere(f"There is no GPU {uuid[:60]} here.")


def abbreviated(uuids: Sequence[str]) -> int:
    """How many characters of these UUIDs tell any two apart."""
    for length in ABBREVIATIONS:
        if len({uuid[:length] for uuid in uuids}) == len(uuids):
            return length
    return max(map(len, uuids))


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
