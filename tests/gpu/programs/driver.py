"""The driver by its plain name and what the hook counts, for programs that want neither a framework nor bindings."""

from __future__ import annotations

import ctypes
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

COUNTERS = {"mode": 1, "launches": 2, "unknown": 5, "mapped": 6, "names": 7, "charged_bytes": 12, "disagreed": 19}
NON_BLOCKING = 1


class DriverError(RuntimeError):
    """A call of the driver failed; `code` is its CUresult."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} -> {code}")
        self.code = code


class Driver:
    """libcuda.so.1 with the first GPU's primary context current and a kernel that spins."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self("cuCtxSetCurrent", self.context)
        self.spin_kernel = self.load()

    def __call__(self, name: str, *arguments: Any) -> None:
        """One call that has to succeed.

        Raises:
            DriverError: it did not.
        """
        code = getattr(self.library, name)(*arguments)
        if code:
            raise DriverError(name, code)

    def load(self) -> ctypes.c_void_p:
        """The kernel spin_ns of a fresh module, in the current context."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        ptx = files("aliquot_lab.bench").joinpath("spin.ptx").read_bytes() + b"\0"
        self("cuModuleLoadData", ctypes.byref(module), ptx)
        self("cuModuleGetFunction", ctypes.byref(function), module, b"spin_ns")
        return function

    def stream(self) -> ctypes.c_void_p:
        """A non-blocking stream."""
        made = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(made), NON_BLOCKING)
        return made

    def spin(self, duration_ns: int, stream: ctypes.c_void_p, kernel: ctypes.c_void_p | None = None) -> None:
        """Launch one kernel of that duration."""
        value = ctypes.c_uint64(duration_ns)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self("cuLaunchKernel", kernel or self.spin_kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)


def counters() -> dict[str, int]:
    """What the hook of this process has counted; empty without one. Preloaded, it answers for the whole program."""
    for library in (ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)):
        out = (ctypes.c_uint64 * 64)(64 * 8)
        if hasattr(library, "aliquot_stats") and library.aliquot_stats(out) == 0:
            return {name: out[at] for name, at in COUNTERS.items()}
    return {}


def hold(file: Path) -> None:
    """Keep this process and its contexts until `file`, which this makes, is removed; 10 s at most."""
    file.touch()
    until = time.monotonic() + 10
    while file.exists() and time.monotonic() < until:
        time.sleep(0.01)
