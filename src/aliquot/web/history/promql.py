"""A GPU's timeline as one query of Prometheus over the metrics of a node's agent, and its answer as lanes.

Each step is computed from the samples within it: what was used and waited from increases of counters, promise and
memory from samples at equal distances. A step counts as recorded for as long as the agent told of the GPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aliquot.status import Range, Timeline
from aliquot.status.history import MINUTE_S, Lane

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
        metric = each["metric"]
        values = _placed(each["values"], since_s, span.step_s, steps)
        if metric[_FIELD] == RECORDED:
            recorded = values
        else:
            found.setdefault(tuple(str(metric.get(name, "")) for name in OF), {})[metric[_FIELD]] = values
    lanes = [_lane(called(name), sums, recorded, span) for name, sums in found.items()]
    parts = np.minimum(1.0, recorded * sample_s(span) / span.step_s)
    at_s = list(range(since_s, until_s, span.step_s))
    lanes.sort(key=lambda lane: lane.tenant)
    return Timeline(gpu, since_s, until_s, span.step_s, at_s, np.round(parts, 3).tolist(), lanes)


def _placed(values: Iterable[tuple[float, str]], since_s: int, step_s: int, steps: int) -> Sums:
    """Values by step; a sample belongs to the step that ends with it."""
    placed = np.zeros(steps)
    for at_s, text in values:
        step, value = round((at_s - since_s) / step_s) - 1, float(text)
        if 0 <= step < steps and math.isfinite(value):
            placed[step] = max(0.0, value)
    return placed


def _lane(tenant: str, sums: Mapping[str, Sums], recorded: Sums, span: Range) -> Lane:
    nothing = np.zeros(len(recorded))
    held = {field: sums.get(field, nothing) for field in _SUMS}
    known = recorded > 0
    looked = np.maximum(recorded, 1)
    seconds = np.minimum(looked * sample_s(span), span.step_s)
    windows = np.maximum(held["windows"], 1e-9)

    def where(values: Sums, digits: int, there: NDArray[np.bool_] = known) -> list[Any]:
        return [round(value, digits) if so else None for so, value in zip(there.tolist(), values.tolist(), strict=True)]

    return Lane(
        tenant,
        "",
        used=where(np.minimum(1.0, held["used"] / seconds), 4),
        promised=where(np.minimum(1.0, held["promised"] / looked), 4),
        lent=[None] * len(recorded),
        waited=where(np.minimum(1.0, held["waited"] / seconds), 4),
        memory_mib=where(held["memory"] / np.maximum(held["there"], 1) / _MIB, 1),
        kept_percent=where(np.minimum(100.0, 100 * held["kept"] / windows), 2, known & (held["windows"] >= 0.5)),
        handovers=[None if value is None else int(value) for value in where(held["handovers"], 0)],
    )
