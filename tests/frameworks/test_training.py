"""Unmodified PyTorch trains with its part of a GPU: `aliquot run --emulate h100 ... -- python train.py`."""

import ctypes
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from conftest import HERE, PROGRAMS
from environments import python
from gpuruns import Room, Run

SHARE = ("--gpu-request", ".3", "--gpu-limit", ".6", "--gpu-mem", "4Gi")
SLOW = 1000  # kernels of 10 ms: the GPU is what a step waits for, however busy the machine is
WINDOW_S = 10.0  # of the arbiter
START_S = 300  # a busy machine takes that long to import PyTorch and what its optimizers import with the first one


def train(room: Room, way: str, *words: object) -> Run:
    """Starts train.py."""
    argv = [python("cuda13"), HERE / "clients" / "train.py", *map(str, words)]
    path = f"PYTHONPATH={HERE / 'clients'}:{PROGRAMS}"
    return room.start(way, ["env", path, f"ALIQUOT_EMULATOR_FAULTS=slow={SLOW}", *argv], share=SHARE)


def said(run: Run) -> dict[str, Any]:
    """The next line of train.py."""
    assert run.process.stdout is not None
    return dict(json.loads(run.process.stdout.readline() or pytest.fail(run.errors)))


def usage(room: Room, request_milli: int) -> float:
    """What `aliquot top` shows as the usage of the tenant with this request."""
    env = os.environ | {"ALIQUOT_RUNTIME_DIR": str(room.runtime)}
    words = [sys.executable, "-m", "aliquot.cli", "top", "-o", "json"]
    gpu = json.loads(subprocess.run(words, env=env, check=True, capture_output=True).stdout)["gpus"][0]
    (found,) = (tenant["usage"] for tenant in gpu["tenants"] if tenant["request_milli"] == request_milli)
    return float(found)


def used(room: Room) -> int:
    """Bytes of the GPU in use by the emulated driver's own ledger, read outside of any tenant."""
    library = next(path for path in room.runtime.rglob("libnvidia-ml.so.1") if (path.parent / "emulator.conf").exists())
    nvml, device, memory = ctypes.CDLL(str(library)), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    assert 0 == nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
    assert 0 == nvml.nvmlDeviceGetMemoryInfo(device, memory)
    return memory[2]


@pytest.fixture(scope="module")
def lone_steps_per_s() -> float:
    """Steps a second of the same program with the GPU to itself, without Aliquot, while it has a processor."""
    room = Room("h100")
    try:
        facts = train(room, "alone", "loop", WINDOW_S, 1).facts(timeout_s=START_S)
    finally:
        room.close()
    return facts["steps"] / (facts["seconds"] - facts["waited_s"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("neighbour", [True, False], ids=["beside-a-neighbour", "alone"])
def test_training_gets_the_share_that_it_is_due(room: Room, lone_steps_per_s: float, neighbour: bool):
    """Training gets its request beside a busy neighbour, else its limit, in `aliquot top` and in steps.

    The driver was given as many launches as the gate let through.
    What it is charged and makes no steps of is time in which its threads had the token and no processor to run on.
    """
    due, over = (0.3, 0.02) if neighbour else (0.6, 0.03)
    if neighbour:
        beside = [sys.executable, "-m", "aliquot_lab.bench.client", "steady", "--progress", room.folder / "beside"]
        room.start("library-path", beside, share=("--gpu-request", ".69", "--gpu-mem", "1Gi"))
    run = train(room, "substitute", "loop", 2 * WINDOW_S, 1.2 * WINDOW_S)
    facts = said(run) | {"usage": usage(room, 300), "lone": lone_steps_per_s}
    share = facts["steps"] / facts["seconds"] / lone_steps_per_s
    print(f"share {share:.4f}", facts)

    waited = facts["waited_s"] / facts["seconds"]
    assert due - 0.02 - waited <= share <= due + over, facts
    assert due - 0.02 <= facts["usage"] <= share + 0.02 + waited, facts
    assert facts["launches"]["gate"] >= facts["launches"]["emulator"] > facts["kernels"], facts  # fills pass it too


@pytest.mark.timeout(900)
@pytest.mark.parametrize("block_mib", [2, 64, 512])
def test_training_runs_out_of_memory_at_its_limit_and_goes_on(room: Room, block_mib: int):
    """OutOfMemoryError comes when no further block fits into 4 GiB with the context; the device holds no more."""
    run = train(room, "substitute", "fill", block_mib)
    facts = said(run)
    held_mib = used(room) / 2**20
    print(f"held {held_mib} MiB", facts)
    assert run.process.stdin is not None
    run.process.stdin.write("go\n")
    run.process.stdin.flush()
    after = run.facts(timeout_s=START_S)

    assert "CUDA out of memory" in facts["error"]
    assert 4096 == facts["total_mib"]
    assert held_mib / 1024 >= 3.9 or block_mib > 100, facts
    # PyTorch takes small blocks from the driver in pieces of 20 MiB.
    assert 4096 - max(block_mib, 20) - 2 <= held_mib <= 4096, facts
    assert facts["refused_s"] < 2, facts
    assert after["steps"] > 0
    assert after["launches"]["gate"] >= after["launches"]["emulator"] > 0, after
