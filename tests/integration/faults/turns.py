"""Whose turn it was on a GPU, and which gaps between a program's steps the turns of others do not explain.

The turns are read from the grant pages, which a process that only looks may map: the arbiter writes the time of each
grant there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from kit.arbiter import FakeProcess
from stage import Stage

from aliquot.arbiter.abi import AttachFlag
from aliquot_lab.bench.priority import go_before_other_programs


@contextmanager
def going_before_other_programs() -> Iterator[None]:
    """A thread that looks every millisecond is not kept from it by a machine's other work."""
    go_before_other_programs()
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Span(NamedTuple):
    """From when until when, in seconds of the monotonic clock."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def shared_s(self, other: Span) -> float:
        """For how long both last."""
        return max(0.0, min(self.end_s, other.end_s) - max(self.start_s, other.start_s))


@dataclass
class Grants:
    """The grants of one tenant on the first GPU that `look` has seen, each by its time."""

    process: FakeProcess
    slot: int
    seen_s: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, scene: Stage, tenant: str) -> Grants:
        """Attaches to the tenant's page without taking part in turns."""
        process = FakeProcess(str(scene.directory / f"{tenant}.sock"))
        return cls(process, process.attach(scene.machine.uuids[0], flags=AttachFlag.VIEW))

    def look(self) -> None:
        """Note the present grant."""
        at_s = self.process.pages[self.slot].u64("granted_at_ns") / 1e9
        if not self.seen_s or at_s > self.seen_s[-1]:
            self.seen_s.append(at_s)


def turns(neighbour: Grants, tenant: Grants, now_s: float) -> list[Span]:
    """The neighbour's turns: from a grant of it until the tenant's next one, or until now; its drain included.

    A grant that follows another one of the neighbour continues its turn.
    """
    grants = sorted([(at_s, True) for at_s in neighbour.seen_s] + [(at_s, False) for at_s in tenant.seen_s])
    changes = [
        (at_s, its) for (at_s, its), (_, before) in zip(grants, [(0.0, False), *grants], strict=False) if its != before
    ]
    ends = [*changes[1:], (now_s, False)]
    return [Span(at_s, end_s) for (at_s, its), (end_s, _) in zip(changes, ends, strict=True) if its]


@dataclass(frozen=True)
class Steps:
    """What was seen of a program's steps for a while: how many a second, and the gaps between them."""

    rate: float
    gaps: Sequence[Span]

    @property
    def longest_s(self) -> float:
        return max(gap.length_s for gap in self.gaps)

    def beyond_s(self, turns: Sequence[Span]) -> float:
        """The most that a gap is longer than the one turn of a neighbour that takes up most of it."""
        return max(gap.length_s - max((gap.shared_s(turn) for turn in turns), default=0.0) for gap in self.gaps)
