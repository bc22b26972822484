"""What every check starts from: the list of checks, an engine on this machine's GPU, tenants and their rates.

A check returns the figures it saw, raises `Missing` when this machine lacks what it needs, and `AssertionError` or any
other exception when the promise is not kept. Each runs in a process of its own (see run.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
EMULATE = os.environ.get("ALIQUOT_GPU_EMULATE") or None
PATIENCE = 3 if EMULATE else 1
"""How many times longer everything may take on an emulated GPU, whose machine may be small and busy."""
LIMIT_MIB = 8192
CHECKS: dict[str, tuple[int, Callable[[], dict[str, Any]]]] = {}


class Missing(Exception):
    """This machine lacks what the check needs; the text says what."""


def check(seconds: int, name: str = ""):
    """Register a check with its time-out."""

    def register(function):
        CHECKS[name or function.__name__] = (seconds, function)
        return function

    return register


def has(module: str) -> bool:
    """Whether a module can be imported, its parents included."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def need(*modules: str) -> None:
    """Skip unless these can be imported."""
    for module in modules:
        if not has(module):
            raise Missing(f"no {module}")


def need_compiler(framework: str) -> None:
    """Skip numba where it finds no NVVM, the compiler of the CUDA toolkit."""
    if framework != "numba":
        return
    from numba.cuda.cudadrv.error import NvvmSupportError
    from numba.cuda.cudadrv.nvvm import NVVM

    try:
        NVVM()
    except NvvmSupportError as why:
        raise Missing(f"numba finds no NVVM: {str(why).strip().splitlines()[0]}") from why


def need_mounts(injection: str) -> None:
    """Skip what is by substitution where this user may not have a mount namespace."""
    from aliquot.driver.injection import probe_substitution

    if injection == "substitute" and (why := probe_substitution()):
        raise Missing(f"no private mounts here: {why}")


def program(name: str, *arguments: object) -> list[str]:
    """The command of one of the programs beside this file."""
    return [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]


def together(*commands: Sequence[str]) -> list[str]:
    """One command that runs several as processes of one tenant."""
    return program("together", *(word for command in commands for word in ("--", *command)))


@contextmanager
def engine(**options: Any) -> Iterator[tuple[Any, Path]]:
    """An engine on the GPU, and a folder."""
    from spawning import engine_of

    with engine_of(EMULATE, **options) as running, tempfile.TemporaryDirectory(prefix="aliquot-gpu-") as at:
        yield running, Path(at)


@contextmanager
def bare() -> Iterator[dict[str, str]]:
    """The environment in which a program finds the driver without Aliquot."""
    if EMULATE is None:
        yield dict(os.environ)
        return
    from facts import emulated

    with tempfile.TemporaryDirectory(prefix="aliquot-bare-") as folder:
        yield emulated(EMULATE, Path(folder), "emulated")


def stress(folder: Path) -> str:
    """The program tests/native/stress.c, built where there is room."""
    source, made = Path(__file__).parents[1] / "native" / "stress.c", folder / "aliquot-stress"
    subprocess.run(["cc", "-O2", "-w", "-pthread", "-o", made, source, "-ldl"], check=True)
    return str(made)


def kernels(progress: Path, kernel_us: int) -> list[str]:
    """The command of a client that keeps kernels of one length ahead of the GPU."""
    from aliquot_lab.bench.scene import native_client

    return native_client("steady", str(kernel_us * 1000))(progress)


def spawn(running, name: str, argv: list[str], *, request=500, limit=1000, memory_mib=LIMIT_MIB, injection="auto"):
    """Start a program as a tenant."""
    import spawning

    return spawning.spawn(
        running,
        name,
        argv,
        None,
        request_milli=request,
        limit_milli=limit,
        memory_mib=memory_mib,
        injection=injection,
        enforce="all",
    )


@contextmanager
def neighbour(running, folder: Path, *, request: int = 500, kernel_us: int = 200) -> Iterator[Any]:
    """Another tenant that always has work, so that everybody else waits for turns."""
    progress = folder / "neighbour"
    busy = spawn(running, "neighbour", kernels(progress, kernel_us), request=request, memory_mib=2048)
    wait_ready([progress], [busy])
    try:
        yield busy
    finally:
        end(busy)


