"""Memory: every entry point that allocates stays under the limit, and what is freed is given back to the byte."""

import re
import struct
import time
import tomllib
from pathlib import Path

import pytest
from kit.driver_calls import MIB, OUT_OF_MEMORY, WAYS, Answer, Out
from kit.driver_process import DriverProcess
from waiting import eventually

from aliquot.arbiter.abi import MessageType

SYMBOLS = Path(__file__).resolve().parents[3] / "native" / "symbols"
LIMIT_MIB = 256
LIMIT = LIMIT_MIB * MIB
NVML_NO_PERMISSION = 4


@pytest.mark.parametrize("mode", ["library-path", "preload"])
@pytest.mark.parametrize("way", WAYS)
def test_over_the_limit_is_out_of_memory_and_frees_are_exact(tenant, way, mode):
    """One granule over the limit is OUT_OF_MEMORY, the limit itself fits, and freeing leaves the ledger as it was."""
    gpu = tenant(memory_mib=LIMIT_MIB, auto_grant=True).gpu(mode=mode)

    over, within = gpu.allocate(way, LIMIT + 2 * MIB), gpu.allocate(way, LIMIT)
    held = gpu.charged()
    freed = gpu.free(way, within.value)
    end = gpu.counters()

    assert (OUT_OF_MEMORY, 0, 0) == (over.code, within.code, freed)
    assert (LIMIT, 0) == (held, end["reserved_bytes"])
    assert end["leased_bytes"] == end["unused_bytes"] <= 128 * MIB


def test_a_context_is_charged_once_however_threads_retain_and_reset_it(tenant):
    """Threads that retain, release and reset the primary context at the same time leave nothing charged."""
    scene = tenant(memory_mib=4096, context_mib=300)
    driver = scene.driver()
    driver.ok("cuInit", 0)
    calls = []
    for _ in range(400):
        for name in ("a", "b", "c"):
            calls.append(driver.on(name).begin("cuDevicePrimaryCtxRetain", Out(), 0))
            calls.append(driver.on(name).begin("cuDevicePrimaryCtxRelease_v2", 0))
        calls.append(driver.on("reset").begin("cuDevicePrimaryCtxReset_v2", 0))
    for call in calls:
        call.answer()

    driver.code("cuDevicePrimaryCtxReset_v2", 0)
    eventually(lambda: scene.arbiter.contexts[0] == 0, "RELEASE, which has no answer")
    driver.call("cuDevicePrimaryCtxRetain", Out(), 0)

    assert 1 == scene.arbiter.contexts[0]


def test_a_context_over_the_limit_is_out_of_memory(tenant):
    """A context whose allowance does not fit is refused as OUT_OF_MEMORY."""
    assert OUT_OF_MEMORY == tenant(memory_mib=64, context_mib=300).driver().open()


def test_contexts_are_charged_and_given_back(tenant):
    """A context costs its allowance once and gives it back when the last reference goes."""
    scene = tenant(memory_mib=1024, context_mib=300)
    gpu = scene.gpu()
    gpu.new("cuDevicePrimaryCtxRetain", 0)
    charged = scene.arbiter.contexts[0]
    for _ in range(2):
        gpu.ok("cuDevicePrimaryCtxRelease_v2", 0)
    scene.arbiter.wait_for(MessageType.RELEASE)

    assert (1, 0) == (charged, scene.arbiter.contexts[0])


def test_a_gpu_of_others_has_no_memory(tenant):
    """On a GPU that the tenant was not given, a context fails with OUT_OF_MEMORY."""
    driver = tenant(spec="v100x2", owned=1).driver()

    assert [0, OUT_OF_MEMORY] == [driver.open(device) for device in (0, 1)]


def test_the_tenant_sees_its_own_memory(tenant):
    """cuMemGetInfo, cuDeviceTotalMem and NVML show the limit and what is left of it."""
    gpu = tenant(memory_mib=LIMIT_MIB, context_mib=16).gpu()
    gpu.allocate("linear", 100 * MIB)
    left = LIMIT - 116 * MIB
    gpu.call("cuMemGetInfo_v2", None, None)
    gpu.ok("nvmlInit_v2")
    handle = gpu.call("nvmlDeviceGetHandleByIndex_v2", 0, Out())
    total, _, used = struct.unpack("3Q", gpu.call("nvmlDeviceGetMemoryInfo", handle.value, Out(24)).value)

    assert (left, LIMIT) == gpu.memory_info() == gpu.call("cuMemGetInfo", Out(4), Out(4)).values
    assert LIMIT == gpu.call("cuDeviceTotalMem_v2", Out(), 0).value == gpu.call("cuDeviceTotalMem", Out(4), 0).value
    assert (0, LIMIT, 116 * MIB) == (handle.code, total, used)
    assert NVML_NO_PERMISSION == gpu.code("nvmlDeviceSetComputeMode", handle.value, 0)


