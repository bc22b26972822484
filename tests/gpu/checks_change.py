"""Changes while programs run: another share, and memory that leaves the GPU and comes back under pressure."""

from __future__ import annotations

import time
from typing import Any

from base import (
    LIMIT_MIB,
    PATIENCE,
    Missing,
    check,
    end,
    engine,
    kernels,
    program,
    spawn,
    wait_file,
    wait_ready,
)

TOLERANCE = 0.02


def charged(running, seconds: float) -> dict[str, float]:
    """The part of the time that the arbiter has charged to each tenant."""
    status, began = running.arbiter.status(), time.monotonic()
    before = {tenant.name: tenant.charged_ns for tenant in status.gpus[0].tenants}
    time.sleep(seconds)
    status, span = running.arbiter.status(), time.monotonic() - began
    return {tenant.name: (tenant.charged_ns - before[tenant.name]) / span / 1e9 for tenant in status.gpus[0].tenants}


@check(60)
def resize() -> dict[str, Any]:
    """A share grows and shrinks while its program runs, and the neighbour keeps its own."""
    from aliquot.model.ids import TenantName
    from aliquot.model.quantities import Memory
    from aliquot.model.requests import GpuRequest

    seen = []
    with engine(window_ms=2000) as (running, folder):
        files = [folder / "a", folder / "b"]
        tenants = [
            spawn(running, file.name, kernels(file, 500), request=300, limit=300, memory_mib=LIMIT_MIB)
            for file in files
        ]
        wait_ready(files, tenants)
        for milli in (300, 600, 300):
            running.resize(TenantName("a"), GpuRequest(milli, milli, Memory(mib=LIMIT_MIB)))
            time.sleep(2.5)
            shares = charged(running, 6)
            seen.append(shares)
            assert abs(shares["a"] - milli / 1000) <= TOLERANCE, f"a got {shares['a']} of {milli / 1000}"
            assert abs(shares["b"] - 0.3) <= TOLERANCE, f"b got {shares['b']} of 0.3"
        end(*tenants)
    return {"shares": seen}


@check(120)
def park() -> dict[str, Any]:
    """Two programs of which each holds more than half of the GPU take turns in its memory, which is as it was."""
    from aliquot.model.ids import TenantName
    from aliquot.placement.machine import NoRoom
    from aliquot.standalone.parking import NotParked

    times_s: dict[str, float] = {}
    with engine() as (running, folder):
        size_mib = running.gpus[0].memory_mib * 6 // 10

        def start(name: str):
            return spawn(
                running, name, program("notebook", folder / name, size_mib - 2048), request=200, memory_mib=size_mib
            )

        def use(name: str, number: int) -> None:
            (folder / f"{name}.go{number}").touch()

        def park_once_idle(name: str) -> None:
            until = time.monotonic() + 20 * PATIENCE
            while True:
                began = time.monotonic()
                try:
                    running.parking.park(TenantName(name))
                except NotParked as error:
                    if "the driver has no calls" in str(error) or "the operating system" in str(error):
                        raise Missing(str(error)) from error
                    assert time.monotonic() < until, str(error)
                    time.sleep(0.2)
                else:
                    times_s[f"park_{name}"] = round(time.monotonic() - began, 2)
                    return

        first = start("a")
        wait_file(folder / "a.held", first, 60)
        park_once_idle("a")
        second = start("b")
        wait_file(folder / "b.held", second, 60)
        use("a", 1)
        time.sleep(2)
        assert not (folder / "a.done1").exists(), "a computed while b held the memory that it needs"
        try:
            running.parking.unpark(TenantName("a"))
        except NoRoom:
            pass
        else:
            raise AssertionError("a came back where b holds the memory")
        park_once_idle("b")
        began = time.monotonic()
        wait_file(folder / "a.done1", first, 60)
        times_s["back_a"] = round(time.monotonic() - began, 2)
        assert (folder / "a.done1").read_text() == "as it was"
        park_once_idle("a")
        use("b", 1)
        wait_file(folder / "b.done1", second, 60)
        assert (folder / "b.done1").read_text() == "as it was"
        end(first, second)
    return {"held_mib": size_mib, **times_s}
