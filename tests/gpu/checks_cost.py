"""What sharing costs and how exact it is: charged time and completed steps, each against a lone run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from base import (
    EMULATE,
    check,
    end,
    engine,
    has,
    need,
    program,
    rates,
    spawn,
    wait_ready,
)

NOT_LEARNED = 3
"""Status of a training loop whose loss did not fall."""
EMULATED_SLOW = 50
"""How many times longer an emulated kernel takes; the emulated 10 us leave a training step waiting for Python."""
SUM_OF_LONE = 0.4 if EMULATE else 0.9
"""The least that tenants together complete of what one alone does; the figures say how much it was.

Emulated, it is a figure of this machine's processors, and so is how far steps are from what is due."""
FAR, LOST = (0.1, 0.3) if EMULATE else (0.05, 0.1)


def completed_and_charged(running, files: dict[str, Path], seconds: float) -> tuple[dict[str, float], dict[str, float]]:
    """Steps per second and charged share of each tenant, over the same stretch."""
    before = running.arbiter.status()
    per_s = dict(zip(files, rates(list(files.values()), seconds), strict=True))
    after = running.arbiter.status()
    first = {tenant.name: tenant.charged_ns for tenant in before.gpus[0].tenants}
    span_ns = after.now_ns - before.now_ns
    shares = {t.name: round((t.charged_ns - first.get(t.name, 0)) / span_ns, 4) for t in after.gpus[0].tenants}
    return per_s, shares


def lone_rate(running, folder: Path, *words: str) -> float:
    """Steps per second of a training loop that has the GPU to itself, under the hook."""
    path = folder / "lone"
    tenant = spawn(running, "lone", train(path, *words), request=1000)
    wait_ready([path], [tenant])
    time.sleep(1)
    (rate,) = rates([path], 3)
    need_learned(end(tenant))
    return rate


def train(path: Path, *words: str) -> list[str]:
    """The command of a training loop; emulated kernels are slowed until a step waits for the GPU, not for Python."""
    slowed = ["env", f"ALIQUOT_EMULATOR_FAULTS=slow={EMULATED_SLOW}"] if EMULATE else []
    return [*slowed, *program("train", path, *words)]


def need_learned(statuses: Sequence[int]) -> None:
    """Every training loop ended well, and its loss fell where the GPU computes."""
    good = (0, NOT_LEARNED) if EMULATE else (0,)
    assert all(status in good for status in statuses), f"the loops ended with {statuses} ({NOT_LEARNED}: no learning)"


