"""A trainer and an inference engine take turns in one GPU's memory, each with nearly all of it.

Both are loops that need the GPU for two fifths of the time, and say so by `aliquot.acquire_gpu` and `yield_gpu`. First
one runs alone, then both; a cycle of the two beside each other is held against the same two cycles one after the other.
What is measured is the time of phases, with what the link takes to move the memory and what the engine takes to decide.
On an emulated GPU nothing is copied: the time that the profile's link takes is spent.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from aliquot.model.ids import TenantName
from aliquot.placement.machine import NoRoom
from aliquot_lab.bench.chart import bar
from aliquot_lab.bench.fig6 import RequestedShare, Tenant
from aliquot_lab.bench.progress import Interval
from aliquot_lab.bench.scene import ClientFailed, Scene, scene

GIB: Final = 60
ASK: Final = RequestedShare(400, 1000, GIB * 1024)
KERNEL_MS: Final = 20
BUSY_S: Final = 4.0
REST_S: Final = 6.0
CYCLES: Final = 3
LEAST_GAIN: Final = 1.4
PATIENCE_S: Final = 45.0
TRAINER, ENGINE = LOOPS = (Tenant("trainer"), Tenant("engine"))

Watch = Callable[["PhaseReport"], None]


@dataclass
class PhaseReport:
    """Measurements: the phases of each loop, the trainer's first two alone, and whose memory is on the GPU."""

    gpu: str
    emulated: bool
    gpu_gib: float
    phases: dict[Tenant, list[Interval]] = field(default_factory=lambda: {loop: [] for loop in LOOPS})
    awake: set[Tenant] = field(default_factory=set)

    @property
    def together(self) -> dict[Tenant, list[Interval]]:
        """The phases of both beside each other."""
        return {TRAINER: self.phases[TRAINER][2:], ENGINE: self.phases[ENGINE]}

    def as_json(self) -> dict[str, Any]:
        """The facts for programs; the gain is the work of both for that of one after the other in the same time."""
        alone, moved = self.phases[TRAINER][:2], [phase for own in self.together.values() for phase in own[1:]]
        alone_s, cycles_s = _cycle_s(alone), {loop: _cycle_s(own) for loop, own in self.together.items()}
        gain = sum(alone_s / own_s for own_s in cycles_s.values()) if all(cycles_s.values()) else 0.0
        return {
            "each_gib": GIB, "gpu_gib": self.gpu_gib, "busy_s": BUSY_S, "rest_s": REST_S,
            "cycle_alone_s": round(alone_s, 2), "cycles_s": {loop: round(own_s, 2) for loop, own_s in cycles_s.items()},
            "acquire_here_ms": round(sum(_acquired_s(phase) for phase in alone[1:]) * 1e3, 2),
            "acquire_moved_s": round(median(map(_acquired_s, moved)), 2) if moved else None,
            "gain": round(gain, 2), "kept": gain >= LEAST_GAIN, "gpu": self.gpu, "emulated": self.emulated,
        }  # fmt: skip


def _acquired_s(phase: Interval) -> float:
    return (phase.launched_ns - phase.asked_ns) / 1e9


def _cycle_s(phases: list[Interval]) -> float:
    """The mean time from the beginning of one phase to that of the next; 0 for fewer than two."""
    return (phases[-1].launched_ns - phases[0].launched_ns) / 1e9 / (len(phases) - 1) if len(phases) > 1 else 0.0


def live(report: PhaseReport) -> str:
    """The present picture as lines of fixed width."""
    busy = f"each busy {BUSY_S:.0f} of {BUSY_S + REST_S:.0f} s"
    head = f"{report.gpu}   two loops of {GIB} GiB on {report.gpu_gib:.0f}, {busy}"
    lines = [head, f"  {'LOOP':9}{'MEMORY IS':12}{'PHASES':>6}  {'CYCLE (│: one after the other)':40}"]
    for loop, own in report.together.items():
        where = "the GPU's" if loop in report.awake else "the host's"
        cycle_s, max_s = _cycle_s(own), 2.5 * (BUSY_S + REST_S)
        lines.append(f"  {loop:9}{where:12}{len(report.phases[loop]):6}  {bar(cycle_s / max_s, 0.8)} {cycle_s:5.1f} s")
    return "\n".join(lines)


def plain(report: PhaseReport) -> str:
    """The present picture as one line, for a log."""
    done = "  ".join(f"{loop} {len(own)}" for loop, own in report.phases.items())
    return f"phases: {done}   on the GPU: {' '.join(sorted(report.awake))}"


def verdict(report: PhaseReport) -> str:
    """What was seen in a sentence."""
    facts = report.as_json()
    return (
        f"Two loops of {GIB} GiB on {report.gpu_gib:.0f} GiB did {facts['gain']} times the work of one after the other "
        f"({LEAST_GAIN} promised); its memory came back in {facts['acquire_moved_s']} s, and acquiring took "
        f"{facts['acquire_here_ms']} ms where it was there: the promise is {'kept' if facts['kept'] else 'NOT kept'}."
    )


def play(emulate: str | None, watch: Watch) -> PhaseReport:
    """Run the trainer alone for two phases, then both for some cycles.

    Raises:
        ClientFailed: one did not start, ended, or has waited for too long.
    """
    from aliquot.standalone.pods import Pods
    from aliquot.standalone.server import EngineServer

    with scene(emulate or "h100") as stage:
        server = EngineServer(stage.engine, Pods(stage.engine))
        try:
            report = PhaseReport(stage.gpu, stage.emulated, stage.engine.gpus[0].memory_mib / 1024)
            _start(stage, TRAINER, report, watch)
            _until(stage, report, watch, lambda: len(report.phases[TRAINER]) > 1)
            _start(stage, ENGINE, report, watch)
            _until(stage, report, watch, lambda: all(len(own) >= CYCLES for own in report.together.values()))
            return report
        finally:
            for client in stage.clients.values():
                os.kill(client.pid, signal.SIGKILL)  # the one that waits for its memory would not end at once
            server.close()


def _start(stage: Scene, loop: Tenant, report: PhaseReport, watch: Watch) -> None:
    """Start a loop as soon as the other has yielded."""
    options = [
        "--engine", str(stage.engine.runtime.root), "--kernel-ms", str(KERNEL_MS),
        "--batch", str(round(BUSY_S * 1e3 / KERNEL_MS)), "--idle-ms", str(REST_S * 1e3),
        "--memory-mib", str(ASK.memory_mib - 1024),
    ]  # fmt: skip

    def started() -> bool:
        try:
            stage.start(loop, ASK, "phases", *options)
        except NoRoom:
            return False
        return True

    _until(stage, report, watch, started)
    stage.clients[loop].wait_ready()


def _until(stage: Scene, report: PhaseReport, watch: Watch, done: Callable[[], bool]) -> None:
    """Show what happens until something is so."""
    until_s, shown = time.monotonic() + PATIENCE_S, ""
    while not done():
        if time.monotonic() > until_s:
            raise ClientFailed(f"the loops have not come further in {PATIENCE_S:.0f} s")
        parked = stage.engine.parked
        report.awake = {loop for loop in stage.clients if TenantName(loop) not in parked}
        report.phases |= {loop: client.intervals[1:] for loop, client in stage.clients.items() if client.totals}
        if shown != (shown := plain(report)):
            watch(report)
        time.sleep(0.1)
