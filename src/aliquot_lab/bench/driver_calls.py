"""`aliquot bench gate` and `aliquot bench memory`: what one driver call costs through the hook.

Method: a C program (native/bench/driver_bench.c) runs as the only tenant of a GPU. In turn it times calls through
libcuda.so.1, which is the hook, and the same calls straight into the driver that the hook opened: same process, same
context, alternating within milliseconds. A batch is 100 launches of an empty kernel, timed without the wait that
follows. `gate_ns_p50` is the median of the differences between a batch and the direct one beside it: the driver's own
time drifts by more than the hook adds, and neighbours share the drift. `gate_ns_p99` is the difference of the two 99th
percentiles (of batch means, so a single slow launch shows with a hundredth of its length). `gate_ns_p50_streams`
launches into eight streams in turn; `gate_ns_p50_switch` makes the context current before each launch and another after
it, all through the same library. System calls are those of the launching thread, counted by ptrace within the batches:
those through the hook less those of as many direct launches.

Completion calls (cuStreamSynchronize of an idle stream, batches of 20) are timed the same way, with no stream-ordered
allocation held and with 100,000: what the hook looks at then must not grow with them.

On the emulated driver the difference is as real as on a GPU, for the hook's code is the same; its caches are not
disturbed by a real driver's, so expect a few nanoseconds more on one.
"""

from __future__ import annotations

from typing import Any, Final

from aliquot.driver.native import native_part
from aliquot_lab.bench.fig6 import RequestedShare, Tenant
from aliquot_lab.bench.figures import percentile, percentiles
from aliquot_lab.bench.scene import SPIN_PTX, Scene, scene

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


def _completion_ns(stage: Scene, held: int, rounds: int) -> float:
    """What the hook adds to waiting for an idle stream while so many stream-ordered allocations are held."""
    return _median_difference(_rows(stage, "completions", rounds, str(held)))


def memory(
    emulate: str | None, allocations: int = ALLOCATIONS, held: int = HELD, rounds: int = COMPLETION_ROUNDS
) -> dict[str, Any]:
    """Time of one cuMemAlloc of 1 MiB through the hook, and straight into the driver for comparison.

    And what the hook adds to a completion call, with no allocation held and with `held`.
    """
    with scene(emulate) as stage:
        none, many = (_completion_ns(stage, count, rounds) for count in (0, held))
        through, direct = zip(*_rows(stage, "memory", allocations), strict=True)
        return {
            **percentiles("alloc_us", [ns / 1e3 for ns in through], 3),
            **percentiles("direct_us", [ns / 1e3 for ns in direct], 3),
            "completion_ns_added": none,
            "allocations_held": held,
            "completion_ns_added_held": many,
            **stage.about,
        }
