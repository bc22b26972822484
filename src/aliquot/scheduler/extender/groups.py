"""Pods that are placed together or not at all: Kubernetes' pod groups (`spec.schedulingGroup`).

kube-scheduler asks the filter for each pod of a group before it binds any of them, so shares that change hands at bind
would be promised to several of them. A pod of a group is therefore answered one node, and its share there is *assumed*
until its bind, or until kube-scheduler has given the group up. kube-scheduler does not report that to an extender. It
is inferred when it calls for the same pod again, or for a pod outside the group after too few of the group found a
node; otherwise assumed shares end after `ASSUMED_S`. A group that was given up for reasons of kube-scheduler's own
keeps nothing from the next pod when it is tried again. How many a group needs is read from its PodGroup; where that
cannot be read, it needs all.

Source: Kubernetes KEP-4671, gang scheduling; k8s.io/api scheduling/v1alpha2 PodGroup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from aliquot.kube.api import Api
from aliquot.kube.errors import KubeError, NotFound
from aliquot.kube.objects import Pod, Wire
from aliquot.kube.requests import PodAsk
from aliquot.lib.arrays import IntArray
from aliquot.lib.log import Logger
from aliquot.model.errors import UserError
from aliquot.model.ids import split_key
from aliquot.placement.codes import Code, UnmetConstraint
from aliquot.scheduler.allocations import Allocation
from aliquot.scheduler.ledger import Ledger, NodeFull
from aliquot.scheduler.verdicts import FITS, Judged, scores

log = Logger("scheduler")
ASSUMED_S: Final = 5.0
"""Longer than kube-scheduler needs from its last question about a group to the binds."""
ASK_S: Final = 2.0
"""How long a filter waits for a PodGroup."""
VERSIONS: Final = ("v1", "v1beta1", "v1alpha3", "v1alpha2")
"""Of PodGroup, the newest first."""
KEPT: Final = UnmetConstraint(Code.POD_GROUP)


@dataclass
class _Round:
    """One pass of kube-scheduler over a group: which pods it asked for and when last, how many are needed (0: all), and
    whether one found no node. `given_up` is whether the pass before came to nothing though all had found one."""

    needed: int = 0
    given_up: bool = False
    asked: set[str] = field(default_factory=set)
    asked_s: float = 0.0
    missed: bool = False


@dataclass
class Groups:
    """The groups for which kube-scheduler calls, over one ledger."""

    ledger: Ledger
    now_s: Callable[[], float]
    needed: Callable[[str], Awaitable[int]]
    """How many pods a group needs, by `namespace/name`; 0 where it is not known."""
    _rounds: dict[str, _Round] = field(default_factory=dict)
    _assumed: dict[str, dict[str, Allocation]] = field(default_factory=dict)
    """By group, then by uid."""

    async def begin(self, pod: Pod) -> None:
        """Called for each pod: release what groups no longer need, and learn what the pod's group needs."""
        mine, given_up = group_of(pod), False
        for group, round_ in list(self._rounds.items()):
            if group == mine:
                if pod.metadata.uid in round_.asked:
                    given_up = self._waits(group) and not self._failed(group)
                    self._end(group)
            elif self._failed(group) or round_.given_up or self._old(group) or not self._waits(group):
                self._end(group)
        if mine and mine not in self._rounds:
            needed = await self.needed(mine)
            self._rounds.setdefault(mine, _Round(needed, given_up))

    def _failed(self, group: str) -> bool:
        """Whether the pods that found a node in this round are fewer than the group needs."""
        round_ = self._rounds[group]
        placed = len(self._assumed.get(group, ()))
        return round_.missed and not 0 < round_.needed <= placed

    def assume(self, pod: Pod, ask: PodAsk, numbers: IntArray, judged: Judged) -> Judged:
        """The verdicts for a pod of a group with one node at most, on which its share is assumed.

        `numbers` are the ledger's indices of the nodes that were evaluated.
        """
        group, uid = group_of(pod), pod.metadata.uid
        round_ = self._rounds.setdefault(group, _Round())
        round_.asked.add(uid)
        round_.asked_s = self.now_s()
        fitting = judged.codes == FITS
        values = np.where(fitting, scores(self.ledger, ask, numbers), -1)
        for place in np.argsort(-values, kind="stable").tolist():
            if not fitting[place]:
                break
            node, before = self.ledger.cluster.spec(int(numbers[place])).name, self._assumed.get(group, {}).get(uid)
            if before is not None and before.assumed and before.node != node:
                self._drop(group, uid)
            try:
                allocation = self.ledger.allocate(ask, node, self.now_s())
            except (NodeFull, UserError):
                continue
            allocation.assumed = not allocation.in_doubt and not allocation.confirmed
            self._assumed.setdefault(group, {})[uid] = allocation
            return _only(judged, fitting, place)
        round_.missed = True
        self._drop(group, uid)
        return _only(judged, fitting, None)

    def _end(self, group: str) -> None:
        for uid in list(self._assumed.get(group, {})):
            self._drop(group, uid)
        self._rounds.pop(group, None)

    def _drop(self, group: str, uid: str) -> None:
        """Release what is only assumed; shares that a bind has taken over no longer belong to the group."""
        allocation = self._assumed.get(group, {}).pop(uid, None)
        if allocation is not None and allocation.assumed and allocation in self.ledger.allocations.get(uid, ()):
            self.ledger.forget(allocation)
        if not self._assumed.get(group):
            self._assumed.pop(group, None)

    def _waits(self, group: str) -> bool:
        """Whether pods of the group wait for their bind."""
        return any(allocation.assumed for allocation in self._assumed.get(group, {}).values())

    def _old(self, group: str) -> bool:
        return self._rounds[group].asked_s < self.now_s() - ASSUMED_S

    def settle(self) -> None:
        """Check all groups, for when there are no calls."""
        for group in list(self._rounds):
            if self._old(group):
                self._end(group)


