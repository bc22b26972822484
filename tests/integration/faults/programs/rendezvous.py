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

from kit.driver_calls import OwnDriver

from aliquot_lab.bench.priority import go_before_other_programs
from aliquot_lab.bench.progress import ProgressWriter

KERNEL_NS = 1_000_000
DEEP = 20


class Partner:
    """One side of the rendezvous: its stream on its GPU, and both sides' words as the GPU addresses them."""

    def __init__(self, device: int, words: mmap.mmap) -> None:
        self.gpu, self.words = OwnDriver(), words
        assert self.gpu.open(device) == 0
        self.function = self.gpu.function()
        host = ctypes.addressof(ctypes.c_char.from_buffer(words))
        self.gpu.code("cuMemHostRegister_v2", host, len(words), 2)  # the second partner of a process finds it done
        self.base = self.gpu.new("cuMemHostGetDevicePointer_v2", host, 0)

    def kernel(self) -> int:
        """A kernel of a millisecond."""
        return self.gpu.launch(self.function, KERNEL_NS, self.gpu.stream)

    def meet(self, mine: int, step: int) -> int:
        """Tell the partner that this step is reached, and wait on the GPU until the partner has reached it."""
        told = self.gpu.code("cuStreamWriteValue32_v2", self.gpu.stream, self.base + 64 * mine, step, 0)
        return told + self.gpu.code("cuStreamWaitValue32_v2", self.gpu.stream, self.base + 64 * (1 - mine), step, 0)


def main() -> None:
    """Steps until it is told to end; a status other than 0 when a call failed."""
    mode, told, failed, step = sys.argv[1], [], 0, 0
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    go_before_other_programs()
    if mode == "streams":
        words = mmap.mmap(-1, 4096)
        sides = {0: Partner(0, words), 1: Partner(0, words)}
    else:
        with Path(sys.argv[3]).open("r+b") as file:
            words = mmap.mmap(file.fileno(), 4096)
        rank = int(sys.argv[4])
        sides = {rank: Partner(rank, words)}
    first = min(sides)
    progress = ProgressWriter(Path(sys.argv[2]))
    while not told and not failed:
        step += 1
        for word, side in sides.items():
            failed += side.kernel() + side.meet(word, step) + side.kernel()
        if mode != "deep" or step % DEEP == 0:
            failed += sum(side.gpu.sync() for side in sides.values())
            progress.completed = step
            progress.store() if progress.ready_ns else progress.ready()
            if mode == "ranks":
                time.sleep(0.0003 * (step * (first + 1) % 4))
    sys.exit(failed)


if __name__ == "__main__":
    main()
