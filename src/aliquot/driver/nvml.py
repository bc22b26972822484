"""NVML from a library that is named by its path."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any


def load_nvml(libnvml: str | Path) -> Any:
    """pynvml on this library, which a process keeps for its life; it is not started.

    Raises:
        OSError: the library cannot be loaded.
    """
    # Loaded by path first: pynvml then asks for the bare name, and the loader answers with the one already here.
    ctypes.CDLL(str(libnvml), mode=ctypes.RTLD_GLOBAL)
    import pynvml

    return pynvml
