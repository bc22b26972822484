"""Gives placement its native inner loops, where they are installed; called once by each program that decides."""

from __future__ import annotations

from aliquot.driver.native import KERNELS, NativePartMissing, native_part
from aliquot.placement import kernels


def use_kernels() -> bool:
    """Whether the native loops are in use from now on; without them placement gives the same answers, slower."""
    try:
        return kernels.use(str(native_part(KERNELS))).native
    except (NativePartMissing, OSError):
        kernels.use(None)
        return False
