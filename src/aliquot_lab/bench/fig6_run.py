"""Fig. 6 played with real CUDA clients.

Phases begin by the clock of the timeline; a newcomer that starts slowly (a driver, a Python) shortens only the part of
its phase that is measured. Samples for the live chart are taken twice a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from aliquot_lab.bench.fig6 import (
    Fig6Timeline,
    Measured,
    Phase,
    Report,
    RequestedShare,
    Sample,
    Tenant,
    UsagePoint,
    measure,
)
from aliquot_lab.bench.priority import hindrance
from aliquot_lab.bench.scene import Scene, scene

TICK_S: Final = 0.5
KERNEL_MS: Final = "2"

Watch = Callable[[Report, Phase, float], None]


class _Play:
    """One run of a timeline on a stage."""

    def __init__(self, timeline: Fig6Timeline, stage: Scene, watch: Watch) -> None:
        self._timeline = timeline
        self._stage = stage
        self._watch = watch
        self.report = Report(stage.gpu, stage.emulated)
        self._began_s = time.monotonic()
        self._asks: Mapping[Tenant, RequestedShare] = {}

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _until(self, at_s: float, phase: Phase) -> None:
        """Let time pass, watching."""
        while (left_s := at_s - self._now_s()) > 0:
            time.sleep(min(TICK_S, left_s))
            point = UsagePoint(self._now_s(), self._stage.usage())
            self.report.usage.append(point)
            self._watch(self.report, phase, self._timeline.end_s)

    def _change_cast(self, phase: Phase) -> None:
        """Make the running tenants those of the phase with its shares, and wait until the newcomers have launched."""
        for tenant in set(self._stage.clients) - set(phase.expected):
            self._stage.end(tenant)
        newcomers = [tenant for tenant in phase.expected if tenant not in self._stage.clients]
        for tenant in phase.expected:
            if self._asks.get(tenant, phase.asks[tenant]) != phase.asks[tenant]:
                self._stage.resize(tenant, phase.asks[tenant])
        self._asks = phase.asks
        for tenant in newcomers:
            ask = phase.asks[tenant]
            memory = ("--memory-mib", str(ask.memory_mib // 2))  # half of what it may
            self._stage.start(tenant, ask, "steady", "--kernel-ms", KERNEL_MS, *memory)
        for tenant in newcomers:
            self._stage.clients[tenant].wait_ready()

    def phase(self, phase: Phase) -> Measured:
        """Play one phase and measure its settled part."""
        self._change_cast(phase)
        settled_s = min(self._now_s() + self._timeline.window_s * 1.25, phase.end_s - self._timeline.window_s)
        self._until(settled_s, phase)
        settled: Sample = self._stage.sample()
        self._until(phase.end_s, phase)
        return measure(phase, settled, self._stage.sample())

    def run(self) -> Report:
        """All phases in order."""
        self._began_s = time.monotonic()
        for phase in self._timeline.phases:
            self.report.phases.append(self.phase(phase))
        return self.report


def play(timeline: Fig6Timeline, *, emulate: str | None, watch: Watch) -> Report:
    """Play a timeline on an engine of its own; `watch` is called at every tick with what is known so far.

    Raises:
        ClientFailed: a client did not run.
    """
    with scene(emulate, window_ms=int(timeline.window_s * 1000)) as stage:
        return play_on(stage, timeline, watch)


def play_on(stage: Scene, timeline: Fig6Timeline, watch: Watch) -> Report:
    """Play a timeline on an empty scene, whose arbiter has the timeline's window.

    Anything that starts, resizes, ends and samples tenants of one GPU as a scene does will do, such as a cluster.

    Raises:
        ClientFailed: a client did not run.
    """
    if stage.emulated and (why := hindrance()):
        sys.stderr.write(f"{why}\n")
    return _Play(timeline, stage, watch).run()
