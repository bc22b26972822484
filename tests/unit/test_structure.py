"""The figures of `tools/structure.py`, and those of them that are settled."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_CODE = 40_933
MAX_LAB_CODE = 8_000
MAX_FILES = 290
MAX_SINGLE_CALLERS = 0.1
MAX_ONE_IMPORTER = 57
MAX_IMPORTS = 20
MAX_SHARED_NAMES = 10
MAX_GPU_RECORDS = 8


@cache
def output() -> str:
    """What the tool prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "structure.py", "--details"],
        capture_output=True, text=True, check=True, timeout=110,
    )  # fmt: skip
    return done.stdout


def figures() -> dict[str, int]:
    rows = (line.split(maxsplit=1) for line in output().partition("\n\n")[0].splitlines())
    return {what: int(count) for count, what in rows}


def test_the_house_stays_small():
    """Code, files, helpers with one caller, files with one importer and imports of one file stay within bounds."""
    counted = figures()

    assert 10_000 < counted["lines of code of the product"] <= MAX_CODE
    assert 1_000 < counted["lines of code of the laboratory"] <= MAX_LAB_CODE
    assert 100 < counted["files of the product"] <= MAX_FILES
    assert 0 < counted["private functions with one caller"] <= MAX_SINGLE_CALLERS * counted["functions of the product"]
    assert 0 < counted["modules with one importer"] <= MAX_ONE_IMPORTER
    assert 0 < counted["modules that one module imports, at most"] <= MAX_IMPORTS
    assert 1 == counted["modules that start uvicorn"]


def test_modules_do_not_import_one_another():
    """No modules import one another in a circle, neither when loaded nor later or for types."""
    counted = figures()

    assert (0, 0) == (counted["import cycles when loaded"], counted["import cycles with late and typing imports"])


def test_a_request_has_one_form_inside():
    """Besides `GpuRequest` only a manifest spells a request out."""
    assert 2 == figures()["forms of a request"]


def test_reasons_are_worded_in_one_place():
    """One module has the sentences about what a node or GPU lacks for a request."""
    assert 1 == figures()["modules that word what a request lacks"]


def test_a_gpu_has_few_records():
    """What is known of a GPU is copied into few records: the read model's, of wire forms and of requests."""
    assert figures()["records of a GPU"] <= MAX_GPU_RECORDS


def test_one_function_writes_files_whole():
    """What readers must never see half of is written by one function."""
    assert 1 == figures()["functions that write a file whole"]


def test_few_class_names_are_shared():
    """Few names belong to classes of two packages, and none of the glossary's words does."""
    listed = output().partition("\npublic class names with more than one class\n")[2].partition("\n\n")[0]
    shared = {line.partition(":")[0].strip().lower() for line in listed.splitlines()}
    rows = re.findall(r"^\| ((?:\*\*.+?\*\*)(?:, \*\*.+?\*\*)*) \|", (ROOT / "docs/glossary.md").read_text(), re.M)
    words = {word.strip("* ").lower() for row in rows for cell in row.split("**") for word in cell.split(",")}

    assert len(shared) <= MAX_SHARED_NAMES
    assert {"tenant", "reason", "release"} <= words
    assert not shared & words
