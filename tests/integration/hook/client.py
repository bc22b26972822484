"""What the test programs start with: the driver by its plain name, and a few calls of it. Runs under the hook."""

import ctypes
import json
import os
import sys
import time

from kit.driver_calls import COUNTERS, PTX


def say(**facts):
    """One line of JSON for the test."""
    print(json.dumps(facts), flush=True)


def wait_line():
    """Waits for the test to say go on."""
    return sys.stdin.readline().strip()


class Cuda:
    """The driver API through ctypes; `load` is how the library is opened."""

    def __init__(self, load=None, device=0, *, context=True):
        self.lib = (load or ctypes.CDLL)("libcuda.so.1")
        self.init = self.lib.cuInit(0)
        self.ctx = ctypes.c_void_p()
        self.retained = None
        if context:
            self.retained = self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(self.ctx), device)
            self.lib.cuCtxSetCurrent(self.ctx)

    def spin(self):
        """The function spin_ns of a fresh module."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        assert self.lib.cuModuleLoadData(ctypes.byref(module), PTX) == 0
        assert self.lib.cuModuleGetFunction(ctypes.byref(function), module, b"spin_ns") == 0
        return function

    def launch(self, function, ns, stream=None, name="cuLaunchKernel"):
        """Launches spin_ns; the driver's answer."""
        value = ctypes.c_uint64(ns)
        params = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        one = ctypes.c_uint(1)
        return getattr(self.lib, name)(function, one, one, one, one, one, one, 0, stream, params, None)

    def sync(self):
        """cuCtxSynchronize."""
        return self.lib.cuCtxSynchronize()

    def stats(self):
        """The hook's own counters."""
        out = (ctypes.c_uint64 * len(COUNTERS))(len(COUNTERS) * 8)
        hook = self.lib if hasattr(self.lib, "aliquot_stats") else ctypes.CDLL(None)
        assert hook.aliquot_stats(out) == 0
        return dict(zip(COUNTERS, out, strict=True))


__all__ = ["PTX", "Cuda", "ctypes", "os", "say", "sys", "time", "wait_line"]
