"""CUDA_VISIBLE_DEVICES on an emulated machine: which devices CUDA shows, and that the GPUs behind them are the same."""

import pytest
from kit.driver_calls import Out

GIB = 1 << 30
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

    driver = machine.driver(CUDA_VISIBLE_DEVICES=text)
    status = driver.code("cuInit", 0)
    count = 0 if status else driver.call("cuDeviceGetCount", Out(4)).value
    devices = [driver.call("cuDeviceGet", Out(4), ordinal).value for ordinal in range(count)]
    seen = [driver.call("cuDeviceGetUuid_v2", Out(16), device).value.hex() for device in devices]

    assert [uuids[index].removeprefix("GPU-").replace("-", "") for index in expected] == seen
    assert (0 if expected else NO_DEVICE) == status


def test_a_gpu_keeps_its_memory_under_another_number(clients):
    """What one client takes of GPU 1, by whatever number, another one finds taken there and nowhere else."""
    machine = clients("v100x2")
    machine.gpu(CUDA_VISIBLE_DEVICES="1").new("cuMemAlloc_v2", 4 * GIB)
    driver, free = machine.driver(), []
    for ordinal in range(2):
        driver.open(ordinal)
        free.append(driver.memory_info()[0] >> 20)

    assert 16384 - 300 == free[0]
    assert 16384 - 4096 - 600 == free[1]
