"""What each tenant of a GPU would get if the GPU could be divided like a fluid: requests first, the rest up to limits.

Whoever wants the GPU gets its request; what is left is levelled up, the lowest first, to the limits. The rates change
only when a tenant begins or ceases to want the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .actions import Share

WHOLE: Final = 1_000_000
"""The rate of a whole GPU: rates are in millionths."""


def rates(shares: Sequence[Share]) -> list[int]:
    """The rate of each, in millionths of the GPU, rounded down; [n]. Requests above the GPU are scaled to it."""
    requests = sum(share.request_milli for share in shares)
    if requests >= 1000:
        return [share.request_milli * WHOLE // requests for share in shares]
    if sum(share.limit_milli for share in shares) <= 1000:
        return [share.limit_milli * 1000 for share in shares]
    level = _level(shares)
    return [min(max(level, share.request_milli * 1000), share.limit_milli * 1000) for share in shares]


def _level(shares: Sequence[Share]) -> int:
    """How high the lowest are filled, in millionths: rates are this, but no less than requests, no more than limits."""
    marks = sorted({share.request_milli for share in shares} | {share.limit_milli for share in shares})
    below = max(mark for mark in marks if _filled(shares, mark) <= 1000)
    rising = sum(share.request_milli <= below < share.limit_milli for share in shares)
    return below * 1000 + ((1000 - _filled(shares, below)) * 1000 // rising if rising else 0)


def _filled(shares: Sequence[Share], level_milli: int) -> int:
    return sum(min(max(level_milli, share.request_milli), share.limit_milli) for share in shares)
