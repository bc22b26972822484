"""vGPUs that have to be got from the cluster before they can be shared, and are given back by a policy of their own.

Sharing a GPU begins with owning it: a pod that holds it is made first, which takes time, and as long as it is held
nobody outside can use it. `on-demand` gives a vGPU back as soon as it is idle, `reservation` never does, `hybrid` keeps
some idle ones, the longest idle goes first.

Source: KubeShare (HPDC'20) 4.4, the life of a vGPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aliquot.sim.kernel import s

Cell = tuple[int, int]
"""A device: index of its node, index in the node."""


class PoolPolicy(StrEnum):
    """When an idle vGPU is given back."""

    ON_DEMAND = "on-demand"
    RESERVATION = "reservation"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class PoolSettings:
    """The policy, how long making a vGPU and starting a pod take, and how many idle ones `hybrid` keeps."""

    policy: PoolPolicy = PoolPolicy.ON_DEMAND
    create_us: int = 0
    start_us: int = 0
    keep: int = 0


class Pool:
    """Which devices are held, since when they are idle, and what holding them has cost."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.created = 0
        self._users: dict[Cell, int] = {}
        self._held_since_us: dict[Cell, int] = {}
        self._idle: dict[Cell, int] = {}
        self._held_us = 0
        self._idle_us = 0

    def take(self, cells: tuple[Cell, ...], now_us: int) -> int:
        """A pod starts on these devices; microseconds until it runs."""
        made = False
        for cell in cells:
            if cell not in self._held_since_us:
                self._held_since_us[cell] = now_us
                self.created += 1
                made = True
            elif cell in self._idle:
                self._idle_us += now_us - self._idle.pop(cell)
            self._users[cell] = self._users.get(cell, 0) + 1
        return self.settings.start_us + (self.settings.create_us if made else 0)

    def give(self, cells: tuple[Cell, ...], now_us: int) -> None:
        """A pod has left these devices."""
        for cell in cells:
            self._users[cell] -= 1
            if self._users[cell] == 0:
                del self._users[cell]
                self._idle[cell] = now_us
        policy = self.settings.policy
        if policy is PoolPolicy.RESERVATION:
            return
        keep = self.settings.keep if policy is PoolPolicy.HYBRID else 0
        while len(self._idle) > keep:
            self._release(next(iter(self._idle)), now_us)

    def totals(self, now_us: int) -> dict[str, float]:
        """vGPUs made, GPU-seconds held, and GPU-seconds of these in which nobody used them."""
        held = self._held_us + sum(now_us - since for since in self._held_since_us.values())
        idle = self._idle_us + sum(now_us - since for since in self._idle.values())
        return {"vgpus_created": self.created, "vgpu_held_s": s(held), "vgpu_idle_s": s(idle)}

    def _release(self, cell: Cell, now_us: int) -> None:
        self._idle_us += now_us - self._idle.pop(cell)
        self._held_us += now_us - self._held_since_us.pop(cell)
