"""Eight notebooks of 12 GiB used in turn on one GPU of 40 GiB: each has its memory back whenever it is used.

A notebook does nothing until it is used, computes for a tenth of a second, and compares its memory with what it wrote
there. All may be parked, so the one that has been idle longest makes room. Used too soon after each other, notebooks
wait: none is parked before it has been idle for a second.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aliquot.model.ids import TenantName
from aliquot_lab.bench.chart import bar
from aliquot_lab.bench.fig6 import RequestedShare, Tenant
from aliquot_lab.bench.scene import Client, ClientFailed, Scene, scene

COUNT: Final = 8
ROUNDS: Final = 2
GIB: Final = 12
ASK: Final = RequestedShare(100, 1000, GIB * 1024, park_after_s=3600.0)
EVERY_S: Final = 1.2
PATIENCE_S: Final = 30.0
NOTEBOOKS: Final = tuple(Tenant(f"n{number}") for number in range(1, COUNT + 1))

Watch = Callable[["NotebookReport"], None]


@dataclass
class NotebookReport:
    """Measurements: seconds from the use of each notebook to its result, and the notebooks that are not parked now."""

    gpu: str
    emulated: bool
    gpu_gib: float
    results_s: dict[Tenant, list[float]] = field(default_factory=lambda: {tenant: [] for tenant in NOTEBOOKS})
    awake: set[Tenant] = field(default_factory=set)
    max_awake: int = 0

    def as_json(self) -> dict[str, Any]:
        """The facts for programs.

        The promise is kept if each has computed whenever it was used; a client whose memory had changed would have
        ended.
        """
        times = sorted(time_s for own in self.results_s.values() for time_s in own)
        return {
            "notebooks": COUNT, "each_gib": GIB, "gpu_gib": self.gpu_gib, "max_awake": self.max_awake,
            "results_s": {tenant: [round(s, 2) for s in own] for tenant, own in self.results_s.items()},
            "result_s_median": round(times[len(times) // 2], 2) if times else None,
            "result_s_worst": round(times[-1], 2) if times else None,
            "kept": all(len(own) == ROUNDS for own in self.results_s.values()),
            "gpu": self.gpu, "emulated": self.emulated,
        }  # fmt: skip


def live(report: NotebookReport) -> str:
    """The present picture as lines of fixed width."""
    head = f"{report.gpu}   {COUNT} notebooks of {GIB} GiB, {len(report.awake)} awake"
    lines = [head, f"  {'NOTEBOOK':10}{'MEMORY IS':12}{'USED':>5}  {'TIME TO THE RESULT':40}"]
    for tenant, times in report.results_s.items():
        last_s = times[-1] if times else 0.0
        where = "the GPU's" if tenant in report.awake else "the host's"
        lines.append(f"  {tenant:10}{where:12}{len(times):5}  {bar(last_s / 4, 1)} {last_s:5.2f} s")
    return "\n".join(lines)


def plain(report: NotebookReport) -> str:
    """The present picture as one line, for a log."""
    used = sum(map(len, report.results_s.values()))
    return f"{used:3} of {COUNT * ROUNDS} uses   awake: {' '.join(sorted(report.awake))}"


def verdict(report: NotebookReport) -> str:
    """What was seen in a sentence."""
    facts = report.as_json()
    outcome = "kept" if facts["kept"] else "NOT kept"
    return (
        f"{COUNT} notebooks of {GIB} GiB on {report.gpu_gib:.0f} GiB, {report.max_awake} awake at most: the result "
        f"came {facts['result_s_median']} s after the use, {facts['result_s_worst']} s at worst, and all memory was as "
        f"it was: the promise is {outcome}."
    )


def play(emulate: str | None, watch: Watch) -> NotebookReport:
    """Use each notebook in turn, twice.

    Raises:
        ClientFailed: one did not start, or ended.
    """
    with scene(emulate or "a100") as stage:
        gpu = stage.engine.gpus[0]
        report = NotebookReport(stage.gpu, stage.emulated, gpu.memory_mib / 1024)
        memory_mib = str(ASK.memory_mib - 1024)  # the rest is the context's
        for tenant in NOTEBOOKS:
            stage.start(tenant, ASK, "cells", "--batch", "50", "--memory-mib", memory_mib).wait_ready()
            _pause(stage, report, watch)
        for _ in range(ROUNDS):
            for tenant in NOTEBOOKS:
                report.results_s[tenant].append(_use(stage.clients[tenant]))
                _pause(stage, report, watch)
        return report


def _use(client: Client) -> float:
    """Have a notebook compute; seconds until it has."""
    before = client.totals
    began_s = time.monotonic()
    os.kill(client.pid, signal.SIGUSR1)
    while client.totals == before:
        if time.monotonic() > began_s + PATIENCE_S:
            raise ClientFailed(f"notebook {client.tenant} has computed nothing in {PATIENCE_S:.0f} s")
        time.sleep(0.01)
    return time.monotonic() - began_s


def _pause(stage: Scene, report: NotebookReport, watch: Watch) -> None:
    """Record which notebooks are not parked, then sleep, so that another is idle when the next is used."""
    parked = stage.engine.parked
    report.awake = {tenant for tenant in stage.clients if TenantName(tenant) not in parked}
    report.max_awake = max(report.max_awake, len(report.awake))
    watch(report)
    time.sleep(EVERY_S)
