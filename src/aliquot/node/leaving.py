"""The end of pods: what belonged to one goes only when its containers have, and what is nobody's goes at the start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from aliquot.node.allotments import Allotments
from aliquot.node.cdi import remove_spec, written_names
from aliquot.node.checkpoint import PodKey
from aliquot.node.kubelet import PodResources
from aliquot.node.pods import NodePod
from aliquot.node.seating import Seating

WAIT_S: Final = 120.0
LOOK_S: Final = 0.5


async def containers_ended(
    owner: PodKey, ids: set[frozenset[str]], resources: PodResources, pods: Iterable[NodePod]
) -> None:
    """Wait while kubelet still has these device ids for the pod, but not for ever.

    A pod that is deleted by force is gone before its containers are. When a pod of the same name is there already, or
    kubelet does not answer, there is nothing to wait for.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_S
    while ids and loop.time() < until_s:
        try:
            held = await resources.held()
        except OSError:
            return
        namesake = any((p.key.namespace, p.key.pod) == (owner.namespace, owner.pod) for p in pods)
        mine = [r for r in held if (r.namespace, r.pod) == (owner.namespace, owner.pod) and r.ids in ids]
        if not mine or namesake:
            return
        await asyncio.sleep(LOOK_S)


def sweep(cdi: Path, allotments: Allotments, seating: Seating) -> int:
    """Remove CDI files, tenants' folders and tenants that belong to nobody; how many."""
    stray = written_names(cdi) - {allotment.name for allotment in allotments}
    for name in stray:
        remove_spec(cdi, name)
    return len(stray) + len(seating.sweep())
