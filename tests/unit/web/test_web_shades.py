"""The shades by which a page tells tenants apart."""

import re
from itertools import combinations
from pathlib import Path

import pytest

import aliquot.web
from aliquot.web.pages import SHADES
from aliquot.web.pages.overview import STEPS_MILLI

CSS_FILE = Path(aliquot.web.__file__).with_name("static") / "aliquot.css"
CSS = CSS_FILE.read_text()
LIGHT, DARK = CSS.split("@media (prefers-color-scheme: dark)")[:2]
VISIONS = {
    "trichromat": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""Source: Machado et al. (2009), "A Physiologically-based Model for Simulation of Color Vision Deficiency", at 1."""
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


def as_seen(colour: str, vision: str) -> tuple[float, float, float]:
    """The colour as a person with this vision sees it."""
    light = linear(colour)
    return lab([min(1.0, max(0.0, sum(w * p for w, p in zip(row, light, strict=True)))) for row in VISIONS[vision]])


def distance(one: str, other: str, vision: str) -> float:
    """How far apart two colours look; 2 is just noticeable side by side."""
    pair = zip(as_seen(one, vision), as_seen(other, vision), strict=True)
    return sum((x - y) ** 2 for x, y in pair) ** 0.5


def family(scheme: str, letter: str) -> list[str]:
    """The colours of a family, in their order."""
    return re.findall(rf"--{letter}\d: (#\w+)", scheme)


def one(scheme: str, name: str) -> str:
    """One colour by its name."""
    return re.search(rf"--{name}: (#\w+)", scheme)[1]  # type: ignore[index]


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""
    low, high = sorted(xyz(linear(colour))[1] for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_tenants_are_told_apart(scheme: str, vision: str):
    """Any two colours of tenants differ for every kind of vision, as do those of what they were promised."""
    near = {}
    for letter, least in (("t", 30), ("u", 14)):
        shades = family(scheme, letter)
        assert SHADES == len(shades)
        near |= {pair: found for pair in combinations(shades, 2) if (found := distance(*pair, vision)) < least}

    assert {} == near


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_steps_of_the_map_are_told_apart(scheme: str, vision: str):
    """Any two steps of the heat map differ for every kind of vision, and darker or lighter is always more."""
    steps = family(scheme, "h")
    light = [as_seen(step, vision)[0] for step in steps]

    assert len(STEPS_MILLI) + 1 == len(steps)
    assert sorted(light, reverse=scheme is LIGHT) == light
    assert {} == {pair: found for pair in combinations(steps, 2) if (found := distance(*pair, vision)) < 8}


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_states_are_told_apart(scheme: str, vision: str):
    """A GPU that is whole, shared, idle or wrong looks different for every kind of vision."""
    states = [one(scheme, name) for name in ("c0", "p1", "surface", "bad")]

    assert {} == {pair: found for pair in combinations(states, 2) if (found := distance(*pair, vision)) < 7}


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_lines_stand_out_from_the_page(scheme: str):
    """Every colour of a line has the contrast that WCAG asks of graphics, 3 to 1."""
    surface = one(scheme, "surface")

    assert {} == {shade: found for shade in family(scheme, "t") if (found := contrast(shade, surface)) < 3}


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_numbers_are_readable_on_every_step(scheme: str):
    """The text of a cell has the contrast that WCAG asks of text, 4.5 to 1."""
    inks = [one(scheme, name) for name in ("text", "text", "text", "warm", "hot", "hot")]

    assert [] == [pair for pair in zip(inks, family(scheme, "h"), strict=True) if contrast(*pair) < 4.5]


def test_as_many_dashes_as_colours():
    """A chart has a dash pattern of its own for each colour, so that lines differ without any."""
    script = CSS_FILE.with_name("charts.js").read_text()
    dashes = re.findall(r"\[[\d, ]*\]", re.search(r"dashes = \[(.*)\];", script)[1])  # type: ignore[index]

    assert SHADES == len(dashes) == len(set(dashes))
