"""Pods that are placed together or not at all.

`Groups` are Kubernetes' pod groups (`spec.schedulingGroup`). kube-scheduler asks the filter for each pod of a group
before it binds any of them, so shares that change hands at bind would be promised to several of them. A pod of a group
is therefore answered one node, and its share there is *assumed*
until its bind, or until kube-scheduler has given the group up. kube-scheduler does not report that to an extender. It
is inferred when it calls for the same pod again, or for a pod outside the group after too few of the group found a
node; otherwise assumed shares end after `ASSUMED_S`. A group that was given up for reasons of kube-scheduler's own
keeps nothing from the next pod when it is tried again. How many a group needs is read from its PodGroup; where that
cannot be read, it needs all.

Source: Kubernetes KEP-4671, gang scheduling; k8s.io/api scheduling/v1alpha2 PodGroup.

`HeldGroups` are those that kube-scheduler takes pod by pod: shares for all are held before the first has its node. They
are known by what their controllers write on pods: the PodGroup of coscheduling, the JobSet, the group of a
LeaderWorkerSet. Workloads of Kueue are held before they have pods (`operator.admission_check`). When the first pod of a
group is asked about, a node is chosen for each pod that waits, the largest first, on the ledger that holds those before
it, so that models, labels, quota and topology count as for any pod; taints, selectors, CPU and what else Kubernetes
counts rule nodes out. Either enough of them have a place, and all that have one keep it until their bind, `HOLD_S` at
most; or nothing is held, and no pod of the group gets a node.

Sources: scheduler-plugins, scheduling/v1alpha1 PodGroup; jobset.x-k8s.io/v1alpha2; leaderworkerset.x-k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np

from aliquot.kube.api import Api
from aliquot.kube.dialects import FOREIGN, read
from aliquot.kube.dialects.base import Dialect
from aliquot.kube.eligible import barred
from aliquot.kube.errors import BadAnswer, KubeError, NotFound
from aliquot.kube.names import WORKLOAD
from aliquot.kube.objects import Node, Pod, Undecodable, Wire, decoded
from aliquot.kube.reflector import Index
from aliquot.kube.requests import BadPod, PodAsk
from aliquot.lib.arrays import BoolArray, IntArray
from aliquot.lib.bounded import Bounded
from aliquot.lib.log import Logger
from aliquot.model.errors import UserError
from aliquot.model.ids import split_key
from aliquot.placement.codes import Code, UnmetConstraint
from aliquot.placement.explain import explain_with
from aliquot.placement.sentences import suggestion
from aliquot.scheduler.allocations import Allocation
from aliquot.scheduler.ledger import Ledger, NodeFull
from aliquot.scheduler.verdicts import FITS, Judged, indices_of, judge, scores

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
    assumed: dict[str, Allocation] = field(default_factory=dict)
    """By the pod's uid, also those that a bind has taken over meanwhile."""

    @property
    def failed(self) -> bool:
        """Whether the pods that found a node are fewer than the group needs."""
        return self.missed and not 0 < self.needed <= len(self.assumed)

    @property
    def waits(self) -> bool:
        """Whether pods of the group wait for their bind."""
        return any(allocation.assumed for allocation in self.assumed.values())


