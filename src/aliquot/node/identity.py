"""Identification: from the device ids of a container that is about to start to the container itself.

Kubelet's calls do not name the pod. Two of its records do, and both contain the container before PreStartContainer is
called: PodResources (an API; namespace, pod and container of all but plain init containers) and its device checkpoint
(a file of its own; the pod's uid, the container, and the very answer that we gave to Allocate, which carries a name
that we gave only once). The name is unambiguous, even when an init container and a later container have the same ids.

Nothing is guessed. If the two records name different pods, or neither names one, the start is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aliquot.model.errors import AliquotError
from aliquot.node.checkpoint import Allotment, PodKey


class UnknownOwner(AliquotError):
    """Kubelet does not (yet) report the owner of these ids."""


class Disagreement(AliquotError):
    """Two records of the owner of the ids contradict each other."""


@dataclass(frozen=True)
class Held:
    """A line of PodResources: what one container holds of our resource."""

    namespace: str
    pod: str
    container: str
    ids: frozenset[str]


@dataclass(frozen=True)
class Noted:
    """An entry of kubelet's device checkpoint for our resource; `names` are the CDI names in our stored answer."""

    uid: str
    container: str
    ids: frozenset[str]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A container that holds the ids, and the CDI device name that the runtime will ask for it."""

    name: str
    owner: PodKey
    container: str


def identify(
    ids: frozenset[str],
    held: Iterable[Held],
    noted: Iterable[Noted] | None,
    allotments: Iterable[Allotment],
    pods: Mapping[str, PodKey],
) -> list[Claim]:
    """Every container that these ids were given to; all of them belong to one pod.

    `noted` is None when kubelet's file cannot be read; `pods` are the node's pods by uid.

    Raises:
        UnknownOwner: no account names a container, or a pod that it names is not known (yet).
        Disagreement: the accounts name different pods.
    """
    rows = [row for row in held if row.ids == ids]
    if noted is None:
        return _from_rows(ids, rows, allotments, pods)
    entries = [entry for entry in noted if entry.ids == ids]
    if not entries:
        raise UnknownOwner(f"kubelet's checkpoint does not name the container of {_shown(ids)} yet")
    uids = {entry.uid for entry in entries}
    if len(uids) > 1:
        raise Disagreement(f"kubelet's checkpoint gives {_shown(ids)} to {len(uids)} pods: {', '.join(sorted(uids))}")
    owner = pods.get(uid := uids.pop())
    if owner is None:
        raise UnknownOwner(f"the pod with uid {uid} that holds {_shown(ids)} is not known")
    for row in rows:
        if (row.namespace, row.pod) != (owner.namespace, owner.pod):
            raise Disagreement(
                f"{_shown(ids)} are {owner.namespace}/{owner.pod}'s by kubelet's checkpoint and "
                f"{row.namespace}/{row.pod}'s by its PodResources"
            )
    return [Claim(_only_name(entry, allotments), owner, entry.container) for entry in entries]


def _from_rows(
    ids: frozenset[str], rows: list[Held], allotments: Iterable[Allotment], pods: Mapping[str, PodKey]
) -> list[Claim]:
    """By PodResources and our own checkpoint; valid only where both have exactly one answer."""
    names = [allotment.name for allotment in allotments if frozenset(allotment.ids) == ids]
    if len(rows) != 1 or len(names) != 1:
        raise UnknownOwner(
            f"kubelet's checkpoint cannot be read, and PodResources has {len(rows)} containers with {_shown(ids)}, "
            f"our checkpoint {len(names)}"
        )
    row = rows[0]
    owner = next((p for p in pods.values() if (p.namespace, p.pod) == (row.namespace, row.pod)), None)
    if owner is None:
        raise UnknownOwner(f"pod {row.namespace}/{row.pod} that holds {_shown(ids)} is not known")
    return [Claim(names[0], owner, row.container)]


def _only_name(entry: Noted, allotments: Iterable[Allotment]) -> str:
    if len(entry.names) == 1:
        return entry.names[0]
    ours = [a.name for a in allotments if frozenset(a.ids) == entry.ids and a.container in ("", entry.container)]
    if len(ours) == 1:
        return ours[0]
    raise UnknownOwner(f"container {entry.container} of the pod with uid {entry.uid} has no CDI device name of ours")


def _shown(ids: frozenset[str]) -> str:
    few = sorted(ids)[:3]
    return f"{', '.join(few)}{f' and {len(ids) - len(few)} more' if len(ids) > len(few) else ''}"
