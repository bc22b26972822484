"""Beside others: a process that only looks, work that waits for work, captures, resets and exits in contention."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from base import (
    EMULATE,
    LIMIT_MIB,
    Missing,
    check,
    end,
    engine,
    kernels,
    need,
    neighbour,
    program,
    rates,
    read_json,
    run_tenant,
    spawn,
    together,
    wait_ready,
)

WINDOWS = 6
SHORT_LIVES = 20


@check(40)
def a_second_process_that_polls() -> dict[str, Any]:
    """A process that only asks NVML beside a working one of the same tenant costs the working one nothing."""
    with engine() as (running, folder):
        go, progress = folder / "go", folder / "steady"
        argv = together(kernels(progress, 500), program("poll", go))
        tenant = spawn(running, "t", argv)
        wait_ready([progress], [tenant])
        time.sleep(1)
        (before,) = rates([progress], 4)
        go.touch()
        time.sleep(1.5)
        (beside,) = rates([progress], 4)
        end(tenant)
    assert beside >= 0.95 * before, f"{before:.0f} kernels/s alone, {beside:.0f} with a process that polls"
    return {"alone_per_s": round(before), "polled_per_s": round(beside)}


def windows(progress: Path, count: int) -> list[float]:
    """Steps of each of the next `count` seconds."""
    return [rates([progress], 1)[0] for _ in range(count)]


@check(60)
def waits_between_ranks() -> dict[str, Any]:
    """Two ranks that wait for each other on the GPU go on beside a neighbour, in every second."""
    with engine() as (running, folder):
        shared, progress = folder / "shared", folder / "rank-0"
        shared.write_bytes(bytes(4096))
        ranks = together(*(program("mutual", rank, shared, folder / f"rank-{rank}") for rank in (0, 1)))
        tenant = spawn(running, "t", ranks)
        wait_ready([progress], [tenant])
        alone = windows(progress, 3)
        with neighbour(running, folder):
            beside = windows(progress, WINDOWS)
        end(tenant)
    lone = sum(alone) / len(alone)
    seen = {"alone_per_s": round(lone, 1), "beside_per_s": [round(rate, 1) for rate in beside]}
    assert min(beside) >= lone / 8, f"a second with next to no step: {seen}"
    assert sum(beside) / WINDOWS >= lone / 4, f"less than half of half: {seen}"
    return seen


def nccl_alone() -> None:
    """Skip where NCCL refuses two ranks on one GPU without Aliquot too."""
    need("torch")
    if EMULATE:
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(program("nccl", f"{folder}/out"), capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        reason = [line for line in done.stderr.splitlines() if "uplicate" in line or "NCCL" in line]
        raise Missing(f"NCCL refuses two ranks on one GPU here, without Aliquot as well: {(reason or ['?'])[-1][:200]}")


@check(90)
def nccl_two_ranks() -> dict[str, Any]:
    """Two NCCL ranks of one tenant on one GPU sum correctly, and go on beside a neighbour."""
    nccl_alone()
    with engine() as (running, folder):
        out, progress = folder / "out.json", folder / "sums"
        seen = run_tenant(running, program("nccl", out), seconds=50)
        told = read_json(out)
        tenant = spawn(running, "t2", program("nccl", out, progress))
        wait_ready([progress], [tenant])
        alone = windows(progress, 3)
        with neighbour(running, folder):
            beside = windows(progress, WINDOWS)
        end(tenant)
    lone = sum(alone) / len(alone)
    figures = {"alone_per_s": round(lone, 1), "beside_per_s": [round(rate, 1) for rate in beside]}
    assert told["right"] or EMULATE, told
    assert min(beside) >= lone / 8, f"a second with next to no sum: {figures}"
    return {**told, **seen, **figures}


@check(40)
def captures_in_contention() -> dict[str, Any]:
    """No GLOBAL capture of one thread is spoiled while another launches and a neighbour waits."""
    with engine() as (running, folder), neighbour(running, folder):
        out = folder / "out.json"
        run_tenant(running, program("captures", 8, out), seconds=30)
        told = read_json(out)
    assert told["captures"] > 20, told
    assert told["failed"] == 0, f"{told['failed']} of {told['captures']} captures failed: {told['codes']}"
    return told


@check(50)
def resets_in_contention() -> dict[str, Any]:
    """Contexts destroyed and reset with work in flight, while a neighbour waits, do no harm."""
    with engine() as (running, folder), neighbour(running, folder):
        out = folder / "out.json"
        run_tenant(running, program("resets", 10, out), seconds=40)
        told = read_json(out)
    assert min(told.values()) >= 3, told
    return told


@check(60)
def exits_in_contention() -> dict[str, Any]:
    """Programs that leave with work queued and a thread inside the driver end with status 0."""
    from facts import compiled

    with engine() as (running, folder), neighbour(running, folder):
        leaves, statuses = [str(compiled(folder)), "leaving"], []
        for number in range(SHORT_LIVES):
            tenant = spawn(running, f"t{number}", leaves, memory_mib=1024)
            statuses.append(tenant.wait(20))
    assert statuses == [0] * SHORT_LIVES, f"statuses {statuses}"
    return {"ended_well": SHORT_LIVES}


@check(60)
def nvml_neighbours() -> dict[str, Any]:
    """A resting tenant beside a busy one sees neither the neighbour's process nor its work."""
    need("cuda.bindings", "pynvml")
    with engine() as (running, folder), neighbour(running, folder) as busy:
        out = folder / "out.json"
        tenant = spawn(running, "t", program("view", out))
        assert tenant.wait(40) == 0, "view.py failed"
        told = read_json(out)
        other = busy.pid
    lists = [told[name] for name in ("processes", "samples", "accounts") if isinstance(told[name], list)]
    assert all(set(pids) <= {told["pid"]} for pids in lists), f"{told}, the neighbour is {other}"
    assert not isinstance(told["gpu_percent"], int) or told["gpu_percent"] <= 20, f"{told}: not its own work"
    assert told["total_mib"] == LIMIT_MIB, told
    return told


@check(60)
def latency_beside_a_big_tenant() -> dict[str, Any]:
    """A small tenant's requests wait for a quota at most, beside one that runs as far ahead as it can."""
    from aliquot_lab.bench.progress import read_intervals
    from aliquot_lab.bench.scene import native_client

    quota_ms, kernel_ms = 20, 1
    with engine(turns="kubeshare", quota_ms=quota_ms) as (running, folder):
        small = folder / "small"
        argv = native_client("inference", str(kernel_ms * 1_000_000), "50", "1", "1", "1")(small)
        with neighbour(running, folder, request=700, kernel_us=2000):
            tenant = spawn(running, "small", argv, request=300, memory_mib=1024)
            wait_ready([small], [tenant])
            time.sleep(10)
            end(tenant)
            waits = sorted((turn.ended_ns - turn.asked_ns) / 1e6 for turn in read_intervals(small))
    p50, p99 = waits[len(waits) // 2], waits[int(len(waits) * 0.99)]
    figures = {"requests": len(waits), "p50_ms": round(p50, 2), "p99_ms": round(p99, 2), "quota_ms": quota_ms}
    assert len(waits) > 100, figures
    # A request may come during the other's quota, and its successor during the rest of a turn. Emulated, the figure is
    # one of this machine's processors.
    assert EMULATE or p99 <= 2 * quota_ms + 20, figures
    return figures
