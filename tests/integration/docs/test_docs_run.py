"""Every command, manifest and program of the documentation does what its page says."""

from collections import Counter
from pathlib import Path

import pytest
from docpages import ROOT, blocks, name_of, pages, sections
from docplay import play
from docroom import Room

from aliquot.driver.native import EMULATED_CUDA, HOOK, NativePartMissing, native_part

PAGES = pages()
SLOW = [
    page
    for page in PAGES
    if "reference" not in page.parts and any(b.takes_long(s) for b in blocks(page) for s in b.steps if not b.not_run)
]

ALONE = [
    (start, heading)
    for start in ("quickstart-one-machine", "quickstart-planner")
    for heading, text in sections(ROOT / "docs" / f"{start}.md").items()
    if "```console" in text
]
"""Quick starts whose sections begin anew: a reader may come to any of them first."""


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    """Without the native parts no command that needs a GPU can be run; say so."""
    try:
        for part in (HOOK, EMULATED_CUDA):
            native_part(part)
    except NativePartMissing as error:
        pytest.skip(str(error))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_does_what_it_says(path: Path, counts: Counter[str], not_run: dict[str, str]):
    """What a page tells to type, save and run works in its order, or a reason for not running it stands above it."""
    play(path, Room(counts, only_read="reference" in path.parts), not_run)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("start", "heading"), ALONE, ids=lambda word: word.replace(" ", "-"))
def test_a_section_of_a_quick_start_works_from_a_fresh_state(
    tmp_path: Path, start: str, heading: str, counts: Counter[str], not_run: dict[str, str]
):
    """A section prints what it says also where none of those before it was typed."""
    alone = tmp_path / f"{start}.md"
    alone.write_text(sections(ROOT / "docs" / f"{start}.md")[heading])
    play(alone, Room(counts), not_run)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", SLOW, ids=name_of)
def test_a_page_does_what_it_says_at_length(path: Path, counts: Counter[str], not_run: dict[str, str]):
    """The same with the commands that take long."""
    play(path, Room(counts, slow=True), not_run)
