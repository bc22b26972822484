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
    from aliquot.model.ids import TenantName
    from aliquot.model.requests import GpuRequest

    with scene(emulate) as stage:
        # The engine's own, or it takes them for what an earlier engine has left, and removes them.
        names = [TenantName(f"storm-{number}") for number in range(TENANTS)]
        tenants = [stage.engine.admit(name, GpuRequest(1000 // TENANTS)) for name in names]
        uuid = stage.engine.gpus[0].uuid.removeprefix("GPU-").replace("-", "")
        sockets = [str(tenant.folder.conf.socket) for tenant in tenants]
        argv = [str(native_part(PROGRAM, "aliquot_lab")), str(processes), uuid, *sockets]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S)
        for tenant in tenants:
            stage.engine.release(tenant)
        if done.returncode != 0:
            raise ClientFailed(f"storm: {done.stderr.strip() or done.stdout.strip() or 'no answer'}")
        seconds, registered = done.stdout.split()
        return {"processes": int(registered), "seconds": float(seconds), **stage.about}
