"""What sharing costs and how exact it is: charged time and completed steps, each against a lone run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from base import (
    EMULATE,
    Missing,
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

SUM_OF_LONE = 0.9
"""The least that tenants together complete of what one alone does; the figures say how much it was."""


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
    tenant = spawn(running, "lone", program("train", path, *words), request=1000)
    wait_ready([path], [tenant])
    time.sleep(1)
    (rate,) = rates([path], 3)
    assert end(tenant) == [0], "the lone loop ended badly (3: the loss did not fall)"
    return rate


def need_training() -> None:
    """Skip without PyTorch and a GPU that computes."""
    need("torch")
    if EMULATE:
        raise Missing("the emulated driver does not compute")


def train_shares(*, graphs: bool, requests: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """PyTorch training loops share by their requests, in charged time and in steps, and all learn."""
    need_training()
    words = ["graphs"] * graphs
    with engine(window_ms=2000) as (running, folder):
        lone = lone_rate(running, folder, *words)
        files = {f"t{number}": folder / str(number) for number in range(len(requests))}
        tenants = [
            spawn(running, name, program("train", path, *words), request=request)
            for (name, path), request in zip(files.items(), requests, strict=True)
        ]
        wait_ready(list(files.values()), tenants)
        time.sleep(4)
        per_s, shares = completed_and_charged(running, files, seconds)
        statuses = end(*tenants)
    assert statuses == [0] * len(requests), f"the loops ended with {statuses} (3: the loss did not fall)"
    done = {name: round(rate / lone, 4) for name, rate in per_s.items()}
    due = {f"t{number}": request / 1000 for number, request in enumerate(requests)}
    seen = {"charged": shares, "done_of_lone": done, "due": due, "lone_per_s": round(lone, 1)}
    assert max(abs(shares[name] - part) for name, part in due.items()) <= 0.02, seen
    assert sum(done.values()) >= SUM_OF_LONE, f"the loops together do less than one alone: {seen}"
    assert max(abs(done[name] / sum(done.values()) - part) for name, part in due.items()) <= 0.05, seen
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
    """What sharing costs with kernels from 5 us to 2 ms (KubeShare Fig. 7)."""
    from aliquot.bench.slowdown import slowdown as measure

    figures = measure(EMULATE, quotas_ms=(), kernels_us=(5, 50, 2000), seconds=3)
    if not EMULATE:
        slow = [each for each in figures["by_kernel_us"] if each["slowdown_percent"] > 10]
        assert not slow, f"more than 10 % lost: {slow}"
    return figures


@check(50)
def slowdown_of_graphs() -> dict[str, Any]:
    """What sharing costs a tenant of captured graphs of short kernels."""
    need("cuda.bindings")
    from aliquot.bench.scene import python_client

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
    assert both >= (0.5 if EMULATE else SUM_OF_LONE) * lone, figures
    return figures


@check(120)
def fig6_torch() -> dict[str, Any]:
    """Fig. 6 of KubeShare with three PyTorch training loops, by charged time and by completed steps."""
    need_training()
    from aliquot.bench.fig6 import ASKS, TOLERANCE, timeline

    plan, phases = timeline((0, 11, 22, 33, 44), window_s=2), []
    tenants: dict[str, Any] = {}
    with engine(window_ms=2000) as (running, folder):
        lone = lone_rate(running, folder)
        for phase in plan.phases:
            for name in set(tenants) - set(phase.expected):
                tenants.pop(name).end()
            for name in [name for name in phase.expected if name not in tenants]:
                ask = ASKS[name]
                argv = program("train", folder / name)
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
        end(*tenants.values())
    max_error, max_lost = (max(phase[word] for phase in phases) for word in ("error", "lost"))
    assert max_error <= TOLERANCE, json.dumps(phases)
    assert max_lost <= 0.1, f"steps fall behind the charged time: {json.dumps(phases)}"
    return {"phases": phases, "max_error": max_error, "max_lost": max_lost}


@check(100)
def fig6() -> dict[str, Any]:
    """Fig. 6 of KubeShare with kernels of known duration; both measures agree with what is due."""
    need("cuda.bindings")
    from aliquot.bench.fig6 import FAST
    from aliquot.bench.fig6_run import play

    report = play(FAST, emulate=EMULATE, watch=lambda *_: None)
    out = os.environ.get("ALIQUOT_GPU_OUT")
    if out and has("matplotlib"):
        from aliquot.bench.plots import draw_fig6

        draw_fig6(report, Path(out))
    assert report.kept, json.dumps(report.as_json())
    return report.as_json()


@check(60)
def gate() -> dict[str, Any]:
    """The hook's cost per launch on a real driver."""
    from aliquot.bench.driver_calls import gate as measure

    figures = measure(EMULATE, rounds=1000)
    assert figures["syscalls_per_launch"] < 0.5, figures
    return figures


@check(60)
def allocation() -> dict[str, Any]:
    """The time of an allocation through the hook."""
    from aliquot.bench.driver_calls import memory as measure

    return measure(EMULATE, allocations=1000)


@check(60)
def handover() -> dict[str, Any]:
    """From one tenant's last use to the next one's launch."""
    need("cuda.bindings")
    from aliquot.bench.handover import handover as measure

    return measure(EMULATE, tenants=(2, 8), quotas_ms=(30, 100), seconds=4)


@check(60)
def storm() -> dict[str, Any]:
    """A thousand processes register."""
    from aliquot.bench.storm import storm as measure

    return measure(EMULATE)
