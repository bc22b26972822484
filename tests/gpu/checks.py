"""What only a real GPU can prove, one function each.

A check returns the figures it saw, raises `Missing` when this machine lacks what it needs, and `AssertionError` or any
other exception when the promise is not kept. Each runs in a process of its own (see run.py).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs")
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


def need(*modules: str) -> None:
    """Skip unless these can be imported."""
    for module in modules:
        if find_spec(module) is None:
            raise Missing(f"no {module}")


@contextmanager
def engine(**options: Any):
    """An engine on the real GPU."""
    from aliquot.standalone.engine import Engine

    with Engine.start(emulate=None, **options) as running, tempfile.TemporaryDirectory(prefix="aliquot-gpu-") as folder:
        yield running, Path(folder)


def run_tenant(running, argv: list[str], *, injection: str, request=500, limit=1000, memory_mib=LIMIT_MIB, seconds=90):
    """Run a program as a tenant to its end; what the arbiter charged it."""
    tenant = running.spawn(
        "t", argv, None, request_milli=request, limit_milli=limit, memory_mib=memory_mib, injection=injection
    )
    charged, most_mib, until = 0, 0, time.monotonic() + seconds
    while tenant.process.poll() is None:
        if time.monotonic() > until:
            tenant.kill()
            tenant.wait()
            raise AssertionError(f"{Path(argv[1]).name} hung for {seconds} s")
        for seen in running.arbiter.status().gpus[0].tenants:
            charged, most_mib = max(charged, seen.charged_ns), max(most_mib, seen.memory_used_mib)
        time.sleep(0.05)
    way = tenant.injection
    status = tenant.wait()
    assert status == 0, f"{Path(argv[1]).name} ended with status {status}"
    return {"charged_ms": round(charged / 1e6, 1), "ledger_mib": most_mib, "way": way}


def compute(framework: str, injection: str) -> dict[str, Any]:
    """A framework's arithmetic under the hook: right, seen by the arbiter, and inside its own memory view."""
    need({"bindings": "cuda.bindings"}.get(framework, framework))
    with engine() as (running, folder):
        out = folder / "out.json"
        argv = [sys.executable, str(PROGRAMS / "compute.py"), framework, str(out)]
        seen = run_tenant(running, argv, injection=injection)
        facts = json.loads(out.read_text())
    assert facts["right"], f"{framework} computed something else under {injection}"
    assert facts["total_bytes"] == LIMIT_MIB << 20, f"{framework} sees {facts['total_bytes']} bytes, not its limit"
    assert seen["charged_ms"] > 0, f"{framework} launched without the arbiter knowing"
    return {**facts, **seen}


for _framework in ("bindings", "torch", "cupy", "triton", "numba"):
    for _injection in ("substitute", "preload"):

        def _compute(framework: str = _framework, injection: str = _injection) -> dict[str, Any]:
            return compute(framework, injection)

        check(70, f"compute-{_framework}-{_injection}")(_compute)


def memory_limit(kind: str, step_mib: int) -> dict[str, Any]:
    """A framework is refused at its limit, not before and not after, and goes on afterwards."""
    need({"expandable": "torch"}.get(kind, kind))
    limit_mib = 4096
    with engine() as (running, folder):
        out = folder / "out.json"
        argv = [sys.executable, str(PROGRAMS / "memory.py"), kind, str(step_mib), str(out)]
        seen = run_tenant(running, argv, injection="auto", memory_mib=limit_mib)
        facts = json.loads(out.read_text())
    assert facts["refused"], f"{kind} was never refused"
    assert facts["allocated_mib"] <= limit_mib, f"{kind} got {facts['allocated_mib']} MiB of {limit_mib}"
    # A context and a framework's libraries take their part of the limit.
    assert facts["allocated_mib"] >= limit_mib * 0.6, f"{kind} was refused at {facts['allocated_mib']} MiB already"
    assert facts["works_after"], f"{kind} could not go on after the refusal"
    return {**facts, **seen, "limit_mib": limit_mib}


for _kind, _step_mib in (("torch", 64), ("expandable", 64), ("cupy", 64), ("numba", 64)):

    def _memory(kind: str = _kind, step_mib: int = _step_mib) -> dict[str, Any]:
        return memory_limit(kind, step_mib)

    check(80, f"memory-{_kind}")(_memory)


@check(30)
def nvidia_smi() -> dict[str, Any]:
    """nvidia-smi of a tenant shows the tenant's memory as the GPU's."""
    program = shutil.which("nvidia-smi")
    if not program:
        raise Missing("no nvidia-smi")
    with engine() as (running, folder):
        out = folder / "out"
        query = f"{program} --query-gpu=memory.total --format=csv,noheader,nounits > {out}"
        seen = run_tenant_quietly(running, ["/bin/sh", "-c", query])
        shown_mib = [int(line) for line in out.read_text().split()]
    assert shown_mib == [LIMIT_MIB], f"nvidia-smi shows {shown_mib} MiB, not [{LIMIT_MIB}]"
    return {"shown_mib": shown_mib, **seen}


