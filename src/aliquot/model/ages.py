"""How long ago something began, as kubectl writes it under AGE: `95s`, `2m5s`, `4h10m`, `3d`.

Source: `HumanDuration` of k8s.io/apimachinery/pkg/util/duration, whose steps these are.
"""

from __future__ import annotations

import math
from typing import Final

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
YEAR: Final = 365 * DAY
# Below so many seconds: the larger unit, and the smaller one that is written where it is not 0.
_STEPS: Final = (
    (2 * MINUTE, (1, "s"), None),
    (10 * MINUTE, (MINUTE, "m"), (1, "s")),
    (3 * HOUR, (MINUTE, "m"), None),
    (8 * HOUR, (HOUR, "h"), (MINUTE, "m")),
    (2 * DAY, (HOUR, "h"), None),
    (8 * DAY, (DAY, "d"), (HOUR, "h")),
    (2 * YEAR, (DAY, "d"), None),
    (8 * YEAR, (YEAR, "y"), (DAY, "d")),
    (math.inf, (YEAR, "y"), None),
)


def format_age(seconds: float) -> str:
    """`119.9` -> `119s`, `125` -> `2m5s`, `5400` -> `90m`; rounded down, and 0s for a clock that is behind."""
    whole = max(0, int(seconds))
    large, small = next((large, small) for below, large, small in _STEPS if whole < below)
    count, rest = divmod(whole, large[0])
    more = rest // small[0] if small else 0
    return f"{count}{large[1]}" + (f"{more}{small[1]}" if small and more else "")
