"""Tables with columns under many names: delimiters are sniffed, names matched loosely, cells read as they stream by.

A table of a million lines is read line by line; nothing of it is kept here.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO, TypeVar

from aliquot.sim.imports.quantities import Unreadable
from aliquot.sim.tables import BadTable

DELIMITERS: Final = ("|", "\t", ",", ";")
MAX_CELL: Final = 1 << 24
Value = TypeVar("Value")


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """A text file to read, unpacked where its name ends in `.gz`.

    Raises:
        BadTable: it cannot be read, or is not UTF-8 text.
    """
    try:
        with path.open("rb") as raw:
            unpacked = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            yield io.TextIOWrapper(unpacked, "utf-8-sig", newline="")
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadTable(f"{path}: cannot be read ({reason})") from None
    except UnicodeDecodeError as error:
        raise BadTable(f"{path}: is not UTF-8 text (byte {error.start}); a table is wanted") from None


def key(name: str) -> str:
    """A column's name as it is compared: `Job ID`, `job_id` and `JobID` are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def sniffed(line: str) -> str:
    """The delimiter of a table by its first line; a comma where there is none."""
    return max(DELIMITERS, key=lambda delimiter: (line.count(delimiter), delimiter == ","))


class Line:
    """The line of a table that is being read; the same object for every line."""

    def __init__(self, path: Path, header: Sequence[str], columns: Mapping[str, int]) -> None:
        self.number = 0
        self.cells: Sequence[str] = ()
        self._path, self._header, self._columns = path, header, columns

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
            raise Unreadable(f'{self._path} line {self.number} column "{column}": {cell[:80]!r} {error}') from None


class Sheet:
    """A table whose columns are found by name: `fields` has the names that each field may have, the best first."""

    def __init__(self, path: Path, fields: Mapping[str, Sequence[str]], *, headless: Sequence[str] = ()) -> None:
        """`headless` are the columns of a table without a header line, in order."""
        self.path = path
        self._fields = fields
        self._headless = headless
        with opened(path) as file:
            first = file.readline(MAX_CELL)
        if not first.strip():
            raise BadTable(f"{path}: is empty; a table with a header line is wanted")
        self._delimiter = sniffed(first)
        csv.field_size_limit(MAX_CELL)
        cells = next(self._reader(iter([first])), [])
        self.width = len(cells)
        names = {key(cell) for cell in cells}
        self.has_header = bool(names & {key(name) for columns in fields.values() for name in columns})
        self.header = list(cells) if self.has_header or not headless else list(headless)
        at = {key(name): number for number, name in reversed(list(enumerate(self.header))) if name.strip()}
        found = {field: [at[key(name)] for name in columns if key(name) in at] for field, columns in fields.items()}
        self.columns = {field: places[0] for field, places in found.items() if places}
        used = {place for places in found.values() for place in places}
        self.unused = [name.strip() for number, name in enumerate(self.header) if number not in used and name.strip()]

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        # sacct quotes nothing, and names of jobs may have quotation marks.
        if self._delimiter == "|":
            return csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self._delimiter)

    def lines(self, broken: Callable[[str], None]) -> Iterator[Line]:
        """Every line with cells; one of another length than the header goes to `broken` and is skipped."""
        line = Line(self.path, self.header, self.columns)
        width = self.width
        with opened(self.path) as file:
            try:
                for line.number, cells in enumerate(self._reader(file), 1):
                    if (line.number == 1 and self.has_header) or not any(cells):
                        continue
                    if len(cells) == width:
                        line.cells = cells
                        yield line
                    else:
                        broken(f"{self.path} line {line.number}: has {len(cells)} cells, the first line {width}")
            except csv.Error as error:
                raise BadTable(f"{self.path} line {line.number + 1}: is no table ({error})") from None
