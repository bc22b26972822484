"""`aliquot bench handover`: from the last use by one tenant to the first launch of the next.

Method: 2, 8 and 32 tenants with equal requests that add up to the GPU launch kernels of 1 ms one at a time, as fast as
they may, at a fixed quota of 30 and of 100 ms (native/bench/driver_bench.c). Each notes when its launch call returned
and when it saw the kernel finished. With all turns of all tenants in one order, a hand-over is the gap at each change
of tenant: the answer of the drained tenant, the grant, the wake-up of the next process, and its launch call.
`gpu_idle_percent` is the sum of these gaps over the whole time.

`limit_us` is what the machine allows: a program (native/bench/token.c) whose processes pass a token through the same
wake-ups, a message to one that sleeps in epoll and a futex, with nothing decided, checked or launched; run right after,
for the same number of tenants and length of turns.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aliquot.driver.native import native_part
from aliquot_lab.bench.driver_calls import PROGRAM
from aliquot_lab.bench.fig6 import RequestedShare, Tenant
from aliquot_lab.bench.figures import handovers, overlap, percentiles
from aliquot_lab.bench.progress import Interval
from aliquot_lab.bench.scene import SPIN_PTX, ClientFailed, scene

TOKEN: Final = "bench/aliquot-bench-token"


def _turns(path: Path) -> list[Interval]:
    """What one program wrote."""
    rows = (line.split() for line in path.read_text().splitlines())
    return [Interval(int(asked), int(launched), int(ended)) for asked, launched, ended in rows]


def limit_us(tenants: int, quota_ms: int, seconds: float) -> list[float]:
    """How long each passing of a bare token took, in microseconds.

    Raises:
        ClientFailed: the program failed.
    """
    argv = [str(native_part(TOKEN, "aliquot_lab")), str(tenants), str(quota_ms), str(math.ceil(seconds))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClientFailed(f"{TOKEN} ended with status {done.returncode}: {done.stderr.strip()}")
    return [int(line) / 1e3 for line in done.stdout.split()]


def handover_case(
    emulate: str | None, tenants: int, quota_ms: int, seconds: float, *, native: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One number of tenants at one quota; the figures, and the GPU.

    Raises:
        ClientFailed: a tenant's program failed.
    """
    ask = RequestedShare(1000 // tenants, 1000, 512 if tenants > 8 else 1024)
    turns = [str(native_part(PROGRAM, "aliquot_lab")), "turns", str(SPIN_PTX), str(math.ceil(seconds))]
    with scene(emulate, turns="kubeshare", quota_ms=quota_ms, native_handover=native) as stage:
        paths = {Tenant(f"t{number}"): stage.directory / f"turns-{number}" for number in range(tenants)}
        processes = [stage.spawn(tenant, ask, [*turns, str(path)]) for tenant, path in paths.items()]
        statuses = [process.wait(seconds + 60) for process in processes]
        if any(statuses):
            raise ClientFailed(f"a tenant's program ended with status {max(statuses, key=abs)}")
        seen = handovers(overlap({tenant: _turns(path) for tenant, path in paths.items()}))
        gaps_us = [gap / 1e3 for gap in seen.gaps_ns]
        case = {
            "tenants": tenants,
            "quota_ms": quota_ms,
            **percentiles("handover_us", gaps_us, 1),
            **percentiles("limit_us", limit_us(tenants, quota_ms, seconds), 1),
            "gpu_idle_percent": round(seen.idle_percent, 3),
            "handovers": len(gaps_us),
        }
        return case, stage.about


def handover(
    emulate: str | None, tenants: Sequence[int], quotas_ms: Sequence[int], seconds: float, *, native: bool = True
) -> dict[str, Any]:
    """All cases; without `native` every hand-over waits for the arbiter's interpreter."""
    seen = [handover_case(emulate, count, quota, seconds, native=native) for count in tenants for quota in quotas_ms]
    return {"cases": [case for case, _ in seen], "native_handover": native, **seen[0][1]}
