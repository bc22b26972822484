"""One thread captures in GLOBAL mode over and over while another launches: `captures.py SECONDS OUT`."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from driver import Driver
from kit.driver_calls import Out

GLOBAL = 0


def launch_on(driver: Driver, over: threading.Event) -> None:
    """Short kernels on a stream of its own, no call that waits."""
    driver.ok("cuCtxSetCurrent", driver.context)
    stream = driver.new_stream()
    while not over.wait(0.0005):
        driver.spin(100_000, stream)


def capture_once(driver: Driver) -> int:
    """The answer at the end of a capture of some kernels; its graph is launched where there is one."""
    driver.ok("cuStreamBeginCapture_v2", driver.stream, GLOBAL)
    for _ in range(20):
        driver.spin(10_000, driver.stream)
    code, (graph,) = driver.call("cuStreamEndCapture", driver.stream, Out())
    if code == 0:
        ready = driver.new("cuGraphInstantiateWithFlags", graph, 0)
        driver.ok("cuGraphLaunch", ready, driver.stream)
        driver.ok("cuStreamSynchronize", driver.stream)
        driver.ok("cuGraphExecDestroy", ready)
        driver.ok("cuGraphDestroy", graph)
    return code


def main(seconds: float, out: Path) -> None:
    """Capture until the time is over; write how many captures failed, and with what."""
    driver, over = Driver(), threading.Event()
    codes, until = [], time.monotonic() + seconds
    beside = threading.Thread(target=launch_on, args=(driver, over))
    beside.start()
    while time.monotonic() < until:
        codes.append(capture_once(driver))
        time.sleep(0.005)
    over.set()
    beside.join()
    failed = [code for code in codes if code]
    out.write_text(json.dumps({"captures": len(codes), "failed": len(failed), "codes": sorted(set(failed))}))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
