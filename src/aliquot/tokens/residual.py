"""Work that outlives its grant: how long it usually takes to end, and how long others wait for it.

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

from collections import deque
from typing import Final

from .actions import MS

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
