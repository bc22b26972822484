"""The cost of a CUDA context before it has been measured.

A context takes hundreds of MiB of its own, and a program may fill its limit within milliseconds of making it; so the
arbiter charges an allowance at once and corrects it by what NVML says a second later.
"""

from __future__ import annotations

from typing import Final

UNKNOWN_MIB: Final = 300


def context_allowance_mib(model: str, memory_mib: int) -> int:
    """MiB to charge for a context on a GPU of this model, to a tenant that may have `memory_mib` of it.

    The profile of the same model says it, and a tenant with less memory than that has no context. For another model it
    is a guess, and half of the tenant's memory at most: a tenant with little may run until the truth is measured.
    """
    from aliquot.driver.emulation import PROFILES

    known = [profile.context_mib for profile in PROFILES.values() if profile.model == model]
    return known[0] if known else min(UNKNOWN_MIB, memory_mib // 2)
