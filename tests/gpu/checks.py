"""All checks, in the order in which they run: what everything else rests on comes first, what takes long comes last."""

from __future__ import annotations

from importlib import import_module

from base import CHECKS, Missing

for _name in ("checks_driver", "checks_beside", "checks_memory", "checks_cost"):
    import_module(_name)

__all__ = ["CHECKS", "Missing"]
