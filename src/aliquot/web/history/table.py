"""GPU-hours as a table: by which names they are summed, the columns, and the file for spreadsheets."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Final

from aliquot.model.errors import UserError
from aliquot.model.quantities import BadQuantity
from aliquot.model.wake import parse_span
from aliquot.web.history.file import QUARTER_S
from aliquot.web.history.reading import DIMENSIONS, RANGES, Range
from aliquot.web.history.records import HourLine, Hours

DEFAULT_RANGE: Final = "7d"
DEFAULT_DIMENSIONS: Final = ("namespace", "controller")
COLUMNS: Final[Mapping[str, str]] = {
    "promised": "Promised",
    "used": "Used",
    "borrowed": "Borrowed",
    "lent": "Lent to others",
    "idle": "Idle",
    "waited": "Waited",
}
_LONGEST_S: Final = max(span.seconds for span in RANGES.values())
_DAYS: Final = re.compile(r"(\d{1,2})d", re.ASCII)


def hours_range(word: str, called: str = "range") -> Range:
    """How far a word says to look back: one of `RANGES`, or any duration in whole quarter hours, rounded up.

    Raises:
        UserError: it is no duration, shorter than 15 minutes or longer than 30 days; `called` is the word's name in the
            text.
    """
    found = RANGES.get(word or DEFAULT_RANGE)
    if found is not None:
        return found
    days = _DAYS.fullmatch(word)
    try:
        seconds = 86_400 * int(days[1]) if days else parse_span(word)
    except BadQuantity:
        seconds = 0
    if not QUARTER_S <= seconds <= _LONGEST_S:
        raise UserError(f'{called} "{word[:20]}" is unknown; write 15m to 30d, such as 24h or 7d')
    quarters = -int(-seconds // QUARTER_S)
    return Range(word, QUARTER_S * quarters, QUARTER_S, "quarters")


def dimensions(text: str, called: str = "by") -> tuple[str, ...]:
    """What hours are summed by, in order; `text` has the names with commas between them.

    Raises:
        UserError: there is no such dimension; `called` is the name of the text.
    """
    words = [word for word in text.split(",") if word] or DEFAULT_DIMENSIONS
    unknown = next((word for word in words if word not in DIMENSIONS), None)
    if unknown is not None:
        raise UserError(f'{called} "{unknown[:40]}" is unknown; name some of {", ".join(DIMENSIONS)}')
    return tuple(name for name in DIMENSIONS if name in words)


def names_of(line: HourLine, by: Sequence[str]) -> list[str]:
    """Of a line, the names of the dimensions."""
    names = dict(zip(DIMENSIONS, (line.namespace, line.owner, line.model), strict=True))
    return [names[dimension] for dimension in by]


def format_hours(value: float) -> str:
    """`0.1234` -> `0.12`, `1234.5` -> `1,234.5`."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def as_csv(hours: Hours, by: Sequence[str]) -> str:
    """The lines as a table for spreadsheets, hours with the digits that matter (3.6 ms)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([*by, *(f"{field}_gpu_hours" for field in COLUMNS)])
    for line in hours.lines:
        writer.writerow([*names_of(line, by), *(f"{getattr(line, field):.6f}" for field in COLUMNS)])
    return out.getvalue()