def train_shares(*, graphs: bool, requests: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """PyTorch training loops share by their requests, in charged time and in steps, and all learn."""
    need("torch")
    words = ["graphs"] * graphs
    with engine(window_ms=2000) as (running, folder):
        lone = lone_rate(running, folder, *words)
        files = {f"t{number}": folder / str(number) for number in range(len(requests))}
        tenants = [
            spawn(running, name, train(path, *words), request=request)
            for (name, path), request in zip(files.items(), requests, strict=True)
        ]
        wait_ready(list(files.values()), tenants)
        time.sleep(4)
        per_s, shares = completed_and_charged(running, files, seconds)
        statuses = end(*tenants)
    need_learned(statuses)
    done = {name: round(rate / lone, 4) for name, rate in per_s.items()}
    due = {f"t{number}": request / 1000 for number, request in enumerate(requests)}
    seen = {"charged": shares, "done_of_lone": done, "due": due, "lone_per_s": round(lone, 1)}
    assert max(abs(shares[name] - part) for name, part in due.items()) <= 0.02, seen
    assert sum(done.values()) >= SUM_OF_LONE, f"the loops together do less than one alone: {seen}"
    assert max(abs(done[name] / sum(done.values()) - part) for name, part in due.items()) <= FAR, seen
    return seen


@check(70)
def eager_training() -> dict[str, Any]:
    """Two eager training loops share by their requests, in charged time and in completed steps."""
    return train_shares(graphs=False, requests=(500, 500), seconds=8)


@check(80)
def cuda_graphs() -> dict[str, Any]:
    """Training steps captured as CUDA graphs share as exactly as launched ones, and are right."""
    return train_shares(graphs=True, requests=(300, 700), seconds=8)


@check(100)
def slowdown() -> dict[str, Any]:
    """What sharing costs with kernels of 5 us and 2 ms (KubeShare Fig. 7)."""
    from aliquot_lab.bench.slowdown import slowdown as measure

    figures = measure(EMULATE, quotas_ms=(), kernels_us=(5, 2000), seconds=2)
    if not EMULATE:
        slow = [each for each in figures["by_kernel_us"] if each["slowdown_percent"] > 10]
        assert not slow, f"more than 10 % lost: {slow}"
    return figures


@check(50)
def slowdown_of_graphs() -> dict[str, Any]:
    """What sharing costs a tenant of captured graphs of short kernels."""
    need("cuda.bindings")
    from aliquot_lab.bench.scene import python_client

    client = python_client("graph", "--kernel-ms", "0.02", "--batch", "100")
    with engine() as (running, folder):
        path = folder / "lone"
        tenant = spawn(running, "lone", client(path), request=1000)
        wait_ready([path], [tenant])
        (lone,) = rates([path], 3)
        end(tenant)
        files = [folder / name for name in ("t0", "t1")]
        tenants = [spawn(running, path.name, client(path)) for path in files]
        wait_ready(files, tenants)
        time.sleep(2)
        both = sum(rates(files, 4))
        end(*tenants)
    figures = {"lone_per_s": round(lone), "both_per_s": round(both), "done_of_lone": round(both / lone, 4)}
    assert both >= SUM_OF_LONE * lone, figures
    return figures


@check(120)
def fig6_torch() -> dict[str, Any]:
    """Fig. 6 of KubeShare with PyTorch training loops until all three are there, by charged time and by steps."""
    need("torch")
    from aliquot_lab.bench.fig6 import ASKS, FAST, TOLERANCE

    phases: list[dict[str, Any]] = []
    tenants: dict[str, Any] = {}
    with engine(window_ms=2000) as (running, folder):
        lone = lone_rate(running, folder)
        for phase in FAST.phases[:-1]:  # the last one repeats the second
            for name in [name for name in phase.expected if name not in tenants]:
                ask = ASKS[name]
                argv = train(folder / name)
                tenants[name] = spawn(running, name, argv, request=ask.request_milli, limit=ask.limit_milli)
                wait_ready([folder / name], [tenants[name]])
            time.sleep(3)
            files = {str(name): folder / name for name in phase.expected}
            per_s, shares = completed_and_charged(running, files, 6)
            done = {name: round(rate / lone, 4) for name, rate in per_s.items()}
            worst = max(abs(shares[name] - due) for name, due in phase.expected.items())
            lost = max(due - done[str(name)] for name, due in phase.expected.items())
            phases.append(
                {"name": phase.name, "expected": phase.expected, "charged": shares, "done_of_lone": done}
                | {"error": round(worst, 4), "lost": round(lost, 4)}
            )
        need_learned(end(*tenants.values()))
    max_error, max_lost = (max(phase[word] for phase in phases) for word in ("error", "lost"))
    assert max_error <= (FAR if EMULATE else TOLERANCE), json.dumps(phases)
    assert max_lost <= LOST, f"steps fall behind the charged time: {json.dumps(phases)}"
    return {"phases": phases, "max_error": max_error, "max_lost": max_lost}


@check(100)
def fig6() -> dict[str, Any]:
    """Fig. 6 of KubeShare with kernels of known duration; both measures agree with what is due."""
    need("cuda.bindings")
    from aliquot_lab.bench.fig6 import timeline
    from aliquot_lab.bench.fig6_run import play

    report = play(timeline((0, 7, 15, 24, 31), window_s=2), emulate=EMULATE, watch=lambda *_: None)
    out = os.environ.get("ALIQUOT_GPU_OUT")
    if out and has("matplotlib"):
        from aliquot_lab.bench.plots import draw_fig6

        draw_fig6(report, Path(out))
    assert report.kept or (EMULATE and report.max_error <= FAR), json.dumps(report.as_json())
    return report.as_json()


@check(60)
def gate() -> dict[str, Any]:
    """The hook's cost per launch on a real driver."""
    from aliquot_lab.bench.driver_calls import gate as measure

    figures = measure(EMULATE, rounds=1000)
    assert figures["syscalls_per_launch"] < 0.5, figures
    return figures


@check(60)
def allocation() -> dict[str, Any]:
    """The time of an allocation through the hook."""
    from aliquot_lab.bench.driver_calls import memory as measure

    return measure(EMULATE, allocations=1000)


@check(60)
def handover() -> dict[str, Any]:
    """From one tenant's last use to the next one's launch."""
    need("cuda.bindings")
    from aliquot_lab.bench.driver_calls import handover as measure

    return measure(EMULATE, tenants=(2, 8), quotas_ms=(30,), seconds=4)


@check(60)
def storm() -> dict[str, Any]:
    """A thousand processes register."""
    from aliquot_lab.bench.driver_calls import storm as measure

    return measure(EMULATE)
