"""Reads what `nvidia-smi topo -m` (or `-mp`) prints, from any of its versions and through any terminal.

Columns are separated by blanks or tabs alone; a header may lack its leading column, columns and rows of network cards
may stand between the GPUs and the affinities, and legends may follow. What is refused is a matrix that does not hold
every pair of the GPUs it names: half a machine would be placed on as if it were whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot.topology.links import LABELS, known_label
from aliquot.topology.machine import BadTopology, Topology

_ESCAPE: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # nvidia-smi underlines its header
_GPU: Final = re.compile(r"GPU(\d{1,3})", re.ASCII)
_RANGE: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
_CORES_MAX: Final = 65536
_WHOLE: Final = "paste the whole output of nvidia-smi topo -m"


@dataclass(frozen=True)
class _Header:
    """Device columns in order, and which affinities follow them."""

    devices: tuple[str, ...]
    has_cores: bool
    has_numa: bool


class _Refused(Exception):
    """The sentence without the place."""


def parse_topo(text: str, *, where: str = "topology") -> Topology:
    """The topology of the GPUs in a printed matrix; `where` (a file's name) begins the sentence of an error.

    Raises:
        BadTopology: no matrix in the text, a row missing or cut off, an unknown label, or a pair that has two labels.
    """
    try:
        header, rows = _read(text)
    except _Refused as refused:
        raise BadTopology(f"{where}: {refused}") from None
    gpus = [name for name in header.devices if _GPU.fullmatch(name)]
    at = [header.devices.index(name) for name in gpus]
    cells = [[rows[name][column] for column in at] for name in gpus]
    tails = [rows[name][len(header.devices) :] for name in gpus]
    numa, cores = [_numa(tail, header) for tail in tails], [_cores(tail, header) for tail in tails]
    return Topology.of(cells, numa=numa, cores=cores, where=where)


def _is_row(words: Sequence[str]) -> bool:
    return len(words) > 1 and known_label(words[1]) is not None


def _header(lines: Iterable[list[str]]) -> _Header | None:
    """The first line that begins with a GPU and is not a row: names of devices, then of affinities."""
    for words in lines:
        if words and _GPU.fullmatch(words[0]) and not _is_row(words):
            end = next((i for i, word in enumerate(words) if word in ("CPU", "NUMA", "GPU")), len(words))
            tail = " ".join(words[end:])
            return _Header(tuple(words[:end]), "CPU Affinity" in tail, re.search(r"NUMA(?! ID)", tail) is not None)
    return None


def _read(text: str) -> tuple[_Header, dict[str, list[str]]]:
    """The header and the rows of GPUs, which hold every pair of the GPUs that the header names."""
    lines = [_ESCAPE.sub("", line).split() for line in text.splitlines()]
    rows: dict[str, list[str]] = {}
    for words in lines:
        if words and _GPU.fullmatch(words[0]) and _is_row(words):
            if words[0] in rows:
                raise _Refused(f"row {words[0]} is there twice; give one matrix at a time")
            rows[words[0]] = words[1:]
    header = _header(lines)
    if header is None:  # the rows name the columns, which is certain only when every column has its row
        if not rows:
            raise _Refused(f"there is no matrix in this text (no row begins with GPU0); {_WHOLE}")
        names = [words[0] for words in lines if _is_row(words) and known_label(words[0]) is None]
        width = max(sum(known_label(cell) is not None for cell in row) for row in rows.values())
        if width != len(names):
            raise _Refused(
                f"the line that names the columns is missing, and {len(names)} rows do not explain {width} columns; "
                f"{_WHOLE}"
            )
        header = _Header(tuple(names), True, True)
    # Columns and rows are GPU0, GPU1, ... without a gap.
    gpus = [name for name in header.devices if _GPU.fullmatch(name)]
    for index, name in enumerate(gpus):
        if name != f"GPU{index}":
            raise _Refused(f"column {name} stands where GPU{index} is due; {_WHOLE}")
    missing = [name for name in gpus if name not in rows]
    if missing:
        which = f"row {missing[0]} is" if len(missing) == 1 else f"rows {', '.join(missing)} are"
        raise _Refused(f"{which} missing, the columns go up to {gpus[-1]}; {_WHOLE}")
    for name in rows:
        if name not in gpus:
            raise _Refused(f"row {name} has no column, the columns end at {gpus[-1]}; {_WHOLE}")
    # Every row has a link in every device column, of network cards too: else what follows would be misread.
    for name, row in rows.items():
        for column, cell in zip(header.devices, row, strict=False):
            if known_label(cell) is None:
                raise _Refused(f"row {name}, column {column} is {cell!r}; {LABELS}")
        if len(row) < len(header.devices):
            raise _Refused(f"row {name} is cut off, it has {len(row)} of {len(header.devices)} columns; {_WHOLE}")
    return header, rows


def _cores(tail: Sequence[str], header: _Header) -> list[int]:
    """The nearest cores; a list that nvidia-smi or a terminal cut keeps what is whole of it."""
    if not header.has_cores or not tail:
        return []
    cores: list[int] = []
    for part in tail[0].split(","):
        found = _RANGE.fullmatch(part)
        first, last = (int(found.group(1)), int(found.group(2) or found.group(1))) if found else (1, 0)
        if last < first or last >= _CORES_MAX:
            break
        cores += range(first, last + 1)
    return cores


def _numa(tail: Sequence[str], header: _Header) -> int | None:
    """The one NUMA node; None for N/A, for several (`0-1`) and where the column is missing."""
    at = int(header.has_cores)
    if not header.has_numa or len(tail) <= at or "-" in tail[at] or not _RANGE.fullmatch(tail[at]):
        return None
    return int(tail[at])