def run_tenant_quietly(running, argv: list[str]) -> dict[str, Any]:
    """As run_tenant, for programs that need not launch anything."""
    return run_tenant(running, argv, injection="auto", seconds=25)


@check(60)
def nvml_neighbours() -> dict[str, Any]:
    """A resting tenant beside a busy one sees neither the neighbour's process nor its work."""
    need("cuda.bindings", "pynvml")
    with engine() as (running, folder):
        argv = [sys.executable, "-m", "aliquot.bench.client", "steady", "--progress", str(folder / "busy")]
        busy = running.spawn("busy", argv, None, request_milli=500, limit_milli=1000, memory_mib=LIMIT_MIB)
        wait_ready([folder / "busy"], [busy])
        out = folder / "out.json"
        tenant = running.spawn(
            "t", [sys.executable, str(PROGRAMS / "view.py"), str(out)], None, request_milli=500, memory_mib=LIMIT_MIB
        )
        assert tenant.wait(40) == 0, "view.py failed"
        facts = json.loads(out.read_text())
        neighbour = busy.pid
        busy.terminate()
        busy.wait(20)
    lists = [facts[name] for name in ("processes", "samples", "accounts") if isinstance(facts[name], list)]
    assert all(set(pids) <= {facts["pid"]} for pids in lists), f"{facts}, the neighbour is {neighbour}"
    assert not isinstance(facts["gpu_percent"], int) or facts["gpu_percent"] <= 20, f"{facts}: not its own work"
    assert facts["total_mib"] == LIMIT_MIB, facts
    return facts


@check(60)
def memory_in_truth() -> dict[str, Any]:
    """What the driver says a tenant holds, contexts included, is within its limit when it has taken all it can get."""
    need("cuda.bindings")
    limit_mib = 4096
    with engine() as (running, folder):
        out = folder / "out.json"
        argv = [sys.executable, str(PROGRAMS / "full.py"), str(out)]
        tenant = running.spawn("t", argv, None, request_milli=500, memory_mib=limit_mib)
        until = time.monotonic() + 45
        while not out.exists() or not out.read_text():
            assert tenant.poll() is None, "full.py ended early"
            assert time.monotonic() < until, "full.py is not full in 45 s"
            time.sleep(0.1)
        facts = json.loads(out.read_text())
        held_mib = held_by(running.machine.libnvml, tenant.pid)
        tenant.kill()
        tenant.wait(10)
    if held_mib is None:
        raise Missing("NVML does not list this process by its pid here (another pid namespace)")
    assert held_mib <= limit_mib, f"the driver says {held_mib} MiB, {limit_mib} are allowed: {facts}"
    assert held_mib >= limit_mib * 0.85, f"refused at {held_mib} MiB of {limit_mib} already: {facts}"
    return {**facts, "held_mib": held_mib, "limit_mib": limit_mib}


def held_by(libnvml: Path, pid: int) -> int | None:
    """MiB of the first GPU that NVML counts for a process; asked in a process of its own, outside any tenant."""
    code = (
        "import ctypes, sys; ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL); import pynvml as n; n.nvmlInit()\n"
        "rows = n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(0))\n"
        "print(sum((r.usedGpuMemory or 0) >> 20 for r in rows if r.pid == int(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(libnvml), str(pid)], capture_output=True, text=True, check=True, timeout=20
    )
    return int(done.stdout) or None


@check(90)
def nccl_two_ranks() -> dict[str, Any]:
    """Two NCCL ranks of one tenant on one GPU sum correctly; skipped where NCCL refuses this without Aliquot too."""
    need("torch")
    with tempfile.TemporaryDirectory() as folder:
        bare = subprocess.run(
            [sys.executable, str(PROGRAMS / "nccl.py"), f"{folder}/out"], capture_output=True, text=True, timeout=60
        )
    if bare.returncode != 0:
        reason = [line for line in bare.stderr.splitlines() if "uplicate" in line or "NCCL" in line]
        raise Missing(f"NCCL refuses two ranks on one GPU here, without Aliquot as well: {(reason or ['?'])[-1][:200]}")
    with engine() as (running, folder):
        out = folder / "out.json"
        seen = run_tenant(running, [sys.executable, str(PROGRAMS / "nccl.py"), str(out)], injection="auto", seconds=60)
        facts = json.loads(out.read_text())
    assert facts["right"]
    return {**facts, **seen}


