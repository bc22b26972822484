"""One tenant on one GPU: its share, what it was charged, and whether the promise to it was kept.

The distance from the fluid (`lag`) is kept whatever the order of turns is, for the promise is judged by it. Where its
charges put a tenant in the order, and when its limit holds it back, a policy's own account says.

Time is charged when it was used, whether within a grant or past its end. The usage of a tenant that has been here for
less than a window is measured against its own time, not against time before it came.

Of work that outlives its grant it is learned how long it usually takes to end, and how long others wait for it.

Others wait a little longer than such work of this tenant usually takes. Work that has not ended by then is long, or its
process was stopped, or it waits on the GPU for something that its own tenant has yet to launch: the other half of a
collective, a word that another stream writes. Nothing tells these apart, so the GPU goes on to the next tenant, and the
owner may have turns again while its old work is still there. Before that, an owner that has more to launch is resumed
for a few milliseconds at a time: two ranks that a revocation has caught at different steps then finish the step.

A tenant may leave such work there on purpose, always waiting for its own next launch. That work cannot be stopped, and
is charged; but the owner is resumed for no more time than its rate of the fluid earns while others wait, so it gains no
turns. Its debt does not decide this: waiting on the GPU beside a neighbour's turn puts honest work into debt, and it
could then never go on.

A process that was stopped for a minute says nothing about kernels, so one long residual counts as a few times the
patience at most, and a residual that ended just after its owner could launch again is not counted: it has waited for
that. One that goes on for longer is long by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .actions import MS, Share, TokenConfig
from .fluid import WHOLE, Lag

SLACK_NS: Final = 50 * MS
RESUME_NS: Final = 10 * MS
RESUME_LEAD_NS: Final = 5 * MS
"""More than what a process may have queued at the end of a turn, which ends by itself."""
PROVEN_RESUMES: Final = 3
"""An owner whose work ended as soon as it could launch again is resumed no later than after so many tries (40 ms)."""
RESUME_CREDIT_NS: Final = 1000 * MS
"""An owner may be resumed for what its rate earns in so long before it has earned it."""
GROWTH: Final = 4
KEPT: Final = 50


class Residuals:
    """The last residuals of one tenant on one GPU, and the one that outlived into a later grant."""

    __slots__ = ("_past", "resumed_at_ns", "usual_ns")

    def __init__(self) -> None:
        self._past: deque[int] = deque(maxlen=KEPT)
        self.resumed_at_ns = -SLACK_NS
        self.usual_ns = 0  # the 90th percentile of the last ones; 0 before the first

    def patience_ns(self) -> int:
        """How long after the end of a turn others wait for what is left of it."""
        return self.usual_ns + SLACK_NS

    def overdue_ns(self) -> int:
        """After how long an owner that wants to launch is resumed: work of the usual length would have ended."""
        return self.usual_ns + self.usual_ns // 2 + RESUME_LEAD_NS

    def has_waited_for_its_owner(self, now_ns: int) -> bool:
        """Whether what ends now did so just after its owner could launch again."""
        return now_ns - self.resumed_at_ns < SLACK_NS

    def learn(self, expired_ns: int, now_ns: int, *, usual: bool = True) -> None:
        """What was left when a turn ended at `expired_ns` has ended now; not `usual`: its process was stopped."""
        if usual and not self.has_waited_for_its_owner(now_ns):
            self._past.append(min(now_ns - expired_ns, GROWTH * self.patience_ns()))
            self.usual_ns = sorted(self._past)[(len(self._past) - 1) * 9 // 10]


BUCKETS: Final = 500
LOOKS: Final = 40
"""Samples in one window."""
SLACK_MILLI: Final = 20
WHOLE_WINDOW: Final = 0.999
"""A tenant that wanted the GPU for this part of a window counts as wanting it all the time."""
BINS: Final = 200
"""Errors are counted by thousandths of a window, up to a fifth of it; the last bin has what is beyond."""

Rank = tuple[int, int, int]


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


class AccountSnapshot(NamedTuple):
    """What a tenant's account says at one moment, in nanoseconds since it came."""

    at_ns: int
    charged_ns: int
    wanted_ns: int
    given_ns: int
    debt_ns: int


@dataclass(slots=True)
class Kept:
    """Whether the promise to one tenant was kept on one GPU, over sliding windows.

    The windows end a fortieth of a window apart.

    - *request*: in every window a tenant gets its request for the time it wanted the GPU, within 0.02 of the window;
    - *busy*: a tenant that wanted the GPU all the time gets its request, within 0.02;
    - *fluid*: how far what it got is from what the fluid gave it, as a part of the window.

    It wants the GPU while it waits for it, holds it or has work on it. A tenant that owes time for kernels from before
    the window has already had that part of its share. Windows in which the tenant never wanted the GPU are not counted.
    "Its request in every window in which it wanted that much" is not promised: the fluid itself does not keep it,
    because limits hold a tenant back while others rest, and what was not given then is not made up for later.
    """

    request_milli: int
    window_ns: int
    windows: int = 0
    kept: int = 0
    busy_windows: int = 0
    busy_kept: int = 0
    error: float = 0.0
    """Of the last window."""
    error_worst: float = 0.0
    _looks: deque[AccountSnapshot] = field(default_factory=deque)
    _errors: list[int] = field(default_factory=lambda: [0] * BINS)

    def look(self, account: AccountSnapshot) -> None:
        """Judge the window that ends now, if the tenant has existed for that long."""
        looks = self._looks
        if looks and account.at_ns - looks[-1].at_ns < self.window_ns // LOOKS:
            return
        looks.append(account)
        while len(looks) > 1 and looks[1].at_ns <= account.at_ns - self.window_ns:
            looks.popleft()
        first = looks[0]
        span, wanted = account.at_ns - first.at_ns, account.wanted_ns - first.wanted_ns
        if span < self.window_ns or wanted <= 0:
            return
        charged = account.charged_ns - first.charged_ns
        had_milli = (charged + max(0, first.debt_ns)) * 1000 + SLACK_MILLI * span
        self.windows += 1
        self.kept += had_milli >= self.request_milli * wanted
        if wanted >= WHOLE_WINDOW * span:
            self.busy_windows += 1
            self.busy_kept += had_milli >= self.request_milli * span
        self.error = abs(charged - (account.given_ns - first.given_ns)) / span
        self.error_worst = max(self.error_worst, self.error)
        self._errors[min(BINS - 1, int(self.error * 1000))] += 1

    def forget(self) -> None:
        """Discard the samples: time passed without decisions, and no window that contains any of it is judged."""
        self._looks.clear()

    def error_p95(self) -> float:
        """The 95th percentile of the errors of all windows, to a thousandth; 0 before the first."""
        left = self.windows * 95 / 100
        for step, count in enumerate(self._errors):
            left -= count
            if left <= 0:
                return min((step + 1) / 1000, self.error_worst)
        return self.error_worst


