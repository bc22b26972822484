"""Fractions of a GPU and amounts of memory: text at the edges, integers inside.

A fraction is a number of milli-GPU (1000 = one GPU), memory a number of MiB. Text is read exactly (no binary floating
point on the way), so `0.3` is 300 and `0.3335` is refused instead of rounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from aliquot.model.errors import UserError

MILLI: Final = 1000
_NUMBER: Final = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*([A-Za-z%]{0,3})", re.ASCII)
_MILLI: Final = {"": MILLI, "%": MILLI // 100, "m": 1}
_MIB: Final = Fraction(1024 * 1024)
_BYTES: Final = {
    "Ki": Fraction(1024),
    "Mi": _MIB,
    "Gi": Fraction(1024**3),
    "Ti": Fraction(1024**4),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
}


class BadQuantity(UserError):
    """A text that is not a quantity of the kind asked."""


def _text_of(value: str | int | float) -> str:
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a number of more than 18 digits"  # Python refuses to write the longest ones
    return str(value)


def _split(text: str | int | float) -> tuple[Fraction, str] | None:
    found = _NUMBER.fullmatch(_text_of(text).strip())
    return None if found is None else (Fraction(found[1]), found[2])


def _shown(text: str | int | float) -> str:
    return f"{_text_of(text):.40}"


def parse_milli(text: str | int | float) -> int:
    """Milli-GPU of `0.3`, `30%`, `300m`, `2.5` or `1`.

    Raises:
        BadQuantity: no number, negative, finer than a thousandth of a GPU, or more than 100 %.
    """
    parts = _split(text)
    if parts is None or parts[1] not in _MILLI:
        raise BadQuantity(f'"{_shown(text)}" is not a fraction of a GPU; write 0.3, 30% or 300m')
    number, unit = parts
    milli = number * _MILLI[unit]
    if unit == "%" and milli > MILLI:
        instead = f"{float(number / 100):g}"
        raise BadQuantity(f'"{_shown(text)}" is more than one GPU; a percentage is at most 100%, write {instead}')
    if milli.denominator != 1:
        decimals = "one decimal" if unit == "%" else "three decimals"
        raise BadQuantity(f'"{text}" is finer than a thousandth of a GPU; write at most {decimals}')
    return int(milli)


def format_milli(milli: int) -> str:
    """`300` -> `0.30`, `333` -> `0.333`: two decimals unless the third says something."""
    return f"{milli / MILLI:.3f}" if milli % 10 else f"{milli / MILLI:.2f}"


@dataclass(frozen=True)
class Memory:
    """An amount of GPU memory: so many MiB, or a part of whatever device it falls on."""

    mib: int | None = None
    part: Fraction | None = None

    def on(self, device_mib: int) -> int:
        """MiB on a device of that size; parts are rounded down to whole MiB."""
        if self.mib is not None:
            return self.mib
        return int((self.part or Fraction(0)) * device_mib)

    @property
    def quantity(self) -> str:
        """As a manifest has it."""
        return str(self) if self.mib is None else f"{self.mib}Mi"

    def __str__(self) -> str:
        return format_mib(self.mib) if self.mib is not None else f"{float((self.part or 0) * 100):g}%"


def parse_memory(text: str | int | float) -> Memory:
    """`4Gi`, `512Mi`, `4G` (10^9 bytes), `4096` (MiB) or `25%` (of the device); `4GiB` is `4Gi`, as it is printed.

    Raises:
        BadQuantity: none of these, nothing at all, or a part above 100 %.
    """
    parts = _split(text)
    if parts is not None and parts[1].removesuffix("iB") in ("K", "M", "G", "T"):
        parts = (parts[0], parts[1].removesuffix("B"))
    if parts is None or (parts[1] not in ("", "%") and parts[1] not in _BYTES):
        raise BadQuantity(
            f'"{_shown(text)}" is not an amount of memory; write 4Gi, 512Mi, 4096 (MiB) or 25% (of the device)'
        )
    number, unit = parts
    if unit == "%":
        if not 0 < number <= 100:
            raise BadQuantity(f'"{text}" of a device\'s memory is not allowed; write more than 0%, and 100% at most')
        return Memory(part=number / 100)
    mib = number if unit == "" else number * _BYTES[unit] / _MIB
    if mib < 1:
        if unit == "" and number > 0:
            part = f"{float(number * 100):g}%"
            raise BadQuantity(f'"{text}" is less than 1 MiB of memory; for that part of a device write {part}')
        raise BadQuantity(f'"{text}" is less than 1 MiB of memory; plain numbers are MiB, so 4 GiB is 4Gi or 4096')
    return Memory(mib=int(mib))


def format_mib(mib: int) -> str:
    """`4096` -> `4.0 GiB`, `300` -> `300 MiB`."""
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"