def test_the_ledger_survives_a_restart_of_the_arbiter(tenant):
    """After the arbiter came back the process tells it what it holds; the program sees no error."""
    scene = tenant(memory_mib=LIMIT_MIB)
    gpu = scene.gpu()
    gpu.allocate("linear", 100 * MIB)
    scene.arbiter.stop()
    time.sleep(0.1)
    restarted = len(scene.arbiter.heard)
    scene.arbiter.start()

    assert 0 == gpu.allocate("linear", 50 * MIB).code
    scene.arbiter.wait_for(MessageType.RESERVE, since=restarted)
    eventually(lambda: scene.arbiter.leased[0] >= 150 * MIB, "the arbiter knows of both")


def from_gpu_1(gpu: DriverProcess, way: str) -> Answer:
    """Ask for 40 MiB of GPU 1 while GPU 0 is current."""
    there, other = gpu.stream, gpu.call("cuDevicePrimaryCtxRetain", Out(), 1)
    if not other.code:
        gpu.ok("cuCtxSetCurrent", other.value)
        there = gpu.new("cuStreamCreate", 1)
        gpu.ok("cuCtxSetCurrent", gpu.context)
    match way:
        case "stream":
            return gpu.call("cuMemAllocAsync", Out(), 40 * MIB, there)
        case "handle":
            return gpu.create(40 * MIB, device=1)
        case "made-pool":
            pool = gpu.new_pool(device=1)
        case _:
            pool = gpu.new("cuDeviceGetDefaultMemPool", 1)
    return gpu.call("cuMemAllocFromPoolAsync", Out(), 40 * MIB, pool, there)


@pytest.mark.parametrize("way", ["stream", "made-pool", "default-pool", "handle"])
def test_the_gpu_that_gives_the_memory_pays(tenant, way):
    """With GPU 0 current, memory of GPU 1 is charged to GPU 1; on a GPU of others there is none."""
    scene = tenant(spec="v100x2", memory_mib=LIMIT_MIB)

    assert 0 == from_gpu_1(scene.gpu(), way).code
    scene.arbiter.wait_for(MessageType.RESERVE)
    assert scene.arbiter.leased[0] == 0
    assert scene.arbiter.leased[1] >= 40 * MIB


@pytest.mark.parametrize("way", ["made-pool", "default-pool", "handle"])
def test_a_gpu_of_others_gives_no_memory_by_any_way(tenant, way):
    """A tenant of GPU 0 gets OUT_OF_MEMORY for memory of GPU 1, however it is asked for."""
    assert OUT_OF_MEMORY == from_gpu_1(tenant(spec="v100x2", owned=1, memory_mib=LIMIT_MIB).gpu(), way).code


# Names that look like an allocation and are none: host memory, addresses without memory, handles of what is paid for by
# its owner, objects that the arbiter's measurement covers.
NOT_DEVICE_MEMORY = re.compile(
    r"Host|Granularity|Properties|Import|Ipc|GetParams|TensorMap|Event|Stream|TexObject|SurfObject|TexRef|UserObject|"
    r"Conditional|Semaphore|LoadingMode|IsLoaded|FuncLoad|LinkCreate|GraphCreate|RetainUserObject|LogicalEndpoint|VDPAU"
)
LOOKS_LIKE_ONE = re.compile(r"^cu.*(Alloc|Create(_v\d)?$|Load|CtxRetain|SetLimit|GraphAddNode)")


def test_every_function_that_allocates_is_intercepted():
    """Of all names in the driver's table that look like an allocation of device memory, each has a hook with a body."""
    hooks = tomllib.loads((SYMBOLS / "hooks.toml").read_text())
    rows = [line.split("\t") for line in (SYMBOLS / "cuda.tsv").read_text().splitlines()[1:] if line]
    symbols = {re.sub(r"_(ptsz|ptds)$", "", row[3]) for row in rows}
    wanted = {s for s in symbols if LOOKS_LIKE_ONE.search(s) and not NOT_DEVICE_MEMORY.search(s)}
    bodies = {name for name, hook in hooks.items() if hooks[hook.get("like", name)].get("kind") == "body"}

    assert len(wanted) > 30
    assert wanted - bodies == set()
