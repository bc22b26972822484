"""vGPUs that have to be got from the cluster before they can be shared, and are given back by the pool's policy.

Sharing a GPU begins with owning it: a pod that holds it is made first, which takes time, and as long as it is held
nothing outside the pool can use it. The policy is the one of a cluster's operator, in virtual time.

Source: KubeShare (HPDC'20) 4.4, the life of a vGPU.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from aliquot.placement.pool_policy import PoolPolicy
from aliquot_lab.sim.kernel import s, us

Cell = tuple[int, int]
"""A device: index of its node, index in the node."""


@dataclass(frozen=True)
class PoolSettings:
    """The policy, and how long making a vGPU and starting a pod take."""

    policy: PoolPolicy = field(default_factory=PoolPolicy)
    create_us: int = 0
    start_us: int = 0


class SimulatedPool:
    """Which devices are held, since when they are idle, and what holding them has cost.

    A vGPU that the policy wants ready is made on the first device that is not held.
    """

    def __init__(self, settings: PoolSettings, cells: Iterable[Cell]) -> None:
        """A pool over these devices, at time 0."""
        self.settings = settings
        self.created = 0
        self._unheld = sorted(cells) if settings.policy.ready else []
        self._users: dict[Cell, int] = {}
        self._held_since_us: dict[Cell, int] = {}
        self._ready_at_us: dict[Cell, int] = {}
        self._idle_since_us: dict[Cell, int] = {}
        self._now_us = 0
        self._held_us = 0
        self._idle_us = 0
        self._make_missing()

    def take(self, cells: tuple[Cell, ...], now_us: int) -> int:
        """A pod starts on these devices; microseconds until it runs."""
        self._advance(now_us)
        for cell in cells:
            if cell not in self._held_since_us:
                self._create(cell)
            elif cell in self._idle_since_us:
                self._idle_us += now_us - self._idle_since_us.pop(cell)
            self._users[cell] = self._users.get(cell, 0) + 1
        self._make_missing()
        creating_us = max((self._ready_at_us[cell] - now_us for cell in cells), default=0)
        return self.settings.start_us + max(0, creating_us)

    def give(self, cells: tuple[Cell, ...], now_us: int) -> None:
        """A pod has left these devices."""
        self._advance(now_us)
        for cell in cells:
            self._users[cell] -= 1
            if self._users[cell] == 0:
                del self._users[cell]
                self._idle_since_us[cell] = now_us
        self._release_surplus()

    def totals(self, now_us: int) -> dict[str, float]:
        """vGPUs made, GPU-seconds held, and GPU-seconds of these in which no pod used them."""
        self._advance(now_us)
        held = self._held_us + sum(now_us - since for since in self._held_since_us.values())
        idle = self._idle_us + sum(now_us - since for since in self._idle_since_us.values())
        return {"vgpus_created": self.created, "vgpu_held_s": s(held), "vgpu_idle_s": s(idle)}

    def _advance(self, now_us: int) -> None:
        """Give back, each at its time, what the policy gives back until now."""
        while (wait_s := self.settings.policy.next_s(self._idle_s())) is not None:
            due_us = self._now_us + max(1, math.ceil(us(1) * wait_s))
            if due_us > now_us:
                break
            self._now_us = due_us
            self._release_surplus()
        self._now_us = now_us

    def _idle_s(self) -> dict[Cell, float]:
        return {cell: s(self._now_us - since) for cell, since in self._idle_since_us.items()}

    def _release_surplus(self) -> None:
        for cell in self.settings.policy.surplus(self._idle_s()):
            self._idle_us += self._now_us - self._idle_since_us.pop(cell)
            self._held_us += self._now_us - self._held_since_us.pop(cell)
            del self._ready_at_us[cell]
            if self.settings.policy.ready:
                heapq.heappush(self._unheld, cell)

    def _make_missing(self) -> None:
        for _ in range(self.settings.policy.missing(len(self._idle_since_us), 0)):
            while self._unheld and self._unheld[0] in self._held_since_us:
                heapq.heappop(self._unheld)
            if not self._unheld:
                return
            cell = heapq.heappop(self._unheld)
            self._create(cell)
            self._idle_since_us[cell] = self._now_us

    def _create(self, cell: Cell) -> None:
        self._held_since_us[cell] = self._now_us
        self._ready_at_us[cell] = self._now_us + self.settings.create_us
        self.created += 1
