"""The types of the ledger: nodes, placements, residents, holdings; and how a trial is taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from aliquot.model.errors import AliquotError
from aliquot.model.requests import Device, Labels, Slice
from aliquot.placement.asks import Ask, Shape

if TYPE_CHECKING:
    from aliquot.topology import Topology

GONE: Final = -1
"""In `free_milli`, `free_mib`, `size_mib`, `model`: no device here; in `cpu_free`, `memory_free`: no node."""


class LedgerError(AliquotError):
    """A booking that contradicts the ledger: the name is taken, the device unknown or full."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A machine as placement sees it; `rank` orders nodes of equal score, smallest first.

    Devices in `unhealthy` (UUIDs) keep the tenants they have and take no new ones.
    """

    name: str
    gpus: tuple[Device, ...] = ()
    cpu_milli: int = 0
    memory_mib: int = 0
    topology: Topology | None = None
    rank: int = 0
    unhealthy: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a pod goes: a node and slices of its devices, whole GPUs first."""

    node: str
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class Resident:
    """One tenant on one device."""

    tenant: str
    piece: Slice
    labels: Labels
    gpu_id: str


@dataclass(frozen=True, slots=True)
class Holding:
    """What one tenant has, and where in the columns it is counted."""

    placement: Placement
    ask: Ask
    node: int
    cells: tuple[int, ...]


class MeasuredKernels:
    """The latest values: by GPU (UUID) the longest kernel of its tenants in microseconds; the nodes' turn policies."""

    __slots__ = ("kernels", "turns")

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, int]] = {}
        self.turns: dict[str, str] = {}


@dataclass(slots=True)
class UndoLog:
    """The steps that undo a trial's changes, in the order of the changes, and the versions its nodes had before it."""

    steps: list[Callable[[], object]] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)

    def take_back(self, version: NDArray[np.int64]) -> None:
        """Undo everything; in the ledger's column of versions the nodes have those of before again."""
        for step in reversed(self.steps):
            step()
        for number, before in self.versions.items():
            version[number] = before


def kind_of(ask: Ask | Shape) -> int:
    """The kind of a GPU pod: the number of its devices, 0 for a part of one."""
    return min(ask.devices, 62) if ask.whole else 0
