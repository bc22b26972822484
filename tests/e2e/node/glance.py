"""Runs in a container: tells as one line of JSON which GPUs and how much memory its driver shows, then stays.

With ctypes alone, so that many start quickly.
"""

import ctypes
import json
import os
import time

cuda = ctypes.CDLL("libcuda.so.1")
count, device, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
uuids, statuses = [], [cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))]
for ordinal in range(count.value):
    raw = (ctypes.c_ubyte * 16)()
    statuses += [cuda.cuDeviceGet(ctypes.byref(device), ordinal), cuda.cuDeviceGetUuid_v2(raw, device)]
    text = bytes(raw).hex()
    uuids.append(f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
statuses.append(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device))
seen = {"uuids": uuids, "total_mib": total.value >> 20, "statuses": statuses, "tenant": os.environ["ALIQUOT_TENANT"]}
print(json.dumps(seen), flush=True)
time.sleep(float(os.environ.get("STAY_S", "1000")))
