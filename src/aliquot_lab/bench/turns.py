"""`aliquot bench turns`: what programs that work, rest, wake and misbehave get, against the fluid.

Method: the mixes of `aliquot sim turns` are played by real CUDA programs (`turns_client.py`), which all begin at one
moment and note their busy phases by their own clock. Every 50 ms their completed kernels are read. Windows of 10 s, one
each 50 ms after 5 s, are held against a fluid for exactly those phases. Where kernels are longer than 100 ms the
arbiter's charged time is read instead, for a kernel counts as completed only at its end. `wake` is from the end of a
rest to the return of the first launch. In mixes with a misbehaving tenant, `gain_points` is what it got beyond the
fluid, and the errors and promises are those of its neighbours. `arbiter` is from the arbiter's own records.

Misbehaviours that take a changed hook or the removal of a tenant are left to the simulator.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from aliquot.lib.files import write_whole
from aliquot.tokens import Share
from aliquot_lab.bench.fig6 import RequestedShare, Tenant
from aliquot_lab.bench.figures import percentile
from aliquot_lab.bench.progress import read_totals
from aliquot_lab.bench.scene import ClientFailed, Program, Scene, scene
from aliquot_lab.sim.turns.mixes import BY_NAME, Mix
from aliquot_lab.sim.turns.study import TenantRun, judge_mix, worst_of

STEP_S: Final = 0.05
WINDOW_S: Final = 10.0
WARM_S: Final = 5.0
DEFAULT: Final = ("irregular", "eight", "waking", "pauses", "long")
MISBEHAVIOURS: Final = ("sleeps", "sips", "lingers", "hogs", "jolts", "forks")
MIXES: Final = (*DEFAULT, "alone", "many", "steady", "huge", *MISBEHAVIOURS)
CHARGED: Final = ("long", "huge", "hogs", "jolts")
"""Mixes with kernels that are longer than 100 ms."""


def _program(mix: str, member: str, seed: int, go: Path, seconds: float) -> Program:
    head = [sys.executable, "-m", "aliquot_lab.bench.turns_client", mix, member, str(seed)]
    return lambda progress: [*head, str(progress), str(go), str(seconds)]


def _start(stage: Scene, mix: Mix, seed: int, seconds: float) -> Path:
    """Start all programs; the file that lets them begin, once it is there."""
    go = stage.directory / "go"
    for member in mix.members:
        memory_mib = (384 if len(mix.members) > 8 else 1024) * min(4, member.processes)
        ask = RequestedShare(member.request_milli, member.limit_milli, memory_mib)
        stage.start_program(Tenant(member.name), ask, _program(mix.name, member.name, seed, go, seconds))
    for client in stage.clients.values():
        client.wait_ready(120)
    return go


def _sample(stage: Scene, mix: Mix, paths: dict[str, list[Path]]) -> tuple[float, dict[str, float]]:
    """The time, and for how long each one's kernels have run, in seconds."""
    if mix.name in CHARGED:
        sample = stage.sample()
        return sample.at_ns / 1e9, {str(tenant): ns / 1e9 for tenant, ns in sample.charged_ns.items()}
    totals = {name: [read_totals(path) for path in mine] for name, mine in paths.items()}
    return time.monotonic_ns() / 1e9, {name: sum(t.kernel_ns for t in mine if t) / 1e9 for name, mine in totals.items()}


def _told(stage: Scene, paths: dict[str, list[Path]]) -> dict[str, dict[str, Any]]:
    """What the programs have noted.

    Raises:
        ClientFailed: one did not end in order.
    """
    found = {}
    for name, mine in paths.items():
        status = stage.clients[Tenant(name)].wait(60)
        notes = Path(f"{mine[0]}.json")
        if status or not notes.exists():
            raise ClientFailed(f"client {name} ended with status {status} and left no notes")
        found[name] = json.loads(notes.read_text())
    return found