def end(*tenants) -> list[int]:
    """Ask tenants to end; their statuses."""
    for tenant in tenants:
        tenant.terminate()
    statuses = []
    for tenant in tenants:
        try:
            statuses.append(tenant.wait(20))
        except subprocess.TimeoutExpired:
            tenant.kill()
            statuses.append(tenant.wait(10))
    return statuses


def run_tenant(
    running, argv: list[str], *, injection: str = "auto", seconds: float = 90, held: Path | None = None, **ask: int
):
    """Run a program as a tenant to its end; what the arbiter charged it.

    A short program may be over between two looks at the arbiter. One that calls `driver.hold` on the file `held`
    stays until both its time and its context were seen, 5 s at most.
    """
    tenant = spawn(running, "t", argv, injection=injection, **ask)
    charged, max_mib, context_mib, until = 0, 0, 0, time.monotonic() + seconds * PATIENCE
    seen_until = None
    while tenant.process.poll() is None:
        if time.monotonic() > until:
            tenant.kill()
            tenant.wait()
            raise AssertionError(f"{Path(argv[1]).name} hung for {seconds} s")
        for seen in running.arbiter.status().gpus[0].tenants:
            if seen.name == "t":
                charged, max_mib = max(charged, seen.charged_ns), max(max_mib, seen.memory_used_mib)
                context_mib = max(context_mib, seen.memory_context_mib)
        if held and held.exists():
            seen_until = seen_until or time.monotonic() + 5
            if (charged and context_mib) or time.monotonic() > seen_until:
                held.unlink()
        time.sleep(0.05)
    way = tenant.injection
    status = tenant.wait()
    assert status == 0, f"{Path(argv[1]).name} ended with status {status}"
    return {"charged_ms": round(charged / 1e6, 1), "ledger_mib": max_mib, "context_mib": context_mib, "way": way}


def wait_file(path: Path, tenant, seconds: float) -> None:
    """Until a program has written, or made, a file."""
    until = time.monotonic() + seconds * PATIENCE
    while not path.exists():
        assert tenant.process.poll() is None, f"the program ended with {tenant.process.poll()} before {path.name}"
        assert time.monotonic() < until, f"no {path.name} in {seconds} s"
        time.sleep(0.05)


def read_json(path: Path) -> dict[str, Any]:
    """What a program wrote."""
    facts: dict[str, Any] = json.loads(path.read_text())
    return facts


def wait_ready(files: list[Path], tenants: list) -> None:
    """Until each client has completed its first work."""
    from aliquot_lab.bench.progress import read_totals

    seconds = 60 * PATIENCE
    until = time.monotonic() + seconds
    while any(read_totals(path) is None for path in files):
        assert time.monotonic() < until, f"a client launched nothing in {seconds} s"
        assert all(tenant.process.poll() is None for tenant in tenants), "a client ended early"
        time.sleep(0.05)


def completed(path: Path) -> int:
    """Steps that a client has completed."""
    from aliquot_lab.bench.progress import read_totals

    totals = read_totals(path)
    return totals.completed if totals else 0


def rates(files: Sequence[Path], seconds: float) -> list[float]:
    """Completed steps per second of each client over the same stretch."""
    first, began = [completed(path) for path in files], time.monotonic()
    time.sleep(seconds)
    last, span = [completed(path) for path in files], time.monotonic() - began
    return [(b - a) / span for a, b in zip(first, last, strict=True)]


def held_by(libnvml: Path, *pids: int) -> int | None:
    """MiB of the first GPU that NVML counts for processes; asked in a process of its own, outside any tenant."""
    code = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL); import pynvml as n; n.nvmlInit()\n"
        "rows = n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))\n"
        "print(sum((r.usedGpuMemory or 0) >> 20 for r in rows if str(r.pid) in sys.argv[2:]))"
    )
    argv = [sys.executable, "-c", code, str(libnvml), *map(str, pids)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20)
    return int(done.stdout) or None
