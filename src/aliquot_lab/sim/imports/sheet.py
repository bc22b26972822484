"""Tables with columns under many names: delimiters are sniffed, names matched loosely, cells read as they stream by.

A table of a million lines is read line by line; nothing of it is kept here. What stands before the header line (a
command, a warning, blank lines) is passed over, and so is a header line that appears again, as in files put together.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from aliquot_lab.sim.imports.quantities import Unreadable
from aliquot_lab.sim.tables import BadTable, opened

DELIMITERS: Final = ("|", "\t", ",", ";")
MAX_CELL: Final = 1 << 24
MAX_PREAMBLE: Final = 20
"""Lines in which a header line is looked for."""
Value = TypeVar("Value")


def key(name: str) -> str:
    """A column's name as it is compared: `Job ID`, `job_id` and `JobID` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def sniffed(line: str) -> str:
    """The delimiter of a table by its first line; a comma where there is none."""
    return max(DELIMITERS, key=lambda delimiter: (line.count(delimiter), delimiter == ","))


class Line:
    """The line of a table that is being read; the same object for every line."""

    def __init__(self, path: Path, header: Sequence[str], columns: Mapping[str, int], what: str = "line") -> None:
        self.number = 0
        self.what = what
        self.cells: Sequence[str] = ()
        self._path, self._header, self._columns = path, header, columns

    def __str__(self) -> str:
        return f"{self._path} {self.what} {self.number}"

    def has(self, field: str) -> bool:
        """Whether the table has a column for a field."""
        return field in self._columns

    def text(self, field: str) -> str:
        """A cell without blanks around it; empty where the table has no such column."""
        at = self._columns.get(field)
        return "" if at is None else self.cells[at].strip()

    def read(self, field: str, parse: Callable[[str], Value]) -> Value:
        """A cell as `parse` reads it; without such a column, an empty one.

        Raises:
            Unreadable: the cell is not what is wanted; file, line, column and value are named.
        """
        cell = self.text(field)
        try:
            return parse(cell)
        except Unreadable as error:
            at = self._columns.get(field)
            column = field if at is None else self._header[at]
            raise Unreadable(f'{self} column "{column}": {cell[:80]!r} {error}') from None


class Sheet:
    """A table whose columns are found by name: `fields` has the names that each field may have, the best first."""

    def __init__(self, path: Path, fields: Mapping[str, Sequence[str]], *, headless: Sequence[str] = ()) -> None:
        """`headless` are the columns of a table without a header line, in order."""
        self.path = path
        known = {key(name) for columns in fields.values() for name in columns}
        self._before, first = _first_line(path, known)
        self._delimiter = sniffed(first)
        csv.field_size_limit(MAX_CELL)
        cells: list[str] = next(self._reader(iter([first])), [])
        self.width = len(cells)
        self.has_header = bool({key(cell) for cell in cells} & known)
        self.header = list(cells) if self.has_header or not headless else list(headless)
        at = {key(name): number for number, name in reversed(list(enumerate(self.header))) if name.strip()}
        found = {field: [at[key(name)] for name in columns if key(name) in at] for field, columns in fields.items()}
        self.columns = {field: places[0] for field, places in found.items() if places}
        used = {place for places in found.values() for place in places}
        self.unused = [name.strip() for number, name in enumerate(self.header) if number not in used and name.strip()]

    def _reader(self, lines: Iterable[str]) -> Any:  # csv's own type has no public name
        # sacct quotes nothing, and names of jobs may have quotation marks.
        if self._delimiter == "|":
            return csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self._delimiter)

    def lines(self, broken: Callable[[str], None]) -> Iterator[Line]:
        """Every line with cells; one of another length than the header goes to `broken` and is skipped."""
        line = Line(self.path, self.header, self.columns)
        width, header = self.width, self.header if self.has_header else None
        with opened(self.path, "replace") as file:
            for _ in range(self._before):
                file.readline(MAX_CELL)
            rows, ended = self._reader(file), self._before
            try:
                for cells in rows:
                    # A quoted cell may hold line breaks: a row begins behind the last line of the one before.
                    line.number, ended = ended + 1, self._before + rows.line_num
                    if cells == header or not any(cells):
                        continue
                    if len(cells) == width:
                        line.cells = cells
                        yield line
                    else:
                        broken(f"{line}: has {len(cells)} cells, the first line {width}")
            except csv.Error as error:
                raise BadTable(f"{self.path} line {self._before + rows.line_num}: is no table ({error})") from None


def _first_line(path: Path, known: Collection[str]) -> tuple[int, str]:
    """The header line and how many lines stand before it: the one with most known names, else the first not blank."""
    best = (0, 0, "")
    with opened(path, "replace") as file:
        for number, text in enumerate(islice(iter(lambda: file.readline(MAX_CELL), ""), MAX_PREAMBLE)):
            named = len({key(cell) for cell in text.split(sniffed(text))} & set(known))
            if text.strip() and (not best[2] or named > max(best[0], 1)):
                best = (named, number, text)
    if not best[2]:
        raise BadTable(f"{path}: is empty; a table with a header line is wanted")
    return best[1:]
