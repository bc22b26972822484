"""The shades by which a page tells tenants apart."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

import aliquot.web

CSS = Path(aliquot.web.__file__).with_name("static").joinpath("aliquot.css").read_text()
LIGHT, DARK = CSS.split("@media (prefers-color-scheme: dark)")[:2]
DEUTERANOPIA = (
    (0.367322, 0.860646, -0.227968),
    (0.280085, 0.672501, 0.047413),
    (-0.011820, 0.042940, 0.968881),
)
"""Source: Machado et al. (2009), "A Physiologically-based Model for Simulation of Color Vision Deficiency"."""
WHITE = (0.95047, 1.0, 1.08883)


def linear(colour: str) -> list[float]:
    """Red, green and blue of `#rgb` or `#rrggbb` as light, 0 to 1."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def xyz(light: list[float]) -> list[float]:
    """The same in the CIE's coordinates."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    return [sum(weight * part for weight, part in zip(row, light, strict=True)) for row in rows]


def lab(light: list[float]) -> tuple[float, float, float]:
    """The same in coordinates in which equal distances look alike."""
    x, y, z = (
        part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116
        for part in (value / white for value, white in zip(xyz(light), WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def as_seen(colour: str) -> tuple[float, float, float]:
    """The colour as a person without green cones sees it."""
    light = linear(colour)
    return lab([max(0.0, sum(w * part for w, part in zip(row, light, strict=True))) for row in DEUTERANOPIA])


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""
    low, high = sorted(xyz(linear(colour))[1] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("quantity", ["c", "m"], ids=["compute", "memory"])
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_tenants_are_told_apart_without_green_cones(scheme: str, quantity: str):
    """Any two of the four shades of a quantity differ with deuteranopia, and each stands out from the page."""
    shades = [re.search(rf"--{quantity}{i}: (#\w+)", scheme)[1] for i in range(4)]  # type: ignore[index]
    surface = re.search(r"--surface: (#\w+)", scheme)[1]  # type: ignore[index]
    distances = {
        (a, b): sum((x - y) ** 2 for x, y in zip(as_seen(a), as_seen(b), strict=True)) ** 0.5
        for a, b in combinations(shades, 2)
    }

    assert {} == {pair: round(distance) for pair, distance in distances.items() if distance < 15}
    assert {} == {shade: contrast(shade, surface) for shade in shades if contrast(shade, surface) < 3}
