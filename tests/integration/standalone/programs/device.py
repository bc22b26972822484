"""What a device itself says of its memory: prints {UUID: [MiB used, [pids]]}; `device.py LIBNVIDIA-ML`."""

import ctypes
import json
import sys


class Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint))


nvml = ctypes.CDLL(sys.argv[1])
assert nvml.nvmlInit_v2() == 0
found, count = {}, ctypes.c_uint()
assert nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
for index in range(count.value):
    device, memory, uuid = ctypes.c_void_p(), (ctypes.c_uint64 * 3)(), ctypes.create_string_buffer(96)
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0
    assert nvml.nvmlDeviceGetUUID(device, uuid, 96) == 0
    assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
    processes, number = (Process * 64)(), ctypes.c_uint(64)
    assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(number), processes) == 0
    found[uuid.value.decode()] = [memory[2] >> 20, [processes[i].pid for i in range(number.value)]]
print(json.dumps(found))
