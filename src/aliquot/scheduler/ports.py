"""The interfaces between the parts of the scheduler, as small Protocols."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from aliquot.kube.requests import PodAsk
from aliquot.status.gpus import Gpu


class Ledger(Protocol):
    """The ledger as the operator and the pool see it: in memory, never waiting, the one that binds are made from."""

    def gpu(self, uuid: str) -> Gpu | None:
        """A device by its UUID; None when no node has it."""
        ...

    def gpus(self, node: str = "") -> Iterable[Gpu]:
        """All devices, or those of a node, in the order of the ledger."""
        ...

    def why_not(self, node: str) -> str:
        """Why a node takes no pods that request GPUs; empty if it does."""
        ...

    def fits(self, ask: PodAsk, nodes: Iterable[str]) -> tuple[bool, str]:
        """Whether the pod fits on one of these nodes now, all nodes when there are none; if not, the commonest reason.

        The reason concerns the ledger only; taints, volumes and the like are kube-scheduler's.
        """
        ...

    def close(self, uuid: str) -> bool:
        """Accept no new tenant on the device; False, and nothing changed, if it has one."""
        ...

    def reopen(self, uuid: str) -> None:
        """Undo `close`."""
        ...
