"""The allocation of one pod on one node, by its plan.

A plan has more in it than a pod ever holds at once where init containers have shares of their own: these run before the
others. Of each GPU a pod holds what the largest of its phases has there, and no longer than that phase may still come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aliquot.kube.plan import PodPlan
from aliquot.model.quantities import MILLI, Memory
from aliquot.model.requests import GpuRequest, Labels, Slice
from aliquot.placement.asks import Ask
from aliquot.placement.books import Placement


@dataclass(eq=False)
class Allocation:
    """What one pod holds on one node. `confirmed` once the API server shows the pod bound there by this plan."""

    uid: str
    key: str
    node: str
    plan: PodPlan
    tenants: tuple[str, ...]
    since_s: float
    confirmed: bool = False
    in_doubt: bool = False
    """A bind was sent and its fate is not known."""
    assumed: bool = False
    """No bind was asked for yet: kube-scheduler places the pod's group (`groups`)."""
    initialized: bool = False
    """The init containers have ended, and what only they had is given back."""


@dataclass(frozen=True)
class AllocationPart:
    """What one container, or one of its equal parts, has; `init` as in the plan."""

    name: str
    init: int
    slices: tuple[Slice, ...]
    labels: Labels
    gpu_id: str
    wake_us: int = 0

    @property
    def ask(self) -> Ask:
        """The ask that these slices meet, for the ledger."""
        milli = sum(piece.request_milli for piece in self.slices)
        shared = self.slices[-1].memory_mib if milli % MILLI or len(self.slices) == 1 else 0
        memory = Memory(mib=shared) if shared else None
        limit_milli = sum(piece.limit_milli for piece in self.slices)
        return Ask(GpuRequest(milli, limit_milli, memory, gpu_id=self.gpu_id, labels=self.labels, wake_us=self.wake_us))


def phases(parts: Sequence[AllocationPart], init: int | None = None) -> list[list[AllocationPart]]:
    """Which of the parts run at the same time: the last phase first, then those of the init containers in order.

    With `init` only the phases in which a container of that place runs.
    """
    numbers = sorted(
        {part.init for part in parts if part.init > 0} | ({init} if init is not None and init > 0 else set())
    )
    found = [] if init is not None and init > 0 else [[part for part in parts if part.init <= 0]]
    for number in numbers:
        if init is None or init == number or -number < init < 0:
            beside = [part for part in parts if -number < part.init < 0]
            found.append([*beside, *(part for part in parts if part.init == number)])
    return found


def bookings(phases_: Iterable[Sequence[AllocationPart]]) -> list[AllocationPart]:
    """What to book so that of each GPU the largest of the phases is held: parts cut to what they add to it."""
    peak: dict[str, tuple[int, int]] = {}
    added: dict[str, tuple[AllocationPart, list[Slice]]] = {}
    for phase in phases_:
        level: dict[str, tuple[int, int]] = {}
        for part in phase:
            for piece in part.slices:
                milli, mib = level.get(piece.gpu, (0, 0))
                milli, mib = level[piece.gpu] = (milli + piece.request_milli, mib + piece.memory_mib)
                max_milli, max_mib = peak.get(piece.gpu, (0, 0))
                more_milli, more_mib = max(0, milli - max_milli), max(0, mib - max_mib)
                if more_milli or more_mib:
                    peak[piece.gpu] = (max_milli + more_milli, max_mib + more_mib)
                    cut = Slice(piece.gpu, more_milli, piece.limit_milli, more_mib)
                    added.setdefault(part.name, (part, []))[1].append(cut)
    return [_cut(part, tuple(slices)) for part, slices in added.values()]


def _cut(part: AllocationPart, slices: tuple[Slice, ...]) -> AllocationPart:
    """A part with only some of what it has: its pod's other containers answer for its labels there."""
    if slices == part.slices:
        return part
    return replace(part, slices=slices, labels=Labels(exclusion=part.labels.exclusion))


def parts_of(key: str, plan: PodPlan) -> list[AllocationPart]:
    """What the containers of a pod have, one by one; those that use another's are left out."""
    found = []
    for container, given in plan.containers.items():
        if given.uses or not given.slices:
            continue
        groups = [given.slices] if given.parts == 1 else [(piece,) for piece in given.slices]
        for number, slices in enumerate(groups):
            suffix = f"#{number + 1}" if number else ""
            name = f"{key}/{container}{suffix}"
            found.append(AllocationPart(name, given.init, slices, given.labels, given.gpu_id, given.wake_us))
    return found


def reservations(allocation: Allocation) -> list[tuple[str, Placement, Ask]]:
    """The bookings that a plan stands for, as they were when it was made."""
    parts = parts_of(allocation.key, allocation.plan)
    booked = bookings(phases(parts, 0 if allocation.initialized else None))
    return [(part.name, Placement(allocation.node, part.slices), part.ask) for part in booked]
