"""Pods that are placed together or not at all: Kubernetes' pod groups (`spec.schedulingGroup`).

kube-scheduler asks the filter for each pod of a group before it binds any of them, so shares that change hands at bind
would be promised to several of them. A pod of a group is therefore answered one node, and its share there is *assumed*
until its bind, or until kube-scheduler has given the group up. That it has is not said to an extender. It is seen when
it asks for the same pod again or for a pod outside the group, after one of the group found no node; where no node was
missing, assumed shares end after `ASSUMED_S`.

A group that may start with some of its pods is bound after one of them found no node. If kube-scheduler asks for
another pod in between, the shares are taken anew at each bind, where they may be gone.

Source: Kubernetes KEP-4671, gang scheduling; k8s.io/api scheduling/v1alpha2 PodGroup.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from aliquot.kube.objects import Pod
from aliquot.kube.requests import PodAsk
from aliquot.model.errors import UserError
from aliquot.scheduler.books import Books, NoRoom
from aliquot.scheduler.holds import Hold
from aliquot.scheduler.look import FITS, IntArray, Judged, scores

ASSUMED_S: Final = 15.0
"""Longer than kube-scheduler needs for a group; the most that one which fails for other reasons keeps from others."""
KEPT: Final = "is left out: the pod's group has a share for it on another node"


@dataclass
class _Round:
    """One pass of kube-scheduler over a group: which pods it asked for, and whether one found no node."""

    asked: set[str] = field(default_factory=set)
    failed: bool = False


@dataclass
class Groups:
    """The groups that kube-scheduler asks about, over one set of books."""

    books: Books
    now_s: Callable[[], float]
    _rounds: dict[str, _Round] = field(default_factory=dict)
    _assumed: dict[str, dict[str, Hold]] = field(default_factory=dict)
    """By group, then by uid."""

    def begin(self, pod: Pod) -> None:
        """kube-scheduler asks about a pod: give back what groups no longer need."""
        if not self._rounds:
            return
        mine, uid = group_of(pod), pod.metadata.uid
        for group, round_ in list(self._rounds.items()):
            if round_.failed and (group != mine or uid in round_.asked):
                self._end(group)
            elif self.expire(group):
                del self._rounds[group]

    def assume(self, pod: Pod, ask: PodAsk, numbers: IntArray, judged: Judged) -> Judged:
        """The verdicts for a pod of a group with one node at most, on which its share is assumed.

        `numbers` are the books' indices of the nodes that were judged.
        """
        group, uid = group_of(pod), pod.metadata.uid
        round_ = self._rounds.setdefault(group, _Round())
        round_.asked.add(uid)
        fitting = judged.codes == FITS
        values = np.where(fitting, scores(self.books, ask, numbers), -1)
        for place in np.argsort(-values, kind="stable").tolist():
            if not fitting[place]:
                break
            if self._hold(group, ask, self.books.cluster.spec(int(numbers[place])).name):
                return _only(judged, fitting, place)
        round_.failed = True
        self._drop(group, uid)
        return _only(judged, fitting, None)

    def _hold(self, group: str, ask: PodAsk, node: str) -> bool:
        before = self._assumed.get(group, {}).get(ask.uid)
        if before is not None and before.assumed and before.node != node:
            self._drop(group, ask.uid)
        since_s = before.since_s if before is not None and before.node == node else self.now_s()
        try:
            hold = self.books.hold(ask, node, since_s)
        except (NoRoom, UserError):
            return False
        hold.assumed = not hold.doubtful and not hold.settled
        self._assumed.setdefault(group, {})[ask.uid] = hold
        return True

    def _end(self, group: str) -> None:
        for uid in list(self._assumed.get(group, {})):
            self._drop(group, uid)
        self._rounds.pop(group, None)

    def _drop(self, group: str, uid: str) -> None:
        """Give back what is only assumed; what a bind has taken over is not the group's any more."""
        hold = self._assumed.get(group, {}).pop(uid, None)
        if hold is not None and hold.assumed and hold in self.books.holds.get(uid, ()):
            self.books.let_go(hold)
        if not self._assumed.get(group):
            self._assumed.pop(group, None)

    def expire(self, group: str) -> bool:
        """Give back shares that were assumed too long ago; whether the group has none left."""
        for uid, hold in list(self._assumed.get(group, {}).items()):
            if not hold.assumed or hold.since_s < self.now_s() - ASSUMED_S:
                self._drop(group, uid)
        return group not in self._assumed

    def settle(self) -> None:
        """Look at all groups, for when nothing is asked."""
        for group in list(self._rounds):
            if self.expire(group):
                del self._rounds[group]


def group_of(pod: Pod) -> str:
    """The pod's group, `namespace/name`; empty for one that has none."""
    group = pod.spec.scheduling_group
    return f"{pod.metadata.namespace}/{group.pod_group_name}" if group is not None and group.pod_group_name else ""


def _only(judged: Judged, fitting: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], place: int | None) -> Judged:
    """The verdicts with one fitting node, or none."""
    codes = judged.codes.copy()
    codes[fitting] = 2 * len(judged.sentences)
    if place is not None:
        codes[place] = FITS
    return Judged(codes, [*judged.sentences, KEPT])
