"""The types of the ledger: nodes, placements, residents, holdings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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


def kind_of(ask: Ask | Shape) -> int:
    """The kind of a GPU pod: the number of its devices, 0 for a part of one."""
    return min(ask.devices, 62) if ask.whole else 0
