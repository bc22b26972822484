"""`aliquot bench slowdown`: what being shared costs (KubeShare Fig. 7).

Method: one client runs kernels of 2 ms, a few ahead, and its rate of completed kernels is taken over `seconds`: first
without Aliquot, on the driver itself, then alone under the hook with the whole GPU as its request: `alone_percent` is
how much slower that is. Then two such clients with half of the GPU each run at a fixed quota of 30, 60, 100 and 160 ms;
the slowdown is one minus the sum of their rates, each as a part of its lone rate under the hook.

Below zero means faster: within noise, or two clients filling each other's gaps.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from aliquot.bench.fig6 import Ask, Tenant
from aliquot.bench.figures import slowdown_percent
from aliquot.bench.scene import Client, Scene, default_emulation, scene, start_all

QUOTAS_MS: Final = (30, 60, 100, 160)
SECONDS: Final = 8.0
_OPTIONS: Final = ("steady", "--kernel-ms", "2")


def rates(clients: Sequence[Client], seconds: float) -> list[float]:
    """Completed kernels per second of each client over the same stretch of time."""
    first = [client.totals for client in clients]
    time.sleep(seconds)
    last = [client.totals for client in clients]
    pairs = zip(first, last, strict=True)
    return [(b.completed - a.completed) * 1e9 / (b.at_ns - a.at_ns) for a, b in pairs if a and b]


def bare_rate(emulate: str | None, seconds: float) -> float:
    """The rate without Aliquot."""
    from aliquot.standalone.machine import find_machine

    with tempfile.TemporaryDirectory(prefix="aliquot-bench-") as name:
        directory = Path(name)
        machine = find_machine(emulate or default_emulation(), directory / "machine")
        env = _environment(machine.libcuda.parent if machine.emulated else None)
        progress = directory / "bare.progress"
        argv = [sys.executable, "-m", "aliquot.bench.client", *_OPTIONS, "--progress", str(progress)]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
        client = Client(Tenant("bare"), process, progress)
        try:
            client.wait_ready()
            time.sleep(1)
            return rates([client], seconds)[0]
        finally:
            client.end()


def _environment(libraries: Path | None) -> dict[str, str] | None:
    """This process's environment, with a folder of libraries first when one is given."""
    return None if libraries is None else dict(os.environ) | {"LD_LIBRARY_PATH": str(libraries)}


def _alone(stage: Scene, seconds: float) -> float:
    (client,) = start_all(stage, [(Tenant("alone"), Ask(1000, 1000, 1024), _OPTIONS)])
    time.sleep(1)
    rate = rates([client], seconds)[0]
    stage.end(client.tenant)
    return rate


def slowdown(emulate: str | None, quotas_ms: Sequence[int] = QUOTAS_MS, seconds: float = SECONDS) -> dict[str, Any]:
    """Alone and at each quota, in percent."""
    bare = bare_rate(emulate, seconds)
    with scene(emulate) as stage:
        alone = _alone(stage, seconds)
        gpu, emulated = stage.gpu, stage.emulated
    cases = []
    half = Ask(500, 1000, 1024)
    for quota_ms in quotas_ms:
        with scene(emulate, quota="fixed", quota_ms=quota_ms) as stage:
            clients = start_all(stage, [(Tenant(name), half, _OPTIONS) for name in ("t0", "t1")])
            time.sleep(2)
            together = sum(rates(clients, seconds))
        cases.append({"quota_ms": quota_ms, "slowdown_percent": round(slowdown_percent(alone, together), 2)})
    return {
        "alone_percent": round(slowdown_percent(bare, alone), 2),
        "quota": cases,
        "emulated": emulated,
        "gpu": gpu,
    }
