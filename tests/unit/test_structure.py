"""The figures of `tools/structure.py`, and those of them that are settled."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def figures() -> dict[str, int]:
    """The table that the tool prints."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "structure.py"], capture_output=True, text=True, check=True, timeout=60
    )
    rows = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    return {what: int(count) for count, what in rows}


def test_structure_is_counted():
    """The tool counts lines and modules; no modules import one another in a circle, and one alone starts servers."""
    counted = figures()

    assert 10_000 < counted["handwritten lines of Python in the wheel"]
    assert 100 < counted["modules"] < counted["handwritten lines of Python in the wheel"]
    assert 0 == counted["import cycles when loaded"]
    assert 1 == counted["modules that start uvicorn"]
