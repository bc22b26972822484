"""All checks, in the order in which they run: what everything else rests on comes first.

Training comes before what is measured with kernels of known duration, for only real work shows whether a share is kept;
last comes what repeats an earlier check in another way, so that a short budget costs least.
"""

from __future__ import annotations

from importlib import import_module

from base import CHECKS, Missing

for _name in ("checks_driver", "checks_beside", "checks_memory", "checks_change", "checks_cost"):
    import_module(_name)

LAST = ("gate", "allocation", "slowdown", "handover", "storm", "compute-cupy-preload", "compute-triton-preload")
LAST += ("compute-numba-preload", "compute-jax-preload", "fig6")
for _name in LAST:
    CHECKS[_name] = CHECKS.pop(_name)

__all__ = ["CHECKS", "Missing"]
