"""A transform by cuFFT in a new thread: in one that has done nothing else, and after cudaSetDevice."""

import ctypes
import json
import threading
from importlib.metadata import files
from pathlib import Path

from counters import launches

C2C, FORWARD, POINTS = 0x29, -1, 1024


def library(package: str, name: str) -> ctypes.CDLL:
    """A library of an installed wheel."""
    return ctypes.CDLL(str(next(Path(f.locate()) for f in files(package) if f.name.startswith(name))))


def transform(fft: ctypes.CDLL, data: ctypes.c_void_p, prepare: list) -> list[int]:
    """The codes of a plan and of its execution in a thread of their own."""
    codes: list[int] = []

    def work() -> None:
        for call in prepare:
            call()
        plan = ctypes.c_int()
        codes.append(fft.cufftPlan1d(ctypes.byref(plan), POINTS, C2C, 1))
        codes.append(fft.cufftExecC2C(plan, data, data, FORWARD))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return codes


def main() -> None:
    runtime, fft = library("nvidia-cuda-runtime", "libcudart.so."), library("nvidia-cufft", "libcufft.so.")
    data = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(data), ctypes.c_size_t(8 * POINTS)) == 0
    facts = {"cold": transform(fft, data, []), "warm": transform(fft, data, [lambda: runtime.cudaSetDevice(0)])}
    print(json.dumps(facts | launches()))


main()
