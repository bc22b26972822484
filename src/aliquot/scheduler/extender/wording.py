"""The answer to a filter, and its wording.

Refusals of a pod alternate between two wordings, so that a pod woken by a stale event is retried once
(docs/decisions/0021). A refused pod sleeps at kube-scheduler until something changes in the cluster; then the filter is
called at once. If the event of a freed share reaches kube-scheduler before it reaches the ledger, a refusal lets the
pod sleep beside free room until the next change, which a quiet cluster may not have for minutes. But kube-scheduler
writes the refusal into the pod's condition, and if the text is new, its own write is such a change: it calls again some
milliseconds later, when the ledger is up to date. So every refusal has another text than the one before, but for that
of the retry.

The retry is the call that shows the pod changed since a refusal in new words. How long ago that was says nothing: the
share may be freed a moment after any refusal. It is answered once the ledger has seen the pod so changed, and with it
everything that kube-scheduler may have been woken by.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from aliquot.kube.clock import Clock, RealClock
from aliquot.kube.requests import shortened
from aliquot.lib.bounded import Bounded
from aliquot.scheduler.extender.wire import FilterResult, Names, NodeList, host_list, host_reasons
from aliquot.scheduler.verdicts import FITS, Judged, lasting

EVERY_S: Final = 1.0
BURST: Final = 8
"""A pod that is woken all the time is refused in new words once in `EVERY_S`, after the first `BURST` times: each of
them is a write of kube-scheduler, and what wakes it so often will wake it again."""
MAX_REMEMBERED: Final = 10_000


def filter_result(judged: Judged, names: Names, nodes: dict[str, msgspec.Raw] | None) -> FilterResult:
    """The answer to a filter, in names or in nodes as the question was."""
    groups = names.grouped(judged.codes)
    fitting = groups.pop(FITS, b"")
    # One sentence stands there once for every node.
    told = [(group, shortened(judged.sentence(code)), lasting(code)) for code, group in groups.items()]
    failed, never = (
        host_reasons((group, text) for group, text, lasts in told if lasts is kind) for kind in (False, True)
    )
    if nodes is None:
        return FilterResult(None, host_list(fitting), failed, never)
    kept = [raw for raw, code in zip(nodes.values(), judged.codes.tolist(), strict=True) if code == FITS]
    return FilterResult(NodeList(kept), failed_nodes=failed, failed_and_unresolvable_nodes=never)


@dataclass(frozen=True, slots=True)
class LastRefusal:
    """How a pod was refused last."""

    second: bool
    """Whether in the second of the two wordings."""
    new: bool
    """Whether in other words than before, so that kube-scheduler writes it and calls again."""
    version: str
    """The resource version of the pod in that call."""
    spent_until_s: float
    """Until when its new words so far use up what `EVERY_S` allows."""


@dataclass
class Wording:
    """Remembers how pods were refused last."""

    clock: Clock = field(default_factory=RealClock)
    _last: Bounded[str, LastRefusal] = field(default_factory=lambda: Bounded(MAX_REMEMBERED))

    def retried(self, key: str, version: str) -> bool:
        """Whether the call for the pod in this resource version is the retry that its last refusal brought about."""
        last = self._last.get(key)
        return last is not None and last.new and version != last.version

    def next_is_second(self, key: str, version: str) -> bool:
        """Whether the pod, about to be refused, is to be refused in the other of the two wordings.

        `version` is the pod's resource version as kube-scheduler knows it.
        """
        retried, now_s = self.retried(key, version), self.clock.monotonic_s()
        last = self._last.pop(key, None)
        if last is None:
            made = LastRefusal(False, True, version, now_s + EVERY_S)
        elif retried:
            made = replace(last, new=False, version=version)
        else:
            spent_until_s = max(last.spent_until_s, now_s) + EVERY_S
            often = spent_until_s > now_s + BURST * EVERY_S
            made = last if often else LastRefusal(not last.second, True, version, spent_until_s)
        self._last[key] = made
        return made.second
