"""Unmodified PyTorch trains with its part of a GPU: `aliquot run --emulate h100 ... -- python train.py`."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator

import pytest
from conftest import HERE, PROGRAMS
from environments import python
from gpuruns import Room, Run

SHARE = ("--gpu-request", ".3", "--gpu-limit", ".6", "--gpu-mem", "4Gi")
SLOW = 300  # kernels so long that the GPU is what a step waits for, however busy the machine is
KERNEL_S = SLOW * 10e-6
WARM_S, WINDOW_S = 6.0, 12.0


@pytest.fixture
def room() -> Iterator[Room]:
    """One emulated H100."""
    one = Room("h100")
    yield one
    one.close()


def train(room: Room, *words: object) -> Run:
    """Starts train.py as a tenant."""
    path = f"PYTHONPATH={HERE / 'clients'}:{PROGRAMS}"
    argv = [
        "env",
        path,
        f"ALIQUOT_EMULATOR_FAULTS=slow={SLOW}",
        python("cuda13"),
        HERE / "clients" / "train.py",
        *map(str, words),
    ]
    return room.start("substitute", argv, share=SHARE)


def used(room: Room) -> int:
    """Bytes of the GPU in use by the emulated driver's own books, read outside of any tenant."""
    library = next(path for path in room.runtime.rglob("libnvidia-ml.so.1") if (path.parent / "emulator.conf").exists())
    nvml, device, memory = ctypes.CDLL(str(library)), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    assert 0 == nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    assert 0 == nvml.nvmlDeviceGetMemoryInfo(device, memory)
    return memory[2]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("neighbour", "due"), [(".69", 0.3), (None, 0.6)], ids=["beside-a-neighbour", "alone"])
def test_training_gets_the_share_that_it_is_due(room: Room, neighbour: str | None, due: float):
    """A training loop uses its request beside a neighbour that always has work, and its limit on an idle GPU."""
    if neighbour:
        beside = [sys.executable, "-m", "aliquot.bench.client", "steady", "--progress", room.folder / "beside"]
        room.start("library-path", beside, share=("--gpu-request", neighbour, "--gpu-mem", "1Gi"))
    facts = train(room, "loop", WINDOW_S, WARM_S).facts(timeout_s=300)
    share = facts["kernels"] * KERNEL_S / facts["seconds"]

    assert abs(share - due) <= 0.02, facts


@pytest.mark.timeout(400)
@pytest.mark.parametrize("block_mib", [2, 64, 512])
def test_training_runs_out_of_memory_at_its_limit_and_goes_on(room: Room, block_mib: int):
    """OutOfMemoryError comes when no further block fits into 4 GiB with the context; the device holds no more."""
    run = train(room, "fill", block_mib)
    assert run.process.stdout is not None and run.process.stdin is not None
    facts = json.loads(run.process.stdout.readline() or pytest.fail(run.errors))
    held_mib = used(room) / 2**20
    run.process.stdin.write("go\n")
    run.process.stdin.flush()
    after = run.facts(timeout_s=200)

    assert "CUDA out of memory" in facts["error"]
    assert 4096 == facts["total_mib"]
    # PyTorch takes small blocks from the driver in pieces of 20 MiB.
    assert 4096 - max(block_mib, 20) - 2 <= held_mib <= 4096, facts
    assert after["kernels"] > 0
