"""The allocation check: pods of the node that do not have what they requested, and the remedy for each.

Pure. A container that runs with no entry in any of kubelet's accounts slipped through while the plugin was away; it is
reported, since only its owner knows what its work is worth. A pod that will never get its share is replaced where a
controller creates a new one, and reported otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from aliquot.node.checkpoint import PodKey
from aliquot.node.identity import Held, Noted
from aliquot.node.pods import NodePod

Kind = Literal["slipped", "failed", "refused"]
ADMISSION_REASONS: Final = ("UnexpectedAdmissionError", "OutOfaliquot.dev/gpu-percent", "OutOfaliquot.dev/gpu-memory")
"""Reasons that kubelet gives a pod whose devices it could not allocate; such a pod has failed permanently."""


@dataclass(frozen=True)
class Finding:
    """One pod (or container of it) without what it requested. `replace`: a controller would create it again."""

    kind: Kind
    owner: PodKey
    container: str
    why: str
    replace: bool = False


def findings(
    pods: Iterable[NodePod], held: Sequence[Held], noted: Sequence[Noted] | None, refused: Mapping[str, str]
) -> list[Finding]:
    """All problems. `refused` has the final refusal of a pod by its uid; with `noted` None it is not known."""
    rows = {(row.namespace, row.pod, row.container) for row in held}
    entries = None if noted is None else {(entry.uid, entry.container) for entry in noted}
    found: list[Finding] = []
    for pod in pods:
        asking = pod.asking()
        if not asking:
            continue
        if pod.status.phase == "Failed":
            if pod.status.reason in ADMISSION_REASONS:
                why = pod.status.message or pod.status.reason
                found.append(Finding("failed", pod.key, "", why, controlled(pod)))
            continue
        if pod.metadata.deletion_timestamp or pod.ended:
            continue
        if why := refused.get(pod.metadata.uid, ""):
            found.append(Finding("refused", pod.key, "", why, controlled(pod)))
        elif entries is not None:
            found += _slipped(pod, [c.name for c in asking], rows, entries)
    return found


def controlled(pod: NodePod) -> bool:
    """Whether a controller would create the pod again."""
    return any(owner.controller for owner in pod.metadata.owner_references)


def _slipped(
    pod: NodePod, asking: Sequence[str], rows: set[tuple[str, str, str]], entries: set[tuple[str, str]]
) -> Iterable[Finding]:
    running = pod.running()
    key = pod.key
    for name in asking:
        known = (key.uid, name) in entries or (key.namespace, key.pod, name) in rows
        if name in running and not known:
            yield Finding("slipped", key, name, "it runs, and kubelet gave it no device")
