"""docs/dialects.md says what the code does."""

import re
from pathlib import Path

from aliquot.kube import names
from aliquot.kube.dialects import FOREIGN

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "dialects.md").read_text()


def test_every_word_of_ours_is_on_the_page():
    """Each resource and annotation that people may write is explained, and the page names no other."""
    written = set(re.findall(r"`(?:aliquot\.dev/)?((?:gpu|cpu|anti|affin|exclu|prior|enforce|wake)[a-z-]*)`", PAGE))
    known = {name.removeprefix(names.PREFIX) for name in (*names.RESOURCES, *names.ASK_ANNOTATIONS)}

    assert known <= written
    assert written - known <= {"gpumem", "gpumem-percentage", "gpucores", "priority"}


def test_every_resource_of_others_is_on_the_page():
    """Each resource name that is converted stands in the table, by its full or its last part."""
    missing = {
        name
        for dialect in FOREIGN.values()
        for name in dialect.owned.resources
        if f"`{name}`" not in PAGE and f"`{name.rpartition('/')[2]}`" not in PAGE
    }

    assert set() == missing
