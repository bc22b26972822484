"""A program of a mix, as a tenant: `python -m aliquot_lab.bench.turns_client MIX MEMBER SEED PROGRESS START SECONDS`.

It carries out the steps that the simulator carries out (`aliquot_lab.sim.turns.mixes`), with kernels of a known
length. When the first one has run it waits for the file START, which holds the time at which all begin. At its end it
writes its busy phases and how long it waited after each rest, in milliseconds, to PROGRESS with the ending `.json`.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from aliquot.lib.files import write_whole
from aliquot_lab.bench.cuda import CudaDevice
from aliquot_lab.bench.progress import ProgressWriter
from aliquot_lab.sim.turns.mixes import BY_NAME, MS, Burst, Pause, Rest, Step

DEPTH = 16
"""Kernels that a program launches ahead at most; the hook bounds them further."""
EVENT_EVERY_NS = MS


class Player:
    """One process on a GPU, until `end_ns` after its start."""

    def __init__(self, progress: Path, end_ns: int) -> None:
        self.gpu = CudaDevice()
        self.counts = ProgressWriter(progress)
        self.spare = [self.gpu.event() for _ in range(DEPTH)]
        self.start_ns, self.end_ns = 0, end_ns
        self.phases: list[list[int]] = []
        self.waits_ms: list[float] = []
        self.woke_ns: int | None = None

    def now(self) -> int:
        """Since the common start."""
        return time.monotonic_ns() - self.start_ns

    def step(self, step: Step) -> None:
        """Carry out one step.

        Raises:
            ValueError: it is one that only the simulator can take.
        """
        if isinstance(step, Burst):
            if not self.phases or self.phases[-1][1] >= 0:
                self.phases.append([self.now(), -1])
            self.burst(step)
        elif isinstance(step, Pause):
            if step.span_ns >= MS // 2:  # a shorter one passes on the way to the next launch
                time.sleep(step.span_ns / 1e9)
        elif isinstance(step, Rest):
            if self.phases:
                self.phases[-1][1] = self.now()
            time.sleep(min(step.span_ns, max(0, self.end_ns - self.now())) / 1e9)
            self.woke_ns = self.now()
        else:
            raise ValueError(f"a real program cannot take the step {step}")

    def burst(self, burst: Burst) -> None:
        """Launch ahead, an event each millisecond, and count what has completed."""
        stride = max(1, EVENT_EVERY_NS // burst.kernel_ns)
        left, flying = burst.kernels, deque[tuple[Any, int]]()
        while (left and self.now() < self.end_ns) or flying:
            if left and self.spare and self.now() < self.end_ns:
                kernels = min(stride, left)
                for _ in range(kernels):
                    self.gpu.spin(burst.kernel_ns)
                    if self.woke_ns is not None:
                        self.waits_ms.append((self.now() - self.woke_ns) / 1e6)
                        self.woke_ns = None
                event = self.spare.pop()
                self.gpu.record(event)
                flying.append((event, kernels))
                left -= kernels
                continue
            event, kernels = flying.popleft()
            self.gpu.wait(event)
            self.spare.append(event)
            self.counts.completed += kernels
            self.counts.kernel_ns += kernels * burst.kernel_ns
            self.counts.store()


def main(argv: list[str]) -> int:
    """Play one member of a mix to its end."""
    mix, name, seed, progress, start, seconds = argv
    number, member = next((n, m) for n, m in enumerate(BY_NAME[mix].members) if m.name == name)
    path = Path(progress)
    for extra in range(1, member.processes):
        if os.fork() == 0:
            path = Path(f"{progress}.{extra}")
            break
    player = Player(path, int(float(seconds) * 1e9))
    player.gpu.spin(MS)
    player.gpu.synchronize()
    player.counts.ready()
    while not Path(start).exists():
        time.sleep(0.005)
    player.start_ns = int(Path(start).read_text())
    time.sleep(max(0, -player.now()) / 1e9)
    for step in member.program(player.now, random.Random(f"{seed} {number}")):
        player.step(step)
        if player.now() >= player.end_ns:
            break
    if player.phases and player.phases[-1][1] < 0:
        player.phases[-1][1] = player.now()
    told = {"phases": player.phases, "waits_ms": player.waits_ms}
    write_whole(Path(f"{path}.json"), json.dumps(told).encode(), synced=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
