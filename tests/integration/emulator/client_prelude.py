# ruff: noqa: F401 - what the client programs of these tests begin with
import ctypes
import json
import os
import sys
import time

from cuda.bindings import driver as d

PTX = b".visible .entry spin_ns(.param .u64 ns){ret;}\n.visible .entry step_ms2(){ret;}\n\0"


def answer(value):
    print(json.dumps(value), flush=True)


def ck(result):
    if int(result[0]) != 0:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def code(result):
    return int(result[0])


def open_gpu(ordinal=0):
    ck(d.cuInit(0))
    context = ck(d.cuDevicePrimaryCtxRetain(ck(d.cuDeviceGet(ordinal))))
    ck(d.cuCtxSetCurrent(context))
    return context


class Spinner:
    def __init__(self, name=b"spin_ns", stream=None):
        self.function = ck(d.cuModuleGetFunction(ck(d.cuModuleLoadData(PTX)), name))
        self.stream = ck(d.cuStreamCreate(1)) if stream is None else stream
        self.ns = (ctypes.c_uint64 * 1)()
        self.params = (ctypes.c_void_p * 1)(ctypes.addressof(self.ns))

    def launch(self, ns=0):
        self.ns[0] = ns
        ck(self.try_launch())

    def try_launch(self):
        at = ctypes.addressof(self.params)
        return d.cuLaunchKernel(self.function, 1, 1, 1, 1, 1, 1, 0, self.stream, at, 0)

    def sync(self):
        ck(d.cuStreamSynchronize(self.stream))
