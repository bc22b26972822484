"""Whatever a cell of an account of jobs holds, an import ends in a trace that can be run or in one sentence."""

import copy
import csv
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from imported_traces import DATA, Imported

from aliquot.model.errors import UserError
from aliquot_lab.sim.workload import read_jobs

ODD = (
    "", " ", "0", "-0", "-1", "-50", "1e400", "-1e400", "1e13", "1e300", "inf", "-inf", "Infinity", "nan", "NaN",
    "+nan", "1,000", "1_000", "0x10", "9" * 400, "9" * 5000, "0.0004", "64.0005", "Unknown", "None",
    "1900-01-01T00:00:00", "9999-12-31 23:59:59", "0001-01-01", "2026-99-99", "1e11", "-5:00", "99999999999-00:00:00",
    "gres/gpu=-2", "gres/gpu=inf,node=1e9", "gres/gpu=2,node=-1,cpu=nan", "cpu=1e12,gres/gpu=9" * 3, "9" * 400 + "G",
    "1e5Ei", "-1m", "a\x00b", "a\nb", "\ud800", "\u0663", "|", "a" * 300_000,
)  # fmt: skip
CELLS = st.sampled_from(ODD) | st.text(max_size=12) | st.floats().map(str) | st.integers().map(str)
VALUES = st.recursive(
    CELLS | st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([10**30, -(10**30), 1e300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
TABLES = {
    "sacct": ("sacct.txt", "|"),
    "helios": ("helios_published.csv", ","),
    "pai": ("pai_published_task_table.csv", ","),
    "csv": ("pai_published_simulator.csv", ","),
}
DOCUMENTS = {
    "sacct": "sacct.json", "philly": "philly_published.json", "kueue": "workloads.json", "prometheus": "phases.json",
}  # fmt: skip


def check(kind: str, content: str) -> None:
    """Import a file of this content; what is written has times and sizes that a run accepts."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.write_text(content, encoding="utf-8", errors="surrogatepass", newline="")
        others = ["requests.json", "dcgm.json"] if kind == "prometheus" else []
        try:
            imported = Imported(Path(folder), kind, source, *others, models=True, cpu_jobs=True)
        except UserError as error:
            assert str(source) in str(error)
            return
        for row in imported.rows.values():
            numbers = [float(row[name]) for name in ("arrival_s", "gpu", "cpu_milli", "memory_mib", "priority")]
            assert all(0 <= number < math.inf for number in numbers)
            assert 0 < float(row["duration_s"]) < math.inf
        imported.facts["text"].encode()
        if any(float(row["gpu"]) for row in imported.rows.values()):
            assert imported.facts["lines_written"] == len(read_jobs(imported.path, "trace").jobs)


@pytest.mark.parametrize("kind", TABLES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_cell_of_a_table(kind: str, data: st.DataObject):
    """One or two cells of the lines that are read, or of the header, hold anything."""
    name, delimiter = TABLES[kind]
    with (DATA / name).open(newline="") as file:
        lines = list(csv.reader(file, delimiter=delimiter))[:6]
    for _ in range(data.draw(st.integers(1, 2))):
        line = data.draw(st.integers(0, len(lines) - 1))
        lines[line][data.draw(st.integers(0, len(lines[line]) - 1))] = data.draw(CELLS)
    check(kind, written(lines, delimiter))


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("cell", ODD, ids=lambda cell: repr(cell)[:24])
def test_every_column_with_an_odd_cell(kind: str, cell: str):
    """Each column in turn."""
    name, delimiter = TABLES[kind]
    with (DATA / name).open(newline="") as file:
        lines = list(csv.reader(file, delimiter=delimiter))[:4]
    for column in range(len(lines[1])):
        changed = copy.deepcopy(lines)
        changed[1][column] = cell
        check(kind, written(changed, delimiter))


def written(lines: list[list[str]], delimiter: str) -> str:
    """A table; where `sacct` writes it, nothing is quoted."""
    if delimiter == "|":
        return "".join("|".join(cells) + "\n" for cells in lines)
    return "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n" for cells in lines)


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with each of its keys."""
    for key in list(document) if isinstance(document, dict) else range(len(document)):
        yield document, key
        if isinstance(document[key], dict | list):
            yield from places(document[key])


@pytest.mark.parametrize("kind", DOCUMENTS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_of_a_document(kind: str, data: st.DataObject):
    """One value of a JSON document, at any depth, is anything that JSON can say."""
    document = json.loads((DATA / DOCUMENTS[kind]).read_text())
    holder, key = data.draw(st.sampled_from(list(places(document))))
    holder[key] = data.draw(VALUES)
    check(kind, json.dumps(document))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_value_of_a_document_in_yaml(data: st.DataObject):
    """YAML has times and infinite numbers of its own."""
    document = yaml.safe_load((DATA / "workloads.yaml").read_text())
    holder, key = data.draw(st.sampled_from(list(places(document))))
    holder[key] = "ODD"
    odd = data.draw(st.sampled_from((".inf", "-.inf", ".nan", "2026-99-99", "1e400", "[", "{a: b}", "~", "9" * 5000)))
    check("kueue", yaml.safe_dump(document).replace("ODD", odd))