@dataclass
class Groups:
    """The groups for which kube-scheduler calls, over one ledger."""

    ledger: Ledger
    now_s: Callable[[], float]
    needed: Callable[[str], Awaitable[int]]
    """How many pods a group needs, by `namespace/name`; 0 where it is not known."""
    _rounds: dict[str, _Round] = field(default_factory=dict)

    async def begin(self, pod: Pod) -> None:
        """Called for each pod: release what groups no longer need, and learn what the pod's group needs."""
        mine, given_up = group_of(pod), False
        for group, round_ in list(self._rounds.items()):
            if group == mine:
                if pod.metadata.uid in round_.asked:
                    given_up = round_.waits and not round_.failed
                    self._end(group)
            elif round_.failed or round_.given_up or self._old(round_) or not round_.waits:
                self._end(group)
        if mine and mine not in self._rounds:
            needed = await self.needed(mine)
            self._rounds.setdefault(mine, _Round(needed, given_up))

    def assume(self, pod: Pod, ask: PodAsk, numbers: IntArray, judged: Judged) -> Judged:
        """The verdicts for a pod of a group with one node at most, on which its share is assumed.

        `numbers` are the ledger's indices of the nodes that were evaluated.
        """
        uid = pod.metadata.uid
        round_ = self._rounds.setdefault(group_of(pod), _Round())
        round_.asked.add(uid)
        round_.asked_s = self.now_s()
        fitting = judged.codes == FITS
        for place, node in _best_first(self.ledger, ask, numbers, fitting):
            before = round_.assumed.get(uid)
            if before is not None and before.assumed and before.node != node:
                self._drop(round_, uid)
            if (allocation := _assumed(self.ledger, ask, node, self.now_s())) is not None:
                round_.assumed[uid] = allocation
                return only(judged, fitting, place)
        round_.missed = True
        self._drop(round_, uid)
        return only(judged, fitting, None)

    def _end(self, group: str) -> None:
        for allocation in self._rounds.pop(group).assumed.values():
            _give_up(self.ledger, allocation)

    def _drop(self, round_: _Round, uid: str) -> None:
        """Release what is only assumed; shares that a bind has taken over no longer belong to the group."""
        if (allocation := round_.assumed.pop(uid, None)) is not None:
            _give_up(self.ledger, allocation)

    def _old(self, round_: _Round) -> bool:
        return round_.asked_s < self.now_s() - ASSUMED_S

    def settle(self) -> None:
        """Check all groups, for when there are no calls."""
        for group, round_ in list(self._rounds.items()):
            if self._old(round_):
                self._end(group)


def _best_first(ledger: Ledger, ask: PodAsk, numbers: IntArray, fitting: BoolArray) -> Iterator[tuple[int, str]]:
    """The nodes that fit, by their place in `numbers` and their name, the best for the pod first."""
    values = np.where(fitting, scores(ledger, ask, numbers), -1)
    for place in np.argsort(-values, kind="stable")[: int(fitting.sum())].tolist():
        yield place, ledger.cluster.spec(int(numbers[place])).name


def _assumed(ledger: Ledger, ask: PodAsk, node: str, now_s: float) -> Allocation | None:
    """The pod's share on a node, assumed unless a bind has or may have taken it over; None where it does not fit."""
    try:
        allocation = ledger.allocate(ask, node, now_s)
    except (NodeFull, UserError):
        return None
    allocation.assumed = not allocation.in_doubt and not allocation.confirmed
    return allocation


def _give_up(ledger: Ledger, allocation: Allocation) -> None:
    """Release a share that is only assumed; one that a bind has taken over stays."""
    if allocation.assumed and allocation in ledger.allocations.get(allocation.uid, ()):
        ledger.forget(allocation)


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
                found = decoded(msgspec.json.decode(body), _PodGroup).spec.scheduling_policy.gang
            except NotFound:
                continue
            except (KubeError, msgspec.DecodeError, Undecodable) as error:
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


def only(judged: Judged, fitting: BoolArray, place: int | None) -> Judged:
    """The verdicts with one fitting node, or none."""
    codes = judged.codes.copy()
    codes[fitting] = 2 * len(judged.reasons)
    if place is not None:
        codes[place] = FITS
    return replace(judged, codes=codes, reasons=[*judged.reasons, KEPT])


HOLD_S: Final = 60.0
"""Longer than controllers need to make the pods of a group and kube-scheduler to bind them."""
READ_AGAIN_S: Final = 5.0
REFUSED_S: Final = 1.0
"""How long a refusal is repeated while the ledger stays as it is: kube-scheduler asks about every pod of the group."""
EXPLAINED_NODES: Final = 64
"""In larger clusters the account of all devices takes too long, and the commonest reason is given."""
POD_SET: Final = "kueue.x-k8s.io/podset"
COSCHEDULING: Final = "scheduling.x-k8s.io/pod-group"
JOB_SET: Final = "jobset.sigs.k8s.io/jobset-name"
LEADER_WORKER_SET: Final = "leaderworkerset.sigs.k8s.io/name"
LEADER_WORKER_GROUP: Final = "leaderworkerset.sigs.k8s.io/group-index"


