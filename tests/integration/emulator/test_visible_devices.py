"""CUDA_VISIBLE_DEVICES on an emulated machine: which devices CUDA shows, and that the GPUs behind them are the same."""

import pytest

SHOWN = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, device, uuids = ctypes.c_int(), ctypes.c_int(), []
status = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
for ordinal in range(count.value):
    raw = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    cuda.cuDeviceGetUuid_v2(raw, device)
    uuids.append(bytes(raw).hex())
answer([status, uuids])
"""
NO_DEVICE = 100


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        ("{2}", [2]),
        ("{1},0", [1, 0]),
        ("{1:12}", [1]),
        ("1,7,0", [1]),
        ("0,none,1", [0]),
        ("", []),
        ("-1", []),
        ("0,0", []),
    ],
)
def test_the_list_says_which_devices_there_are(clients, value: str, expected: list[int]):
    """Devices are numbered by the list, which ends at its first wrong entry and is void with one named twice."""
    machine = clients("v100x3")
    uuids = machine.machine.uuids
    text = value.replace("{1:12}", uuids[1][:12])
    for index, uuid in enumerate(uuids):
        text = text.replace(f"{{{index}}}", uuid)

    status, seen = machine.run(SHOWN, CUDA_VISIBLE_DEVICES=text)

    assert [uuids[index].removeprefix("GPU-").replace("-", "") for index in expected] == seen
    assert (0 if expected else NO_DEVICE) == status


def test_a_gpu_keeps_its_memory_under_another_number(clients):
    """What one client takes of GPU 1, by whatever number, another one finds taken there and nowhere else."""
    machine = clients("v100x2")
    takes = machine.start(
        """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4 << 30)) == 0
print("taken", flush=True)
input()
answer(None)
""",
        CUDA_VISIBLE_DEVICES="1",
    )
    assert "taken\n" == takes.stdout.readline()

    free = machine.run(
        """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, free, total, found = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), []
cuda.cuInit(0)
for ordinal in range(2):
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    found.append(free.value >> 20)
answer(found)
"""
    )

    takes.communicate("\n", timeout=30)
    assert 16384 - 300 == free[0]
    assert 16384 - 4096 - 600 == free[1]
