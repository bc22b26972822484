"""What a tenant sees of the GPU through NVML: `view.py OUT`. Runs beside a busy neighbour and rests."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from pathlib import Path


def main() -> None:
    """A context, a little rest, then every list of processes and the utilisation."""
    import pynvml as n
    from cuda.bindings import driver as d

    d.cuInit(0)
    d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
    time.sleep(1.5)
    n.nvmlInit()
    device = n.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.UUID(bytes=bytes(d.cuDeviceGetUuid_v2(0)[1].bytes))}")

    def pids(call, *arguments) -> list[int] | str:
        try:
            return [row if isinstance(row, int) else row.pid for row in call(device, *arguments)]
        except n.NVMLError as error:
            return str(error)

    facts = {
        "pid": os.getpid(),
        "processes": pids(n.nvmlDeviceGetComputeRunningProcesses),
        "samples": pids(n.nvmlDeviceGetProcessUtilization, 0),
        "accounts": pids(n.nvmlDeviceGetAccountingPids),
        "total_mib": n.nvmlDeviceGetMemoryInfo(device).total >> 20,
    }
    try:
        facts["gpu_percent"] = n.nvmlDeviceGetUtilizationRates(device).gpu
    except n.NVMLError as error:
        facts["gpu_percent"] = str(error)
    Path(sys.argv[1]).write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
