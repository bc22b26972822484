"""`aliquot bench slowdown` and `fig12`: what sharing costs, by time slice, by length of kernel, and by pair of jobs.

`slowdown` (KubeShare Fig. 7): a C client (native/bench/client.c) keeps a few milliseconds of kernels of one length in
flight, and its rate of completed kernels is taken over `seconds`: first without Aliquot, on the driver itself, then
alone under the hook with the whole GPU as its request. `alone_percent` is how much slower that is. Then two such
clients share the GPU, with half of it each; their slowdown is one minus the sum of their rates, each as a part of the
lone rate under the hook.

`quota` has the slowdown of kernels of 2 ms at fixed quotas of 30, 60, 100 and 160 ms. `by_kernel_us` has kernels of
5 us to 2 ms at the quota that is the default, and `done_per_charged` of the two together: the time of the kernels that
they completed for each second that the arbiter charged them, which is 1 when a turn has no pauses. It counts the
driver's own pauses between kernels as well, so `bare_done_per_s`, the GPU time that one client without Aliquot
completes in a second, stands beside it.

A percentage below zero means faster: within noise, or two clients filling each other's gaps.

`fig12` (KubeShare Fig. 12): a job launches kernels of 1 ms for its milliseconds of work, waits for them, rests, and
works again (`client.py`, mode `burst`), with a request of 0.45 and no limit. How many times as long it takes beside
another job is its rate of completed kernels alone on the GPU over its rate beside it, both under Aliquot. The paper
does not say what its jobs A and B demand; here two B want half as much again as there is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, Final

from aliquot_lab.bench.fig6 import RequestedShare, Sample, Tenant
from aliquot_lab.bench.figures import slowdown_percent
from aliquot_lab.bench.scene import Client, ClientFailed, Program, Scene, bare_clients, native_client, scene, start_all

QUOTAS_MS: Final = (30, 60, 100, 160)
QUOTA_KERNEL_US: Final = 2000
KERNELS_US: Final = (5, 10, 20, 50, 200, 2000)
SETTLE_S: Final = 2.0
_NEARLY_HALF: Final = RequestedShare(450, 1000, 1024)
_HALF: Final = RequestedShare(500, 1000, 1024)


def _program(kernel_us: int) -> Program:
    return native_client("steady", str(kernel_us * 1000))


def rates(clients: Sequence[Client], seconds: float) -> list[float]:
    """Completed kernels per second of each client over the same stretch of time, by our clock."""
    first = [client.totals for client in clients]
    began_s = time.monotonic()
    time.sleep(seconds)
    last = [client.totals for client in clients]
    span_s = time.monotonic() - began_s
    return [(b.completed - a.completed) / span_s for a, b in zip(first, last, strict=True) if a and b]


def bare_rate(emulate: str | None, kernel_us: int, seconds: float) -> float:
    """Kernels per second without Aliquot."""
    with bare_clients(emulate, [(Tenant("bare"), _program(kernel_us))]) as clients:
        time.sleep(1)
        return rates(clients, seconds)[0]


def _alone(stage: Scene, kernel_us: int, seconds: float) -> float:
    tenant = Tenant(f"alone-{kernel_us}")
    clients = start_all(stage, [(tenant, RequestedShare(1000, 1000, 1024), _program(kernel_us))])
    time.sleep(1)
    rate = rates(clients, seconds)[0]
    stage.end(tenant)
    return rate


def done_per_charged(first: Sample, last: Sample) -> float:
    """Kernel time completed for each second charged, of all tenants together, between two samples."""
    done_ns = sum(last.completed_ns[tenant] - ns for tenant, ns in first.completed_ns.items())
    charged_ns = sum(last.charged_ns[tenant] - ns for tenant, ns in first.charged_ns.items())
    return done_ns / charged_ns if charged_ns else 0.0


def _two(stage: Scene, kernel_us: int, seconds: float) -> tuple[float, float]:
    """Kernels per second of two halves together, and their `done_per_charged`."""
    clients = start_all(stage, [(Tenant(name), _HALF, _program(kernel_us)) for name in ("t0", "t1")])
    time.sleep(SETTLE_S)
    first = stage.sample()
    together = sum(rates(clients, seconds))
    return together, done_per_charged(first, stage.sample())


def quota_case(emulate: str | None, alone: float, quota_ms: int, seconds: float) -> dict[str, Any]:
    """Two tenants with kernels of 2 ms at one quota, against the lone rate under the hook."""
    with scene(emulate, turns="kubeshare", quota_ms=quota_ms) as stage:
        together, _ = _two(stage, QUOTA_KERNEL_US, seconds)
    return {"quota_ms": quota_ms, "slowdown_percent": round(slowdown_percent(alone, together), 2)}


def kernel_case(emulate: str | None, kernel_us: int, seconds: float) -> dict[str, Any]:
    """One length of kernel: without Aliquot, alone under the hook, and two tenants."""
    bare = bare_rate(emulate, kernel_us, seconds)
    with scene(emulate) as stage:
        alone = _alone(stage, kernel_us, seconds)
    with scene(emulate) as stage:
        together, done = _two(stage, kernel_us, seconds)
    return {
        "kernel_us": kernel_us,
        "alone_percent": round(slowdown_percent(bare, alone), 2),
        "slowdown_percent": round(slowdown_percent(alone, together), 2),
        "done_per_charged": round(done, 4),
        "bare_done_per_s": round(bare * kernel_us / 1e6, 4),
    }


def slowdown(
    emulate: str | None, quotas_ms: Sequence[int], kernels_us: Sequence[int], seconds: float
) -> dict[str, Any]:
    """Alone, at each quota and for each length of kernel."""
    bare = bare_rate(emulate, QUOTA_KERNEL_US, seconds)
    with scene(emulate) as stage:
        alone = _alone(stage, QUOTA_KERNEL_US, seconds)
        about = stage.about
    return {
        "alone_percent": round(slowdown_percent(bare, alone), 2),
        "quota": [quota_case(emulate, alone, quota_ms, seconds) for quota_ms in quotas_ms],
        "by_kernel_us": [kernel_case(emulate, kernel_us, seconds) for kernel_us in kernels_us],
        **about,
    }


def _job_rates(stage: Scene, jobs: Sequence[tuple[int, int]], seconds: float) -> list[float]:
    """Kernels per second of jobs that run at the same time.

    Raises:
        ClientFailed: a job completed nothing.
    """
    case = "-".join(f"{work_ms}.{rest_ms}" for work_ms, rest_ms in jobs)
    clients = [
        stage.start(Tenant(f"job-{case}-{number}"), _NEARLY_HALF, "burst", "--kernel-ms", "1", "--batch", str(work_ms),
                    "--idle-ms", str(rest_ms))
        for number, (work_ms, rest_ms) in enumerate(jobs)
    ]  # fmt: skip
    for client in clients:
        client.wait_ready()
    time.sleep(SETTLE_S)
    found = rates(clients, seconds)
    stage.end_all()
    if not all(found):
        raise ClientFailed(f"a job of {case} (ms of work and rest) completed nothing in {seconds:g} s")
    return found


def fig12(emulate: str | None, jobs: Mapping[str, tuple[int, int]], seconds: float) -> dict[str, Any]:
    """How many times as long each job takes beside each other one, and beside another of its kind, as alone.

    `jobs` have milliseconds of work and of rest.
    """
    pairs = []
    with scene(emulate) as stage:
        alone = {name: _job_rates(stage, [job], seconds)[0] for name, job in jobs.items()}
        for pair in combinations_with_replacement(jobs, 2):
            found = _job_rates(stage, [jobs[name] for name in pair], seconds)
            times = [round(alone[name] / rate, 3) for name, rate in zip(pair, found, strict=True)]
            pairs.append({"pair": "+".join(pair), "times_as_long": times})
        about = stage.about
    return {
        "jobs": [
            {"job": name, "work_ms": work_ms, "rest_ms": rest_ms, "kernel_time_alone": round(alone[name] / 1000, 4)}
            for name, (work_ms, rest_ms) in jobs.items()
        ],
        "pairs": pairs,
        **about,
    }
