"""The ledger as the operator and the vGPU pool see it: in memory, never waiting, the one that binds are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aliquot.kube.requests import PodAsk
from aliquot.placement.ledger import ledger_gpu, ledger_gpus
from aliquot.placement.sentences import text_of
from aliquot.scheduler.ledger import CLOSED, Ledger
from aliquot.scheduler.look import verdicts
from aliquot.status.gpus import Gpu


class LedgerView:
    """A view of the ledger of this process, GPU by GPU."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def gpu(self, uuid: str) -> Gpu | None:
        """A device by its UUID; None when no node has it."""
        cell = self._ledger.cluster.uuids.get(uuid)
        return None if cell is None else ledger_gpu(self._ledger.cluster, *cell, closed)

    def gpus(self, node: str = "") -> Iterable[Gpu]:
        """All devices, or those of a node, in the order of the ledger."""
        cluster = self._ledger.cluster
        if node and node not in cluster.index:
            return
        for name in [node] if node else [spec.name for spec in cluster.nodes]:
            yield from ledger_gpus(cluster, name, closed)

    def why_not(self, node: str) -> str:
        """Why a node takes no pods that ask for GPUs; empty when it may."""
        ledger = self._ledger
        return "" if node in ledger.cluster.index else text_of(ledger.absent(node))

    def fits(self, ask: PodAsk, nodes: Iterable[str]) -> tuple[bool, str]:
        """Whether the pod fits on one of these nodes now, all nodes when there are none; if not, the commonest reason.

        The reason concerns the ledger only; taints, volumes and the like are kube-scheduler's.
        """
        names = list(nodes) or [spec.name for spec in self._ledger.cluster.nodes]
        found = verdicts(self._ledger, ask, names)
        if found.fitting:
            return True, ""
        texts = Counter([*found.failed.values(), *found.never.values()])
        return False, texts.most_common(1)[0][0] if texts else "no node has GPUs"

    def close(self, uuid: str) -> bool:
        """Accept no new tenant on the device; False, and nothing changed, if it has one."""
        return self._ledger.close(uuid)

    def reopen(self, uuid: str) -> None:
        """Undo `close`."""
        self._ledger.reopen(uuid)


def closed(tenant: str) -> bool:
    """Whether a tenant only keeps others off a device."""
    return tenant.startswith(CLOSED)
