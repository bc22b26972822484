"""A latency class: how soon a tenant's first kernel starts when it wakes after a rest, within its request.

A tenant that wakes waits for the work that its neighbour has queued, which is bounded in time while the promise stands;
one kernel of it more, since a kernel is never cut; and the hand-over. So a promise says how long the kernels of
neighbours may be. Times are microseconds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from aliquot.model.quantities import BadQuantity

LEAST_US: Final = 1_000
MAX_US: Final = 10_000_000
IN_FLIGHT_US: Final = 2_000
"""GPU time that a thread may have queued while others share its GPU and none of them has a promise."""
IN_FLIGHT_PART: Final = 4
"""A promise lets its neighbours queue this part of it."""
HANDOVER_US: Final = 500
"""From the end of the neighbour's work to the first kernel: 0.3 ms on the emulated driver, and some room."""
TURN_US: Final = 2_500
"""What another tenant with a promise adds: it keeps a turn for 2 ms, and there is one hand-over more."""
_SECOND_US: Final = 1_000_000
YEAR_S: Final = 8760 * 3600
_MICRO: Final = "\N{MICRO SIGN}s"
_GREEK: Final = "\N{GREEK SMALL LETTER MU}s"
_UNITS: Final = {
    "ns": Fraction(1, 1000), "us": Fraction(1), _MICRO: Fraction(1), _GREEK: Fraction(1), "ms": Fraction(1000),
    "s": Fraction(_SECOND_US), "m": Fraction(60 * _SECOND_US), "h": Fraction(3600 * _SECOND_US),
}  # fmt: skip
_PART: Final = re.compile(rf"(\d{{1,18}}(?:\.\d{{0,18}})?|\.\d{{1,18}})({'|'.join(_UNITS)})", re.ASCII)


def parse_span(text: object) -> float:
    """Seconds of a duration of any length: `10m`, `1h30m`, `90s`; a plain number is seconds.

    Raises:
        BadQuantity: no duration, or none at all.
    """
    plain = isinstance(text, int) or (isinstance(text, str) and text.isascii() and text.isdigit())
    found = _microseconds(f"{text}s" if plain else text, "10m, 1h30m or 90s")
    if not 0 < found <= YEAR_S * _SECOND_US:
        raise BadQuantity(f'"{text!s:.40}" is not between nothing and a year (8760h); write 10m, 1h30m or 90s')
    return float(found / _SECOND_US)


def _microseconds(text: object, examples: str) -> Fraction:
    """A duration as Go and Kubernetes write it.

    Raises:
        BadQuantity: it is none; the text gives `examples`.
    """
    written = text if isinstance(text, str) else ""
    parts = _PART.findall(written)
    shown = f"{text!s:.40}" if not isinstance(text, int) or abs(text) < 10**18 else "a number of more than 18 digits"
    if not parts or "".join(number + unit for number, unit in parts) != written:
        raise BadQuantity(f'"{shown}" is not a duration; write {examples}')
    return sum((Fraction(number) * _UNITS[unit] for number, unit in parts), Fraction(0))


def parse_wake(text: object) -> int:
    """Microseconds of a duration as Go and Kubernetes write it: `5ms`, `1.5ms`, `1s`, `1s500ms`.

    Raises:
        BadQuantity: no duration, finer than a microsecond, or out of range.
    """
    found = _microseconds(text, "5ms, 1s or 1500us")
    shown = f"{text!s:.40}"
    if not LEAST_US <= found <= MAX_US or found.denominator != 1:
        allowed = f"{format_wake(LEAST_US)} to {format_wake(MAX_US)}, in whole microseconds"
        raise BadQuantity(f'"{shown}" is not a time to wake in that can be promised; {allowed}')
    return int(found)


def format_wake(wake_us: int) -> str:
    """`5000` -> `5ms`: text that `parse_wake` reads as the same."""
    for unit, size in (("s", _SECOND_US), ("ms", 1000)):
        if wake_us % size == 0:
            return f"{wake_us // size}{unit}"
    return f"{wake_us}us"


def format_us(time_us: int) -> str:
    """`20000` -> `20 ms`, `3250` -> `3.2 ms`: as a person reads it, rounded down."""
    return f"{time_us // 100 / 10:g} ms" if time_us < 10_000 else f"{time_us // 1000} ms"


def in_flight_us(wake_us: int, max_us: int = IN_FLIGHT_US) -> int:
    """GPU time that neighbours may have queued beside a tenant of this promise; without one (0), what others may."""
    return min(max_us, wake_us // IN_FLIGHT_PART) if wake_us else max_us


def longest_kernel_us(wake_us: int, rivals: int = 0) -> int:
    """How long a neighbour's kernel may be for the promise to be kept; 0 or less: none can be.

    `rivals` are the other tenants of the GPU that have a promise too.
    """
    return wake_us - in_flight_us(wake_us) - HANDOVER_US - rivals * TURN_US
