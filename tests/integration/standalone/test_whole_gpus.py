"""Whole GPUs are not gated: the program has the driver itself, and the engine knows it all the same."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from spawning import engine_of, spawn
from waiting import eventually

from aliquot.model.ids import TenantName
from aliquot.model.requests import GpuRequest
from aliquot.standalone.engine import Engine
from aliquot.standalone.program import start_program
from aliquot.status.tenants import TenantStatus
from aliquot_lab.bench.progress import read_totals
from aliquot_lab.bench.scene import native_client

from .stage import Aliquot

# What a program finds: whether the library answers for the driver and how often it counted, and what may be allocated.
PROGRAM = f"""
import json, sys, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from kit.driver_calls import OwnDriver
gpu, counted = OwnDriver(), None
assert gpu.open() == 0
kernel, total = gpu.function(), gpu.memory_info()[1]
for _ in range(20):
    assert gpu.launch(kernel, 1_000_000) == gpu.code("cuCtxSynchronize") == 0
    time.sleep(0.01)
much = gpu.allocate("linear", 6 << 30).code
if gpu.has("aliquot_stats"):
    counted = gpu.counters()
print(json.dumps({{"total_mib": total >> 20, "alloc": much, "counted": counted}}))
"""


def found(aliquot_cli: Aliquot, *words: str, around: tuple[str, ...] = ()) -> dict:
    """What the program finds under `aliquot run` with these options."""
    done = aliquot_cli("run", "--emulate", "h100", *words, "--", *around, sys.executable, "-c", PROGRAM)
    assert 0 == done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def engine():
    """An engine with two emulated H100 and a short window."""
    with engine_of("h100x2", window_ms=2000) as engine:
        yield engine


def status_of(engine: Engine, gpu: int, name: str) -> TenantStatus:
    """A tenant on a GPU as the arbiter tells it."""
    uuid = engine.gpus[gpu].uuid
    (status,) = (each for each in engine.arbiter.status().gpus if each.uuid == uuid)
    return next(tenant for tenant in status.tenants if tenant.name == name)


@pytest.mark.parametrize("around", [(), ("env", "-i")], ids=["plain", "env -i"])
def test_a_run_of_a_whole_gpu_has_the_bare_driver(aliquot_cli: Aliquot, around: tuple[str, ...]):
    """Nothing of ours is loaded, and all of the GPU's memory is there; a cleared environment changes nothing."""
    seen = found(aliquot_cli, around=around)

    assert (0, None) == (seen["alloc"], seen["counted"])
    assert seen["total_mib"] > 80_000


def test_a_whole_gpu_is_gated_when_that_is_asked_for(aliquot_cli: Aliquot):
    """With --enforce all the library stands before the driver, and launches are counted."""
    counted = found(aliquot_cli, "--enforce", "all")["counted"]

    assert counted["launches"] >= 20
    assert counted["wants"] >= 1


def test_memory_alone_is_held_and_no_launch_waits(aliquot_cli: Aliquot):
    """With a memory limit on a whole GPU the limit holds; the program asks for no turn and gives none back."""
    seen = found(aliquot_cli, "--gpu-mem", "4Gi")

    assert [4096, 2] == [seen["total_mib"], seen["alloc"]]
    assert [0, 0, 0] == [seen["counted"][name] for name in ("wants", "waits", "returns")]
    assert seen["counted"]["launches"] >= 20


def test_what_is_not_gated_is_measured_and_known(engine: Engine, tmp_path: Path):
    """The arbiter tells the tenant's use, memory and processes by NVML; none of them counts as unregistered.

    Beside it a share of another GPU is gated, and what is on a GPU of its own takes nothing from it.
    """
    whole = spawn(engine, "whole", native_client("steady", "1000000")(tmp_path / "a"), request_milli=1000, gpu=0)
    share = spawn(engine, "share", native_client("steady", "1000000")(tmp_path / "b"), request_milli=500, gpu=1)
    eventually(lambda: status_of(engine, 0, "whole").usage > 0, "its use is measured")
    seen, held = status_of(engine, 0, "whole"), status_of(engine, 1, "share")
    first = next(gpu for gpu in engine.arbiter.status().gpus if gpu.uuid == engine.gpus[0].uuid)

    assert ("never", 1, 0) == (seen.enforce, seen.processes, seen.handovers)
    assert seen.memory_used_mib > 0
    assert seen.charged_ns > 0
    assert first.busy > 0
    assert ([], [whole.pid]) == ([each.pid for each in first.unregistered], [each.pid for each in first.bare])
    assert ("all", 1) == (held.enforce, held.processes)
    assert held.handovers >= 1
    assert "none (the bare driver)" == whole.injection
    whole.end()
    share.end()


def shares(progress: list[Path], seconds: float) -> list[float]:
    """Parts of a GPU that clients complete, by their own counts."""
    first, began = [read_totals(path) for path in progress], time.monotonic()
    time.sleep(seconds)
    last, span_ns = [read_totals(path) for path in progress], (time.monotonic() - began) * 1e9
    return [(b.kernel_ns - a.kernel_ns) / span_ns for a, b in zip(first, last, strict=True) if a and b]


@pytest.mark.real_time
def test_a_whole_gpu_beside_a_shared_one_takes_no_turns(engine: Engine, tmp_path: Path):
    """A tenant of 1.5 GPUs has its whole one all the time, whoever's turn it is on the other; there it has its half."""
    paths = [tmp_path / name for name in ("whole", "part", "half")]
    program = [native_client("steady", "1000000")(path) for path in paths]
    tenant = engine.admit(TenantName("both"), GpuRequest(1500))
    uuids = [part.gpu for part in sorted(tenant.plan.slices, key=lambda part: -part.request_milli)]
    whole, shared = ([gpu.uuid for gpu in engine.gpus].index(uuid) for uuid in uuids)
    half = spawn(engine, "half", program[2], request_milli=500, gpu=shared)
    ranks = [
        start_program(tenant.folder, argv, {**os.environ, "CUDA_VISIBLE_DEVICES": uuid})
        for argv, uuid in zip(program, uuids, strict=False)
    ]
    try:
        eventually(lambda: all(read_totals(path) for path in paths), "work of all three")
        got = shares(paths, 4)
        first, second = status_of(engine, whole, "both"), status_of(engine, shared, "both")
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        half.end()
        engine.release(tenant)

    alone, part, other = got
    # Of each other, not of the time: a busy machine takes its part from all three emulated GPUs' clients.
    assert alone > 0.8 * (part + other)
    assert part / (part + other) == pytest.approx(0.5, abs=0.08)
    assert ("memory", 0, "all") == (first.enforce, first.handovers, second.enforce)
    assert first.usage > 0.5
