"""Temperature, power and clocks of a GPU."""

from __future__ import annotations

import msgspec


class Sensors(msgspec.Struct, frozen=True):
    """What NVML measures of one GPU; None where it does not answer."""

    celsius: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
