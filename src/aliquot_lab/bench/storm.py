"""`aliquot bench storm`: a thousand processes register at the same moment.

Method: ten tenants of a tenth of the GPU each get a socket at the arbiter. A C program (native/bench/storm.c) forks the
processes, a hundred per tenant, lets all of them connect at once and asks for each what the hook asks when a program
first touches CUDA: HELLO, then ATTACH, both answered, the second with a grant page. The time is from the start signal
until the last page has come. No CUDA context is made: a thousand of them would not fit any GPU.
"""

from __future__ import annotations

import subprocess
from typing import Any, Final

from aliquot.driver.native import native_part
from aliquot_lab.bench.scene import ClientFailed, scene

PROGRAM: Final = "bench/aliquot-bench-storm"
TENANTS: Final = 10
TIMEOUT_S: Final = 120


def storm(emulate: str | None, processes: int = 1000) -> dict[str, Any]:
    """How long until all processes are registered, in seconds.

    Raises:
        ClientFailed: not every process was served.
    """
    from aliquot.arbiter.records import TenantGpu, TenantRecord
    from aliquot.model.ids import GpuUuid

    with scene(emulate) as stage:
        arbiter, gpu = stage.engine.arbiter, stage.engine.gpus[0]
        # Beside the arbiter's own sockets: a socket's path is short by the kernel's rule.
        root = stage.engine.runtime.root
        sockets = [root / f"storm-{number}" for number in range(TENANTS)]
        for number, socket in enumerate(sockets):
            share = TenantGpu(GpuUuid(gpu.uuid), 1000 // TENANTS, 1000, 64)
            arbiter.add_tenant(TenantRecord(f"storm-{number}", str(socket), [share]))
        uuid = gpu.uuid.removeprefix("GPU-").replace("-", "")
        argv = [str(native_part(PROGRAM, "aliquot_lab")), str(processes), uuid, *map(str, sockets)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S)
        for number in range(TENANTS):
            arbiter.remove_tenant(f"storm-{number}")
        if done.returncode != 0:
            raise ClientFailed(f"storm: {done.stderr.strip() or done.stdout.strip() or 'no answer'}")
        seconds, registered = done.stdout.split()
        return {"processes": int(registered), "seconds": float(seconds), **stage.about}
