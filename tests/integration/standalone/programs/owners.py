"""Forks processes that take GPUs of one machine as engines do: `owners.py LIBNVML SLOTS GPU...`; see test_gpu_owners.

Reads lines of JSON: `[number, uid, room, [index, ...]]` starts owner `number`, `[number]` waits for its end. SLOTS is
memory of all: for each GPU the number of its owner, then for each owner one byte, which is 1 once SIGKILL is on its
way. An owner finds a second one by these slots, and says so.
"""

import ctypes
import json
import mmap
import os
import signal
import struct
import sys
from pathlib import Path

from aliquot.driver.gpu import Gpu
from aliquot.driver.gpu_lock import GpuLock, GpuTaken

NEWNS, NEWNET, PRIVATE, BIND = 0x00020000, 0x40000000, (1 << 14) | (1 << 18), 1 << 12
LIBNVML, SLOTS, UUIDS = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
AGAIN_S = 0.01
libc = ctypes.CDLL(None, use_errno=True)


def ok(code: int) -> None:
    """Ends the process when the kernel refused."""
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def say(number: int, what: str) -> None:
    """One line, whole."""
    os.write(1, f"{number} {what}\n".encode())


class Slots:
    """Who has which GPU, as the owners themselves say."""

    def __init__(self) -> None:
        with SLOTS.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    def owner(self, gpu: int) -> int:
        """The number of the owner that has a GPU and is not being killed; 0 for none."""
        (number,) = struct.unpack_from("I", self._memory, 4 * gpu)
        return 0 if self._memory[4 * len(UUIDS) + number] else number

    def write(self, gpu: int, number: int) -> None:
        """Say who has it."""
        struct.pack_into("I", self._memory, 4 * gpu, number)


def own(number: int, uid: int, room: bool, indices: list[int]) -> None:
    """The life of an owner, until a signal ends it."""
    os.setsid()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))
    library = LIBNVML
    if room:  # as in a container: the same file at another path
        ok(libc.unshare(NEWNS | NEWNET))
        ok(libc.mount(None, b"/", None, PRIVATE, None))
        library = LIBNVML.with_name("shown")
        ok(libc.mount(bytes(LIBNVML), bytes(library), None, BIND, None))
    slots = Slots()
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    try:
        lock = GpuLock(library, [Gpu(index, UUIDS[index], "H100", 81559) for index in indices])
    except GpuTaken:
        say(number, "refused")
        os._exit(0)
    for gpu in indices:
        if other := slots.owner(gpu):
            say(number, f"two owners of GPU {gpu}: {other} has it too")
        slots.write(gpu, number)
    say(number, "has")
    while signal.sigtimedwait((signal.SIGTERM, signal.SIGHUP), AGAIN_S) is None:
        check(slots, number, indices)
    check(slots, number, indices)
    for gpu in indices:
        slots.write(gpu, 0)
    lock.close()
    os._exit(0)


def check(slots: Slots, number: int, indices: list[int]) -> None:
    """Say so where another owner has written its number over ours."""
    for gpu in indices:
        if slots.owner(gpu) not in (0, number):
            say(number, f"two owners of GPU {gpu}: {slots.owner(gpu)} took it")


pids = {}
say(0, "ready")
for line in sys.stdin:
    number, *how = json.loads(line)
    if how:
        pids[number] = os.fork()
        if not pids[number]:
            try:
                own(number, *how)
            finally:
                os._exit(1)
        say(number, f"pid {pids[number]}")
    else:
        _, status = os.waitpid(pids[number], 0)
        say(number, f"ended {status}")