@dataclass(frozen=True)
class GroupMember:
    """A pod of a group and its request; of one that is yet to be made, `pod_set` names the pods that may take it."""

    pod: Pod
    ask: PodAsk
    pod_set: str = ""


@dataclass
class _Held:
    """Allocations by the pod's uid, each with the pod set that may take it; those not bound end at `until_s`."""

    until_s: float
    allocations: dict[str, tuple[str, Allocation]] = field(default_factory=dict)

    @property
    def unbound(self) -> list[Allocation]:
        return [allocation for _, allocation in self.allocations.values() if allocation.assumed]


@dataclass
class HeldGroups:
    """The groups for which shares are held, over one ledger."""

    ledger: Ledger
    now_s: Callable[[], float]
    needed: Callable[[str], Awaitable[int]]
    """How many pods a group needs, by `held_group_of`; 0 where its pods are placed one by one."""
    nodes: Callable[[], Iterable[Node]] = tuple
    dialects: Mapping[str, Dialect] = field(default_factory=lambda: FOREIGN)
    pods: Index[Pod] = field(
        default_factory=lambda: Index(lambda pod: [pod.spec.node_name, held_group_of(pod), group_of(pod)])
    )
    """All pods, by node and by group."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _refused: Bounded[str, tuple[int, float, str]] = field(default_factory=lambda: Bounded(1000))

    async def place(self, pod: Pod, ask: PodAsk) -> Allocation | str | None:
        """The share that a pod has as one of a group, or why its group has none; None where it is placed alone."""
        group = held_group_of(pod)
        if not group or (share := self._take(group, pod, ask)) is not None or WORKLOAD in pod.metadata.annotations:
            return share if group else None
        try:
            needed = await self.needed(group)
        except KubeError as error:
            return f"how many pods its group needs is not known now: {error}"
        if (share := self._take(group, pod, ask)) is not None:  # a call beside this one has placed the group
            return share
        known = {one.metadata.uid: one for one in self.pods.naming(group)} | {ask.uid: pod}
        there = [one for one in known.values() if not one.metadata.deletion_timestamp and one.status.phase != "Failed"]
        held = self._held[group].allocations if group in self._held else {}
        waiting = [one for one in there if not (one.spec.node_name or one.ended or one.metadata.uid in held)]
        missing = needed - (len(there) - len(waiting))
        if missing <= 0:
            return None
        if len(waiting) < missing:
            return f"{needed} pods of its group are needed at once, {len(there)} are there"
        clock, refused = self.ledger.cluster.clock, self._refused.get(group)
        if refused and refused[0] == clock and self.now_s() < refused[1]:
            return refused[2]
        try:
            members = [GroupMember(one, found) for one in waiting if (found := read(one, self.dialects)) is not None]
        except BadPod as error:
            return str(error)
        why = self.hold(group, members, missing - (len(waiting) - len(members)))
        self._refused[group] = (self.ledger.cluster.clock, self.now_s() + REFUSED_S, why)
        return why or self._take(group, pod, ask)

    def hold(self, group: str, members: Sequence[GroupMember], at_least: int) -> str:
        """Hold a share for each of these members of a group that has a place, if they are so many; "", or why not."""
        cluster = self.ledger.cluster
        nodes = {node.metadata.name: node for node in self.nodes() if node.metadata.name in cluster.index}
        numbers = indices_of(self.ledger, list(cluster.index))
        closed: dict[bytes, dict[str, str]] = {}
        placed: dict[str, list[Pod]] = {}
        shares: dict[str, tuple[str, Allocation]] = {}
        why = ""
        for member in sorted(members, key=lambda one: -sum(c.total_milli for c in one.ask.containers)):
            kind = msgspec.json.encode(member.pod.spec)
            if kind not in closed:
                closed[kind] = barred(member.pod, nodes.values(), ())
            allocation = self._allocate(member, numbers, nodes, closed[kind], placed)
            if allocation is not None:
                shares[member.ask.uid] = (member.pod_set, allocation)
            elif not why:
                why = self._why(member, numbers, closed[kind], [f"{share.key}/" for _, share in shares.values()])
        if len(shares) >= at_least:
            self._held.setdefault(group, _Held(0.0)).allocations |= shares
            self.keep(group, self.now_s() + HOLD_S)
            return ""
        for _, share in shares.values():
            _give_up(self.ledger, share)
        return f"{len(shares)} of {len(members)} pods of the group have room now; {why}"

    def keep(self, group: str, until_s: float) -> None:
        """Hold what a group has until then."""
        if group in self._held:
            self._held[group].until_s = until_s

    def holds(self, group: str) -> bool:
        """Whether shares are held for a group, bound or not."""
        return group in self._held

    def release(self, group: str) -> None:
        """Give up what is held for a group and no bind has taken over."""
        if held := self._held.pop(group, None):
            for allocation in held.unbound:
                _give_up(self.ledger, allocation)

    def drop(self, group: str, uid: str) -> None:
        """Give up what a group holds for one pod, which may not go there."""
        if group in self._held and (found := self._held[group].allocations.pop(uid, None)):
            _give_up(self.ledger, found[1])

    def settle(self) -> None:
        """Give up what was held for too long."""
        for group, held in list(self._held.items()):
            if held.until_s < self.now_s():
                self.release(group)

    # Inside

    def _take(self, group: str, pod: Pod, ask: PodAsk) -> Allocation | None:
        """What a group holds for this pod, also where it was held before the pod was made."""
        allocations = self._held[group].allocations if group in self._held else {}
        if ask.uid in allocations:
            own = allocations[ask.uid][1]
            return own if own in self.ledger.allocations.get(ask.uid, ()) else None
        pod_set = pod.metadata.labels.get(POD_SET, "")
        for uid, (name, allocation) in allocations.items():
            if not name or name != pod_set or ask.namespace != split_key(allocation.key)[0]:
                continue
            del allocations[uid]
            _give_up(self.ledger, allocation)
            try:
                taken = self.ledger.allocate(ask, allocation.node, self.now_s())
            except (NodeFull, UserError) as error:
                log.warning("pod %s asks for more than its group held: %s", ask.key, error)
                return None
            taken.assumed = True
            allocations[ask.uid] = ("", taken)
            return taken
        return None

    def _allocate(
        self,
        member: GroupMember,
        numbers: IntArray,
        nodes: Mapping[str, Node],
        closed: Mapping[str, str],
        placed: dict[str, list[Pod]],
    ) -> Allocation | None:
        """A share on the best of the nodes that are not closed; `placed` are the group's pods so far."""
        ledger, ask = self.ledger, member.ask
        fitting = judge(ledger, ask, numbers, str).codes == FITS
        for _, name in _best_first(ledger, ask, numbers, fitting):
            beside = [*self.pods.naming(name), *placed.get(name, ())]
            if name in closed or (name in nodes and barred(member.pod, [nodes[name]], beside, [name])):
                continue
            if (allocation := _assumed(ledger, ask, name, self.now_s())) is not None:
                spec = msgspec.structs.replace(member.pod.spec, node_name=name)
                placed.setdefault(name, []).append(msgspec.structs.replace(member.pod, spec=spec))
                return allocation
        return None

    def _why(self, member: GroupMember, numbers: IntArray, closed: Mapping[str, str], own: Sequence[str]) -> str:
        """Why a member has no place beside those that have one, and what would help that is not one of them (`own`)."""
        ledger, ask = self.ledger, member.ask
        unit = ask.units(ledger.known)[0]
        if len(numbers) <= EXPLAINED_NODES:
            found = explain_with(ledger.decider, unit.ask, ask.namespace, closed)
            if found.placement is not None:
                return "Kubernetes counts more on the nodes with GPUs for another one than they have"
            ways = [way for way in found.changes if not any(end.name.startswith(tuple(own)) for end in way.ends)]
            words = zip(("Nearest", "Or"), ways, strict=False)
            return " ".join([found.headline("another"), *(f"{word}: {suggestion(way)}." for word, way in words)])
        judged = judge(ledger, ask, numbers, str)
        codes, counts = np.unique(judged.codes[judged.codes != FITS], return_counts=True)
        if not len(codes):
            return "Kubernetes counts more on the nodes with GPUs for another one than they have"
        commonest = int(counts.argmax())
        return f"for another one {counts[commonest]} of {len(numbers)} nodes: {judged.sentence(int(codes[commonest]))}"


