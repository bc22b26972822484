"""What the driver counts for a tenant, contexts and all, against what it was given."""

import json
import sys
from pathlib import Path

import pytest
from kit.hooked_tenant import device_bytes
from spawning import engine_of, spawn
from waiting import eventually

from aliquot.tenancy.records import context_allowance_mib

FULL = Path(__file__).resolve().parents[2] / "gpu" / "programs" / "full.py"
LIMIT_MIB = 2048


def test_a_tenant_that_takes_all_it_can_at_once_stays_within_its_limit(tmp_path):
    """Context, heap, pooled, physical and linear memory together are never a byte over, from the first moment on."""
    out = tmp_path / "out.json"
    with engine_of("v100") as engine:
        argv = [sys.executable, str(FULL), str(out)]
        tenant = spawn(engine, "t", argv, request_milli=500, memory_mib=LIMIT_MIB)
        eventually(lambda: out.exists() and out.read_text() != "", "the program is full", 60)
        held_mib = device_bytes(engine.machine.libnvml) >> 20
        facts = json.loads(out.read_text())
        tenant.kill()
        tenant.wait()

    assert held_mib <= LIMIT_MIB
    assert held_mib > LIMIT_MIB - 64, facts


RIVALS = """
import ctypes, json, os, sys, time
out, rivals = sys.argv[1], 2
gate, gate_in = os.pipe()
answers, answers_in = os.pipe()
for _ in range(rivals):
    if os.fork() == 0:
        lib, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        lib.cuInit(0)
        os.write(answers_in, b"ready")
        os.read(gate, 1)
        code = lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        os.write(answers_in, bytes([code]))
        time.sleep(60)
ready = b""
while len(ready) < 5 * rivals: ready += os.read(answers, 64)
os.write(gate_in, b"go")
codes = b""
while len(codes) < rivals: codes += os.read(answers, 64)
open(out, "w").write(json.dumps(sorted(codes)))
time.sleep(60)
"""


@pytest.mark.parametrize(("limit_mib", "codes"), [(200, [2, 2]), (400, [0, 2]), (600, [0, 0])])
def test_contexts_that_are_made_at_the_same_time_stay_within_the_limit(tmp_path, limit_mib, codes):
    """A context that does not fit is OUT_OF_MEMORY from the call that makes it, also when two processes make theirs."""
    out = tmp_path / "out.json"
    with engine_of("v100") as engine:
        argv = [sys.executable, "-c", RIVALS, str(out)]
        tenant = spawn(engine, "t", argv, request_milli=500, memory_mib=limit_mib)
        eventually(lambda: out.exists() and out.read_text() != "", "both have been answered", 60)
        held_mib, answers = device_bytes(engine.machine.libnvml) >> 20, json.loads(out.read_text())
        tenant.kill()
        tenant.wait()

    assert codes == answers
    assert held_mib <= limit_mib


def test_a_known_models_context_is_charged_in_full_and_a_guess_leaves_room_to_run():
    """What a model's context takes is charged whole; a guess is at most half of the tenant's memory."""
    assert context_allowance_mib("Tesla V100-SXM2-16GB", 256) == 300
    assert context_allowance_mib("NVIDIA Something New", 4096) == 300
    assert context_allowance_mib("NVIDIA Something New", 256) == 128
