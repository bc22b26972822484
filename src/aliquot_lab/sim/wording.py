"""Durations and amounts as people read them; files for programs keep seconds."""

from __future__ import annotations

from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Two units at most: `14 h 14 min`, `3 d 4 h`, `39 s`, `0.4 s`."""
    if seconds < 9.95:
        return "0 s" if seconds < 0.05 else f"{seconds:.1f} s"
    whole = round(seconds)
    at = next(number for number, (_, size) in enumerate(_UNITS) if whole >= size)
    unit, size = _UNITS[at]
    if at == len(_UNITS) - 1:
        return f"{whole} s"
    smaller, small_size = _UNITS[at + 1]
    count = round(seconds / small_size)  # rounded to the smaller unit, which may carry over
    first, second = divmod(count, size // small_size)
    if at and first == _UNITS[at - 1][1] // size:
        return f"1 {_UNITS[at - 1][0]}"
    return f"{first} {unit} {second} {smaller}" if second else f"{first} {unit}"


def number(value: float) -> str:
    """A number with as many digits as help: 93.86, 1,234, 0.0421."""
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:,.0f}" if size >= 1000 else f"{value:.2f}" if size >= 0.1 else f"{value:.4f}"


def load_percent(percent: float) -> str:
    """An offered load with a decimal where it matters on which side of 100 it is."""
    return f"{percent:.1f}" if 99 < percent < 101 else f"{percent:.0f}"


def part_waits(at: str, whom: str = "the jobs") -> str:
    """How `p90` is read in a sentence about waits."""
    return f"the mean wait of {whom} is" if at == "mean" else f"{at.removeprefix('p')} % of {whom} wait at most"
