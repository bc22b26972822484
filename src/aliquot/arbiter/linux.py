"""The Linux calls that Python 3.11 has no name for: timerfd, futex, kcmp; and the state of a process.

The calls are bound through PyDLL: none of them blocks here, and giving up the interpreter lock for a call of a
microsecond would let a metrics thread in between a token's return and the next grant.
"""

from __future__ import annotations

import ctypes
import os
import platform
import select
import struct
from pathlib import Path
from typing import Final

_libc: Final = ctypes.PyDLL(None, use_errno=True)
_FUTEX_WAKE: Final = 1
_SYS_FUTEX: Final = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 202)
_SYS_KCMP: Final = {"x86_64": 312, "aarch64": 272}.get(platform.machine(), 312)
_KCMP_FILE: Final = 0
_TFD_NONBLOCK_CLOEXEC: Final = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME: Final = 1
_CLOCK_MONOTONIC: Final = 1
_ITIMERSPEC: Final = struct.Struct("@4l")  # interval and value, in seconds and nanoseconds
_MACHINE_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_ALL_WAITERS: Final = 0x7FFFFFFF
F_SEAL_FUTURE_WRITE: Final = 0x10

_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]

_kcmp = ctypes.PyDLL(None, use_errno=True).syscall
_kcmp.restype = ctypes.c_long
_kcmp.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong]


def futex_wake(address: int) -> None:
    """Wake every thread that sleeps on the 32-bit word at this address, in any process."""
    _syscall(_SYS_FUTEX, address, _FUTEX_WAKE, _ALL_WAITERS)


def compare_open_files(pid: int, number: int, other_pid: int, other_number: int) -> int | None:
    """The kernel's order of two processes' open files, 0 if they are the same; None if the kernel does not say."""
    order = _kcmp(_SYS_KCMP, pid, other_pid, _KCMP_FILE, number, other_number)
    return {0: 0, 1: -1, 2: 1}.get(order)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger; False where it is not to be seen."""
    return _stat(pid)[:1] in ([b"T"], [b"t"])


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since the machine's boot; 0 where it is not to be seen."""
    return int((_stat(pid)[19:20] or [b"0"])[0])


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third on."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def machine_boot() -> str:
    """Names this boot of the machine."""
    try:
        return _MACHINE_BOOT.read_text().strip()[:8]
    except OSError:
        return "unknown"


class Timer:
    """A one-shot timer on CLOCK_MONOTONIC with nanoseconds; readable when it is due."""

    def __init__(self) -> None:
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._armed_ns = 0

    def fileno(self) -> int:
        """For a selector."""
        return int(self._fd)

    def arm(self, at_ns: int) -> None:
        """Be due at this time of CLOCK_MONOTONIC; a time that has passed is due at once."""
        if at_ns == self._armed_ns:
            return
        self._armed_ns = at_ns
        spec = _ITIMERSPEC.pack(0, 0, *divmod(max(1, at_ns), 1_000_000_000))
        _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, spec, None)

    def clear(self) -> None:
        """Take note that it was due."""
        self._armed_ns = 0
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)
