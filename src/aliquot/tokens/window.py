"""What a tenant was charged lately: a sliding window for the order of turns, a bucket for the limit.

The window answers "how much of the last ten seconds was this tenant's?" in O(1) amortised. The bucket answers "may it
run more right now?": it fills at the limit's rate, so a tenant held at 0.6 runs six parts of every ten, instead of six
seconds at full speed and then four seconds not at all.

Time is charged when it was used, whether within a grant or past its end. What has left the window is forgotten here;
what was promised is not, see `promise`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

BUCKETS: Final = 500


class ChargeWindow:
    """Nanoseconds charged to one tenant on one GPU during the last `window_ns`.

    Times must not go backwards between calls. The answer is exact to one part in 500 of the window.
    """

    __slots__ = ("_buckets", "_sum_ns", "_width_ns", "_window_ns", "total_ns")

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._width_ns = max(1, window_ns // BUCKETS)
        self._buckets: deque[list[int]] = deque()
        self._sum_ns = 0
        self.total_ns = 0

    def charge(self, start_ns: int, end_ns: int, amount_ns: int) -> None:
        """Charge `amount_ns` for [start, end): less than its length where several tenants overlapped."""
        self.total_ns += amount_ns
        self._sum_ns += amount_ns
        span, left, at = end_ns - start_ns, amount_ns, start_ns
        oldest = end_ns - self._window_ns - self._width_ns
        while left:
            index = at // self._width_ns
            stop = min(end_ns, (index + 1) * self._width_ns)
            part = left if stop >= end_ns else amount_ns * (stop - at) // span
            if stop <= oldest:
                self._sum_ns -= part
            elif self._buckets and self._buckets[-1][0] == index:
                self._buckets[-1][1] += part
            else:
                self._buckets.append([index, part])
            left -= part
            at = stop

    def used_ns(self, now_ns: int) -> int:
        """The charge in (now - window, now]."""
        horizon = now_ns - self._window_ns
        buckets, width = self._buckets, self._width_ns
        while buckets and (buckets[0][0] + 1) * width <= horizon:
            self._sum_ns -= buckets.popleft()[1]
        used = self._sum_ns
        if buckets:
            outside = horizon - buckets[0][0] * width
            if outside > 0:
                used -= buckets[0][1] * outside // width
        return used

    def left_ns(self, now_ns: int, after_ns: int) -> int:
        """What will still be in the window after a time without a charge. To be asked at the time of `used_ns`."""
        horizon, used, width = now_ns + after_ns - self._window_ns, self._sum_ns, self._width_ns
        for index, charged in self._buckets:
            outside = min(horizon - index * width, width)
            if outside <= 0:
                break
            used -= -(-charged * outside // width)
        return used


class LimitBucket:
    """Room under the limit: fills at `limit_milli` per mille of time, pays for every charge, may go below zero.

    Held in thousandths of a nanosecond, so that no share is lost by rounding. A limit of 1000 is no limit.
    """

    __slots__ = ("_at_ns", "_cap", "_level", "limit_milli", "resume_ns")

    def __init__(self, limit_milli: int, *, resume_ns: int, cap_ns: int, now_ns: int) -> None:
        """A bucket that allows a grant of `resume_ns` at once and saves up to `cap_ns`."""
        self.limit_milli = limit_milli
        self.resume_ns = resume_ns
        self._cap = cap_ns * 1000
        self._level = resume_ns * (1000 - limit_milli)
        self._at_ns = now_ns

    def advance(self, now_ns: int, charged_ns: int = 0) -> None:
        """Fill up to now and pay for `charged_ns`."""
        filled = self._level + (now_ns - self._at_ns) * self.limit_milli - charged_ns * 1000
        self._level = min(filled, self._cap)
        self._at_ns = now_ns

    def pay(self, charged_ns: int) -> None:
        """Pay for a charge of the past, read from a journal."""
        self._level -= charged_ns * 1000

    def open_at_ns(self, now_ns: int) -> int:
        """From when on a grant of `resume_ns` fits under the limit; now or earlier means at once."""
        if self.limit_milli >= 1000:
            return now_ns
        missing = self.resume_ns * (1000 - self.limit_milli) - self._level
        wait_from = self._at_ns
        return wait_from if missing <= 0 else wait_from - (-missing // max(1, self.limit_milli))

    def runway_ns(self, now_ns: int) -> int | None:
        """How long a grant that starts now stays under the limit; None where there is no limit."""
        if self.limit_milli >= 1000:
            return None
        level = min(self._level + (now_ns - self._at_ns) * self.limit_milli, self._cap)
        return max(0, level) // (1000 - self.limit_milli)
