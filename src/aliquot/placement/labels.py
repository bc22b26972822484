"""Labels on devices, and what they allow.

A device carries the labels of its residents (KubeShare, HPDC'20, 4.4), as we read the paper where it contradicts
itself: an idle device takes anybody; a label of affinity, like the name of a vGPU, is on one device only and draws its
own there, or makes them wait; equal labels of anti-affinity never meet; tenants whose exclusion labels differ never
meet, none being a label of its own. A device that has a name takes those without one, but never two names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from aliquot.model.requests import Labels

if TYPE_CHECKING:
    from aliquot.placement.asks import Ask
    from aliquot.placement.books import Resident

Cell: TypeAlias = tuple[int, int]
"""A device by (node index, device index)."""

_NONE: Final[Mapping[Cell, int]] = {}


class LabelIndex:
    """Which devices carry a label, counted by residents, so that a label is removed with the last that carries it."""

    __slots__ = ("affinity", "anti_affinity", "exclusion", "exclusive", "gpu_id", "named")

    def __init__(self) -> None:
        self.affinity: dict[str, dict[Cell, int]] = {}
        self.anti_affinity: dict[str, dict[Cell, int]] = {}
        self.exclusion: dict[str, dict[Cell, int]] = {}
        self.gpu_id: dict[str, dict[Cell, int]] = {}
        self.named: dict[str, dict[Cell, int]] = {}
        self.exclusive: dict[str, dict[Cell, int]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabelIndex) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

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
