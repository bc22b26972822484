"""Why a workload waits, in one line: what it needs and how much of that is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aliquot.model.quantities import MILLI, format_mib, format_milli
from aliquot.web.api import Gpu, Node, Workload


@dataclass
class Room:
    """What is free on GPUs that take work, of one model or of all."""

    whole: int = 0
    whole_by_node: dict[str, int] = field(default_factory=dict)
    parts: list[tuple[int, int]] = field(default_factory=list)
    """Free compute and memory of each GPU that has any."""

    def add(self, gpu: Gpu) -> None:
        """Count one GPU."""
        if gpu.free_milli > 0:
            self.parts.append((gpu.free_milli, gpu.free_mib))
        if gpu.state == "idle":
            self.whole += 1
            self.whole_by_node[gpu.node] = self.whole_by_node.get(gpu.node, 0) + 1


def rooms(gpus: Sequence[Gpu], nodes: Sequence[Node]) -> dict[str, Room]:
    """What is free by model, and under the empty name of all; GPUs that take no work do not count."""
    closed = {node.name for node in nodes if node.cordoned or not node.ready}
    found = {"": Room()}
    for gpu in gpus:
        if gpu.healthy and gpu.node not in closed:
            found[""].add(gpu)
            found.setdefault(gpu.model, Room()).add(gpu)
    return found


def headline(workload: Workload, by_model: dict[str, Room]) -> str:
    """The shortage as a sentence without a subject; where nothing is short, what the scheduler said."""
    room = by_model.get(workload.model, by_model[""])
    whole, rest = divmod(workload.request_milli, MILLI)
    short = _short_of_whole(whole, rest, room) if whole else _short_of_part(rest, workload.memory_mib, room)
    if short:
        return short
    return workload.message or "needs what no free GPU offers: a label, a model, a quota"


def _short_of_whole(whole: int, rest: int, room: Room) -> str:
    if whole == 1 and not rest:
        return "" if room.whole else "needs a whole GPU, none is free"
    wanted = f"{whole} whole GPU{'s' * (whole != 1)}" + (f" and {format_milli(rest)} of one" if rest else "")
    near = max(room.whole_by_node.values(), default=0)
    if near >= whole + bool(rest):
        return ""
    have = f"{near or 'none'} {'are' if near > 1 else 'is'} free"
    if room.whole > near:
        have = f"{room.whole} are free, {near} at most on one node"
    return f"needs {wanted} near each other, {have}"


def _short_of_part(milli: int, mib: int, room: Room) -> str:
    most = max((free for free, _ in room.parts), default=0)
    if most < milli:
        return f"needs {format_milli(milli)} of a GPU, " + (
            f"{format_milli(most)} at most is free" if most else "none is free"
        )
    largest = max(free_mib for free, free_mib in room.parts if free >= milli)
    if largest < mib:
        return f"needs {format_mib(mib)} of a GPU's memory, {format_mib(largest)} at most is free"
    return ""