def held_group_of(pod: Pod) -> str:
    """The group that a pod is held with, `namespace/kind/name`, for a Kueue workload `workload/uid`; "" for others."""
    meta, labels = pod.metadata, pod.metadata.labels
    if pod.spec.scheduling_group is not None:
        return ""  # kube-scheduler itself binds these together
    if workload := meta.annotations.get(WORKLOAD):
        return f"workload/{workload}"
    if name := labels.get(COSCHEDULING):
        return f"{meta.namespace}/podgroups/{name}"
    if name := labels.get(JOB_SET):
        return f"{meta.namespace}/jobsets/{name}"
    name, number = labels.get(LEADER_WORKER_SET), labels.get(LEADER_WORKER_GROUP)
    return f"{meta.namespace}/leaderworkersets/{name}/{number}" if name and number else ""


def _jobs_pods(spec: Any) -> int:
    """The pods of a JobSet; 0 where some of its jobs wait for others before they have any."""
    jobs, order = spec["replicatedJobs"], spec.get("startupPolicy", {}).get("startupPolicyOrder")
    if order == "InOrder" or any(job.get("dependsOn") for job in jobs):
        return 0
    pods = 0
    for job in jobs:
        one = job["template"]["spec"]
        parallel = one.get("parallelism", 1)
        pods += job.get("replicas", 1) * min(parallel, one.get("completions", parallel))
    return pods


