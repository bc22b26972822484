"""What each tenant would get if GPUs could be divided like a fluid: requests first, the rest levelled up to limits.

Every tenant that wants its GPUs gets its request; the rest raises the lowest rates first, until a limit is reached or a
GPU is full. A tenant of several GPUs has one rate on all of them, for it is granted all or none. The rates change only
when a tenant begins or stops wanting its GPUs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from .actions import Share

WHOLE: Final = 1_000_000
"""The rate of a whole GPU: rates are in millionths."""


def rates(shares: Sequence[Share], gpus: Sequence[Sequence[Hashable]]) -> list[int]:
    """The rate of each tenant on its GPUs, in millionths, rounded down; [n]. Requests that do not fit are scaled."""
    rate = [share.request_milli * 1000 for share in shares]
    used: dict[Hashable, int] = {}
    for place, mine in zip(rate, gpus, strict=True):
        for gpu in mine:
            used[gpu] = used.get(gpu, 0) + place
    if any(total > WHOLE for total in used.values()):
        rate = [r * WHOLE // max(WHOLE, *(used[gpu] for gpu in mine)) for r, mine in zip(rate, gpus, strict=True)]
        return rate
    free = {gpu: WHOLE - total for gpu, total in used.items()}
    limits = [share.limit_milli * 1000 for share in shares]
    rising = [i for i in range(len(shares)) if rate[i] < limits[i]]
    while rising:
        lowest = min(rate[i] for i in rising)
        low = [i for i in rising if rate[i] == lowest]
        count: dict[Hashable, int] = {}
        for i in low:
            for gpu in gpus[i]:
                count[gpu] = count.get(gpu, 0) + 1
        steps = [limits[i] - lowest for i in low] + [rate[i] - lowest for i in rising if rate[i] > lowest]
        step = min([*steps, *(free[gpu] // n for gpu, n in count.items())])
        for i in low:
            rate[i] += step
        for gpu, n in count.items():
            free[gpu] -= n * step
        full = {gpu for gpu, n in count.items() if free[gpu] < n}
        rising = [i for i in rising if rate[i] < limits[i] and (i not in low or full.isdisjoint(gpus[i]))]
    return rate
