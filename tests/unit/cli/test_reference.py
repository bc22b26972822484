"""The reference under docs/reference is made from the code, and is what the code says now."""

import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.cli.main import COMMANDS, LAB

pytest.importorskip("lightkube", reason="the parts for a cluster are not installed: no reference of them")

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "reference"


def test_the_reference_is_fresh():
    """What the generator would write is what is under docs/reference."""
    command = [sys.executable, ROOT / "tools" / "gen_reference.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)

    assert 0 == done.returncode, done.stderr


def test_every_command_has_its_section_with_an_example():
    """Each command that --help lists is in the reference, with one example."""
    text = (FOLDER / "cli.md").read_text()
    sections = {part.splitlines()[0]: part for part in text.split("\n## aliquot ")[1:]}

    assert {*COMMANDS, *LAB} == set(sections)
    assert [] == [name for name, part in sections.items() if "\nExample" not in part]