_SIZES: Final[Mapping[str, tuple[str, Callable[[Any], int]]]] = {
    "podgroups": ("scheduling.x-k8s.io/v1alpha1", lambda spec: int(spec.get("minMember", 0))),
    "jobsets": ("jobset.x-k8s.io/v1alpha2", _jobs_pods),
    "leaderworkersets": (  # of one group; its workers may wait until their leader is ready
        "leaderworkerset.x-k8s.io/v1",
        lambda spec: (
            0 if spec.get("startupPolicy") == "LeaderReady" else int(spec["leaderWorkerTemplate"].get("size", 1))
        ),
    ),
}


@dataclass
class GroupSizes:
    """How many pods each group needs, read from the API server, again after `READ_AGAIN_S`."""

    api: Api
    now_s: Callable[[], float]
    _read: Bounded[str, tuple[float, int]] = field(default_factory=lambda: Bounded(10_000))

    async def needed(self, group: str) -> int:
        """The size of a group; 0 where its object is not there or its pods do not start at once.

        Raises:
            KubeError: it cannot be read now.
        """
        until_s, size = self._read.get(group, (float("-inf"), 0))
        if self.now_s() < until_s:
            return size
        namespace, kind, name = group.split("/")[:3]
        version, size_of = _SIZES[kind]
        try:
            path = f"/apis/{version}/namespaces/{namespace}/{kind}/{name}"
            size = size_of(msgspec.json.decode(await self.api.request("GET", path, timeout_s=ASK_S))["spec"])
        except NotFound:
            size = 0
        except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadAnswer(f"{group} cannot be read: {error}") from None
        self._read[group] = (self.now_s() + READ_AGAIN_S, size)
        return size