def run_mix(
    emulate: str | None, mix: Mix, seed: int, seconds: float, turns: str, *, native: bool = True
) -> tuple[dict[str, Any], list[float], dict[str, Any]]:
    """One mix: its figures, the waits after rests in milliseconds, and the GPU."""
    with scene(emulate, window_ms=int(WINDOW_S * 1000), turns=turns, native_handover=native) as stage:
        go, paths = _start(stage, mix, seed, seconds), dict[str, list[Path]]()
        for member in mix.members:
            name = stage.directory / f"{member.name}.progress"
            paths[member.name] = [name, *(Path(f"{name}.{n}") for n in range(1, member.processes))]
        start_s = time.monotonic() + 0.2
        write_whole(go, str(int(start_s * 1e9)).encode(), synced=False)
        samples = []
        for step in range(int(seconds / STEP_S)):
            time.sleep(max(0.0, start_s + step * STEP_S - time.monotonic()))
            samples.append(_sample(stage, mix, paths))
        gpu = stage.engine.arbiter.status().gpus[0]
        promises = {t.name: t.promise for t in gpu.tenants}
        told = _told(stage, paths)
        case = _case(mix, samples, start_s, told)
        case["arbiter"] = {
            "promise_a": _part(promises.values(), "kept", "windows"),
            "promise_c": _part(promises.values(), "busy_kept", "busy_windows"),
            "error_p95": max((p.fluid_error_p95 for p in promises.values()), default=None),
            "error_worst": max((p.fluid_error_worst for p in promises.values()), default=None),
        }
        waits_ms = told[mix.wakes]["waits_ms"] if mix.wakes else []
        return case, waits_ms, stage.about


def _part(promises: Any, kept: str, counted: str) -> float | None:
    whole = sum(getattr(promise, counted) for promise in promises)
    return round(sum(getattr(promise, kept) for promise in promises) / whole, 4) if whole else None


def _case(
    mix: Mix, samples: Sequence[tuple[float, dict[str, float]]], start_s: float, told: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    at_s = [at - start_s for at, _ in samples]
    grid = np.arange(len(samples)) * STEP_S
    seen = {}
    for member in mix.members:
        ran = np.array([sample.get(member.name, 0.0) for _, sample in samples])
        phases = [(begin / 1e9, end / 1e9) for begin, end in told[member.name]["phases"]]
        share = Share(member.request_milli, member.limit_milli)
        seen[member.name] = TenantRun(share, member.gpus, phases, list(np.interp(grid, at_s, ran - ran[0])))
    return judge_mix(mix, seen, STEP_S, window_s=WINDOW_S, warm_s=WARM_S)


def turns(
    emulate: str | None, names: Sequence[str], *, seed: int, seconds: float, way: str, native: bool
) -> dict[str, Any]:
    """All mixes and the waits after rests."""
    seen = [run_mix(emulate, BY_NAME[name], seed, seconds, way, native=native) for name in names]
    waits_ms = [wait for _, waits, _ in seen for wait in waits]
    wake = {f"p{part}_ms": round(percentile(waits_ms, part), 2) for part in (50, 99)} if waits_ms else None
    return {
        "cases": [case for case, _, _ in seen],
        "wake": wake,
        "turns": way,
        "native_handover": native,
        "seed": seed,
        **seen[0][2],
    }


def table(figures: dict[str, Any]) -> str:
    """A row for each mix, and one for each of its tenants where there are few."""
    rows = [f"{'MIX':<12} {'P95':>6} {'WORST':>6} {'A %':>6} {'C %':>6} {'USED':>6} {'GAIN':>6}  GOT OF FLUID"]
    for case in figures["cases"]:
        got = "  ".join(f"{t['got']:.3f}/{t['fluid']:.3f}" for t in case["tenants"][:3])
        rows.append(f"{case['mix']:<12} {' '.join(f'{cell:>6}' for cell in worst_of([case]))}  {got}")
    if figures["wake"]:
        rows.append(f"wake: median {figures['wake']['p50_ms']} ms, 99 of 100 {figures['wake']['p99_ms']} ms")
    return "\n".join(rows)
