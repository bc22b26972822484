"""What the driver counts for a tenant, contexts and all, against what it was given."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

from aliquot.driver.allowance import context_allowance_mib
from aliquot.standalone.engine import Engine

from .conftest import eventually

FULL = Path(__file__).resolve().parents[2] / "gpu" / "programs" / "full.py"
LIMIT_MIB = 2048


def used_mib(libnvml: Path) -> int:
    """MiB in use of the first GPU by anybody."""
    nvml, device = ctypes.CDLL(str(libnvml)), ctypes.c_void_p()
    total_free_used = (ctypes.c_uint64 * 3)()
    assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, total_free_used) == 0
    return total_free_used[2] >> 20


def test_a_tenant_that_takes_all_it_can_at_once_stays_within_its_limit(tmp_path):
    """Context, heap, pooled, physical and linear memory together are never a byte over, from the first moment on."""
    out = tmp_path / "out.json"
    with Engine.start(emulate="v100") as engine:
        argv = [sys.executable, str(FULL), str(out)]
        tenant = engine.spawn("t", argv, request_milli=500, memory_mib=LIMIT_MIB)
        eventually(lambda: out.exists() and out.read_text() != "", "the program is full", 60)
        held_mib = used_mib(engine.machine.libnvml)
        facts = json.loads(out.read_text())
        tenant.kill()
        tenant.wait()

    assert held_mib <= LIMIT_MIB
    assert held_mib > LIMIT_MIB - 64, facts


def test_the_allowance_leaves_room_to_run():
    """A known model's context is charged in full, another's by a guess, a small tenant's up to half its memory."""
    assert context_allowance_mib("Tesla V100-SXM2-16GB", 4096) == 300
    assert context_allowance_mib("NVIDIA Something New", 4096) == 300
    assert context_allowance_mib("Tesla V100-SXM2-16GB", 256) == 128
