"""One thread captures in GLOBAL mode over and over while another launches: `captures.py SECONDS OUT`."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
import time
from pathlib import Path

from driver import Driver

GLOBAL = 0


def launch_on(driver: Driver, over: threading.Event) -> None:
    """Short kernels on a stream of its own, no call that waits."""
    driver("cuCtxSetCurrent", driver.context)
    stream = driver.stream()
    while not over.wait(0.0005):
        driver.spin(100_000, stream)


def capture_once(driver: Driver, stream: ctypes.c_void_p) -> int:
    """The answer at the end of a capture of some kernels; its graph is launched where there is one."""
    graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
    driver("cuStreamBeginCapture_v2", stream, GLOBAL)
    for _ in range(20):
        driver.spin(10_000, stream)
    code: int = driver.library.cuStreamEndCapture(stream, ctypes.byref(graph))
    if code == 0:
        driver("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        driver("cuGraphLaunch", ready, stream)
        driver("cuStreamSynchronize", stream)
        driver("cuGraphExecDestroy", ready)
        driver("cuGraphDestroy", graph)
    return code


def main(seconds: float, out: Path) -> None:
    """Capture until the time is over; write how many captures failed, and with what."""
    driver, over = Driver(), threading.Event()
    stream, codes, until = driver.stream(), [], time.monotonic() + seconds
    beside = threading.Thread(target=launch_on, args=(driver, over))
    beside.start()
    while time.monotonic() < until:
        codes.append(capture_once(driver, stream))
        time.sleep(0.005)
    over.set()
    beside.join()
    failed = [code for code in codes if code]
    out.write_text(json.dumps({"captures": len(codes), "failed": len(failed), "codes": sorted(set(failed))}))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
