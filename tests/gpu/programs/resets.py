"""Contexts come and go with work in flight: `resets.py SECONDS OUT`; then the primary one is reset as often."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from driver import Driver


def one_context(driver: Driver) -> None:
    """A context with a stream, an event and kernels that are still running when it is destroyed."""
    context = driver.new("cuCtxCreate_v2", 0, 0)
    kernel, stream, event = driver.load(), driver.new_stream(), driver.new("cuEventCreate", 2)
    for _ in range(10):
        driver.spin(200_000, stream, kernel)
        driver.ok("cuEventRecord", event, stream)
    driver.ok("cuCtxDestroy_v2", context)


def one_reset(driver: Driver) -> None:
    """The primary context with kernels in flight, reset."""
    assert driver.open() == 0
    kernel = driver.load()
    for _ in range(10):
        driver.spin(200_000, driver.stream, kernel)
    driver.ok("cuDevicePrimaryCtxReset_v2", 0)


def main(seconds: float, out: Path) -> None:
    """Half of the time each; write how often."""
    driver, done = Driver(), {"contexts": 0, "resets": 0}
    for name, once in (("contexts", one_context), ("resets", one_reset)):
        until = time.monotonic() + seconds / 2
        while time.monotonic() < until:
            once(driver)
            done[name] += 1
    out.write_text(json.dumps(done))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
