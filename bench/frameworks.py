"""How far PyTorch, JAX and a server with CUDA graphs are from their shares of one GPU, by the steps that they complete.

    PYTHONPATH=src:tests/frameworks .venv/bin/python bench/frameworks.py [SECONDS]

Three programs of `tests/frameworks/clients` with requests of 0.2 (eager training in PyTorch), 0.3 (training in JAX) and
0.5 (a server that decodes with CUDA graphs, its clients always waiting) run on an emulated H100 with kernels of half a
millisecond; the environments are those of `make test-frameworks`. First each is alone under the hook for three seconds:
that is its lone rate. Then all run, and after a window has passed, for SECONDS (20). Windows of 10 s begin twice a
second. The error of a window is the largest distance from a request, in points: of what was charged; of steps as a part
of the lone rate; and of steps as a part of all three's steps, which leaves out what all lose together.

`lost` is charged time that made no steps. Where it goes is told by `waited`, in which a program's threads were ready
and had no processor; by `cpu`, in which they ran; by `turns`, the number of hand-overs of each; and by `idle`, in which
nothing was charged to anybody. All are parts of the time measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from stages import Work, lone_rates, processor_s, sample, start

from aliquot_lab.bench.fig6 import RequestedShare, Sample, Tenant
from aliquot_lab.bench.fig6 import shares as shares_between
from aliquot_lab.bench.figures import worst_error
from aliquot_lab.bench.scene import Scene, scene
from aliquot_lab.bench.shares import TICK_S, WINDOW_S, windows

MEMORY_MIB = 4096
WORKS = (
    Work(Tenant("pytorch"), RequestedShare(200, 1000, MEMORY_MIB), "cuda13", "torch_steps.py"),
    Work(Tenant("jax"), RequestedShare(300, 1000, MEMORY_MIB), "jax", "jax_steps.py"),
    Work(Tenant("graphs"), RequestedShare(500, 1000, MEMORY_MIB), "cuda13", "serve.py", ("clients", "12", "32")),
)
DUE = {work.tenant: work.ask.request_milli / 1000 for work in WORKS}


def as_charged(seen: Sample) -> Sample:
    """Its completed time in the place of what was charged, so that a window's share is a part of time."""
    return Sample(seen.at_ns, seen.completed_ns, seen.completed_ns)


def errors(samples: list[Sample]) -> dict[str, float]:
    """The worst window, by each of the three measures."""
    steps = windows([as_charged(seen) for seen in samples], WINDOW_S, charged=True)
    seen = {
        "charged": windows(samples, WINDOW_S, charged=True),
        "steps_of_lone": steps,
        "steps_of_all": windows(samples, WINDOW_S),
    }
    return {name: round(worst_error(DUE, found), 2) for name, found in seen.items()}


def counters(stage: Scene) -> dict[Tenant, tuple[float, float, int]]:
    """For each: CPU seconds, seconds without a processor, hand-overs."""
    turns = {tenant.name: tenant.handovers for tenant in stage.engine.arbiter.status().gpus[0].tenants}
    return {tenant: (*processor_s(client), turns[tenant]) for tenant, client in stage.clients.items()}


def measure(seconds: float) -> dict[str, Any]:
    """One run."""
    with scene("h100", window_ms=int(WINDOW_S * 1000)) as stage:
        start(stage, WORKS)
        lone = lone_rates(stage)
        time.sleep(WINDOW_S)
        samples, before = [sample(stage, lone)], counters(stage)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(TICK_S)
            samples.append(sample(stage, lone))
        after = counters(stage)
    first, last = samples[0], samples[-1]
    span_s = (last.at_ns - first.at_ns) / 1e9
    charged = shares_between(first.charged_ns, last.charged_ns, last.at_ns - first.at_ns)
    done = shares_between(first.completed_ns, last.completed_ns, last.at_ns - first.at_ns)
    return {
        "error_points_worst": errors(samples),
        "tenants": {
            tenant: {
                "due": DUE[tenant],
                "charged": round(charged[tenant], 4),
                "steps_of_lone": round(done[tenant], 4),
                "lost": round(charged[tenant] - done[tenant], 4),
                "cpu": round((after[tenant][0] - before[tenant][0]) / span_s, 3),
                "waited": round((after[tenant][1] - before[tenant][1]) / span_s, 3),
                "turns": after[tenant][2] - before[tenant][2],
                "lone_per_s": round(lone[tenant].per_s, 1),
                "lone_waited": round(lone[tenant].short, 3),
            }
            for tenant in DUE
        },
        "idle": round(1 - sum(charged.values()), 4),
        "load": round(os.getloadavg()[0], 1),
        "seconds": round(span_s, 1),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)) + "\n")
