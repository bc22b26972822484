"""Memory: refused at the limit, in every shape, and never more in truth than allowed."""

from __future__ import annotations

import time
from typing import Any

from base import (
    EMULATE,
    Missing,
    check,
    engine,
    held_by,
    need,
    neighbour,
    program,
    read_json,
    run_tenant,
    spawn,
    stress,
    wait_file,
)

SHAPES_MIB = 2048


def memory_limit(kind: str, step_mib: int) -> dict[str, Any]:
    """A framework is refused at its limit, not before and not after, in truth too, and goes on afterwards."""
    need({"expandable": "torch"}.get(kind, kind))
    limit_mib = 4096
    with engine() as (running, folder):
        out, full = folder / "out.json", folder / "full"
        tenant = spawn(running, "t", program("memory", kind, step_mib, out, full), memory_mib=limit_mib)
        wait_file(full, tenant, 60)
        held_mib = held_by(running.machine.libnvml, tenant.pid)
        full.unlink()
        assert tenant.wait(30) == 0, f"{kind} could not go on after the refusal"
        told = read_json(out)
    assert told["refused"], f"{kind} was never refused"
    assert told["allocated_mib"] <= limit_mib, f"{kind} got {told['allocated_mib']} MiB of {limit_mib}"
    # A context and a framework's libraries take their part of the limit.
    assert told["allocated_mib"] >= limit_mib * 0.6, f"{kind} was refused at {told['allocated_mib']} MiB already"
    assert told["works_after"] or EMULATE, f"{kind} could not go on after the refusal"
    assert held_mib is None or held_mib <= limit_mib, f"{kind} holds {held_mib} MiB in truth, {limit_mib} are allowed"
    return {**told, "held_mib": held_mib, "limit_mib": limit_mib}


for _kind, _step_mib in (("torch", 64), ("expandable", 64), ("cupy", 63), ("numba", 63)):

    def _memory(kind: str = _kind, step_mib: int = _step_mib) -> dict[str, Any]:
        return memory_limit(kind, step_mib)

    check(80, f"memory-{_kind}")(_memory)


@check(60)
def memory_in_truth() -> dict[str, Any]:
    """What the driver says a tenant holds, contexts included, is within its limit when it has taken all it can get."""
    need("cuda.bindings")
    limit_mib = 4096
    held_mib, told = held_when_written(["full"], limit_mib, 45)
    assert held_mib <= limit_mib, f"the driver says {held_mib} MiB, {limit_mib} are allowed: {told}"
    assert held_mib >= limit_mib * 0.85, f"refused at {held_mib} MiB of {limit_mib} already: {told}"
    return {**told, "held_mib": held_mib, "limit_mib": limit_mib}


def held_when_written(words: list[object], limit_mib: int, seconds: float) -> tuple[int, dict[str, Any]]:
    """What NVML counts for a program once it has written its file, and that file."""
    need("pynvml")
    with engine() as (running, folder):
        out = folder / "out.json"
        name, *arguments = words
        tenant = spawn(running, "t", program(str(name), *arguments, out), memory_mib=limit_mib)
        wait_file(out, tenant, seconds)
        time.sleep(0.3)
        told = read_json(out)
        held_mib = held_by(running.machine.libnvml, tenant.pid)
        tenant.kill()
        tenant.wait(10)
    if held_mib is None:
        raise Missing("NVML does not list this process by its pid here (another pid namespace)")
    return held_mib, told


def memory_shape(shape: str) -> dict[str, Any]:
    """Whatever the shape of what it takes, a tenant never holds more than its limit in truth."""
    held_mib, told = held_when_written(["shapes", shape], SHAPES_MIB, 40)
    assert held_mib <= SHAPES_MIB, f"the driver says {held_mib} MiB, {SHAPES_MIB} are allowed: {told}"
    return {**told, "held_mib": held_mib, "limit_mib": SHAPES_MIB}


for _shape in ("odd", "arrays", "pools", "imports"):

    def _memory_shape(shape: str = _shape) -> dict[str, Any]:
        return memory_shape(shape)

    check(60, f"shape-{_shape}")(_memory_shape)


@check(50)
def threads_leave_nothing_charged() -> dict[str, Any]:
    """Eight threads that allocate and free by every way, beside a neighbour, leave nothing charged."""
    kinds = ["linear", "ordered", "pool", "array", "mapped", "module", "launches", "graphs"]
    with engine() as (running, folder), neighbour(running, folder):
        out = folder / "out.json"
        command = f"exec {stress(folder)} 8 10 {' '.join(kinds)} > {out}"
        run_tenant(running, ["/bin/sh", "-c", command], seconds=40)
        told = read_json(out)
    left_mib = (told["charged_after"] - told["charged_before"]) / (1 << 20)
    # The default pool and the memory of graphs may keep what they cache.
    assert 0 <= left_mib <= 64, f"{left_mib:.1f} MiB are charged with everything freed: {told}"
    return {**told, "left_mib": round(left_mib, 1)}
