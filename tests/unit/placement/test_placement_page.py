"""docs/placement.md says what the code has."""

import re
from pathlib import Path

from aliquot.placement.codes import Code
from aliquot.placement.machine import DEFAULT_POLICY
from aliquot.placement.policy import POLICIES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "placement.md").read_text()


def first_cells(heading: str) -> set[str]:
    """The words in code type in the first column of the tables under a heading."""
    part = PAGE.split(f"## {heading}")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_every_policy_is_in_the_table():
    """The page lists all policies of the core and names the default."""
    assert set(POLICIES) == first_cells("Policies")
    assert re.search(rf"\| `{DEFAULT_POLICY}` \|.*the default", PAGE)


def test_every_code_is_in_the_table():
    """The page lists all codes that a reason can have."""
    assert {code.value for code in Code} == first_cells("Why does it wait?")