class Account(ABC):
    """The account of one tenant on one GPU."""

    __slots__ = ("config", "gpu", "kept", "lag", "ordinal", "residuals", "share", "since_ns", "window")

    def __init__(self, gpu: str, share: Share, ordinal: int, config: TokenConfig, lag: Lag) -> None:
        self.gpu = gpu
        self.share = share
        self.ordinal = ordinal
        self.config = config
        self.lag = lag
        self.since_ns: int | None = None
        self.window = ChargeWindow(config.window_ns)
        self.residuals = Residuals()
        self.kept = Kept(share.request_milli, config.window_ns)

    def arrive(self, now_ns: int) -> None:
        """The tenant wants the GPU from now on; after a whole window without a charge it counts as new."""
        if self.since_ns is None or not self.is_active(now_ns):
            self.since_ns = now_ns
        self.lag.wait(now_ns)

    def begin(self, now_ns: int) -> None:
        """A turn of the tenant begins; it may have asked for it before it was stopped."""
        self.lag.wait(now_ns)
        self.lag.begin(now_ns)

    def rest(self, now_ns: int) -> None:
        """The tenant wants nothing from now on."""
        self.lag.begin(now_ns)

    def resize(self, share: Share, now_ns: int) -> None:
        """Have another share from now on; only windows that begin after that are judged."""
        self.lag.flow.accrue(now_ns)
        self.share = self.lag.share = share
        self.kept.request_milli = share.request_milli
        self.kept.forget()

    def skip(self, now_ns: int) -> None:
        """Let time pass in which nothing becomes due."""
        self.lag.flow.skip(now_ns)
        self.kept.forget()

    def is_active(self, now_ns: int) -> bool:
        """Whether it wants the GPU or was charged for some of it within the last window."""
        return self.lag.waiting or self.window.used_ns(now_ns) > 0

    def age_ns(self, now_ns: int) -> int:
        """How much of the window the tenant has been here for."""
        return 0 if self.since_ns is None else min(self.config.window_ns, now_ns - self.since_ns)

    def charge(self, start_ns: int, end_ns: int, amount_ns: int, *, overrun: bool) -> None:
        """Charge time held, or time that ran past the grant's end."""
        self.window.charge(start_ns, end_ns, amount_ns)
        self.lag.charge(end_ns, amount_ns)

    def restore(self, used_ns: int, debt_ns: int, total_ns: int, now_ns: int) -> None:
        """Take over what was charged in the window before now, spread evenly over it, and what it owes."""
        start = now_ns - self.config.window_ns
        if used_ns > 0:
            self.window.charge(start, now_ns, min(used_ns, self.config.window_ns))
            self.since_ns = start
        self.window.total_ns = total_ns

    def judge(self, now_ns: int) -> None:
        """See whether the promise was kept in the window that ends now."""
        debt = self.debt_ns(now_ns)
        self.lag.flow.accrue(now_ns)
        self.kept.look(AccountSnapshot(now_ns, self.window.total_ns, self.lag.wanted_ns, self.lag.given // WHOLE, debt))

    def is_urgent(self, now_ns: int) -> bool:
        """Whether it must start at once because of a promised time to wake; only under the order `fluid`."""
        return False

    def usage(self, now_ns: int) -> float:
        """Charged share of the window, or of the tenant's time here if that is shorter; 1.0 is the whole GPU."""
        age = self.age_ns(now_ns)
        return self.window.used_ns(now_ns) / max(age, self.config.quota_ns) if age else 0.0

    @abstractmethod
    def missing_ns(self, now_ns: int) -> int:
        """Nanoseconds that the tenant is owed, by which turns are ordered; negative if it had more than its due."""

    @abstractmethod
    def debt_ns(self, now_ns: int) -> int:
        """Nanoseconds that it was charged beyond its due and must make up for, as written to the journal."""

    @abstractmethod
    def open_at_ns(self, now_ns: int) -> int:
        """When the limit allows the next grant, as far as is known now; now or earlier means at once."""

    @abstractmethod
    def runway_ns(self, now_ns: int) -> int | None:
        """How long a grant that starts now may last; None where there is no limit."""

    @abstractmethod
    def rank(self, now_ns: int) -> Rank:
        """The sort key of the order of turns, smallest first; the order is total, and the earlier tenant wins a tie."""
