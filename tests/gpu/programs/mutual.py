"""One of two ranks that wait for each other on the GPU: `mutual.py RANK SHARED PROGRESS`.

A step is a kernel, a word that says so, a wait for the other rank's word, and a second kernel: what a collective does.
A rank that may not launch keeps the other one's stream waiting. Steps are counted in PROGRESS.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
import time
from pathlib import Path

from driver import Driver

from aliquot_lab.bench.progress import ProgressWriter

PAGE = 4096
KERNEL_NS = 500_000
stop = False


def ask_stop(_number: int, _frame: object) -> None:
    """End after this step."""
    global stop
    stop = True


def words(driver: Driver, page: mmap.mmap) -> int:
    """The address, for the GPU, of the words on a page that both ranks see."""
    host = ctypes.addressof(ctypes.c_char.from_buffer(page))
    driver.ok("cuMemHostRegister_v2", host, PAGE, 2)  # DEVICEMAP
    return driver.new("cuMemHostGetDevicePointer_v2", host, 0)


def main(rank: int, shared: Path, path: Path) -> None:
    """Step until ended."""
    signal.signal(signal.SIGTERM, ask_stop)
    driver, progress = Driver(), ProgressWriter(path)
    with shared.open("r+b") as file:
        page = mmap.mmap(file.fileno(), PAGE)
    stream, base = driver.stream, words(driver, page)
    mine, other = (base + 64 * which for which in (rank, 1 - rank))
    step = 0
    while not stop:
        step += 1
        driver.spin(KERNEL_NS, stream)
        driver.ok("cuStreamWriteValue32_v2", stream, mine, step, 0)
        driver.ok("cuStreamWaitValue32_v2", stream, other, step, 0)  # until it is at least that
        driver.spin(KERNEL_NS, stream)
        driver.ok("cuStreamSynchronize", stream)
        progress.completed = step
        (progress.ready if step == 1 else progress.store)()
        time.sleep(0.0003 * (step * (rank + 1) % 4))  # the ranks are never quite together
    driver.ok("cuStreamWriteValue32_v2", stream, mine, 0x7FFFFFFF, 0)  # let the other one end
    driver.ok("cuStreamSynchronize", stream)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
