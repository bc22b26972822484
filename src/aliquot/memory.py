"""For programs that have GPU memory lent to them: gives it back when it is asked for.

Memory beyond a guarantee (`aliquot run --gpu-mem 8Gi --gpu-mem-limit 30Gi`) is called back when the guarantee of
another tenant needs it. First Aliquot takes what the program holds and does not use; then it asks the program, here;
then it parks it. A callback gets the number of bytes and the seconds it has, and runs in a thread of its own. What it
frees is seen; what it returns means nothing.

    import aliquot.memory

    aliquot.memory.torch()  # or vllm(llm), sglang(engine), kvcached(kvcached.control, limit_bytes=20 << 30)

Needs nothing but the standard library, so that this file alone can be copied into an image. Asked through the library
that stands before the driver, in this process, so it works in containers too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Callback = Callable[[int, float], object]
_WAIT_MS = 1_000
_NO_TENANT = 2**64 - 1
_callbacks: list[Callback] = []
_lock = threading.Lock()


def on_call_back(callback: Callback) -> bool:
    """Call `callback(size_bytes, seconds)` whenever memory is asked for; False where this process has no share.

    There nothing is lent, and the callback is never called.
    """
    wanted = _wanted()
    if wanted is None:
        return False
    with _lock:
        _callbacks.append(callback)
        if len(_callbacks) == 1:
            threading.Thread(target=_listen, args=(wanted,), name="aliquot-memory", daemon=True).start()
    return True


def torch() -> bool:
    """Return what PyTorch keeps cached and does not use."""

    def empty_cache(_size_bytes: int, _seconds: float) -> None:
        gc.collect()
        if (found := sys.modules.get("torch")) is not None and found.cuda.is_initialized():
            found.cuda.empty_cache()

    return on_call_back(empty_cache)


def vllm(llm: Any, *, level: int = 1) -> bool:
    """Put a vLLM engine (`LLM(..., enable_sleep_mode=True)`) to sleep; wake it with `llm.wake_up()`."""
    return on_call_back(lambda _size_bytes, _seconds: llm.sleep(level=level))


def sglang(engine: Any) -> bool:
    """Release the memory of an SGLang engine (`enable_memory_saver=True`) until `engine.resume_memory_occupation()`."""
    return on_call_back(lambda _size_bytes, _seconds: engine.release_memory_occupation())


def kvcached(control: Any, *, limit_bytes: int) -> bool:
    """Shrink the key-value cache of kvcached, whose module `kvcached.control` is given, by what is asked for.

    `limit_bytes` is what it may have at first.
    """
    revisions, left = itertools.count(1), [limit_bytes]

    def shrink(size_bytes: int, _seconds: float) -> None:
        left[0] = max(0, left[0] - size_bytes)
        control.set_instance_memory_limit(left[0], revision=next(revisions))

    return on_call_back(shrink)


def _wanted() -> Any:
    """The library's function, if this process is of a tenant.

    NVML makes the GPU known to it, without a context: a program whose work is in other processes has none.
    """
    with contextlib.suppress(OSError, AttributeError):
        nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0:
            nvml.nvmlDeviceGetMemoryInfo(device, (ctypes.c_uint64 * 3)())
    for name in (None, "libcuda.so.1"):
        with contextlib.suppress(OSError, AttributeError):
            wanted = ctypes.CDLL(name).aliquot_memory_wanted
            wanted.restype = ctypes.c_uint64
            calls, by_ns = ctypes.c_uint32(), ctypes.c_uint64()
            if wanted(ctypes.byref(calls), 0, ctypes.byref(by_ns)) != _NO_TENANT:
                return wanted
    return None


def _listen(wanted: Any) -> None:
    calls, by_ns, answered = ctypes.c_uint32(), ctypes.c_uint64(), 0
    while True:
        size_bytes = wanted(ctypes.byref(calls), _WAIT_MS, ctypes.byref(by_ns))
        if not size_bytes or calls.value == answered:
            continue
        answered = calls.value
        seconds = max(0.0, (by_ns.value - time.monotonic_ns()) / 1e9)
        for callback in _callbacks:
            try:
                callback(size_bytes, seconds)
            except Exception:
                logging.getLogger(__name__).exception("a callback gave no GPU memory back")
