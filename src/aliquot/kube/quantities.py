"""Kubernetes quantities, read exactly: `100m`, `0.5`, `4Gi`, `1e3`, `129e6`.

Source: apimachinery's resource.Quantity. A quantity is a decimal number with a binary suffix (Ki to Ei), a decimal
suffix (n, u, m, k to E) or an exponent.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from aliquot.model.quantities import BadQuantity

Quantity = str | int | float
_TEXT: Final = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_SUFFIX: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}
_MAX_DIGITS: Final = 64
_MIB: Final = 1024 * 1024


@lru_cache(maxsize=4096, typed=True)
def parse_quantity(text: Quantity) -> Fraction:
    """The exact value; remembered, for a cluster's pods repeat few quantities.

    Raises:
        BadQuantity: not in the form of a quantity.
    """
    written = text.strip() if isinstance(text, str) else str(text) if abs(text) < 10**_MAX_DIGITS else "too long"
    found = _TEXT.fullmatch(written) if len(written) <= _MAX_DIGITS else None
    if found is None:
        raise BadQuantity(f'"{written:.40}" is not a quantity; write a number with a suffix such as 500m, 4Gi or 2')
    suffix = found[2] or ""
    if suffix in _SUFFIX:
        return Fraction(found[1]) * _SUFFIX[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > _MAX_DIGITS:
        raise BadQuantity(f'"{written}" is out of range for a quantity')
    return Fraction(found[1]) * Fraction(10) ** exponent


def parse_count(text: Quantity) -> int:
    """A whole number that is not negative, as extended resources are.

    Raises:
        BadQuantity: not a quantity, negative, or broken.
    """
    value = parse_quantity(text)
    if value.denominator != 1 or value < 0:
        raise BadQuantity(f'"{text}" is not a whole number; this resource is counted in integers')
    return int(value)


@lru_cache(maxsize=4096, typed=True)
def milli(text: Quantity) -> int:
    """Thousandths, rounded up as Kubernetes does: CPU in milli-cores."""
    return math.ceil(parse_quantity(text) * 1000)


def mib_up(text: Quantity) -> int:
    """Bytes as MiB, rounded up."""
    return math.ceil(parse_quantity(text) / _MIB)


def format_mib_quantity(mib: int) -> str:
    """MiB as the shortest quantity: 4096 -> `4Gi`, 300 -> `300Mi`."""
    return f"{mib // 1024}Gi" if mib and mib % 1024 == 0 else f"{mib}Mi"