class PodGroups:
    """How many pods each group needs, read from the API server in whichever version it has the kind."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._versions = list(VERSIONS)

    async def needed(self, group: str) -> int:
        """`minCount` of a group; 0 where it has none or cannot be read."""
        namespace, name = split_key(group)
        for version in list(self._versions):
            path = f"/apis/scheduling.k8s.io/{version}/namespaces/{namespace}/podgroups/{name}"
            try:
                body = await self._api.request("GET", path, timeout_s=ASK_S)
                found = msgspec.json.decode(body, type=_PodGroup).spec.scheduling_policy.gang
            except NotFound:
                continue
            except (KubeError, msgspec.DecodeError) as error:
                log.warning("pod group %s: how many pods it needs is not known: %s", group, error)
                return 0
            self._versions = [version]
            return found.min_count if found is not None else 0
        return 0


class _Gang(Wire):
    min_count: int = 0


class _Policy(Wire):
    gang: _Gang | None = None


class _GroupSpec(Wire):
    scheduling_policy: _Policy = msgspec.field(default_factory=_Policy)


class _PodGroup(Wire):
    spec: _GroupSpec = msgspec.field(default_factory=_GroupSpec)


def group_of(pod: Pod) -> str:
    """The pod's group, `namespace/name`; empty for one that has none."""
    group = pod.spec.scheduling_group
    return f"{pod.metadata.namespace}/{group.pod_group_name}" if group is not None and group.pod_group_name else ""


def _only(judged: Judged, fitting: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], place: int | None) -> Judged:
    """The verdicts with one fitting node, or none."""
    codes = judged.codes.copy()
    codes[fitting] = 2 * len(judged.reasons)
    if place is not None:
        codes[place] = FITS
    return replace(judged, codes=codes, reasons=[*judged.reasons, KEPT])
