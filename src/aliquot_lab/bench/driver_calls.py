"""`aliquot bench gate`, `memory`, `handover` and `storm`: what programs in C measure of the hook and the arbiter.

**gate and memory** are what one driver call costs through the hook. A C program (native/bench/driver_bench.c) runs as
the only tenant of a GPU. In turn it times calls through libcuda.so.1, which is the hook, and the same calls straight
into the driver that the hook opened: same process, same context, alternating within milliseconds. A batch is 100
launches of an empty kernel, timed without the wait that follows. `gate_ns_p50` is the median of the differences between
a batch and the direct one beside it: the driver's own time drifts by more than the hook adds, and neighbours share the
drift. `gate_ns_p99` is the difference of the two 99th percentiles (of batch means, so a single slow launch shows with a
hundredth of its length). `gate_ns_p50_streams` launches into eight streams in turn; `gate_ns_p50_switch` makes the
context current before each launch and another after it, all through the same library. System calls are those of the
launching thread, counted by ptrace within the batches: those through the hook less those of as many direct launches.

Completion calls (cuStreamSynchronize of an idle stream, batches of 20) are timed the same way, with no stream-ordered
allocation held and with 100,000: what the hook looks at then must not grow with them.

On the emulated driver the difference is as real as on a GPU, for the hook's code is the same; its caches are not
disturbed by a real driver's, so expect a few nanoseconds more on one.

**handover** is from the last use by one tenant to the first launch of the next: 2, 8 and 32 tenants with equal requests
that add up to the GPU launch kernels of 1 ms one at a time, as fast as they may, at a fixed quota of 30 and of 100 ms
(native/bench/driver_bench.c). Each notes when its launch call returned and when it saw the kernel finished. With all
turns of all tenants in one order, a hand-over is the gap at each change of tenant: the answer of the drained tenant,
the grant, the wake-up of the next process, and its launch call. `gpu_idle_percent` is the sum of these gaps over the
whole time. `limit_us` is what the machine allows: a program (native/bench/token.c) whose processes pass a token through
the same wake-ups, a message to one that sleeps in epoll and a futex, with nothing decided, checked or launched; run
right after, for the same number of tenants and length of turns.

**storm** is a thousand processes that register at the same moment. Ten tenants of a tenth of the GPU each get a socket
at the arbiter. A C program (native/bench/storm.c) forks the processes, a hundred per tenant, lets all of them connect
at once and asks for each what the hook asks when a program first touches CUDA: HELLO, then ATTACH, both answered, the
second with a grant page. The time is from the start signal until the last page has come. No CUDA context is made: a
thousand of them would not fit any GPU.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aliquot.driver.native import native_part
from aliquot.model.ids import TenantName
from aliquot.model.requests import GpuRequest
from aliquot_lab.bench.fig6 import RequestedShare, Tenant
from aliquot_lab.bench.figures import handovers, overlap, percentile, percentiles
from aliquot_lab.bench.progress import Interval
from aliquot_lab.bench.scene import SPIN_PTX, ClientFailed, Scene, scene

PROGRAM: Final = "bench/aliquot-bench-driver"
ROUNDS: Final = 2000
ALLOCATIONS: Final = 5000
HELD: Final = 100_000
COMPLETION_ROUNDS: Final = 200
SYSCALL_ROUNDS: Final = 50
BATCH: Final = 100
_ALONE: Final = RequestedShare(1000, 1000, 4096)


def _rows(stage: Scene, mode: str, rounds: int, *more: str) -> list[tuple[float, float]]:
    """Run the program in a mode; its lines as pairs."""
    out = stage.directory / f"{mode}.out"
    argv = [str(native_part(PROGRAM, "aliquot_lab")), mode, str(SPIN_PTX), str(rounds), str(out), *more]
    stage.run(Tenant(f"bench-{'-'.join((mode, *more))}"), _ALONE, argv, timeout_s=120)
    pairs = (line.split() for line in out.read_text().splitlines())
    return [(float(through), float(direct)) for through, direct in pairs]


def _median_difference(rows: list[tuple[float, float]]) -> float:
    return round(percentile([through - direct for through, direct in rows], 50), 2)


def gate(emulate: str | None, rounds: int = ROUNDS) -> dict[str, Any]:
    """ns per launch through the hook minus without, and system calls per launch."""
    with scene(emulate) as stage:
        launches_ns = _rows(stage, "launch", rounds)
        through, direct = zip(*launches_ns, strict=True)
        streams = _median_difference(_rows(stage, "streams", rounds))
        switch = _median_difference(_rows(stage, "switch", rounds))
        calls, driver_calls = _rows(stage, "syscalls", SYSCALL_ROUNDS)[0]
        launches = SYSCALL_ROUNDS * BATCH
        return {
            "gate_ns_p50": _median_difference(launches_ns),
            "gate_ns_p99": round(percentile(through, 99) - percentile(direct, 99), 2),
            "gate_ns_p50_streams": streams,
            "gate_ns_p50_switch": switch,
            "syscalls_per_launch": max(0.0, calls - driver_calls) / launches,
            "driver_syscalls_per_launch": driver_calls / launches,
            **percentiles("direct_ns", direct, 2),
            **stage.about,
        }


def memory(
    emulate: str | None, allocations: int = ALLOCATIONS, held: int = HELD, rounds: int = COMPLETION_ROUNDS
) -> dict[str, Any]:
    """Time of one cuMemAlloc of 1 MiB through the hook, and straight into the driver for comparison.

    And what the hook adds to a completion call, with no allocation held and with `held`.
    """
    with scene(emulate) as stage:
        none, many = (_median_difference(_rows(stage, "completions", rounds, str(count))) for count in (0, held))
        through, direct = zip(*_rows(stage, "memory", allocations), strict=True)
        return {
            **percentiles("alloc_us", [ns / 1e3 for ns in through], 3),
            **percentiles("direct_us", [ns / 1e3 for ns in direct], 3),
            "completion_ns_added": none,
            "allocations_held": held,
            "completion_ns_added_held": many,
            **stage.about,
        }


TOKEN: Final = "bench/aliquot-bench-token"


def _turns(path: Path) -> list[Interval]:
    """What one program wrote."""
    rows = (line.split() for line in path.read_text().splitlines())
    return [Interval(int(asked), int(launched), int(ended)) for asked, launched, ended in rows]


def limit_us(tenants: int, quota_ms: int, seconds: float) -> list[float]:
    """How long each passing of a bare token took, in microseconds.

    Raises:
        ClientFailed: the program failed.
    """
    argv = [str(native_part(TOKEN, "aliquot_lab")), str(tenants), str(quota_ms), str(math.ceil(seconds))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClientFailed(f"{TOKEN} ended with status {done.returncode}: {done.stderr.strip()}")
    return [int(line) / 1e3 for line in done.stdout.split()]


def handover_case(
    emulate: str | None, tenants: int, quota_ms: int, seconds: float, *, native: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One number of tenants at one quota; the figures, and the GPU.

    Raises:
        ClientFailed: a tenant's program failed.
    """
    ask = RequestedShare(1000 // tenants, 1000, 512 if tenants > 8 else 1024)
    turns = [str(native_part(PROGRAM, "aliquot_lab")), "turns", str(SPIN_PTX), str(math.ceil(seconds))]
    with scene(emulate, turns="kubeshare", quota_ms=quota_ms, native_handover=native) as stage:
        paths = {Tenant(f"t{number}"): stage.directory / f"turns-{number}" for number in range(tenants)}
        processes = [stage.spawn(tenant, ask, [*turns, str(path)]) for tenant, path in paths.items()]
        statuses = [process.wait(seconds + 60) for process in processes]
        if any(statuses):
            raise ClientFailed(f"a tenant's program ended with status {max(statuses, key=abs)}")
        seen = handovers(overlap({tenant: _turns(path) for tenant, path in paths.items()}))
        gaps_us = [gap / 1e3 for gap in seen.gaps_ns]
        case = {
            "tenants": tenants,
            "quota_ms": quota_ms,
            **percentiles("handover_us", gaps_us, 1),
            **percentiles("limit_us", limit_us(tenants, quota_ms, seconds), 1),
            "gpu_idle_percent": round(seen.idle_percent, 3),
            "handovers": len(gaps_us),
        }
        return case, stage.about


def handover(
    emulate: str | None, tenants: Sequence[int], quotas_ms: Sequence[int], seconds: float, *, native: bool = True
) -> dict[str, Any]:
    """All cases; without `native` every hand-over waits for the arbiter's interpreter."""
    seen = [handover_case(emulate, count, quota, seconds, native=native) for count in tenants for quota in quotas_ms]
    return {"cases": [case for case, _ in seen], "native_handover": native, **seen[0][1]}


STORM: Final = "bench/aliquot-bench-storm"
TENANTS: Final = 10
TIMEOUT_S: Final = 120


def storm(emulate: str | None, processes: int = 1000) -> dict[str, Any]:
    """How long until all processes are registered, in seconds.

    Raises:
        ClientFailed: not every process was served.
    """
    with scene(emulate) as stage:
        # The engine's own, or it takes them for what an earlier engine has left, and removes them.
        names = [TenantName(f"storm-{number}") for number in range(TENANTS)]
        tenants = [stage.engine.admit(name, GpuRequest(1000 // TENANTS)) for name in names]
        uuid = stage.engine.gpus[0].uuid.removeprefix("GPU-").replace("-", "")
        sockets = [str(tenant.folder.conf.socket) for tenant in tenants]
        argv = [str(native_part(STORM, "aliquot_lab")), str(processes), uuid, *sockets]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S)
        for tenant in tenants:
            stage.engine.release(tenant)
        if done.returncode != 0:
            raise ClientFailed(f"storm: {done.stderr.strip() or done.stdout.strip() or 'no answer'}")
        seconds, registered = done.stdout.split()
        return {"processes": int(registered), "seconds": float(seconds), **stage.about}
