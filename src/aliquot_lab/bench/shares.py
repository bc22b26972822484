"""`aliquot bench shares`: how far any tenant is from its due over a window, for different kinds of work.

Method: each mix runs for a window to settle and then `seconds`; twice a second the arbiter's charged time and every
tenant's completed kernel time are read. The error of a window is the largest distance from what was due, by either of
two measures: charged time as a part of the window, and completed kernels as a part of all completed kernels, which
knows nothing of the arbiter's records and does not blame a tenant for the pauses in its own loop. A mix's figure is the
worst of all windows of 10 s that begin at any sample. Where requests add up to the GPU the due is the request; for
bursts, which leave part of their time to others, it is an equal part of what both used.

A client counts a kernel when it has seen it finished, so a kernel of one second that straddles the edge of a window is
counted in one of the two only: for the mix `long` charged time alone is read, which runs on within a kernel.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aliquot_lab.bench.fig6 import RequestedShare, Sample, Tenant
from aliquot_lab.bench.fig6 import shares as shares_between
from aliquot_lab.bench.figures import worst_error
from aliquot_lab.bench.scene import Program, python_client, scene, start_all

TICK_S: Final = 0.5
WINDOW_S: Final = 10.0


@dataclass(frozen=True)
class ShareMix:
    """Tenants by (request milli, limit milli, client mode and options); `equal` instead of their requests as due."""

    name: str
    tenants: tuple[tuple[int, int, tuple[str, ...]], ...]
    equal: bool = False
    charged: bool = False

    @property
    def wanted(self) -> list[tuple[Tenant, RequestedShare, Program]]:
        """As a scene starts them."""
        return [
            (Tenant(f"t{number}"), RequestedShare(request, limit, 1024), python_client(*options))
            for number, (request, limit, options) in enumerate(self.tenants)
        ]


_BURST: Final = ("burst", "--batch", "25", "--kernel-ms", "4", "--idle-ms", "20")
MIXES: Final = (
    ShareMix("steady", ((300, 1000, ("steady",)), (700, 1000, ("steady",)))),
    ShareMix("sync", ((250, 1000, ("sync",)), (750, 1000, ("sync",)))),
    ShareMix("graph", ((400, 1000, ("graph",)), (600, 1000, ("graph",)))),
    ShareMix("burst", ((500, 1000, _BURST), (500, 1000, _BURST)), equal=True),
    ShareMix("long", ((300, 1000, ("long",)), (700, 1000, ("steady",))), charged=True),
    ShareMix("mixed", ((200, 1000, ("steady",)), (300, 1000, ("sync",)), (500, 1000, ("graph",)))),
    ShareMix("eight", tuple((125, 1000, ("steady",)) for _ in range(8))),
)


def windows(samples: Sequence[Sample], window_s: float, *, charged: bool = False) -> list[dict[Tenant, float]]:
    """Every tenant's share of each window that begins at a sample and ends at the first one a window later.

    With `charged`, of the window's time; otherwise its part of all kernel time that was completed.
    """
    seen: list[dict[Tenant, float]] = []
    for first in samples:
        last = next((late for late in samples if late.at_ns - first.at_ns >= window_s * 1e9), None)
        if last is None:
            break
        span_ns = last.at_ns - first.at_ns
        began, ended = ((at.charged_ns if charged else at.completed_ns) for at in (first, last))
        used = shares_between(began, ended, span_ns)
        whole = 1.0 if charged else sum(used.values()) or 1.0
        seen.append({tenant: share / whole for tenant, share in used.items()})
    return seen


def mix_error(mix: ShareMix, seen: Sequence[Mapping[Tenant, float]]) -> float:
    """The worst error of a mix in points."""
    if not mix.equal:
        return worst_error({tenant: ask.request_milli / 1000 for tenant, ask, _ in mix.wanted}, seen)
    equal = ((window, sum(window.values()) / len(window)) for window in seen)
    return max((worst_error(dict.fromkeys(window, part), [window]) for window, part in equal), default=0.0)


def run_mix(emulate: str | None, mix: ShareMix, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """One mix; its figure, and the GPU."""
    with scene(emulate, window_ms=int(WINDOW_S * 1000)) as stage:
        start_all(stage, mix.wanted)
        time.sleep(WINDOW_S * 1.2)
        samples = [stage.sample()]
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(TICK_S)
            samples.append(stage.sample())
        counted = mix_error(mix, windows(samples, WINDOW_S, charged=True))
        work = 0.0 if mix.charged else mix_error(mix, windows(samples, WINDOW_S))
        mean = shares_between(samples[0].completed_ns, samples[-1].completed_ns, samples[-1].at_ns - samples[0].at_ns)
        case = {
            "mix": mix.name,
            "error_points_worst": round(max(counted, work), 2),
            "charged_points_worst": round(counted, 2),
            "completed_points_worst": None if mix.charged else round(work, 2),
            "shares": {tenant: round(share, 4) for tenant, share in mean.items()},
        }
        return case, stage.about


def shares(emulate: str | None, mixes: Sequence[ShareMix], seconds: float) -> dict[str, Any]:
    """All mixes and the worst of them."""
    seen = [run_mix(emulate, mix, seconds) for mix in mixes]
    cases = [case for case, _ in seen]
    return {"cases": cases, "error_points_worst": max(case["error_points_worst"] for case in cases), **seen[0][1]}
