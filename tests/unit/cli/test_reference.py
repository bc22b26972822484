"""The reference under docs/reference is made from the code, and is what the code says now."""

import re
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


def test_links_in_the_reference_lead_somewhere():
    """Every relative link of a page is a file, and every anchor a heading of it."""
    broken = []
    for page in FOLDER.glob("*.md"):
        prose = re.sub(r"`[^`]*`", "", page.read_text())
        for target in re.findall(r"\]\(([^)]+)\)", prose):
            file, _, anchor = target.partition("#")
            path = (FOLDER / file) if file else page
            heads = re.findall(r"^#+ (.+)$", path.read_text(), re.M) if anchor and path.suffix == ".md" else []
            known = {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}
            if not path.exists() or (anchor and anchor not in known):
                broken.append(f"{page.name}: {target}")

    assert [] == broken
