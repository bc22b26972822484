"""A program that launches on two GPUs at once, over and over: `gang.py PROGRESS` keeps its counts there."""

import ctypes
import signal
import sys
from pathlib import Path

from aliquot_lab.bench.priority import go_before_other_programs
from aliquot_lab.bench.progress import ProgressWriter

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns) { ret; }\n\0"
KERNEL_NS = 4_000_000


class Launch(ctypes.Structure):
    """CUDA_LAUNCH_PARAMS."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("stream", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
    )


def main() -> None:
    """Launches until it is told to end; 1 when a call failed."""
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    go_before_other_programs()
    cuda = ctypes.CDLL("libcuda.so.1")
    made = [cuda.cuInit(0)]
    duration = ctypes.c_uint64(KERNEL_NS)
    params = (ctypes.c_void_p * 1)(ctypes.addressof(duration))
    launches = (Launch * 2)()
    for device in range(2):
        context, module, function, stream = (ctypes.c_void_p() for _ in range(4))
        made += [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context)]
        made += [cuda.cuModuleLoadData(ctypes.byref(module), PTX)]
        made += [cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin_ns")]
        made += [cuda.cuStreamCreate(ctypes.byref(stream), 1)]
        launches[device] = Launch(function, 1, 1, 1, 1, 1, 1, 0, stream, ctypes.addressof(params))
    progress = ProgressWriter(Path(sys.argv[1]))
    while not told and not any(made):
        made = [cuda.cuLaunchCooperativeKernelMultiDevice(launches, 2, 0)]
        made += [cuda.cuStreamSynchronize(ctypes.c_void_p(launch.stream)) for launch in launches]
        progress.kernel_ns += KERNEL_NS
        progress.completed += 1
        progress.store() if progress.ready_ns else progress.ready()
    sys.exit(any(made))


if __name__ == "__main__":
    main()
