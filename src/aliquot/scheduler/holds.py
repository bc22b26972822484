"""What one pod holds on one node, by its plan."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.kube.plan import PodPlan
from aliquot.model.quantities import MILLI
from aliquot.placement.asks import Ask
from aliquot.placement.books import Placement


@dataclass(eq=False)
class Hold:
    """What one pod holds on one node. `settled` once the API server shows the pod bound there by this plan."""

    uid: str
    key: str
    node: str
    plan: PodPlan
    tenants: tuple[str, ...]
    since_s: float
    settled: bool = False
    doubtful: bool = False
    """A bind was sent and its fate is not known."""
    assumed: bool = False
    """No bind was asked for yet: kube-scheduler places the pod's group (`groups`)."""


def tenancies(hold: Hold) -> list[tuple[str, Placement, Ask]]:
    """The bookings that a plan stands for, as they were when it was made."""
    found = []
    for container, given in hold.plan.containers.items():
        if given.uses or not given.slices:
            continue
        groups = [given.slices] if given.parts == 1 else [(piece,) for piece in given.slices]
        for number, slices in enumerate(groups):
            whole = sum(piece.request_milli == MILLI for piece in slices)
            rest = sum(piece.request_milli for piece in slices) - whole * MILLI
            shared = slices[-1].memory_mib if rest or len(slices) == 1 else 0
            ask = Ask(
                whole=whole,
                rest_milli=rest,
                limit_milli=sum(piece.limit_milli for piece in slices),
                gpu_mib=shared,
                labels=given.labels,
                gpu_id=given.gpu_id,
            )
            suffix = f"#{number + 1}" if number else ""
            found.append((f"{hold.key}/{container}{suffix}", Placement(hold.node, slices), ask))
    return found
