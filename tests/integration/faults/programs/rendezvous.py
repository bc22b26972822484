"""Work that waits on the GPU for work that is launched elsewhere: `rendezvous.py MODE PROGRESS [SHARED RANK]`.

Each step is a kernel, a word written for the partner, a wait for the partner's word, and a kernel: what a collective
does. `ranks` is one rank of two, each a process with a GPU of its own, that meet in the file SHARED; `streams` is one
process whose two streams wait for each other; `deep` are ranks that launch ahead and synchronise every 20 steps.
"""

import ctypes
import mmap
import signal
import sys
import time
from pathlib import Path

from aliquot_lab.bench.priority import go_before_other_programs
from aliquot_lab.bench.progress import ProgressWriter

PTX = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns) { ret; }\n\0"
KERNEL_NS = 1_000_000
DEEP = 20


class Partner:
    """One side of the rendezvous: its stream on its GPU, and both sides' words as the GPU addresses them."""

    def __init__(self, cuda: ctypes.CDLL, device: int, words: mmap.mmap) -> None:
        self.cuda, self.function, self.stream = cuda, ctypes.c_void_p(), ctypes.c_void_p()
        context, module, base = (ctypes.c_void_p() for _ in range(3))
        host = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(words)))
        done = [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context)]
        done += [cuda.cuModuleLoadData(ctypes.byref(module), PTX)]
        done += [cuda.cuModuleGetFunction(ctypes.byref(self.function), module, b"spin_ns")]
        done += [cuda.cuStreamCreate(ctypes.byref(self.stream), 1)]
        cuda.cuMemHostRegister_v2(host, ctypes.c_size_t(len(words)), 2)  # the second partner of a process finds it done
        done += [cuda.cuMemHostGetDevicePointer_v2(ctypes.byref(base), host, 0)]
        assert not any(done), done
        self.base = base.value or 0
        ns = ctypes.c_uint64(KERNEL_NS)
        self.params = (ctypes.c_void_p * 1)(ctypes.addressof(ns))
        self.kept = (ns, words)

    def kernel(self) -> int:
        """A kernel of a millisecond."""
        return self.cuda.cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, self.stream, self.params, None)

    def meet(self, mine: int, step: int) -> int:
        """Tell the partner that this step is reached, and wait on the GPU until the partner has reached it."""
        at, other = (ctypes.c_uint64(self.base + 64 * word) for word in (mine, 1 - mine))
        value = ctypes.c_uint(step)
        told = self.cuda.cuStreamWriteValue32_v2(self.stream, at, value, 0)
        return told + self.cuda.cuStreamWaitValue32_v2(self.stream, other, value, 0)

    def synchronise(self) -> int:
        """All of the stream has ended."""
        return self.cuda.cuStreamSynchronize(self.stream)


def main() -> None:
    """Steps until it is told to end; a status other than 0 when a call failed."""
    mode, told, failed, step = sys.argv[1], [], 0, 0
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    go_before_other_programs()
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    if mode == "streams":
        words = mmap.mmap(-1, 4096)
        sides = {0: Partner(cuda, 0, words), 1: Partner(cuda, 0, words)}
    else:
        with Path(sys.argv[3]).open("r+b") as file:
            words = mmap.mmap(file.fileno(), 4096)
        rank = int(sys.argv[4])
        sides = {rank: Partner(cuda, rank, words)}
    first = min(sides)
    progress = ProgressWriter(Path(sys.argv[2]))
    while not told and not failed:
        step += 1
        for word, side in sides.items():
            failed += side.kernel() + side.meet(word, step) + side.kernel()
        if mode != "deep" or step % DEEP == 0:
            failed += sum(side.synchronise() for side in sides.values())
            progress.completed = step
            progress.store() if progress.ready_ns else progress.ready()
            if mode == "ranks":
                time.sleep(0.0003 * (step * (first + 1) % 4))
    sys.exit(failed)


if __name__ == "__main__":
    main()
