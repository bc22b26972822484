"""After a crash or a reboot: the records rebuilt from what is still known, in the order of trust.

1. Kubelet's own records (PodResources, and its device checkpoint): what containers hold.
2. Our checkpoint: which name was returned for which ids, its owner, and the plan.
3. The pods' annotations, their running containers and the tenants' folders: the plan, and what no record has.

Where two of them differ the earlier one counts, and the difference is reported. That a record is missing proves
nothing, in kubelet's or in ours: what may be removed says `tenancy.removal`. Pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from aliquot.kube.names import PLAN
from aliquot.kube.plan import BadPlan, ContainerPlan, generation_of, read_plan
from aliquot.node.allocation.checkpoint import Allotment, PodKey
from aliquot.node.allocation.kubelet import ContainerDevices, PodDevicesEntry
from aliquot.node.pods import NodePod
from aliquot.tenancy.removal import Removable, Source, kept_by


@dataclass(frozen=True)
class Recovered:
    """The result: the allocations in force, and each difference as a sentence."""

    allotments: tuple[Allotment, ...]
    differences: tuple[str, ...] = field(default=())


def recover(
    held: Sequence[ContainerDevices],
    entries: Sequence[PodDevicesEntry] | None,
    ours: Iterable[Allotment],
    pods: Mapping[str, NodePod] | None,
    processes: Collection[str] = (),
) -> Recovered:
    """The allotments that stand.

    `entries` is None when kubelet's file cannot be read, `pods` is None when the API server does not answer; facts that
    only these have are then left as in our checkpoint. `processes` are the uids of the pods of which processes run.
    """
    differences: list[str] = []
    standing = {allotment.name: allotment for allotment in ours}
    if entries is not None:
        standing = _by_kubelet(standing, entries, pods, differences)
    if pods is not None:
        standing = {
            name: _by_rows(allotment, held, pods, processes, differences) for name, allotment in standing.items()
        }
        standing = {
            name: after
            for name, before in standing.items()
            if (after := _by_api(before, pods, processes, differences)) is not None
        }
    ids = {frozenset(allotment.ids) for allotment in standing.values()}
    differences += [
        f"{row.namespace}/{row.pod} container {row.container} holds {len(row.ids)} ids that we never named"
        for row in held
        if row.ids not in ids
    ]
    return Recovered(tuple(standing.values()), tuple(differences))


def _by_kubelet(
    standing: Mapping[str, Allotment],
    entries: Sequence[PodDevicesEntry],
    pods: Mapping[str, NodePod] | None,
    differences: list[str],
) -> dict[str, Allotment]:
    """The allotments in kubelet's checkpoint, completed from our own."""
    theirs: dict[str, Allotment] = {}
    for entry in entries:
        for name in entry.names:
            before = standing.get(name)
            made = before or Allotment(name, tuple(sorted(entry.ids)))
            if before is None:
                differences.append(
                    f"{name} of container {entry.container}, pod uid {entry.uid}, was not in our checkpoint"
                )
            elif frozenset(before.ids) != entry.ids:
                differences.append(f"{name} stands for {len(entry.ids)} ids with kubelet and {len(before.ids)} with us")
                made = replace(made, ids=tuple(sorted(entry.ids)))
            if made.uid and (made.uid, made.container) != (entry.uid, entry.container):
                differences.append(
                    f"{name} is {entry.container}'s of pod uid {entry.uid} with kubelet, {made.owner}'s with us"
                )
                made = replace(made, uid="", namespace="", pod="", container="", plan="", driver="", env=())
            pod = pods.get(entry.uid) if pods is not None else None
            if not made.uid and pod is not None:
                key = pod.key
                made = replace(made, uid=key.uid, namespace=key.namespace, pod=key.pod, container=entry.container)
            theirs[name] = made
    missing = {name: allotment for name, allotment in standing.items() if name not in theirs}
    differences += [
        f"{a.name} of {a.owner} is not with kubelet any more; it stays with it" for a in missing.values() if a.uid
    ]
    return theirs | missing


def _by_rows(
    allotment: Allotment,
    held: Sequence[ContainerDevices],
    pods: Mapping[str, NodePod],
    processes: Collection[str],
    differences: list[str],
) -> Allotment:
    """PodResources against the owner that we have; rows name no uid, so only another pod is a difference.

    A kubelet that lost its checkpoint gives the ids of a container that runs to another one as well.
    """
    rows = [row for row in held if row.ids == frozenset(allotment.ids)]
    mine = (allotment.namespace, allotment.pod)
    if not allotment.uid or not rows or mine in [(row.namespace, row.pod) for row in rows]:
        return allotment
    differences.append(
        f"{allotment.name} is {mine[0]}/{mine[1]}'s with us, {rows[0].namespace}/{rows[0].pod} holds its ids"
    )
    pod = pods.get(allotment.uid)
    runs = allotment.uid in processes if pod is None else allotment.container in pod.running()
    if runs:
        return allotment
    return replace(allotment, uid="", namespace="", pod="", container="", plan="", driver="")


def _by_api(
    allotment: Allotment, pods: Mapping[str, NodePod], processes: Collection[str], differences: list[str]
) -> Allotment | None:
    """The allotment with the plan in force; None if its pod is gone."""
    if not allotment.uid:
        return allotment
    pod = pods.get(allotment.uid)
    if pod is None or pod.ended:
        runs = pod is None and allotment.uid in processes  # of a pod that has ended kubelet said so itself
        kept = kept_by(Removable.SHARE, {Source.API: "gone", Source.PROCESSES: "used" if runs else "gone"})
        if kept:
            differences.append(f"{allotment.name} of {allotment.owner}, which was deleted, stays: {kept}")
        return allotment if kept else None
    if allotment.plan and generation_of(pod.plan) > generation_of(allotment.plan):
        return allotment  # it is resized next
    if allotment.plan and pod.plan != allotment.plan:
        differences.append(
            f"the plan of {pod.key} was changed after its container {allotment.container} got its share by it"
        )
        return allotment
    return replace(allotment, plan=pod.plan)


def unrecorded(
    standing: Iterable[Allotment], pods: Iterable[NodePod], furnished: Callable[[PodKey, str], bool]
) -> list[Allotment]:
    """Containers that run with a share that no record has, each as an allotment; `furnished` tells of a folder.

    Kubelet and this agent both lost their checkpoints. A container without a folder never had a share.
    """
    known = {(allotment.uid, allotment.container) for allotment in standing}
    allotments = []
    for pod in pods:
        key = pod.key
        for name in sorted(pod.running() if not pod.ended else ()):
            made = Allotment(f"{key.uid}-{name}", (), key.uid, key.namespace, key.pod, name, pod.plan)
            given = planned_container(made)
            if given is not None and (key.uid, name) not in known and furnished(key, given.uses or name):
                allotments.append(made)
    return allotments


def planned_container(allotment: Allotment) -> ContainerPlan | None:
    """What the plan in force says about the container."""
    with contextlib.suppress(BadPlan):
        plan = read_plan({PLAN: allotment.plan}) if allotment.plan else None
        return plan.containers.get(allotment.container) if plan is not None else None
    return None


def has_ended(allotment: Allotment, allotments: Sequence[Allotment], pod: NodePod | None) -> bool:
    """Whether it belongs to an ended init container, by the pod's status or a later container's provisioning."""
    own = planned_container(allotment)
    if own is None or own.init <= 0:
        return False
    others = [planned_container(other) for other in allotments if other.uid == allotment.uid]
    later = any(other is not None and other.starts > own.starts for other in others)
    return later or (pod is not None and pod.init_containers_ended({}))