def train_shares(*, graphs: bool, requests: tuple[int, int], seconds: float) -> dict[str, Any]:
    """Two PyTorch training loops share by their requests, and both learn."""
    need("torch")
    with engine(window_ms=2000) as (running, folder):
        tenants = []
        for number, request in enumerate(requests):
            argv = [sys.executable, str(PROGRAMS / "train.py"), str(folder / str(number)), *(["graphs"] * graphs)]
            tenants.append(
                running.spawn(f"t{number}", argv, None, request_milli=request, limit_milli=1000, memory_mib=8192)
            )
        wait_ready([folder / str(number) for number in range(len(requests))], tenants)
        time.sleep(4)
        shares = charged_shares(running, seconds)
        for tenant in tenants:
            tenant.terminate()
        statuses = [tenant.wait(20) for tenant in tenants]
    assert statuses == [0, 0], f"the loops ended with {statuses} (3: the loss did not fall)"
    worst = max(abs(shares[f"t{n}"] - request / 1000) for n, request in enumerate(requests))
    assert worst <= 0.02, f"shares {shares}, due {requests}"
    return {"shares": shares, "worst": round(worst, 4)}


def wait_ready(files: list[Path], tenants: list) -> None:
    """Until each client has completed its first work."""
    from aliquot.bench.progress import read_totals

    until = time.monotonic() + 60
    while any(read_totals(path) is None for path in files):
        assert time.monotonic() < until, "a client launched nothing in 60 s"
        assert all(tenant.process.poll() is None for tenant in tenants), "a client ended early"
        time.sleep(0.05)


def charged_shares(running, seconds: float) -> dict[str, float]:
    """Each tenant's charged time as a fraction of the next `seconds`."""
    first = running.arbiter.status()
    time.sleep(seconds)
    last = running.arbiter.status()
    before = {tenant.name: tenant.charged_ns for tenant in first.gpus[0].tenants}
    span_ns = last.now_ns - first.now_ns
    return {t.name: round((t.charged_ns - before.get(t.name, 0)) / span_ns, 4) for t in last.gpus[0].tenants}


@check(80)
def cuda_graphs() -> dict[str, Any]:
    """Training steps captured as CUDA graphs share as exactly as launched ones, and are right."""
    return train_shares(graphs=True, requests=(300, 700), seconds=10)


@check(120)
def fig6_torch() -> dict[str, Any]:
    """Fig. 6 of KubeShare with three PyTorch training loops."""
    need("torch")
    from aliquot.bench.fig6 import ASKS, TOLERANCE, timeline

    plan, tenants, phases = timeline((0, 11, 22, 33, 44), window_s=2), {}, []
    with engine(window_ms=2000) as (running, folder):
        for phase in plan.phases:
            for name in set(tenants) - set(phase.expected):
                tenants.pop(name).end()
            for name in [name for name in phase.expected if name not in tenants]:
                ask = ASKS[name]
                argv = [sys.executable, str(PROGRAMS / "train.py"), str(folder / name)]
                tenants[name] = running.spawn(
                    name, argv, None, request_milli=ask.request_milli, limit_milli=ask.limit_milli, memory_mib=8192
                )
                wait_ready([folder / name], [tenants[name]])
            time.sleep(3)
            shares = charged_shares(running, 8)
            worst = max(abs(shares[name] - due) for name, due in phase.expected.items())
            phases.append({"name": phase.name, "expected": phase.expected, "charged": shares, "error": round(worst, 4)})
    max_error = max(phase["error"] for phase in phases)
    assert max_error <= TOLERANCE, json.dumps(phases)
    return {"phases": phases, "max_error": max_error}


@check(100)
def fig6() -> dict[str, Any]:
    """Fig. 6 of KubeShare with kernels of known duration; both measures agree with what is due."""
    need("cuda.bindings")
    from aliquot.bench.fig6 import FAST
    from aliquot.bench.fig6_run import play

    report = play(FAST, emulate=None, watch=lambda *_: None)
    out = os.environ.get("ALIQUOT_GPU_OUT")
    if out and find_spec("matplotlib"):
        from aliquot.bench.plots import draw_fig6

        draw_fig6(report, Path(out))
    assert report.kept, json.dumps(report.as_json())
    return report.as_json()


@check(60)
def gate() -> dict[str, Any]:
    """The hook's cost per launch on a real driver."""
    from aliquot.bench.driver_calls import gate as measure

    figures = measure(None, rounds=1000)
    assert figures["syscalls_per_launch"] < 50, figures
    return figures


@check(60)
def allocation() -> dict[str, Any]:
    """The time of an allocation through the hook."""
    from aliquot.bench.driver_calls import memory as measure

    return measure(None, allocations=1000)


@check(90)
def slowdown() -> dict[str, Any]:
    """What sharing costs on a real GPU (KubeShare Fig. 7)."""
    need("cuda.bindings")
    from aliquot.bench.slowdown import slowdown as measure

    return measure(None, seconds=3)


@check(60)
def handover() -> dict[str, Any]:
    """From one tenant's last use to the next one's launch."""
    need("cuda.bindings")
    from aliquot.bench.handover import handover as measure

    return measure(None, tenants=(2, 8), quotas_ms=(30, 100), seconds=4)


@check(60)
def storm() -> dict[str, Any]:
    """A thousand processes register."""
    from aliquot.bench.storm import storm as measure

    return measure(None)
