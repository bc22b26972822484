"""CSV in and out: every error names its line and column, and a file appears whole or not at all.

Files whose name ends in `.gz` are read and written compressed, with no time stamp, so equal content is equal bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from aliquot.lib import files
from aliquot.model.errors import UserError

_PACKED: Final = {
    b"PK\x03\x04": "a zip archive", b"\xfd7zXZ": "packed with xz", b"BZh": "packed with bzip2",
    b"(\xb5/\xfd": "packed with zstd",
}  # fmt: skip
_UNITS: Final = {"_s": "seconds", "_mib": "MiB", "_milli": "thousandths"}


class BadTable(UserError):
    """A file that is not a table of the expected kind; the text names line and column."""


@dataclass(frozen=True)
class TableRow:
    """One line of a table, with what is needed to say where it is wrong."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def fault(self, column: str, what: str) -> BadTable:
        """The error to raise for a cell: file, line, column, value, and what is allowed."""
        return BadTable(f'{self.path} line {self.line} column "{column}": {self.cells.get(column, "")!r} {what}')

    def text(self, column: str) -> str:
        """The cell without blanks around it; empty when the table has no such column."""
        return self.cells.get(column, "").strip()

    def integer(self, column: str, *, default: int | None = None, most: int = 2**53) -> int:
        """A whole number, 0..most; an empty cell is `default` where there is one.

        Raises:
            BadTable: no number, negative, not whole, or too large.
        """
        number = self.number(column, default=None if default is None else float(default), most=float(most))
        if number != int(number):
            raise self.fault(column, "is not a whole number")
        return int(number)

    def number(self, column: str, *, default: float | None = None, most: float = 1e15) -> float:
        """A finite number, 0..most; an empty cell is `default` where there is one.

        Raises:
            BadTable: no number, negative, not finite, or too large.
        """
        text = self.text(column)
        if not text and default is not None:
            return default
        try:
            number = float(text)
        except ValueError:
            unit = next((f" of {unit}" for end, unit in _UNITS.items() if column.endswith(end)), "")
            raise self.fault(column, f"is not a number{unit}") from None
        if not 0 <= number <= most:
            raise self.fault(column, f"must be a finite number from 0 to {most:.0f}")
        return number


@contextmanager
def opened(path: Path, errors: str = "strict") -> Iterator[TextIO]:
    """A text file to read, unpacked where it is packed with gzip; `errors` as for `open`.

    Raises:
        BadTable: it cannot be read, or is not UTF-8 text.
    """
    try:
        if path.is_fifo():
            raise BadTable(f"{path}: is a pipe, which cannot be read twice; write it to a file first")
        with path.open("rb") as raw:
            yield io.TextIOWrapper(_unpacked(path, raw), "utf-8-sig", errors, newline="")
    except UnicodeDecodeError as error:
        raise BadTable(f"{path}: is not UTF-8 text (byte {error.start}); a CSV file is wanted") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise BadTable(f"{path}: cannot be read ({reason})") from None


def _unpacked(path: Path, raw: io.BufferedReader) -> io.BufferedReader | gzip.GzipFile:
    head = raw.peek(512)
    packed = next((what for magic, what in _PACKED.items() if head.startswith(magic)), "")
    if packed:
        raise BadTable(f"{path}: is {packed}; unpack it, and give the files that were in it")
    file: io.BufferedReader | gzip.GzipFile = raw
    if head.startswith(b"\x1f\x8b"):
        file = gzip.GzipFile(fileobj=raw)
        head = file.peek(512)
    if head[257:262] == b"ustar":
        raise BadTable(f"{path}: is a tar archive; unpack it (tar -xf), and give the files that were in it")
    if b"\0" in head[:512]:
        raise BadTable(f"{path}: is not UTF-8 text, but has bytes of 0")
    return file


def read_text(path: Path) -> str:
    """The content of a text file, unpacked where it is packed with gzip.

    Raises:
        BadTable: it cannot be read, or is not UTF-8 text.
    """
    with opened(path) as file:
        return file.read()


def read_rows(path: Path, required: Sequence[str], hint: str = "") -> Iterator[TableRow]:
    """The lines of a CSV file with a header line that has at least the required columns; empty lines are skipped.

    `hint` is added where a column is missing.

    Raises:
        BadTable: unreadable, no header, a required column missing, or a line with too few or too many cells.
    """
    with opened(path) as file:
        lines = csv.reader(file, strict=True)
        try:
            yield from _rows(path, lines, required, hint)
        except csv.Error as error:
            raise BadTable(f"{path} line {lines.line_num}: is no CSV ({error})") from None


def _rows(path: Path, lines: Any, required: Sequence[str], hint: str) -> Iterator[TableRow]:
    header = [name.strip() for name in next(lines, [])]
    missing = [name for name in required if name not in header]
    if missing:
        named = ", ".join(f'"{name}"' for name in missing)
        wanted = ", ".join(required)
        raise BadTable(f"{path} line 1: column {named} is missing; wanted are {wanted}{hint}")
    for cells in lines:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            column = header[min(len(cells), len(header) - 1)]
            raise BadTable(
                f'{path} line {lines.line_num} column "{column}": the line has {len(cells)} cells, '
                f"the header {len(header)}"
            )
        yield TableRow(path, lines.line_num, dict(zip(header, cells, strict=True)))


def write_whole(path: Path, content: str) -> None:
    """Put a text file in place in one step; its folder is made when missing."""
    raw = content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw, synced=False, mode=0o666)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV text with `\\n` line ends."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue()
