"""A program that launches on two GPUs at once, over and over: `gang.py PROGRESS` keeps its counts there."""

import signal
import struct
import sys
from pathlib import Path

from kit.driver_calls import OwnDriver

from aliquot_lab.bench.priority import go_before_other_programs
from aliquot_lab.bench.progress import ProgressWriter

KERNEL_NS = 4_000_000


def main() -> None:
    """Launches until it is told to end; 1 when a call failed."""
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    go_before_other_programs()
    gpu, streams, launches, failed = OwnDriver(), [], b"", 0
    duration, parameters = gpu.host_bytes(8), gpu.host_bytes(8)
    gpu.write(duration, struct.pack("Q", KERNEL_NS))
    gpu.write(parameters, struct.pack("Q", duration))
    for device in range(2):
        failed += gpu.open(device)
        streams.append(gpu.stream)
        # CUDA_LAUNCH_PARAMS
        launches += struct.pack("Q7I4xQQ", gpu.function(), 1, 1, 1, 1, 1, 1, 0, gpu.stream, parameters)
    progress = ProgressWriter(Path(sys.argv[1]))
    while not told and not failed:
        failed = gpu.code("cuLaunchCooperativeKernelMultiDevice", launches, 2, 0)
        failed += sum(gpu.code("cuStreamSynchronize", stream) for stream in streams)
        progress.kernel_ns += KERNEL_NS
        progress.completed += 1
        progress.store() if progress.ready_ns else progress.ready()
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
