"""Shares and memory that change while CUDA programs run under the hook: no launch and no promised byte is refused."""

import json
import random
import subprocess
import sys

import msgspec
import pytest
from kit.driver_calls import MIB, OUT_OF_MEMORY, Out
from waiting import eventually

from aliquot.arbiter.client import TenantGpu, TenantRecord
from aliquot.driver.injection import TenantConf, provision
from aliquot.driver.native import HOOK, native_part

THREADS = 16
STEP_MIB, MOST = 4, 6
KEPT_MIB = THREADS * STEP_MIB * MOST
"""What the threads together hold at most; every limit leaves them that, and some for their module."""
BUSY = f"""
import json, random, sys, threading
from pathlib import Path
from kit.driver_calls import OwnDriver
gpu, end, lock = OwnDriver(), threading.Event(), threading.Lock()
assert gpu.open() == 0
function = gpu.function()
counts = dict(launches=0, allocations=0, failed_launches=0, refused=0, failed=0)
def work(seed):
    draw, held, mine = random.Random(seed), [], dict.fromkeys(counts, 0)
    gpu.ok("cuCtxSetCurrent", gpu.context)
    while not end.is_set():
        if held and (len(held) == {MOST} or draw.random() < 0.5):
            mine["failed"] += gpu.code("cuMemFree_v2", held.pop(draw.randrange(len(held)))) != 0
        else:
            said, (pointer,) = gpu.allocate("linear", draw.randint(1, {STEP_MIB} << 20))
            mine["allocations"] += 1
            mine["refused"] += said == 2
            mine["failed"] += said not in (0, 2)
            held += [pointer] * (not said)
        mine["launches"] += 1
        mine["failed_launches"] += gpu.launch(function, 20_000) != 0
    mine["failed"] += sum(gpu.code("cuMemFree_v2", pointer) != 0 for pointer in held)
    with lock:
        for name in counts:
            counts[name] += mine[name]
threads = [threading.Thread(target=work, args=(seed,)) for seed in range({THREADS})]
for thread in threads:
    thread.start()
Path(sys.argv[1]).write_text("going")
sys.stdin.read()
end.set()
for thread in threads:
    thread.join()
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


def test_a_program_sees_and_gets_what_it_has_now(resizable):
    """cuMemGetInfo and NVML have the new total; after growth more is allocated, after a shrink what it held stays."""
    scene, folder, resize = resizable
    gpu = scene.driver(folder)
    gpu.ok("nvmlInit_v2")
    device = gpu.call("nvmlDeviceGetHandleByIndex_v2", 0, Out()).value

    def seen() -> list[int]:
        """MiB that are free and in all, and in all by NVML."""
        by_nvml = int.from_bytes(gpu.call("nvmlDeviceGetMemoryInfo", device, Out(24)).value[:8], "little")
        return [size // MIB for size in (*gpu.memory_info(), by_nvml)]

    assert [1024, 1024] == seen()[1:]
    assert OUT_OF_MEMORY == gpu.allocate("linear", 1500 * MIB).code
    resize(memory_mib=2048)
    large = gpu.allocate("linear", 1500 * MIB)
    free, total, nvml = seen()
    assert (0, 2048, 2048) == (large.code, total, nvml)
    resize(memory_mib=512)
    eventually(lambda: scene.seen("t").memory_used_mib <= 2048 - free)
    assert OUT_OF_MEMORY == gpu.allocate("linear", MIB).code
    free, total, nvml = seen()
    assert 0 == free and 1500 <= total == nvml <= 2048
    assert 0 < scene.seen("t").memory_pending_mib
    gpu.ok("cuMemFree_v2", large.value)
    eventually(lambda: scene.seen("t").memory_pending_mib == 0)
    assert 0 == gpu.allocate("linear", 100 * MIB).code
    assert [512, 512] == seen()[1:]
    assert OUT_OF_MEMORY == gpu.allocate("linear", 500 * MIB).code


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
