"""Shares and memory that change while CUDA programs run under the hook: no launch and no promised byte is refused."""

import json
import random
import subprocess
import sys

import msgspec
import pytest
from waiting import eventually

from aliquot.arbiter.client import TenantGpu, TenantRecord
from aliquot.driver.injection import TenantConf, provision
from aliquot.driver.native import HOOK, native_part

THREADS = 16
STEP_MIB, MOST = 4, 6
KEPT_MIB = THREADS * STEP_MIB * MOST
"""What the threads together hold at most; every limit leaves them that, and some for their module."""
ASKER = """
import ctypes, json, sys
L = ctypes.CDLL("libcuda.so.1"); L.cuInit(0); c = ctypes.c_void_p(); p = ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert L.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == L.cuCtxSetCurrent(c) == 0
N = ctypes.CDLL("libnvidia-ml.so.1"); device, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
assert N.nvmlInit_v2() == N.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
held = []
for line in sys.stdin:
    verb, mib = line.split(); mib = int(mib); said = 0
    if verb == "alloc":
        said = L.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(mib << 20))
        held += [p.value] * (not said)
    elif verb == "free":
        said = L.cuMemFree_v2(ctypes.c_uint64(held.pop()))
    assert L.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    assert N.nvmlDeviceGetMemoryInfo(device, memory) == 0
    print(json.dumps([said, free.value >> 20, total.value >> 20, memory[0] >> 20]), flush=True)
"""
BUSY = f"""
import ctypes, json, random, sys, threading
from pathlib import Path
PTX = b'.version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry spin_ns(.param .u64 ns) {{ ret; }}\\n\\0'
L = ctypes.CDLL("libcuda.so.1"); L.cuInit(0); c = ctypes.c_void_p(); end = threading.Event()
assert L.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0) == L.cuCtxSetCurrent(c) == 0
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert L.cuModuleLoadData(ctypes.byref(module), PTX) == 0
assert L.cuModuleGetFunction(ctypes.byref(function), module, b"spin_ns") == 0
counts = dict(launches=0, allocations=0, failed_launches=0, refused=0, failed=0); lock = threading.Lock()
def work(seed):
    draw, held, mine = random.Random(seed), [], dict.fromkeys(counts, 0)
    L.cuCtxSetCurrent(c)
    ns, one = ctypes.c_uint64(20_000), ctypes.c_uint(1)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
    while not end.is_set():
        if held and (len(held) == {MOST} or draw.random() < 0.5):
            mine["failed"] += L.cuMemFree_v2(held.pop(draw.randrange(len(held)))) != 0
        else:
            p = ctypes.c_uint64()
            said = L.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(draw.randint(1, {STEP_MIB} << 20)))
            mine["allocations"] += 1; mine["refused"] += said == 2; mine["failed"] += said not in (0, 2)
            held += [p] * (not said)
        mine["launches"] += 1
        mine["failed_launches"] += L.cuLaunchKernel(function, one, one, one, one, one, one, 0, None, params, None) != 0
    mine["failed"] += sum(L.cuMemFree_v2(p) != 0 for p in held)
    with lock:
        for name in counts: counts[name] += mine[name]
threads = [threading.Thread(target=work, args=(seed,)) for seed in range({THREADS})]
for thread in threads: thread.start()
Path(sys.argv[1]).write_text("going")
sys.stdin.read(); end.set()
for thread in threads: thread.join()
Path(sys.argv[1]).write_text(json.dumps(counts))
"""


@pytest.fixture
def resizable(stage):
    """A stage, a tenant's folder, and a function that resizes the tenant."""
    scene = stage()
    record = TenantRecord("t", str(scene.directory / "t.sock"), [TenantGpu(scene.gpu, 300, 600, 1024)])
    scene.admin.add_tenant(record)
    conf = TenantConf("t", scene.directory / "t.sock", scene.machine.libcuda, scene.machine.libnvml)
    folder = provision(scene.directory / "t", conf, native_part(HOOK))

    def resize(**sizes: int) -> None:
        scene.admin.resize_tenant(
            msgspec.structs.replace(record, gpus=[msgspec.structs.replace(record.gpus[0], **sizes)])
        )

    return scene, folder, resize


def test_a_program_sees_and_gets_what_it_has_now(resizable, tmp_path):
    """cuMemGetInfo and NVML have the new total; after growth more is allocated, after a shrink what it held stays."""
    scene, folder, resize = resizable
    out = tmp_path / "said"
    client = scene.program(
        folder, ["/bin/sh", "-c", f'exec "{sys.executable}" -c "$1" >{out}', "sh", ASKER], "asker",
        stdin=subprocess.PIPE,
    )  # fmt: skip
    answers = 0

    def ask(verb: str, mib: int = 0) -> list[int]:
        nonlocal answers
        client.process.stdin.write(f"{verb} {mib}\n".encode())
        client.process.stdin.flush()
        answers += 1
        eventually(lambda: out.exists() and len(out.read_text().splitlines()) == answers, client.said, 30)
        return json.loads(out.read_text().splitlines()[-1])

    _, free, total, nvml = ask("look")
    assert (1024, 1024) == (total, nvml)
    assert 2 == ask("alloc", 1500)[0]
    resize(memory_mib=2048)
    said, free, total, nvml = ask("alloc", 1500)
    assert (0, 2048, 2048) == (said, total, nvml)
    resize(memory_mib=512)
    eventually(lambda: scene.seen("t").memory_used_mib <= 2048 - free)
    said, free, total, nvml = ask("alloc", 1)
    assert (2, 0) == (said, free)
    assert 1500 <= total == nvml <= 2048
    assert 0 < scene.seen("t").memory_pending_mib
    assert 0 == ask("free")[0]
    eventually(lambda: scene.seen("t").memory_pending_mib == 0)
    said, free, total, nvml = ask("alloc", 100)
    assert (0, 512, 512) == (said, total, nvml)
    assert 2 == ask("alloc", 500)[0]


def test_a_thousand_resizes_refuse_nothing_that_was_promised(resizable, tmp_path):
    """While 16 threads allocate within what every limit leaves them and launch, 1,000 resizes fail nothing of it."""
    scene, folder, resize = resizable
    out, draw = tmp_path / "counts", random.Random(1)
    resize(memory_mib=4096)
    client = scene.program(folder, [sys.executable, "-c", BUSY, str(out)], "busy", stdin=subprocess.PIPE)
    eventually(lambda: out.exists() or client.process.poll() is not None, "its threads run", 30)
    least_mib = KEPT_MIB + 32
    for number in range(1000):
        request = draw.randint(0, 900)
        resize(
            request_milli=request,
            limit_milli=draw.randint(max(request, 50), 1000),
            memory_mib=draw.randint(least_mib, 4096),
        )
        if number % 50 == 0:
            seen = scene.seen("t")
            assert seen.memory_used_mib <= seen.memory_limit_mib + seen.memory_pending_mib
    resize(request_milli=500, limit_milli=1000, memory_mib=least_mib)
    eventually(lambda: scene.seen("t").memory_pending_mib == 0, "unused leases come back", 30)
    client.process.stdin.close()
    client.process.wait(30)

    counts = json.loads(out.read_text())
    assert (0, 0, 0) == (counts["failed_launches"], counts["refused"], counts["failed"]), counts
    assert counts["launches"] > 1000 < counts["allocations"]
    assert 0 == scene.seen("t").memory_refusals
