"""`aliquot bench handover`: from the last use by one tenant to the first launch of the next.

Method: 2, 8 and 32 tenants with equal requests that add up to the GPU launch kernels of 1 ms one at a time, as fast as
they may, at a fixed quota of 30 and of 100 ms. Each notes when its launch call returned and when it saw the kernel
finished. With all turns of all tenants in one order, a hand-over is the gap at each change of tenant: revocation,
draining's answer, the grant, the wake-up of the next process, and its launch call. It contains both clients' Python, of
some ten microseconds. `gpu_idle_percent` is the sum of these gaps over the whole time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from aliquot.bench.fig6 import Ask, Tenant
from aliquot.bench.figures import handovers, overlap, percentile
from aliquot.bench.scene import scene, start_all

TENANTS: Final = (2, 8, 32)
QUOTAS_MS: Final = (30, 100)
SECONDS: Final = 10.0
MEMORY_MIB: Final = 64


def handover_case(emulate: str | None, tenants: int, quota_ms: int, seconds: float) -> tuple[dict[str, Any], str, bool]:
    """One number of tenants at one quota; the figures, the GPU, and whether it is emulated."""
    ask = Ask(1000 // tenants, 1000, MEMORY_MIB if tenants > 8 else 1024)
    options = ("sync", "--kernel-ms", "1")
    with scene(emulate, quota="fixed", quota_ms=quota_ms) as stage:
        wanted = [(Tenant(f"t{number}"), ask, options) for number in range(tenants)]
        clients = start_all(stage, wanted)
        time.sleep(seconds)
        stage.end_all()
        seen = handovers(overlap({client.tenant: client.intervals for client in clients}))
        gaps_us = [gap / 1e3 for gap in seen.gaps_ns]
        case = {
            "tenants": tenants,
            "quota_ms": quota_ms,
            "handover_us_p50": round(percentile(gaps_us, 50), 1) if gaps_us else None,
            "handover_us_p99": round(percentile(gaps_us, 99), 1) if gaps_us else None,
            "gpu_idle_percent": round(seen.idle_percent, 3),
            "handovers": len(gaps_us),
        }
        return case, stage.gpu, stage.emulated


def handover(
    emulate: str | None,
    tenants: Sequence[int] = TENANTS,
    quotas_ms: Sequence[int] = QUOTAS_MS,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """All cases."""
    seen = [handover_case(emulate, count, quota, seconds) for count in tenants for quota in quotas_ms]
    return {"cases": [case for case, _, _ in seen], "gpu": seen[0][1], "emulated": seen[0][2]}
