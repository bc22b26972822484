"""A program that works and rests by the clock: `phases.py PROGRESS BEGIN,END...`, ns from the time on its stdin."""

import sys
import time
from pathlib import Path

from aliquot_lab.bench.cuda import CudaDevice
from aliquot_lab.bench.priority import go_before_other_programs
from aliquot_lab.bench.progress import ProgressWriter

KERNEL_NS = 2_000_000
BURST = 3


def main() -> None:
    """Within its phases it launches a few kernels and waits for them, over and over."""
    go_before_other_programs()
    gpu, progress = CudaDevice(), ProgressWriter(Path(sys.argv[1]))
    gpu.spin(KERNEL_NS)
    gpu.synchronize()
    progress.ready()
    start_ns = int(sys.stdin.readline())
    for phase in sys.argv[2:]:
        begin_ns, end_ns = (start_ns + int(at) for at in phase.split(","))
        time.sleep(max(0, begin_ns - time.monotonic_ns()) / 1e9)
        while time.monotonic_ns() < end_ns:
            for _ in range(BURST):
                gpu.spin(KERNEL_NS)
            gpu.synchronize()
            progress.completed += BURST
            progress.kernel_ns += BURST * KERNEL_NS
            progress.store()


if __name__ == "__main__":
    main()
