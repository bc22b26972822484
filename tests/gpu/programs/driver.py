"""The driver by its plain name and what the hook counts, for programs that want neither a framework nor bindings."""

from __future__ import annotations

import ctypes
import time
from importlib.resources import files
from pathlib import Path

from kit.driver_calls import DriverError, OwnDriver

COUNTERS = {"mode": 1, "launches": 2, "unknown": 5, "mapped": 6, "names": 7, "charged_bytes": 12, "disagreed": 19}


class Driver(OwnDriver):
    """libcuda.so.1 with the first GPU's primary context current and a kernel that spins, on a real GPU too."""

    def __init__(self) -> None:
        super().__init__()
        assert self.open() == 0
        self.spin_kernel = self.load()

    def load(self) -> int:
        """The kernel spin_ns of a fresh module, in the current context."""
        ptx = files("aliquot_lab.bench").joinpath("spin.ptx").read_bytes() + b"\0"
        return self.new("cuModuleGetFunction", self.new("cuModuleLoadData", ptx), "spin_ns")

    def new_stream(self) -> int:
        """A non-blocking stream."""
        return self.new("cuStreamCreate", 1)

    def spin(self, duration_ns: int, stream: int, kernel: int = 0) -> None:
        """Launch one kernel of that duration, which must succeed."""
        if code := self.launch(kernel or self.spin_kernel, duration_ns, stream):
            raise DriverError(f"cuLaunchKernel: {code}")


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
