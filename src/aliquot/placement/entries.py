"""The types of the ledger: nodes, placements, residents and their labels, holdings; and how a trial is taken back.

A device carries the labels of its residents (KubeShare, HPDC'20, 4.4), as we read the paper where it contradicts
itself: an idle device takes any tenant; a label of affinity, like the name of a vGPU, is on one device only and draws
its own there, or makes them wait; equal labels of anti-affinity never meet; tenants whose exclusion labels differ never
meet, none being a label of its own. A device that has a name takes those without one, but never two names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aliquot.model.errors import AliquotError
from aliquot.model.requests import Device, Labels, Slice
from aliquot.placement.asks import Ask, Shape

if TYPE_CHECKING:
    from aliquot.topology import Topology

GONE: Final = -1
"""In `free_milli`, `free_mib`, `size_mib`, `model`: no device here; in `cpu_free`, `memory_free`: no node."""

Cell: TypeAlias = tuple[int, int]
"""A device by (node index, device index)."""

_NONE: Final[Mapping[Cell, int]] = {}


class LedgerError(AliquotError):
    """A reservation that contradicts the ledger: the name is taken, the device unknown or full."""


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
    """What one tenant holds, and the rows of the columns in which it is counted."""

    placement: Placement
    ask: Ask
    node: int
    cells: tuple[int, ...]


@dataclass(slots=True)
class LabelIndex:
    """Which devices carry a label, counted by residents, so that a label is removed with the last that carries it."""

    affinity: dict[str, dict[Cell, int]] = field(default_factory=dict)
    anti_affinity: dict[str, dict[Cell, int]] = field(default_factory=dict)
    exclusion: dict[str, dict[Cell, int]] = field(default_factory=dict)
    gpu_id: dict[str, dict[Cell, int]] = field(default_factory=dict)
    named: dict[str, dict[Cell, int]] = field(default_factory=dict)
    exclusive: dict[str, dict[Cell, int]] = field(default_factory=dict)

    def add(self, cell: Cell, labels: Labels, gpu_id: str) -> None:
        """A resident came to a device."""
        for index, label in self._entries(labels, gpu_id):
            cells = index.setdefault(label, {})
            cells[cell] = cells.get(cell, 0) + 1

    def drop(self, cell: Cell, labels: Labels, gpu_id: str) -> None:
        """A resident left a device."""
        for index, label in self._entries(labels, gpu_id):
            cells = index[label]
            cells[cell] -= 1
            if not cells[cell]:
                del cells[cell]
            if not cells:
                del index[label]

    @property
    def any_exclusive(self) -> Mapping[Cell, int]:
        """Devices whose residents exclude others."""
        return self.exclusive.get("", _NONE)

    @property
    def any_named(self) -> Mapping[Cell, int]:
        """Devices that are a named vGPU."""
        return self.named.get("", _NONE)

    def pins(self, ask: Ask) -> list[Mapping[Cell, int]]:
        """Sets of devices an ask is bound to by what is there already; it must be in each of them."""
        found = [self.affinity.get(ask.labels.affinity, _NONE)] if ask.labels.affinity else []
        found += [self.gpu_id.get(ask.gpu_id, _NONE)] if ask.gpu_id else []
        return [cells for cells in found if cells]

    def allows(self, cells: Iterable[Cell], ask: Ask, residents: Callable[[int, int], list[Resident]]) -> bool:
        """Whether labels let an ask onto all of these devices."""
        if ask.plain and not self.exclusive:
            return True
        pins = self.pins(ask)
        return all(
            all(cell in pin for pin in pins) and not self.conflict(cell, ask, residents(*cell)) for cell in cells
        )

    def conflict(self, cell: Cell, ask: Ask, residents: list[Resident]) -> str:
        """The kind of label that keeps an ask off a device: `exclusion`, `anti-affinity`, `name`, or nothing."""
        if not residents:
            return ""
        labels = ask.labels
        if residents[0].labels.exclusion != labels.exclusion:
            return "exclusion"
        if labels.anti_affinity and cell in self.anti_affinity.get(labels.anti_affinity, _NONE):
            return "anti-affinity"
        if ask.gpu_id and cell in self.any_named and cell not in self.gpu_id.get(ask.gpu_id, _NONE):
            return "name"
        return ""

    def _entries(self, labels: Labels, gpu_id: str) -> list[tuple[dict[str, dict[Cell, int]], str]]:
        found = []
        if labels.affinity:
            found.append((self.affinity, labels.affinity))
        if labels.anti_affinity:
            found.append((self.anti_affinity, labels.anti_affinity))
        if labels.exclusion:
            found += [(self.exclusion, labels.exclusion), (self.exclusive, "")]
        if gpu_id:
            found += [(self.gpu_id, gpu_id), (self.named, "")]
        return found


@dataclass(slots=True)
class MeasuredKernels:
    """The latest values: by GPU (UUID) the longest kernel of its tenants in microseconds; the nodes' turn policies."""

    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    turns: dict[str, str] = field(default_factory=dict)


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
